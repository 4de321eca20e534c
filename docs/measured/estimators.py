"""The tables of estimators.md: from the registry, and from what benchmarks measured.

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

from . import Row, grouped, read, table

KINDS = {
    frozenset({"bits"}): "bits",
    frozenset({"bits", "one-hot"}): "bits, one-hot",
    frozenset({"bits", "index", "one-hot", "mixed"}): "independent",
    frozenset({"bits", "index", "one-hot", "mixed", "structured"}): "any",
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


def evidence(name: str, rows: list[Row]) -> str:
    """Return the largest error, or z-score, that the judge saw."""
    verdicts = judged(name, rows)
    if verdicts[0]["how"] == "enumeration":
        # A no-break space and hyphen keep the number on one line.
        return f"error\u00a0{max(row['error'] for row in verdicts):.0e}".replace("-", "\u2011")
    largest = max(row["z"] for row in verdicts)
    return f"z {largest:.{0 if largest > 99 else 1}f}"


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
    first, *options = " ".join(sentence[1].split()).split("; ")
    formulas = [first.partition(" evaluations")[0]]
    formulas += [
        option.partition(" and ")[0] for option in options if re.match(r"``\w+(=\w+)?``: ", option)
    ]
    text = "; ".join(formulas).replace("``samples``", "n")
    text = re.sub(r"\bsamples\b", "n", re.sub(r"\bN\b", "n", text))
    return re.sub(r"(\w)\^(\w)", r"\1<sup>\2</sup>", text).replace("``", "`")


def path(name: str) -> str:
    """Return the shortest path of an estimator."""
    return f"catlog.{name}" if name in vars(catlog) else f"catlog.estimators.{name}"


def registry(rows: list[Row]) -> str:
    """Return the table of all estimators, by family."""
    lines: list[list[str]] = []
    for family, names in families().items():
        lines.append([f"*{family}*", *[""] * 6])
        for name in names:
            verdict = "yes" if unbiased(name, rows) else "**no**"
            reference = ESTIMATORS[name].reference
            lines.append(
                [f"`{name}`", verdict, evidence(name, rows), derivative(name), distributions(name),
                 cost(name), reference]
            )  # fmt: skip
    head = ("", "unbiased", "measured", "needs ∂f/∂x", "distributions", "evaluations", "reference")
    return table(head, lines)


def problems(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the measured rows of every problem, the lowest variance first."""
    measured = [row for row in rows if row.get("variance") is not None]
    return {
        problem: sorted(group, key=lambda row: row["variance"])
        for problem, group in grouped(measured, "problem").items()
    }


def number(value: float | None) -> str:
    if not value:
        return "" if value is None else "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def results(rows: list[Row], verdicts: list[Row]) -> str:
    """Return the table of one problem."""
    lines = []
    for row in rows:
        bias = ""
        if row.get("bias") is not None:
            is_unbiased = unbiased(row["estimator"], verdicts)
            bias = "none" if is_unbiased else f"**{row['bias']:.3f}**"
        lines.append(
            [f"`{row['estimator']}`", row["settings"] or "", f"{row['evaluations']:,}",
             number(row["variance"]), bias, number(row["ms"]), number(row["merit"]),
             row["trained"] or ""]
        )  # fmt: skip
    head = ("", "settings", "evaluations", "variance", "bias", "ms", "variance x evaluations")
    return table((*head, "trained"), lines)


def values() -> dict[str, object]:
    rows = read("quality/estimators")
    fine = [row for row in rows if row.get("unbiased") == "yes"]
    return {
        "registry": registry(rows),
        "count": len(fine),
        "error": f"{max(row['error'] for row in fine if row['how'] == 'enumeration'):.1e}",
        "z": f"{max(row['z'] for row in fine if row['how'] == 'z-test'):.1f}",
        "problems": "\n\n".join(
            f"### {name}\n\n{results(measured, rows)}" for name, measured in problems(rows).items()
        ),
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


def picture(rows: list[Row], path: Path) -> None:
    """Draw mean squared error x time of every estimator, a panel per problem, the best on top."""
    measured = problems(rows)
    colours = {
        name: plt.get_cmap("tab10")(i)
        for i, names in enumerate(families().values())
        for name in names
    }
    height = 1.2 + 0.25 * max(map(len, measured.values()))
    figure, panels = plt.subplots(
        1, len(measured), figsize=(12, height), layout="constrained", squeeze=False
    )
    for axes, (problem, candidates) in zip(panels[0], measured.items(), strict=True):
        shown = [row for row in candidates if row["variance"] > 0 and row["estimator"] != "VIMCO"]
        shown.sort(key=lambda row: -cost_of_precision(row, rows))
        for i, row in enumerate(shown):
            colour = colours[row["estimator"]]
            face = colour if unbiased(row["estimator"], rows) else "white"
            error = cost_of_precision(row, rows)
            axes.plot([0, error], [i, i], color="#e5e7eb", linewidth=1, zorder=1)
            style = {"color": face, "edgecolors": [colour], "linewidths": 1.8, "zorder": 2}
            axes.scatter(error, i, 55, **style)
        axes.set_yticks(range(len(shown)), [label(row) for row in shown], fontsize=10)
        axes.set(xscale="log", ylim=(-0.7, len(shown) - 0.3))
        axes.set_title(problem, fontsize=12)
        axes.set_xlabel("mean squared error / ‖gradient‖² x milliseconds", fontsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=colours[names[0]], label=family)
        for family, names in families().items()
        if family != "enumeration"
    ]
    handles.append(
        plt.Line2D([], [], marker="o", linestyle="", markerfacecolor="white",
                   markeredgecolor="grey", label="biased (hollow)")
    )  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    figure.savefig(path, dpi=120)


def figures() -> dict[str, object]:
    return {"estimators.png": lambda path: picture(read("quality/estimators"), path)}
