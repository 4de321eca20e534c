"""Text files are opened as UTF-8 everywhere, because the default encoding depends on the locale."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("src", "experiments", "kernels", "benchmarks", "examples", "docs", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
OTHER_OPENS = {"archive", "gzip", "os", "tarfile", "webbrowser", "zipfile", "Image"}


def opens_text(call: ast.Call) -> bool:
    """Return True if a call opens a file as text without an encoding."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
    if name not in ("open", "fdopen", "read_text", "write_text") or owner in OTHER_OPENS:
        return False
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
    return not any("b" in text and len(text) <= 3 for text in texts)


def test_every_text_file_has_an_encoding() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text(node)
    ]
    assert missing == []
