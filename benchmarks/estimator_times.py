"""How long does one estimate take at 200 variables and batch 100, before and after a change?

    python -m benchmarks.estimator_times                   # results/speed/estimator_times.csv
    python -m benchmarks.estimator_times --before 13120d3  # an earlier commit beside it
    python -m benchmarks.estimator_times --source PATH     # a folder that holds catlog, beside it

A row is one estimator: `ms` is the median CPU time of an estimate and its gradient, `before_ms`
that of the earlier source, `speedup` the median of their ratios, `over_rloo` the time over that of
RLOO with the same number of evaluations, in the same round. f is cheap, a tanh of a linear function
and a square, so that the times are the estimators' own. Each source has a process of its own with
one thread. In every round, all estimators take turns, and the two sources one after the other.
`load` is the machine's load average at the end: other work shares its caches and lengthens all
times a little.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent

import catlog

from .command_line import table_parser
from .startup import ROOT, copy_source
from .tables import RESULTS, Row, Table, show
from .turns import median_ratio

VARIABLES, BATCH = 200, 100
BITS, CHAIN = "200 bits", "chain of 200 states"
# Estimator, options, distribution.
SETTINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "RLOO(2)": ("RLOO", {"samples": 2}, BITS),
    "UnorderedSet(2)": ("UnorderedSet", {"samples": 2}, BITS),
    "SumAndSample(1, top=1)": ("SumAndSample", {}, BITS),
    "RLOO(6)": ("RLOO", {"samples": 6}, BITS),
    "MAPO(2, size=4)": ("MAPO", {"max_variables": VARIABLES}, BITS),
    "RLOO(8)": ("RLOO", {"samples": 8}, BITS),
    "ReinMax(8)": ("ReinMax", {"samples": 8}, BITS),
    "RLOO(10)": ("RLOO", {"samples": 10}, BITS),
    "UnorderedSet(10)": ("UnorderedSet", {"samples": 10}, BITS),
    "RLOO(100)": ("RLOO", {"samples": 100}, BITS),
    "SumAndSample(50, top=50)": ("SumAndSample", {"top": 50, "samples": 50}, BITS),
    "MAPO(50, size=50)": ("MAPO", {"size": 50, "samples": 50, "max_variables": VARIABLES}, BITS),
    "CARMS(100)": ("CARMS", {"samples": 100}, BITS),
    "GumbelRao(100)": ("GumbelRao", {"samples": 100}, BITS),
    "RODEO(100)": ("RODEO", {"samples": 100}, BITS),
    "CritiCateR(100)": ("CritiCateR", {"samples": 100}, BITS),
    "RLOO(100), chain": ("RLOO", {"samples": 100}, CHAIN),
    "CritiCateR(100), chain": ("CritiCateR", {"samples": 100}, CHAIN),
}


def f(x: Tensor) -> Tensor:
    """Return a value per point, from a few passes over the points."""
    x = x.float()
    weight = torch.linspace(-1, 1, x.shape[-1])
    return (x @ weight / 8).tanh() + (x - 0.3).square().mean(-1)


def estimate(setting: str, variables: int, batch: int) -> Callable[[], None]:
    """Return a call that makes one estimate and its gradient."""
    name, options, kind = SETTINGS[setting]
    torch.manual_seed(0)
    E = catlog.ESTIMATORS[name](**options)
    logits = torch.randn(batch, variables) if kind == BITS else torch.randn(batch, 2)
    transition = torch.randn(2, 2)

    def distribution() -> Distribution:
        if kind == BITS:
            leaf = logits.clone().requires_grad_()
            return Independent(Bernoulli(logits=leaf), 1)
        leaves = (table.clone().requires_grad_() for table in (logits, transition))
        return catlog.MarkovChain(*leaves, length=variables)

    return lambda: E(f, distribution()).sum().backward()


def answer(variables: int, batch: int) -> None:
    """Time the estimators whose names come line by line: print the CPU seconds of one call."""
    torch.set_num_threads(1)
    calls: dict[str, Callable[[], None]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in calls:
            calls[name] = estimate(name, variables, batch)
            calls[name]()
        count, start = 0, time.process_time()
        while count == 0 or (time.process_time() - start < 0.05 and count < 20):
            calls[name]()
            count += 1
        print((time.process_time() - start) / count, flush=True)


class Source:
    """A process that imports catlog from a folder and times estimators on request."""

    def __init__(self, folder: Path, variables: int, batch: int) -> None:
        path = os.pathsep.join([str(folder), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.estimator_times", "--answer"]
        command += ["--variables", str(variables), "--batch", str(batch)]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    sources: dict[str, Path], names: list[str], rounds: int, variables: int, batch: int
) -> list[Row]:
    """Return a row per estimator; the sources are called "after" and, if given, "before"."""
    times: dict[tuple[str, str], list[float]] = {
        (version, name): [] for version in sources for name in names
    }
    with ExitStack() as stack:
        processes = {
            version: stack.enter_context(Source(folder, variables, batch))
            for version, folder in sources.items()
        }
        for _ in range(rounds):
            for name in names:
                for version, process in processes.items():
                    times[version, name].append(process.seconds(name))
    rows = []
    for name in names:
        estimator, _, kind = SETTINGS[name]
        after = times["after", name]
        row: Row = {"estimator": name, "distribution": kind, "rounds": rounds}
        row["ms"] = 1000 * median(after)
        if "before" in sources:
            before = times["before", name]
            row["before_ms"] = 1000 * median(before)
            row["speedup"] = median_ratio(before, after)
        baseline = times.get(("after", baseline_of(name)))
        if estimator != "RLOO" and baseline is not None:
            row["over_rloo"] = median_ratio(after, baseline)
        rows.append(row | {"load": os.getloadavg()[1]})
    return rows


def baseline_of(name: str) -> str:
    """Return the row of RLOO with as many evaluations, on the same distribution."""
    estimator, options, kind = SETTINGS[name]
    E = catlog.ESTIMATORS[estimator](**options)
    count = E.evaluations(Independent(Bernoulli(logits=torch.zeros(VARIABLES)), 1))
    return f"RLOO({count})" if kind == BITS else f"RLOO({count}), chain"


def main() -> None:
    parser = table_parser(__doc__, output=RESULTS / "speed" / "estimator_times.csv")
    parser.add_argument("--before", help="a commit to measure as well")
    parser.add_argument("--source", type=Path, help="a folder with the earlier catlog, instead")
    parser.add_argument("--only", nargs="*", help="rows to measure", choices=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variables", type=int, default=VARIABLES)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options.variables, options.batch)
        return
    names = options.only or list(SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        sources = {"after": ROOT / "src"}
        if options.before:
            sources["before"] = copy_source(options.before, Path(folder))
        elif options.source:
            sources["before"] = options.source
        rows = measure(sources, names, options.rounds, options.variables, options.batch)
    Table(options.output, ("estimator",)).add(rows)
    show(f"Estimates of {options.variables} variables, batch {options.batch}, one thread", rows)


if __name__ == "__main__":
    main()
