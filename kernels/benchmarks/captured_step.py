"""Are the kernels worth their lines? The whole captured training step, with them and without.

    PYTHONPATH=kernels/src python -m kernels.benchmarks.captured_step    # results/speed/kernels.csv

IndeCateR(2) on the paper's autoencoder (200 bits, batch 100, Adam, products in TF32) on a GPU. The
step is compiled and captured with the Triton kernels, with the table of f in plain torch, and with
f as a black box. They take turns of 200 steps; `ms` is the median of a step over 9 turns, `ratio`
the time of the black box over this one.
"""

import argparse
import csv
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from benchmarks.race import Autoencoder

import catlog

TURNS, STEPS = 9, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/speed/kernels.csv"))
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    images = (torch.rand(100, 784) < 0.2).float().cuda()
    index = torch.arange(100, device="cuda")
    E = catlog.IndeCateR(2)
    steps = {
        "with the kernels": Autoencoder(E, images).step,
        "the table in plain torch": Autoencoder(E, images).step,
        "f as a black box": Autoencoder(lambda f, q: E(lambda x: f(x), q), images).step,
    }
    for name, step in steps.items():
        without = patch("catlog.functions.first_layer_linear.catlog_kernels", None)
        with nullcontext() if name == "with the kernels" else without:
            for _ in range(3):
                step(index)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step(index)
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - begin) / STEPS)
    ms = {name: 1000 * median(times) for name, times in seconds.items()}
    device = torch.cuda.get_device_name()
    rows = [
        {"step": name, "ms": f"{value:.4f}", "ratio": f"{ms['f as a black box'] / value:.3f}"}
        | {"mode": steps[name].mode, "device": device, "torch": torch.__version__}
        for name, value in ms.items()
    ]
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
