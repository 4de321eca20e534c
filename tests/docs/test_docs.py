"""The site's pages: every public name is documented, code on pages runs, and what they claim is what was measured."""

import re
import sys
from collections.abc import Callable
from inspect import getdoc, isclass, isfunction, ismodule
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch

import catlog
from catlog.experiments import records
from scripts import loaded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

make_api = loaded("docs/make_api.py")
make_idea = loaded("docs/make_idea.py")


def public_names() -> list[str]:
    """Names in ``catlog.__all__`` and, of the modules among them, the public classes and functions."""
    names = []
    for name in catlog.__all__:
        found = getattr(catlog, name)
        if not ismodule(found):
            names.append(f"catlog.{name}")
            continue
        listed = getattr(found, "__all__", None) or [
            each
            for each, value in vars(found).items()
            if not each.startswith("_")
            and (isclass(value) or isfunction(value))
            and value.__module__ == found.__name__
        ]
        names += [f"catlog.{name}.{each}" for each in listed]
    return names


def test_every_public_name_has_a_place_in_the_reference(tmp_path: Path) -> None:
    make_api.write(tmp_path)
    text = "\n".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md"))
    for name in public_names():
        data = rf"py:data:: {name.rpartition('.')[2]}\n   :module: {re.escape(name.rpartition('.')[0])}\n"
        directive = rf"auto(class|function):: {re.escape(name)}\n"
        assert len(re.findall(rf"{directive}|{data}", text)) == 1, (
            f"{name} is not documented, or twice"
        )
        assert f"<{name}>`: " in (tmp_path / "index.md").read_text(encoding="utf-8"), (
            f"{name} is not in the list"
        )


@pytest.mark.parametrize(
    "name",
    [name for name in public_names() if not isinstance(make_api.thing(name[7:]), dict | tuple)],
)
def test_every_public_name_has_a_docstring(name: str) -> None:
    found = make_api.thing(name.removeprefix("catlog."))
    text = getdoc(found) if isclass(found) or isfunction(found) else "a constant"
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), (
        f"{name} has none but what dataclass gives it"
    )


def test_pages_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("# Old\n", encoding="utf-8")
    make_api.write(tmp_path)
    assert not (tmp_path / "old.md").exists()


@pytest.mark.parametrize("page", ["index", "choose", "fast_functions", "structured"])
def test_the_code_on_pages_runs(page: str) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert blocks
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)


def test_the_notebook_holds_no_results() -> None:
    """They are made when the site is built."""
    text = (DOCS / "quickstart.ipynb").read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text


# --- docs/idea.md


def test_the_idea_is_computed() -> None:
    """`python docs/make_idea.py` writes results/quality/idea.csv; the page has its numbers."""
    kept = records.read(ROOT / "results" / "quality" / "idea.csv")
    made = make_idea.computed()
    assert len(kept) == len(made)
    for old, new in zip(kept, made, strict=True):
        assert old["problem"] == new["problem"]
        for name in make_idea.METHODS:
            assert old[name] == pytest.approx(new[name], rel=1e-5, abs=1e-12)
    xor = next(row for row in made if row["problem"] == "xor" and row["logit"] == 0)
    assert xor["REINFORCE"] == 0
    assert xor["IndeCateR"] == 1 / 8
    above = {}
    for problem in ("own logits", "shared logit"):
        rows = [row for row in made if row["problem"] == problem]
        above[problem] = sum(row["IndeCateR"] > row["REINFORCE"] for row in rows), len(rows)
        ratio = torch.tensor([row["IndeCateR"] / row["REINFORCE"] for row in rows]).median().item()
    assert above == {"own logits": (0, 400), "shared logit": (28, 400)}
    text = " ".join((DOCS / "idea.md").read_text(encoding="utf-8").split())
    assert (
        f"below REINFORCE's in all 400; in a logit that all three bits share, it is above in 28, and its median is {ratio:.2f}"
        in text
    )


def test_the_pictures_of_the_idea(tmp_path: Path) -> None:
    make_idea.which_points(tmp_path / "points.png")
    make_idea.rao_blackwell(tmp_path / "rao_blackwell.png")
    make_idea.limit(make_idea.shared(), tmp_path / "limit.png")
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in tmp_path.glob("*.png"))
    assert len(list(tmp_path.glob("*.png"))) == 3


# --- docs/choose.md: its sentences, from the files that it cites


def measured(problem: str) -> Callable[..., float]:
    """The lowest variance of an estimator (with these settings) on a problem of results/quality/estimators.csv."""
    rows = [
        row
        for row in records.read(ROOT / "results" / "quality" / "estimators.csv")
        if row["problem"] == problem and row["variance"]
    ]

    def variance(name: str, settings: str | None = None, column: str = "variance") -> float:
        return min(
            row[column]
            for row in rows
            if row["estimator"] == name and settings in (None, row["settings"])
        )

    return variance


def unbiased() -> set[str]:
    return {name for name, cls in catlog.ESTIMATORS.items() if cls().unbiased} - {"VIMCO", "Exact"}


def ranked(problem: str) -> list[str]:
    rows = [
        row
        for row in records.read(ROOT / "results" / "quality" / "estimators.csv")
        if row["problem"] == problem and row["variance"]
    ]
    return [
        row["estimator"]
        for row in sorted(rows, key=lambda row: row["variance"])
        if row["estimator"] in unbiased()
    ]


def test_choose_20_bits() -> None:
    v, order = measured("20 bits"), ranked("20 bits")
    assert order[:3] == ["SlopeCateR", "MemoryCateR", "DoubleCV"]
    assert order[-1] == "Reinforce"
    latin = v("IndeCateR", "samples=2, draws=latin")
    assert latin == pytest.approx(v("CritiCateR"), rel=0.05)
    assert latin / v("RLOO") == pytest.approx(1 / 3, rel=0.05)
    assert v("CritiCateR", column="ms") > 10 * v("IndeCateR", "samples=2, draws=latin", column="ms")
    assert latin < v("IndeCateR", "samples=2")
    black_boxes = [
        name for name in dict.fromkeys(order) if not catlog.ESTIMATORS[name]().differentiates_f
    ]
    assert black_boxes[0] == "MemoryCateR"
    assert set(black_boxes[1:3]) == {"IndeCateR", "CritiCateR"}


def test_choose_categories() -> None:
    v, order = measured("8 one-hot variables of 5"), ranked("8 one-hot variables of 5")
    assert order[:3] == ["MemoryCateR", "DoubleCV", "SlopeCateR"]
    assert order[-1] == "Reinforce"
    assert 0.8 * v("IndeCateR", "samples=1") < v("RLOO") < v("IndeCateR", "samples=1")


def test_choose_relaxations() -> None:
    family = {"StraightThrough", "GumbelSoftmax", "GumbelRao", "ReinMax", "DARN"}
    for problem in ("20 bits", "8 one-hot variables of 5"):
        rows = [
            row
            for row in records.read(ROOT / "results" / "quality" / "estimators.csv")
            if row["problem"] == problem
        ]
        bias = {
            row["estimator"]: row["bias"]
            for row in sorted(rows, key=lambda row: -(row["bias"] or 0))
            if row["bias"]
        }
        least = min(bias[name] for name in family & set(bias))
        assert bias["ReinMax"] == pytest.approx(least, rel=0.02)
        assert "DARN" not in bias or bias["DARN"] == pytest.approx(least, rel=0.02)


def test_choose_autoencoder() -> None:
    rows = records.read(ROOT / "results" / "quality" / "variance_dvae.csv")
    for epochs, plain_is_noisier in ((8, True), (20, True), (40, False)):
        v = {row["method"]: row["variance"] for row in rows if row["epochs"] == epochs}
        assert (v["IndeCateR n=2"] > v["RLOO n=402"]) == plain_is_noisier
        assert v["IndeCateR n=2, Latin"] < min(v["RLOO n=402"], v["IndeCateR n=2"])
        best = v["IndeCateR n=20, m=20, Taylor, Latin"]
        assert best == min(
            row["variance"] for row in rows if row["epochs"] == epochs and row["unbiased"] == "yes"
        )
        assert 2.9 < v["RLOO n=420"] / best < 20
        softmax = next(
            row for row in rows if row["epochs"] == epochs and row["method"].startswith("Gumbel")
        )
        assert softmax["variance"] < best / 10
        assert 0.305 < softmax["relative_bias"] < 0.435


def test_choose_slopes() -> None:
    rows = records.read(ROOT / "results" / "quality" / "control_variates.csv")
    for epochs in ("8 epochs", "20 epochs", "40 epochs"):
        error = {
            row["method"]: row["mse"]
            for row in rows
            if row["part"] == "dvae" and row["problem"] == epochs
        }
        assert (
            8
            < error["GumbelSoftmax n=400, hard, temperature 1"] / error["SlopeCateR n=240, m=160"]
            < 13
        )


def test_race() -> None:
    """Run docs/make_race.py after its results changed. SlopeCateR is before all others with every seed."""
    made = run_path(str(ROOT / "docs" / "make_race.py"))
    race, addition = (
        records.read(ROOT / "results" / f"{name}.csv")
        for name in ("speed/race_cuda", "paper/addition_64")
    )
    assert (ROOT / "docs" / "race.md").read_text(encoding="utf-8") == made["page"](race, addition)
    times = {
        name: [made["reached"](curve, 100.0) for curve in each.values()]
        for name, each in made["curves"](race).items()
    }
    slowest = max(times["SlopeCateR-8"])
    for name, found in times.items():
        assert not name.startswith("SlopeCateR") or None not in found
        assert name.startswith("SlopeCateR") or all(
            each is None or each > slowest for each in found
        )
    assert max(times["SlopeCateR-4"]) < min(times["GS-S"])


def test_advice_is_good() -> None:
    """What docs/compare.md says of `advise`: run docs/make_compare.py after results/quality/advise.csv changed."""
    rows = records.read(ROOT / "results" / "quality" / "advise.csv")
    assert run_path(str(ROOT / "docs" / "make_compare.py"))["advice"](rows) in (
        ROOT / "docs" / "compare.md"
    ).read_text(encoding="utf-8")
    for size in ("small", "large"):
        cases: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            if row["size"] == size:
                cases.setdefault((row["problem"], row["table"] or ""), []).append(row["ratio"])
        assert len({problem for problem, _ in cases}) == 17
        middle = [sorted(each)[1] for each in cases.values()]
        assert sum(each <= 1.3 for each in middle) >= len(middle) * 10 / 12
        assert max(middle) < 2


def test_choose_structured() -> None:
    rows = records.read(ROOT / "results" / "quality" / "structured_variance.csv")
    assert len({row["problem"] for row in rows}) == 5
    for row in rows:
        if row["method"] == "SCateR":
            assert row["low_95"] > 1
        if row["method"] == "CritiCateR" and "interactions" in row["problem"]:
            assert row["low_95"] < 1 < row["high_95"]
        elif row["method"] == "CritiCateR":
            assert row["high_95"] < 1
