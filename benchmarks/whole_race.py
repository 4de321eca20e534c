"""The race of `benchmarks.race` with every estimator, at 2, 4, 8 and 16 draws, on a GPU.

    python -m benchmarks.whole_race time --limit 300               # milliseconds of a step
    python -m benchmarks.whole_race count --jobs 12 --limit 500    # curves over steps
    python -m benchmarks.whole_race show

What a run has reached after a number of steps does not depend on what else the machine does, so
many runs at a time count steps (start NVIDIA's MPS before, `nvidia-cuda-mps-control -d`). The time
of a step does depend on it, so the steps are timed alone, one estimator after the other. Seconds to
a target are steps times the time of a step. A run ends at its lowest target, or after --seconds at
the measured time of its steps. `count` and `time` start nothing after their --limit, and the same
command continues: what the file holds is not repeated, and unfinished runs start again.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from math import ceil, inf
from statistics import median

import torch
from torch.distributions import Bernoulli, Independent

from catlog.core.categories import Kind
from catlog.core.settings import label
from catlog.estimators import ESTIMATORS
from catlog_experiments import records

from .command_line import add_options, argument_parser
from .cpu_races.judging import standings
from .cpu_races.racers import estimator_of
from .cpu_races.runs import in_processes
from .race import bounds, made, reached
from .step_kernels import steps_of
from .tables import RESULTS, Row, Table, grouped, show
from .turns import seconds_in_turns

DRAWS = (2, 4, 8, 16)
MOST_EVALUATIONS = 450  # of the decoder per image; two draws of IndeCateR take 402
FOR_FIXED_F = ("MAPO", "MemoryCateR")
OPTIONS = {"GumbelSoftmax": ", hard=True"}
TARGETS = {
    "mnist-5000": (("train", 100.0),),  # for tests
    "mnist": (("train", 100.0), ("train", 97.0), ("test", 102.0)),
    "fashion-mnist": (("train", 250.0), ("train", 247.0), ("test", 251.0)),
}
KEY = ("data", "method", "seed")


def entrants() -> list[str]:
    """Return the labels of the estimators that can train the model, those with few draws first.

    >>> names = entrants()
    >>> names[:2], "IndeCateR(2)" in names, "IndeCateR(4)" in names
    (['BBVI(2)', 'NVIL(2)'], True, False)
    """
    q = Independent(Bernoulli(logits=torch.zeros(200)), 1)
    labels = []
    for samples, (name, E) in product(DRAWS, ESTIMATORS.items()):
        if Kind.BITS not in E.supports or E.target != "expectation" or name in FOR_FIXED_F:
            continue
        try:
            evaluations = E(samples=samples).evaluations(q)
        except (TypeError, ValueError):  # it has no number of draws, or not this one
            continue
        if evaluations <= MOST_EVALUATIONS:
            labels.append(label(estimator_of(f"{name}({samples}{OPTIONS.get(name, '')})")))
    return list(dict.fromkeys(labels))


def train(data: str, method: str, seed: int, steps: int, every: int, device: str) -> list[Row]:
    """Train one model and return its bounds, a row per measurement."""
    task = made(method, seed, data, device)
    lowest = min(target for name, target in TARGETS[data] if name == "train")
    rows: list[Row] = []
    while not rows or (rows[-1]["train"] > lowest and rows[-1]["step"] < steps):
        step = len(rows) * every
        steps_of(task, every, step)
        row = {"data": data, "method": method, "seed": seed, "step": step + every}
        rows.append(row | bounds(task))
    return rows


def most_steps(seconds: float, ms: float | None, every: int) -> int | None:
    """Return the number of steps in these seconds, in whole measurements; None if it is not known.

    >>> most_steps(14.0, 0.2, 600), most_steps(14.0, 60.0, 600), most_steps(14.0, None, 600)
    (70200, 600, None)
    """
    return None if ms is None else every * ceil(1000 * seconds / ms / every)


def count(args: argparse.Namespace) -> None:
    """Make the runs that the file does not hold, `jobs` at a time."""
    table = Table(args.output, KEY, digits=6)
    ms = {row["method"]: row["ms"] for row in Table(args.times, ("method",)).rows}
    calls = []
    for key in product(args.data, args.methods or entrants(), args.seeds):
        if key not in table:
            steps = most_steps(args.seconds, ms.get(key[1]), args.every) or args.steps
            calls.append((*key, steps, args.every, args.device))
    for _, rows in in_processes(train, calls, args.jobs, args.limit):
        table.add(rows)
        print(rows[-1], flush=True)


def time_steps(args: argparse.Namespace) -> None:
    """Write the milliseconds of a captured step of every estimator, each alone."""
    begin, table = time.monotonic(), Table(args.output, ("method",), digits=4)
    for method in args.methods or entrants():
        if (method,) in table or time.monotonic() > begin + args.limit:
            continue
        run_steps = partial(steps_of, made(method, 0, args.data[0], args.device), args.every)
        times = seconds_in_turns({method: run_steps}, 5)[method]  # the call before them compiles
        ms = 1000 * median(times) / args.every
        table.add([{"method": method, "ms": ms, "device": args.device}])
        print(f"{method:40}{ms:.4f} ms", flush=True)


def summaries(rows: Sequence[Row], times: Sequence[Row]) -> list[Row]:
    """Return a row per run and target, as `benchmarks.cpu_races` has them."""
    seconds = {row["method"]: row["ms"] / 1000 for row in times}
    return [
        {
            "race": f"{data}, {bound} {target:g}",
            "method": method,
            "seed": seed,
            "seconds": steps and steps * seconds[method],
            "trained": run[-1]["step"] * seconds[method],
        }
        for (data, method, seed), run in grouped(rows, "data", "method", "seed").items()
        if method in seconds
        for bound, target in TARGETS[data]
        for steps in [reached(run, target, unit="step", bound=bound)]
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    curves_file = RESULTS / "speed" / "whole_race_curves.csv"
    times_file = RESULTS / "speed" / "whole_race_times.csv"
    commands = parser.add_subparsers(dest="command", required=True)
    several = commands.add_parser("count", help="steps to the bounds, many runs at a time")
    add_options(several, seeds=[601], jobs=12, times=times_file)
    several.add_argument("--seconds", type=float, default=14.0, help="of a run, by its step time")
    alone = commands.add_parser("time", help="time of a step, one at a time")
    for command, file in ((several, curves_file), (alone, times_file)):
        add_options(command, data=["mnist", "fashion-mnist"], output=file, steps=60_000, every=600)
        command.add_argument("--methods", nargs="+", help="labels; default: all")
        command.add_argument("--limit", type=float, default=inf, help="start nothing after seconds")
        command.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    commands.add_parser("show", help="who is first")
    args = parser.parse_args()
    if args.command == "show":
        runs = summaries(records.read(curves_file), records.read(times_file))
        for race, entries in standings(runs).items():
            show(race, [asdict(entry) for entry in entries])
        return
    {"count": count, "time": time_steps}[args.command](args)


if __name__ == "__main__":
    main()
