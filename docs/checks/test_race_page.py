"""The page of races renders from whatever its files hold, and says who is first."""

from itertools import product
from operator import itemgetter
from pathlib import Path
from shutil import copytree
from statistics import median

import measured
import pytest
from measured import grouped, race, race_figures, read, selected
from render import page

from catlog_experiments import records

CURVES = {
    "ReinMax(2)": (20.0, 22.0),
    "ReinMax(4)": (18.0, 19.0),
    "SlopeCateR(4)": (24.0, 25.0),
    "RLOO(8)": (40.0, 41.0),
    "IndeCateR(2)": (None, None),
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results whose races on a CPU the tests replace."""
    copytree(measured.RESULTS / "speed", tmp_path / "speed")
    copytree(measured.RESULTS / "paper", tmp_path / "paper")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    return tmp_path


def write_races(folder: Path, races: tuple[str, ...]) -> None:
    runs, curves = [], []
    for name in races:
        for method, times in CURVES.items():
            for seed, seconds in enumerate(times):
                key = {"race": name, "method": method, "seed": seed}
                end = seconds or 75.0
                run = {"target": 100.0, "seconds": seconds, "trained": end, "cpu": "Some CPU"}
                runs.append({**key, **run})
                curves += [
                    {**key, "step": i, "seconds": end * i / 8, "value": 100.0 + (8 - i) ** 2}
                    for i in range(9)
                ]
    records.write(runs, folder / "speed" / "cpu_races.csv")
    records.write(curves, folder / "speed" / "cpu_race_curves.csv")


def test_the_page_shows_the_best_number_of_draws(results: Path) -> None:
    write_races(results, ("bits", "attention"))
    text = page("race")
    assert "-->Some CPU<!--" in text
    assert "| `ReinMax(4)` (biased) | 18.5 | 1.00 | 2 |" in text
    assert "| `RLOO(8)` | 40.5 | 2.19 | 2 |" in text
    assert "| `IndeCateR(2)` | over 75 |  | 2 |" in text
    assert "`ReinMax(2)` (biased) | 21.0" not in text  # its best number of draws is 4


def test_what_the_page_says_of_latin_draws_and_pairs() -> None:
    rows = measured.read("speed/cpu_race_versions")

    def typical(kind: str, method: str, column: str) -> float:
        return median(row[column] for row in rows if (row["race"], row["method"]) == (kind, method))

    for kind, name in product(("bits", "one-hot"), ("ReinMax(2", "ReinMax(4")):
        latin = typical(kind, f"{name}, sampling=latin)", "steps")
        assert 0.85 < latin / typical(kind, f"{name})", "steps") < 1
    pairs = typical("one-hot", "SlopeCateR(1)", "seconds")
    assert pairs < 0.5 * typical("one-hot", "SlopeCateR(1, pairs=False)", "seconds")
    assert typical("one-hot", "ReinMax(2)", "seconds") < pairs
    assert pairs < 0.75 * typical("one-hot", "RLOO(4)", "seconds")

    attention = [row for row in rows if row["race"] == "attention"]
    steps = [row["steps"] for row in attention]
    assert max(steps) < 1.15 * min(steps)
    assert min(attention, key=itemgetter("seconds"))["method"] == "RLOO(2)"


def test_figures_are_drawn_from_any_rows(results: Path) -> None:
    write_races(results, ("one-hot",))
    race_figures.cpu_races(results / "cpu_races.png")
    write_races(results, ("bits", "one-hot", "attention"))
    race_figures.cpu_races(results / "cpu_races.png")
    assert (results / "cpu_races.png").stat().st_size > 10_000


def test_what_the_page_says_of_seldom_corrections() -> None:
    rows = read("speed/cpu_race_seldom")
    assert {row["seed"] for row in rows} == {431, 432, 433}
    seconds = {
        name: {
            method: median(row["seconds"] for row in runs)
            for method, runs in grouped(selected(rows, race=name), "method").items()
        }
        for name in ("bits", "one-hot", "attention")
    }
    for name in ("bits", "one-hot"):
        order = sorted(seconds[name], key=seconds[name].__getitem__)
        assert order[0] == "ReinMax(1)"
        fastest, second, *_ = filter(race.is_unbiased, order)
        assert {fastest, second} == {"SlopeCateR(1, every=4)", "SlopeCateR(2, every=4)"}
        assert 1.2 < seconds[name][fastest] / seconds[name]["ReinMax(1)"] < 1.3
    attention = seconds["attention"]
    assert 0.98 < attention["RLOO(2)"] / attention["ReinMax(1)"] < 1.02
    assert {"RLOO(2)", "ReinMax(1)"} == set(sorted(attention, key=attention.__getitem__)[:2])
    assert 1.35 < attention["SlopeCateR(1, every=4)"] / attention["ReinMax(1)"] < 1.45
