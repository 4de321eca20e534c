"""The verdicts, numbers and figures of reproduction.md."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import mean

from catlog_experiments import records
from catlog_experiments.report.claims import judge
from catlog_experiments.report.figures import Picture, pictures
from catlog_experiments.report.runs import Evidence

from . import RESULTS, Row, grouped, read, table

EXPERIMENTS = ("gradients", "optimisation", "dvae", "addition")
FIGURES = ("gradients-pairwise", "dvae-time", "addition")
DIGITS = (4, 8, 12, 16, 24, 32)


@cache
def load() -> Evidence:
    rows = records.read_all(RESULTS / "paper" / f"{name}.csv" for name in EXPERIMENTS)
    return Evidence.from_rows(rows, read("speed/step_times_cuda"))


def additions(rows: list[Row]) -> str:
    """Return the share of right sums after the last epoch, a column per number of digits."""
    lines = []
    for (name, samples), runs in grouped(rows, "estimator", "samples").items():
        cells = []
        for digits in DIGITS:
            seeds = grouped([row for row in runs if row["digits"] == digits], "seed").values()
            ends = [100 * run[-1]["accuracy"] for run in seeds]
            cells.append(f"{mean(ends):.0f}" if ends else "")
        lines.append([f"{name}, {samples} draws" if samples else name, *cells])
    return table(("digits", *DIGITS), sorted(lines))


def values() -> dict[str, object]:
    judged = judge(load())
    outcomes = Counter(verdict.outcome for _, verdict in judged)
    return {
        "count": f"{outcomes['holds']} hold, {outcomes['does not hold']} do not, and "
        f"{outcomes['not testable']} could not be tested",
        "verdicts": "\n".join(f"- *{verdict.outcome}*: {claim.says}" for claim, verdict in judged),
        "additions": additions(read("paper/addition")),
    }


def draw(picture: Picture, path: Path) -> None:
    picture.draw().savefig(path, dpi=150)


def figures() -> dict[str, Callable[[Path], None]]:
    shown = [picture for picture in pictures(load()) if picture.name in FIGURES]
    return {f"{picture.name}.png": partial(draw, picture) for picture in shown}
