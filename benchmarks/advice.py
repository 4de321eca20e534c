"""Is the advice good? Races to a target, and the time lost by following `catlog.advise`.

    python -m benchmarks.advice                      # all three tables; takes hours on two cores
    python -m benchmarks.advice --only regret        # the table of policies alone
    python -m benchmarks.advice --only picks regret --policies advise --seeds 9301 --machine idle

`advice_problems.py` has eighteen problems of different kinds. In a race an estimator trains with
Adam, from the start that the seed gives, until the level (the mean of the last three evaluations,
outside the clock) is at most the target. `seconds` are CPU seconds of training steps; where f is
expensive, a virtual clock adds what a point takes. All estimators of a problem race side by side, a
moment each, so that other work on the machine slows all alike. The others stop when they took three
times as long as the first to arrive (`limit`).

Policies say which estimator to take. `advise` is asked at the start, once as it comes (with the
`penalty=` of the problem) and once with the training step; each five times, with other seeds (the
record has two calls with the step, at the first start). The rule by the clock takes the most draws
of RLOO whose step takes at most 1.2 times as long as RLOO(2)'s. The rows "first edition" are
recorded answers of an earlier `advise`, in today's names. `pick` is the choice, `level` the group
that it was taken from, and `seconds` the time of the pilot.

The regret of a policy is the time to the target with its pick, over that with the best estimator
raced. Times are geometric means over seeds and races; one that does not arrive counts as twice the
limit. A pick that did not race (`not_raced`) has none.

The constants of `advise` were chosen by seeds below 9300, and were fixed before any seed above it
was used. Seeds 9301 to 9303 judge, three races each. Where two draws are taken and single races
differ most, on `features` and `simulator`, seeds 9301 to 9306 do. The usual estimators race, the
candidates of `advise`, and whatever a policy named at one of the starts. The machine was
shared: five to fifteen processes per core during the races. `--machine` says how busy it is during
the pilots: `crowded`, with ten to eighteen processes per core, `loaded`, beside the test suite, or
`idle`. Answers on other machines stand beside each other.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import exp, inf, log
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog.diagnostics.naming import parse_estimator

from .advice_problems import PROBLEMS, Function
from .measuring import RESULTS, Args, Page, Row, Rows, Table, grouped, selected

LADDER = [f"RLOO({2**power})" for power in range(1, 7)]
CALLS = 5
CLOCK_FACTOR, CLOCK_ROUNDS = 1.2, 20
BATCH, TEST = 32, 256  # elements of a minibatch and of the evaluation
MOMENT = 0.05  # seconds, after which another racer trains
PATIENCE = 3  # times the first arrival, after which the others stop
LIMIT = 200.0  # seconds of a race


class Training:
    """A problem in training; a clock counts CPU seconds, and those of an expensive f."""

    def __init__(self, name: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.problem = PROBLEMS[name]()
        self.optimiser = torch.optim.Adam(self.problem.trained, self.problem.rate)
        self.virtual = 0.0
        self.seconds, self.steps = 0.0, 0

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

    def race(self, label: str, number: int) -> Iterator[None]:
        """Train until the level is at most the target; let others train every now and then."""
        E, levels, check, pause = parse_estimator(label), [self.level()] * 3, 0.01, MOMENT
        torch.manual_seed(1000 + number)
        while fmean(levels[-3:]) > self.problem.target:
            start = self.clock()
            self.step(E)
            self.seconds += self.clock() - start
            self.steps += 1
            if self.seconds > check:
                check = 1.08 * self.seconds
                levels.append(self.level())
            if self.seconds > pause:
                pause += MOMENT
                yield


def side_by_side(
    problem: str, seed: int, number: int, labels: Sequence[str], limit: float
) -> list[Row]:
    """Race estimators in turns, so that other work on the machine slows all of them alike."""
    trainings = {label: Training(problem, seed) for label in labels}
    races = {label: training.race(label, number) for label, training in trainings.items()}
    states: dict[str, Tensor] = {}
    rows: list[Row] = []
    while races:
        label = min(races, key=lambda label: trainings[label].seconds)
        training = trainings[label]
        row: Row = {"problem": problem, "seed": seed, "policy": "race", "call": number}
        row |= {"pick": label, "seconds": None}
        try:
            if label in states:
                torch.set_rng_state(states[label])
            if training.seconds < limit:
                next(races[label])
                states[label] = torch.get_rng_state()
                continue
        except StopIteration:
            row["seconds"] = training.seconds
            limit = min(limit, PATIENCE * training.seconds)
        except (ValueError, TypeError, RuntimeError):  # the estimator is not for this problem
            training.steps = 0
        rows.append(row | {"steps": training.steps, "limit": limit})
        del races[label]
    return rows


# Policies


def advise(training: Training, call: int, **options: Any) -> Row:
    f, q = training.question()
    options |= {"penalty": training.problem.penalty, "clock": training.clock}
    advice = catlog.advise(f, q, seed=call, **options)
    names = [trial.name for trial in advice.trials if trial.is_level]
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


POLICIES: dict[str, Callable[[Training, int], Row]] = {
    **{"advise": advise, "advise(step=)": with_step, "clock": by_clock},
    "table": lambda training, call: {"pick": training.problem.table},
    "RLOO(4)": lambda training, call: {"pick": "RLOO(4)"},
}
MEASURING = ("advise", "advise(step=)", "clock")
SEEDS = [9301, 9302, 9303, 9304, 9305, 9306]
NOISY = ("features", "simulator")  # all seeds judge, of other problems the first three
page = Page(
    __doc__,
    problems=[*PROBLEMS],
    seeds=SEEDS,
    races=3,
    policies=[*POLICIES],
    machine="crowded",
)


@page.section("quality/advice_picks.csv", "machine", "problem", "seed", "policy", "call")
def picks(args: Args, table: Table) -> Rows:
    """Yield what a policy says at a start: in several calls, if it measures."""
    for policy, (problem, seed) in product(args.policies, starts(args)):
        key = {"machine": args.machine, "problem": problem, "seed": seed, "policy": policy}
        calls = CALLS if policy in MEASURING and not args.quick else 1
        if not selected(table.rows, **key):
            ask, start = POLICIES[policy], partial(Training, problem, seed)
            yield [key | {"call": call} | ask(start(), call) for call in range(calls)]


@page.section("quality/advice_races.csv", "problem", "seed", "call", "pick")
def races(args: Args, table: Table) -> Rows:
    """Race the estimators of every problem, round by round."""
    answers = grouped(recorded(args, "picks"), "problem")
    for number, (problem, seed) in product(range(1 if args.quick else args.races), starts(args)):
        named = [row["pick"] for row in answers.get(problem, [])]
        labels = [*dict.fromkeys([*LADDER, *PROBLEMS[problem]().racers, *named])]
        if not selected(table.rows, problem=problem, seed=seed, call=number):
            yield side_by_side(problem, seed, number, labels, 0.05 if args.quick else LIMIT)


def starts(args: Args) -> list[tuple[str, int]]:
    """Return problems and seeds: first all problems with the first seed."""
    problems, seeds = args.problems, args.seeds
    if args.quick:
        problems, seeds = problems[:2], seeds[:1]
    pairs = [(problem, seed) for seed in seeds for problem in problems]
    return [pair for pair in pairs if pair[0] in NOISY or pair[1] not in SEEDS[3:]]


def recorded(args: Args, name: str) -> list[Row]:
    """Return the rows of a section that are on disk."""
    section = page.sections[name]
    return Table((args.output or RESULTS) / section.place, section.key).rows


# Regrets


def times(rows: Sequence[Row]) -> dict[str, float]:
    """Return the geometric mean of every estimator's times to the target, of one problem."""
    return {
        name: exp(fmean(log(race["seconds"] or 2 * race["limit"]) for race in races))
        for name, races in grouped([row for row in rows if row["steps"]], "pick").items()
    }


@page.section("quality/advice.csv", "machine", "policy", "problem")
def regret(args: Args, table: Table) -> Rows:
    """Yield a row per machine, policy and problem, and one per policy for all problems."""
    by_problem = grouped(recorded(args, "picks"), "problem")
    answers: list[Row] = []
    for problem, raced in grouped(recorded(args, "races"), "problem").items():
        seconds = times(raced)
        best = min(seconds.values())
        for row in by_problem.get(problem, []):
            level = (row["level"] or row["pick"]).split("; ")
            least = min((seconds[name] for name in level if name in seconds), default=inf)
            pick = seconds.get(row["pick"])
            measured = {"regret": pick and pick / best, "hit": least <= 1.1 * best}
            answers.append(row | measured | {"start": (problem, row["seed"])})
    answers += [row | {"problem": "all"} for row in answers]
    groups = grouped(answers, "machine", "policy", "problem").items()
    yield [dict(zip(table.key, key, strict=True)) | summary(group) for key, group in groups]


def summary(rows: list[Row]) -> Row:
    factors = [row["regret"] for row in rows if row["regret"]]
    calls = grouped(rows, "start").values()
    return {
        "picks": ", ".join(
            f"{name} x{count}"
            for name, count in Counter(row["pick"] for row in rows).most_common(4)
        ),
        "median": median(factors) if factors else None,
        "worst": max(factors, default=None),
        "mean": exp(fmean(map(log, factors))) if factors else None,
        "not_raced": len(rows) - len(factors),
        "hit": fmean(row["hit"] for row in rows),
        "same": fmean(len({row["pick"] for row in group}) == 1 for group in calls),
        "pilot": max(row["seconds"] or 0.0 for row in rows),
    }


if __name__ == "__main__":
    page.run()
