"""Metadata of a release are consistent."""

import re
import tomllib
from pathlib import Path

import catlog

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_versions_agree() -> None:
    version = catlog.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for name in ("experiments", "kernels"):
        text = (ROOT / name / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        assert project["version"] == version
        assert name == "kernels" or f"catlog=={version}" in project["dependencies"]
    assert re.search(
        rf"^## {re.escape(version)}\b",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )


def test_the_paper_is_the_preferred_citation() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    citation = text[text.index("preferred-citation:") :]
    title = "Differentiable Sampling of Categorical Distributions Using the CatLog-Derivative Trick"
    assert title in citation
    authors = re.findall(r"family-names: (.+)", citation)
    assert authors == ["De Smet", "Sansone", "Zuidberg Dos Martires"]


def test_the_workflow_tests_the_supported_pythons() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    listed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    tested = re.search(r"python: \[(.+)\]", workflow)
    assert tested is not None
    assert tested[1].replace('"', "").split(", ") == listed
    targets = re.findall(r"run: make ([\w ]+)", workflow)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in " ".join(targets).split():
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


ELSEWHERE = {"jupyter", "loky", "matplotlib", "trl", "verl", "playwright"}  # in no extra of ours
SAYS = re.compile(r"pip install +(?:-c \S+ +)?(?:'([^']+)'|([\w-]+|\.(?=\s)))")
TEXTS = [
    *(path for name in ("functions", "pyro", "language_models", "diagnostics") for path in
      (ROOT / "src" / "catlog" / name).rglob("*.py")),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
]  # fmt: skip


def test_what_is_to_be_installed_can_be() -> None:
    """No index has catlog, so messages name a clone's extra or the package itself, as declared."""
    extras = PROJECT["optional-dependencies"]
    declared = {requirement for extra in extras.values() for requirement in extra}
    names = {re.split(r"[<>=]", requirement)[0] for requirement in declared}
    said = {
        next(filter(None, match.groups()))
        for path in TEXTS
        for match in SAYS.finditer(path.read_text(encoding="utf-8"))
    }
    clones = {f".[{extra}]" for extra in extras}
    assert {"pyro-ppl>=1.9", ".[pyro]", "transformers>=4.56"} <= said
    assert said <= declared | names | clones | ELSEWHERE | {"."}
