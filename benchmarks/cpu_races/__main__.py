"""The command; see the package's docstring."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from pathlib import Path

from catlog.experiments import records as csv_records

from .. import race as gpu_race
from ..command_line import argument_parser
from ..tables import RESULTS, Row, Table, show
from . import __doc__ as description
from .curves import summary, thinned
from .judging import judgement, standings
from .picks import pick_of_race
from .racers import Racer, entrants
from .races import RACES
from .runs import Run, execute, in_processes
from .targets import chosen_targets, records

SPEED = RESULTS / "speed"
RUNS = Path("runs") / "cpu_races"  # ignored by git
# Seeds that nobody has used to develop the pilot, the estimators or the races.
TRIAL_SEEDS = [101, 102]
SEEDS = [201, 202, 203]
TRIAL_RACERS = ["ReinMax(2)", "ReinMax(4)", "SlopeCateR(4)", "GumbelSoftmax(4, hard=True)"]
TRIAL_RACERS += ["RLOO(8)", "CritiCateR(8)"]
CURVE_POINTS = 16  # of a run in the merged file, which stays below 300 kB


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist."""
    return csv_records.read(path) if path.exists() else []


def train_all(options: argparse.Namespace, racers: list[str], targets: dict[str, float]) -> None:
    """Make the runs of all races, seeds outermost; exit with 1 if one failed."""
    picks = [(row["race"], row["pick"]) for row in read_csv(options.picks)]
    runs = []
    for seed in options.seeds:
        for racer, race in product(racers, options.races):
            runs.append((race, racer, seed))
        if targets:
            runs += [(race, racer, seed) for race, racer in picks if race in options.races]
    planned = [
        Run(race, Racer.parsed(racer).label, seed, targets.get(race), options.limit, options.every)
        for race, racer, seed in dict.fromkeys(runs)
    ]
    failed = execute(planned, options.output, options.jobs, options.until)
    sys.exit(1 if failed else 0)


def trial(options: argparse.Namespace) -> None:
    train_all(options, options.racers or TRIAL_RACERS, {})


def run(options: argparse.Namespace) -> None:
    targets = {row["race"]: row["target"] for row in read_csv(options.targets)}
    if missing := [race for race in options.races if race not in targets]:
        sys.exit(f"{options.targets} has no target for {', '.join(missing)}. Run `targets` first.")
    train_all(options, options.racers or entrants(), targets)


def choose_targets(options: argparse.Namespace) -> None:
    rows = chosen_targets(records(options.output), options.seconds)
    Table(options.targets, ("race",)).add(rows)
    show("targets", rows)


def pilot(options: argparse.Namespace) -> None:
    table = Table(options.picks, ("race", "seed", "advice", "biased"), digits=4)
    wanted = [
        (race, seed, biased, not options.without_table)
        for seed, race, biased in product(options.seeds, options.races, (False, True))
        if (race, seed, options.advice, biased) not in table
    ]

    def tasks() -> Iterator[tuple[Callable[..., object], tuple[object, ...]]]:
        yield from ((pick_of_race, task) for task in wanted)

    for (race, seed, *_), future in in_processes(options.jobs, tasks(), once=True):
        found = future.result()
        assert isinstance(found, dict)
        row = {"race": race, "seed": seed, "advice": options.advice, **found}
        table.add([row])
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def merge(options: argparse.Namespace) -> None:
    finished = [record for record in records(options.output) if record.head["target"] is not None]
    key = ("race", "method", "seed")
    runs, curves = Table(options.merged, key, digits=5), Table(options.curves, key, digits=5)
    runs.add([summary(record) for record in finished])
    points: list[Row] = []
    for record in finished:
        names = {"race": record.head["race"], "method": record.head["racer"]}
        names["seed"] = record.head["seed"]
        points += [{**names, **row} for row in thinned(record.curve, CURVE_POINTS)]
    curves.add(points)
    print(f"{len(finished)} runs: {options.merged}, {options.curves}")


def judge(options: argparse.Namespace) -> None:
    ranking = standings([*read_csv(options.merged), *gpu_race.summaries(read_csv(options.gpu))])
    for race, entries in ranking.items():
        rows: list[Row] = [
            {
                "method": entry.method + (" (biased)" if entry.is_biased else ""),
                "seconds": f"over {entry.at_least:.1f}" if entry.seconds == inf else entry.seconds,
                "ratio": None if entry.seconds == inf else entry.seconds / entries[0].seconds,
                "seeds": entry.seeds,
            }
            for entry in entries
        ]
        show(race, rows)
    print(judgement(ranking, read_csv(options.picks)))


def parser() -> argparse.ArgumentParser:
    result = argument_parser(description, "cpu_races")
    commands = result.add_subparsers(required=True)

    def add(name: str, function: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--races", nargs="*", choices=list(RACES), default=list(RACES))
        command.add_argument("--targets", type=Path, default=SPEED / "cpu_race_targets.csv")
        command.add_argument("--picks", type=Path, default=SPEED / "advice_picks.csv")
        command.add_argument("--merged", type=Path, default=SPEED / "cpu_races.csv")
        command.add_argument("--curves", type=Path, default=SPEED / "cpu_race_curves.csv")
        command.add_argument("--gpu", type=Path, default=SPEED / "race_cuda.csv")
        return command

    for name, function, seeds, limit in (
        ("trial", trial, TRIAL_SEEDS, 25.0),
        ("run", run, SEEDS, 75.0),
    ):
        command = add(name, function)
        command.add_argument("--seeds", nargs="*", type=int, default=seeds)
        command.add_argument("--racers", nargs="*", help="labels such as RLOO(4); default: all")
        command.add_argument("--limit", type=float, default=limit, help="CPU seconds of a run")
        command.add_argument("--every", type=float, default=1.0, help="CPU s between measurements")
        command.add_argument("--jobs", type=int, default=1, help="processes")
        command.add_argument("--until", type=float, default=inf, help="start no run after seconds")
        command.add_argument("--output", type=Path, default=RUNS / name)
    command = add("targets", choose_targets)
    command.add_argument("--output", type=Path, default=RUNS / "trial")
    command.add_argument("--seconds", type=float, default=25.0, help="when levels are compared")
    command = add("pilot", pilot)
    command.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    command.add_argument("--advice", choices=("old", "new"), default="new")
    command.add_argument("--jobs", type=int, default=1, help="processes")
    command.add_argument(
        "--without-table", action="store_true", help="f is a plain function for the pilot"
    )
    command = add("merge", merge)
    command.add_argument("--output", type=Path, default=RUNS / "run")
    add("judge", judge)
    return result


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that train
    options = parser().parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
