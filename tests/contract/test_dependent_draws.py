"""Draws that depend on each other: every estimator that offers them passes them to f."""

from inspect import signature
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent
from torch.testing import assert_close

import catlog
from catlog.core import randomness
from catlog.core.estimator import Estimator
from catlog.core.randomness import Randomness, Sampling
from catlog.core.view import view
from catlog.estimators import ESTIMATORS
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expectation, expected
from catlog.testing.cases import normals, seeded
from catlog.testing.enumeration import drawing, every_coupling
from catlog.testing.settings import Coupling
from support.laws import bits, one_hots

OFFERING = sorted(name for name, E in ESTIMATORS.items() if "sampling" in signature(E).parameters)
BATCH, D, K = 5, 6, 4


def made(name: str, samples: int, sampling: str) -> Estimator:
    hard = {"hard": True} if name == "GumbelSoftmax" else {}
    return ESTIMATORS[name](samples=samples, sampling=sampling, **hard)


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
    q = bits(torch.zeros(BATCH, D, requires_grad=True))
    first, second = drawn(made(name, 2, "antithetic"), q)
    assert torch.equal(first, 1 - second)


@pytest.mark.parametrize("name", OFFERING)
def test_as_many_latin_bits_as_their_probability_says(name: str) -> None:
    logits = torch.tensor([0.25, 0.5, 0.75]).logit().repeat(BATCH, D // 3).requires_grad_()
    x = drawn(made(name, 8, "latin"), bits(logits))
    expected = torch.tensor([2.0, 4.0, 6.0]).repeat(BATCH, D // 3)
    assert torch.equal(x.sum(0), expected)


@pytest.mark.parametrize("name", sorted({*OFFERING} - {"DARN", "GumbelSoftmax"}))
def test_every_one_of_equally_likely_categories_is_drawn_once(name: str) -> None:
    q = one_hots(torch.zeros(BATCH, D, K, requires_grad=True))
    x = drawn(made(name, K, "latin"), q)
    assert torch.equal(x.sum(0), torch.ones(BATCH, D, K))


def test_relaxed_draws_are_finite_at_the_end_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last stratum of float32 contains 1 by rounding, whose Gumbel would be infinite."""

    monkeypatch.setattr(Randomness, "_dependent", lambda draw, n, shape, _: torch.ones(n, *shape))
    logits = torch.zeros(2, D, K, requires_grad=True)
    q = one_hots(logits)
    value = catlog.GumbelSoftmax(4, sampling="latin")(lambda x: x[..., 0].square().sum(-1), q)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


# Their expectation, of which the battery judges most

SIXTHS = torch.arange(1, 6, dtype=torch.float64) / 6


@pytest.mark.parametrize("sampling", ["antithetic", "latin"])
@pytest.mark.parametrize("n", [2, 3])
def test_every_uniform_of_relaxed_draws_is_uniform(n: int, sampling: Sampling) -> None:
    calls, chance = every_coupling(Coupling(n, sampling, 1, SIXTHS.view(1, -1)))
    draw = Randomness(view(bits(torch.zeros(len(chance), 1, dtype=torch.float64))))
    with drawing(calls):
        u = draw.uniforms(n, len(chance), 1, sampling=sampling)
    for row in (6 * u).long().squeeze(-1):
        cells = torch.zeros(6, dtype=torch.float64).scatter_add(0, row, chance)
        assert_close(cells, torch.full((6,), 1 / 6, dtype=torch.float64))


def test_a_relaxed_estimate_is_the_mean_over_its_draws() -> None:
    q = one_hots(torch.zeros(BATCH, D, K))
    u = torch.rand(4, BATCH, D, K, generator=seeded())
    E, alone = (catlog.GumbelSoftmax(n, sampling="latin") for n in (4, 1))
    costs = normals(D, K).to(u)
    values = [alone(lambda x: (x * costs).sum((-1, -2)).sin(), q, noise=row[None]) for row in u]
    whole = E(lambda x: (x * costs).sum((-1, -2)).sin(), q, noise=u)
    assert_close(whole, torch.stack(values).mean(0))


@pytest.mark.parametrize("sampling", ["antithetic", "latin"])
@pytest.mark.parametrize("setting", [{"variables": 1}, {"per_variable": True}], ids=str)
@pytest.mark.parametrize("is_sorted", [False, True])  # as more draws than can be enumerated are
def test_dependent_draws_of_chosen_variables_are_unbiased(
    is_sorted: bool, setting: dict[str, Any], sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sorted:
        monkeypatch.setattr(randomness, "MOST_COUNTED", 0)
        monkeypatch.setattr(randomness, "MOST_INSERTED", 0)
    case, f = CASES["bits, two event dims"], FUNCTIONS["sine"]
    E = catlog.IndeCateR(2, sampling=sampling, **setting)
    got, exact = expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER)
    assert_close(got, exact, rtol=0, atol=1e-12)


def test_inserted_ranks_are_all_permutations_once() -> None:
    """Every rank that can be inserted, in the middle of its interval of the key."""
    ranks = [(torch.arange(size) + 0.5) / size for size in range(1, 6)]
    orders = randomness._insertions(torch.cartesian_prod(*ranks).T).T
    assert sorted(orders.tolist()) == [list(order) for order in permutations(range(5))]
    largest = torch.full((200,), 1 - 2**-24)  # the largest uniform of float32
    assert randomness._insertions(largest).tolist() == list(range(200))
