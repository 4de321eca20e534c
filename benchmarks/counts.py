"""The noise of gradients for Poisson counts: differences, and estimators of truncated counts.

    python -m benchmarks.counts    # writes results/quality/counts.csv

16 counts with rates of 0.5 to 4. The variance is that of the gradient in the rates, summed over
them, at one number of evaluations: 1 + 16 for a draw of `CountDifferences`, as many draws of RLOO.
`IndeCateR` sums over all categories of every count, so its single draw needs more. Three functions:

- `linear`: a weighted sum of the counts,
- `quadratic`: the square of its distance from a target,
- `decoder`: the cross-entropy of 64 random bits after a random network of the counts' square roots.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Poisson

from catlog import RLOO, CritiCateR, Estimator, IndeCateR
from catlog.estimators import CountDifferences
from catlog.distributions import lost_mass, truncated
from catlog.core.evaluator import Function

from .command_line import opened, table_parser
from .quality.measuring import observe_batched
from .tables import Row

COUNTS, CATEGORIES = 16, 24


def functions() -> dict[str, Function]:
    torch.manual_seed(0)
    weights = torch.randn(COUNTS)
    network = nn.Sequential(nn.Linear(COUNTS, 64), nn.ReLU(), nn.Linear(64, 64))
    bits = torch.randint(0, 2, (64,)).float()

    def decoder(z: Tensor) -> Tensor:
        logits = 3 * network(z.float().sqrt())
        return (nn.functional.softplus(logits) - bits * logits).sum(-1)

    return {
        "linear": lambda z: z.float() @ weights,
        "quadratic": lambda z: (z.float() @ weights - 3).square(),
        "decoder": decoder,
    }


def counts(rate: Tensor) -> Distribution:
    return Independent(Poisson(rate, validate_args=False), 1)


def truncated_counts(rate: Tensor) -> Distribution:
    return truncated(counts(rate), categories=CATEGORIES)


def main() -> None:
    parser = table_parser(__doc__, quick=False, repeats=2000)
    args, table = opened(parser, "quality/counts.csv", "function", "estimator")
    rate = torch.linspace(0.5, 4.0, COUNTS)
    sides: dict[str, tuple[Estimator, Callable[[Tensor], Distribution]]] = {
        "CountDifferences(1)": (CountDifferences(1), counts),
        "RLOO(17), truncated": (RLOO(1 + COUNTS), truncated_counts),
        "CritiCateR(17), truncated": (CritiCateR(1 + COUNTS), truncated_counts),
        "IndeCateR(1), truncated": (IndeCateR(1), truncated_counts),
    }
    rows: list[Row] = []
    for (name, f), (label, (E, make_q)) in product(functions().items(), sides.items()):
        generator = torch.Generator().manual_seed(1)
        moments = observe_batched(E, f, make_q, rate, args.repeats, generator)
        is_exact = make_q is counts
        rows.append(
            {
                "function": name,
                "estimator": label,
                "evaluations": E.evaluations(make_q(rate)),
                "repeats": args.repeats,
                "variance": moments.variance,
                "error": moments.error * moments.variance,
                "squared_norm": moments.norm2,
                "lost_mass": 0.0 if is_exact else float(lost_mass(counts(rate), CATEGORIES)),
            }
        )
    table.add(rows, "variance of the gradient in the rates of 16 counts")


if __name__ == "__main__":
    main()
