"""What the code of compare.md prints and draws, and how good the advice is."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import Any

import torch

from . import ROOT, Row, grouped, read, selected, table


@cache
def executed(page: str = "compare") -> tuple[list[str], dict[str, Any]]:
    """Run a page's blocks of Python in order; return what each one prints, and their names."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    outputs, names = [], dict[str, Any]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, names)
        outputs.append(printed.getvalue().rstrip())
    torch.set_num_threads(threads)
    return outputs, names


def median_ratios(rows: list[Row]) -> list[float]:
    """Return, per problem, the ratio of the median pilot."""
    problems = grouped(rows, "problem", "size", "table").values()
    return [median_low(row["ratio"] for row in pilots) for pilots in problems]


def advice(rows: list[Row]) -> str:
    """Return how often the advice is right, a line per size."""
    lines = []
    for size in ("small", "large"):
        pilots = selected(rows, size=size)
        medians, steps = median_ratios(pilots), [row["pilot_steps"] for row in pilots]
        good = sum(ratio <= 1.3 for ratio in medians)
        worst = [f"{max(medians):.2f}", f"{max(row['ratio'] for row in pilots):.2f}"]
        quick = f"{sum(count < 50 for count in steps)} of {len(steps)}, at most {max(steps):.0f}"
        lines.append([size, len(medians), good, *worst, quick])
    head = ("size", "problems", "within 1.3 of the best", "worst median", "worst pilot")
    return table((*head, "pilots under 50 steps"), lines)


def advice_measure(rows: list[Row]) -> str:
    """Return what the ratios of the file are."""
    if "variance_ratio" in rows[0]:
        return "The score of the choice, relative to the best of them:"
    return (
        "These are choices of an earlier version, which minimised variance x time. In variance x "
        "time, relative to the best of them:"
    )


def values() -> dict[str, object]:
    comparison, explanation, _ = executed()[0]
    return {
        "comparison": comparison,
        "explanation": explanation,
        "advice_measure": advice_measure(read("quality/advise")),
        "advice": advice(read("quality/advise")),
    }


def plot(path: Path) -> None:
    executed()[1]["result"].plot(path)


def figures() -> dict[str, object]:
    return {"compare.png": plot}
