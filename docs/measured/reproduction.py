"""The verdicts, numbers and figures of reproduction.md."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from catlog_experiments import records
from catlog_experiments.report.claims import judge
from catlog_experiments.report.figures import Picture, pictures
from catlog_experiments.report.runs import Evidence

from . import RESULTS, read

EXPERIMENTS = ("gradients", "optimisation", "dvae", "addition")
FIGURES = ("gradients-pairwise", "dvae-time", "addition")


@cache
def load() -> Evidence:
    rows = records.read_all(RESULTS / "paper" / f"{name}.csv" for name in EXPERIMENTS)
    return Evidence.from_rows(rows, read("speed/step_times_cuda"))


def values() -> dict[str, object]:
    judged = judge(load())
    outcomes = Counter(verdict.outcome for _, verdict in judged)
    return {
        "count": f"{outcomes['holds']} hold and {outcomes['does not hold']} do not",
        "verdicts": "\n".join(f"- *{verdict.outcome}*: {claim.says}" for claim, verdict in judged),
    }


def draw(picture: Picture, path: Path) -> None:
    picture.draw().savefig(path, dpi=150)


def figures() -> dict[str, Callable[[Path], None]]:
    shown = [picture for picture in pictures(load()) if picture.name in FIGURES]
    return {f"{picture.name}.png": partial(draw, picture) for picture in shown}
