"""The races on a CPU: equal starts, files that resume, targets and the judgement."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from benchmarks.cpu_races.curves import chosen_targets, seconds_to, thinned, value_after
from benchmarks.cpu_races.judging import standings, verdicts
from benchmarks.cpu_races.racers import entrants, estimator_of
from benchmarks.cpu_races.races import RACES, HardAttention, measured, started
from benchmarks.cpu_races.runs import KEY, Run, execute, train
from benchmarks.tables import Table
from torch.nn.functional import cross_entropy, one_hot

from catlog.core.settings import label
from catlog_experiments import records
from support.scripts import run

Row = dict[str, object]
SHORT = Run("attention", "ReinMax(2)", 101, target=None, limit=0.1, every=0.05)


@pytest.mark.parametrize(
    "name", [*entrants(), "Exact()", "IndeCateR(9, sampling='latin', variables=4)"]
)
def test_a_racer_is_its_label(name: str) -> None:
    assert label(estimator_of(name)) == name


def test_other_texts_are_no_racers() -> None:
    with pytest.raises(ValueError, match="must be a label"):
        estimator_of("RLOO-14")


@pytest.mark.parametrize("race", RACES)
def test_start_depends_on_the_seed_alone(race: str) -> None:
    first, second = (started(race, name, 101) for name in ("RLOO(4)", "ReinMax(2)"))
    assert measured(first) == measured(second)
    assert measured(first) != measured(started(race, "RLOO(4)", 102))
    q, other_q = first.problem()[1], second.problem()[1]
    x = q.sample((3,))
    torch.testing.assert_close(q.log_prob(x), other_q.log_prob(x), rtol=0, atol=0)


@pytest.mark.parametrize("race", RACES)
def test_a_measurement_changes_nothing(race: str) -> None:
    task = started(race, "RLOO(2)", 101)
    state = torch.get_rng_state()
    assert measured(task) == measured(task)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("race", RACES)
def test_training_lowers_the_loss(race: str) -> None:
    task = started(race, "ReinMax(2)", 101)
    before = measured(task)
    for i in range(60):
        task.step(i)
    change = measured(task) - before
    assert change > 0 if RACES[race].is_rising else change < 0


def test_attention_sees_the_chosen_patches() -> None:
    torch.manual_seed(101)
    task = HardAttention("RLOO(2)", 101)
    index = task.training.index(0)[:3]
    chosen = torch.tensor([[[0, 1], [5, 5], [15, 2]]])
    mask = torch.zeros(1, 3, 16).scatter(-1, chosen, 1.0)
    pixels = (task.patches[index] * mask.unsqueeze(-1)).flatten(-2)
    logits = task.classifier(torch.cat([mask, pixels], -1))[0]
    expected = cross_entropy(logits, task.labels[index], reduction="none")
    torch.testing.assert_close(task.function(index)(one_hot(chosen, 16).float())[0], expected)


# files


def test_a_finished_run_is_not_repeated() -> None:
    curve = train(SHORT)
    assert curve[0]["step"] == 0
    assert curve[-1]["seconds"] >= SHORT.limit
    rows = [SHORT.summary(curve)]
    assert SHORT.is_done(rows)
    changes = [{"target": 0.5}, {"seed": 102}, {"limit": 60.0}]
    assert not any(replace(SHORT, **change).is_done(rows) for change in changes)
    assert not SHORT.is_done([])


def test_a_run_ends_at_its_target() -> None:
    easy = replace(SHORT, target=0.0)
    curve = train(easy)
    assert len(curve) == 1  # an accuracy of 0 is reached at once
    assert replace(easy, limit=60.0).is_done([easy.summary(curve)])


def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, curves = (Table(tmp_path / f"{name}.csv", KEY) for name in ("runs", "curves"))
    bad = replace(SHORT, method="ARM(2)")  # for bits only
    with pytest.raises(SystemExit):
        execute([bad, SHORT], table, curves, jobs=1, until=inf)
    assert re.search(r"ARM\(2\).* failed: ", capsys.readouterr().out)
    assert [row["method"] for row in records.read(tmp_path / "runs.csv")] == [SHORT.method]
    reread = Table(tmp_path / "runs.csv", KEY)
    execute([bad, SHORT], reread, curves, jobs=1, until=0)
    assert "1 runs were not started" in capsys.readouterr().out


# curves


def curve(*points: tuple[float, float]) -> list[Row]:
    return [
        {"step": i, "seconds": seconds, "value": value} for i, (seconds, value) in enumerate(points)
    ]


def test_target_between_two_measurements() -> None:
    falling = curve((0, 10), (1, 6), (3, 2))
    assert seconds_to(falling, 4) == 2
    assert seconds_to(falling, 6) == 1
    assert seconds_to(falling, 11) == 0
    assert seconds_to(falling, 1) is None
    assert seconds_to(curve((0, 0.1), (2, 0.5)), 0.3, is_rising=True) == pytest.approx(1)
    assert value_after(falling, 2) == 4
    assert value_after(falling, 9) == 2


def test_thinned_curves_reach_the_target_at_the_same_time() -> None:
    points = curve(*((0.5 * i, 100 - i) for i in range(120)))
    kept = thinned(points, 16)
    assert len(kept) <= 17
    assert kept[0] == points[0]
    assert kept[-2:] == points[-2:]
    assert thinned(points[:5], 16) == points[:5]


def trial(race: str, method: str, seed: int, value: float) -> list[Row]:
    return [
        {"race": race, "method": method, "seed": seed, **row}
        for row in curve((0, 200), (50, value))
    ]


def test_target_is_the_level_of_the_second_best() -> None:
    rows: list[Row] = []
    for method, values in {"A": (90, 92), "B": (100, 101), "C": (110, 80)}.items():
        for seed, value in enumerate(values, 1):
            rows += trial("bits", method, seed, value)
    (row,) = chosen_targets(rows, 50)
    # medians: A 91, B 100.5, C 95
    assert (row["estimator"], row["level"], row["target"]) == ("C", 95, 95)
    assert row["seeds"] == "1 2"
    (row,) = chosen_targets(
        [*trial("attention", "A", 1, 0.9), *trial("attention", "B", 1, 0.878)], 50
    )
    assert (row["estimator"], row["target"]) == ("B", 0.875)


# judgement


def test_picks_are_compared_with_the_best() -> None:
    seconds = {
        "RLOO(4)": (30.0, 28.0, 90.0),
        "ReinMax(2)": (20.0, 19.0, 25.0),
        "IndeCateR(2)": (None, None, 70.0),
        "SlopeCateR(4)": (24.0, None, 26.0),
    }
    rows: list[Row] = [
        {"race": race, "method": method, "seed": seed, "seconds": time, "trained": time or 75.0}
        for race in ("bits", "one-hot")
        for method, times in seconds.items()
        for seed, time in enumerate(times)
    ]
    ranking = standings(rows)
    assert [(entry.method, entry.seconds, entry.is_biased) for entry in ranking["bits"]] == [
        ("ReinMax(2)", 20, True),
        ("SlopeCateR(4)", 26, False),
        ("RLOO(4)", 30, False),
        ("IndeCateR(2)", inf, False),
    ]
    names = {
        ("bits", True): ("ReinMax(2)", "ReinMax(2)", "RLOO(4)"),
        ("bits", False): ("RLOO(4)", "RLOO(4)", "SlopeCateR(4)"),
        ("one-hot", False): ("IndeCateR(2)", "IndeCateR(2)", "IndeCateR(2)"),
        ("one-hot", True): ("IMLE(2)", "ReinMax(2)", "ReinMax(2)"),
    }
    picks = [
        {"race": race, "seed": seed, "biased": biased, "pick": pick}
        for (race, biased), chosen in names.items()
        for seed, pick in enumerate(chosen)
    ]
    found = {(verdict.race, verdict.biased): verdict for verdict in verdicts(ranking, picks)}
    assert found["bits", True].ratio == 1
    assert found["bits", False].ratio == 1.5
    assert found["bits", False].allowed_ratio == pytest.approx(30 / 26)
    assert found["one-hot", False].ratio == 75 / 20  # at least
    assert found["one-hot", False].allowed_ratio == 75 / 26
    assert found["one-hot", True].ratio is None
    assert [verdict.is_bound for verdict in found.values()] == [False, False, True, False]


# the command


def test_command_from_trial_to_race(tmp_path: Path) -> None:
    command, targets, picks = (
        "benchmarks.cpu_races",
        tmp_path / "targets.csv",
        tmp_path / "picks.csv",
    )
    places = ["--targets", targets, "--picks", picks, "--races", "attention"]
    short = ["--racers", "ReinMax(2)", "RLOO(2)", "--limit", 0.4, "--every", 0.1]

    def files(name: str) -> list[object]:
        return ["--runs", tmp_path / f"{name}.csv", "--curves", tmp_path / f"{name}_curves.csv"]

    run(command, "trial", *places, *short, *files("trial"), "--seeds", 101)
    run(command, "targets", *places, *files("trial"), "--seconds", 0.2)
    run(command, "pilot", *places, "--seeds", 102)
    chosen = records.read(picks)
    assert [(row["race"], row["seed"], row["biased"]) for row in chosen] == [
        ("attention", 102, False),
        ("attention", 102, True),
    ]
    run(command, "run", *places, *short, *files("run"), "--seeds", 102)
    rows = records.read(tmp_path / "run.csv")
    assert {"ReinMax(2)", "RLOO(2)", *(row["pick"] for row in chosen)} == {
        row["method"] for row in rows
    }
    assert {row["seed"] for row in records.read(tmp_path / "run_curves.csv")} == {102}
    again = run(command, "run", *places, *short, *files("run"), "--seeds", 102)
    assert f"{len(rows)} runs, 0 to do" in again
