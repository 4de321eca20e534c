"""Run the Python of docs/compare.md and put what it prints into the page; write the figure and results/compare_example.csv.

python docs/make_compare.py     # some seconds, on a quiet machine
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compare.md"


def executed(text: str) -> tuple[str, dict[str, Any]]:
    """The page with every ```text block replaced by the output of the ```python block before it."""
    names: dict[str, Any] = {}

    def run(match: re.Match[str]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(match[1], names)
        return f"```python\n{match[1]}```\n\n```text\n{out.getvalue()}```"

    return re.sub(r"```python\n(.*?)```\n\n```text\n.*?```", run, text, flags=re.DOTALL), names


def main() -> None:
    torch.set_num_threads(1)
    text, names = executed(PAGE.read_text())
    PAGE.write_text(text)
    names["result"].to_csv(ROOT / "results" / "compare_example.csv")
    names["result"].plot(ROOT / "docs" / "compare.png")
    print(names["result"], names["advice"], sep="\n\n")


if __name__ == "__main__":
    main()
