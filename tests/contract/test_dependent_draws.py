"""Draws that depend on each other: every estimator that offers them passes them to f.

Values and gradients keep their expectation, which is shown by enumeration of the uniforms behind
the draws.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import permutations, product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog.core import randomness
from catlog.core.estimator import Estimator
from catlog.core.randomness import Randomness
from catlog.estimators import ESTIMATORS
from catlog.testing.cases import seeded
from catlog.testing.settings import tape
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


# The expectation, by enumeration

CELLS = 6  # of the unit interval, so that two or three strata hold whole cells


def middles(cells: int) -> list[float]:
    return [(cell + 0.5) / cells for cell in range(cells)]


def every_uniform(scheme: str, n: int) -> list[Tensor]:
    """Return what `uniforms` draws for n draws of one variable, ``[outcomes, rows]`` per call.

    The outcomes are equally likely. A uniform stands in the middle of one of 6 cells, or within its
    stratum in the middle of one of 6 / n cells.
    """
    if scheme == "latin":
        orders = list(permutations(middles(n)))
        places = list(product(middles(CELLS // n), repeat=n))
        keys, within = zip(*product(orders, places), strict=True)
        return [torch.tensor(numbers, dtype=torch.float64) for numbers in (keys, within)]
    rows = (n + 1) // 2 if scheme == "antithetic" else n
    return [torch.tensor(list(product(middles(CELLS), repeat=rows)), dtype=torch.float64)]


def every_outcome(scheme: str, n: int, variables: Sequence[int]) -> list[Tensor]:
    """Return what `uniforms` draws for independent variables, ``[rows, outcomes, *variables]``."""
    calls = every_uniform(scheme, n)
    choice = torch.cartesian_prod(*[torch.arange(len(calls[0]))] * prod(variables))
    choice = choice.view(-1, *variables)
    return [call[choice].movedim(-1, 0) for call in calls]


def feed(calls: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tensor]:
    """Let `uniforms` draw these numbers, one tensor per call, and return the rest of them."""
    rest = iter(calls)

    def rand(shape: Sequence[int], *options: object) -> Tensor:
        numbers = next(rest)
        assert numbers.shape == tuple(shape)
        return numbers

    monkeypatch.setattr(randomness, "rand", rand)
    return rest


def injected(E: Estimator, q: Independent, outcomes: int) -> dict[str, tuple[Tensor, ...]]:
    """Return the same noise for every draw and outcome: what remains random are the draws."""
    taken = [(name, shape) for name, shape in tape(E, q) if name != "points"]
    if not taken or type(E).__name__ == "GumbelSoftmax":  # its noise is what it draws
        return {}
    ((name, shape),) = taken
    if name == "variables":
        return {"noise": (torch.zeros(shape, dtype=torch.int64),)}
    if type(E).__name__ == "SlopeCateR":
        return {"noise": (torch.full(shape, 0.3, dtype=torch.float64),)}
    rows = shape.index(outcomes) - 1
    one = torch.rand(*shape[:rows], 1, 1, *shape[rows + 2 :], generator=seeded()).double()
    return {"noise": (one.expand(shape),)}


def wave(x: Tensor) -> Tensor:
    """Return a curved function of two bits, or of one or two one-hot vectors of 3."""
    flat = x.flatten(-2) if x.shape[-1] == 3 else x
    return (flat * torch.arange(1.0, 1 + flat.shape[-1], dtype=x.dtype)).sum(-1).sin()


def expected(
    E: Estimator, scheme: str, theta: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """Return the mean of values and gradients over all outcomes of E's draws."""
    is_one_hot = theta.dim() == 2
    variables = theta.shape if type(E).__name__ == "GumbelSoftmax" else theta.shape[:1]
    calls = every_outcome(scheme, E.samples, variables)
    outcomes = calls[0].shape[1]
    leaf = theta.clone().requires_grad_()
    base = OneHotCategorical if is_one_hot else Bernoulli
    q = Independent(base(probs=leaf.expand(outcomes, *theta.shape)), 1)
    noise = injected(E, q, outcomes)
    with monkeypatch.context() as patch:
        rest = feed(calls, patch)
        value = E(wave, q, **noise).mean()
        assert next(rest, None) is None
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


BITS = torch.tensor([1 / 3, 1 / 2], dtype=torch.float64)
ONE_HOT = torch.tensor([[1 / 6, 1 / 2, 1 / 3], [1 / 3, 0.0, 2 / 3]], dtype=torch.float64)


@pytest.mark.parametrize("scheme", ["antithetic", "latin", "latin, sorted"])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", [*OFFERING, "IndeCateR of one variable"])
@pytest.mark.parametrize("theta", [BITS, ONE_HOT], ids=["bits", "one-hot"])
def test_dependent_draws_keep_the_expectation(
    name: str, n: int, scheme: str, theta: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every single draw is distributed as q, whatever the noise is, and the estimate is a mean.

    All outcomes of n dependent draws have the value and gradient, on average, of all outcomes of
    independent ones. Probabilities are sixths, so that the value is also that of enumeration.
    """
    if name == "DARN" and theta.dim() == 2:
        pytest.skip("for bits alone")
    if name == "GumbelSoftmax" and theta.dim() == 2:
        if n == 3:
            pytest.skip("too many outcomes")
        theta = theta[:1]
    if scheme == "latin, sorted":  # as for more draws than can be enumerated
        scheme = "latin"
        monkeypatch.setattr(randomness, "MOST_COUNTED", 0)
        monkeypatch.setattr(randomness, "MOST_INSERTED", 0)
    options: dict[str, Any] = {"noise_samples": 2} if "Rao" in name or name == "ReinMaxCV" else {}
    if name == "GumbelSoftmax":
        options = {"hard": True, "temperature": 0.7}
    if name == "IndeCateR of one variable":
        name, options = "IndeCateR", {"variables": 1}
    E = ESTIMATORS[name](samples=n, sampling=scheme, **options)
    rows = n if name == "SlopeCateR" else 1  # its corrections are spread over its draws
    alone = ESTIMATORS[name](samples=rows, sampling="independent", **options)
    if isinstance(E, torch.nn.Module):
        E, alone = E.eval(), alone.eval()
    got = expected(E, scheme, theta, monkeypatch)
    wanted = expected(alone, "independent", theta, monkeypatch)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    if name != "GumbelSoftmax":
        q = Independent(OneHotCategorical(theta) if theta.dim() == 2 else Bernoulli(theta), 1)
        torch.testing.assert_close(got[0], catlog.Exact()(wave, q), rtol=0, atol=1e-12)


def test_inserted_ranks_are_all_permutations_once() -> None:
    """Every rank that can be inserted, in the middle of its interval of the key."""
    ranks = [(torch.arange(size) + 0.5) / size for size in range(1, 6)]
    orders = randomness._insertions(torch.cartesian_prod(*ranks).T).T
    assert sorted(orders.tolist()) == [list(order) for order in permutations(range(5))]
    largest = torch.full((200,), 1 - 2**-24)  # the largest uniform of float32
    assert randomness._insertions(largest).tolist() == list(range(200))
