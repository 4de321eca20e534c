"""Pages and figures are what `python docs/render.py` writes."""

import re
from pathlib import Path

import numpy as np
import pytest
import reference
import render
from PIL import Image

PAGES = [*render.DOCS.glob("*.md"), render.ROOT / "README.md"]
OF_CODE = {name for name, module in render.MODULES.items() if hasattr(module, "printed")}


@pytest.mark.parametrize(
    "name", [name for name in render.MODULES if (render.DOCS / f"{name}.md").exists()]
)
def test_a_page_has_the_numbers_of_its_files(name: str) -> None:
    text = (render.DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert text == render.page(name), f"run `python docs/render.py {name}`"
    module, marked = render.MODULES[name], {match[1] for match in render.MARKED.finditer(text)}
    printed = {"comparison", "explanation"} if name in OF_CODE else set()
    assert marked - printed <= set(getattr(module, "values", dict)())
    assert (
        text.count("<!-- measured:")
        == text.count("<!-- end -->")
        == len(render.MARKED.findall(text))
    )


def test_no_line_of_a_paragraph_begins_with_a_marker() -> None:
    """There it would begin a block of HTML, in which Markdown is not read."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ *<!-- (measured: \w+|end) -->.", text, re.MULTILINE), page.name


def test_names() -> None:
    text = render.NAMES.read_text(encoding="utf-8")
    assert text == reference.names_page(text), "run `python docs/render.py`"


@pytest.mark.parametrize("name", sorted(set(render.MODULES) - OF_CODE))
def test_figures_show_their_files(name: str, tmp_path: Path) -> None:
    render.draw(name, tmp_path)
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as drawn, Image.open(render.FIGURES / path.name) as committed:
            same = np.array_equal(drawn.convert("RGB"), committed.convert("RGB"))
        assert same, f"run `python docs/render.py {name}`"


def test_every_picture_of_a_page_exists() -> None:
    for page in PAGES:
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_page_waits_for_a_build() -> None:
    for page in render.DOCS.glob("*.md"):
        assert "{{" not in page.read_text(encoding="utf-8"), page.name
