"""The suite's results as a page: which estimator is best on which problem.

    python docs/make_suite.py                                     # writes docs/suite.md and docs/suite.png from results/quality/suite.csv
    python docs/make_suite.py --results FILE --folder FOLDER

Everything on the page is counted from the file that benchmarks/suite.py wrote.
"""

import argparse
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from catlog import problems
from catlog.experiments import records

ROOT = Path(__file__).parent.parent
Row = dict[str, Any]
EXACT = 1e-20  # a variance relative to the squared norm below this is rounding
SOON = 2.0  # "close to the best" is below this ratio

PAGE = """\
# The suite: which estimator on which problem

<!-- made by docs/make_suite.py from results/quality/suite.csv: do not edit -->

{problems} problems with known gradients (`catlog list`), {estimators} estimators and settings, at equal evaluations of f: as
many as IndeCateR needs for two draws. The measure is *variance x time*: what a gradient of given precision costs, since twice the
draws are half the variance for twice the time. Variance is over draws, summed over the parameters after the chain rule; time is
that of one step on one CPU core. f is a black box, but for `IndeCateR-Table`, which reads the neighbours from the function itself
where it has a table (`catlog.functions`). On your own f and q, ask `catlog.compare` and `catlog.advise`.

![variance x time relative to the best](suite.png)

Each cell is the ratio of variance x time to that of the best unbiased estimator on the problem. *0*: exact. Empty: it cannot be
used there (see `skipped` in [`results/quality/suite.csv`](../results/quality/suite.csv)). Where some are exact, the others are held against the
best of the rest. Below the line are estimators that are biased by design. Small variance alone is no merit of theirs, so the
number in the cell is their bias in per cent of the gradient's norm, and the colour is the ratio.

## Best by problem

{best}

The 95 % intervals are those of variance x time.

## Least variance

By variance alone, at equal evaluations and among unbiased estimators that are not exact (the backward passes of those that use
slopes are not counted here):

{least}

## Safe choices

Over the problems that an unbiased estimator can be used on: the ratio to the best, as a geometric mean and at its worst, and on
how many it is less than {soon:g} times the best.

{safe}
"""


def read(path: Path) -> list[Row]:
    rows = [row for row in records.read(path) if row.get("variance") is not None]
    for row in rows:
        row["exact"] = row["variance"] <= EXACT * row["norm"] ** 2
    return rows


def ratios(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Per problem and estimator, variance x time relative to the best unbiased estimator that is not exact; exact ones have 0."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == name]
        best = min(
            (row["merit"] for row in here if row["unbiased"] and not row["exact"]), default=1.0
        )
        found[name] = {
            row["estimator"]: 0.0 if row["exact"] else row["merit"] / best for row in here
        }
    return found


def order(rows: list[Row]) -> tuple[list[str], list[str]]:
    """The unbiased and the biased estimators, each with the lowest ratio (geometric mean, exact counting as 1) first."""
    by_problem = ratios(rows)
    biased = {row["estimator"] for row in rows if not row["unbiased"]}
    mean = {
        name: fmean(log(max(1.0, each[name])) for each in by_problem.values() if name in each)
        for name in {row["estimator"] for row in rows}
    }
    ranked = sorted(mean, key=lambda name: (mean[name], name))
    return [name for name in ranked if name not in biased], [
        name for name in ranked if name in biased
    ]


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def number(value: float) -> str:
    if value == 0:
        return "0"
    return (
        f"{value:.2g}"
        if value < 10
        else f"{value:.0f}"
        if value < 1000
        else f"1e{log(value, 10):.0f}"
    )


def best(rows: list[Row]) -> str:
    """Lines of the table of the best and the second estimator on every problem."""
    told = problems.describe()
    lines = [
        line("problem", "tests", "best", "the next", "its ratio, 95 % interval"),
        "|---" * 5 + "|",
    ]
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = sorted(
            (row for row in rows if row["problem"] == name and row["unbiased"]),
            key=lambda row: row["merit"],
        )
        exact = [row["estimator"] for row in here if row["exact"]]
        if exact:
            lines.append(
                line(
                    f"`{name}`",
                    told[name],
                    ", ".join(f"`{each}`" for each in exact) + ": exact",
                    "",
                    "",
                )
            )
            continue
        first, second = here[:2]
        error = sum(log(row["merit_high"] / row["merit"]) ** 2 for row in (first, second)) ** 0.5
        ratio = second["merit"] / first["merit"]
        interval = f"{ratio:.2f} ({ratio * exp(-error):.2f} to {ratio * exp(error):.2f})"
        lines.append(
            line(
                f"`{name}`",
                told[name],
                f"`{first['estimator']}`",
                f"`{second['estimator']}`",
                interval,
            )
        )
    return "\n".join(lines)


def least(rows: list[Row]) -> str:
    """Who has the least variance, on how many problems; and whether the interval of the second begins above its own."""
    firsts: dict[str, list[str]] = {}
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == name and row["unbiased"]]
        first, second = sorted(here, key=lambda row: row["variance"])[:2]
        if not first["exact"]:
            clear = "" if second["variance_low"] > first["variance_high"] else " (not clearly)"
            firsts.setdefault(first["estimator"], []).append(f"`{name}`{clear}")
    ranked = sorted(firsts.items(), key=lambda each: -len(each[1]))
    return "\n".join(f"- `{name}` on {len(where)}: {', '.join(where)}." for name, where in ranked)


def safe(rows: list[Row]) -> str:
    """Lines of the table of unbiased estimators over all problems."""
    by_problem = ratios(rows)
    lines = [
        line("", "problems", "mean ratio", "worst ratio", "worst on", f"below {SOON:g}"),
        "|---" * 6 + "|",
    ]
    for name in order(rows)[0]:
        own = {
            problem: max(1.0, each[name]) for problem, each in by_problem.items() if name in each
        }
        worst = max(own, key=lambda problem: own[problem])
        mean = exp(fmean(map(log, own.values())))
        close = sum(each < SOON for each in own.values())
        lines.append(
            line(f"`{name}`", len(own), number(mean), number(own[worst]), f"`{worst}`", close)
        )
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    counts = {key: len({row[key] for row in rows}) for key in ("problem", "estimator")}
    return PAGE.format(
        problems=counts["problem"],
        estimators=counts["estimator"],
        best=best(rows),
        least=least(rows),
        safe=safe(rows),
        soon=SOON,
    )


def picture(rows: list[Row], path: Path) -> None:
    """The heat map: problems across, estimators down, unbiased ones first."""
    import matplotlib.pyplot as plt
    import numpy as np

    by_problem, (unbiased, biased) = ratios(rows), order(rows)
    names, across = unbiased + biased, list(by_problem)
    cells = np.full((len(names), len(across)), np.nan)
    for j, problem in enumerate(across):
        for i, name in enumerate(names):
            if name in by_problem[problem]:
                cells[i, j] = np.log10(max(1.0, by_problem[problem][name]))
    size = (2.6 + 0.62 * len(across), 1.9 + 0.29 * len(names))
    figure, axes = plt.subplots(figsize=size, dpi=130, layout="constrained")
    colours = plt.get_cmap("viridis_r").with_extremes(bad="#f4f4f4")
    image = axes.imshow(np.ma.masked_invalid(cells), cmap=colours, vmin=0, vmax=3, aspect="auto")
    bias = {
        (row["problem"], row["estimator"]): row["bias"] / row["norm"]
        for row in rows
        if row["bias"] is not None
    }
    for j, problem in enumerate(across):
        for i, name in enumerate(names):
            ratio = by_problem[problem].get(name)
            if ratio is None:
                continue
            told = (
                number(ratio) if name in unbiased else f"{100 * bias.get((problem, name), 0):.0f}%"
            )
            axes.text(
                j,
                i,
                told,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if cells[i, j] > 1.3 else "black",
            )
    axes.axhline(len(unbiased) - 0.5, color="black", linewidth=1.5)
    axes.set_xticks(range(len(across)), across, rotation=40, ha="left", fontsize=8)
    axes.set_yticks(
        range(len(names)),
        [name if name in unbiased else f"{name} (biased)" for name in names],
        fontsize=8,
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.5, pad=0.02, aspect=40, extend="max"
    )
    bar.set_ticks([0, 1, 2, 3], labels=["best", "10 x", "100 x", "1000 x"], fontsize=8)
    bar.set_label(
        "variance x time, relative to the best unbiased estimator on the problem", fontsize=8
    )
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "quality" / "suite.csv")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs")
    given = parser.parse_args()
    rows = read(given.results)
    (given.folder / "suite.md").write_text(page(rows), encoding="utf-8")
    picture(rows, given.folder / "suite.png")


if __name__ == "__main__":
    main()
