"""Rows of made-up runs at the paper's full size."""

import math
from typing import Any

import numpy as np

from catlog_experiments.report.runs import MAXIMUM

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
EXACT = {"IndeCateR": (1e-15, 1e-31), "REINFORCE": (0.3, 2e-3), "RLOO": (0.06, 6e-5)}


def run_rows(
    experiment: str, method: str, seed: int, points: list[Row], **config: Any
) -> list[Row]:
    """Return the rows of one run."""
    settings = {"experiment": experiment, "estimator": method, "seed": seed, **config}
    return [settings | point for point in points]


def points(**columns: Any) -> list[Row]:
    """Return the points of a run from its columns; a number stands for a constant column."""
    count = len(columns["iteration"])
    lists = [value if np.ndim(value) else [value] * count for value in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def gradients_rows(
    function: str,
    size: tuple[int, int],
    results: dict[str, tuple[float, float]],
    seeds: int = 2,
    **changes: Any,
) -> list[Row]:
    """Return runs of each method with its (cosine distance, variance)."""
    config = {"function": function, "variables": size[0], "categories": size[1], "together": 50}
    rows = []
    for method, (distance, variance) in results.items():
        last = {"iteration": 20, "seconds": 1.0, "estimates": 1000}
        last |= {"evaluations": 25 if method == "IndeCateR" else 1000}
        last |= {"cosine_distance": distance, "cosine_variance": variance}
        last |= {"relative_bias": distance, "relative_variance": variance}
        for seed in range(seeds):
            ends = [{"iteration": 0, "seconds": 0.0}, last | changes]
            rows += run_rows("gradients", method, seed, ends, **config)
    return rows


def optimisation_rows(method: str, speed: float, noise: float, seeds: int = 3) -> list[Row]:
    """Return runs whose value approaches the maximum at this speed."""
    rows, iteration = [], range(0, 2001, 50)
    for seed in range(seeds):
        gains = [1 - math.exp(-speed * (1 + 0.02 * seed) * i) for i in iteration]
        run = points(
            iteration=iteration,
            seconds=[i * 1.0 / 1000 for i in iteration],
            value=[0.25 + (MAXIMUM - 0.25) * gain for gain in gains],
            gradient_variance=noise,
            gradient_spread=noise + 1e-12,
        )
        rows += run_rows("optimisation", method, seed, run, variables=200, update="own")
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
    steps = np.linspace(0, epochs, 41)
    per_epoch = 192 if data == "omniglot" else 600
    rows = []
    for seed in range(seeds):
        train = [
            limit + 400 * math.exp(-e / 3) + 40 * math.exp(-e / 30) + 0.1 * seed for e in steps
        ]
        late = [rise * max(0.0, epoch / epochs - 0.5) for epoch in steps]
        run = points(
            iteration=[round(epoch * per_epoch) for epoch in steps],
            seconds=[epoch * per_epoch * ms / 1000 for epoch in steps],
            epoch=steps.tolist(),
            test=[bound + 5 + more for bound, more in zip(train, late, strict=True)],
            gradient_variance=variance * (1 + 0.1 * seed),
            gradient_spread=0.004 * variance,
            train=[None, *train[1:]],
        )
        config = {"data": data, "variables": 200, "categories": categories}
        rows += run_rows("dvae", method, seed, run, **config)
    return rows


def addition_rows(
    digits: int, method: str, accuracy: float | list[float], epochs: int = 100, seeds: int = 3
) -> list[Row]:
    """Return runs that end at this accuracy, or each at one of a list."""
    if not isinstance(accuracy, list):
        accuracy = [accuracy + 0.002 * seed for seed in range(seeds)]
    rows = []
    for seed, last in enumerate(accuracy):
        steps = range(epochs + 1)
        run = points(
            iteration=[375 * epoch for epoch in steps],
            seconds=[0.1 * epoch for epoch in steps],
            epoch=[float(epoch) for epoch in steps],
            accuracy=[*(last * (1 - math.exp(-epoch / 4)) for epoch in steps[:-1]), last],
            digit_accuracy=0.99,
        )
        rows += run_rows("addition", method, seed, run, digits=digits, data="mnist")
    return rows


def paper_rows() -> list[Row]:
    """Return all experiments at the paper's sizes, with numbers that support its claims."""
    rows = []
    for size in SIZES:
        results = EXACT | {"GS": (0.13, 1e-4)}
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
