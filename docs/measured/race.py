"""The numbers of race.md and its picture, and the README's picture."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from statistics import mean, median, stdev

import matplotlib.pyplot as plt

from catlog.estimators import ESTIMATORS

from . import Row, grouped, read, selected, table

# isort: split
from benchmarks.race import seconds_to

Curve = list[Row]
RACES = {"bits": "200 bits", "one-hot": "20 x 10 categories", "attention": "attention"}
TARGETS, FASHION = (100.0, 97.0), 250.0  # of the races on a GPU
LONG = 1_000_000  # steps of a published protocol
COLOURS = {
    "SlopeCateR": "#b91c1c",
    "ReinMax": "#f59e0b",
    "GumbelSoftmax": "#0f766e",
    "RLOO": "#6b7280",
    "IndeCateR": "#1d4ed8",
}
# The curves and their labels.
HEADLINE = {
    "IndeCateR(2, sampling='latin')": "IndeCateR, 2 Latin draws",
    "RLOO(20)": "RLOO, 20 draws",
    "GumbelSoftmax(8, hard=True, sampling='latin')": "Gumbel-Softmax, 8 Latin draws (biased)",
    "SlopeCateR(6, sampling='latin', every=4)": "SlopeCateR, 6 Latin draws",
    "ReinMax(4)": "ReinMax, 4 draws (biased)",
    "ReinMax(6, sampling='latin')": "ReinMax, 6 Latin draws (biased)",
}
ON_A_CPU = ("RLOO(2)", "RLOO(4)", "ReinMax(1)", "SlopeCateR(1)")
ON_A_CPU += ("SlopeCateR(1, every=4)", "StraightThrough(1)")
# Options of estimators on published protocols.
OPTIONS = {"SlopeCateR": "corrections=1", "ReinMax": "sampling=latin"}
# Train bounds after 10^6 steps with three evaluations: Shi et al. 2022, Table 1 (RODEO).
PUBLISHED = {
    ("bernoulli", "mnist"): ("MNIST, binary pixels", -100.46),
    ("bernoulli", "fashion-mnist"): ("Fashion-MNIST, binary pixels", -236.88),
    ("gaussian", "mnist"): ("MNIST, real-valued pixels", 692.4),
    ("gaussian", "fashion-mnist"): ("Fashion-MNIST, real-valued pixels", 196.6),
}


def class_of(method: str) -> str:
    return method.partition("(")[0]


def is_unbiased(method: str) -> bool:
    """Return whether the estimator of a label such as RLOO(4) is unbiased."""
    return bool(ESTIMATORS[class_of(method)]().unbiased)


def with_bias(name: str) -> str:
    return f"`{name}`" + ("" if is_unbiased(name) else " (biased)")


def curves(rows: list[Row]) -> dict[str, dict[int, Curve]]:
    """Return the curves by method and seed."""
    return {method: grouped(runs, "seed") for method, runs in grouped(rows, "method").items()}


def of_images(name: str) -> dict[str, dict[int, Curve]]:
    """Return the curves of the race on a GPU with these images."""
    return curves(selected(read("speed/race_cuda"), data=name))


def mean_to(runs: dict[int, Curve], target: float = TARGETS[-1], unit: str = "seconds") -> float:
    """Return the mean seconds or steps to the target, infinite if a seed did not reach it."""
    times = [seconds_to(curve, target, unit=unit, name="train") for curve in runs.values()]
    return mean(inf if time is None else time for time in times)


def ranking(methods: dict[str, dict[int, Curve]]) -> str:
    """Return a table of the race on a GPU, the first to the last target on top."""
    lines = []
    for name, runs in sorted(methods.items(), key=lambda item: mean_to(item[1])):
        if name not in HEADLINE:
            continue
        seconds = [f"{mean_to(runs, target):.2f}" for target in TARGETS]
        step = mean(1000 * curve[-1]["seconds"] / curve[-1]["step"] for curve in runs.values())
        steps = f"{mean_to(runs, unit='step'):,.0f}"
        lines.append((with_bias(name), *seconds, steps, f"{step:.3f}", len(runs)))
    head = ("method", *(f"seconds to {target:g}" for target in TARGETS))
    return table((*head, "steps", "ms per step", "seeds"), lines)


def on_fashion() -> str:
    """Return the seconds to a bound of Fashion-MNIST, of those whose runs all reached it."""
    times = {name: mean_to(runs, FASHION) for name, runs in of_images("fashion-mnist").items()}
    reached = sorted((time, name) for name, time in times.items() if time < inf)
    return ", ".join(f"`{name}` {time:.1f}" for time, name in reached)


def cpu_seconds(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return the median CPU seconds to the target by method and race."""
    return {
        method: {
            name: median(inf if row["seconds"] is None else row["seconds"] for row in runs)
            for name, runs in grouped(rows_of_method, "race").items()
        }
        for method, rows_of_method in grouped(rows, "method").items()
    }


def on_a_cpu(rows: list[Row]) -> str:
    """Return a line per method with its seconds in every race."""
    seconds = cpu_seconds(rows)
    lines = [
        [with_bias(method), *(f"{times[name]:.1f}" if name in times else "" for name in RACES)]
        for method, times in sorted(seconds.items())
        if method in ON_A_CPU
    ]
    return table(("estimator", *RACES.values()), lines)


def bounds(row: Row) -> list[float]:
    """Return the train bounds of the models of a run at a step."""
    return [-row[f"train.{s}"] for s in range(int(row["models"]))]


def on_protocol(protocol: str, data: str, estimator: str) -> dict[float, Row]:
    """Return the rows of a run on a published protocol by their steps."""
    cells = {"protocol": protocol, "data": data, "estimator": estimator}
    rows = selected(read("protocol/bits"), **cells, options=OPTIONS.get(estimator))
    return {row["iteration"]: row for row in rows}


def lead(protocol: str, data: str, rival: str) -> float:
    """Return how far SlopeCateR is ahead at the last step that both logged."""
    ours, theirs = (on_protocol(protocol, data, name) for name in ("SlopeCateR", rival))
    step = max(ours.keys() & theirs.keys())
    return mean(bounds(ours[step])) - mean(bounds(theirs[step]))


def published() -> str:
    """Return our train bounds on published protocols beside the best published ones."""
    lines = []
    for (protocol, data), (title, bound) in PUBLISHED.items():
        values = bounds(on_protocol(protocol, data, "SlopeCateR")[LONG])
        error = stdev(values) / len(values) ** 0.5
        text = f"{mean(values):.1f} ± {error:.1f}"
        lines.append([title, text, f"{bound:.1f}", f"{mean(values) - bound:+.1f}"])
    return table(("", "`SlopeCateR(2, corrections=1)`", "RODEO(3)", "difference"), lines)


def rivals() -> str:
    """Return how far SlopeCateR is ahead of other unbiased estimators, with their steps."""
    texts = []
    for name in ("DoubleCV", "RODEO"):
        leads = [lead(*key, name) for key in PUBLISHED if key[0] == "gaussian"]
        steps = max(on_protocol("gaussian", "mnist", name))
        values = " and ".join(f"{value:.1f}" for value in leads)
        texts.append(f"`{name}(3)` by {values} ({steps:,.0f} steps)")
    return ", ".join(texts)


def of_reinmax() -> str:
    """Return ReinMax's best and last train bound on binary MNIST."""
    run = on_protocol("bernoulli", "mnist", "ReinMax")
    means = [mean(bounds(row)) for row in run.values()]
    return f"{max(means):.1f} to {means[-1]:.1f}"


def values() -> dict[str, object]:
    methods = of_images("mnist")
    times = {name: mean_to(runs) for name, runs in methods.items()}
    order = sorted(times, key=times.__getitem__)
    unbiased = next(name for name in order if is_unbiased(name))
    return {
        "ranking": ranking(methods),
        "fashion": on_fashion(),
        "over_plain": f"{times[order[0]] / times['ReinMax(4)']:.2f}",
        "over_rloo": f"{times[unbiased] / times['RLOO(20)']:.2f}",
        "seldom": on_a_cpu(read("speed/cpu_race_seldom")),
        "published": published(),
        "rivals": rivals(),
        "reinmax": of_reinmax(),
    }


def headline(path: Path) -> None:
    """Draw methods of the race, one seed each, with their mean times over all seeds."""
    figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    methods = of_images("mnist")
    for name, label in HEADLINE.items():
        curve, target = next(iter(methods[name].values())), TARGETS[-1]
        shown = [row for row in curve if row["seconds"] > 0]
        result = f"{label}:\n{target:g} after {mean_to(methods[name]):.1f} s"
        line = axes.plot([row["seconds"] for row in shown], [row["train"] for row in shown],
                         "-" if is_unbiased(name) else "--", color=COLOURS[class_of(name)],
                         linewidth=2.4, label=result)[0]  # fmt: skip
        if name == "ReinMax(4)":
            line.set_alpha(0.45)
    axes.axhline(TARGETS[-1], color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 15), ylim=(96, 125), xlabel="seconds of training on one H200")
    axes.set_ylabel("negated ELBO of the training images")
    axes.set_title("A discrete autoencoder of MNIST with 200 bits: lower is better", fontsize=12)
    title = "One run each, mean times of all"
    figure.legend(
        loc="outside right center", frameon=False, labelspacing=1.2, title=title, alignment="left"
    )
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def figures() -> dict[str, Callable[[Path], None]]:
    return {"headline.png": headline}
