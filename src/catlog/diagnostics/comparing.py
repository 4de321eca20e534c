"""Bias, variance and time of estimators, measured side by side on f and q: one row each."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import exp, inf, isfinite, nan, pi, sqrt
from statistics import NormalDist, median
from typing import Any

import torch
from torch import Tensor

from ..core.checks import check_count, refusal, shape_or_type
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.left_alone import left_alone
from ..estimators import ESTIMATORS, Exact
from .arms import ERRORS, Arm, entered, listed, reason
from .function_check import check_mean
from .moments import Moments
from .naming import Chosen, named_estimators
from .task import Clock, DistributionLike, Gradient, Loss, Task, flat

WARM_UP = 2  # steps before times count
NORMAL = NormalDist().inv_cdf(0.975)
REFERENCES = {
    "exact": "Bias against the exact gradient",
    "given": "Bias against the reference given",
    "pooled": "Bias against the other unbiased estimators, pooled",
    "rloo": "Bias against RLOO on all layers, with many draws",
}
NO_REFERENCE = "No bias, for want of another unbiased estimator: add one, such as RLOO"


@dataclass(frozen=True)
class Row:
    r"""What was measured of one estimator. Intervals are 95 % intervals.

    Attributes:
        name: The name given, or the class with its settings.
        unbiased: Whether the estimator is unbiased.
        samples: Its number of draws; None if it has none.
        evaluations: Evaluations of f per estimate and batch element.
        repeats: The number of estimates behind the numbers.
        trained: The number of steps for which it learned beforehand.
        seconds: The median time of a step: q, estimate and gradients.
        variance: The variance over draws, after the chain rule, summed over the parameters.
        variance_low: Lower end of its interval.
        variance_high: Upper end of its interval.
        bias: The distance of the mean from the reference, minus the noise in it; NaN if there is
            nothing to compare with.
        bias_error: The noise in that distance.
        largest_z: The largest difference of a parameter's mean from the reference, in standard
            errors.
        snr: :math:`\lVert \nabla \rVert / \sqrt{\text{variance}}`.
        merit: Variance times seconds, the lower the better.
        merit_low: Lower end of its interval.
        merit_high: Upper end of its interval.
        estimator: The estimator, after learning.
        variances: The variance of every parameter.
    """

    name: str
    unbiased: bool
    samples: int | None
    evaluations: int
    repeats: int
    trained: int
    seconds: float
    variance: float
    variance_low: float
    variance_high: float
    bias: float
    bias_error: float
    largest_z: float
    snr: float
    merit: float
    merit_low: float
    merit_high: float
    estimator: Estimator = field(repr=False, compare=False)
    variances: Tensor = field(repr=False, compare=False)


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`catlog.compare` and :func:`catlog.compare_layers`.

    Attributes:
        rows: What was measured of every estimator, best first.
        skipped: The estimators that were left out, with the reasons.
        reference: What the bias is measured against: "exact", "given", "pooled" or, by
            :func:`catlog.compare_layers`, "rloo".
        mode: How the numbers of draws were set.
    """

    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    reference: str
    mode: str

    @property
    def best(self) -> Row:
        """The unbiased estimator with the lowest variance x time; if all are biased, the best."""
        return min(self.rows, key=lambda row: (not row.unbiased, row.merit))

    def __getitem__(self, name: str) -> Row:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"{name!r} is not among the rows: {', '.join(rows)}.")
        return rows[name]

    def __str__(self) -> str:
        """Return :meth:`table` at the width of the terminal; 80 columns if there is none."""
        return self.table(shutil.get_terminal_size().columns)

    def table(self, width: int | None = None) -> str:
        """Return a line of text per estimator, best first, and notes.

        Args:
            width: The most columns of a line. Columns of the table that do not fit are left out and
                named below it; the name, variance x s and the bias are always shown. None: no
                limit.
        """
        names = ["", *(row.name if row.unbiased else f"{row.name} (b)" for row in self.rows)]
        columns = [[heading, *map(text, self.rows)] for heading, text in COLUMNS.items()]
        sizes = [max(map(len, column)) for column in columns]
        most = max(map(len, names))
        room = inf if width is None else width - most
        shown = max(ALWAYS, sum(end <= room for end in accumulate(2 + size for size in sizes)))
        lines = [
            "  ".join([name.ljust(most), *map(str.rjust, cells, sizes)])
            for name, *cells in zip(names, *columns[:shown], strict=True)
        ]
        has_bias = any(isfinite(row.bias) for row in self.rows)
        reference = REFERENCES[self.reference] if has_bias else NO_REFERENCE
        notes = [f"{self.mode}.", f"{reference}. (b): biased by design."]
        if missing := [*COLUMNS][shown:]:
            notes.append(f"Not shown, for lack of space: {', '.join(missing)}.")
        if self.skipped:
            notes.append(f"Left out: {listed(self.skipped)}.")
        wrap = partial(textwrap.wrap, subsequent_indent="  ")
        notes = [line for note in notes for line in wrap(note, width or len(note))]
        return "\n".join([*lines, "", *notes])


# The columns of the table after the names. Where space is short, the last ones are left out.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "variance x s": lambda row: f"{row.merit:.3g}",
    "bias ± noise": lambda row: (
        f"{row.bias:.2g} ± {row.bias_error:.2g}" if isfinite(row.bias) else ""
    ),
    "ms": lambda row: f"{1000 * row.seconds:.3g}",
    "variance": lambda row: f"{row.variance:.3g}",
    "95 % interval": lambda row: f"{row.merit_low:.3g} to {row.merit_high:.3g}",
    "evaluations": lambda row: str(row.evaluations),
    "snr": lambda row: f"{row.snr:.3g}",
}
ALWAYS = 2  # of them are always shown


# The measurement

KnownGradient = tuple[Tensor, Tensor]  # a gradient, and the variance of each of its entries


def compare(
    f: Function,
    q: DistributionLike,
    estimators: Chosen | None = None,
    parameters: Tensor | Sequence[Tensor] | None = None,
    *,
    budget: int | None = None,
    repeats: int = 200,
    rounds: int = 15,
    training: int = 200,
    loss: Loss | None = None,
    reference: Any = None,
    limit: int = 2**16,
    seed: int = 0,
    progress: bool = True,
    clock: Clock = time.perf_counter,
) -> Comparison:
    r"""Measure estimators of the gradient of :math:`\mathbb{E}_{x \sim q}[f(x)]` on f and q.

    The expectation is summed over the batch. Every estimator makes ``repeats`` independent
    estimates.

    *Variance* is over draws, after the chain rule, and summed over the parameters. *Time* is that
    of a training step without the optimiser: q, the estimate, and its gradient in the parameters of
    q, of f and of the estimator. It is the median over ``rounds`` in which all estimators take
    turns, after warming up. *Variance x time* is the cost of reaching a given precision, since more
    draws or more steps trade one for the other. Intervals come from the delta method on a
    logarithmic scale. The error of the variance comes from the spread of
    :math:`\lVert g_r - \bar g \rVert^2`, and that of the median time from the median absolute
    deviation.

    Gradients, torch's random number generators and the buffers of the modules that f and q refer to
    (running statistics of BatchNorm) are left as they were.

    A copy of an estimator with parameters or a memory learns for ``training`` steps first, and its
    time includes learning. If only some calls of
    :class:`SlopeCateR` correct (``every``), estimates and timed steps are of both kinds. Variance
    and time are averages over calls with and without corrections.

    If f knows its mean (``f.expectation``, see :mod:`catlog.functions`) and q has few points, the
    mean and its gradient are compared with f at every point first. If they disagree, an error says
    so.

    Args:
        f: the function, as estimators take it.
        q: the distribution, or a callable that returns it. The callable gets the parameters as its
            arguments, ``q(*parameters)``, and a step includes calling it. If it needs none of them,
            because a network holds them, write ``lambda *_: make_q()``.
        estimators: estimators, their names or reprs (``"RLOO(4)"``), or a dict of them by name;
            None: the whole registry.
        parameters: tensors to take the gradient in; None: those that q was computed from, else the
            logits of q. Needed if q is a callable.
        budget: give every estimator the most draws that need no more than this many evaluations
            (equal evaluations). None: every estimator keeps its number.
        repeats: estimates per estimator, at least 2.
        rounds: timed steps per estimator.
        training: steps for which an estimator with parameters or a memory learns.
        loss: how the loss depends on the value, if it is no weighted sum of values, such as
            ``lambda value: -value.log()``. It maps tensors element by element. Bias and variance
            are then those of the gradient of this loss.
        reference: the true gradient: one tensor per parameter, or an object with tuples
            ``gradient`` and ``error``. None: exact if f knows its mean (``f.expectation``), by
            enumeration if q has at most ``limit`` points (and not many more than all repeats
            evaluate), else, for every estimator, the mean of the *other* unbiased ones, weighted by
            their precision.
        limit: the most points to enumerate for the reference and, unless ``estimators`` holds it,
            for Exact: every step of it evaluates f and q at all points.
        seed: the seed of the draws.
        progress: say on a terminal what is being measured.
        clock: a function that returns seconds.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR, RLOO
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> def f(x):
    ...     return x.sum(-1) ** 2
    >>> result = compare(f, q, [RLOO(), IndeCateR()], budget=8, progress=False)
    >>> [(row.name, row.evaluations) for row in sorted(result.rows, key=lambda row: row.variance)]
    [('IndeCateR(2)', 8), ('RLOO(8)', 8)]
    """
    check_count("compare", "limit", limit)
    if budget is not None:
        check_count("compare", "budget", budget)
    with left_alone(f, q, loss):
        task = Task(f, q, parameters, loss, clock=clock)
        check_mean(task.f, task.make_q(*task.parameters))
        named = named_estimators([*ESTIMATORS] if estimators is None else estimators)
        if estimators is None:
            named["Exact()"] = Exact(limit=limit)
        arms, skipped = entered(task, named, seed, budget, resize=True)
        measure("compare", task, arms, skipped, repeats, rounds, training, progress)
        known, kind = _reference(task, arms, reference, repeats, limit)
    rows = sorted(rows_of(arms, known), key=lambda row: (row.merit, row.seconds))
    mode = "As given" if budget is None else f"Equal evaluations: at most {budget}"
    return Comparison(tuple(rows), skipped, kind, mode)


def measure(
    owner: str,
    task: Gradient,
    arms: dict[str, Arm],
    skipped: dict[str, str],
    repeats: int,
    rounds: int,
    training: int,
    progress: bool,
) -> None:
    """Let arms learn, make estimates, and take turns in timed steps."""
    counts = ("repeats", repeats, 2), ("rounds", rounds, 1), ("training", training, 0)
    for name, count, least in counts:
        check_count(owner, name, count, least)
    for name, arm in list(arms.items()):
        _say(f"{owner}: {name}", progress)
        try:
            arm.learn(task, training)
            for _ in range(2 if arm.E.is_exact else repeats):  # exact ones are all alike
                arm.observe(task)
            if not bool(arm.moments.mean.isfinite().all()):
                raise ValueError("its gradient is NaN or infinite")
        except ERRORS as error:
            skipped[name] = reason(error)
            del arms[name]
    if not arms:
        raise ValueError(f"{owner}: no estimator could be used. {listed(skipped)}.")
    for number in range(-WARM_UP, rounds):
        _say(f"{owner}: round {max(0, number) + 1} of {rounds}", progress)
        for arm in arms.values():
            seconds = arm.observe(task, keep=False)
            arm.times += [seconds] if number >= 0 else []
    _say("", progress)


def _say(text: str, is_wanted: bool) -> None:
    """Write over the last line of a terminal."""
    if is_wanted and sys.stderr.isatty():
        print(f"\r{text:<60}", end="\r", file=sys.stderr, flush=True)


# The reference


def _reference(
    task: Task, arms: Mapping[str, Arm], reference: Any, repeats: int, limit: int
) -> tuple[KnownGradient | None, str]:
    """Return what a bias is measured against, if it is the same for all estimators."""
    most_points = 4 * repeats * max(arm.evaluations for arm in arms.values())
    if reference is not None:
        return _given(task, reference), "given"
    if task.knows_mean or task.points <= min(limit, most_points):
        gradient = task.exact()
        return (gradient, torch.zeros_like(gradient)), "exact"
    return None, "pooled"


def _given(task: Task, reference: Any) -> KnownGradient:
    """Return the user's reference as one vector. Raise ValueError if the shapes do not fit."""
    given = getattr(reference, "gradient", reference)
    gradient = given if isinstance(given, Sequence) else [given]
    shapes = [tuple(parameter.shape) for parameter in task.parameters]
    received = [shape_or_type(part) for part in gradient]
    if received != shapes:
        claim = f"be one tensor per parameter, of shapes {shapes}"
        raise refusal("reference", claim, f"{received} was given")
    error = getattr(reference, "error", [torch.zeros_like(part) for part in gradient])
    return flat(gradient).detach().double(), flat(error).double().square()


def pooled_gradient(arms: Sequence[Arm]) -> KnownGradient:
    """Return the mean over arms, weighted by their precision; one without noise has all weight."""
    means = torch.stack([arm.moments.mean for arm in arms])
    variances = torch.stack([arm.moments.mean_variances for arm in arms])
    precisions = means.new_tensor([[1 / max(arm.moments.mean_variance, 1e-300)] for arm in arms])
    weights = precisions / precisions.sum()
    return (weights * means).sum(0), (weights**2 * variances).sum(0)


# Rows


def rows_of(arms: Mapping[str, Arm], known: KnownGradient | None) -> list[Row]:
    """Return a row per arm; without a known gradient, the bias is that against the others."""
    unbiased = [arm for arm in arms.values() if arm.E.unbiased]
    mean, noise = known or pooled_gradient(unbiased or [*arms.values()])
    norm = sqrt(max(0.0, float(mean.square().sum() - noise.sum())))
    rows = []
    for name, arm in arms.items():
        others = [other for other in unbiased if other is not arm]
        truth = known or (pooled_gradient(others) if others else None)
        rows.append(row_of(name, arm, truth, norm))
    return rows


def row_of(name: str, arm: Arm, truth: KnownGradient | None, norm: float) -> Row:
    """Return the measurements, with the bias against ``truth`` and the given gradient norm."""
    moments, seconds, variance = arm.moments, median(arm.times), arm.moments.variance
    bias, bias_error, largest_z = _bias(moments, truth)
    variance_factor = exp(NORMAL * moments.error)
    merit_factor = exp(NORMAL * sqrt(moments.error**2 + _median_error(arm.times) ** 2))
    return Row(
        name=name,
        unbiased=arm.E.unbiased,
        samples=getattr(arm.E, "samples", None),
        evaluations=arm.evaluations,
        repeats=moments.count,
        trained=arm.trained,
        seconds=seconds,
        variance=variance,
        variance_low=variance / variance_factor,
        variance_high=variance * variance_factor,
        bias=bias,
        bias_error=bias_error,
        largest_z=largest_z,
        snr=norm / sqrt(variance) if variance else inf,
        merit=variance * seconds,
        merit_low=variance * seconds / merit_factor,
        merit_high=variance * seconds * merit_factor,
        estimator=arm.E,
        variances=moments.variances,
    )


def _bias(moments: Moments, truth: KnownGradient | None) -> tuple[float, float, float]:
    """Return the bias, the noise in it, and the largest z; NaN without a truth."""
    if truth is None:
        return nan, nan, nan
    gradient, variances = truth
    squared_errors = moments.mean_variances + variances
    gap = moments.mean - gradient
    noise = sqrt(float(squared_errors.sum()))
    bias = sqrt(max(0.0, float(gap.square().sum()) - noise**2))
    beyond_rounding = (gap.abs() - moments.rounding * float(gradient.norm())).clamp(min=0)
    largest_z = float((beyond_rounding / squared_errors.sqrt().clamp(min=1e-300)).max())
    return bias, noise, largest_z


def _median_error(times: Sequence[float]) -> float:
    """Return the relative standard error of the median, for normal times.

    The standard deviation is 1.4826 times the median absolute deviation. The median's variance is
    pi / 2 times that of the mean.
    """
    middle = median(times)
    if middle <= 0:
        return 0.0
    deviation = 1.4826 * median(abs(seconds - middle) for seconds in times)
    return sqrt(pi / 2) * deviation / middle / sqrt(len(times))
