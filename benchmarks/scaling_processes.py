"""One process against two: a black-box f in a pool, one estimate across ranks, a training step on divided batches, a sweep.

    python benchmarks/scaling_processes.py               # some minutes on two idle cores, which it needs: nothing else may run
    python benchmarks/scaling_processes.py --only pool   # a part; what the file has of the others is kept
    python benchmarks/scaling_processes.py --docs        # the tables of docs/scaling.md anew, from results/scaling/scaling.csv

Every process has one thread. The two sides of a comparison are measured in turn, in the same processes; medians of the rounds.
Messages are counted as they are sent: `messages` and `kib` (bytes that a rank contributes to an all-reduce, or receives from an
all-gather) per call. Ray's row is there where Ray is installed.
"""

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
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
from catlog.experiments import DVAE, Optimisation, records
from catlog.experiments.sweep import grid, sweep
from catlog.experiments.training import adam
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear, Pool, Sharded
from catlog.problems.mlp import mlp
from speed import between, markdown, show

ROOT = Path(__file__).parent.parent
FILE, PAGE = ROOT / "results" / "scaling" / "scaling.csv", ROOT / "docs" / "scaling.md"
SECTIONS = ("pool", "overhead", "estimate", "training", "sweep")
SLEEP = 0.005
NVLINK, NETWORK = (
    450,
    50,
)  # GB/s in one direction, nominal: NVLink of an H200, an adapter of 400 Gbit/s
HOP_INSIDE, HOP_ACROSS = 0.003, 0.02  # ms of latency, assumed
Row = dict[str, Any]


def compared(section: str, case: str, times: dict[Any, list[float]], **more: Any) -> list[Row]:
    """A row for every number of processes; `speedup`: over the first one."""
    rows = []
    for processes, seconds in times.items():
        ms = [1000 * second for second in seconds]
        speedup = median(next(iter(times.values()))) / median(seconds)
        row = {
            "section": section,
            "case": case,
            "processes": processes,
            "ms": median(ms),
            "ms_min": min(ms),
            "ms_max": max(ms),
        }
        rows.append({**row, "speedup": speedup, **(more if processes != 1 else {})})
    return rows


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def sleeps(point: Any) -> float:
    """A simulator that takes its time."""
    time.sleep(SLEEP)
    return float(point.sum())


def pool(rounds: int, quick: bool) -> list[Row]:
    """IndeCateR on an f that sleeps, in one worker and in two; then a function of no cost, for what a row costs."""
    d = 6 if quick else 200
    E, q = catlog.IndeCateR(1), Independent(Bernoulli(logits=torch.zeros(d)), 1)
    with Pool(sleeps, 1) as one, Pool(sleeps, 2) as two, Pool(itemgetter(0), 1) as free:
        times: dict[Any, list[float]] = {1: [], 2: []}
        for f in (one, two, free):
            E(f, q)  # started
        for _ in range(rounds):
            times[1].append(seconds(lambda: E(one, q)))
            times[2].append(seconds(lambda: E(two, q)))
        rows = compared(
            "pool", f"f sleeps {1000 * SLEEP:g} ms, {E.evaluations(q)} evaluations", times
        )
        points = torch.zeros(20 if quick else 2000, d)
        per_row = {1: [seconds(lambda: free(points)) / len(points) for _ in range(rounds)]}
        return rows + compared("overhead", "one row of a function of no cost", per_row)


class Counted:
    """Counts messages among ranks, and their bytes."""

    def __enter__(self) -> "Counted":
        self.messages, self.bytes = 0, 0
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
    """Estimators, functions and laws."""
    torch.manual_seed(0)
    d, batch = (20, 2) if quick else (200, 20)
    images, decoder = torch.rand(batch, 784).round(), mlp(d, 256, 384, 784)
    bits = Independent(Bernoulli(logits=torch.randn(batch, d, requires_grad=True)), 1)
    head = BernoulliCrossEntropy(images)
    length = 8 if quick else 64
    chain = catlog.MarkovChain(
        torch.zeros(4, requires_grad=True), torch.randn(4, 4, requires_grad=True), length=length
    )
    reward = mlp(length, 1024, 1024, 1)
    return {
        "IndeCateR(2), decoder as a black box": (
            catlog.IndeCateR(2),
            lambda z: head(decoder(z)),
            bits,
        ),
        "IndeCateR(2), FirstLayerLinear": (
            catlog.IndeCateR(2),
            FirstLayerLinear(decoder, head),
            bits,
        ),
        "RLOO(400), decoder": (catlog.RLOO(16 if quick else 400), lambda z: head(decoder(z)), bits),
        f"SCateR(8), chain of {length}": (
            catlog.SCateR(8),
            lambda x: reward(x.float()).squeeze(-1),
            chain,
        ),
    }


def measured(
    alone: Callable[[], Any], together: Callable[[], Any], rounds: int
) -> tuple[dict[Any, list[float]], Counted]:
    """Seconds of rank 0 alone, while the other waits, and of both together; and the messages of one call, which is not timed."""
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
    return times, counted


def on_ranks(rank: int, folder: str, rounds: int, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows: list[Row] = []
    for case, (E, f, q) in estimates(quick).items():

        def estimate(f: Any, E: Any = E, q: Any = q) -> None:
            E(f, q, generator=torch.Generator().manual_seed(0)).sum().backward()

        times, counted = measured(partial(estimate, f), partial(estimate, Sharded(f)), rounds)
        kib = counted.bytes / 1024
        rows += compared(
            "estimate",
            case,
            times,
            evaluations=E.evaluations(q),
            messages=counted.messages,
            kib=kib,
        )
    config = DVAE(variables=8 if quick else 200, batch=8 if quick else 100, gradient_repeats=0)
    for label in ("IndeCateR", "RLOO-S"):
        task = replace(config, estimator=label).task()
        optimiser = adam(task.model.parameters(), 1e-4, task.E, torch.device("cpu"))
        index, half = torch.arange(config.batch), config.batch // 2
        alone = partial(catlog.compiled_step(task.loss, optimiser), index)
        part = index[rank * half : (rank + 1) * half]
        together = partial(catlog.compiled_step(task.loss, optimiser, group=dist.group.WORLD), part)
        times, counted = measured(alone, together, rounds)
        kib = counted.bytes / 1024
        rows += compared(
            "training",
            f"DVAE, batch {config.batch}, {label}",
            times,
            messages=counted.messages,
            kib=kib,
        )
    if rank == 0:
        records.write(rows, Path(folder) / "rows.csv", digits=6)
    dist.destroy_process_group()


def ranks(rounds: int, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_ranks, args=(folder, rounds, quick), nprocs=2)
        return records.read(Path(folder) / "rows.csv")


def sweeps(rounds: int, quick: bool) -> list[Row]:
    """Eight runs, one after another and two at a time; the start of the processes counts."""
    config = Optimisation(
        iterations=20 if quick else 1000,
        every=10 if quick else 500,
        variables=200,
        estimator="RLOO-F",
    )
    configs = grid(config, ["seed=0,1" if quick else "seed=0,1,2,3,4,5,6,7"])
    ways: dict[str, dict[str, Any]] = {"1": {}, "2": {"jobs": 2}}
    if importlib.util.find_spec("ray"):
        ways["2, Ray"] = {"jobs": 2, "engine": "ray"}
    times: dict[Any, list[float]] = {}
    for processes, settings in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            times[processes] = [seconds(partial(sweep, configs, folder, **settings))]
    return compared("sweep", f"{len(configs)} runs of the optimisation", times)


def page(rows: list[Row], text: str) -> str:
    """docs/scaling.md with the tables and the numbers in its arithmetic filled in."""
    names = (
        "case",
        "processes",
        "evaluations",
        "ms",
        "ms_min",
        "ms_max",
        "speedup",
        "messages",
        "kib",
    )
    for section in SECTIONS:
        some = [
            {name: row.get(name) for name in names} for row in rows if row["section"] == section
        ]
        text = between(text, section, markdown(some) if some else "Not measured yet.")
    return between(text, "expectations", expectations(rows))


def expectations(rows: list[Row]) -> str:
    """What to expect of more processes: arithmetic with what was measured on two cores and on one GPU, and nominal links."""
    cuda = {
        row["method"]: row["ms"]
        for row in records.read(ROOT / "results" / "speed" / "speed_dvae_cuda.csv")
    }
    step, fixed = cuda["IndeCateR, first-layer-linear"], cuda["RLOO-S"]
    training = next(row for row in rows if row["section"] == "training" and row["kib"])
    black_box = next(row for row in rows if row["section"] == "estimate" and row["kib"])
    row_ms = next(row["ms"] for row in rows if row["section"] == "overhead")
    mb = training["kib"] * 1024 / 1e6
    ring = f"2 * 7/8 * {mb:.2f} MB"  # what every link of a ring of 8 carries
    inside, across = 14 / 8 * mb / NVLINK + 14 * HOP_INSIDE, 14 / 8 * mb / NETWORK + 14 * HOP_ACROSS
    strong = fixed + (step - fixed) / 8 + inside
    table = {
        "all-reduce of 8 GPUs in a node": (
            f"{ring} / {NVLINK} GB/s + 14 * {HOP_INSIDE} ms",
            f"{inside:.3f} ms",
        ),
        "the paper's batch, divided by 8": (
            f"{fixed:.3f} + ({step:.3f} - {fixed:.3f}) / 8 + {inside:.3f} ms",
            f"{strong:.2f} ms, {step / strong:.1f} times as fast",
        ),
        "8 times the paper's batch": (
            f"{step:.3f} / ({step:.3f} + {inside:.3f})",
            f"{step / (step + inside):.0%} of 8 times",
        ),
        "all-reduce of 8 such nodes, besides": (
            f"2 * 7/8 * {mb:.2f} MB / {NETWORK} GB/s + 14 * {HOP_ACROSS} ms",
            f"{across:.2f} ms",
        ),
        "64 times the paper's batch": (
            f"{step:.3f} / ({step:.3f} + {inside:.3f} + {across:.3f})",
            f"{step / (step + inside + across):.0%} of 64 times",
        ),
        "values of the estimate above": (
            f"{black_box['evaluations']} evaluations * 20 batch elements * 4 bytes",
            f"{black_box['evaluations'] * 80 / 1024:.1f} KiB, counted {black_box['kib']:.1f}",
        ),
        "values of 10^6 evaluations, many nodes": (
            f"4 MB / {NETWORK} GB/s",
            f"{4 / NETWORK:.2f} ms",
        ),
        "10^6 evaluations of 1 ms on 8, on 64 GPUs": ("1000 s / 8, 1000 s / 64", "125 s, 15.6 s"),
        "workers that one pool keeps busy, rows of 5 ms": (
            f"5 ms / {row_ms:.2g} ms",
            f"{5 / row_ms:.0f}",
        ),
        "and rows of 1 s": (f"1000 ms / {row_ms:.2g} ms", f"about {round(1000 / row_ms, -3):.0f}"),
    }
    return markdown(
        [
            {"what": what, "arithmetic": how, "expected": result}
            for what, (how, result) in table.items()
        ]
    )


PARTS: dict[str, Callable[[int, bool], list[Row]]] = {
    "pool": pool,
    "ranks": ranks,
    "sweeps": sweeps,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes and no files but to a given --output, for the tests",
    )
    parser.add_argument(
        "--output", type=Path, default=None, help=f"the file; {FILE.name} in results/"
    )
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing; write the tables of the page anew"
    )
    args = parser.parse_args()
    if args.docs:
        PAGE.write_text(
            page(records.read(FILE), PAGE.read_text(encoding="utf-8")), encoding="utf-8"
        )
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    rounds = args.rounds or (2 if args.quick else 11)
    output = args.output or (None if args.quick else FILE)
    rows: list[Row] = records.read(output) if output and output.exists() else []
    for name in args.only:
        new = PARTS[name](rounds, args.quick)
        measured = list(dict.fromkeys(row["section"] for row in new))
        for section in measured:
            show(section, [row for row in new if row["section"] == section])
        rows = [row for row in rows if row["section"] not in measured] + new
        if output:
            records.write(rows, output, digits=4)


if __name__ == "__main__":
    main()
