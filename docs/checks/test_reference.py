"""Every public name has one place in the API reference, and old pages are removed."""

import re
from pathlib import Path

import reference

import catlog


def test_every_public_name_is_documented_once(tmp_path: Path) -> None:
    reference.write(tmp_path)
    text = "\n".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md"))
    contents = (tmp_path / "index.md").read_text(encoding="utf-8")
    names = reference.public(catlog)
    for package in ("distributions", "diagnostics", "estimators"):
        names += reference.of_package(package)
    for package in reference.PACKAGES:
        module = reference.import_module(f"catlog.{package}")
        names += [f"{package}.{name}" for name in reference.public(module)]
    for name in dict.fromkeys(names):
        module, _, last = f"catlog.{name}".rpartition(".")
        constant = rf"py:data:: {last}\n   :module: {re.escape(module)}\n"
        directive = rf"auto(class|function):: {re.escape(f'catlog.{name}')}\n"
        assert len(re.findall(rf"{directive}|{constant}", text)) == 1, name
        # A sentence, and not the signature that a dataclass without a docstring has.
        summary = rf"<catlog\.{re.escape(name)}>`: (?!{last}\()\S"
        assert re.search(summary, contents), f"{name} has no docstring"


def test_old_pages_are_removed(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("# Old\n", encoding="utf-8")
    reference.write(tmp_path)
    assert not (tmp_path / "old.md").exists()
