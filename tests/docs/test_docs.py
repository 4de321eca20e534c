"""The site's pages: every public name has a docstring, and the code on pages runs."""

import re
from importlib import import_module
from inspect import getdoc, isclass, isfunction
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = (
    "estimators",
    "diagnostics",
    "distributions",
    "functions",
    "language_models",
    "problems",
)


PAGES_WITH_CODE = (
    "index", "choose", "fast_functions", "structured", "black_box", "scaling", "advantages",
    "programs", "own_distribution", "shapes", "layers", "policies",
    "in_practice", "mixed", "from_gumbel_softmax", "compare",
)  # fmt: skip


def public_values() -> dict[str, object]:
    """Return the classes and functions of catlog and of the public packages."""
    values = {}
    for package in ("", *PACKAGES):
        module = import_module(f"catlog.{package}".rstrip("."))
        for name in getattr(module, "__all__", None) or dir(module):
            if name == "pyro":
                continue  # a module that needs an extra; tests/pyro_elbo has its docstrings
            value = getattr(module, name)
            is_public = name[0] != "_" and (isclass(value) or isfunction(value))
            if is_public and value.__module__.startswith("catlog."):
                values[f"{package}.{name}".lstrip(".")] = value
    return values


@pytest.mark.parametrize(("name", "value"), public_values().items())
def test_every_public_name_has_a_docstring(name: str, value: object) -> None:
    text = getdoc(value)
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only a dataclass's"


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_on_pages_runs(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # pages may write files
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
