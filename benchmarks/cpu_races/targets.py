"""The targets of the races, chosen from trial runs whose seeds do not judge."""

from math import ceil, floor
from pathlib import Path
from statistics import median

from ..tables import Row
from .curves import value_after
from .races import RACES
from .runs import Record, read_record


def records(folder: Path) -> list[Record]:
    """Return the finished runs of a folder, in the order of their files."""
    found = (read_record(path) for path in sorted(folder.rglob("*.jsonl")))
    return [record for record in found if record is not None and record.is_finished]


def chosen_targets(trials: list[Record], seconds: float) -> list[Row]:
    """Return a row per race: the level of the second-best estimator after `seconds`.

    Levels are medians over seeds. A target is rounded to the easier side.
    """
    rows: list[Row] = []
    for name, race in RACES.items():
        values: dict[str, list[float]] = {}
        for record in trials:
            if record.head["race"] == name:
                level = value_after(record.curve, seconds)
                values.setdefault(record.head["racer"], []).append(level)
        if len(values) < 2:
            continue
        levels = {racer: median(found) for racer, found in values.items()}
        second = sorted(levels, key=levels.__getitem__, reverse=race.is_rising)[1]
        to_easier_side = floor if race.is_rising else ceil
        target = to_easier_side(levels[second] / race.grain) * race.grain
        seeds = sorted({record.head["seed"] for record in trials if record.head["race"] == name})
        rows.append(
            {
                "race": name,
                "target": round(target, 6),
                "seconds": seconds,
                "estimator": second,
                "level": levels[second],
                "seeds": " ".join(map(str, seeds)),
                "estimators": len(levels),
            }
        )
    return rows
