"""What names.md and estimators.md say of estimators, from the registry and from benchmarks.

"Unbiased" is the judge's verdict in results/quality/estimators.csv; the classes' own claim is not
read. The rest is read from the classes: derivative of f, distributions, cost (the docstring's
"Cost:") and reference.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt

import catlog
from catlog.estimators import ESTIMATORS, FAMILIES
from catlog.testing.settings import VARIANTS

from . import Row, grouped, pivot, read, selected, suite, table

KINDS = {
    frozenset({"bits"}): "bits",
    frozenset({"bits", "one-hot"}): "bits, one-hot",
    frozenset({"bits", "index", "one-hot", "mixed"}): "independent",
    frozenset({"bits", "index", "one-hot", "mixed", "structured"}): "any",
}
# "Yin and Zhou, "ARM", 2019": authors and year.
WORK = re.compile(
    r'([A-Z]\S*(?: [A-Z]\S*)*(?: et al\.| (?:and|&) [A-Z]\S*)?), "[^"]*"[^;]*?, (\d{4})'
)
# Methods of the trained decoder that are shown, by their names in the file.
DECODER = {
    "RLOO n=400": "RLOO(400)",
    "IndeCateR n=2, Latin": "IndeCateR(2, sampling='latin')",
    "IndeCateR n=20, m=20, Taylor, Latin": "IndeCateR(20, variables=20, sampling='latin')",
    "GumbelSoftmax n=400, hard, temperature 1": "GumbelSoftmax(400, hard=True) (biased)",
    "ReinMax n=400": "ReinMax(400) (biased)",
    "SlopeCateR n=240, m=160": "SlopeCateR(240, corrections=160)",
    "SlopeCateR n=24, m=16": "SlopeCateR(24, corrections=16), 40 evaluations",
}


def families() -> dict[str, list[str]]:
    """Return the names of the estimators by family, the trick first."""
    names = {
        title: [name for module in modules for name in module.__all__]
        for title, modules in FAMILIES.items()
    }
    first, last = "the CatLog trick", "enumeration"
    return {title: names[title] for title in sorted(names, key=lambda t: (t == last, t != first))}


def distributions(name: str) -> str:
    return KINDS[frozenset(ESTIMATORS[name].supports)]


def judged(name: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["estimator"] == name and row.get("unbiased") is not None]


def unbiased(name: str, rows: list[Row]) -> bool:
    """Return whether the judge found no bias in any setting, on any distribution."""
    verdicts = judged(name, rows)
    if not verdicts:
        raise ValueError(f"{name} has no verdict in results/quality/estimators.csv.")
    return all(row["unbiased"] == "yes" for row in verdicts)


def derivative(name: str) -> str:
    """Return whether the derivative of f is used, or the option that all such settings share."""
    cls = ESTIMATORS[name]
    settings = [options for options in VARIANTS[name] if cls(**options).differentiates_f]
    if not settings:
        return "no"
    if len(settings) == len(VARIANTS[name]):
        return "yes"
    shared = set.intersection(*(set(options) for options in settings)) - {"samples"}
    return f"with `{min(shared)}`"


def cost(name: str) -> str:
    """Return the docstring's "Cost:" as a formula of n draws, d variables and k categories."""
    sentence = re.search(r"Cost: (.+?)\.(?:\s|$)", ESTIMATORS[name].__doc__ or "", re.DOTALL)
    assert sentence is not None, f"{name}: no sentence 'Cost: ...' in the docstring"
    text = " ".join(sentence[1].split()).partition(";")[0].partition(" evaluations")[0]
    text = text.replace("``samples``", "n")
    text = re.sub(r"\bsamples\b", "n", re.sub(r"\bN\b", "n", text))
    text = re.sub(r"(\w)\^(\w)", r"\1<sup>\2</sup>", text).replace("``", "`")
    return re.sub(r" ([*/+-]) ", r"\1", text).replace(" (", "(")


def path(name: str) -> str:
    """Return the shortest path of an estimator."""
    return f"catlog.{name}" if name in vars(catlog) else f"catlog.estimators.{name}"


def facts(name: str) -> str:
    """Return what else names.md says of an estimator."""
    bias = [] if unbiased(name, read("quality/estimators")) else ["**biased**"]
    use = derivative(name)
    slopes = {"no": [], "yes": ["∂f/∂x"]}.get(use, [f"∂f/∂x {use}"])
    facts = "; ".join([*bias, *slopes, distributions(name), cost(name)])
    return f"{facts[0].upper()}{facts[1:]}. *{cited(ESTIMATORS[name].__doc__ or '')}*"


def cited(text: str) -> str:
    """Return the works that a docstring names after "Reference:", by authors and year."""
    text = " ".join(text.partition("Reference: ")[2].partition("\n\n")[0].split())
    works = [f"{authors} {year}".replace(" and ", " & ") for authors, year in WORK.findall(text)]
    own = [name for name in ("this library", "definition") if text.startswith(name)]
    return "; ".join([*own, *works])


def problems(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the measured rows of every problem, the lowest variance first."""
    measured = [row for row in rows if row.get("variance") is not None]
    return {
        problem: sorted(group, key=lambda row: row["variance"])
        for problem, group in grouped(measured, "problem").items()
    }


def decoder(rows: list[Row]) -> str:
    """Return mean squared errors on a trained decoder, a column per stage of training."""
    rows = [row for row in selected(rows, part="dvae") if row["method"] in DECODER]
    stages, lines = pivot(rows, "method", "problem", lambda row: f"{row['mse']:.2g}")
    errors = {method: cells for method, *cells in lines}
    return table(("", *stages), ([label, *errors[name]] for name, label in DECODER.items()))


def leaders(rows: list[Row], part: str) -> dict[str, list[str]]:
    """Return the problems on which an estimator has the lowest variance with every seed."""
    first: dict[str, set[str]] = {}
    for (problem, _), group in grouped(selected(rows, part=part), "problem", "seed").items():
        best = min(group, key=lambda row: row["variance"])
        first.setdefault(problem, set()).add(best["method"].partition("(")[0])
    won: dict[str, list[str]] = {}
    for problem, names in first.items():
        won.setdefault(min(names) if len(names) == 1 else "", []).append(problem)
    return won


def values() -> dict[str, object]:
    small = leaders(read("quality/contest"), "contest")
    return {
        "decoder": decoder(read("quality/control_variates")),
        "small": f"{len(small['MemoryCateR'])} of {sum(map(len, small.values()))}",
        "safe": suite.safe(suite.load()),
    }


def label(row: Row) -> str:
    """Return the estimator with what distinguishes its settings."""
    shown = []
    for setting in (row["settings"] or "").split(", "):
        key, _, value = setting.partition("=")
        if key in ("variables", "order"):
            shown.append(f"{key}={value}")
        elif value == "True":
            shown.append(key)
        elif key in ("sampling", "baseline"):
            shown.append(value)
    return row["estimator"] + (f" ({', '.join(shown)})" if shown else "")


def cost_of_precision(row: Row, rows: list[Row]) -> float:
    """Return mean squared error x time; the measured bias of unbiased estimators is noise."""
    bias = 0.0 if unbiased(row["estimator"], rows) else row["bias"]
    return float((row["variance"] + bias**2) * row["ms"])


def picture(path: Path) -> None:
    """Draw mean squared error x time of every estimator, a panel per problem, the best on top."""
    rows = read("quality/estimators")
    measured = problems(rows)
    colours = {
        name: plt.get_cmap("tab10")(i)
        for i, names in enumerate(families().values())
        for name in names
    }
    height = 1.2 + 0.25 * max(map(len, measured.values()))
    figure, panels = plt.subplots(1, len(measured), figsize=(12, height), layout="constrained")
    for axes, (problem, candidates) in zip(panels, measured.items(), strict=True):
        shown = [row for row in candidates if row["variance"] > 0 and row["estimator"] != "VIMCO"]
        shown.sort(key=lambda row: -cost_of_precision(row, rows))
        for i, row in enumerate(shown):
            colour = colours[row["estimator"]]
            face = colour if unbiased(row["estimator"], rows) else "white"
            error = cost_of_precision(row, rows)
            axes.plot([0, error], [i, i], color="#e5e7eb", linewidth=1, zorder=1)
            axes.scatter(error, i, 55, color=face, edgecolors=[colour], linewidths=1.8, zorder=2)
        axes.set_yticks(range(len(shown)), [label(row) for row in shown], fontsize=10)
        axes.set(xscale="log", ylim=(-0.7, len(shown) - 0.3))
        axes.set_title(problem, fontsize=12)
        axes.set_xlabel("mean squared error / ‖gradient‖² x milliseconds", fontsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    marks = {family: {"color": colours[names[0]]} for family, names in families().items()}
    del marks["enumeration"]
    marks["biased (hollow)"] = {"markerfacecolor": "white", "markeredgecolor": "grey"}
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", label=name, **style)
        for name, style in marks.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    figure.savefig(path, dpi=120)


def figures() -> dict[str, object]:
    return {"estimators.png": picture, "suite.png": suite.picture}
