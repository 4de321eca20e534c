"""The site's pages: every public name has a docstring, and the code on pages runs."""

import re
from importlib import import_module
from inspect import getdoc, isclass, isfunction, ismodule
from pathlib import Path
from typing import Any

import pytest
import torch

import catlog

DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = ("diagnostics", "distributions", "functions", "problems")


PAGES_WITH_CODE = (
    "index", "choose", "fast_functions", "structured", "black_box", "scaling", "advantages",
    "from_storchastic", "from_tfp", "programs",
)  # fmt: skip


def public_values() -> dict[str, object]:
    """Return the classes and functions in ``catlog.__all__`` and in the public packages."""
    values = {name: getattr(catlog, name) for name in catlog.__all__}
    for package in PACKAGES:
        module = import_module(f"catlog.{package}")
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and (isclass(value) or isfunction(value))
            and f"{value.__module__}.".startswith(f"{module.__name__}.")
        ]
        values |= {f"{package}.{name}": getattr(module, name) for name in names}
    return {name: value for name, value in values.items() if isclass(value) or isfunction(value)}


@pytest.mark.parametrize(("name", "value"), public_values().items())
def test_every_public_name_has_a_docstring(name: str, value: object) -> None:
    text = getdoc(value)
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only a dataclass's"


def test_modules_of_the_top_level_are_public() -> None:
    modules = [name for name in catlog.__all__ if ismodule(getattr(catlog, name))]
    assert set(modules) <= set(PACKAGES)


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_on_pages_runs(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)


def test_the_notebook_holds_no_results() -> None:
    """They are computed when the site is built."""
    text = (DOCS / "quickstart.ipynb").read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text
