"""Estimators side by side on one's own problem: bias, variance, time, and what they cost together."""

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from math import exp, inf, isfinite, nan, sqrt
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..estimator import Estimator, Function, label
from ..estimators import ESTIMATORS, Exact
from ..files.atomic import write_atomically
from ..files.csv_cells import guarded
from .gradient_samples import Clock, GradientSampler, Law
from .moments import Moments
from .sizing import why_unsuitable, with_samples, within_budget

TOGETHER = (
    2**14,
    2**20,
)  # evaluations of f in one vectorised call, and numbers in their points, about
NORMAL = NormalDist().inv_cdf(0.975)
Reference = tuple[Tensor, Tensor]  # a gradient, and the variance of each of its entries

Chosen = Sequence[str | Estimator] | Mapping[str, Estimator]


@dataclass(frozen=True)
class Row:
    r"""What was measured of one estimator.

    name: as given, or the class with its settings.
    evaluations: of f, per estimate and batch element.
    repeats: number of estimates behind the numbers; trained: steps it learned for beforehand.
    seconds: of a step (law, estimate, gradients), the median.
    variance: over draws, summed over the parameters (after the chain rule), with a 95 % interval ``low`` to ``high``.
    logit_variance: the same, summed over the law's own logits; NaN for structured laws, which have none that are fixed.
    bias: distance of the mean from the reference, less the noise in it; bias_error: that noise; largest_z: over the parameters,
        of the mean less the reference in standard errors. NaN where nothing else is there to compare with.
    snr: :math:`\lVert \nabla \rVert / \sqrt{\text{variance}}`.
    merit: variance times seconds, the lower the better, with a 95 % interval.
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
    logit_variance: float
    bias: float
    bias_error: float
    largest_z: float
    snr: float
    merit: float
    merit_low: float
    merit_high: float
    estimator: Estimator = field(repr=False, compare=False)
    variances: Tensor = field(repr=False, compare=False)  # of every parameter
    logit_variances: Tensor | None = field(repr=False, compare=False)  # of every logit


@dataclass(frozen=True)
class Comparison:
    """Rows, best first; what was left out and why; where the reference is from ("exact", "given" or "pooled")."""

    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    reference: str
    mode: str

    @property
    def best(self) -> Row:
        """The unbiased estimator with the lowest variance x time (of all, where every one is biased)."""
        return min(self.rows, key=lambda row: (not row.unbiased, row.merit))

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"{name!r} is not among the rows: {', '.join(row.name for row in self.rows)}."
        )

    def __str__(self) -> str:
        head = (
            "",
            "evaluations",
            "ms",
            "variance",
            "per logit",
            "bias ± noise",
            "snr",
            "variance x s",
            "95 % interval",
        )
        table = [head, *map(_cells, self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(head))]
        lines = []
        for line in table:
            rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            lines.append("  ".join([line[0].ljust(widths[0]), *rest]).rstrip())
        notes = {
            "exact": "Bias against the exact gradient",
            "given": "Bias against the reference given",
            "pooled": "Bias against the other unbiased estimators, pooled",
        }
        lines += ["", f"{self.mode}. {notes[self.reference]}. (b): biased by design."]
        lines += [f"Left out: {name}: {why}." for name, why in self.skipped.items()]
        return "\n".join(lines)

    def to_csv(self, path: Path | str) -> None:
        """One line per estimator; those left out have their reason in the column ``skipped``."""
        columns = [each.name for each in fields(Row) if each.repr]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, "reference", "mode", "skipped"])
        for row in self.rows:
            cells = [getattr(row, column) for column in columns]
            writer.writerow([*map(_cell, cells), self.reference, self.mode, ""])
        for name, why in self.skipped.items():
            writer.writerow(
                [guarded(name), *[""] * (len(columns) - 1), self.reference, self.mode, guarded(why)]
            )
        write_atomically(path, file.getvalue())

    def plot(self, path: Path | str) -> None:
        """Variance x time of every estimator with its interval, and variance against time. Needs the extra `experiments`."""
        try:
            from .comparison_plot import draw
        except ImportError as error:
            raise ImportError(
                "Comparison.plot needs matplotlib: pip install 'catlog[experiments]'."
            ) from error
        draw(self, Path(path))


def compare(
    f: Function,
    q: Law,
    estimators: Chosen | None = None,
    parameters: Sequence[Tensor] | None = None,
    *,
    samples: int | None = None,
    budget: int | None = None,
    repeats: int = 200,
    rounds: int = 15,
    training: int = 200,
    reference: Any = None,
    limit: int = 2**16,
    seed: int = 0,
    progress: bool = True,
    clock: Clock = time.perf_counter,
) -> Comparison:
    r"""Measure estimators of the gradient of :math:`\mathbb{E}_{x \sim q}[f(x)]` (summed over the batch) on f and q at hand.

    Every estimator makes ``repeats`` independent estimates. *Variance* is over draws, and summed over the parameters, so it
    has gone through the chain rule where logits share them; also given per logit. *Time* is that of a training step but for
    the optimiser: the law, the estimate, and its gradient in the law's, f's and the estimator's own parameters; the
    median over ``rounds`` in which all estimators take turns, after warming up. *Variance x time* is what a gradient of given
    precision costs, since both averaging and samples trade one for the other. Its interval, and that of the
    variance, are by the delta method on a logarithmic scale: the variance's error is from the spread of
    :math:`\lVert g_r - \bar g \rVert^2`, the median's from the median absolute deviation of the times.

    An estimator with parameters or a memory of its own learns for ``training`` steps first (a copy: yours is left alone) and is
    frozen while its variance is measured; its time includes learning.

    Args:
        f, q: as estimators take them. q may be a callable that makes the law of ``parameters``; then a step includes making it.
        estimators: names of the registry, estimators, or a dict of them by name; None: the whole registry.
        parameters: tensors to take the gradient in; None: those that q was computed from, else its own logits.
        samples: give every estimator this many draws (equal samples).
        budget: give every estimator the most draws that need no more than this many evaluations (equal evaluations). With
            neither, each keeps its own number.
        repeats: estimates per estimator, at least 2.
        rounds: timed steps per estimator.
        training: steps that an estimator with parameters or a memory learns for.
        reference: the right gradient: one tensor per parameter, or an object with tuples ``gradient`` and ``error``; None: by
            enumeration where the law has at most ``limit`` points (and not many more evaluations than the repeats), else, for
            each estimator, the mean of the *other* unbiased ones, weighted by their precision.
        limit: see above.
        seed: of the draws.
        progress: show a bar, where the package rich is installed and the terminal can.
        clock: returns seconds.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR, RLOO
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> result = compare(lambda x: x.sum(-1) ** 2, q, [RLOO(), IndeCateR()], budget=8, progress=False)
    >>> [(row.name, row.evaluations) for row in sorted(result.rows, key=lambda row: row.variance)]
    [('IndeCateR(2)', 8), ('RLOO(8)', 8)]
    """
    for name, value, least in (("repeats", repeats, 2), ("rounds", rounds, 1), ("limit", limit, 1)):
        check_count("compare", name, value, least=least)
    check_count("compare", "training", training, least=0)
    if samples is not None and budget is not None:
        raise ValueError(
            "compare: `samples` (equal samples) and `budget` (equal evaluations) exclude each other; give one."
        )
    for name, count in (("samples", samples), ("budget", budget)):
        if count is not None:
            check_count("compare", name, count)
    task = GradientSampler(f, q, parameters)
    entered, skipped = _entered(task, _named(estimators), samples, budget)
    with _bar(progress) as advance:
        total = len(entered)
        for number, name in enumerate(list(entered)):
            advance(name, number, total + rounds)
            try:
                entered[name].observe(task, repeats, training, seed + 1 + number)
            except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
                skipped[name] = str(error).split("\n")[0].rstrip(".")
                del entered[name]
        if not entered:
            reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
            raise ValueError(f"compare: no estimator could be used. {reasons}.")
        timers = [
            (each, task.timer(each.E, clock, task.generator(seed))) for each in entered.values()
        ]
        for _, timer in timers:
            timer(), timer()  # to warm up
        for number in range(rounds):
            advance("timing", total + number, total + rounds)
            for each, timer in timers:
                each.times.append(timer()[0])
        advance("done", total + rounds, total + rounds)

    how, given = _reference(task, reference, limit, repeats, entered)
    rows = [
        each.row(name, how, _against(given, name, entered), _signal(given, entered))
        for name, each in entered.items()
    ]
    mode = "As given" if budget is None else f"Equal evaluations: at most {budget}"
    mode = mode if samples is None else f"Equal samples: {samples}"
    return Comparison(
        tuple(sorted(rows, key=lambda row: (row.merit, row.seconds))), skipped, how, mode
    )


@dataclass
class _Entry:
    """One estimator, and what has been seen of it."""

    E: Estimator
    evaluations: int
    trained: int = 0
    in_parameters: Moments = field(default_factory=Moments)
    in_logits: Moments = field(default_factory=Moments)
    times: list[float] = field(default_factory=list)

    def observe(self, task: GradientSampler, repeats: int, training: int, seed: int) -> None:
        generator = task.generator(seed)
        points = self.evaluations * task.view.batch_size
        together = max(
            2,
            min(
                repeats,
                TOGETHER[0] // points,
                TOGETHER[1] // (points * sum(task.view.cardinalities)),
            ),
        )
        if not self.E.randomness:
            repeats = 2
        modules = [
            each
            for each in (self.E, getattr(self.E, "baseline", None))
            if isinstance(each, nn.Module)
        ]
        if any([*module.parameters(), *module.buffers()] for module in modules):
            self.trained = learn(self.E, task, training, min(together, 16), generator)
        for module in modules:
            module.eval().requires_grad_(False)
        while (left := repeats - self.in_parameters.count) > 0:
            in_parameters, in_logits = task.gradients(self.E, min(together, left), generator)
            self.in_parameters.add(in_parameters)
            if in_logits is not None:
                self.in_logits.add(in_logits)
        for module in modules:
            module.train().requires_grad_(True)

    def row(self, name: str, how: str, against: Reference | None, signal: float) -> Row:
        seen = self.in_parameters
        variance, seconds = seen.variance, median(self.times)
        spread = (
            1.4826 * median(abs(each - seconds) for each in self.times) / seconds
            if seconds > 0
            else 0.0
        )
        time_error = sqrt(3.1416 / 2) * spread / sqrt(len(self.times))
        bias = noise = z = nan
        if against is not None:
            gradient, doubt = against
            entries = seen.variances / seen.count + doubt
            gap = seen.mean - gradient
            noise = sqrt(float(entries.sum()))
            bias = sqrt(max(0.0, float(gap.square().sum()) - noise**2))
            tiny = 64 * seen._eps * float(gradient.norm())  # rounding
            z = float(((gap.abs() - tiny).clamp(min=0) / entries.sqrt().clamp(min=1e-300)).max())
        return Row(
            name=name,
            unbiased=self.E.unbiased,
            samples=getattr(self.E, "samples", None),
            evaluations=self.evaluations,
            repeats=seen.count,
            trained=self.trained,
            seconds=seconds,
            variance=variance,
            variance_low=variance * exp(-NORMAL * seen.error),
            variance_high=variance * exp(NORMAL * seen.error),
            logit_variance=self.in_logits.variance if self.in_logits.count else nan,
            bias=bias,
            bias_error=noise,
            largest_z=z,
            snr=signal / sqrt(variance) if variance else inf,
            merit=variance * seconds,
            merit_low=variance * seconds * exp(-NORMAL * sqrt(seen.error**2 + time_error**2)),
            merit_high=variance * seconds * exp(NORMAL * sqrt(seen.error**2 + time_error**2)),
            estimator=self.E,
            variances=seen.variances,
            logit_variances=self.in_logits.variances if self.in_logits.count else None,
        )


def learn(
    E: Estimator,
    task: GradientSampler,
    steps: int,
    together: int,
    generator: torch.Generator,
    rate: float = 0.05,
) -> int:
    """Let an estimator lower its own variance for so many steps (Adam, rate falling to zero); the number of steps made.

    One without parameters, but with a memory of earlier calls, learns by being called.
    """
    own = (
        [each for each in E.parameters() if each.requires_grad] if isinstance(E, nn.Module) else []
    )
    optimiser = torch.optim.Adam(own, rate) if own else None
    for step in range(steps):
        value = task.value(E, together, generator)
        if optimiser is None:
            continue
        for each, gradient in zip(
            own, torch.autograd.grad(value.sum(), own, allow_unused=True), strict=True
        ):
            each.grad = gradient
        optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimiser.step()
    for each in own:
        each.grad = None
    return steps


def _named(estimators: Chosen | None) -> dict[str, Estimator]:
    """Estimators by name, copied so that nothing that they learn comes back."""
    if isinstance(estimators, Mapping):
        return {name: deepcopy(E) for name, E in estimators.items()}
    named: dict[str, Estimator] = {}
    for each in list(ESTIMATORS) if estimators is None else estimators:
        if isinstance(each, str):
            if each not in ESTIMATORS:
                raise ValueError(
                    f"estimators: {each!r} is not known. Give one of {', '.join(ESTIMATORS)}."
                )
            named[each] = ESTIMATORS[each]()
        elif isinstance(each, Estimator) and not isinstance(each, type):
            named[label(each)] = deepcopy(each)
        else:
            raise TypeError(
                f"estimators: names or estimators are needed, but {each!r} was given. Give an instance, as in RLOO(4)."
            )
    return named


def _entered(
    task: GradientSampler, named: dict[str, Estimator], samples: int | None, budget: int | None
) -> tuple[dict[str, _Entry], dict[str, str]]:
    entered: dict[str, _Entry] = {}
    skipped: dict[str, str] = {}
    for name, E in named.items():
        plain = name in (label(E), type(E).__name__)
        try:
            if why := why_unsuitable(E, task.kind):
                raise ValueError(why)
            if samples is not None and hasattr(E, "samples"):
                E = with_samples(E, samples)
            if budget is not None:
                E = within_budget(E, task.q, budget)
            if isinstance(E, Exact) and task.points > E.limit:
                raise ValueError(
                    f"the law has {task.points} points, more than its limit of {E.limit}"
                )
            entered[label(E) if plain else name] = _Entry(E, E.evaluations(task.q))
        except (ValueError, TypeError) as error:
            skipped[name] = str(error).rstrip(".")
    return entered, skipped


def _reference(
    task: GradientSampler, given: Any, limit: int, repeats: int, entered: Mapping[str, _Entry]
) -> tuple[str, Reference | None]:
    """The gradient to compare with, where there is one for all."""
    if given is not None:
        gradient, error = (
            (given.gradient, given.error) if hasattr(given, "gradient") else (given, None)
        )
        gradient = [gradient] if isinstance(gradient, Tensor) else list(gradient)
        if [tuple(each.shape) for each in gradient] != [
            tuple(each.shape) for each in task.parameters
        ]:
            shapes = [tuple(each.shape) for each in task.parameters]
            raise ValueError(f"reference: one tensor per parameter is needed, of shapes {shapes}.")
        flat = torch.cat([each.detach().flatten() for each in gradient]).double()
        if error is None:
            return "given", (flat, torch.zeros_like(flat))
        return "given", (flat, torch.cat([each.flatten() for each in error]).double().square())
    if task.points <= limit and task.points <= 4 * repeats * max(
        each.evaluations for each in entered.values()
    ):
        exact = task.exact(limit)
        assert exact is not None
        return "exact", (exact.double(), torch.zeros_like(exact, dtype=torch.float64))
    return "pooled", None


def _against(
    given: Reference | None, name: str | None, entered: Mapping[str, _Entry]
) -> Reference | None:
    """What an estimator is held against: the reference, else the other unbiased ones, weighted by their precision."""
    if given is not None:
        return given
    others = [
        each.in_parameters for key, each in entered.items() if key != name and each.E.unbiased
    ]
    for each in others:
        if each.variance == 0:
            return each.mean, torch.zeros_like(each.mean)
    if not others:
        return None
    weights = [each.count / each.variance for each in others]
    total = sum(weights)
    mean = torch.stack(
        [each.mean * (weight / total) for each, weight in zip(others, weights, strict=True)]
    ).sum(0)
    parts = [
        each.variances * ((weight / total) ** 2 / each.count)
        for each, weight in zip(others, weights, strict=True)
    ]
    return mean, torch.stack(parts).sum(0)


def _signal(given: Reference | None, entered: Mapping[str, _Entry]) -> float:
    """The norm of the gradient."""
    known = _against(given, None, entered)
    if known is None:
        return sqrt(max(each.in_parameters.norm2 for each in entered.values()))
    return sqrt(max(0.0, float(known[0].square().sum() - known[1].sum())))


def _cell(value: object) -> str:
    """As it is written to a CSV file."""
    if isinstance(value, str):
        return guarded(value)
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name if row.unbiased else f"{row.name} (b)",
        str(row.evaluations),
        f"{1000 * row.seconds:.3g}",
        f"{row.variance:.3g}",
        f"{row.logit_variance:.3g}" if isfinite(row.logit_variance) else "",
        f"{row.bias:.2g} ± {row.bias_error:.2g}" if isfinite(row.bias) else "",
        f"{row.snr:.3g}",
        f"{row.merit:.3g}",
        f"{row.merit_low:.3g} to {row.merit_high:.3g}",
    )


@contextmanager
def _bar(wanted: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, where rich is installed; elsewhere nothing."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )
    except ImportError:
        wanted = False
    if not wanted:
        yield lambda name, done, total: None
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        line = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(
            line, description=name, completed=done, total=total
        )
