"""Run the Python of docs/compare.md and put what it prints into the page; write the figure and results/quality/compare_example.csv.

python docs/make_compare.py     # some seconds, on a quiet machine
"""

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import torch

from catlog.experiments import records

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from advise import in_the_middle  # noqa: E402

PAGE = ROOT / "docs" / "compare.md"
BEGIN, END = (
    "<!-- advice: begin (made by docs/make_compare.py from results/quality/advise.csv) -->",
    "<!-- advice: end -->",
)


def executed(text: str) -> tuple[str, dict[str, Any]]:
    """The page with every ```text block replaced by the output of the ```python block before it."""
    names: dict[str, Any] = {}

    def run(match: re.Match[str]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(match[1], names)
        return f"```python\n{match[1]}```\n\n```text\n{out.getvalue()}```"

    return re.sub(r"```python\n(.*?)```\n\n```text\n.*?```", run, text, flags=re.DOTALL), names


def advice(rows: list[dict[str, Any]]) -> str:
    """How often the advice is right, a line per size; of the three pilots on a problem, the one in the middle and the worst."""
    lines = [
        "| size | problems | within 1.3 | worst in the middle | worst pilot | under 50 steps |",
        "|---|---|---|---|---|---|",
    ]
    for size in ("small", "large"):
        here = [row for row in rows if row["size"] == size]
        middle, every = in_the_middle(here), [row["ratio"] for row in here]
        steps = [row["pilot_steps"] for row in here]
        quick = f"{sum(each < 50 for each in steps)} of {len(steps)}, at most {max(steps):.0f}"
        cells = [
            size,
            len(middle),
            sum(each <= 1.3 for each in middle),
            f"{max(middle):.2f}",
            f"{max(every):.2f}",
            quick,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def with_advice(text: str) -> str:
    head, rest = text.split(BEGIN)
    rows = records.read(ROOT / "results" / "quality" / "advise.csv")
    return f"{head}{BEGIN}\n\n{advice(rows)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    torch.set_num_threads(1)
    text, names = executed(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(with_advice(text), encoding="utf-8")
    names["result"].to_csv(ROOT / "results" / "quality" / "compare_example.csv")
    names["result"].plot(ROOT / "docs" / "compare.png")
    print(names["result"], names["advice"], sep="\n\n")


if __name__ == "__main__":
    main()
