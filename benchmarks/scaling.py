"""One process against two: a mapped f, and an estimate across ranks.

    python -m benchmarks.scaling    # some minutes on two idle cores; results/scaling/scaling.csv

Every process has one thread. The two sides of a comparison take turns in the same processes; times
are medians over rounds. `messages` and `kib` (bytes that a rank contributes to an all-reduce, or
receives from an all-gather) are counted as they are sent, per call.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
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
from catlog.distributions import MarkovChain
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear, Mapped, Sharded
from catlog.problems.mlp import mlp

from .measuring import Args, Page, Row, Rows, Table, seconds_in_turns, spread

page = Page(__doc__)
KEY = ("section", "case", "processes")
SLEEP = 0.005  # seconds
GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


def compared(section: str, case: str, times: Mapping[Any, list[float]], **more: Any) -> list[Row]:
    """Return a row for every number of processes, with the speedup over the first."""
    alone = median(next(iter(times.values())))
    return [
        {"section": section, "case": case, "processes": n, **spread(seconds)}
        | {"speedup": alone / median(seconds), **(more if n != 1 else {})}
        for n, seconds in times.items()
    ]


def sleeps(point: Any) -> float:
    """Simulate a slow f."""
    time.sleep(SLEEP)
    return float(point.sum())


@page.section("scaling/scaling.csv", *KEY)
def mapped(args: Args, table: Table) -> Rows:
    """Time IndeCateR on an f that sleeps, in one worker and in two, and the overhead of a row."""
    d, rows, rounds = (6, 20, 2) if args.quick else (200, 2000, 11)
    E, q = catlog.IndeCateR(1), Independent(Bernoulli(logits=torch.zeros(d)), 1)
    points, chunks = torch.zeros(rows, d), (1, 16)
    with ProcessPoolExecutor(1) as single, ProcessPoolExecutor(2) as pair:
        estimates = {n: partial(E, Mapped(sleeps, by), q) for n, by in ((1, single), (2, pair))}
        case = f"f sleeps {1000 * SLEEP:g} ms, {E.evaluations(q)} evaluations"
        found = compared("mapped", case, seconds_in_turns(estimates, rounds))
        calls = {n: partial(Mapped(itemgetter(0), single, n), points) for n in chunks}
        times = seconds_in_turns(calls, rounds)
    for n in chunks:
        per_row = {1: [seconds / len(points) for seconds in times[n]]}
        found += compared("mapped", f"one row of a function of no cost, chunk={n}", per_row)
    yield found


def cases(quick: bool) -> dict[str, tuple[Any, Any, Any]]:
    """Return estimators, functions and distributions by name."""
    torch.manual_seed(0)
    d, batch, length, n = (20, 2, 8, 16) if quick else (200, 20, 64, 400)
    decoder, head = mlp(d, 256, 384, 784), BernoulliCrossEntropy(torch.rand(batch, 784).round())
    bits = Independent(Bernoulli(logits=torch.randn(batch, d, requires_grad=True)), 1)
    start, moves = torch.zeros(4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    chain, reward = MarkovChain(start, moves, length=length), mlp(length, 1024, 1024, 1)

    def black_box(z: Tensor) -> Tensor:
        return head(decoder(z))

    def rewarded(x: Tensor) -> Tensor:
        return reward(x.float()).squeeze(-1)

    return {
        "IndeCateR(2), decoder as a black box": (catlog.IndeCateR(2), black_box, bits),
        "IndeCateR(2), FirstLayerLinear": (
            catlog.IndeCateR(2), FirstLayerLinear(decoder, head), bits
        ),
        "RLOO(400), decoder": (catlog.RLOO(n), black_box, bits),
        f"SCateR(8), chain of {length}": (catlog.SCateR(8), rewarded, chain),
    }  # fmt: skip


def on_ranks(rank: int, folder: str, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    sent: list[int] = []

    def counting(function: Callable[..., Any], tensor: Tensor, *rest: Any, **named: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return function(tensor, *rest, **named)

    for name in ("all_reduce", GATHER):
        setattr(dist, name, partial(counting, getattr(dist, name)))
    rows: list[Row] = []
    for case, (E, f, q) in cases(quick).items():

        def estimate(f: Any, E: Any = E, q: Any = q) -> float:
            begin = time.perf_counter()
            E(f, q, generator=torch.Generator().manual_seed(0)).sum().backward()
            return time.perf_counter() - begin

        estimate(f)
        sent.clear()
        estimate(Sharded(f))
        more = {"messages": len(sent), "kib": sum(sent) / 1024, "evaluations": E.evaluations(q)}
        times: dict[Any, list[float]] = {1: [], 2: []}
        for _ in range(2 if quick else 11):
            dist.barrier()
            times[1].append(estimate(f) if rank == 0 else 0.0)
            dist.barrier()
            times[2].append(estimate(Sharded(f)))
        if rank == 0:
            rows += compared("estimate", case, times, **more)
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


@page.section("scaling/scaling.csv", *KEY)
def ranks(args: Args, table: Table) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_ranks, args=(folder, args.quick), nprocs=2)
        yield json.loads(Path(folder, "rows.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    page.run()
