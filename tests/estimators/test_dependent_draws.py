"""Draws that depend on each other: every estimator that offers them passes them to f."""

from inspect import signature

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog.estimator import Estimator
from catlog.estimators import ESTIMATORS
from catlog.estimators.relaxations import gumbel_softmax

OFFERING = sorted(name for name, E in ESTIMATORS.items() if "draws" in signature(E).parameters)
BATCH, D, K = 5, 6, 4


def made(name: str, samples: int, draws: str) -> Estimator:
    hard = {"hard": True} if name == "GumbelSoftmax" else {}
    return ESTIMATORS[name](samples=samples, draws=draws, **hard)


def drawn(E: Estimator, q: Independent) -> Tensor:
    """Return the first points that f sees, one row per draw."""
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return x.sum(-1) if x.dim() == 3 else x.sum((-1, -2))

    E(f, q)
    return seen[0][: E.samples].round()  # straight-through points are exact to rounding


def test_the_straight_through_family_offers_them() -> None:
    assert {"ReinMax", "StraightThrough", "DARN", "GumbelRao", "IndeCateR"} < set(OFFERING)


@pytest.mark.parametrize("name", OFFERING)
def test_antithetic_bits_are_opposite(name: str) -> None:
    q = Independent(Bernoulli(logits=torch.zeros(BATCH, D, requires_grad=True)), 1)
    first, second = drawn(made(name, 2, "antithetic"), q)
    assert torch.equal(first, 1 - second)


@pytest.mark.parametrize("name", OFFERING)
def test_as_many_latin_bits_as_their_probability_says(name: str) -> None:
    logits = torch.tensor([0.25, 0.5, 0.75]).logit().repeat(BATCH, D // 3).requires_grad_()
    x = drawn(made(name, 8, "latin"), Independent(Bernoulli(logits=logits), 1))
    expected = torch.tensor([2.0, 4.0, 6.0]).repeat(BATCH, D // 3)
    assert torch.equal(x.sum(0), expected)


@pytest.mark.parametrize("name", sorted({*OFFERING} - {"DARN", "GumbelSoftmax"}))
def test_every_one_of_equally_likely_categories_is_drawn_once(name: str) -> None:
    q = Independent(OneHotCategorical(logits=torch.zeros(BATCH, D, K, requires_grad=True)), 1)
    x = drawn(made(name, K, "latin"), q)
    assert torch.equal(x.sum(0), torch.ones(BATCH, D, K))


def test_relaxed_draws_are_finite_at_the_end_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last stratum of float32 contains 1 by rounding, whose Gumbel would be infinite."""

    def ones(n: int, shape: tuple[int, ...], draws: str, **kind: object) -> Tensor:
        return torch.ones(n, *shape)

    monkeypatch.setattr(gumbel_softmax, "uniforms", ones)
    logits = torch.zeros(2, D, K, requires_grad=True)
    q = Independent(OneHotCategorical(logits=logits), 1)
    value = catlog.GumbelSoftmax(4, draws="latin")(lambda x: x[..., 0].square().sum(-1), q)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
