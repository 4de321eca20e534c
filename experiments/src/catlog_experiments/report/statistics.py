"""Means and standard errors over seeds, and how they are written."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Rounding in double precision leaves about (2e-16)^2 per entry of a variance that is zero.
# No measured quantity is as small as this.
ZERO = 1e-25


@dataclass(frozen=True)
class Stat:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        error: The standard error (sample standard deviation / sqrt(seeds)), NaN for one seed.
        seeds: The number of seeds.
    """

    mean: float = math.nan
    error: float = math.nan
    seeds: int = 0

    def __str__(self) -> str:
        return format_number(self.mean, self.error)


@dataclass(frozen=True)
class Series:
    """A metric of one method against x, at the points that all of its seeds reached.

    Attributes:
        x: The positions.
        mean: The mean over seeds at each position.
        error: Its standard error, NaN for one seed.
    """

    x: Array
    mean: Array
    error: Array


def format_number(mean: float, error: float = math.nan, digits: int = 4) -> str:
    """Return a number with its standard error, both to the second digit of the error.

    A number without an error has ``digits`` significant digits. Zero up to rounding is 0.

    >>> format_number(103.3217, 0.1234), format_number(0.00000123, 0.0000002)
    ('103.32 ± 0.12', '(1.23 ± 0.20)e-6')
    >>> format_number(0.25), format_number(float("inf")), format_number(-7e-31)
    ('0.25', 'never', '0')
    """
    if not math.isfinite(mean) or abs(mean) < ZERO:
        return "-" if math.isnan(mean) else "never" if math.isinf(mean) else "0"
    if math.isnan(error) or error < 1e-9 * abs(mean):
        return _significant(mean, digits)
    if abs(mean) < 1e-2 or abs(mean) >= 1e6:
        power = math.floor(math.log10(max(abs(mean), error)))
        return f"({format_number(mean / 10.0**power, error / 10.0**power)})e{power}"
    decimals = min(9, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def _significant(value: float, digits: int) -> str:
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        shortened = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{shortened}e{int(power)}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def statistic(samples: Iterable[float]) -> Stat:
    """Return mean and standard error of the samples that are not NaN.

    >>> statistic([1.0, 3.0])
    Stat(mean=2.0, error=1.0, seeds=2)
    """
    kept = [sample for sample in samples if not math.isnan(sample)]
    if not kept or math.inf in kept:
        return Stat(math.inf, math.nan, len(kept)) if kept else Stat()
    mean = math.fsum(kept) / len(kept)
    if len(kept) == 1:
        return Stat(mean, math.nan, 1)
    variance = math.fsum((sample - mean) ** 2 for sample in kept) / (len(kept) - 1)
    return Stat(mean, math.sqrt(variance / len(kept)), len(kept))
