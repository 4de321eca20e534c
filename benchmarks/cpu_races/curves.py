"""Curves of runs: when they reached a target, fewer points of them, and targets for later runs."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, isclose
from statistics import median

from ..tables import Row, grouped, selected
from .races import RACES


def seconds_to(
    curve: Sequence[Row],
    target: float,
    is_rising: bool = False,
    *,
    unit: str = "seconds",
    name: str = "value",
) -> float | None:
    """Return the seconds, or another unit, until a column is at the target; None if never.

    It is linear between two measurements.
    """
    sign = -1 if is_rising else 1
    if sign * curve[0][name] <= sign * target:
        return float(curve[0][unit])
    for before, after in pairwise(curve):
        if sign * after[name] <= sign * target:
            share = (before[name] - target) / (before[name] - after[name])
            return float(before[unit] + share * (after[unit] - before[unit]))
    return None


def value_after(curve: Sequence[Row], seconds: float, name: str = "value") -> float:
    """Return the value at a time, linear between two measurements; the last one after the end."""
    for before, after in pairwise(curve):
        if after["seconds"] >= seconds:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return float(before[name] + share * (after[name] - before[name]))
    return float(curve[-1][name])


def thinned(curve: Sequence[Row], points: int) -> list[Row]:
    """Return about `points` rows at equal times, with the first and the last two among them."""
    if len(curve) <= points:
        return list(curve)
    end = curve[-1]["seconds"]
    kept, due = [], 0.0
    for i, row in enumerate(curve):
        is_due = row["seconds"] >= due or isclose(row["seconds"], due)
        if is_due or i >= len(curve) - 2:
            kept.append(row)
            due = row["seconds"] + end / (points - 2) if is_due else due
    return kept


def chosen_targets(trials: list[Row], seconds: float) -> list[Row]:
    """Return a row per race: the level of the second-best estimator after `seconds`.

    Levels are medians over seeds. A target is rounded to the easier side.
    """
    rows: list[Row] = []
    for name, race in RACES.items():
        curves = selected(trials, race=name)
        levels = {
            method: median(value_after(curve, seconds) for curve in grouped(runs, "seed").values())
            for method, runs in grouped(curves, "method").items()
        }
        if len(levels) < 2:
            continue
        second = sorted(levels, key=levels.__getitem__, reverse=race.is_rising)[1]
        to_easier_side = floor if race.is_rising else ceil
        target = to_easier_side(levels[second] / race.grain) * race.grain
        rows.append(
            {
                "race": name,
                "target": round(target, 6),
                "seconds": seconds,
                "estimator": second,
                "level": levels[second],
                "seeds": " ".join(map(str, sorted(grouped(curves, "seed")))),
                "estimators": len(levels),
            }
        )
    return rows
