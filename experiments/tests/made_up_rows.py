"""Rows of made-up runs at the paper's full size."""

import math
from typing import Any

import numpy as np

from catlog_experiments.report.claims import MAXIMUM

Row = dict[str, Any]

SIZES = ((12, 3), (6, 10), (3, 100))  # of the paper's gradients: variables, categories
DATA = ("mnist", "fashion-mnist", "omniglot")

BEST = {"IndeCateR": 95.0, "RLOO-F": 94.0, "RLOO-S": 115.0, "GS-F": 100.0, "GS-S": 104.0}
STEP_MS = {"IndeCateR": 1.0, "RLOO-F": 4.0, "RLOO-S": 0.9, "GS-F": 5.0, "GS-S": 0.9}
WELL = {
    "IndeCateR": (0.0, 1e-9),
    "REINFORCE": (0.3, 1e-3),
    "RLOO": (0.06, 1e-4),
    "GS": (0.13, 1e-4),
}


def run_rows(
    experiment: str, method: str, seed: int, points: list[Row], **config: Any
) -> list[Row]:
    """Return the rows of one run."""
    settings = {"experiment": experiment, "estimator": method, "seed": seed, **config}
    return [settings | point for point in points]


def gradients_rows(
    function: str,
    size: tuple[int, int],
    results: dict[str, tuple[float, float]],
    seeds: int = 2,
    **changes: Any,
) -> list[Row]:
    """Return runs of each method with its (cosine distance, variance)."""
    rows = []
    for method, (distance, variance) in results.items():
        last = {
            "iteration": 20,
            "seconds": 1.0,
            "estimates": 1000,
            "evaluations": 25 if method == "IndeCateR" else 1000,
            "cosine_distance": distance,
            "cosine_variance": variance,
            "relative_bias": distance,
            "relative_variance": variance,
        } | changes
        config = {"function": function, "variables": size[0], "categories": size[1], "together": 50}
        points = [{"iteration": 0, "seconds": 0.0}, last]
        for seed in range(seeds):
            rows += run_rows("gradients", method, seed, points, **config)
    return rows


def optimisation_rows(
    method: str, speed: float, noise: float, seeds: int = 3, iterations: int = 2000, ms: float = 1.0
) -> list[Row]:
    """Return runs whose value approaches the maximum at this speed."""
    rows = []
    for seed in range(seeds):
        points = []
        for i in range(0, iterations + 1, iterations // 40):
            gain = 1 - math.exp(-speed * (1 + 0.02 * seed) * i)
            points.append(
                {
                    "iteration": i,
                    "seconds": i * ms / 1000,
                    "value": 0.25 + (MAXIMUM - 0.25) * gain,
                    "gradient_variance": noise,
                    "gradient_spread": noise + 1e-12,
                }
            )
        rows += run_rows("optimisation", method, seed, points, variables=200, update="own")
    return rows


def dvae_rows(
    data: str,
    method: str,
    limit: float,
    ms: float,
    epochs: int = 100,
    categories: int = 2,
    rise: float = 0.0,
    seeds: int = 2,
    variance: float = 1.0,
) -> list[Row]:
    """Return runs whose bound falls to ``limit``.

    The test bound rises by ``rise`` / 2 in the second half.
    """
    per_epoch = 192 if data == "omniglot" else 600
    rows = []
    for seed in range(seeds):
        points = []
        for epoch in np.linspace(0, epochs, 41):
            train = limit + 400 * math.exp(-epoch / 3) + 40 * math.exp(-epoch / 30) + 0.1 * seed
            point = {
                "iteration": round(epoch * per_epoch),
                "seconds": epoch * per_epoch * ms / 1000,
                "epoch": float(epoch),
                "test": train + 5 + rise * max(0.0, epoch / epochs - 0.5),
                "gradient_variance": variance * (1 + 0.1 * seed),
                "gradient_spread": 0.004 * variance,
            }
            points.append(point | ({"train": train} if epoch else {}))
        config = {"data": data, "variables": 200, "categories": categories}
        rows += run_rows("dvae", method, seed, points, **config)
    return rows


def addition_rows(
    digits: int,
    method: str,
    accuracy: float | list[float],
    epochs: int = 100,
    seeds: int = 3,
    data: str = "mnist",
) -> list[Row]:
    """Return runs that end at this accuracy, or each at one of a list."""
    if not isinstance(accuracy, list):
        accuracy = [accuracy + 0.002 * seed for seed in range(seeds)]
    rows = []
    for seed, last in enumerate(accuracy):
        points = [
            {
                "iteration": 375 * epoch,
                "seconds": 0.1 * epoch,
                "epoch": float(epoch),
                "accuracy": last * (1 - math.exp(-epoch / 4)) if epoch < epochs else last,
                "digit_accuracy": 0.99,
            }
            for epoch in range(epochs + 1)
        ]
        rows += run_rows("addition", method, seed, points, digits=digits, data=data)
    return rows


def paper_rows() -> list[Row]:
    """Return all experiments at the paper's sizes, with numbers that support its claims."""
    rows = []
    results = {
        "IndeCateR": (1e-15, 1e-31),
        "REINFORCE": (0.3, 2e-3),
        "RLOO": (0.06, 6e-5),
        "GS": (0.13, 1e-4),
    }
    for size in SIZES:
        rows += gradients_rows("additive", size, results)
        rows += gradients_rows("pairwise", size, results | {"IndeCateR": (0.01, 1e-6)})
    speeds = {"IndeCateR": 0.02, "RLOO-F": 0.015, "RLOO-S": 0.003, "GS-F": 0.0001}
    for method, speed in speeds.items():
        rows += optimisation_rows(method, speed, 0.0 if method == "IndeCateR" else 1e-9)
    for data in DATA:
        for method, limit in BEST.items():
            variance = 2.0 if method.endswith("-S") else 0.9 if method == "GS-F" else 1.0
            rows += dvae_rows(data, method, limit, STEP_MS[method], rise=4.0, variance=variance)
    limits = {"IndeCateR-D": 230.0, "IndeCateR": 231.0, "RLOO-F": 229.5, "GS-F": 240.0}
    for method, limit in limits.items():
        ms = 2.0 if "Inde" in method else 9.0
        rows += dvae_rows("fashion-mnist", method, limit, ms, categories=10)
    shares = {"IndeCateR": 0.5, "IndeCateR-D": 1.0, "RLOO-F": 0.6, "RLOO-S": 0.1}
    for digits in (4, 8, 12, 16, 24, 32):
        for method, share in shares.items():
            rows += addition_rows(digits, method, share * 0.99**digits)
    return rows


PAPER = paper_rows()
