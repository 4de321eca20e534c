"""One process against two: a mapped f, an estimate across ranks, training on divided batches, a
sweep.

    python -m benchmarks.scaling                 # some minutes on two idle cores
    python -m benchmarks.scaling --only mapped   # one part; the other rows of the file are kept

Every process has one thread. The two sides of a comparison are measured in turn, in the same
processes; times are medians over rounds. Messages are counted as they are sent: `messages` and
`kib` (bytes that a rank contributes to an all-reduce, or receives from an all-gather) per call.
There is a row for Ray where Ray is installed.
"""

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear, Mapped, Sharded
from catlog.problems.mlp import mlp
from catlog_experiments import DVAE, Optimisation, records
from catlog_experiments.sweeps import grid, sweep
from catlog_experiments.training import adam

from .command_line import opened, table_parser
from .tables import Row, grouped
from .turns import seconds_in_turns, spread

SLEEP = 0.005  # seconds


def compared(section: str, case: str, times: Mapping[Any, list[float]], **more: Any) -> list[Row]:
    """Return a row for every number of processes, with the speedup over the first."""
    rows = []
    for processes, seconds in times.items():
        key = {"section": section, "case": case, "processes": processes}
        speedup = median(next(iter(times.values()))) / median(seconds)
        row = {**key, **spread(seconds), "speedup": speedup}
        rows.append(row | (more if processes != 1 else {}))
    return rows


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def sleeps(point: Any) -> float:
    """Simulate a slow f."""
    time.sleep(SLEEP)
    return float(point.sum())


def mapped(rounds: int, quick: bool) -> list[Row]:
    """Time IndeCateR on an f that sleeps, in one worker and in two, and the overhead of a row."""
    d = 6 if quick else 200
    E, q = catlog.IndeCateR(1), Independent(Bernoulli(logits=torch.zeros(d)), 1)
    points = torch.zeros(20 if quick else 2000, d)
    with ProcessPoolExecutor(1) as single, ProcessPoolExecutor(2) as pair:
        estimates = {n: partial(E, Mapped(sleeps, by), q) for n, by in ((1, single), (2, pair))}
        case = f"f sleeps {1000 * SLEEP:g} ms, {E.evaluations(q)} evaluations"
        rows = compared("mapped", case, seconds_in_turns(estimates, rounds))
        chunks = (1, 16)
        calls = {n: partial(Mapped(itemgetter(0), single, n), points) for n in chunks}
        times = seconds_in_turns(calls, rounds)
    for n in chunks:
        per_row = {1: [time / len(points) for time in times[n]]}
        rows += compared("mapped", f"one row of a function of no cost, chunk={n}", per_row)
    return rows


class Counted:
    """A context that counts messages among ranks, and their bytes."""

    def __enter__(self) -> "Counted":
        self.messages = 0
        self.bytes = 0
        names = (
            "all_reduce",
            "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor",
        )
        self.before = {name: getattr(dist, name) for name in names}

        def counting(function: Any, tensor: Tensor, *rest: Any, **named: Any) -> Any:
            self.messages += 1
            self.bytes += tensor.numel() * tensor.element_size()
            return function(tensor, *rest, **named)

        for name, function in self.before.items():
            setattr(dist, name, partial(counting, function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.before.items():
            setattr(dist, name, function)


def estimates(quick: bool) -> dict[str, tuple[Any, Any, Any]]:
    """Return estimators, functions and distributions by name."""
    torch.manual_seed(0)
    d, batch = (20, 2) if quick else (200, 20)
    images, decoder = torch.rand(batch, 784).round(), mlp(d, 256, 384, 784)
    bits = Independent(Bernoulli(logits=torch.randn(batch, d, requires_grad=True)), 1)
    head = BernoulliCrossEntropy(images)
    length = 8 if quick else 64
    chain = catlog.distributions.MarkovChain(
        torch.zeros(4, requires_grad=True), torch.randn(4, 4, requires_grad=True), length=length
    )
    reward = mlp(length, 1024, 1024, 1)
    indecater, rloo = catlog.IndeCateR(2), catlog.RLOO(16 if quick else 400)

    def black_box(z: Tensor) -> Tensor:
        return head(decoder(z))

    def rewarded(x: Tensor) -> Tensor:
        return reward(x.float()).squeeze(-1)

    return {
        "IndeCateR(2), decoder as a black box": (indecater, black_box, bits),
        "IndeCateR(2), FirstLayerLinear": (indecater, FirstLayerLinear(decoder, head), bits),
        "RLOO(400), decoder": (rloo, black_box, bits),
        f"SCateR(8), chain of {length}": (catlog.SCateR(8), rewarded, chain),
    }


def measured(
    alone: Callable[[], Any], together: Callable[[], Any], rounds: int
) -> tuple[dict[Any, list[float]], Row]:
    """Return the seconds of rank 0 alone and of both ranks together, and the messages of a call."""
    if dist.get_rank() == 0:
        alone()
    with Counted() as counted:
        together()
    times: dict[Any, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        dist.barrier()
        times[1].append(seconds(alone if dist.get_rank() == 0 else dist.barrier))
        if dist.get_rank() == 0:
            dist.barrier()
        times[2].append(seconds(together))
    return times, {"messages": counted.messages, "kib": counted.bytes / 1024}


def on_ranks(rank: int, folder: str, rounds: int, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows: list[Row] = []
    for case, (E, f, q) in estimates(quick).items():

        def estimate(f: Any, E: Any = E, q: Any = q) -> None:
            E(f, q, generator=torch.Generator().manual_seed(0)).sum().backward()

        times, sent = measured(partial(estimate, f), partial(estimate, Sharded(f)), rounds)
        rows += compared("estimate", case, times, evaluations=E.evaluations(q), **sent)
    config = DVAE(variables=8 if quick else 200, batch=8 if quick else 100, gradient_repeats=0)
    for label in ("IndeCateR", "RLOO-S"):
        task = replace(config, estimator=label).task()
        optimiser = adam(task.model.parameters(), 1e-4, task.E, torch.device("cpu"))
        index, half = torch.arange(config.batch), config.batch // 2
        alone = partial(catlog.compiled_step(task.loss, optimiser), index)
        part = index[rank * half : (rank + 1) * half]
        together = partial(catlog.compiled_step(task.loss, optimiser, group=dist.group.WORLD), part)
        times, sent = measured(alone, together, rounds)
        rows += compared("training", f"DVAE, batch {config.batch}, {label}", times, **sent)
    if rank == 0:
        records.write(rows, Path(folder) / "rows.csv", digits=6)
    dist.destroy_process_group()


def ranks(rounds: int, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_ranks, args=(folder, rounds, quick), nprocs=2)
        return records.read(Path(folder) / "rows.csv")


def sweeps(rounds: int, quick: bool) -> list[Row]:
    """Time eight runs, one after another and two at a time, including the start of processes."""
    config = Optimisation(
        iterations=20 if quick else 1000,
        every=10 if quick else 500,
        variables=200,
        estimator="RLOO-F",
    )
    configs = grid(config, ["seed=0,1" if quick else "seed=0,1,2,3,4,5,6,7"])
    ways: dict[str, dict[str, Any]] = {"1": {}}
    if importlib.util.find_spec("ray"):
        ways["2, Ray"] = {"jobs": 2}
    times: dict[Any, list[float]] = {}
    for processes, settings in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            times[processes] = [seconds(partial(sweep, configs, folder, **settings))]
    return compared("sweep", f"{len(configs)} runs of the optimisation", times)


PARTS: dict[str, Callable[[int, bool], list[Row]]] = {
    "mapped": mapped,
    "ranks": ranks,
    "sweeps": sweeps,
}


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=None, help="measurements of every row (11; 2 with --quick)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(PARTS),
        choices=PARTS,
        metavar="PART",
        help=", ".join(PARTS),
    )
    args, table = opened(parser, "scaling/scaling.csv", "section")
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds = args.rounds or (2 if args.quick else 11)
    for name in args.only:
        for section, rows in grouped(PARTS[name](rounds, args.quick), "section").items():
            table.add(rows, section)


if __name__ == "__main__":
    main()
