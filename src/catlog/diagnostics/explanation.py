"""The explanation that comes with an advice."""

from collections.abc import Sequence
from math import inf
from statistics import median

from ..estimator import Kind
from .pilot_settings import PilotSettings
from .structure import Structure
from .trials import Trial, merits

KINDS = {Kind.BITS: "independent bits", Kind.STRUCTURED: "dependent variables"}


def explain(
    order: Sequence[Trial], structure: Structure, seconds: float, settings: PilotSettings
) -> str:
    """Return a few lines on the choice, which comes first in `order`, and on the pilot."""
    best, merit = order[0], merits(order)
    step = median(best.times)
    lines = [_choice(best, step), describe(structure)]
    runners_up = [
        f"{trial.name} at {_ratio(merit[trial.name] / merit[best.name])}" for trial in order[1:4]
    ]
    if runners_up and best.variance < inf:
        lines.append(f"Next in variance x time: {', '.join(runners_up)}.")
    tried = f"{len(order)} candidates" if len(order) > 1 else "1 candidate"
    limit = f"the budget of {structure.budget} evaluations"
    if not structure.has_budget:
        limit = f"{structure.budget} evaluations ({settings.exact_points} for Exact)"
    cost = f"{_duration(seconds)}, as long as {seconds / step:.0f} steps"
    lines.append(f"Pilot: {tried} within {limit}, {cost}.")
    return "\n".join(lines)


def describe(structure: Structure) -> str:
    """Return one line on f and q."""
    sizes = sorted(set(structure.cardinalities))
    q = f"{structure.d} {KINDS.get(structure.kind, 'independent variables')}"
    if structure.kind != Kind.BITS:
        largest = f" to {sizes[-1]}" if len(sizes) > 1 else ""
        q += f" of {sizes[0]}{largest} categories"
    if structure.batch > 1:
        q = f"batch of {structure.batch}, each with {q}"
    f = "is a black box"
    if structure.has_own_table:
        f = "has its own neighbour table"
    elif structure.has_slope:
        f = "is differentiable"
        if structure.is_relaxable:
            f += ", also between categories"
    return f"q: {q}. f {f}; one evaluation takes {_duration(structure.evaluation_seconds)}."


def _choice(best: Trial, step_seconds: float) -> str:
    reason = f"variance {best.variance:.3g}" if best.variance else "no variance at all"
    if best.variance == inf:
        reason = (
            "but the pilot saw no gradient other than zero, so this is a guess: "
            "give it a larger budget or more steps"
        )
    bias = "" if best.estimator.unbiased else ", biased"
    cost = f"{best.evaluations} evaluations, {_duration(step_seconds)} per step"
    return f"{best.name}: {cost}, {reason}{bias}."


def _ratio(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio < 1000 else "over 1000 times"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
