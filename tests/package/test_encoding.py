"""Text files are opened as UTF-8 everywhere: what a locale means by text is not what was written."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("src", "benchmarks", "examples", "docs", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
BINARY = {
    "archive",
    "gzip",
    "os",
    "tarfile",
    "webbrowser",
    "zipfile",
    "Image",
}  # their `open` is another one


def opens_text(call: ast.Call) -> bool:
    """Whether this opens a file as text and does not say in which encoding."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
    if name not in ("open", "fdopen", "read_text", "write_text") or owner in BINARY:
        return False
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return not any(
        isinstance(each, ast.Constant) and "b" in str(each.value) and len(str(each.value)) <= 3
        for each in given
    )


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("open('a')", 1),
        ("p.open('w')", 1),
        ("p.read_text()", 1),
        ("open(p, 'rb')", 0),
        ("p.open(encoding='utf-8')", 0),
    ],
)
def test_the_search_finds(code: str, found: int) -> None:
    assert (
        sum(isinstance(node, ast.Call) and opens_text(node) for node in ast.walk(ast.parse(code)))
        == found
    )


def test_every_text_file_has_an_encoding() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text(node)
    ]
    assert missing == []
