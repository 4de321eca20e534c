"""The tables and the figure of protocol.md, from results/protocol/*.csv."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import matplotlib.pyplot as plt
import torch
from torch.distributions import Bernoulli, Independent

from catlog import Estimator
from catlog.core.settings import label
from catlog_experiments.named_estimators import make_estimator

from . import Row, grouped, read, selected, table
from .race_figures import clean

# isort: split
from benchmarks import protocol as plan

STEPS = 10**6
FIRST = plan.FIRST
# Train bounds after 10^6 steps with K = 3, as published (docs/protocol.md names the sources).
METHODS = ("RODEO(3)", "DoubleCV(3)", "ARMS(3)", "RELAX(3)")
PUBLISHED = {
    kind: dict(zip(METHODS, bounds, strict=True))
    for kind, bounds in {
        ("bernoulli", "mnist"): (-100.46, -100.94, -100.84, -101.99),
        ("bernoulli", "fashion-mnist"): (-236.88, -237.40, -237.05, -237.74),
        ("gaussian", "mnist"): (692.4, 686.5, 683.6, 688.6),
        ("gaussian", "fashion-mnist"): (196.6, 193.9, 193.1, 196.4),
    }.items()
}
UNCHECKED = "†"  # quoted second-hand: not seen in a copy of the paper
PUBLISHED_TEST = {"RODEO(3)": -98.72, "ARMS(3)": -99.08, "DoubleCV(3)": -99.16, "DisARM(1)": -101.6}
TITLES = {
    ("bernoulli", "mnist"): "MNIST, binary pixels",
    ("bernoulli", "fashion-mnist"): "Fashion-MNIST, binary pixels",
    ("gaussian", "mnist"): "MNIST, real-valued pixels",
    ("gaussian", "fashion-mnist"): "Fashion-MNIST, real-valued pixels",
}
COLLAPSED = 50.0  # nats above the lowest bound of its size; the code then says little
# Negated train bounds, means over the six sizes.
PUBLISHED_CATEGORICAL = {
    "ReinMax": 103.21,
    "Gapped straight-through": 104.25,
    "straight-through Gumbel-Softmax": 105.20,
    "Gumbel-Rao": 107.06,
    "straight-through": 116.72,
}


@dataclass(frozen=True)
class Curves:
    """The models of one method on one table.

    Attributes:
        rows: by iteration, the rows of all stacks that got there.
        stacks: the number of stacks.
    """

    rows: dict[int, list[Row]]
    stacks: int

    @property
    def end(self) -> int:
        """Return the last step that all stacks reached."""
        return max(step for step, rows in self.rows.items() if len(rows) == self.stacks)

    def samples(self, metric: str, step: int) -> list[float]:
        """Return a metric of every model after a number of steps."""
        return [
            value
            for row in self.rows[step]
            for s in range(int(row["models"]))
            if (value := row.get(f"{metric}.{s}")) is not None
        ]


def method_of(estimator: str, samples: int | None, options: Iterable[str]) -> str:
    return label(make_estimator(estimator, samples, tuple(options), {}))


def estimator_of(method: str) -> Estimator:
    """Return the estimator of a label such as IndeCateR(9, draws=latin, variables=4)."""
    name, samples, options = re.fullmatch(r"(\w+)\((\d+)(?:, )?(.*)\)", method).groups()  # type: ignore[union-attr]
    return make_estimator(name, int(samples), tuple(filter(None, options.split(", "))), {})


def collect(rows: Iterable[Row]) -> dict[str, Curves]:
    """Return the curves of one table by method."""
    methods: dict[str, list[Row]] = {}
    for row in rows:
        options = str(row.get("options") or "").split()
        method = method_of(row["estimator"], row.get("samples"), options)
        methods.setdefault(method, []).append(row)
    return {
        method: Curves(grouped(runs, "iteration"), len(grouped(runs, "seed", "models")))
        for method, runs in methods.items()
    }


def evaluations(method: str) -> int:
    """Return K, the evaluations of f per image."""
    q = Independent(Bernoulli(logits=torch.zeros(200)), 1)
    return estimator_of(method).evaluations(q)


def published_text(kind: tuple[str, str], name: str) -> str:
    """Return a published train bound, marked if it was not checked; "" if there is none."""
    if name not in PUBLISHED[kind]:
        return ""
    digits = 2 if kind[0] == "bernoulli" else 1
    mark = UNCHECKED if kind[0] == "bernoulli" or name == "RELAX(3)" else ""
    return f"{PUBLISHED[kind][name]:.{digits}f}{mark}"


def text(samples: Sequence[float], sign: float, digits: int = 2) -> str:
    """Return the mean and its standard error, with the sign of the published numbers."""
    if not samples:
        return ""
    cell = f"{sign * mean(samples):.{digits}f}"
    if len(samples) > 1:
        cell += f" ± {stdev(samples) / sqrt(len(samples)):.{digits}f}"
    return cell


def bits_table(kind: tuple[str, str], curves: dict[str, Curves]) -> str:
    """Return one table: ours beside the published numbers, by K."""
    published, digits = PUBLISHED[kind], 2 if kind[0] == "bernoulli" else 1
    has_test = kind == ("bernoulli", "mnist")
    known = [*curves, *(name for name in published if name not in curves)]
    ends = [curve.end for curve in curves.values()]
    common = min(ends, default=0)
    kept = slice(None) if len(set(ends)) > 1 else slice(2, None)  # all ended at the common step
    lines = []
    for name in sorted(known, key=lambda name: (evaluations(name), name != FIRST, name)):
        curve = curves.get(name)
        at_common, at_end = "not run", ["", "", "", ""]
        if curve is not None:
            at_common = text(curve.samples("train", common), -1, digits)
            last = [curve.samples(metric, curve.end) for metric in ("train", "test", "test_few")]
            at_end = [f"{curve.end:,}", *(text(samples, -1, digits) for samples in last)]
        models = "" if curve is None else len(curve.samples("train", curve.end))
        references = [published_text(kind, name)]
        if has_test:
            references.append(f"{PUBLISHED_TEST[name]:.2f}" if name in PUBLISHED_TEST else "")
        first = [f"{name}{marked(name)}", evaluations(name), models, at_common]
        lines.append([*first, *at_end[kept], *references])
    at_end = ["last step", "train", "test, 100 draws", "test, 3 draws"]
    head = ["estimator", "K", "models", f"train, {common:,} steps", *at_end[kept]]
    head += ["train, published", *(["test, published"] if has_test else [])]
    return table(head, lines)


def marked(name: str) -> str:
    return "" if estimator_of(name).unbiased else " (biased)"


def verdict(tables: dict[tuple[str, str], dict[str, Curves]]) -> str:
    """Return a table of SlopeCateR at K = 3 beside the best published number."""
    lines = []
    for kind, curves in tables.items():
        if FIRST not in curves:
            continue
        curve, rival = curves[FIRST], PUBLISHED[kind]["RODEO(3)"]
        samples = curve.samples("train", curve.end)
        digits = 2 if kind[0] == "bernoulli" else 1
        gap = f"{-mean(samples) - rival:+.{digits}f}"
        ours, published = text(samples, -1, digits), published_text(kind, "RODEO(3)")
        lines.append((TITLES[kind], ours, f"{curve.end:,}", published, gap))
    return table(("", FIRST, "steps", f"RODEO(3), {STEPS:,} steps", "difference"), lines)


def by_size(rows: list[Row]) -> dict[tuple[int, int], dict[str, Curves]]:
    """Return the curves of the categorical protocol by categories and variables."""
    return {
        (k, variables): collect(selected(rows, categories=k, variables=variables))
        for k, variables in plan.SIZES
    }


def lowest_bounds(sizes: dict[tuple[int, int], dict[str, Curves]]) -> str:
    """Return a table of the first two at the last epoch of all, and of models that collapsed."""
    lines = []
    for (categories, variables), curves in sizes.items():
        if not curves:
            continue
        step = min(curve.end for curve in curves.values())
        samples = {name: curve.samples("train", step) for name, curve in curves.items()}
        first, second, *_ = [*sorted(samples, key=lambda name: mean(samples[name])), None]
        epoch = curves[first].rows[step][0]["epoch"]
        lowest = min(map(min, samples.values()))
        collapsed = [
            f"{sum(value > lowest + COLLAPSED for value in values)} of {len(values)} of `{name}`"
            for name, values in samples.items()
            if max(values) > lowest + COLLAPSED
        ]
        behind = ""
        if second is not None:
            behind = f"{mean(samples[second]) - mean(samples[first]):.2f}"
        names = [f"`{name}`{marked(name)}" if name else "" for name in (first, second)]
        size = f"{categories} x {variables}"
        lines.append((size, f"{epoch:.0f}", *names, behind, ", ".join(collapsed)))
    head = ("size", "epochs", "first", "second", "behind by, nats", "models that collapsed")
    return table(head, lines)


def categorical_tables(sizes: dict[tuple[int, int], dict[str, Curves]]) -> tuple[str, str]:
    """Return the bounds by size, and bias and variance where exact gradients are known."""
    methods = list(dict.fromkeys(name for curves in sizes.values() for name in curves))
    lines, biases = [], []
    for name in methods:
        cells, means = [], []
        for size in plan.SIZES:
            curve = sizes[size].get(name)
            if curve is None:
                cells.append("not run")
                continue
            samples = curve.samples("train", curve.end)
            row = curve.rows[curve.end][0]
            cut = "" if row["epoch"] >= row["epochs"] else f" (epoch {row['epoch']:.0f})"
            cells.append(text(samples, 1) + cut)
            means += [] if cut else [mean(samples)]
            if row.get("relative_bias2") is not None:
                bias2, variance = row["relative_bias2"], row["relative_variance"]
                size_text = f"{size[0]} x {size[1]}"
                biases.append([name, size_text, f"{bias2:.2g}", f"{variance:.3g}"])
        whole = f"{mean(means):.2f}" if len(means) == len(plan.SIZES) else ""
        lines.append([f"{name}{marked(name)}", *cells, whole])
    lines += [
        [f"{name}, published", *[""] * len(plan.SIZES), f"{value:.2f}{UNCHECKED}"]
        for name, value in PUBLISHED_CATEGORICAL.items()
    ]
    head = ["estimator", *(f"{k} x {variables}" for k, variables in plan.SIZES), "mean"]
    names = ["estimator", "size", "squared bias", "variance"]
    return table(head, lines), table(names, biases)


def tables_of_bits() -> dict[tuple[str, str], dict[str, Curves]]:
    rows = read("protocol/bits")
    return {
        (protocol, data): collect(selected(rows, protocol=protocol, data=data))
        for protocol, data in TITLES
    }


def values() -> dict[str, object]:
    tables = tables_of_bits()
    sections = [
        f"### {TITLES[kind]}\n\n{bits_table(kind, curves)}" for kind, curves in tables.items()
    ]
    sizes = by_size(read("protocol/categories"))
    bounds, bias = categorical_tables(sizes)
    return {
        "verdict": verdict(tables),
        "tables": "\n\n".join(sections),
        "lowest": lowest_bounds(sizes),
        "bounds": bounds,
        "bias": bias,
    }


def draw_curves(path: Path) -> None:
    """Draw the train bound over steps, a panel per table, with published ends as dotted lines."""
    figure, panels = plt.subplots(2, 2, figsize=(8.5, 6), layout="constrained")
    tables = tables_of_bits()
    names = list(dict.fromkeys(name for curves in tables.values() for name in curves))
    for (kind, curves), axes in zip(tables.items(), panels.flat, strict=True):
        lowest = []
        for name, curve in curves.items():
            steps = sorted(step for step in curve.rows if 0 < step <= curve.end)
            bounds = [-mean(curve.samples("train", step)) for step in steps]
            style = "--" if marked(name) else "-"
            colour = f"C{names.index(name) % 10}"
            thousands = [step / 1000 for step in steps]
            axes.plot(thousands, bounds, style, color=colour, linewidth=1.2, label=name)
            lowest += [bounds[len(bounds) // 8]] if bounds else []
        rival = PUBLISHED[kind]["RODEO(3)"]
        axes.axhline(rival, color="black", linestyle=":", linewidth=1, label="RODEO(3), published")
        if lowest:
            top = max(
                rival, *(-mean(curve.samples("train", curve.end)) for curve in curves.values())
            )
            axes.set_ylim(min(lowest), top + 0.1 * (top - min(lowest)))
            axes.legend(fontsize=7, loc="lower right")
        axes.set_title(TITLES[kind], fontsize=10)
        clean(axes)
    figure.supxlabel("thousands of steps", fontsize=10)
    figure.supylabel("train bound", fontsize=10)
    figure.savefig(path, dpi=150)


def figures() -> dict[str, Callable[[Path], None]]:
    return {"protocol.png": draw_curves}
