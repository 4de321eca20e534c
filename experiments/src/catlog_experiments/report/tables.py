"""The numbers of a report: a table for every size of an experiment, and a summary of all runs."""

from collections.abc import Mapping

import pandas as pd  # type: ignore[import-untyped]

from .. import EXPERIMENTS
from .runs import SWITCHES, TEXTS, Evidence, Methods, with_published

COUNTS = {"iterations": "final iteration"}


def table(methods: Methods, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a row per method, with its number of seeds and the quantities of the columns."""
    return pd.DataFrame(
        {"method": name, "seeds": len(runs)}
        | {column: str(runs.stat(quantity)) for column, quantity in columns.items()}
        for name, runs in methods.items()
    )


def tables(evidence: Evidence, *, summary: bool = False) -> dict[str, pd.DataFrame]:
    """Return the tables of every experiment that was run, by caption: one for each size.

    Args:
        evidence: Of any experiments.
        summary: Only with the main result of each experiment, and without published numbers.
    """
    found = {}
    for experiment, cls in EXPERIMENTS.items():
        sizes = [size for size in cls.sizes if size not in SWITCHES]  # which methods' labels show
        metric, _ = cls.headline
        result = {TEXTS["metrics"][metric]["label"]: f"final {metric}"}
        columns = COUNTS | (result if summary else TEXTS["columns"][experiment])
        for size in evidence.sizes(experiment, *sizes):
            methods = evidence.methods(experiment, **size)
            content = table(methods if summary else with_published(methods), columns)
            caption = ", ".join([experiment, *(f"{name}={size[name]}" for name in size)])
            found[caption] = content.loc[:, (content != "-").any()]
    return found
