"""Are the kernels worth their lines? The whole captured training step, with them and without.

    PYTHONPATH=kernels/src python -m kernels.benchmarks.captured_step    # results/speed/kernels.csv

IndeCateR(2) on the paper's autoencoder (200 bits, batch 100, Adam, products in TF32) on a GPU. The
step is compiled and captured with the Triton kernels, with the table of f in plain torch, and with
f as a black box. Each has a process of its own; all compile at once, then they take turns of 400
steps. `ms` is the median of a step over 9 turns, `ratio` the time of the black box over this one.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from benchmarks.measuring import Table
from benchmarks.race import Autoencoder

import catlog
from catlog.functions import first_layer_linear

KERNELS, PLAIN, BLACK_BOX = "with the kernels", "the table in plain torch", "f as a black box"
TURNS, STEPS = 9, 400


def trainer(link: Any, name: str) -> None:
    """Compile a step, say how it runs, and send the milliseconds of a step as often as asked."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if name == PLAIN:
        first_layer_linear.catlog_kernels = None  # type: ignore[assignment]
    images = (torch.rand(100, 784) < 0.2).float().cuda()
    index = torch.arange(100, device="cuda")
    E: Any = catlog.IndeCateR(2)
    if name == BLACK_BOX:
        E = lambda f, q: catlog.IndeCateR(2)(lambda x: f(x), q)  # noqa: E731
    task = Autoencoder(E, images)
    step = catlog.compiled_step(task.loss, task.optimiser)
    for _ in range(5):
        step(index)
    torch.cuda.synchronize()
    link.send(step.mode)
    while link.recv():
        begin = time.perf_counter()
        for _ in range(STEPS):
            step(index)
        torch.cuda.synchronize()
        link.send(1000 * (time.perf_counter() - begin) / STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/speed/kernels.csv"))
    args = parser.parse_args()
    context, links = torch.multiprocessing.get_context("spawn"), {}
    for name in (KERNELS, PLAIN, BLACK_BOX):
        links[name], end = context.Pipe()
        context.Process(target=trainer, args=(end, name), daemon=True).start()
    modes = {name: link.recv() for name, link in links.items()}
    times: dict[str, list[float]] = {name: [] for name in links}
    for _ in range(TURNS):
        for name, link in links.items():
            link.send(True)
            times[name].append(link.recv())
    for link in links.values():
        link.send(None)
    ms = {name: median(values) for name, values in times.items()}
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = [
        {"step": name, "ms": value, "ratio": ms[BLACK_BOX] / value, "mode": modes[name], **about}
        for name, value in ms.items()
    ]
    Table(args.out, ("step",)).add(rows)


if __name__ == "__main__":
    main()
