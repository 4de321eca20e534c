"""How good is the advice? `catlog.advise` on every problem of the suite, against all that it could have chosen.

    python benchmarks/advise.py                          # an hour of one quiet CPU core; writes results/quality/advise.csv
    python benchmarks/advise.py --sizes small --repeats 50 --rounds 5 --output /tmp/advise.csv     # some minutes

On every problem three pilots, with seeds 500, 501 and 502, choose an estimator. Then every candidate of the pilot and, unless
--candidates-only, every unbiased estimator of the registry (but MemoryCateR) with as many draws as the budget allows is measured
by `catlog.compare` with another seed: `ratio` is the chosen one's variance x time relative to the lowest of them all (`best`),
with a 95 % interval; where the best has no variance, it is the ratio of times, or infinite if the chosen one has some. Small
problems have a budget of 64 evaluations, large ones the default. Where the problem has f as a function that knows its own table,
that is a problem of its own ("with table"). `measured`: how many estimators were.

`pilot_steps` is the pilot's time in steps with the chosen estimator (its gradient alone, without an optimiser): less than 50 are
less than 5 % of a training run of 1000 steps. Rows are written as problems are done; those that are in the file are left alone.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from pathlib import Path

import torch

import catlog
from catlog import ESTIMATORS, problems
from catlog.diagnostics import CANDIDATES, Comparison, Row
from catlog.diagnostics.gradient_samples import GradientSampler
from catlog.diagnostics.sizing import why_unsuitable, within_budget
from catlog.diagnostics.structure import Structure, probe
from catlog.diagnostics.trials import shortlist
from catlog.estimator import label
from catlog.experiments import records

ROOT = Path(__file__).parent.parent
COLUMNS = (
    "problem", "size", "table", "budget", "pilot", "chosen", "best", "ratio", "ratio_low", "ratio_high",
    "variance", "seconds", "best_variance", "best_seconds", "pilot_seconds", "step_seconds", "pilot_steps", "measured",
)  # fmt: skip
PILOTS = 3
# It takes f for one that never changes, and knows it by heart where there are few points; nobody can tell advise that.
LEFT_OUT = (catlog.MemoryCateR,)
SEED, FIRST = (
    20_000,
    500,
)  # of the measurement, and of the first pilot: up to 416 all were seen when it was made


@dataclass(frozen=True)
class Settings:
    repeats: int
    rounds: int
    candidates_only: bool
    clock: Callable[[], float]


def rivals(
    task: GradientSampler, structure: Structure, candidates_only: bool
) -> dict[str, catlog.Estimator]:
    """All that might have been chosen, with the draws that the budget allows."""
    found = {
        trial.name: trial.estimator
        for trial in shortlist(task, structure, CANDIDATES, biased=False)[0]
    }
    if not candidates_only:
        for cls in ESTIMATORS.values():
            E = cls()
            if (
                cls in LEFT_OUT
                or not E.unbiased
                or why_unsuitable(E, task.kind)
                or (E.differentiates_f and not structure.has_slope)
            ):
                continue
            try:
                E = within_budget(E, task.q, structure.budget)
            except ValueError:
                continue
            found.setdefault(label(E), E)
    return found


def ratio(chosen: Row, best: Row) -> tuple[float, float, float]:
    """How many times worse, and a 95 % interval."""
    if best.variance == 0:
        value = chosen.seconds / best.seconds if chosen.variance == 0 else inf
        return value, value, value
    value = chosen.merit / best.merit
    if chosen is best:
        return 1.0, 1.0, 1.0
    spread = sqrt(sum(log(row.merit_high / row.merit) ** 2 for row in (chosen, best)))
    return value, value * exp(-spread), value * exp(spread)


def lowest(comparison: Comparison) -> Row:
    return min(comparison.rows, key=lambda row: (row.merit, row.seconds))


def measured(
    name: str, size: problems.problem.Size, table: bool, settings: Settings
) -> list[dict[str, object]]:
    problem = problems.make(name, size)
    f = problem.structured if table else problem.f
    assert f is not None
    budget = 64 if size == "small" else None
    # A first pilot, not looked at: in a fresh process whatever is called for the first time is slow.
    catlog.advise(f, problem.law, problem.parameters, budget=budget, seed=99, clock=settings.clock)
    pilots = [
        catlog.advise(
            f, problem.law, problem.parameters, budget=budget, seed=seed, clock=settings.clock
        )
        for seed in range(FIRST, FIRST + PILOTS)
    ]
    task = GradientSampler(f, problem.law, problem.parameters)
    structure = probe(task, budget, settings.clock)
    comparison = catlog.compare(
        f,
        problem.law,
        rivals(task, structure, settings.candidates_only)
        | {advice.trials[0].name: advice.estimator for advice in pilots},
        problem.parameters,
        repeats=settings.repeats,
        rounds=settings.rounds,
        limit=1,
        seed=SEED,
        clock=settings.clock,
    )
    best = lowest(comparison)
    rows: list[dict[str, object]] = []
    for pilot, advice in enumerate(pilots):
        chosen = comparison[advice.trials[0].name]
        value, low, high = ratio(chosen, best)
        rows.append(
            {
                "problem": name,
                "size": size,
                "table": "with table" if table else "",
                "budget": structure.budget,
                "pilot": pilot,
                "chosen": chosen.name,
                "best": best.name,
                "ratio": value,
                "ratio_low": low,
                "ratio_high": high,
                "variance": chosen.variance,
                "seconds": chosen.seconds,
                "best_variance": best.variance,
                "best_seconds": best.seconds,
                "pilot_seconds": advice.seconds,
                "step_seconds": advice.step_seconds,
                "pilot_steps": advice.seconds / advice.step_seconds,
                "measured": len(comparison.rows),
            }
        )
        print(
            f"{name:17}{size:6}{'table' if table else '':6}pilot {pilot}: {chosen.name:42}{value:6.2f} "
            f"[{low:.2f}, {high:.2f}]  best {best.name:42} pilot {rows[-1]['pilot_steps']:4.0f} steps",
            flush=True,
        )
    return rows


def in_the_middle(rows: list[records.Row]) -> list[float]:
    """Per problem the ratio of the median pilot."""
    cases: dict[tuple[str, str, str | None], list[float]] = {}
    for row in rows:
        cases.setdefault((row["problem"], row["size"], row["table"]), []).append(row["ratio"])
    return [sorted(each)[len(each) // 2] for each in cases.values()]


def summary(rows: list[records.Row]) -> None:
    """Per problem the median over pilots; the worst of all pilots; the pilots' cost."""
    ratios, every, steps = (
        in_the_middle(rows),
        [row["ratio"] for row in rows],
        [row["pilot_steps"] for row in rows],
    )
    print(f"\n{len(ratios)} problems, {len(rows)} pilots")
    near = sum(each <= 1.3 for each in ratios), sum(each <= 1.3 for each in every)
    print(f"within 1.3 of the best: {near[0]} problems (median pilot), {near[1]} pilots")
    print(
        f"beyond 2: {sum(each > 2 for each in ratios)} problems, {sum(each > 2 for each in every)} pilots; worst {max(every):.2f}"
    )
    print(
        f"pilot: at most {max(steps):.0f} steps, {sum(each < 50 for each in steps)} of {len(steps)} under 50"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="*", default=list(problems.PROBLEMS))
    parser.add_argument("--sizes", nargs="*", default=["small", "large"])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--candidates-only", action="store_true", help="only the pilot's own candidates as rivals"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="CPU seconds instead of wall seconds: for a machine that is not quiet",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "quality" / "advise.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if given.cpu_time else time.perf_counter
    settings = Settings(given.repeats, given.rounds, given.candidates_only, clock)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    known = records.read(given.output) if given.output.exists() else []
    done = {(row["problem"], row["size"], row["table"] or "") for row in known}
    with given.output.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for size in given.sizes:
            for name in given.problems:
                for table in (
                    (False, True) if problems.make(name, size).structured is not None else (False,)
                ):
                    if (name, size, "with table" if table else "") in done:
                        continue
                    for row in measured(name, size, table, settings):
                        writer.writerow(
                            {
                                key: f"{cell:.5g}" if isinstance(cell, float) else cell
                                for key, cell in row.items()
                            }
                        )
                    file.flush()
    summary(records.read(given.output))


if __name__ == "__main__":
    sys.exit(main())
