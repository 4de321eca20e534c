"""The README's Python runs as written, and names every estimator."""

import re
from pathlib import Path

import torch

import catlog

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 4
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 12
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert all(
        parameter.grad is not None
        for module in ("encoder",)
        for parameter in names[module].parameters()
    )


def test_every_estimator_is_in_the_table() -> None:
    table = TEXT[TEXT.index("## The estimators") : TEXT.index("*Laws*")]
    assert all(f"`{name}" in table for name in catlog.ESTIMATORS)
    for name, cls in catlog.ESTIMATORS.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}"))
        assert ("**no**" in row) == (not cls().unbiased)


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_files_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (ROOT / path).exists(), path
