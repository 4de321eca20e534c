"""The README's Python runs as written and prints what the README says; its commands and files
exist.
"""

import contextlib
import io
import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_code_runs_and_prints_what_is_shown() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    shown = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    state = torch.get_rng_state()
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(block, names)
    torch.set_rng_state(state)
    numbers = [
        [float(number) for number in re.findall(r"error (\d+\.\d+)", text)]
        for text in (shown[1], printed.getvalue())
    ]
    assert len(numbers[0]) == len(numbers[1]) == 4
    assert max(abs(a - b) for a, b in zip(*numbers, strict=True)) < 0.2
    assert type(names["E"]).__name__ in printed.getvalue()


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a Markdown file."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_and_sections_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        assert not anchor or anchor in anchors(ROOT / path), link
