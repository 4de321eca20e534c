"""Numbers that the paper's code reported, to be set beside a reproduction: published.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = "ML-KULeuven/catlog at 367a4d0"


@dataclass(frozen=True)
class Curve:
    """Points of a published curve.

    Attributes:
        x: Iterations, or epochs for the addition.
        y: The values.

    >>> curve = Curve((0.0, 10.0), (4.0, 2.0))
    >>> curve.at(5.0), curve.at(11.0)
    (3.0, None)
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, x: float) -> float | None:
        """Return the value at ``x``, interpolated between points; None outside of them."""
        return float(np.interp(x, self.x, self.y)) if self.x[0] <= x <= self.x[-1] else None


@dataclass(frozen=True)
class Bar:
    """One estimator in the picture of the synthetic gradients.

    Attributes:
        cosine_distance: mean(1 - cos).
        cosine_variance: var(cos).
        milliseconds: Per estimate.
    """

    cosine_distance: float
    cosine_variance: float
    milliseconds: float


def _curves(table: dict[str, Any]) -> dict[str, Curve]:
    """Return a curve per method; one that begins later lacks the first values."""
    x = table["x"]
    return {m: Curve(tuple(x[-len(y) :]), tuple(y)) for m, y in table.items() if m != "x"}


_read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_sizes = [
    (data, int(k), tables) for data, sizes in _read["dvae"].items() for k, tables in sizes.items()
]

# (data, categories, metric) -> method -> curve
DVAE = {
    (data, k, metric): _curves(table)
    for data, k, tables in _sizes
    for metric, table in tables.items()
    if metric != "ms"
}
DVAE_MS: dict[tuple[str, int], dict[str, float]] = {
    (data, k): tables["ms"] for data, k, tables in _sizes
}
ADDITION = {int(digits): _curves(table) for digits, table in _read["addition"].items()}
# (D, K) -> method -> bar
GRADIENTS = {
    (int(size.split("-")[0]), int(size.split("-")[1])): {m: Bar(**bar) for m, bar in bars.items()}
    for size, bars in _read["gradients"].items()
}
# (update, metric) -> method -> curve
OPTIMISATION = {
    (update, metric): _curves(table)
    for update, tables in _read["optimisation"].items()
    for metric, table in tables.items()
}
