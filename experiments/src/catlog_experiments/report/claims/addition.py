"""Claims about MNIST addition (Section 6.4)."""

from collections.abc import Mapping, Sequence

from ..runs import Evidence, Run
from ..statistics import common_end, end, final
from .verdicts import Verdict, all_of, claim, clearly_lower, decided, listing

METHODS = ("IndeCateR", "IndeCateR-D", "RLOO-F", "RLOO-S")
EPOCHS = 50  # that a run needs to decide something


def adders(evidence: Evidence, digits: int) -> dict[str, list[Run]]:
    """Return the runs with that many digits of MNIST, by method."""
    return evidence.methods("addition", data="mnist", digits=digits)


def enough(digits: int) -> float:
    """Return the accuracy from which sums count as solved.

    It is nine tenths of what a reader of single digits with 99 % gets.

    >>> round(enough(16), 3), round(enough(32), 3)
    (0.766, 0.652)
    """
    return 0.9 * 0.99**digits


def solved(runs: Sequence[Run], digits: int) -> tuple[int, int]:
    """Return in how many runs the last accuracy is high enough, and the number of runs."""
    accuracies = [column[-1] for run in runs if (column := run.finite("accuracy")).size]
    return sum(accuracy >= enough(digits) for accuracy in accuracies), len(accuracies)


def _numbers(methods: Mapping[str, list[Run]], digits: int) -> str:
    parts = {}
    for name, runs in methods.items():
        successes, total = solved(runs, digits)
        parts[name] = f"{final(runs, 'accuracy')} ({successes} of {total} runs)"
    return listing(parts)


def _is_short(runs: Sequence[Run]) -> bool:
    return len(runs) < 2 or not end(runs, "epoch") >= EPOCHS


@claim("addition")
def only_per_variable(evidence: Evidence) -> Verdict:
    methods = {name: runs for name, runs in adders(evidence, 16).items() if name in METHODS}
    if "IndeCateR-D" not in methods:
        return Verdict("not run", "IndeCateR-D was not run on 16 digits of MNIST")
    numbers = _numbers(methods, 16)
    solvers = [name for name, runs in methods.items() if len(set(solved(runs, 16))) == 1]
    rivals = [name for name in solvers if name != "IndeCateR-D" and len(methods[name]) > 1]
    if rivals:
        return Verdict("does not hold", f"{', '.join(rivals)} also solved it every time: {numbers}")
    missing = [name for name in METHODS if name not in methods]
    if missing:
        return Verdict("not testable", f"not run: {', '.join(missing)} ({numbers})")
    short = [name for name, runs in methods.items() if _is_short(runs)]
    if short:
        reason = f"one seed or fewer than {EPOCHS} epochs: {', '.join(short)}"
        return Verdict("not testable", f"{reason} ({numbers})")
    return decided("IndeCateR-D" in solvers, numbers)


@claim("addition-shared")
def per_variable_beats_shared(evidence: Evidence) -> Verdict:
    methods = adders(evidence, 16)
    pair: dict[str, list[Run]] = {
        name: methods[name] for name in ("IndeCateR-D", "IndeCateR") if name in methods
    }
    if len(pair) < 2:
        return Verdict(
            "not run", "IndeCateR and IndeCateR-D were not both run on 16 digits of MNIST"
        )
    stats = {name: final(runs, "accuracy") for name, runs in pair.items()}
    has_few_seeds = any(stat.seeds < 2 for stat in stats.values())
    if has_few_seeds or not common_end(pair, "epoch") >= EPOCHS:
        return Verdict(
            "not testable", f"one seed, or fewer than {EPOCHS} epochs ({listing(stats)})"
        )
    return decided(clearly_lower(stats["IndeCateR"], stats["IndeCateR-D"]), listing(stats))


@claim("addition-beyond")
def beyond(evidence: Evidence) -> Verdict:
    return all_of(
        {
            f"{digits} digits": _solved_by_any(adders(evidence, digits), digits)
            for digits in (24, 32)
        }
    )


def _solved_by_any(methods: Mapping[str, list[Run]], digits: int) -> Verdict:
    if not methods:
        return Verdict("not run", f"{digits} digits were not run on MNIST")
    numbers = _numbers(methods, digits)
    repeated = [runs for runs in methods.values() if len(runs) > 1]
    if any(final(runs, "accuracy").mean >= enough(digits) for runs in repeated):
        return Verdict("holds", numbers)
    if any(_is_short(runs) for runs in methods.values()):
        return Verdict("not testable", f"one seed, or fewer than {EPOCHS} epochs ({numbers})")
    return Verdict("does not hold", numbers)
