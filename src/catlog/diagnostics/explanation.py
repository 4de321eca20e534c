"""The text that explains the advice."""

from collections.abc import Sequence
from math import inf, sqrt

from ..core.categories import Kind
from .scoring import Scoring
from .structure import Structure
from .trials import Trial

KINDS = {Kind.BITS: "independent bits", Kind.STRUCTURED: "dependent variables"}


def explain(order: Sequence[Trial], scoring: Scoring, structure: Structure, seconds: float) -> str:
    """Return a few lines on the choice, which comes first in `order`, and on the pilot."""
    best, scores = order[0], scoring.scores(order)
    lines = [_choice(best), _noise(best, order, scoring), describe(structure)]
    if structure.is_moved:
        lines.append(
            "All categories are about equally likely here. That is true only until the first step, "
            "so the pilot added random numbers to the logits."
        )
    families = {id(trial.candidate): trial for trial in reversed(order)}  # the best of each
    rivals = [trial for trial in order if trial in families.values() and trial is not best]
    runners_up = [
        f"{trial.name} {_ratio(scores[trial.name] / scores[best.name])}" for trial in rivals[:3]
    ]
    if runners_up and best.variance < inf:
        lines.append(f"Expected training time, relative to it: {', '.join(runners_up)}.")
    tried = f"{len(families)} candidates" if len(families) > 1 else "1 candidate"
    limit = "the budget of" if structure.has_budget else "at most"
    cost = f"{_duration(seconds)}, as long as {seconds / best.usual_seconds:.0f} steps"
    plural = "s" if structure.budget != 1 else ""
    lines.append(f"Pilot: {tried} within {limit} {structure.budget} evaluation{plural}, {cost}.")
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
    if structure.knows_mean:
        f += " and knows its mean under q"
    return f"q: {q}. f {f}; one evaluation takes {_duration(structure.evaluation_seconds)}."


def _choice(best: Trial) -> str:
    plural = "s" if best.evaluations != 1 else ""
    cost = f"{best.evaluations} evaluation{plural} of f, {_duration(best.usual_seconds)} per step"
    return f"{best.name}: {cost}."


def _noise(best: Trial, order: Sequence[Trial], scoring: Scoring) -> str:
    """Return a sentence on the noise of the choice, and one on its bias."""
    if best.variance == inf:
        return (
            "The pilot saw no gradient other than zero, so this is a guess: "
            "give it a larger budget or more steps."
        )
    reference = scoring.reference(order)
    norm2 = best.moments.norm2 if reference is None else reference.norm2
    if best.variance == 0:
        text = "Its gradient has no noise."
    elif scoring.minibatch > 0:
        ratio = sqrt(best.variance / scoring.minibatch)
        text = f"The noise of its gradient is {ratio:.2g} times as large as that of the minibatch."
    else:
        times = f"{sqrt(best.variance / norm2):.2g}" if norm2 > 0 else "many"
        text = f"The noise of its gradient is {times} times as large as the gradient."
    if best.estimator.unbiased or reference is None or norm2 <= 0:
        return text
    bias = sqrt(scoring.squared_bias(best, reference) / norm2)
    size = f"about {bias:.0%}" if bias >= 0.005 else "less than 1 %"
    return f"{text} It is biased, by {size} of the gradient."


def _ratio(ratio: float) -> str:
    if 0.95 <= ratio < 1.05:
        return "about equal"
    return f"{ratio:.2g} times" if ratio < 1000 else "over 1000 times"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
