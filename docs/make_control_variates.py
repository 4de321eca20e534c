"""Write docs/control_variates.md from results/quality/control_variates.csv and results/quality/contest.csv.

python docs/make_control_variates.py
"""

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from catlog.experiments import records

ROOT = Path(__file__).parent.parent
Row = dict[str, Any]

PAGE = """\
# CatLog with control variates

<!-- made by docs/make_control_variates.py from results/quality/control_variates.csv and results/quality/contest.csv: do not edit -->

`SlopeCateR` is IndeCateR with a control variate for f that can be differentiated. Slopes of f at the draws predict what every
variable is worth; exact sums over a few variables correct the prediction. `MemoryCateR` needs nothing of f: a critic remembers
what f was at the points of earlier calls, and is summed out exactly. Both are unbiased, whatever they have learned.

## What works: slopes

1. **Slopes at both ends.** What a variable is worth, f(k) - f(c), is predicted by the mean of the slopes at c and at k (the
   trapezoidal rule): right for f that is quadratic in each variable, where Taylor's prediction is right for linear f only. At
   the draws, only one end is known; weighted by the chance of the drawn value this is ReinMax, which has the right mean. At a
   corrected variable f is evaluated at all its categories anyway, and a backward pass there gives the slopes, too: then the
   prediction's mean over the variable is exact, and the noise of the drawn value is not in what is left over.
2. **Corrections where slopes are large.** How often a variable is corrected follows how undecided it is, times how large its
   slopes were in earlier calls (weights make up for it). So all points are known before f is called, and f is called once: with
   the predictions of the same call it would take two calls, one after the other.
3. **Many draws, few corrections.** Latin draws cancel most of the noise of the predictions, and what is left over is small, so
   a variable in two draws out of three is enough, of any number of variables.
4. **Two coefficients from earlier calls**, of the slopes (alpha) and of their curvature (beta), by least squares: where f is
   linear in each variable, the curvature is noise and beta falls to 0; where slopes mislead, alpha falls.

What a prediction leaves over, as the relative variance of one correction per variable, for the decoder of a discrete autoencoder
(200 bits, MNIST) after three stages of training; corrections are dealt to the bits in four ways:

{residuals}

A mean curvature per bit, even that of the same draws, is much worse than the slope at the other end: curvature depends on the
other bits and on the image. Dealing corrections by p (1 - p) alone does not help; by the size of the predictions, it comes
near to what is possible. The slope's mean over the bit shows how much of Taylor's error is only the noise of the drawn value.

## The decoder at 400 and at 40 evaluations

Relative mean squared error (variance, and for the two biased methods squared bias) with 95 % intervals; b: points at which f is
differentiated, of which Gumbel-Softmax needs as many as SlopeCateR. What they cost in time is not counted here.

{dvae}

"variables alike": corrections go to all bits equally often; "no sizes": by p (1 - p) alone (`slope_entries=0`); "nothing learned": that,
and alpha = beta = 1 (`decay=1`). m is the number of variables per draw of IndeCateR, and of
corrections in all of SlopeCateR.

## What works: a memory

1. **A critic whose mean is known.** A sum of kernels rho^H (H: in how many variables a point differs from a remembered one) can
   be any function of x, and its mean under independent variables is a product per remembered point. No order of interactions has
   to be chosen, and nothing has to be differentiated.
2. **A narrow kernel beside the smooth one**, so that the remembered points themselves are right: where q visits few points, there
   is then nothing left over at most draws, however rough f is.
3. **How far to trust it**, two coefficients in [0, 1], from how well it predicted draws that it had not seen: of a noisy f
   little is left but RLOO.
4. **RLOO on what is left over.** What a good critic leaves is rough, and there a plain score, which uses every evaluation for
   every variable, mostly beats exact sums over single variables: it is best on {rloo} of {count} problems, with the same critics
   at about as many evaluations (relative variance, geometric mean over both seeds):

{ways}

## All unbiased estimators at 40 evaluations

The small problems of `catlog.problems` with interactions and independent variables, each with two seeds; relative variance with
95 % intervals. *Best other*: that with the least variance among all unbiased estimators of the registry, and IndeCateR with
Latin draws and Taylor's control variate in several settings (UnorderedSet takes at most 10 draws). What learns had 200 calls
before, and was frozen then. All numbers are in [`results/quality/contest.csv`](../results/quality/contest.csv).

First with both seeds, of {count} problems: **MemoryCateR on {memory}** ({memory_clear} with intervals that do not touch);
SlopeCateR on {slope}, and on {slope_alone} if MemoryCateR is left out; the better of the two on {either}.{lost}

{contest}

Take this for what it is. These sample spaces have 256 to 1024 points, and 200 calls are 8000 evaluations: MemoryCateR then knows
f at most points that are drawn, and where f never changes `Exact` would have been cheaper. (The other estimators that learn had
the same calls.) On parity it has only the points that it has seen: SumAndSample sums over the likeliest ones, seen or not.

### Large problems

The same with 10 to 100 variables, at the same 40 evaluations (one seed), where no memory holds the space and most estimators
cannot look at every variable once. SlopeCateR is first on {large_slope} of {large_count}{large_slope_names}; MemoryCateR on
{large_memory}{large_memory_names}; another one on the rest.

{large}

## What did not work, and what is open

- A fit of alpha and beta that does not average the noise of predictions over the draws makes both far too small, and the estimate
  worse than without a fit: the fit must weigh both kinds of noise as the estimate has them.
- f without a derivative gets nothing from slopes (digit-sum, mixed).
- RLOO with Latin draws is biased (the other draws tell where this one is not), so MemoryCateR's draws are independent.
- MemoryCateR forgets slowly: an f that changes from call to call (a network in training) was not measured.
- Where f is exactly linear in each variable (Ising, XOR, parity, coverage), corrections are zero and cost evaluations all the
  same: fewer of them are better, and IndeCateR with Taylor's prediction and one variable per draw is nearly as good.
- With few variables and a strongly curved f (the small autoencoder, the vector-quantised code), IndeCateR with Latin draws is as
  good as SlopeCateR or a little better.
- With tiny sample spaces, estimators that sum over the likeliest points are better still (parity).
"""


def spread(row: Row, key: str) -> str:
    return f"{row[key]:.3g} ± {row[f'{key}_95']:.1g}"


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def residuals(rows: list[Row]) -> str:
    stages = list(dict.fromkeys(row["problem"] for row in rows))
    found = {(row["problem"], *row["method"].split("; ")): row["variance"] for row in rows}
    names = list(dict.fromkeys(key[1:] for key in found))
    lines = [
        [name, way, *(f"{found[stage, name, way]:.3g}" for stage in stages)] for name, way in names
    ]
    return table(["prediction", "corrections dealt", *stages], lines)


def dvae(rows: list[Row]) -> str:
    stages = list(dict.fromkeys(row["problem"] for row in rows))
    found = {(row["problem"], row["method"]): row for row in rows}
    lines = []
    for row in rows[: len(rows) // len(stages)]:
        name = row["method"] + ("" if row["unbiased"] == "yes" else " (biased)")
        cost = f"{row['evaluations']} + {row['backward']}b"
        lines.append(
            [name, cost, *(spread(found[stage, row["method"]], "mse") for stage in stages)]
        )
    return table(["method", "evaluations", *stages], lines)


def family(row: Row) -> str:
    return str(row["method"]).split("(")[0]


def least(rows: list[Row], *names: str, others: bool = False) -> Row | None:
    """The row with the least variance of these estimators, or of all others."""
    return min(
        (row for row in rows if (family(row) in names) != others),
        key=lambda row: row["variance"],
        default=None,
    )


def grouped(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(
        rows,
        key=lambda row: list(dict.fromkeys(each["problem"] for each in rows)).index(row["problem"]),
    ):
        found.setdefault((row["problem"], row["seed"]), []).append(row)
    return found


def contest(rows: list[Row]) -> str:
    lines = []
    for (problem, seed), found in grouped(rows).items():
        best = [
            least(found, "MemoryCateR"),
            least(found, "SlopeCateR"),
            least(found, "MemoryCateR", "SlopeCateR", others=True),
        ]
        first = least(found, others=True)
        cells = ["" if row is None else spread(row, "variance") for row in best]
        cells = [
            f"**{cell}**" if row is first else cell for cell, row in zip(cells, best, strict=True)
        ]
        lines.append([f"{problem}, {seed}", *cells, f"`{best[2]['method']}`" if best[2] else ""])
    return table(["problem, seed", "MemoryCateR", "SlopeCateR", "best other", "which is"], lines)


def wins(
    rows: list[Row], *names: str, without: tuple[str, ...] = (), clear: bool = False
) -> list[str]:
    """Problems on which one of these comes first with every seed; ``clear``: and no interval touches its own."""
    lost = set()
    for (problem, _), found in grouped([row for row in rows if family(row) not in without]).items():
        ours, theirs = least(found, *names), [row for row in found if family(row) not in names]
        if ours is None or any(ours["variance"] + clear * ours["variance_95"] >= row["variance"] - clear * row["variance_95"]
                               for row in theirs):  # fmt: skip
            lost.add(problem)
    return [
        problem for problem in dict.fromkeys(row["problem"] for row in rows) if problem not in lost
    ]


def ways(rows: list[Row]) -> tuple[str, list[str]]:
    """RLOO, as MemoryCateR does it, and the others, on the same critics; and which is best, per problem."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["part"] == "ways" or (row["part"] == "contest" and family(row) == "MemoryCateR"):
            way = (
                "one per draw"
                if "variables" in row["method"]
                else "all"
                if row["part"] == "ways"
                else "RLOO"
            )
            found.setdefault(row["problem"], {}).setdefault(way, []).append(row["variance"])
    means = {
        problem: {way: geometric_mean(each[way]) for way in ("RLOO", "all", "one per draw")}
        for problem, each in found.items()
    }
    lines = [
        [problem, *(f"{mean:.3g}" for mean in each.values())] for problem, each in means.items()
    ]
    head = [
        "problem",
        "RLOO",
        "IndeCateR, Latin, all variables",
        "IndeCateR, Latin, one variable per draw",
    ]
    return table(head, lines), [min(each, key=lambda way: each[way]) for each in means.values()]


def listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def page(rows: list[Row], results: list[Row]) -> str:
    parts = {part: [row for row in rows if row["part"] == part] for part in ("residuals", "dvae")}
    small, large = (
        [row for row in results if row["part"] == part] for part in ("contest", "large")
    )
    text, best = ways(results)
    memory, both = wins(small, "MemoryCateR"), wins(small, "MemoryCateR", "SlopeCateR")
    problems = list(dict.fromkeys(row["problem"] for row in small))
    lost = [problem for problem in problems if problem not in both]
    return PAGE.format(
        residuals=residuals(parts["residuals"]),
        dvae=dvae(parts["dvae"]),
        ways=text,
        contest=contest(small),
        count=len(problems),
        memory=len(memory),
        memory_clear=len(wins(small, "MemoryCateR", clear=True)),
        slope=len(wins(small, "SlopeCateR")),
        slope_alone=len(wins(small, "SlopeCateR", without=("MemoryCateR",))),
        either=len(both),
        lost=f" Neither is first with both seeds on {', '.join(lost)}." if lost else "",
        large=contest(large),
        large_count=len({row["problem"] for row in large}),
        rloo=best.count("RLOO"),
        large_memory=len(wins(large, "MemoryCateR")),
        large_memory_names=listed(wins(large, "MemoryCateR")),
        large_slope=len(wins(large, "SlopeCateR")),
        large_slope_names=listed(wins(large, "SlopeCateR")),
    )


def main() -> None:
    path = ROOT / "docs" / "control_variates.md"
    path.write_text(
        page(
            *(
                records.read(ROOT / "results" / "quality" / f"{name}.csv")
                for name in ("control_variates", "contest")
            )
        ),
        encoding="utf-8",
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
