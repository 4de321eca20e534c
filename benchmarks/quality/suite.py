"""Every estimator on every problem of the suite, at equal evaluations: bias, variance, time, and variance times time.

    python benchmarks/suite.py                              # all large problems; writes results/quality/suite.csv
    python benchmarks/suite.py --problems ising,parity --size small --output /tmp/suite.csv

One row per pair of problem and estimator, written as soon as it is measured; a pair that the file has is not measured again, so
a run that was cut goes on from there. `catlog.compare` measures: see there for the columns. Every estimator may spend as many
evaluations of f as IndeCateR needs for two draws. f is a black box, but for IndeCateR-Table, which reads the neighbours from the
function itself where it has a table. `norm`: of the reference gradient; `reference`: where that is from. Estimators that
take long get fewer repeats and steps to learn (columns `repeats` and `trained`): see --seconds.
"""

import argparse
import csv
import sys
import time
from copy import deepcopy
from dataclasses import dataclass, fields
from math import isnan
from pathlib import Path
from typing import Any

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import catlog
from catlog import ESTIMATORS, problems
from catlog.diagnostics.comparison import Row, compare
from catlog.diagnostics.gradient_samples import GradientSampler
from catlog.diagnostics.sizing import within_budget
from catlog.distributions.conditionals import view
from catlog.estimator import Estimator, Function
from catlog.experiments import records

ROOT = Path(__file__).parent.parent
MEASURED = [each.name for each in fields(Row) if each.repr and each.name != "name"]
COLUMNS = [
    "problem",
    "size",
    "seed",
    "estimator",
    "settings",
    "budget",
    "norm",
    "reference",
    *MEASURED,
    "threads",
    "torch",
    "skipped",
]
LEFT_OUT = ("Exact", "VIMCO")  # one is the reference, the other estimates something else


@dataclass(frozen=True)
class Entry:
    """An estimator under a name of its own, and the function that it is to see."""

    name: str
    E: Estimator
    f: Function


def entries(problem: problems.Problem) -> list[Entry]:
    """What is measured on this problem: the registry, and settings that differ much from the defaults."""
    d = view(problem.q(), validate=False).d
    options: dict[str, dict[str, Any]] = {
        "MAPO": {"length": max(64, d)},
        "MemoryCateR": {"length": max(64, d)},
        "GumbelSoftmax": {"temperature": 0.5},
        "GumbelRao": {"temperature": 0.5},
    }
    found = [
        Entry(name, cls(**options.get(name, {})), problem.f)
        for name, cls in ESTIMATORS.items()
        if name not in LEFT_OUT
    ]
    found.append(
        Entry("GumbelSoftmax-Hard", catlog.GumbelSoftmax(temperature=0.5, hard=True), problem.f)
    )
    found.append(Entry("IndeCateR-Latin", catlog.IndeCateR(draws="latin"), problem.f))
    taylor = catlog.IndeCateR(draws="latin", variables=max(1, d // 10))
    found.append(Entry("IndeCateR-Taylor", taylor, problem.f))
    if problem.structured is not None:
        found.append(Entry("IndeCateR-Table", catlog.IndeCateR(draws="latin"), problem.structured))
    return found


def budget(problem: problems.Problem) -> int:
    """Evaluations of f for two draws of IndeCateR."""
    sizes = view(problem.q(), validate=False).cardinalities
    return 2 * (1 + sum(sizes) - len(sizes))


def affordable(problem: problems.Problem, entry: Entry, seconds: float) -> int:
    """How many steps with the estimator take so many seconds, by its first one; as many as are wanted where it cannot be used."""
    task = GradientSampler(entry.f, problem.law, problem.parameters)
    try:
        E = within_budget(deepcopy(entry.E), task.q, budget(problem))
        return int(seconds / task.timer(E, time.perf_counter, task.generator(0))()[0])
    except (ValueError, TypeError, RuntimeError, NotImplementedError):
        return sys.maxsize  # measure() says why


def measure(
    problem: problems.Problem, entry: Entry, repeats: int, rounds: int, training: int
) -> dict[str, Any]:
    """The row of one pair; where the estimator cannot be used, with the reason."""
    allowed, reference = budget(problem), problem.reference()
    norm = torch.cat([each.flatten() for each in reference.gradient]).norm().item()
    row: dict[str, Any] = {
        "problem": problem.name,
        "size": problem.size,
        "seed": problem.seed,
        "estimator": entry.name,
        "budget": allowed,
        "norm": norm,
        "reference": reference.how,
        "unbiased": entry.E.unbiased,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if entry.E.differentiates_f and not problem.relaxable:
        return row | {"skipped": "f has no derivative in x"}
    try:
        (found,) = compare(
            entry.f,
            problem.law,
            {entry.name: entry.E},
            problem.parameters,
            budget=allowed,
            repeats=repeats,
            rounds=rounds,
            training=training,
            reference=reference,
            seed=1000,
            progress=False,
        ).rows
    except ValueError as error:
        return row | {"skipped": str(error).split(f"{entry.name}: ")[-1]}
    settings = (
        str(found.estimator).partition("\n")[0]
        if not isinstance(found.estimator, torch.nn.Module)
        else ""
    )
    return row | {"settings": settings} | {name: getattr(found, name) for name in MEASURED}


def text(cell: Any) -> Any:
    """Numbers with six digits, and nothing for what is not known."""
    if isinstance(cell, float):
        return "" if isnan(cell) else f"{cell:.6g}"
    return cell


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems", default=",".join(problems.PROBLEMS), help="names, separated by commas"
    )
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--seed", type=int, default=0, help="of the problems")
    parser.add_argument("--estimators", default="", help="names, separated by commas; none: all")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--training", type=int, default=100, help="steps for estimators that learn")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="for a pair: slow estimators get fewer repeats, at least 20",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "quality" / "suite.csv")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)

    wanted = set(filter(None, given.estimators.split(",")))
    known = records.read(given.output) if given.output.exists() else []
    done = {(row["problem"], row["size"], row["seed"], row["estimator"]) for row in known}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.description:48}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        given.output.open("a", newline="", encoding="utf-8") as file,
        Progress(*columns, refresh_per_second=2) as bar,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        line = bar.add_task("", total=None)
        for number, name in enumerate(given.problems.split(",")):
            bar.update(line, description=f"{name}: the reference")
            problem = problems.make(name, given.size, given.seed)
            listed = [each for each in entries(problem) if not wanted or each.name in wanted]
            bar.update(
                line,
                completed=number * len(listed),
                total=len(given.problems.split(",")) * len(listed),
            )
            for entry in listed:
                bar.update(line, description=f"{name}: {entry.name}")
                if (name, given.size, given.seed, entry.name) not in done:
                    steps = affordable(problem, entry, given.seconds)
                    repeats, training = (
                        min(given.repeats, max(20, steps)),
                        min(given.training, max(5, steps // 3)),
                    )
                    row = measure(problem, entry, repeats, given.rounds, training)
                    writer.writerow({key: text(cell) for key, cell in row.items()})
                    file.flush()
                bar.advance(line)
    print(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
