"""Curves of runs: when they reached a target, and fewer points of them."""

from collections.abc import Sequence
from itertools import pairwise
from math import isclose

from ..tables import Row
from .races import RACES
from .runs import Record


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


def summary(record: Record) -> Row:
    """Return the row of a run: `seconds` to the target, none if it was not reached."""
    head, last = record.head, record.curve[-1]
    reached = None
    if head["target"] is not None:
        reached = seconds_to(record.curve, head["target"], RACES[head["race"]].is_rising)
    row = {"race": head["race"], "method": head["racer"], "seed": head["seed"]}
    row |= {"target": head["target"], "seconds": reached, "trained": last["seconds"]}
    row |= {"steps": last["step"], "value": last["value"]}
    return row | {"cpu": head["cpu"], "torch": head["torch"]}
