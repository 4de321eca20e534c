"""Which estimator first trains the MNIST autoencoder to a negated train ELBO of 100, in wall time?

    python -m benchmarks.race --device cuda     # 15 minutes; writes results/speed/race_cuda.csv
    python -m benchmarks.race --device cuda --methods "RLOO(4)" --seeds 0
    python -m benchmarks.race --device cuda --advice    # what `catlog.advise` picks instead
    python -m benchmarks.race --device cuda --compile --methods "RLOO(8)"    # fills the caches

Every method trains alone on the device: the same model, start and batches (see `catlog run dvae`),
the step compiled and captured in a CUDA graph. The clock runs for training steps only. It stops
during compilation (column `setup`, in seconds) and while the bound over all training images is
measured (one draw each, every 600 steps, which is an epoch). A run ends when it reaches the target,
or after --limit seconds of training. The file has the curves; its runs are not repeated.
Methods are labels of catlog, such as "IndeCateR(4, draws=latin)". The temperature of Gumbel-Softmax
is lowered from 1 by exp(-0.01) per epoch.

With --advice nothing is raced: for every seed, `catlog.advise` picks an estimator, once among
unbiased estimators only and once among all, after --epochs of training with RLOO(2). The divergence
that is added to the loss is its `penalty`, and it times the compiled and captured step of
candidates that may win. Its clock stops during set-up. docs/race.md compares the picks with the
race. With --compile, the steps of the methods are only compiled, which several processes can do at
once; later processes find the result in torch's caches.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from catlog import Estimator
from catlog.core.settings import label
from catlog_experiments import DVAE, records
from catlog_experiments.dvae import DVAETask

from .command_line import add_options, argument_parser
from .cpu_races.curves import seconds_to
from .cpu_races.picks import pick
from .cpu_races.racers import settings_of
from .tables import RESULTS, Row, Table, grouped, selected, show

METHODS = [
    "SlopeCateR(8, slope_entries=0)",
    "SlopeCateR(4, slope_entries=0)",
    "SlopeCateR(8)",
    "GumbelSoftmax(2, hard=True)",
    "IndeCateR(2)",
    "IndeCateR(2, draws=latin)",
    "IndeCateR(8, draws=latin, variables=4)",
    "RLOO(2)",
    "RLOO(800)",
    "GumbelSoftmax(800, hard=True)",
    "ReinMax(2)",
    "ReinMax(4)",
    "ReinMax(8)",
    "GumbelSoftmax(4, hard=True)",
    "GumbelSoftmax(8, hard=True)",
    "RLOO(8)",
    "RLOO(14)",
]
RACE = "H200"  # its name among the races that judge the advice
TARGET = 100.0


def made(method: str, seed: int, data: str, device: str) -> DVAETask:
    """Return the task at its start, which depends on the seed alone."""
    settings = {"data": data, "device": device, "seed": seed, "gradient_repeats": 0}
    torch.manual_seed(seed)
    return DVAETask(DVAE(**settings, **settings_of(method)))


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(name: str, seed: int, args: argparse.Namespace) -> list[Row]:
    """Return the curve of one run, a row per measurement."""
    begin = now(args.device)
    task = made(name, seed, args.data, args.device)
    start = {"step": 0, "seconds": 0.0, **bounds(task)}
    task.step(0)  # compiles; its time is taken to be that of the steps after it
    setup = now(args.device) - begin
    curve, seconds, i = [start], 0.0, 1
    while curve[-1]["train"] > args.target and seconds < args.limit:
        before, first = now(args.device), i
        while i % args.every or i == first:
            task.step(i)
            i += 1
        took = now(args.device) - before
        seconds += took * (1 + 1 / (i - first)) if first == 1 else took
        curve.append({"step": i, "seconds": seconds, **bounds(task)})
    machine = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    last = {"setup": setup, "device": machine, "torch": torch.__version__}
    return [{"method": name, "seed": seed, **row, **last} for row in curve]


def bounds(task: DVAETask) -> dict[str, float]:
    return {"train": task.mean_bound(task.train, 1), "test": task.mean_bound(task.test, 1)}


def curves(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """Return the curves by method and seed."""
    return {method: grouped(runs, "seed") for method, runs in grouped(rows, "method").items()}


def reached(
    curve: list[Row], target: float = TARGET, *, unit: str = "seconds", bound: str = "train"
) -> float | None:
    """Return the seconds, or steps, until a bound is at the target, linear between measurements.

    >>> curve = [{"step": 600, "train": 110.0}, {"step": 1200, "train": 90.0}]
    >>> reached(curve, 100.0, unit="step"), reached(curve, 80.0, unit="step")
    (900.0, None)
    """
    return seconds_to(curve, target, unit=unit, name=bound)


def summaries(rows: list[Row]) -> list[Row]:
    """Return a row per run, as `benchmarks.cpu_races` has them."""
    return [
        {
            "race": RACE,
            "method": name,
            "seed": seed,
            "target": TARGET,
            "seconds": reached(curve),
            "trained": curve[-1]["seconds"],
        }
        for name, runs in curves(rows).items()
        for seed, curve in runs.items()
    ]


class CapturedSteps:
    """The training step of any estimator, compiled and captured, and a clock without set-up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.tasks: dict[str, DVAETask] = {}
        self.setup = 0.0

    def clock(self) -> float:
        return now(self.args.device) - self.setup

    def __call__(self, E: Estimator) -> None:
        name = label(E)
        if name not in self.tasks:
            self.set_up(name)
        self.tasks[name].step(1)

    def set_up(self, method: str) -> None:
        """Compile and capture the step of a method."""
        begin = now(self.args.device)
        self.tasks[method] = made(method, 0, self.args.data, self.args.device)
        self.tasks[method].step(0)
        self.setup += now(self.args.device) - begin


def trained(seed: int, args: argparse.Namespace) -> DVAETask:
    """Return the task after some epochs with RLOO(2)."""
    task = made("RLOO(2)", seed, args.data, args.device)
    for i in range(args.epochs * task.training.per_epoch):
        task.step(i)
    return task


def advise(args: argparse.Namespace) -> None:
    """Write what `catlog.advise` picks for every seed."""
    table = Table(args.picks, ("race", "seed", "biased"), digits=4)
    steps = CapturedSteps(args)
    for seed in args.seeds:
        permissions = [biased for biased in (False, True) if (RACE, seed, biased) not in table]
        if not permissions:
            continue
        task = trained(seed, args)
        images = task.train[task.training.index(0)]
        q = task.distribution(task.encoder(images), relaxed=False)
        f = task.reconstruction(images, relaxed=False)

        def penalty(q: Any, task: DVAETask = task) -> Tensor:
            return task.divergence(q.base_dist.logits)

        for biased in permissions:
            options = {"step": steps, "penalty": penalty, "clock": steps.clock}
            row = pick(f, q, biased=biased, seed=seed, **options)
            set_up = f"{', '.join(steps.tasks)} set up in {steps.setup:.0f} s"
            table.add([{"race": RACE, "seed": seed, **row}], set_up)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    add_options(parser, data="mnist", methods=METHODS, seeds=[0, 1, 2], target=TARGET)
    add_options(parser, picks=RESULTS / "speed" / "advice_picks.csv")
    parser.add_argument("--every", type=int, default=600, help="steps between measurements")
    parser.add_argument(
        "--limit", type=float, default=30.0, help="seconds of training after which a run stops"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--epochs", type=int, default=5, help="epochs before the advice, with RLOO(2)"
    )
    parser.add_argument("--compile", action="store_true", help="compile steps, do not race")
    parser.add_argument("--advice", action="store_true", help="write picks, do not race")
    parser.add_argument("--race-picks", action="store_true", help="race what --picks holds, too")
    args = parser.parse_args()
    if args.advice:
        advise(args)
        return
    if args.compile:
        steps = CapturedSteps(args)
        for name in args.methods:
            steps.set_up(name)
            print(f"{name}: {steps.setup:.0f} s", flush=True)
        return
    table = Table(
        args.output or RESULTS / "speed" / f"race_{args.device}.csv", ("method", "seed"), digits=6
    )
    picks = records.read(args.picks) if args.race_picks else []
    names = args.methods + [row["pick"] for row in selected(picks, race=RACE)]
    for seed, name in product(args.seeds, dict.fromkeys(names)):
        if (name, seed) in table:
            continue
        curve = race(name, seed, args)
        table.add(curve)
        show(f"{name}, seed {seed}", [{**curve[-1], "target after": reached(curve, args.target)}])


if __name__ == "__main__":
    main()
