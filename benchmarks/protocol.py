"""The runs of the field's own tables of autoencoders, and those behind the paper's claims.

    python -m benchmarks.protocol                        # the commands, the most needed first
    python -m benchmarks.protocol --only headline two    # some of them
    python -m benchmarks.protocol | xargs -L 1 catlog    # makes the runs, below --root
    catlog export runs/protocol --output runs/protocol.csv

A run trains five models of the protocol in one captured step; 10^6 steps of a binary protocol take
about five minutes on an H200, a categorical run half a minute. A run that is complete is skipped.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import product
from shlex import quote

TABLES = tuple(product(("bernoulli", "gaussian"), ("mnist", "fashion-mnist")))
# Estimators by their number of evaluations K.
FIRST = "SlopeCateR(2, corrections=1)"
THREE = ("RODEO(3)", "DoubleCV(3)", "ARMS(3)", "ReinMax(3)")
TWO = (
    "SlopeCateR(1, corrections=1)", "DisARM(1)", "RODEO(2)", "DoubleCV(2)", "ARMS(2)", "ReinMax(2)",
)  # fmt: skip
BEST = ("SlopeCateR(8)", "ReinMax(8)", "RLOO(14)", "IndeCateR(2)", "RELAX(3)", "REBAR(1)")
BITS = {"headline": (FIRST,), "rivals": THREE, "two": TWO, "best": BEST}
# Categories x variables, in the published order.
SIZES = ((8, 4), (4, 24), (8, 16), (16, 12), (64, 8), (10, 30))
CATEGORICAL = (
    "SlopeCateR(1)", "SlopeCateR(1, corrections=1, pairs=False)", "ReinMax(1)",
    "ReinMax(1, temperature=1.5)", "GappedStraightThrough(1)", "GumbelSoftmax(1, hard=True)",
    "RLOO(4)", "IndeCateR(1)",
)  # fmt: skip
# Data and length of runs, and their estimators.
CLAIMS = (
    ("fashion-mnist --categories 10 --epochs 24", "IndeCateR"),
    ("fashion-mnist --categories 10 --epochs 20", "IndeCateR-D"),
    ("fashion-mnist --categories 10 --epochs 5", "RLOO-F"),
    ("fashion-mnist --categories 10 --epochs 4", "GS-F"),
    ("omniglot --epochs 500 --every 960", "IndeCateR GS-S RLOO-S RLOO-F GS-F"),
    ("mnist --epochs 500 --every 3000", "IndeCateR RLOO-F"),
    ("fashion-mnist --epochs 500 --every 3000", "IndeCateR RLOO-F"),
)
PARTS = (*BITS, "categories", "claims")


def estimator_flags(label: str) -> str:
    """Return the flags of `catlog run` for the estimator of a label.

    >>> estimator_flags("IndeCateR(9, sampling=latin, variables=4)")
    '--estimator IndeCateR --samples 9 --options sampling=latin variables=4'
    """
    name, samples, options = re.fullmatch(r"(\w+)\((\d+)(?:, )?(.*)\)", label).groups()  # type: ignore[union-attr]
    flags = f"--estimator {name} --samples {samples}"
    return flags + (f" --options {options.replace(', ', ' ')}" if options else "")


def commands(part: str, root: str) -> Iterator[str]:
    """Yield the arguments of `catlog` for the runs of a part; a sweep skips a complete run."""
    start = f"sweep dvae --root {quote(root)}"
    for (protocol, data), label in product(TABLES, BITS.get(part, ())):
        sizes = f"--protocol {protocol} --data {data} --models 5 --epochs 2000"
        yield f"{start} {sizes} {estimator_flags(label)}"
    for (k, d), label in product(SIZES, CATEGORICAL) if part == "categories" else ():
        sizes = "--protocol categorical --data mnist --models 5 --epochs 160 --every 6000"
        sizes += f" --categories {k} --variables {d}"
        yield f"{start} {sizes} {estimator_flags(label)}"
    for seed, (sizes, names) in product((0, 1), CLAIMS) if part == "claims" else ():
        for name in names.split():
            yield f"{start} --data {sizes} --estimator {name} --seed {seed}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--root", default="runs/protocol")
    options = parser.parse_args(arguments)
    for part in options.only:
        print(*commands(part, options.root), sep="\n")


if __name__ == "__main__":
    main()
