"""Figures, verdicts and the page, from made-up rows of the paper's full size and from small real runs."""

import html.parser
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catlog.experiments import DVAE, Addition, Gradients, Optimisation, execute, records
from catlog.report import claims, published
from catlog.report import figures as plots
from catlog.report.claims import CLAIMS, Verdict
from catlog.report.page import SECTIONS, report, summary
from catlog.report.runs import Stat, at, collect, label, series, statistic, text

Row = dict[str, Any]


# --- made-up rows


def run(experiment: str, method: str, seed: int, points: list[Row], **config: Any) -> list[Row]:
    return [
        {"experiment": experiment, "estimator": method, "seed": seed, **config, **point}
        for point in points
    ]


def gradients_rows(
    function: str,
    size: tuple[int, int],
    figures: dict[str, tuple[float, float]],
    seeds: int = 2,
    **point: Any,
) -> list[Row]:
    """``figures``: method -> (cosine distance, variance)."""
    rows = []
    for method, (distance, variance) in figures.items():
        last = {
            "iteration": 20,
            "seconds": 1.0,
            "estimates": 1000,
            "evaluations": 25 if method == "IndeCateR" else 1000,
            "cosine_distance": distance,
            "cosine_variance": variance,
            "relative_bias": distance,
            "relative_variance": variance,
        } | point
        for seed in range(seeds):
            rows += run(
                "gradients",
                method,
                seed,
                [{"iteration": 0, "seconds": 0.0}, last],
                function=function,
                variables=size[0],
                categories=size[1],
                together=50,
            )
    return rows


def optimisation_rows(
    method: str, speed: float, noise: float, seeds: int = 3, iterations: int = 2000, ms: float = 1.0
) -> list[Row]:
    rows = []
    for seed in range(seeds):
        points = []
        for i in range(0, iterations + 1, iterations // 40):
            gained = 1 - math.exp(-speed * (1 + 0.02 * seed) * i)
            points.append(
                {
                    "iteration": i,
                    "seconds": i * ms / 1000,
                    "value": 0.25 + (claims.MAXIMUM - 0.25) * gained,
                    "gradient_variance": noise,
                    "gradient_spread": noise + 1e-12,
                }
            )
        rows += run("optimisation", method, seed, points, variables=200, update="own")
    return rows


def dvae_rows(
    data: str,
    method: str,
    limit: float,
    ms: float,
    epochs: int = 100,
    categories: int = 2,
    rise: float = 0.0,
    seeds: int = 2,
    variance: float = 1.0,
) -> list[Row]:
    """A bound that falls to ``limit``; the test bound turns up by ``rise`` in the second half."""
    per_epoch = 192 if data == "omniglot" else 600
    rows = []
    for seed in range(seeds):
        points = []
        for epoch in np.linspace(0, epochs, 41):
            train = limit + 400 * math.exp(-epoch / 3) + 40 * math.exp(-epoch / 30) + 0.1 * seed
            point = {
                "iteration": round(epoch * per_epoch),
                "seconds": epoch * per_epoch * ms / 1000,
                "epoch": float(epoch),
                "test": train + 5 + rise * max(0.0, epoch / epochs - 0.5),
                "gradient_variance": variance * (1 + 0.1 * seed),
                "gradient_spread": 0.004 * variance,
            }
            points.append(point | ({"train": train} if epoch else {}))
        rows += run("dvae", method, seed, points, data=data, variables=200, categories=categories)
    return rows


def addition_rows(
    digits: int,
    method: str,
    accuracy: float | list[float],
    epochs: int = 100,
    seeds: int = 3,
    data: str = "mnist",
) -> list[Row]:
    ends = (
        accuracy
        if isinstance(accuracy, list)
        else [accuracy + 0.002 * seed for seed in range(seeds)]
    )
    rows = []
    for seed, last in enumerate(ends):
        points = [
            {
                "iteration": 375 * epoch,
                "seconds": 0.1 * epoch,
                "epoch": float(epoch),
                "accuracy": last * (1 - math.exp(-epoch / 4)) if epoch < epochs else last,
                "digit_accuracy": 0.99,
            }
            for epoch in range(epochs + 1)
        ]
        rows += run("addition", method, seed, points, digits=digits, data=data)
    return rows


BEST = {"IndeCateR": 95.0, "RLOO-F": 94.0, "RLOO-S": 115.0, "GS-F": 100.0, "GS-S": 104.0}
STEP = {"IndeCateR": 1.0, "RLOO-F": 4.0, "RLOO-S": 0.9, "GS-F": 5.0, "GS-S": 0.9}


def paper_rows() -> list[Row]:
    """All experiments at the paper's sizes, with numbers as the paper would like them."""
    rows = []
    for size in claims.SIZES:
        found = {
            "IndeCateR": (1e-15, 1e-31),
            "REINFORCE": (0.3, 2e-3),
            "RLOO": (0.06, 6e-5),
            "GS": (0.13, 1e-4),
        }
        rows += gradients_rows("additive", size, found)
        rows += gradients_rows("pairwise", size, found | {"IndeCateR": (0.01, 1e-6)})
    for method, speed in {
        "IndeCateR": 0.02,
        "RLOO-F": 0.015,
        "RLOO-S": 0.003,
        "GS-F": 0.0001,
    }.items():
        rows += optimisation_rows(method, speed, 0.0 if method == "IndeCateR" else 1e-9)
    for data in claims.DATA:
        for method, limit in BEST.items():
            rows += dvae_rows(
                data,
                method,
                limit,
                STEP[method],
                rise=4.0,
                variance=2.0 if method.endswith("-S") else 0.9 if method == "GS-F" else 1.0,
            )
    for method, limit in {
        "IndeCateR-D": 230.0,
        "IndeCateR": 231.0,
        "RLOO-F": 229.5,
        "GS-F": 240.0,
    }.items():
        rows += dvae_rows(
            "fashion-mnist", method, limit, 2.0 if "Inde" in method else 9.0, categories=10
        )
    for digits in (4, 8, 12, 16, 24, 32):
        for method, share in {
            "IndeCateR": 0.5,
            "IndeCateR-D": 1.0,
            "RLOO-F": 0.6,
            "RLOO-S": 0.1,
        }.items():
            rows += addition_rows(digits, method, share * 0.99**digits)
    return rows


PAPER = paper_rows()


def judge(
    function: Callable[..., Verdict], *rows: list[Row], times: dict[str, float] | None = None
) -> Verdict:
    return function(collect([row for each in rows for row in each]), times)


# --- rows, runs, numbers


def test_the_longest_run_of_a_seed_counts_and_duplicates_do_not() -> None:
    short, long = (
        addition_rows(4, "RLOO-F", 0.1, epochs=3, seeds=1),
        addition_rows(4, "RLOO-F", 0.9, epochs=8, seeds=1),
    )
    short = [{**row, "epochs": 3} for row in short]
    (found,) = collect([*long, *short, *long])
    assert found.length == 375 * 8
    assert len(found.points) == 9


def test_labels_tell_what_was_changed() -> None:
    row = {
        "experiment": "dvae",
        "estimator": "IndeCateR",
        "samples": None,
        "options": [],
        "anneal": False,
    }
    assert label(row) == "IndeCateR"  # annealing means nothing to it
    assert (
        label({**row, "options": ["draws=latin"], "samples": 4})
        == "IndeCateR samples=4 draws=latin"
    )
    assert label({**row, "estimator": "GS-F"}) == "GS-F anneal=False"


def test_mean_and_standard_error_are_over_seeds_at_points_that_all_reached() -> None:
    rows = [
        *addition_rows(4, "RLOO-F", [0.5], epochs=4),
        *addition_rows(4, "RLOO-F", [0.0, 0.7], epochs=6)[7:],
    ]
    runs = collect(rows)
    curve = series(runs, "accuracy", "epoch")
    assert curve is not None
    assert curve.seeds == 2
    assert curve.x.tolist() == [0, 1, 2, 3, 4]
    values = [0.5, 0.7 * (1 - math.exp(-1))]
    assert curve.mean[-1] == pytest.approx(sum(values) / 2)
    assert curve.error[-1] == pytest.approx(
        abs(values[0] - values[1]) / 2
    )  # sample standard deviation over sqrt(2)
    assert at(runs, "accuracy", 6, "epoch").seeds == 1


def test_numbers_are_written_with_their_error() -> None:
    assert str(Stat(0.8535, 0.0012, 3)) == "0.8535 ± 0.0012"
    assert str(Stat(math.nan, math.nan, 0)) == "-"
    assert str(statistic([math.inf, 3.0])) == "never"
    assert text(123456.0, digits=3) == "123456"
    assert text(4.2e-7) == "4.2e-7"


def test_published_curves_are_whole() -> None:
    for curves in [
        *published.DVAE.values(),
        *published.ADDITION.values(),
        *published.OPTIMISATION.values(),
    ]:
        for curve in curves.values():
            assert len(curve.x) == len(curve.y)
            assert list(curve.x) == sorted(curve.x)
    assert published.DVAE["omniglot", 2, "train"]["IndeCateR"].at(190_000) == 103.3
    assert published.DVAE["omniglot", 2, "test"]["RLOO-S"].at(10_000) is None
    assert published.ADDITION[16]["IndeCateR-D"].at(5) == 0.75


# --- verdicts


def sized(function: str, **figures: tuple[float, float]) -> list[Row]:
    return [row for size in claims.SIZES for row in gradients_rows(function, size, figures)]


WELL = {
    "IndeCateR": (0.0, 1e-9),
    "REINFORCE": (0.3, 1e-3),
    "RLOO": (0.06, 1e-4),
    "GS": (0.13, 1e-4),
}
TIMED = {"IndeCateR": 1.0, "GS-F": 3.0, "RLOO-F": 3.0, "RLOO-S": 0.5, "GS-S": 0.5}


def later(rows: list[Row]) -> list[Row]:
    return [{**row, "seconds": 90 * row["seconds"]} for row in rows]


def autoencoders(
    data: tuple[str, ...] = claims.DATA, methods: dict[str, float] = BEST, **more: Any
) -> list[Row]:
    found = [(each, method, methods[method]) for each in data for method in methods]
    return [
        row
        for each, method, limit in found
        for row in dvae_rows(each, method, limit, STEP[method], **more)
    ]


def noisy(**variances: float) -> list[Row]:
    found = [
        (each, method.replace("_", "-"), variances[method])
        for each in claims.DATA
        for method in variances
    ]
    return [
        row
        for each, method, variance in found
        for row in dvae_rows(each, method, 95.0, 1.0, variance=variance)
    ]


def optimised(**speeds: float) -> list[Row]:
    return [
        row
        for method, speed in speeds.items()
        for row in optimisation_rows(method.replace("_", "-"), speed, 1e-9)
    ]


def added(digits: int = 16, **accuracies: Any) -> list[Row]:
    return [
        row
        for method, end in accuracies.items()
        for row in addition_rows(digits, method.replace("_", "-"), end)
    ]


SPEEDS = {"IndeCateR": 0.02, "RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
SPREAD, VARIANCE = (
    claims.comparable_variance(f"gradient_{name}") for name in ("spread", "variance")
)
OTHERS = {"RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
SUMS = {"IndeCateR": 0.4, "IndeCateR_D": 0.86, "RLOO_F": [0.86, 0.86, 0.1], "RLOO_S": 0.05}
CATEGORICAL = {"IndeCateR-D": 230.0, "IndeCateR": 231.0, "RLOO-F": 229.5}


def categorical(limits: dict[str, float], **more: Any) -> list[Row]:
    return [
        row
        for method, limit in limits.items()
        for row in dvae_rows(
            "fashion-mnist",
            method,
            limit,
            9.0 if method == "RLOO-F" else 2.0,
            categories=10,
            **more,
        )
    ]


@pytest.mark.parametrize(
    ("judged", "rows", "outcome"),
    [
        (claims.additive_gradients, sized("additive", **WELL), "holds"),
        (claims.additive_gradients, sized("additive", **WELL | {"GS": (0.1, 5e-9)}), "does not hold"),
        (claims.additive_gradients, sized("additive", **WELL | {"IndeCateR": (0.2, 1e-9)}), "does not hold"),
        (claims.additive_gradients, gradients_rows("additive", (12, 3), WELL, estimates=20), "not testable"),
        (claims.additive_gradients, gradients_rows("additive", (12, 3), WELL), "not testable"),  # two sizes are missing
        (claims.additive_gradients, sized("additive", IndeCateR=(0.0, 1e-9), RLOO=(0.1, 1e-3)), "not testable"),
        (claims.additive_gradients, sized("pairwise", **WELL), "not run"),
        (claims.pairwise_gradients, sized("pairwise", **WELL), "holds"),
        (claims.pairwise_gradients, sized("pairwise", **WELL | {"IndeCateR": (0.0, 1e-3)}), "does not hold"),
        (claims.variance_by_work, sized("pairwise", **WELL | {"IndeCateR": (0.0, 1e-3)}), "holds"),  # 25 evaluations, not 1000
        (claims.variance_by_work, sized("pairwise", **WELL | {"IndeCateR": (0.0, 1e-2)}), "does not hold"),
        (claims.rloo_next, sized("additive", **WELL), "holds"),
        (claims.rloo_next, sized("additive", **WELL | {"GS": (0.01, 1e-4)}), "does not hold"),
        (claims.rloo_next, [], "not run"),
        (claims.gradients_time, sized("additive", **WELL), "holds"),
        (claims.gradients_time, sized("additive", IndeCateR=(0, 0)) + later(sized("additive", GS=(0, 0))), "does not hold"),
        (claims.gradients_time, sized("additive", IndeCateR=(0, 0)), "not run"),
        (claims.lowest_variance, optimisation_rows("IndeCateR", 0.01, 0.0) + optimised(**OTHERS), "holds"),
        (claims.lowest_variance, optimised(**SPEEDS), "does not hold"),
        (claims.lowest_variance, optimisation_rows("IndeCateR", 0.01, 0.0) + optimised(RLOO_F=0.01), "not testable"),
        (claims.quickest, optimised(**SPEEDS), "holds"),
        (claims.quickest, optimised(**SPEEDS | {"RLOO_F": 0.02}), "does not hold"),
        (claims.quickest, optimised(**SPEEDS | {"RLOO_F": 0.05}), "does not hold"),
        (claims.quickest, optimised(IndeCateR=1e-5, RLOO_F=1e-5), "not testable"),
        (claims.quickest, [row for row in optimised(**SPEEDS) if row["seed"] == 0], "not testable"),
        (claims.quickest, [], "not run"),
        (claims.relaxation_struggles, optimised(**SPEEDS), "holds"),
        (claims.relaxation_struggles, optimised(IndeCateR=0.02, GS_F=0.02), "does not hold"),
        (claims.relaxation_struggles, [row for row in optimised(**SPEEDS) if row["iteration"] < 400], "not testable"),
        (claims.optimisation_time, optimised(**SPEEDS), "holds"),
        (claims.optimisation_time, optimised(IndeCateR=0.02) + later(optimised(GS_F=0.1)), "does not hold"),
        (claims.train_at_equal_time, autoencoders(), "holds"),
        (claims.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 90.0}), "does not hold"),
        (claims.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 95.0, "IndeCateR": 95.0}), "does not hold"),
        (claims.train_at_equal_time, autoencoders(data=("mnist",)), "not testable"),
        (claims.train_at_equal_time, autoencoders(epochs=5), "not testable"),
        (claims.train_at_equal_time, autoencoders(seeds=1), "not testable"),
        (claims.train_at_equal_time, autoencoders(methods={"IndeCateR": 95.0, "RLOO-F": 94.0}), "not testable"),
        (claims.train_at_equal_time, [{**r, "samples": 20} for r in autoencoders()], "not run"),  # other methods than the paper's
        (claims.near_rloo, autoencoders(), "holds"),
        (claims.near_rloo, autoencoders(methods=BEST | {"RLOO-F": 85.0}), "does not hold"),
        (claims.near_rloo, autoencoders(epochs=3), "not testable"),
        (claims.overfitting, autoencoders(rise=20.0, epochs=200), "holds"),
        (claims.overfitting, autoencoders(epochs=1000), "does not hold"),
        (claims.overfitting, autoencoders(epochs=100), "not testable"),
        (claims.best_test_omniglot, autoencoders(epochs=1000), "holds"),
        (claims.best_test_omniglot, autoencoders(epochs=1000, methods=BEST | {"GS-F": 94.5}), "does not hold"),
        (claims.best_test_omniglot, autoencoders(), "not testable"),
        (SPREAD, noisy(IndeCateR=1.0, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5), "holds"),
        (SPREAD, noisy(IndeCateR=1.0, RLOO_F=0.1, RLOO_S=9, GS_S=2, GS_F=0.5), "does not hold"),
        (VARIANCE, noisy(IndeCateR=1.0, RLOO_F=1, RLOO_S=9, GS_S=0.5, GS_F=0.5), "does not hold"),
        (VARIANCE, noisy(IndeCateR=1.0, RLOO_F=1.0, RLOO_S=9), "not testable"),
        (claims.relaxation_slower, autoencoders(), "holds"),
        (claims.relaxation_slower, autoencoders(methods={"IndeCateR": 95.0}), "not run"),
        (claims.categorical, categorical(CATEGORICAL), "holds"),
        (claims.categorical, categorical(CATEGORICAL | {"RLOO-F": 200.0}), "does not hold"),
        (claims.categorical, categorical(CATEGORICAL, epochs=4), "not testable"),
        (claims.categorical, categorical(CATEGORICAL, seeds=1), "not testable"),
        (claims.only_per_variable, added(**SUMS), "holds"),
        (claims.only_per_variable, added(**SUMS | {"RLOO_F": 0.86}), "does not hold"),
        (claims.only_per_variable, added(**SUMS | {"IndeCateR_D": [0.86, 0.3]}), "does not hold"),
        (claims.only_per_variable, added(IndeCateR_D=0.86, RLOO_F=0.1), "not testable"),
        (claims.only_per_variable, [row for row in added(**SUMS) if row["epoch"] < 9], "not testable"),
        (claims.only_per_variable, added(digits=8, **SUMS), "not run"),
        (claims.per_variable_beats_shared, added(**SUMS), "holds"),
        (claims.per_variable_beats_shared, added(**SUMS | {"IndeCateR": 0.86}), "does not hold"),
        (claims.per_variable_beats_shared, added(IndeCateR=[0.4], IndeCateR_D=[0.8]), "not testable"),
        (claims.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.7), "holds"),
        (claims.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.5), "does not hold"),
        (claims.beyond, added(24, IndeCateR_D=0.75), "not testable"),
        (claims.beyond, [], "not run"),
    ],
)  # fmt: skip
def test_a_claim_is_decided_by_its_rule(
    judged: Callable[..., Verdict], rows: list[Row], outcome: str
) -> None:
    verdict = judge(judged, rows)
    assert verdict.outcome == outcome, verdict.why
    assert verdict.why


def test_step_times_measured_apart_decide_over_the_clocks() -> None:
    rows = autoencoders()
    assert (
        judge(claims.relaxation_slower, rows, times={"IndeCateR": 1.0, "GS-F": 1.1}).outcome
        == "does not hold"
    )
    slow = {name: 9.0 if name == "IndeCateR" else 1.0 for name in BEST}
    assert judge(claims.train_at_equal_time, rows, times=slow).outcome == "does not hold"
    only = judge(claims.train_at_equal_time, rows, times={"IndeCateR": 1.0, "RLOO-F": 4.0})
    assert only.outcome == "not testable"  # the others were not timed
    optimising = {"optimisation/IndeCateR": 1.0, "optimisation/GS-F": 30.0}
    assert (
        judge(claims.optimisation_time, optimised(**SPEEDS), times=optimising).outcome
        == "does not hold"
    )


def test_small_runs_are_not_testable_and_none_are_not_run() -> None:
    tiny = [{**row, "data": "mnist-5000"} for row in autoencoders(data=("mnist",), epochs=2)]
    outcomes = {claim.key: verdict for claim, verdict in claims.verdicts(collect(tiny))}
    assert outcomes["dvae-time"].outcome == "not testable"
    assert outcomes["dvae-time"].why.startswith("at this size")
    assert outcomes["addition"].outcome == "not run"
    assert {verdict.outcome for _, verdict in claims.verdicts([])} == {"not run"}


# --- figures


def test_every_figure_has_its_panels_and_one_legend() -> None:
    found = plots.figures(PAPER, TIMED)
    panels = {name: len(figure.axes) for name, figure in found.items()}
    assert panels == {
        "gradients-additive": 12,
        "gradients-pairwise": 12,
        "optimisation": 4,
        "dvae-iterations": 12,
        "dvae-time": 12,
        "dvae-categorical-iterations": 4,
        "dvae-categorical-time": 4,
        "addition": 8,  # two of them hidden
    }
    assert all(len(figure.legends) == 1 for figure in found.values())


def test_figures_are_written(tmp_path: Path) -> None:
    paths = plots.save_all(
        [*addition_rows(4, "RLOO-S", 0.5), *gradients_rows("additive", (3, 100), WELL)],
        tmp_path / "new",
    )
    assert [path.name for path in paths] == ["gradients-additive.png", "addition.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_a_method_has_one_colour_and_others_get_further_ones() -> None:
    figure = plots.addition_figure(
        [*PAPER, *addition_rows(4, "Mine", 0.9), *addition_rows(4, "Yours", 0.8)]
    )
    (legend,) = figure.legends
    colours = {line.get_label(): line.get_color() for line in legend.get_lines()}
    assert colours["IndeCateR-D"] == plots.LOOKS["IndeCateR-D"][0]
    assert len(
        {colours["Mine"], colours["Yours"], *(look[0] for look in plots.LOOKS.values())}
    ) == 2 + len({look[0] for look in plots.LOOKS.values()})


def test_time_axes_follow_the_step_times() -> None:
    rows = dvae_rows("mnist", "IndeCateR", 95.0, ms=7.0)

    def reach(times: dict[str, float] | None) -> float:
        return max(
            float(np.max(line.get_xdata()))
            for line in plots.dvae_figure(rows, "seconds", times).axes[0].lines
        )

    assert reach(None) == pytest.approx(60_000 * 0.007)
    assert reach({"IndeCateR": 2.0}) == pytest.approx(60_000 * 0.002)
    assert (
        plots.dvae_figure(rows, "seconds", {"RLOO-F": 2.0}).axes[0].texts[0].get_text()
        == "not measured"
    )


def test_zero_variance_and_missing_metrics_are_drawn() -> None:
    rows = optimisation_rows("IndeCateR", 0.02, 0.0) + optimisation_rows("RLOO-F", 0.02, 1e-9)
    assert "IndeCateR" in plots.optimisation_figure(rows).axes[2].get_title(loc="right")
    bare = [
        {k: v for k, v in row.items() if not k.startswith("gradient")}
        for row in dvae_rows("mnist", "RLOO-S", 95.0, 1.0)
    ]
    plots.dvae_figure(bare)
    for draw in (
        plots.gradients_figure,
        plots.optimisation_figure,
        plots.dvae_figure,
        plots.addition_figure,
    ):
        assert "No run" in draw([]).texts[0].get_text()


# --- the page


class Page(html.parser.HTMLParser):
    """Checks nesting, and gathers what a page refers to."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("script", "iframe", "object")
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given[key] or "" for key in ("href", "src", "srcset") if key in given]
        if tag == "img":
            self.images.append(given)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_every_claim_and_figure_and_needs_nothing_else(tmp_path: Path) -> None:
    rows = [
        row for row in PAPER if row.get("data") != "mnist" or row.get("digits") in (16, 24, 32)
    ]  # fewer panels: quicker
    path = report(
        rows,
        tmp_path / "a" / "report.html",
        TIMED | {"dvae, 10 categories/RLOO-F": 9.0},
        {"device": "some <GPU>"},
    )
    content = path.read_text(encoding="utf-8")
    page = Page(content)
    assert len(set(page.ids)) == len(page.ids)
    assert all(f"{claim.key}-claim" in page.ids for claim in CLAIMS)
    assert all(section.key in page.ids for section in SECTIONS)
    assert len(page.images) == 2 + 1 + 2 + 2 + 1
    assert all(each["alt"] for each in page.images)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert not re.search(r"url\(|@import|https?://", content)
    assert "some &lt;GPU&gt;" in content
    assert content.count('class="badge') == 2 * len(CLAIMS)


def test_a_page_without_runs_says_so(tmp_path: Path) -> None:
    content = report([], tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(content)
    assert page.images == []
    assert content.count("Not run.") == len(SECTIONS)


def test_the_summary_has_a_line_per_method_and_setting() -> None:
    listed = summary(PAPER)
    assert len(listed) == 2 * 3 * 4 + 4 + 3 * 5 + 4 + 6 * 4
    assert {tuple(row) for row in listed} == {("experiment", "method", "seeds", "result")}
    assert summary([]) == []


# --- small real runs


def test_small_runs_of_all_experiments_make_a_page(tmp_path: Path) -> None:
    common: dict[str, Any] = {"device": "cpu"}
    for seed in range(2):
        for config in (
            Gradients(estimator="IndeCateR", repeats=120, seed=seed, **common),
            Gradients(estimator="RLOO", samples=20, repeats=120, seed=seed, **common),
            Gradients(estimator="GS", samples=20, repeats=120, seed=seed, **common),
            Gradients(estimator="IndeCateR", function="pairwise", repeats=120, seed=seed, **common),
            Optimisation(estimator="IndeCateR", variables=20, iterations=40, seed=seed, **common),
            Optimisation(estimator="RLOO-S", variables=20, iterations=40, seed=seed, **common),
            DVAE(
                estimator="RLOO-S",
                variables=10,
                epochs=1,
                test_samples=1,
                gradient_repeats=2,
                seed=seed,
                **common,
            ),
            Addition(estimator="RLOO-S", digits=32, epochs=1, seed=seed, **common),
        ):
            execute(
                config,
                tmp_path
                / "runs"
                / f"{config.name}-{config.estimator}-{getattr(config, 'function', '')}-{seed}",
            )
    rows = records.read(tmp_path / "runs")
    records.write(rows, tmp_path / "runs.csv", digits=17)
    again = records.read(tmp_path / "runs.csv")
    assert [run.method for run in collect(again)] == [run.method for run in collect(rows)]
    assert summary(again) == summary(rows)
    content = report(again, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(Page(content).images) == 2 + 1 + 2 + 1
    assert "RLOO samples=20" in content


def test_published_iterations_are_not_drawn_on_a_time_axis() -> None:
    """The published curves are known by iteration only."""
    config = {
        "experiment": "optimisation",
        "estimator": "IndeCateR",
        "variables": 200,
        "update": "published",
    }
    rows = [
        {
            **config,
            "seed": seed,
            "iteration": i,
            "seconds": i / 1000,
            "value": 0.25,
            "gradient_spread": 1e-12,
        }
        for seed in (0, 1)
        for i in range(0, 2001, 100)
    ]
    by_iteration, by_time, *_ = plots.optimisation_figure(rows, update="published").axes
    assert len(by_iteration.lines) == len(by_time.lines) + 1
