"""The tables and counts of control_variates.md."""

from statistics import geometric_mean

from . import Row, distinct, grouped, pivot, read, selected, table


def spread(row: Row, key: str) -> str:
    return f"{row[key]:.3g} ± {row[f'{key}_95']:.1g}"


def residuals(rows: list[Row]) -> str:
    stages, lines = pivot(rows, "method", "problem", lambda row: f"{row['variance']:.3g}")
    lines = [[*method.split("; "), *cells] for method, *cells in lines]
    return table(["prediction", "corrections dealt", *stages], lines)


def dvae(rows: list[Row]) -> str:
    stages, errors = pivot(rows, "method", "problem", lambda row: spread(row, "mse"))
    lines = []
    for row, (method, *cells) in zip(rows, errors, strict=False):  # rows of the first stage
        bias = "" if row["unbiased"] == "yes" else " (biased)"
        lines.append([method + bias, f"{row['evaluations']} + {row['backward']}b", *cells])
    return table(["method", "evaluations", *stages], lines)


def family(row: Row) -> str:
    return str(row["method"]).split("(")[0]


def least(rows: list[Row]) -> Row | None:
    return min(rows, key=lambda row: row["variance"], default=None)


def by_problem_and_seed(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows by problem and seed, in the order in which problems first occur."""
    problems = distinct(rows, "problem")
    ordered = sorted(rows, key=lambda row: problems.index(row["problem"]))
    return grouped(ordered, "problem", "seed")


def contest(rows: list[Row]) -> str:
    ours = ("MemoryCateR", "SlopeCateR")
    lines = []
    for (problem, seed), group in by_problem_and_seed(rows).items():
        best = [least([row for row in group if family(row) == name]) for name in ours]
        best.append(least([row for row in group if family(row) not in ours]))
        first = least(group)
        cells = []
        for row in best:
            cell = "" if row is None else spread(row, "variance")
            cells.append(f"**{cell}**" if row is first else cell)
        lines.append([f"{problem}, {seed}", *cells, f"`{best[2]['method']}`" if best[2] else ""])
    return table(["problem, seed", *ours, "best other", "which is"], lines)


def wins(
    rows: list[Row], *names: str, without: tuple[str, ...] = (), clear: bool = False
) -> list[str]:
    """Return the problems on which one of these estimators is first with every seed.

    ``clear`` also asks that its 95 % interval lies below those of all others.
    """
    lost = set()
    kept = [row for row in rows if family(row) not in without]
    for (problem, _), group in by_problem_and_seed(kept).items():
        leader = least([row for row in group if family(row) in names])
        for row in group:
            margin = row["variance"] - clear * row["variance_95"]
            if family(row) not in names and (
                leader is None or leader["variance"] + clear * leader["variance_95"] >= margin
            ):
                lost.add(problem)
    return [problem for problem in distinct(rows, "problem") if problem not in lost]


def ways(rows: list[Row]) -> tuple[str, list[str]]:
    """Return the table of three uses of one critic, and which is best on every problem."""
    variances: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["part"] == "ways":
            use = "one per draw" if "variables" in row["method"] else "all"
        elif row["part"] == "contest" and family(row) == "MemoryCateR":
            use = "RLOO"
        else:
            continue
        variances.setdefault(row["problem"], {}).setdefault(use, []).append(row["variance"])
    means = {
        problem: {use: geometric_mean(uses[use]) for use in ("RLOO", "all", "one per draw")}
        for problem, uses in variances.items()
    }
    lines = [[name, *(f"{mean:.3g}" for mean in uses.values())] for name, uses in means.items()]
    latin = "IndeCateR, Latin"
    head = ["problem", "RLOO", f"{latin}, all variables", f"{latin}, one variable per draw"]
    return table(head, lines), [min(uses, key=lambda use: uses[use]) for uses in means.values()]


def relative_prediction(rows: list[Row], column: str) -> str:
    """Return MinimumVarianceStraightThrough's number relative to ReinMax's, over all stages."""
    ratios = []
    for row in rows:
        if row["estimator"] == "MinimumVarianceStraightThrough(1)":
            (reinmax,) = selected(rows, estimator="ReinMax(1)", steps=row["steps"])
            ratios.append(row[column] / reinmax[column])
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def values() -> dict[str, object]:
    measured, results = read("quality/control_variates"), read("quality/contest")
    small, large = (selected(results, part=part) for part in ("contest", "large"))
    comparison, best_ways = ways(results)
    both = wins(small, "MemoryCateR", "SlopeCateR")
    large_memory, large_slope = wins(large, "MemoryCateR"), wins(large, "SlopeCateR")
    problems = distinct(small, "problem")
    lost = [problem for problem in problems if problem not in both]
    return {
        "residuals": residuals(selected(measured, part="residuals")),
        "dvae": dvae(selected(measured, part="dvae")),
        "ways": comparison,
        "contest": contest(small),
        "count": len(problems),
        "memory": len(wins(small, "MemoryCateR")),
        "memory_clear": len(wins(small, "MemoryCateR", clear=True)),
        "slope": len(wins(small, "SlopeCateR")),
        "slope_alone": len(wins(small, "SlopeCateR", without=("MemoryCateR",))),
        "either": len(both),
        "lost": ", ".join(lost),
        "large": contest(large),
        "large_count": len({row["problem"] for row in large}),
        "rloo": best_ways.count("RLOO"),
        "large_memory": ", ".join(large_memory) or "none",
        "large_memory_count": len(large_memory),
        "large_slope": ", ".join(large_slope) or "none",
        "large_slope_count": len(large_slope),
        "other_residual": relative_prediction(read("quality/slope_predictions"), "residual"),
        "other_noise": relative_prediction(read("quality/slope_predictions"), "noise"),
    }
