"""The command; see the package's docstring."""

import argparse
import os
import sys
from collections.abc import Callable
from itertools import product
from math import inf
from pathlib import Path

from catlog.core.settings import label

from ..command_line import add_options, argument_parser
from ..tables import RESULTS, Row, Table, show
from . import __doc__ as description
from .curves import chosen_targets
from .picks import pick_of_race
from .racers import entrants, estimator_of
from .races import RACES
from .runs import KEY, Run, execute, in_processes

SPEED = RESULTS / "speed"
TRIALS = Path("runs") / "cpu_races"  # ignored by git
# Seeds that nobody has used to develop the pilot, the estimators or the races.
TRIAL_SEEDS = [101, 102]
SEEDS = [201, 202, 203]
TRIAL_RACERS = ["ReinMax(2)", "ReinMax(4)", "SlopeCateR(4)", "GumbelSoftmax(4, hard=True)"]
TRIAL_RACERS += ["RLOO(8)", "CritiCateR(8)"]


def targets_of(options: argparse.Namespace) -> dict[str, float]:
    return {row["race"]: row["target"] for row in Table(options.targets, ("race",)).rows}


def train_all(options: argparse.Namespace, racers: list[str], targets: dict[str, float]) -> None:
    """Make the runs of all races, seeds outermost."""
    picks: list[Row] = Table(options.picks, ("race",)).rows if targets else []
    runs: list[Run] = []
    for seed in options.seeds:
        entries = [(race, racer) for racer, race in product(racers, options.races)]
        entries += [(row["race"], row["pick"]) for row in picks if row["race"] in options.races]
        for race, racer in entries:
            method, target = label(estimator_of(racer)), targets.get(race)
            runs.append(Run(race, method, seed, target, options.limit, options.every))
    table, curves = (Table(path, KEY, digits=5) for path in (options.runs, options.curves))
    execute(list(dict.fromkeys(runs)), table, curves, options.jobs, options.until)


def trial(options: argparse.Namespace) -> None:
    train_all(options, options.racers or TRIAL_RACERS, {})


def run(options: argparse.Namespace) -> None:
    targets = targets_of(options)
    if missing := [race for race in options.races if race not in targets]:
        sys.exit(f"{options.targets} has no target for {', '.join(missing)}. Run `targets` first.")
    train_all(options, options.racers or entrants(), targets)


def choose_targets(options: argparse.Namespace) -> None:
    rows = chosen_targets(Table(options.curves, KEY).rows, options.seconds)
    Table(options.targets, ("race",)).add(rows)
    show("targets", rows)


def pilot(options: argparse.Namespace) -> None:
    table = Table(options.picks, ("race", "seed", "biased"), digits=4)
    calls = [
        (race, seed, biased)
        for seed, race, biased in product(options.seeds, options.races, (False, True))
        if (race, seed, biased) not in table
    ]
    for (race, seed, *_), pick in in_processes(pick_of_race, calls, options.jobs):
        table.add([{"race": race, "seed": seed, **pick}], f"{race}, seed {seed}")


def parser() -> argparse.ArgumentParser:
    result = argument_parser(description, "cpu_races")
    commands = result.add_subparsers(required=True)

    def add(name: str, function: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--races", nargs="*", choices=list(RACES), default=list(RACES))
        is_trial = name in ("trial", "targets")
        runs, curves = ("trial", "trial_curves") if is_trial else ("cpu_races", "cpu_race_curves")
        folder = TRIALS if is_trial else SPEED
        files = {"runs": folder / f"{runs}.csv", "curves": folder / f"{curves}.csv"}
        files["targets"] = SPEED / "cpu_race_targets.csv"
        add_options(command, **files, picks=SPEED / "advice_picks.csv")
        return command

    for name, function, seeds, limit in (
        ("trial", trial, TRIAL_SEEDS, 25.0),
        ("run", run, SEEDS, 75.0),
    ):
        command = add(name, function)
        add_options(command, seeds=seeds)
        command.add_argument("--racers", nargs="*", help="labels such as RLOO(4); default: all")
        command.add_argument("--limit", type=float, default=limit, help="CPU seconds of a run")
        command.add_argument("--every", type=float, default=1.0, help="CPU s between measurements")
        command.add_argument("--jobs", type=int, default=1, help="processes")
        command.add_argument("--until", type=float, default=inf, help="start no run after seconds")
    command = add("targets", choose_targets)
    command.add_argument("--seconds", type=float, default=25.0, help="when levels are compared")
    command = add("pilot", pilot)
    add_options(command, seeds=SEEDS)
    command.add_argument("--jobs", type=int, default=1, help="processes")
    return result


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that train
    options = parser().parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
