"""The table of estimators, from the registry and from what was measured.

    python docs/make_estimators.py     # writes docs/estimators.md, docs/estimators.png and the table in README.md

`unbiased` is what benchmarks/estimators.py found by the tests' judge (results/quality/estimators.csv); the classes' own claim is not
read. The rest is read from the classes: derivative of f, laws, cost (the docstring's "Cost:"), settings, reference.
"""

import inspect
import re
from itertools import product
from math import cos, hypot, pi, sin
from pathlib import Path
from random import Random
from typing import Any

from catlog import ESTIMATORS
from catlog.estimator import ANY, BITS, INDEPENDENT, RELAXABLE, Kind
from catlog.experiments import records

ROOT = Path(__file__).parent.parent
from catlog.testing import settings as variants  # noqa: E402

Row = dict[str, Any]
BEGIN, END = "<!-- estimators: begin -->", "<!-- estimators: end -->"
FAMILIES = {
    "CatLog": ["IndeCateR", "SCateR", "CritiCateR", "SlopeCateR", "MemoryCateR", "LEG", "RAM"],
    "score function": ["Reinforce", "RLOO", "NVIL", "BBVI"],
    "control variates": ["MuProp", "REBAR", "RELAX", "DoubleCV", "RODEO"],
    "coupled draws": ["ARM", "DisARM", "ARMS", "ARSM", "CARMS", "DisARMTree"],
    "sets of draws": ["UnorderedSet", "SumAndSample", "MAPO"],
    "relaxations": ["StraightThrough", "GumbelSoftmax", "GumbelRao", "ReinMax", "DARN"],
    "perturbation": ["IMLE", "DirectOptimisation"],
    "multi-sample bound": ["VIMCO"],
    "exact": ["Exact"],
}
LAWS = {
    BITS: "bits",
    RELAXABLE: "bits, one-hot",
    INDEPENDENT: "independent",
    ANY: "any",
}
WORDS = {
    Kind.BITS: "bits",
    Kind.INDEX: "categorical",
    Kind.ONE_HOT: "one-hot",
    Kind.MIXED: "mixed",
    Kind.STRUCTURED: "structured",
}

PAGE = """\
# The estimators

<!-- made by docs/make_estimators.py from the registry and results/quality/estimators.csv: do not edit -->

n draws (`samples`), d variables of k categories; *evaluations* are points of f per estimate. *Laws*: bits (Bernoulli),
categorical (integers), one-hot, mixed (different numbers of categories), structured (dependent variables). Every estimator
also takes `validate`, and those with large tables `chunk_size`.

*Unbiased* is measured, not claimed. On the laws and functions of the tests it is the largest *error* of the estimator's
expectation, a finite sum over all outcomes of its sampler; or, where its noise is continuous or its draws are not draws of q,
the largest distance of the mean of 20,000 estimates from the truth in standard errors (*z*; up to 5.8 is no evidence of a
bias). Of the {count} combinations of setting and law that were found unbiased, the largest error is {error} and the largest z
is {z}. The tests themselves go further: more laws, and exact integrals over the noise of coupled draws.

{table}

`VIMCO` estimates the importance-weighted bound of its draws and is unbiased for that. `MAPO` with `clip` above 0 is biased.

## Variance and time

f is a random network with one hidden layer of 32, q a random law; every estimator gets about 40 evaluations of f.
*Variance*: of the gradient in the logits, relative to the squared norm of the exact gradient. *Bias*: relative to that norm.
*ms*: per estimate, value and gradient, on one CPU core in batches of 200 laws. Estimators that learn or remember had
*trained* calls before. What a backward pass through f costs shows in the ms, not in the evaluations. VIMCO's variance is
relative to the gradient of its own target. Made by [`benchmarks/estimators.py`](../benchmarks/estimators.py); numbers in
[`results/quality/estimators.csv`](../results/quality/estimators.csv).

![variance against time](estimators.png)
"""


def read(path: Path = ROOT / "results" / "quality" / "estimators.csv") -> list[Row]:
    return records.read(path)


def judged(name: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["estimator"] == name and row.get("unbiased") is not None]


def unbiased(name: str, rows: list[Row]) -> bool:
    """Whether the judge found no bias in any setting, on any law."""
    found = judged(name, rows)
    if not found:
        raise ValueError(
            f"{name} has no row in results/quality/estimators.csv: run benchmarks/estimators.py."
        )
    return all(row["unbiased"] == "yes" for row in found)


def evidence(name: str, rows: list[Row]) -> str:
    """The largest error, or z-score, that the judge saw."""
    found = judged(name, rows)
    number = max(row["error"] if row["how"] == "enumeration" else row["z"] for row in found)
    return (
        f"error {number:.0e}"
        if found[0]["how"] == "enumeration"
        else f"z {number:.{0 if number > 99 else 1}f}"
    )


def verdict(name: str, rows: list[Row]) -> str:
    return "yes" if unbiased(name, rows) else "**no**"


def differentiates(name: str) -> str:
    """Whether the derivative of f is used; where that depends on the settings, the option that all such settings have."""
    cls = ESTIMATORS[name]
    uses = [options for options in variants.VARIANTS[name] if cls(**options).differentiates_f]
    if not uses:
        return "no"
    if len(uses) == len(variants.VARIANTS[name]):
        return "yes"
    common = set.intersection(*(set(options) for options in uses)) - {"samples"}
    return f"with `{min(common)}`"


def cost(name: str) -> str:
    """The docstring's "Cost:" as a formula of n draws, d variables, k categories; with the formulas of options, if any."""
    sentence = re.search(r"Cost: (.+?)\.(?:\s|$)", ESTIMATORS[name].__doc__ or "", re.DOTALL)
    assert sentence is not None, f"{name}: no sentence 'Cost: ...' in the docstring"
    first, *others = " ".join(sentence[1].split()).split("; ")
    formulas = [first.partition(" evaluations")[0]]
    formulas += [
        each.partition(" and ")[0] for each in others if re.match(r"``\w+(=\w)?``: ", each)
    ]
    text = "; ".join(formulas).replace("``samples``", "n")
    text = re.sub(r"\bsamples\b", "n", re.sub(r"\bN\b", "n", text))
    return re.sub(r"(\w)\^(\w)", r"\1<sup>\2</sup>", text).replace("``", "`")


def settings(name: str) -> str:
    """The hyper-parameters and their defaults."""
    own = [
        each
        for key, each in inspect.signature(ESTIMATORS[name]).parameters.items()
        if key not in ("validate", "chunk_size")
    ]
    return ", ".join(f"`{each.name}={each.default}`" for each in own)


def laws(name: str) -> str:
    return ", ".join(word for law, word in WORDS.items() if law in ESTIMATORS[name].supports)


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: dict[str, Any]) -> list[str]:
    """Lines of a table of all estimators, by family; ``columns``: a function of the name for every heading."""
    lines = [line("", *columns), "|---" * (1 + len(columns)) + "|"]
    for family, names in FAMILIES.items():
        lines.append(line(f"*{family}*", *[""] * len(columns)))
        lines += [
            line(f"`{name}`", *(column(name) for column in columns.values())) for name in names
        ]
    return lines


def compact(rows: list[Row]) -> str:
    """The README's table."""
    columns = {
        "unbiased": lambda name: verdict(name, rows),
        "needs ∂f/∂x": differentiates,
        "laws": lambda name: LAWS[ESTIMATORS[name].supports],
        "evaluations": cost,
        "reference": lambda name: ESTIMATORS[name].reference,
    }
    return "\n".join(table(columns))


def readme(text: str, rows: list[Row]) -> str:
    """The README with its table made anew."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{compact(rows)}\n{END}{after}"


def measured(rows: list[Row]) -> dict[str, list[Row]]:
    """Per problem, its rows with a variance, the lowest first."""
    problems = dict.fromkeys(row["problem"] for row in rows if row.get("variance") is not None)
    return {
        each: sorted(
            (row for row in rows if row["problem"] == each), key=lambda row: row["variance"]
        )
        for each in problems
    }


def label(row: Row) -> str:
    """The estimator with what tells its settings from others of it."""
    shown = []
    for each in (row["settings"] or "").split(", "):
        key, _, value = each.partition("=")
        if key == "variables":
            shown.append(f"m={value}")
        elif key == "order":
            shown.append(f"order {value}")
        elif value == "True":
            shown.append(key)
        elif key in ("draws", "baseline"):
            shown.append(value)
    return row["estimator"] + (f" ({', '.join(shown)})" if shown else "")


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def results(rows: list[Row]) -> list[str]:
    """Lines of the table of one problem."""
    lines = [
        line(
            "",
            "settings",
            "evaluations",
            "variance",
            "bias",
            "ms",
            "variance x evaluations",
            "trained",
        )
    ]
    lines.append("|---" * 8 + "|")
    for row in rows:
        bias = row.get("bias")
        seen = "" if bias is None else "none" if row["truly_unbiased"] else f"**{bias:.3f}**"
        values = [
            f"{row['evaluations']:,}",
            number(row["variance"]),
            seen,
            number(row["ms"]),
            number(row["merit"]),
        ]
        lines.append(
            line(f"`{row['estimator']}`", row["settings"] or "", *values, row["trained"] or "")
        )
    return lines


def page(rows: list[Row]) -> str:
    """docs/estimators.md."""
    rows = [{**row, "truly_unbiased": unbiased(row["estimator"], rows)} for row in rows]
    columns = {
        "unbiased": lambda name: verdict(name, rows),
        "as judged": lambda name: evidence(name, rows),
        "needs ∂f/∂x": differentiates,
        "laws": laws,
        "evaluations": cost,
        "settings": settings,
        "reference": lambda name: ESTIMATORS[name].reference,
    }
    fine = [row for row in rows if row.get("unbiased") == "yes"]
    error, z = (
        max(row[key] for row in fine if row["how"] == how)
        for key, how in (("error", "enumeration"), ("z", "z-test"))
    )
    filled = PAGE.format(
        table="\n".join(table(columns)), count=len(fine), error=f"{error:.1e}", z=f"{z:.1f}"
    )
    lines = [filled]
    for problem, found in measured(rows).items():
        lines += [f"### {problem}", "", *results(found), ""]
    return "\n".join(lines)


def picture(rows: list[Row], path: Path) -> None:
    """Variance against time, a panel for each problem, with labels that do not overlap."""
    import matplotlib.pyplot as plt

    problems = measured(rows)
    figure, panels = plt.subplots(
        len(problems),
        1,
        figsize=(11, 7 * len(problems)),
        dpi=110,
        layout="constrained",
        squeeze=False,
    )
    colour = {
        name: plt.get_cmap("tab10")(i)
        for i, names in enumerate(FAMILIES.values())
        for name in names
    }
    for axes, (problem, found) in zip(panels[:, 0], problems.items(), strict=True):
        found = [row for row in found if row["variance"] > 0 and row["estimator"] != "VIMCO"]
        for row in found:
            face = colour[row["estimator"]] if unbiased(row["estimator"], rows) else "white"
            edge = colour[row["estimator"]]
            axes.scatter(
                row["ms"],
                row["variance"],
                45,
                color=face,
                edgecolors=[edge],
                linewidths=1.5,
                zorder=3,
            )
        axes.set(xscale="log", yscale="log", title=problem, ylabel="variance / ‖gradient‖²")
        axes.set_xlim(min(row["ms"] for row in found) / 1.8, max(row["ms"] for row in found) * 1.9)
        axes.set_ylim(
            min(row["variance"] for row in found) / 1.8, max(row["variance"] for row in found) * 1.8
        )
        axes.set_xlabel("milliseconds per estimate")
        axes.grid(alpha=0.25, which="both", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    present = {row["estimator"] for found in problems.values() for row in found}
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=colour[names[0]], label=family)
        for family, names in FAMILIES.items()
        if present & set(names) - {"VIMCO", "Exact"}
    ]
    handles.append(
        plt.Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            markerfacecolor="white",
            markeredgecolor="grey",
            label="biased",
        )
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(
        "Gradient of E[f] for a random network f, at about 40 evaluations (UnorderedSet: 10)"
    )
    figure.canvas.draw()
    figure.set_layout_engine("none")
    for axes, found in zip(panels[:, 0], problems.values(), strict=True):
        _annotate(
            axes,
            [row for row in found if row["variance"] > 0 and row["estimator"] != "VIMCO"],
            colour,
        )
    figure.savefig(path)
    plt.close(figure)


def _annotate(axes: Any, rows: list[Row], colour: dict[str, Any]) -> None:
    """A label beside every point: the nearest free place, with a line to it where that is not next to the point."""
    renderer = axes.figure.canvas.get_renderer()
    points = [tuple(axes.transData.transform((row["ms"], row["variance"]))) for row in rows]
    style = {"fontsize": 8, "transform": None, "zorder": 4}
    texts = [axes.text(0, 0, label(row), color=colour[row["estimator"]], **style) for row in rows]
    sizes = [text.get_window_extent(renderer) for text in texts]
    frame = axes.get_window_extent(renderer)
    crowd = [sum(hypot(x - a, y - b) < 60 for a, b in points) for x, y in points]
    order, chance, tries = sorted(range(len(rows)), key=lambda i: -crowd[i]), Random(0), []
    for _ in range(40):  # who comes first has the choice: try some orders, and take the best
        tries.append(_places(points, sizes, frame, order))
        if tries[-1][0] == 0:
            break
        order = chance.sample(order, len(order))
    _, places = min(tries, key=lambda each: each[0])
    for i, (left, low, leader) in places.items():
        texts[i].set_position((left, low - sizes[i].y0))
        if leader is not None:
            axes.plot(
                leader[::2],
                leader[1::2],
                color=colour[rows[i]["estimator"]],
                linewidth=0.6,
                transform=None,
                zorder=2,
            )


def _places(
    points: list[Any], sizes: list[Any], frame: Any, order: list[int]
) -> tuple[float, dict[int, Any]]:
    """How many flaws a placement of labels in this order has; their corners, and lines to them."""
    from matplotlib.transforms import Bbox

    taken = [Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    lines: list[tuple[float, float, float, float]] = []
    places, flaws = {}, 0.0
    for i in order:
        (x, y), size, found = points[i], sizes[i], []
        for radius, step in product((10, 16, 22, 30, 40, 52, 66, 82, 100), range(24)):
            angle = pi * step / 12
            end = x + radius * cos(angle), y + radius * sin(angle)
            left = end[0] - size.width * (1 - cos(angle)) / 2
            low = end[1] - size.height * (1 - sin(angle)) / 2
            box = Bbox.from_extents(left - 3, low - 1, left + size.width + 3, low + size.height + 1)
            leader = (x, y, *end) if radius > 16 else None
            wrong = sum(
                [box.x0 < frame.x0, box.x1 > frame.x1, box.y0 < frame.y0, box.y1 > frame.y1]
            )
            wrong += sum(box.overlaps(other) for other in taken) + sum(
                _hits(other, box) for other in lines
            )
            if leader is not None:
                wrong += sum(_crosses(leader, other) for other in lines)
                wrong += sum(_hits(leader, other) for j, other in enumerate(taken) if j != i)
            found.append((wrong, left, low, leader, box))
            if wrong == 0:
                break
        wrong, left, low, leader, box = min(found, key=lambda place: place[0])
        flaws += wrong
        taken.append(box)
        lines += [leader] if leader is not None else []
        places[i] = left, low, leader
    return flaws, places


def _hits(line: tuple[float, float, float, float], box: Any) -> bool:
    from matplotlib.path import Path as Line

    return bool(Line([line[:2], line[2:]]).intersects_bbox(box, filled=False))


def _crosses(
    one: tuple[float, float, float, float], two: tuple[float, float, float, float]
) -> bool:
    def side(line: tuple[float, float, float, float], x: float, y: float) -> bool:
        return (line[2] - line[0]) * (y - line[1]) > (line[3] - line[1]) * (x - line[0])

    return side(one, *two[:2]) != side(one, *two[2:]) and side(two, *one[:2]) != side(two, *one[2:])


def main() -> None:
    rows = read()
    (ROOT / "docs" / "estimators.md").write_text(page(rows), encoding="utf-8")
    (ROOT / "README.md").write_text(
        readme((ROOT / "README.md").read_text(encoding="utf-8"), rows), encoding="utf-8"
    )
    picture(rows, ROOT / "docs" / "estimators.png")


if __name__ == "__main__":
    main()
