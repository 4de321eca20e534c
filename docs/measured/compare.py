"""What the code of compare.md prints, and how good the advice is."""

import contextlib
import io
import re
from typing import Any

import torch

from . import ROOT, distinct, read, selected, short, table


def executed() -> list[str]:
    """Run the page's blocks of Python in order; return what each one prints."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    outputs, names = [], dict[str, Any]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, names)
        outputs.append(printed.getvalue().rstrip())
    torch.set_num_threads(threads)
    return outputs


def fenced(output: str) -> str:
    """Return what code printed as a block of Markdown."""
    return f"```text\n{output}\n```"


POLICIES = ("advise", "clock", "table", "RLOO(4)")


def values() -> dict[str, str]:
    rows = read("quality/advice")
    head = ("policy", "machine", "median", "worst", "mean", "group is right", "same name")
    lines = [
        (
            f"`catlog.{policy}`" if policy == "advise" else policy,
            row["machine"],
            *(short(row[column]) for column in ("median", "worst", "mean")),
            *(f"{row[column]:.0%}" for column in ("hit", "same")),
        )
        for policy in POLICIES
        for row in selected(rows, policy=policy, problem="all")
    ]
    problems = len(distinct(rows, "problem")) - 1  # without "all"
    return {
        "problems": str(problems),
        "regrets": table(head, lines),
    }


def printed() -> dict[str, str]:
    comparison, explanation = map(fenced, executed())
    return {"comparison": comparison, "explanation": explanation}
