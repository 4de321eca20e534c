"""Bias, variance and time of estimators, measured side by side on f and q."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, nan, pi, sqrt
from statistics import NormalDist, median
from sys import maxsize

import torch
from torch import Tensor, nn

from ..core.checks import check_count, readable
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.left_alone import left_alone
from ..core.settings import label
from ..estimators import ESTIMATORS, Exact
from ..estimators.parsing import parse_estimator
from .comparison import Comparison, Row
from .gradient_samples import Clock, DistributionLike, GradientSampler
from .kinds_of_calls import of_each_kind, shares_of_kinds
from .mean_check import check_mean
from .moments import Moments
from .progress import shown_progress
from .reference import (
    GivenReference,
    KnownGradient,
    exact_gradient,
    given_gradient,
    norm_of,
    pooled_gradient,
)
from .sizing import (
    ERRORS,
    copied_to,
    first_line,
    joined_reasons,
    learning_modules,
    why_unsuitable,
    with_samples,
    within_budget,
)

CALL_EVALUATIONS = 2**14  # of f in one batched call, about
CALL_NUMBERS = 2**20  # in the points of one batched call, about
NORMAL = NormalDist().inv_cdf(0.975)
TRAINING_RATE = 0.05  # of an estimator that learns, at the start

Chosen = Sequence[str | Estimator] | Mapping[str, str | Estimator]


def compare(
    f: Function,
    q: DistributionLike,
    estimators: Chosen | None = None,
    parameters: Tensor | Sequence[Tensor] | None = None,
    *,
    samples: int | None = None,
    budget: int | None = None,
    repeats: int = 200,
    rounds: int = 15,
    training: int = 200,
    reference: GivenReference | None = None,
    limit: int = 2**16,
    seed: int = 0,
    progress: bool = True,
    clock: Clock = time.perf_counter,
) -> Comparison:
    r"""Measure estimators of the gradient of :math:`\mathbb{E}_{x \sim q}[f(x)]` on f and q.

    The expectation is summed over the batch. Every estimator makes ``repeats`` independent
    estimates.

    *Variance* is over draws, after the chain rule, and summed over the parameters; it is also given
    per logit. *Time* is that of a training step without the optimiser: q, the estimate, and its
    gradient in the parameters of q, of f and of the estimator. It is the median over ``rounds`` in
    which all estimators take turns, after warming up. *Variance x time* is the cost of reaching a
    given precision, since more draws or more steps trade one for the other. Intervals come from the
    delta method on a logarithmic scale. The error of the variance comes from the spread of
    :math:`\lVert g_r - \bar g \rVert^2`, and that of the median time from the median absolute
    deviation.

    Gradients, torch's random number generators and the buffers of the modules that f and q refer to
    (running statistics of BatchNorm) are left as they were.

    A copy of an estimator with parameters or a memory learns for ``training`` steps first. It is
    frozen while its variance is measured; its time includes learning. If only some calls of
    :class:`SlopeCateR` correct (``every``), estimates and timed steps are of both kinds. Variance
    and time are those of a call whose kind is random.

    If f knows its mean (``f.expectation``, see :mod:`catlog.functions`) and q has few points, the
    mean and its gradient are compared with f at every point first. If they disagree, an error says
    so.

    Args:
        f: The function, as estimators take it.
        q: The distribution, or a callable that returns it. The callable gets the parameters as its
            arguments, ``q(*parameters)``, and a step includes calling it. If it needs none of them,
            because a network holds them, write ``lambda *_: make_q()``.
        estimators: Estimators, their names or reprs (``"RLOO(4)"``), or a dict of them by name;
            None: the whole registry.
        parameters: Tensors to take the gradient in; None: those that q was computed from, else the
            logits of q. Needed if q is a callable.
        samples: Give every estimator this many draws (equal samples).
        budget: Give every estimator the most draws that need no more than this many evaluations
            (equal evaluations). With neither, every estimator keeps its number.
        repeats: Estimates per estimator, at least 2.
        rounds: Timed steps per estimator.
        training: Steps for which an estimator with parameters or a memory learns.
        reference: The true gradient: one tensor per parameter, or an object with tuples
            ``gradient`` and ``error``. None: exact if f knows its mean (``f.expectation``), by
            enumeration if q has at most ``limit`` points (and not many more than all repeats
            evaluate), else, for every estimator, the mean of the *other* unbiased ones, weighted by
            their precision.
        limit: The most points to enumerate for the reference and, unless ``estimators`` holds it,
            for Exact: every step of it evaluates f and q at all points.
        seed: The seed of the draws.
        progress: Show a bar, if the package rich is installed and the output is a terminal.
        clock: A function that returns seconds.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR, RLOO
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> def f(x):
    ...     return x.sum(-1) ** 2
    >>> result = compare(f, q, [RLOO(), IndeCateR()], budget=8, progress=False)
    >>> [(row.name, row.evaluations) for row in sorted(result.rows, key=lambda row: row.variance)]
    [('IndeCateR(2)', 8), ('RLOO(8)', 8)]
    """
    _check_numbers(samples, budget, repeats, rounds, training, limit)
    with left_alone(f, q):
        task = GradientSampler(f, q, parameters, clock=clock)
        check_mean(task, limit)
        most_of_exact = limit if estimators is None else None
        named = named_estimators(estimators)
        entries, skipped = _entries(task, named, samples, budget, most_of_exact)
        with shown_progress(progress) as advance:
            steps = len(entries) + rounds
            for number, (name, entry) in enumerate(list(entries.items())):
                advance(name, number, steps)
                try:
                    entry.measure(task, repeats, training, seed + 1 + number)
                except ERRORS as error:
                    skipped[name] = first_line(error)
                    del entries[name]
            if not entries:
                raise ValueError(f"compare: no estimator could be used. {joined_reasons(skipped)}.")
            timers = {
                name: task.timer(entry.E, task.generator(seed)) for name, entry in entries.items()
            }
            for timer in timers.values():
                timer(), timer()  # to warm up
            for number in range(rounds):
                advance("timing", steps - rounds + number, steps)
                for name, timer in timers.items():
                    entries[name].times.append(timer()[0])
            advance("done", steps, steps)
        most_points = 4 * repeats * max(entry.evaluations for entry in entries.values())
        known: KnownGradient | None = None
        kind = "pooled"
        if reference is not None:
            kind, known = "given", given_gradient(task, reference)
        elif task.knows_mean or task.points <= min(limit, most_points):
            kind, known = "exact", exact_gradient(task)
    mode = "As given" if budget is None else f"Equal evaluations: at most {budget}"
    mode = mode if samples is None else f"Equal samples: {samples}"
    rows = sorted(_rows(entries, known), key=lambda row: (row.merit, row.seconds))
    return Comparison(tuple(rows), skipped, kind, mode)


def _check_numbers(
    samples: int | None, budget: int | None, repeats: int, rounds: int, training: int, limit: int
) -> None:
    counts = {"repeats": repeats, "rounds": rounds, "limit": limit, "training": training}
    optional = {"samples": samples, "budget": budget}
    counts |= {name: count for name, count in optional.items() if count is not None}
    if optional.keys() <= counts.keys():
        raise ValueError(
            "compare: `samples` (equal samples) and `budget` (equal evaluations) exclude each "
            "other; give one."
        )
    for name, count in counts.items():
        least = {"repeats": 2, "training": 0}.get(name, 1)
        check_count("compare", name, count, least, inf if name == "limit" else maxsize)


@dataclass
class Entry:
    """One estimator with its measurements."""

    E: Estimator
    evaluations: int
    trained: int = 0
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.in_parameters = Moments(shares_of_kinds(self.E))
        self.in_logits = Moments(shares_of_kinds(self.E))

    def measure(self, task: GradientSampler, repeats: int, training: int, seed: int) -> None:
        """Let the estimator learn, if it does, then freeze it and add repeated estimates."""
        generator = task.generator(seed)
        evaluations = max(1, self.evaluations) * task.view.batch_size
        numbers = evaluations * sum(task.view.cardinalities)
        batch = max(2, min(repeats, CALL_EVALUATIONS // evaluations, CALL_NUMBERS // numbers))
        if not self.E.randomness:
            repeats = 2
        modules = learning_modules(self.E)
        if any([*module.parameters(), *module.buffers()] for module in modules):
            train_estimator(self.E, task, training, min(batch, 16), generator)
            self.trained = training
        for module in modules:
            module.eval().requires_grad_(False)
        while (remaining := repeats - self.in_parameters.count) > 0:
            estimate = partial(task.gradients, self.E, min(batch, remaining), generator)
            kinds = of_each_kind(self.E, estimate)
            self.in_parameters.add(torch.stack([in_parameters for in_parameters, _ in kinds], 1))
            in_logits = [by_logit for _, by_logit in kinds if by_logit is not None]
            if in_logits:
                self.in_logits.add(torch.stack(in_logits, 1))
        if not bool(self.in_parameters.mean.isfinite().all()):
            raise ValueError("its gradient is NaN or infinite")
        for module in modules:
            module.train().requires_grad_(True)

    def row(self, name: str, truth: KnownGradient | None, norm: float) -> Row:
        """Return the measurements, with the bias against `truth` and the given gradient norm."""
        moments = self.in_parameters
        variance, seconds = moments.variance, median(self.times)
        bias, bias_error, largest_z = _bias(moments, truth)
        variance_factor = exp(NORMAL * moments.error)
        merit_factor = exp(NORMAL * sqrt(moments.error**2 + _median_error(self.times) ** 2))
        has_logits = self.in_logits.count > 0
        return Row(
            name=name,
            unbiased=self.E.unbiased,
            samples=getattr(self.E, "samples", None),
            evaluations=self.evaluations,
            repeats=moments.count,
            trained=self.trained,
            seconds=seconds,
            variance=variance,
            variance_low=variance / variance_factor,
            variance_high=variance * variance_factor,
            logit_variance=self.in_logits.variance if has_logits else nan,
            bias=bias,
            bias_error=bias_error,
            largest_z=largest_z,
            snr=norm / sqrt(variance) if variance else inf,
            merit=variance * seconds,
            merit_low=variance * seconds / merit_factor,
            merit_high=variance * seconds * merit_factor,
            estimator=self.E,
            variances=moments.variances,
            logit_variances=self.in_logits.variances if has_logits else None,
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


def train_estimator(
    E: Estimator,
    task: GradientSampler,
    steps: int,
    repeats: int,
    generator: torch.Generator,
) -> None:
    """Let an estimator lower its variance (Adam, with a rate that falls to zero).

    One without parameters, but with a memory of earlier calls, learns in calls or backward passes.
    """
    parameters = E.parameters() if isinstance(E, nn.Module) else []
    weights = [weight for weight in parameters if weight.requires_grad]
    optimiser = torch.optim.Adam(weights, TRAINING_RATE) if weights else None
    for step in range(steps):
        gradients = task.gradients_in_estimator(E, weights, repeats, generator)
        if optimiser is None:
            continue
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimiser.param_groups[0]["lr"] = TRAINING_RATE * (1 - step / steps)
        optimiser.step()
    for weight in weights:
        weight.grad = None


def named_estimators(estimators: Chosen | None) -> dict[str, Estimator]:
    """Return the estimators by name."""
    if estimators is None:
        estimators = list(ESTIMATORS)
    is_scalar = getattr(estimators, "shape", None) == ()
    if isinstance(estimators, str | Estimator) or not isinstance(estimators, Iterable) or is_scalar:
        raise TypeError(
            f"estimators: a list or a dict is needed, but {estimators!r} was given. Put it into a "
            "list, [...]."
        )
    if not isinstance(estimators, Mapping):
        estimators = list(estimators)
    if not estimators:
        raise ValueError(
            "estimators: at least one is needed, but none was given. Leave the argument out for "
            "all of the registry."
        )
    if isinstance(estimators, Mapping):
        return {name: _estimator(entry) for name, entry in estimators.items()}
    named: dict[str, Estimator] = {}
    for entry in estimators:
        E = _estimator(entry)
        if isinstance(entry, str):
            named.setdefault(entry if entry in ESTIMATORS else label(E), E)
            continue
        name = label(E)
        if named.get(name, E) != E:
            raise ValueError(
                f"estimators: two different ones have the label {name}, which leaves out what "
                "they learn and what their functions do. Give them names of your own in a "
                'dict, {"first": ..., "second": ...}.'
            )
        named[name] = E
    return named


def _estimator(entry: str | Estimator) -> Estimator:
    """Return an estimator, also by its repr or name; raise an error if it is neither."""
    if isinstance(entry, str):
        return parse_estimator(entry)
    if isinstance(entry, type) or not isinstance(entry, Estimator):
        raise TypeError(
            f"estimators: names or estimators are needed, but {entry!r} was given. Give an "
            "instance, as in RLOO(4)."
        )
    return entry


def _entries(
    task: GradientSampler,
    named: dict[str, Estimator],
    samples: int | None,
    budget: int | None,
    most_points: int | None,
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Return the estimators to measure, and why the others are left out."""
    entries: dict[str, Entry] = {}
    skipped: dict[str, str] = {}

    def sized(E: Estimator) -> Estimator:
        """Return E with its number of draws; raise ValueError with the reason if it is left out."""
        if reason := why_unsuitable(E, task.kind):
            raise ValueError(reason)
        if samples is not None and hasattr(E, "samples"):
            E = with_samples(E, samples)
        if budget is not None:
            E = within_budget(E, budget, task.evaluations)
        if isinstance(E, Exact) and not task.knows_mean:
            most = E.limit if most_points is None else min(E.limit, most_points)
            if task.points > most:
                points = readable(task.points)
                raise ValueError(f"q has {points} points, more than the limit of {most}")
        return copied_to(E, task.view.device)

    for name, E in named.items():
        try:
            copy = sized(E)
            has_own_name = name not in (label(E), type(E).__name__)
            entry = Entry(copy, task.evaluations(copy))
            entries[name if has_own_name else label(copy)] = entry
        except (ValueError, TypeError) as error:  # of the estimator's own checks, too
            skipped[name] = str(error).rstrip(".")
    return entries, skipped


def _rows(entries: Mapping[str, Entry], known: KnownGradient | None) -> list[Row]:
    unbiased = {name: entry.in_parameters for name, entry in entries.items() if entry.E.unbiased}
    best_known = known or pooled_gradient(unbiased)
    if best_known is None:
        norm = sqrt(max(entry.in_parameters.norm2 for entry in entries.values()))
    else:
        norm = norm_of(best_known)
    return [
        entry.row(name, known or pooled_gradient(unbiased, without=name), norm)
        for name, entry in entries.items()
    ]
