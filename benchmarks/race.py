"""Which estimator trains the MNIST autoencoder soonest to a negated train ELBO of 100? In wall time, on one device.

    python benchmarks/race.py --device cuda                     # writes results/speed/race_cuda.csv; about 15 minutes of an H200
    python benchmarks/race.py --device cuda --methods SlopeCateR-4 GS-S --seeds 0

Every method trains alone on the device, the same model from the same start with the same batches (see `catlog run dvae`), its
step compiled and captured in a CUDA graph. The clock runs for training steps only: not while the step is compiled (column
`setup`, in seconds), nor during the measurement of the bound over all training images (one draw each) every 600 steps, an epoch.
A run ends when it has reached the target, or after `--limit` seconds of training. The file has the curves; runs that it has are
not made again. A summary is printed at the end. "SlopeCateR-8" has 8 draws and keeps no sizes of slopes (slope_entries=0); with "sizes"
it does, which is the default.
"""

import argparse
import csv
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from catlog.experiments import DVAE, records
from catlog.experiments.dvae import DVAETask

ROOT = Path(__file__).parent.parent
Row = dict[str, Any]
COLUMNS = ("method", "seed", "step", "seconds", "train", "test", "setup", "device", "torch")


@dataclass(frozen=True)
class Racer:
    label: str
    settings: dict[str, Any] = field(default_factory=dict)


RACERS = {
    "SlopeCateR-8": Racer("SlopeCateR", {"samples": 8, "options": ("slope_entries=0",)}),
    "SlopeCateR-4": Racer("SlopeCateR", {"samples": 4, "options": ("slope_entries=0",)}),
    "SlopeCateR-8, sizes": Racer("SlopeCateR", {"samples": 8}),
    "GS-S": Racer("GS-S"),
    "IndeCateR": Racer("IndeCateR"),
    "IndeCateR-Latin": Racer("IndeCateR-Latin"),
    "IndeCateR-Taylor": Racer("IndeCateR-Taylor"),
    "RLOO-S": Racer("RLOO-S"),
    "RLOO-F": Racer("RLOO-F"),
    "GS-F": Racer("GS-F"),
}


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(name: str, seed: int, given: argparse.Namespace) -> list[Row]:
    """The curve of one run, a row per measurement."""
    racer = RACERS[name]
    torch.manual_seed(seed)
    begin = now(given.device)
    settings = {
        "data": given.data,
        "device": given.device,
        "seed": seed,
        "gradient_repeats": 0,
    } | racer.settings
    task = DVAETask(DVAE(estimator=racer.label, **settings))
    start = {"step": 0, "seconds": 0.0, **measured(task)}
    task.step(0)  # compiles; its own time is taken to be that of the steps after it
    setup = now(given.device) - begin
    curve, seconds, i = [start], 0.0, 1
    while curve[-1]["train"] > given.target and seconds < given.limit:
        before, first = now(given.device), i
        while i % given.every or i == first:
            task.step(i)
            i += 1
        took = now(given.device) - before
        seconds += took * (1 + 1 / (i - first)) if first == 1 else took
        curve.append({"step": i, "seconds": seconds, **measured(task)})
    where = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    common = {
        "method": name,
        "seed": seed,
        "setup": setup,
        "device": where,
        "torch": torch.__version__,
    }
    return [common | row for row in curve]


def measured(task: DVAETask) -> dict[str, float]:
    return {"train": task.mean_bound(task.train, 1), "test": task.mean_bound(task.test, 1)}


def curves(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """By method and seed."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return found


def reached(curve: list[Row], target: float) -> float | None:
    """Seconds of training until the bound was reached, between two measurements by a straight line."""
    for one, two in pairwise(curve):
        if two["train"] <= target < one["train"]:
            share = (one["train"] - target) / (one["train"] - two["train"])
            return float(one["seconds"] + share * (two["seconds"] - one["seconds"]))
    return None


def step_ms(each: dict[int, list[Row]]) -> float:
    return mean(1000 * curve[-1]["seconds"] / curve[-1]["step"] for curve in each.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--methods", nargs="*", default=list(RACERS), choices=list(RACERS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=100.0)
    parser.add_argument("--every", type=int, default=600, help="steps between measurements")
    parser.add_argument(
        "--limit", type=float, default=30.0, help="seconds of training, after which a run gives up"
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    output: Path = given.output or ROOT / "results" / "speed" / f"race_{given.device}.csv"
    output.parent.mkdir(parents=True, exist_ok=True)
    known = records.read(output) if output.exists() else []
    done = {(row["method"], row["seed"]) for row in known}
    with output.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for seed in given.seeds:
            for name in given.methods:
                if (name, seed) in done:
                    continue
                curve = race(name, seed, given)
                at = reached(curve, given.target)
                told = (
                    f"{at:.2f} s"
                    if at is not None
                    else f"not in {curve[-1]['seconds']:.1f} s ({curve[-1]['train']:.2f})"
                )
                print(
                    f"{name:18} seed {seed}: {told}, {curve[-1]['step']} steps, set-up {curve[-1]['setup']:.1f} s",
                    flush=True,
                )
                writer.writerows(
                    {
                        key: f"{cell:.6g}" if isinstance(cell, float) else cell
                        for key, cell in row.items()
                    }
                    for row in curve
                )
                file.flush()
    for name, each in curves(records.read(output)).items():
        times = [reached(curve, given.target) for curve in each.values()]
        told = ", ".join("-" if time is None else f"{time:.2f}" for time in times)
        last = mean(curve[-1]["step"] for curve in each.values())
        lowest = mean(min(row["train"] for row in curve) for curve in each.values())
        print(
            f"{name:20}{step_ms(each):8.4f} ms/step{last:9.0f} steps  target after {told} s; lowest {lowest:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
