"""Bias of `catlog.log_expectation`, by enumeration.

    python -m benchmarks.log_expectation           # 2 minutes; results/quality/log_expectation.csv
    python -m benchmarks.log_expectation --quick   # seconds; writes only to a given --output

f says whether two digits of 0, 1, 2 add up to a sum. Every outcome of the draws is enumerated, so
no number has noise. Rows with the same `draws` cost the same: `repeats` calls of an estimator with
`draws` / `repeats` draws each. Columns:

- zero: the probability that the estimate is 0;
- predicted: the first-order bias of the plain logarithm, -Var / (2 mean^2);
- value_bias, value_rmse: of the estimate of log E[f], with a floor of 1e-8;
- positive_bias: value_bias, given that the estimate is positive;
- gradient_bias, gradient_rmse: of its gradient in the logits, over the norm of the exact one;
- cosine: of the angle between the expected gradient and the exact one.
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog
from catlog.logarithm import log_of_mean
from catlog.testing import Case
from catlog.testing.cases import grid

from .command_line import opened, table_parser
from .tables import Row

FLOOR = 1e-8  # of the experiment `addition`
CHUNK = 100_000  # outcomes at once
DRAWS = (2, 4, 8, 16)
REPEATS = (1, 2, 4)
SUMS = {"rare": 4, "common": 2}
PROBABILITIES = torch.tensor([[0.45, 0.35, 0.2], [0.4, 0.35, 0.25]], dtype=torch.float64)
DIGITS = Case(
    "integers",
    PROBABILITIES.log(),
    lambda logits: Independent(Categorical(logits=logits), 1),
    grid(3, 3),
    lambda x: x.double(),
)


def make(name: str, draws: int) -> catlog.Estimator:
    """Return an estimator with this number of draws."""
    if name == "IndeCateR":
        return catlog.IndeCateR(draws)
    return catlog.RLOO(draws) if name == "RLOO" else catlog.Exact()


def outcomes(case: Case, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all multisets of draws, x [rows, outcomes, *event] and their probabilities, in chunks.

    An estimate does not depend on the order of independent draws.
    """
    points = range(len(case.points))
    log_probs = case.probabilities(case.theta).log()
    choices = torch.tensor(list(combinations_with_replacement(points, rows)))
    for choice in choices.split(CHUNK):
        counts = (choice.unsqueeze(-1) == torch.arange(len(points))).sum(1).double()
        orders = torch.lgamma(torch.tensor(rows + 1.0).double()) - torch.lgamma(counts + 1).sum(-1)
        yield case.points[choice].movedim(1, 0), (orders + counts @ log_probs).exp()


class Estimates:
    """The distribution of one estimate, by its distinct values.

    Attributes:
        probability: of every value.
        value: the distinct values.
        gradient: the mean gradient at every value, ``[values, parameters]``.
        square: the mean squared norm of the gradient at every value.
    """

    def __init__(self, E: catlog.Estimator, case: Case, target: int) -> None:
        probabilities, values, gradients = [], [], []
        rows = E.rows(case.distribution(case.theta))
        parts = outcomes(case, rows) if E.randomness else [(None, torch.ones(1).double())]
        for x, probability in parts:
            theta = case.theta.expand(len(probability), *case.theta.shape).clone().requires_grad_()
            given = {} if x is None else {"x": x}
            value = E(lambda x: (x.sum(-1) == target).double(), case.distribution(theta), **given)
            probabilities.append(probability)
            values.append(value.detach())
            gradients.append(torch.autograd.grad(value.sum(), theta)[0].flatten(1))
        weight, gradient = torch.cat(probabilities), torch.cat(gradients)
        self.value, group = torch.cat(values).round(decimals=12).unique(return_inverse=True)
        self.probability = torch.zeros_like(self.value).index_add(0, group, weight)
        total = torch.zeros(len(self.value), gradient.shape[-1], dtype=weight.dtype)
        self.gradient = total.index_add(0, group, weight[:, None] * gradient)
        self.gradient /= self.probability[:, None]
        square = weight * gradient.square().sum(-1)
        self.square = torch.zeros_like(self.value).index_add(0, group, square) / self.probability

    def moments(self, repeats: int, log_mean: float, exact: Tensor) -> Row:
        """Return bias and errors of the logarithm from ``repeats`` independent estimates."""
        choice = torch.cartesian_prod(*[torch.arange(len(self.value))] * repeats)
        choice = choice.reshape(-1, repeats).T
        weight = self.probability[choice].prod(0)
        estimates = self.value[choice].requires_grad_()
        value = log_of_mean(estimates, FLOOR)
        # The logarithm sees values only, so a gradient enters by its mean and its mean square.
        (factor,) = torch.autograd.grad(value.sum(), estimates)
        mean = (factor.unsqueeze(-1) * self.gradient[choice]).sum(0)
        spread = self.square - self.gradient.square().sum(-1)
        square = mean.square().sum(-1) + (factor.square() * spread[choice]).sum(0)
        gradient = weight @ mean
        value, norm = value.detach(), exact.norm()
        is_positive = estimates.detach().mean(0) > 0
        positive = weight * is_positive
        variance = weight @ square - 2 * (gradient @ exact) + exact.square().sum()
        return {
            "zero": float(weight @ (~is_positive).double()),
            "value_bias": float(weight @ value) - log_mean,
            "positive_bias": float(positive @ value / positive.sum()) - log_mean,
            "value_rmse": float(weight @ (value - log_mean).square()) ** 0.5,
            "gradient_bias": float((gradient - exact).norm() / norm),
            "cosine": float(gradient @ exact / (gradient.norm() * norm)),
            "gradient_rmse": float(variance.clamp(min=0).sqrt() / norm),
        }


@cache
def distribution(name: str, draws: int, target: int) -> Estimates:
    """Return the distribution of one call with this number of draws."""
    return Estimates(make(name, draws), DIGITS, target)


def measure(problem: str, name: str, draws: int, repeats: int) -> Row:
    """Return the row of ``repeats`` calls with ``draws`` draws in all."""
    E = make(name, draws // repeats)
    truth = distribution("Exact", 1, SUMS[problem])
    probability = float(truth.value)
    estimates = distribution(name, draws // repeats, SUMS[problem])
    variance = float(estimates.probability @ (estimates.value - probability).square()) / repeats
    return {
        "problem": problem,
        "estimator": name,
        "draws": draws,
        "repeats": repeats,
        "evaluations": repeats * E.evaluations(DIGITS.distribution(DIGITS.theta)),
        "probability": probability,
        "predicted": -variance / (2 * probability**2),
    } | estimates.moments(repeats, float(truth.value.log()), truth.gradient[0] / probability)


def main() -> None:
    key = ("problem", "estimator", "draws", "repeats")
    args, table = opened(table_parser(__doc__), "quality/log_expectation.csv", *key)
    settings = [("Exact", 1, 1)]
    settings += [
        (name, draws, repeats)
        for name, least in (("RLOO", 2), ("IndeCateR", 1))
        for draws in (DRAWS[:2] if args.quick else DRAWS)
        for repeats in REPEATS
        if draws // repeats >= least
    ]
    for problem in SUMS:
        rows = [measure(problem, *setting) for setting in settings]
        table.add(rows, f"{problem}: the digits add up to {SUMS[problem]}")


if __name__ == "__main__":
    main()
