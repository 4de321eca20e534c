"""The field's own tables of autoencoders, and the long runs that the paper's claims need.

    python -m benchmarks.protocol sweep --limit 420              # as much as 7 minutes allow
    python -m benchmarks.protocol sweep --limit 420 --parts headline --models 2
    python -m benchmarks.protocol sweep --parts claim-categories --limit 420
    python -m benchmarks.protocol list                           # what there is to run, in order
    python -m benchmarks.protocol merge table.csv                # add rows to results/

Runs are those of `catlog run dvae --protocol ...`, in the order of need, --jobs at a time. Each
trains --models models in one captured step. The table (--output) is written every few seconds, and
runs below --root continue where they were cut. With --mps the processes share the GPU under
NVIDIA's MPS, if it can be started; without it they take turns.

Sizes: a step of five models of the binary protocols takes about 0.3 ms on an H200, so that 10^6
steps take five minutes if nothing else runs. RODEO, with its network at all neighbours, and
IndeCateR take several times as long. A categorical run has 96,000 steps, about half a minute.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from catlog.estimators import ESTIMATORS
from catlog_experiments import DVAE, folder_for, records
from catlog_experiments.sweeps import sweep

from .command_line import argument_parser
from .cpu_races.racers import settings_of
from .tables import RESULTS, Row, Table

MODELS = 5
TABLES = tuple(product(("bernoulli", "gaussian"), ("mnist", "fashion-mnist")))
# Estimators by their number of evaluations K.
FIRST = "SlopeCateR(2, corrections=1)"
THREE = ("RODEO(3)", "DoubleCV(3)", "ARMS(3)", "ReinMax(3)")
TWO = (
    "SlopeCateR(1, corrections=1)", "DisARM(1)", "RODEO(2)", "DoubleCV(2)", "ARMS(2)", "ReinMax(2)",
)  # fmt: skip
BEST = ("SlopeCateR(8)", "ReinMax(8)", "RLOO(14)", "IndeCateR(2)", "RELAX(3)", "REBAR(1)")
# Categories x variables, in the published order.
SIZES = ((8, 4), (4, 24), (8, 16), (16, 12), (64, 8), (10, 30))
CATEGORICAL = (
    "SlopeCateR(1)", "SlopeCateR(1, corrections=1, pairs=False)", "ReinMax(1)",
    "ReinMax(1, temperature=1.5)", "GappedStraightThrough(1)", "GumbelSoftmax(1, hard=True)",
    "RLOO(4)", "IndeCateR(1)",
)  # fmt: skip
KEY = (
    "protocol", "data", "variables", "categories", "estimator", "samples", "options", "seed",
    "models", "epochs", "iteration",
)  # fmt: skip
DEFAULTS = {"protocol": "paper", "models": 1}
REFRESH = 15.0  # seconds between two writings of the table
FILES = {"categorical": "protocol/categories", "paper": "paper/dvae"}  # others: protocol/bits


def bits(estimators: Sequence[str], tables: Sequence[tuple[str, str]] = TABLES) -> list[DVAE]:
    """Return runs of 10^6 steps of the binary protocols, one table after the other."""
    sizes: dict[str, Any] = {"epochs": 2000, "models": MODELS}
    return [
        DVAE(**sizes, **settings_of(text), protocol=protocol, data=data)  # type: ignore[arg-type]
        for (protocol, data), text in product(tables, estimators)
    ]


def categories(estimators: Sequence[str]) -> list[DVAE]:
    """Return runs of 160 epochs of the categorical protocol."""
    settings: dict[str, Any] = {"protocol": "categorical", "data": "mnist", "models": MODELS}
    settings |= {"epochs": 160, "every": 6000, "gradient_repeats": 500}
    return [
        DVAE(**settings, **settings_of(text), categories=k, variables=variables)
        for (k, variables), text in product(SIZES, estimators)
    ]


def claims() -> dict[str, list[DVAE]]:
    """Return the runs that decide the paper's claims on overfitting, Omniglot and 10 categories.

    They measure gradients as the shorter runs do, whose place they take in other claims.
    """
    ten = [
        DVAE(data="fashion-mnist", categories=10, estimator=name, seed=seed, epochs=epochs)
        for seed in (0, 1)
        for name, epochs in (("IndeCateR", 24), ("IndeCateR-D", 20), ("RLOO-F", 5), ("GS-F", 4))
    ]
    overfitting = [
        DVAE(data=data, estimator=name, seed=seed, every=3000, epochs=500)  # type: ignore[arg-type]
        for name in ("IndeCateR", "RLOO-F")
        for data in ("mnist", "fashion-mnist")
        for seed in (0, 1)
    ]
    omniglot = [
        DVAE(data="omniglot", estimator=name, seed=seed, every=960, epochs=500)
        for seed in (0, 1)
        for name in ("IndeCateR", "GS-S", "RLOO-S", "RLOO-F", "GS-F")
    ]
    return {"claim-categories": ten, "claim-omniglot": omniglot, "claim-overfitting": overfitting}


def parts(estimators: Sequence[str] | None = None) -> dict[str, list[DVAE]]:
    """Return all runs by part, the most needed first; ``estimators`` replaces those of a table."""
    return {
        "headline": bits(estimators or (FIRST,)),
        "rivals": bits(estimators or THREE),
        "two": bits(estimators or TWO),
        "best": bits(estimators or BEST),
        "categories": categories(estimators or CATEGORICAL),
        **claims(),
    }


def chosen(args: argparse.Namespace) -> list[DVAE]:
    """Return the runs that the arguments name. Estimators that catlog lacks are left out."""
    runs = [run for name in args.parts for run in parts(args.estimators)[name]]
    missing = sorted({run.estimator for run in runs} - {*ESTIMATORS, *DVAE.labels})
    if missing:
        print(f"Not known to this version of catlog, left out: {', '.join(missing)}.", flush=True)
    wanted = {"data": args.data, "protocol": args.protocols, "estimator": args.only}
    kept = []
    for run in runs:
        fits = all(not names or getattr(run, field) in names for field, names in wanted.items())
        if run.estimator in missing or not fits:
            continue
        stacked = {} if run.protocol == "paper" else {"models": args.models or run.models}
        kept += [
            shrunk(replace(run, device=args.device, seed=seed, **stacked), args)
            for seed in args.seeds or [run.seed]
        ]
    return list(dict.fromkeys(kept))


def shrunk(run: DVAE, args: argparse.Namespace) -> DVAE:
    """Return the run with --epochs, or at the size of a test with --tiny."""
    if args.tiny:
        tiny = {"data": "mnist-5000", "epochs": 1, "batch": 1000, "test_samples": 2, "every": 4}
        size = {} if run.protocol == "categorical" else {"variables": 5}
        return replace(run, **tiny, **size, gradient_repeats=0)
    return run if args.epochs is None else replace(run, epochs=args.epochs)


def rows_of(run: DVAE, root: Path) -> list[Row]:
    """Return what a run has logged so far."""
    rows = records.read_run(folder_for(run, root))
    return [{**row, "options": " ".join(row.get("options") or ())} for row in rows]


def write(runs: Sequence[DVAE], root: Path, output: Path) -> None:
    """Write what all runs have logged so far."""
    table = Table(output, KEY, digits=7)
    table.add([row for run in runs for row in rows_of(run, root)])


def run_all(args: argparse.Namespace) -> list[str]:
    """Run what fits into the limit, and return what stopped runs said."""
    runs = chosen(args)
    begin = written = time.monotonic()

    def watch() -> None:
        nonlocal written
        if time.monotonic() > written + REFRESH:
            written = time.monotonic()
            write(runs, args.root, args.output)
            print(f"{written - begin:4.0f} s: {progress(runs, args.root)}", flush=True)

    problems = sweep(
        runs,
        args.root,
        jobs=args.jobs if args.jobs > 1 else None,
        deadline=args.limit,
        checkpoint_every=20.0,
        watch=watch,
        notify=print,
    )
    write(runs, args.root, args.output)
    return problems


def progress(runs: Sequence[DVAE], root: Path) -> str:
    """Return the steps done by every run that has begun."""
    done = []
    for run in runs:
        rows = rows_of(run, root)
        if rows and rows[-1]["iteration"]:
            row = rows[-1]
            done.append(f"{run.estimator} {row['iteration']} ({row['train']:.2f})")
    return ", ".join(done)


@contextmanager
def shared_gpu(wanted: bool) -> Iterator[None]:
    """Start NVIDIA's MPS for the processes started inside, if it works here; stop it afterwards."""
    control = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if control is None:
        if wanted:
            print("MPS: there is no nvidia-cuda-mps-control here; processes take turns.")
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        environment = os.environ | dict.fromkeys(names, folder)
        started = subprocess.run([control, "-d"], env=environment, capture_output=True)
        try:
            probe = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()"]
            works = started.returncode == 0 and (
                subprocess.run(probe, env=environment, capture_output=True, timeout=60).returncode
                == 0
            )
        except subprocess.TimeoutExpired:
            works = False
        print(f"MPS: {'works' if works else 'does not work here; processes take turns'}.")
        if works:
            os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name in names:
                os.environ.pop(name, None)
            subprocess.run([control], input=b"quit -t 5\n", env=environment, capture_output=True)


def merge(paths: Sequence[Path]) -> None:
    """Add the rows of tables to the files in results/ that they belong to.

    A run replaces shorter ones that differ in their length alone.
    """
    for path in paths:
        groups: dict[str, list[Row]] = {}
        for row in records.read(path):
            name = FILES.get(row.get("protocol") or "paper", "protocol/bits")
            groups.setdefault(name, []).append(without_defaults(row))
        for name, rows in groups.items():
            target = RESULTS / f"{name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            table = Table(target, KEY, digits=7 if name.startswith("protocol") else 5)
            before = list(map(without_defaults, table.rows))
            added = set(map(run_of, rows))
            table.rows = [row for row in before if run_of(row) not in added]
            table.add(longest([row for row in before if run_of(row) in added] + rows))
            print(f"{len(rows)} rows of {path} were merged into {target}.")


def without_defaults(row: Row) -> Row:
    """Return the cells of a row that say something: tables have columns that others lack."""
    return {
        name: value for name, value in row.items() if value not in (None, "", DEFAULTS.get(name))
    }


def run_of(row: Row) -> tuple[object, ...]:
    """Return the settings of a row's run without its length."""
    return tuple(row.get(name) for name in KEY if name not in ("epochs", "iteration"))


def longest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the longest run of each setting; of equal ones, the last.

    >>> cut = [{"seed": 0, "epochs": 8, "iteration": i} for i in (0, 600)]
    >>> long = [{"seed": 0, "epochs": 9, "iteration": i} for i in (0, 700)]
    >>> longest([*long, *cut]) == long
    True
    """
    ends: dict[tuple[object, ...], tuple[int, int]] = {}
    for row in rows:
        end = ends.get(run_of(row), (-1, 0))
        if row["iteration"] >= end[0]:
            ends[run_of(row)] = (row["iteration"], row.get("epochs", 0))
    kept = (row for row in rows if row.get("epochs", 0) == ends[run_of(row)][1])
    return list({(run_of(row), row["iteration"]): row for row in kept}.values())


def main() -> None:
    parser = argument_parser(__doc__)
    names = list(parts())
    protocols = [name for name in names if not name.startswith("claim")]
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("merge", help="add rows to results/")
    adding.add_argument("tables", nargs="+", type=Path)
    for name in ("sweep", "list"):
        command = commands.add_parser(name)
        command.add_argument("--parts", nargs="+", choices=names, default=protocols)
        command.add_argument("--estimators", nargs="+", help='labels such as "RLOO(4)"')
        command.add_argument("--only", nargs="+", help="names such as IndeCateR; leave others out")
        command.add_argument("--data", nargs="+")
        command.add_argument("--protocols", nargs="+")
        command.add_argument("--models", type=int, help="models in one step, a seed each")
        command.add_argument("--seeds", nargs="+", type=int, help="first seeds, a run each")
        command.add_argument("--epochs", type=int)
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        command.add_argument("--tiny", action="store_true", help="a test of all runs on a CPU")
        command.add_argument("--limit", type=float, help="seconds")
        command.add_argument("--jobs", type=int, default=8, help="processes at a time")
        command.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's MPS")
        command.add_argument("--root", type=Path, default=Path("runs/protocol"))
        command.add_argument("--output", type=Path, default=Path("runs/protocol.csv"))
    args = parser.parse_args()
    if args.command == "merge":
        merge(args.tables)
        return
    if args.command == "list":
        for run in chosen(args):
            settings = " ".join(map(str, (run.samples or "", *run.options)))
            print(
                f"{run.protocol:12}{run.data:15}{run.categories:3} x {run.variables:<4}"
                f"{run.estimator} {settings}, {run.models} models, {run.epochs} epochs"
            )
        return
    # One run compiles with several processes of its own.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2" if args.jobs > 1 else "8")
    with shared_gpu(args.mps):
        problems = run_all(args)
    print(progress(chosen(args), args.root))
    for problem in problems:
        print(problem)


if __name__ == "__main__":
    main()
