"""Rows of made-up runs."""

from itertools import product
from typing import Any

Row = dict[str, Any]


def rows(experiment: str, method: str, seeds: Any = 2, **columns: Any) -> list[Row]:
    """Return the runs of a method: a list is a column, and other values are constant.

    A column of lists has a value per point and seed.
    """
    seeds, count = range(seeds) if isinstance(seeds, int) else seeds, len(columns["iteration"])
    run = {"experiment": experiment, "estimator": method}
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    result = []
    for seed, i in product(seeds, range(count)):
        point = {name: column[i] for name, column in lists.items()}
        point = {n: v[seed] if isinstance(v, list) else v for n, v in point.items()}
        result.append(run | columns | point | {"seed": seed})
    return result


def addition(method: str, accuracy: Any, epochs: int = 2, seeds: Any = 2, **more: Any) -> list[Row]:
    """Return runs that reach an accuracy (or each one of a list) after half of the epochs."""
    times = range(epochs + 1)
    columns = {"iteration": [375 * epoch for epoch in times], "epoch": [1.0 * e for e in times]}
    columns["seconds"] = [0.1 * epoch for epoch in times]
    columns["accuracy"] = [accuracy if 2 * epoch >= epochs else 0.0 for epoch in times]
    settings = {"digits": 4, "data": "mnist", "digit_accuracy": 0.99}
    return rows("addition", method, seeds, **{**settings, **columns, **more})


def dvae(method: str, limit: float = 100.0, ms: float = 1.0, **more: Any) -> list[Row]:
    """Return runs of 100 epochs whose bound falls from 500."""
    times = [0, 6000, 30_000, 60_000]
    columns: dict[str, Any] = {"iteration": times, "epoch": [time / 600 for time in times]}
    columns["seconds"] = [time * ms / 1000 for time in times]
    columns |= {
        "train": [None, limit + 20, limit + 5, limit],
        "test": [500, limit + 20, limit + 5, limit],
    }
    columns |= {"gradient_variance": 1.0, "gradient_spread": 1.0}
    settings = {"data": "mnist", "variables": 200, "categories": 2}
    return rows("dvae", method, **{**settings, **columns, **more})


def optimisation(method: str, steps: float, noise: float = 1e-9, **more: Any) -> list[Row]:
    """Return runs that cover 90 % after this many steps, or never."""
    times = list(range(0, 2001, 50))
    columns: dict[str, Any] = {"iteration": times, "seconds": [time / 1000 for time in times]}
    columns["value"] = [0.25 + 0.001 * (time >= steps) for time in times]
    columns |= {"gradient_variance": noise, "gradient_spread": 1e-12}
    settings = {"variables": 200, "update": "own"}
    return rows("optimisation", method, **{**settings, **columns, **more})


def gradients(method: str, distance: float, variance: float, **more: Any) -> list[Row]:
    """Return runs of a thousand estimates."""
    columns: dict[str, Any] = {"iteration": [0, 20], "seconds": [0.0, 1.0]}
    columns |= {name: [None, distance] for name in ("cosine_distance", "relative_bias")}
    columns |= {name: [None, variance] for name in ("cosine_variance", "relative_variance")}
    columns |= {"estimates": [None, 1000], "together": 50}
    columns["evaluations"] = [None, 25 if method == "IndeCateR" else 1000]
    settings = {"function": "additive", "variables": 12, "categories": 3}
    return rows("gradients", method, **{**settings, **columns, **more})
