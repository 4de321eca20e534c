"""How long does one estimate take at 200 variables and batch 100, before and after a change?

    python -m benchmarks.estimator_times                   # results/speed/estimator_times.csv
    python -m benchmarks.estimator_times --before 13120d3  # an earlier commit beside it
    python -m benchmarks.estimator_times --source PATH     # a folder that holds catlog, beside it

A row is one estimator: `ms` is the median CPU time of an estimate and its gradient, `before_ms`
that of the earlier source, `speedup` the median of their ratios, `over_rloo` the time over that of
RLOO with the same number of evaluations, in the same round. f is cheap, a tanh of a linear function
and a square, so that the times are the estimators' own. In every round each source has a new
process with one thread, in which all estimators take turns. `load` is the machine's load average at
the end: other work shares its caches and lengthens all times a little.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent

import catlog

from .command_line import opened, table_parser
from .tables import Row
from .turns import median_ratio, seconds_in_turns

ROOT = Path(__file__).parents[1]
VARIABLES, BATCH = 200, 100
CHAIN = ", chain"  # ends the names of rows whose distribution is no set of independent bits
SETTINGS: dict[str, catlog.Estimator] = {
    "RLOO(2)": catlog.RLOO(2),
    "UnorderedSet(2)": catlog.estimators.UnorderedSet(2),
    "SumAndSample(1, top=1)": catlog.estimators.SumAndSample(),
    "RLOO(6)": catlog.RLOO(6),
    "MAPO(2, size=4)": catlog.estimators.MAPO(max_variables=VARIABLES),
    "RLOO(8)": catlog.RLOO(8),
    "ReinMax(8)": catlog.ReinMax(8),
    "RLOO(10)": catlog.RLOO(10),
    "UnorderedSet(10)": catlog.estimators.UnorderedSet(10),
    "RLOO(100)": catlog.RLOO(100),
    "SumAndSample(50, top=50)": catlog.estimators.SumAndSample(top=50, samples=50),
    "MAPO(50, size=50)": catlog.estimators.MAPO(size=50, samples=50, max_variables=VARIABLES),
    "CARMS(100)": catlog.estimators.CARMS(100),
    "GumbelRao(100)": catlog.estimators.GumbelRao(100),
    "RODEO(100)": catlog.estimators.RODEO(100),
    "CritiCateR(100)": catlog.CritiCateR(100),
    "RLOO(100), chain": catlog.RLOO(100),
    "CritiCateR(100), chain": catlog.CritiCateR(100),
}


def f(x: Tensor) -> Tensor:
    """Return a value per point, from a few passes over the points."""
    x = x.float()
    weight = torch.linspace(-1, 1, x.shape[-1])
    return (x @ weight / 8).tanh() + (x - 0.3).square().mean(-1)


def cpu_seconds(name: str, variables: int, batch: int) -> float:
    """Return the CPU seconds of one estimate and its gradient."""
    torch.manual_seed(0)
    E, is_chain = SETTINGS[name], name.endswith(CHAIN)
    logits = torch.randn(batch, 2 if is_chain else variables, requires_grad=True)
    transition = torch.randn(2, 2, requires_grad=True)

    def estimate() -> None:
        q: Distribution = Independent(Bernoulli(logits=logits), 1)
        if is_chain:
            q = catlog.distributions.MarkovChain(logits, transition, length=variables)
        E(f, q).sum().backward()

    (seconds,) = seconds_in_turns({0: estimate}, 1, clock=time.process_time, least=0.05)[0]
    return seconds


def seconds_of_source(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the CPU seconds of all estimators in a process that imports catlog from a folder."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.estimator_times", "--answer", "--only"]
    command += [*options.only, "--variables", str(options.variables), "--batch", str(options.batch)]
    return json.loads(subprocess.check_output(command, env=environment))


def copy_source(commit: str, folder: str) -> Path:
    """Copy `src` of a commit into a folder and return its path."""
    files = subprocess.check_output(["git", "archive", commit, "src"], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", folder], input=files, check=True)
    return Path(folder) / "src"


def measure(sources: dict[str, Path], options: argparse.Namespace) -> list[Row]:
    """Return a row per estimator; the sources are called "after" and, if given, "before"."""
    rounds: dict[str, list[dict[str, float]]] = {version: [] for version in sources}
    for _ in range(options.rounds):
        for version, folder in sources.items():
            rounds[version].append(seconds_of_source(folder, options))
    rows = []
    for name in options.only:
        times = {version: [seconds[name] for seconds in rounds[version]] for version in sources}
        kind = f"chain of {VARIABLES} states" if name.endswith(CHAIN) else f"{VARIABLES} bits"
        row: Row = {"estimator": name, "distribution": kind, "rounds": options.rounds}
        row["ms"] = 1000 * median(times["after"])
        if "before" in sources:
            row["before_ms"] = 1000 * median(times["before"])
            row["speedup"] = median_ratio(times["before"], times["after"])
        baseline = baseline_of(name)
        if name != baseline and baseline in options.only:
            rloo = [seconds[baseline] for seconds in rounds["after"]]
            row["over_rloo"] = median_ratio(times["after"], rloo)
        rows.append(row | {"load": os.getloadavg()[1]})
    return rows


def baseline_of(name: str) -> str:
    """Return the row of RLOO with as many evaluations, on the same distribution."""
    q = Independent(Bernoulli(logits=torch.zeros(VARIABLES)), 1)
    return f"RLOO({SETTINGS[name].evaluations(q)}){CHAIN if name.endswith(CHAIN) else ''}"


def main() -> None:
    sizes = {"variables": VARIABLES, "batch": BATCH}
    parser = table_parser(__doc__, quick=False, rounds=5, **sizes)
    parser.add_argument("--before", help="a commit to measure as well")
    parser.add_argument("--source", type=Path, help="a folder with the earlier catlog, instead")
    parser.add_argument(
        "--only", nargs="*", default=list(SETTINGS), choices=list(SETTINGS), help="rows to measure"
    )
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options, table = opened(parser, "speed/estimator_times.csv", "estimator")
    if options.answer:
        sizes = options.variables, options.batch
        print(json.dumps({name: cpu_seconds(name, *sizes) for name in options.only}))
        return
    with tempfile.TemporaryDirectory() as folder:
        sources = {"after": ROOT / "src"}
        if options.before or options.source:
            sources["before"] = options.source or copy_source(options.before, folder)
        rows = measure(sources, options)
    table.add(rows, f"{options.variables} variables, batch {options.batch}, one thread")


if __name__ == "__main__":
    main()
