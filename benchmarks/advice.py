"""Is the advice good? Races to a target, and the time lost by following `catlog.advise`.

    python -m benchmarks.advice --workers 14 --minutes 7        # results/quality/advice.csv
    python -m benchmarks.advice --only regret                   # the table of policies

`advice_problems.py` has twelve problems of different kinds. In a race an estimator trains with
Adam, from the start that the seed gives, until the level (the mean of the last three evaluations,
outside the clock) is at most the target. `seconds` are CPU seconds of training steps; where f is
expensive, a virtual clock adds what a point takes. Targets were set with other seeds than those of
the races. A row has the policy "race", and the race's number as its `call`.

Policies say which estimator to take. `advise` is asked at the start, once as it comes (with the
`penalty=` of the problem) and once with the training step; each five times, with other seeds. The
rule by the clock takes the most draws of RLOO whose step takes at most 1.2 times as long as
RLOO(2)'s. `--first_edition PATH` asks the sources in a folder, in processes of their own. Then
`pick` is the choice, `level` the group that it was taken from, and `seconds` the time of the pilot.

The regret of a policy is the time to the target with its pick, over that with the best estimator
raced. Times are geometric means over seeds and races; one that does not arrive counts as twice the
limit.
"""

import argparse
import ast
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog

from .advice_problems import PROBLEMS, Function
from .measuring import RESULTS, Row, Rows, Section, Table, grouped, keyed, run, selected

LADDER = [f"RLOO({2**power})" for power in range(1, 7)]
CALLS = 5
CLOCK_FACTOR, CLOCK_ROUNDS = 1.2, 20
BATCH, TEST = 32, 256  # elements of a minibatch and of the evaluation


class Training:
    """A problem in training; a clock counts CPU seconds, and those of an expensive f."""

    def __init__(self, name: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.problem = PROBLEMS[name]()
        self.optimiser = torch.optim.Adam(self.problem.trained, self.problem.rate)
        self.virtual = 0.0

    def clock(self) -> float:
        return time.process_time() + self.virtual

    def question(self, size: int = BATCH) -> tuple[Function, Distribution]:
        f, q = self.problem.question(size)

        def slow(x: Tensor) -> Tensor:
            values = f(x)
            self.virtual += self.problem.point * values.numel()
            return values

        return (slow if self.problem.point else f), q

    def step(self, E: Any) -> None:
        f, q = self.question()
        loss = E(f, q)
        if self.problem.penalty is not None:
            loss = loss + self.problem.penalty(q)
        self.optimiser.zero_grad()
        loss.mean().backward()
        self.optimiser.step()

    @torch.no_grad()
    def level(self) -> float:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            f, q = self.problem.question(TEST)
            values = f(q.sample((self.problem.draws,))).mean(0)
            if self.problem.penalty is not None:
                values = values + self.problem.penalty(q)
            return float(values.mean())

    def race(self, label: str, number: int, patience: float) -> Row:
        """Train until the level is at most the target."""
        from catlog.estimators.parsing import parse_estimator

        E, seconds, steps, levels = parse_estimator(label), 0.0, 0, [self.level()] * 3
        torch.manual_seed(1000 + number)
        limit, check = patience * self.problem.limit, 0.01
        while fmean(levels[-3:]) > self.problem.target and seconds < limit:
            start = self.clock()
            self.step(E)
            seconds += self.clock() - start
            steps += 1
            if seconds > check:
                check = 1.05 * seconds
                levels.append(self.level())
        return {"seconds": seconds if seconds < limit else None, "steps": steps}


# Policies


def advise(training: Training, call: int, **options: Any) -> Row:
    """Ask catlog, whichever edition is on the path."""
    f, q = training.question()
    advice = catlog.advise(
        *(f, q),
        penalty=training.problem.penalty,
        seed=call,
        clock=lambda: time.perf_counter() + training.virtual,
        **options,
    )
    names = [trial.name for trial in advice.trials if getattr(trial, "is_level", False)]
    return {"pick": str(advice.estimator), "level": "; ".join(names), "seconds": advice.seconds}


def with_step(training: Training, call: int) -> Row:
    return advise(training, call, step=training.step)


def by_clock(training: Training, call: int) -> Row:
    start, least = training.clock(), dict.fromkeys(LADDER, float("inf"))
    for _, label in product(range(CLOCK_ROUNDS), LADDER):
        before = training.clock()
        training.step(catlog.RLOO(int(label[5:-1])))
        least[label] = min(least[label], training.clock() - before)
    free = [label for label in LADDER if least[label] <= CLOCK_FACTOR * least["RLOO(2)"]]
    return {"pick": free[-1], "seconds": training.clock() - start}


def by_table(training: Training, call: int) -> Row:
    return {"pick": training.problem.table}


def always(training: Training, call: int) -> Row:
    return {"pick": "RLOO(4)"}


POLICIES: dict[str, Callable[[Training, int], Row]] = {
    **{"advise": advise, "advise(step=)": with_step, "first edition": advise},
    **{"clock": by_clock, "table": by_table, "RLOO(4)": always},
}
MEASURING = ("advise", "advise(step=)", "first edition", "clock")


def asked(problem: str, seed: int, policy: str, calls: int) -> list[Row]:
    """Return what a policy says: in several calls, if it measures."""
    key = {"problem": problem, "seed": seed, "policy": policy}
    return [
        key | {"call": call} | POLICIES[policy](Training(problem, seed), call)
        for call in range(calls if policy in MEASURING else 1)
    ]


# Jobs for worker processes


def job(problem: str, seed: int, policy: str, call: int, detail: str, quick: bool) -> list[Row]:
    """Race the estimator that ``detail`` names, or ask a policy, perhaps of the sources there."""
    torch.set_num_threads(1)
    if policy == "race":
        key = {"problem": problem, "seed": seed, "policy": policy, "call": call, "pick": detail}
        try:
            return [key | Training(problem, seed).race(detail, call, 0.05 if quick else 1.0)]
        except (ValueError, TypeError, RuntimeError):  # the estimator is not for this problem
            return [key | {"steps": 0}]
    question = (problem, seed, policy, 1 if quick else CALLS)
    if policy != "first edition":
        return asked(*question)
    ask = f"import benchmarks.advice as b; print(b.asked(*{question}))"
    command = [sys.executable, "-W", "ignore", "-c", ask]
    environment = os.environ | {"PYTHONPATH": detail}
    folder = Path(__file__).parents[1]
    answer = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        print(problem, seed, policy, answer.stderr, file=sys.stderr, flush=True)
        return []
    rows: list[Row] = ast.literal_eval(answer.stdout)
    return rows


def unpacked(arguments: tuple[Any, ...]) -> list[Row]:
    return job(*arguments)


def picks(args: argparse.Namespace, table: Table) -> Rows:
    """Ask the policies, then race the usual estimators and those picked, round by round."""
    end = time.monotonic() + 60 * args.minutes
    problems, seeds, races = args.problems, args.seeds, args.races
    if args.quick:
        problems, seeds, races = problems[:2], seeds[:1], 1
    detail = {"first edition": args.first_edition}
    policies = [policy for policy in POLICIES if detail.get(policy, " ")]
    asking = [
        (problem, seed, policy, 0, detail.get(policy, ""), args.quick)
        for policy, problem, seed in product(policies, problems, seeds)
        if not selected(table.rows, problem=problem, seed=seed, policy=policy)
    ]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for rows in pool.imap_unordered(unpacked, asking):
            yield rows
        for number in range(races):
            racing = [
                (problem, seed, "race", number, label, args.quick)
                for problem, seed in product(problems, seeds)
                for label in racers(problem, table)
                if (problem, seed, "race", number, label) not in table
            ]
            for rows in pool.imap_unordered(unpacked, racing):
                yield rows
                if time.monotonic() > end:
                    return


def racers(problem: str, table: Table) -> list[str]:
    """Return the usual estimators for a problem, and what policies picked."""
    chosen = [row["pick"] for row in selected(table.rows, problem=problem)]
    return list(dict.fromkeys([*LADDER, *PROBLEMS[problem]().racers, *map(renamed, chosen)]))


def renamed(label: str) -> str:
    """Return a label of the first edition as it is written now."""
    return re.sub(r"draws=(\w+)", r"sampling='\1'", label)


# Regrets


def times(rows: Sequence[Row]) -> dict[str, float]:
    """Return the geometric mean of every estimator's times to the target, of one problem.

    Only races count that all of the usual estimators ran.
    """
    raced = [row for row in rows if row["policy"] == "race" and row["steps"]]
    problem = PROBLEMS[raced[0]["problem"]]()
    usual = {*LADDER, *problem.racers}
    starts = {name: keyed(races, "seed", "call") for name, races in grouped(raced, "pick").items()}
    common = set.intersection(*(set(races) for name, races in starts.items() if name in usual))
    logs = {
        name: [log(races[key]["seconds"] or 2 * problem.limit) for key in common & races.keys()]
        for name, races in starts.items()
    }
    return {name: exp(fmean(values)) for name, values in logs.items() if values}


def regret(args: argparse.Namespace, table: Table) -> Rows:
    """Yield a row per policy and problem, and one per policy for all problems."""
    section = SECTIONS["picks"]
    rows = Table((args.output or RESULTS) / section.place, section.key).rows
    answers: list[Row] = []
    for problem in dict.fromkeys(row["problem"] for row in selected(rows, policy="race")):
        group = selected(rows, problem=problem)
        seconds = times(group)
        best = min(seconds.values())
        for row in group:
            if row["policy"] == "race" or renamed(row["pick"]) not in seconds:
                continue
            level = map(renamed, (row["level"] or row["pick"]).split("; "))
            is_hit = min(seconds[name] for name in level if name in seconds) <= 1.1 * best
            answers.append(row | {"regret": seconds[renamed(row["pick"])] / best, "hit": is_hit})
    by_problem = grouped(answers, "policy", "problem")
    overall = {(policy, "all"): group for policy, group in grouped(answers, "policy").items()}
    yield [summary(*key, group) for key, group in (*by_problem.items(), *overall.items())]


def summary(policy: str, problem: str, rows: list[Row]) -> Row:
    factors = [row["regret"] for row in rows]
    calls = grouped(rows, "problem", "seed").values()
    return {
        "policy": policy,
        "problem": problem,
        "picks": ", ".join(
            f"{name} x{count}"
            for name, count in Counter(row["pick"] for row in rows).most_common(4)
        ),
        "median": median(factors),
        "worst": max(factors),
        "mean": exp(fmean(map(log, factors))),
        "hit": fmean(row["hit"] for row in rows),
        "same": fmean(len({row["pick"] for row in group}) == 1 for group in calls),
        "pilot": max(row["seconds"] or 0.0 for row in rows),
    }


SECTIONS = {
    "picks": Section("quality/advice.csv", ("problem", "seed", "policy", "call", "pick"), picks),
    "regret": Section("quality/advice_regret.csv", ("policy", "problem"), regret),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = {"problems": [*PROBLEMS], "seeds": [1, 2, 3], "races": 3, "minutes": 60.0}
    run(__doc__, SECTIONS, arguments, **options, workers=1, first_edition="")


if __name__ == "__main__":
    main()
