"""Imports point in one direction: a module imports itself and the layers above it only."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import catlog

# Top to bottom. A module or package may import those of earlier lines, and itself.
# `diagnostics` is above `problems`: a problem averages gradients by its `Moments`.
LAYERS = [
    ["core"],
    ["distributions", "functions"],
    ["estimators"],
    ["language_models", "sample", "logarithm", "pathwise", "session", "compiled", "pyro"],
    ["diagnostics"],
    ["problems", "testing"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PACKAGE = Path(catlog.__file__).parent


def imported(tree: ast.AST, parts: tuple[str, ...]) -> set[str]:
    """Return the modules and packages of catlog's top level that a module imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["catlog", *parts[: len(parts) - node.level]] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            paths = [[*module, alias.name] for alias in node.names]
        else:
            continue
        names |= {path[1] for path in paths if path[0] == "catlog" and len(path) > 1}
    return names & set(LEVEL)


def wrong_imports(source: str, parts: tuple[str, ...]) -> list[str]:
    """Return the imports of a module that point downwards or sideways."""
    own = parts[0]
    return sorted(
        name
        for name in imported(ast.parse(source), parts)
        if name != own and LEVEL[name] >= LEVEL[own]
    )


def modules() -> dict[str, tuple[str, ...]]:
    """Return the path of every module below the top of the package, as parts."""
    located = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):  # it gathers everything
            located["/".join(parts)] = parts
    return located


def test_every_module_has_a_layer() -> None:
    assert {parts[0] for parts in modules().values()} == set(LEVEL)


@pytest.mark.parametrize("name", modules())
def test_imports_point_upwards(name: str) -> None:
    assert (
        wrong_imports((PACKAGE / f"{name}.py").read_text(encoding="utf-8"), modules()[name]) == []
    )


def test_catlog_imports_nothing_of_the_experiments() -> None:
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert not any("catlog_experiments" in source for source in sources)


def test_all_tests_can_be_collected_at_once() -> None:
    """Two test files of one name in different folders could not be imported together."""
    root = Path(__file__).parents[2]
    folders = (root / part / "tests" for part in (".", "experiments", "kernels"))
    names = Counter(path.name for folder in folders for path in folder.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
