"""Which derivative of a draw predicts exact sums best? The choice inside SlopeCateR.

    python -m benchmarks.slope_predictions            # writes results/quality/slope_predictions.csv
    python -m benchmarks.slope_predictions --quick    # seconds; writes only to a given --output

SlopeCateR predicts the gradient of each variable from slopes of f, and corrects some of the
variables by exact sums. Its prediction is ReinMax's. Here every slope-based estimator predicts, on
the autoencoder of `benchmarks.temperatures` after some steps of training, for 20 test digits and
several draws of the other variables. With g the exact gradient in the logits of one variable given
the others, m(c) the estimator's when category c is drawn, and m its mean over c:

- `beta`: the coefficient of the least-squares fit of g by m
- `residual`: E|g - beta m|^2 / E|g|^2, which the corrections have to make up for
- `noise`: E|beta (m(c) - m)|^2 / E|g|^2, over the category that is drawn

Gumbel noise that an estimator adds is averaged over 50 vectors.
"""

import torch
from torch import Tensor
from torch.distributions import OneHotCategorical

import catlog
from catlog.sample import SlopeEstimator
from catlog_experiments.data import load

from .command_line import opened, table_parser
from .tables import Row
from .temperatures import CATEGORIES, VARIABLES, Autoencoder, trained

ESTIMATORS: list[SlopeEstimator] = [
    catlog.StraightThrough(),
    catlog.ReinMax(),
    catlog.estimators.MinimumVarianceStraightThrough(bias_weight=1.0),
    catlog.estimators.MinimumVarianceStraightThrough(bias_weight=100.0),
    catlog.estimators.MinimumVarianceStraightThrough(bias_weight=1e6),
    catlog.estimators.GappedStraightThrough(),
    catlog.estimators.GumbelRao(noise_samples=50, temperature=0.5),
    catlog.estimators.GumbelRao(noise_samples=50, temperature=0.1),
    catlog.estimators.ReinMaxRao(noise_samples=50, temperature=0.5),
    catlog.estimators.ReinMaxCV(noise_samples=50),
]


def neighbours(
    model: Autoencoder, images: Tensor, x: Tensor, variable: int
) -> tuple[Tensor, Tensor]:
    """Return f and its slope in one variable, at all its categories c: [c, n, b] and [..., k]."""
    points = x.expand(CATEGORIES, *x.shape).clone()
    points[..., variable, :] = torch.eye(CATEGORIES)[:, None, None]
    points.requires_grad_()
    values = model.reconstruction(points, images)
    (slopes,) = torch.autograd.grad(values.sum(), points)
    return values.detach(), slopes[..., variable, :]


def predicted(E: SlopeEstimator, logits: Tensor, slopes: Tensor) -> Tensor:
    """Return the estimator's gradient in the logits for every drawn category: [c, n, b, k]."""
    leaf = logits.expand(slopes.shape).clone().requires_grad_()
    drawn = torch.eye(CATEGORIES)[:, None, None].expand(slopes.shape)
    y = catlog.sample(leaf, E, x=drawn, generator=torch.Generator().manual_seed(0))
    return torch.autograd.grad((y * slopes).sum(), leaf)[0]


def measure(model: Autoencoder, images: Tensor, steps: int, draws: int) -> list[Row]:
    logits = model.logits(images).detach()
    torch.manual_seed(1)
    x = OneHotCategorical(logits=logits).sample((draws,))
    sums = {E: torch.zeros(4, dtype=torch.float64) for E in ESTIMATORS}
    for variable in range(VARIABLES):
        values, slopes = neighbours(model, images, x, variable)
        p = logits[:, variable].softmax(-1)
        table = values.movedim(0, -1)  # [n, b, k]
        exact = p * (table - (p * table).sum(-1, keepdim=True))
        for E in ESTIMATORS:
            each = predicted(E, logits[:, variable], slopes)
            weight = p.T[:, None, :, None]  # of c
            mean = (weight * each).sum(0)
            spread = (weight * (each - mean).square()).sum()
            parts = (exact * mean).sum(), mean.square().sum(), exact.square().sum(), spread
            sums[E] += torch.stack(parts).double()
    rows = []
    for E, (product, square, total, spread) in sums.items():
        beta = product / square
        rows.append(
            {
                "estimator": repr(E),
                "steps": steps,
                "beta": float(beta),
                "residual": float(1 - beta * product / total),
                "noise": float(beta.square() * spread / total),
            }
        )
    return rows


def main() -> None:
    parser = table_parser(__doc__)
    args, table = opened(parser, "quality/slope_predictions.csv", "estimator", "steps")
    data = load("mnist-5000")
    train, test = data.train.round(), data.test.round()
    model, done = Autoencoder(0), 0
    for steps in (5,) if args.quick else (100, 500):
        trained(model, catlog.ReinMax(), train, steps - done, seed=steps)
        done = steps
        rows = measure(model, test[:20], steps, draws=2 if args.quick else 50)
        table.add(rows, f"after {steps} steps")


if __name__ == "__main__":
    main()
