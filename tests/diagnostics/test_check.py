"""check names what is wrong with f, passes sound functions, and leaves everything as it was."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical, Poisson

import catlog
from catlog.testing.cases import CASES, Case

D = 4
NOISE = np.random.default_rng(0)
OWN = torch.Generator()


def bits(*batch: int, dtype: torch.dtype = torch.float32) -> Independent:
    logits = torch.linspace(-1, 1, D, dtype=dtype).expand(*batch, D).clone().requires_grad_()
    return Independent(Bernoulli(logits=logits), 1)


def value(x: Tensor) -> Tensor:
    return (x * torch.arange(1.0, D + 1).to(x)).sum(-1).sin()


def rows_of(*layers: nn.Module) -> Callable[[Tensor], Tensor]:
    network = nn.Sequential(nn.Linear(D, 8), *layers, nn.Linear(8, 1))
    return lambda x: network(x.flatten(0, -2)).view(x.shape[:-1])


MISTAKES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "mean over all": (lambda x: value(x) - value(x).mean(), "alone.*another batch element"),
    "mean over rows": (lambda x: value(x) - value(x).mean(0), "alone"),
    "mean over the batch": (
        lambda x: value(x) - value(x).mean(1, keepdim=True),
        "another batch element",
    ),
    "position": (lambda x: value(x) + torch.arange(len(x)).unsqueeze(1), "another order"),
    "batch normalisation": (rows_of(nn.BatchNorm1d(8)), "alone.*call eval.*LayerNorm"),
    "batch statistics only": (
        rows_of(nn.BatchNorm1d(8, track_running_stats=False)),
        "alone.*call eval",
    ),
    "mixed batch": (
        lambda x: value(x.transpose(0, 1).reshape(x.shape)),
        "alone(.|\n)*another batch element",
    ),
    "one row alone": (lambda x: value(x).squeeze(0), "alone, with ValueError: f must return"),
    "no reduction": (lambda x: x, r"must return shape \(3, 3\)"),
    "not finite": (lambda x: value(x) / 0, "must return finite"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    f, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        catlog.check(f, bits(3))
    if name == "batch normalisation":
        with pytest.raises(ValueError, match=r"Expected more than 1 value.*call eval"):
            catlog.check(f, bits())


NOISY: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": rows_of(nn.Dropout()),
    "torch.rand": lambda x: value(x) + torch.rand(x.shape[:-1]),
    "a number per call": lambda x: value(x) + torch.rand(()),
    "a generator": lambda x: value(x) + torch.rand((), generator=OWN),
    "numpy's generator": lambda x: value(x) + NOISE.random(),
    "numpy": lambda x: value(x) + np.random.random(),  # noqa: NPY002
    "random": lambda x: value(x) + random.random(),
}


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_reported(name: str) -> None:
    report = catlog.check(NOISY[name], bits(3))
    assert report.is_noisy
    assert "eval()" in str(report)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_sound_functions_pass_with_every_kind(case: Case, batch: tuple[int, ...]) -> None:
    q = case.distribution(case.theta.expand(*batch, *case.theta.shape).clone())
    assert not catlog.check(case.function("network"), q).is_noisy


DISTRIBUTIONS: dict[str, Distribution] = {
    "counts": Independent(Poisson(torch.ones(2, D)), 1),
    "chain": catlog.distributions.MarkovChain(torch.zeros(3), torch.zeros(D - 1, 3, 3)),
    "subset": catlog.distributions.Subset(torch.zeros(2, 6), 3),
    "certain": Independent(Bernoulli(logits=torch.full((2, D), 80.0)), 1),
    "a batch of one": bits(1),
    "one variable": Bernoulli(logits=torch.zeros(3)),
}


@pytest.mark.parametrize("q", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_sound_functions_pass_with_dependent_variables_and_counts(q: Distribution) -> None:
    events = len(q.event_shape)

    def f(x: Tensor) -> Tensor:
        return x.float().flatten(x.dim() - events).sum(-1) if events else x.float()

    assert not catlog.check(f, q).is_noisy
    with pytest.raises(ValueError, match="Points must not influence each other"):
        catlog.check(lambda x: f(x) + x.float().sum(), q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [3, 300])
def test_rounding_is_no_influence(dtype: torch.dtype, width: int) -> None:
    """Also where autocast rounds, inside f or around the check."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(D, width), nn.ReLU(), nn.Linear(width, width)).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, target = bits(50, dtype=wide), torch.randn(50, width, dtype=dtype)

    def f(x: Tensor) -> Tensor:
        return (network(x.to(network[0].weight.dtype)) - target).square().sum(-1)

    catlog.check(f, q)
    if dtype.itemsize == 2:
        network.float()
        with torch.autocast("cpu", dtype=dtype):
            catlog.check(f, q)
        catlog.check(lambda x: torch.autocast("cpu", dtype=dtype)(f)(x).float(), q)


class Offers(nn.Module):
    """The sum of bits, with a table and a mean that may be wrong."""

    def __init__(self, table: float = 0.0, mean: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.error, self.mean = table, mean or (lambda probs: probs.sum(-1))

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)

    def neighbours(self, x: Tensor, variables: Tensor | None = None) -> Tensor:
        rest = self(x).unsqueeze(-1) - x
        table = torch.stack([rest, rest + 1 + self.error], -1)
        if variables is None:
            return table
        return table.gather(-2, variables.unsqueeze(-1).expand(*variables.shape, 2))

    def expectation(self, q: Independent) -> Tensor:
        return self.mean(q.base_dist.probs)


def test_what_f_offers_is_compared_with_f() -> None:
    report = str(catlog.check(Offers(), bits(3)))
    assert "f.neighbours: agrees" in report
    assert "f.expectation: agrees" in report
    with pytest.raises(ValueError, match=r"f\.neighbours does not agree with f"):
        catlog.check(Offers(table=0.1), bits(3))


MEANS: dict[str, Callable[[Tensor], Tensor]] = {
    r"f\.expectation does not agree .* returns 2\.01 at index \(0,": lambda p: p.sum(-1) + 0.01,
    r"f\.expectation does not agree .* the derivative 0 at index": lambda p: p.sum(-1).detach(),
    r"derivative 0\.39": lambda p: (2 * p - p.detach()).sum(-1),
    r"f\.expectation must return finite numbers": lambda p: p.sum(-1) * torch.nan,
    r"f\.expectation must return a tensor of shape": lambda p: p,
}


@pytest.mark.parametrize("message", MEANS)
@pytest.mark.parametrize("is_default", [True, False])
def test_a_wrong_mean_is_found(
    message: str, is_default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a compilation: a process's first torch.compile switches torch's checks off."""
    monkeypatch.setattr(Distribution, "_validate_args", is_default)
    with pytest.raises(ValueError, match=message):
        catlog.check(Offers(mean=MEANS[message]), bits(2))


def test_outputs() -> None:
    q = bits(3)
    catlog.check(lambda x: x.cumsum(-1), q, outputs=1)
    with pytest.raises(ValueError, match="alone"):
        catlog.check(lambda x: x - x.mean((0, 1)), q, outputs=1)


def test_the_network_of_q_is_checked() -> None:
    q = catlog.distributions.Autoregressive(lambda x, i: x[..., -1:] * torch.arange(3.0), [3, 3])
    with pytest.raises(ValueError, match="q: the network's logits"):
        catlog.check(lambda x: x.float().sum(-1), q)


def test_few_evaluations() -> None:
    rows = []

    def f(x: Tensor) -> Tensor:
        rows.append(len(x))
        return value(x)

    catlog.check(f, bits(5))
    assert sum(rows) == 13


def test_a_function_of_ranks_and_a_one_hot_function_pass() -> None:
    q = Independent(OneHotCategorical(logits=torch.zeros(2, D, 3)), 1)
    catlog.check(catlog.functions.Sharded(lambda x: x[..., 1].sum(-1)), q)
