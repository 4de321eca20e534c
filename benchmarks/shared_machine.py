"""Does black-box IndeCateR keep its lead where other programs use the cores?

    python -m benchmarks.shared_machine      # five minutes; writes results/speed/shared_machine.csv

One step of the paper's autoencoder at its decoder, batch 50: value and gradient of IndeCateR with
two draws, f a black box, beside the paper's literal formula. The rows are the numbers of
evaluations at once (`chunk_size`; "default" is the library's choice), with as many threads as cores
and with one. `busy` says how many endless loops run beside it, in processes of their own. `waiting`
says what a thread does that waits for the others: it spins for a while (torch's default), or it
sleeps (OMP_WAIT_POLICY=passive; a process has to be started with it). In every round all rows of a
process take turns; `ms` is the median, `ratio` the median over the rounds of the literal
formula's time over this one's, with as many threads. `load` is the machine's load average before
the loops start. With other work on the machine the rows are busier than they say.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.functions import BernoulliCrossEntropy
from catlog.problems.mlp import mlp

from .command_line import opened, table_parser
from .speed.literal import literal_indecater
from .tables import Row
from .turns import median_ratio, seconds_in_turns

LITERAL = "literal formula"
WAITING = {"spins": {}, "sleeps": {"OMP_WAIT_POLICY": "passive"}}
METHODS: dict[str, int | None] = {"default": None, "1024": 1024, "8192": 8192, "16384": 16384}


def steps_of_methods(batch: int, variables: int) -> dict[str, Callable[[], None]]:
    """Return the steps of all methods, with the same decoder and images."""
    torch.manual_seed(0)
    decoder = mlp(variables, 256, 384, 784)
    head = BernoulliCrossEntropy(torch.rand(batch, 784).round())
    logits = torch.randn(batch, variables, requires_grad=True)

    def step(estimate: Callable[..., Tensor]) -> None:
        q = Independent(Bernoulli(logits=logits), 1)
        estimate(lambda z: head(decoder(z)), q).mean().backward()

    steps = {LITERAL: partial(step, literal_indecater)}
    for name, size in METHODS.items():
        steps[f"IndeCateR, {name}"] = partial(step, catlog.IndeCateR(2, chunk_size=size))
    return steps


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run endless loops in other processes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(waiting: str, busy: int, rounds: int, batch: int, variables: int) -> list[Row]:
    """Return a row per number of threads and method, in a process with this way of waiting."""
    cores = os.cpu_count() or 1
    steps = steps_of_methods(batch, variables)
    keys = [(threads, name) for threads in sorted({1, cores}) for name in steps]

    def call(threads: int, name: str) -> None:
        torch.set_num_threads(threads)
        steps[name]()

    load = os.getloadavg()[0]
    with busy_loops(busy):
        times = seconds_in_turns({key: partial(call, *key) for key in keys}, rounds)
    rows = []
    for threads, name in keys:
        ratio = median_ratio(times[threads, LITERAL], times[threads, name])
        row: Row = {"waiting": waiting, "busy": busy, "cores": cores}
        row |= {"threads": threads, "method": name}
        row["ms"] = 1000 * median(times[threads, name])
        rows.append(row | {"ratio": ratio, "rounds": rounds, "load": load})
    return rows


def main() -> None:
    parser = table_parser(__doc__, quick=False, rounds=11, batch=50, variables=200)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1], help="numbers of loops")
    parser.add_argument("--waiting", choices=list(WAITING), help="only this, in this process")
    key = ("waiting", "busy", "threads", "method")
    options, table = opened(parser, "speed/shared_machine.csv", *key)
    if options.waiting is None:
        command = [sys.executable, "-m", "benchmarks.shared_machine", *sys.argv[1:]]
        for name, settings in WAITING.items():
            environment = os.environ | settings
            subprocess.run([*command, "--waiting", name], env=environment, check=True)
        return
    for busy in options.busy:
        rows = measure(options.waiting, busy, options.rounds, options.batch, options.variables)
        table.add(rows, f"{busy} busy loops, a waiting thread {options.waiting}")


if __name__ == "__main__":
    main()
