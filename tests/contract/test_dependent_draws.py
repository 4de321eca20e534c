"""Draws that depend on each other: every estimator that offers them passes them to f.

The battery judges most of their expectations, tests/frozen their numbers.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import catlog
from catlog.core import randomness
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import BayesianNetwork, Node
from catlog.estimators import ESTIMATORS
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expectation, expected
from support.laws import bits, one_hots

LARGEST = 1 - 2**-24  # of the uniforms of float32
OFFERING = sorted(name for name, E in ESTIMATORS.items() if "sampling" in signature(E).parameters)


@pytest.mark.parametrize("name", OFFERING)
def test_draws_of_a_call_depend_on_each_other(name: str) -> None:
    """Two antithetic ones of fair bits are opposite; of eight Latin ones as many are 1 as their
    probability says."""
    logits = torch.tensor([0.25, 0.5, 0.75]).logit().repeat(5, 2).requires_grad_()
    drawn: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        drawn.append(x.detach().round())  # straight-through points are exact to rounding
        return x.sum(-1)

    for samples, sampling, scale in ((2, "antithetic", 0), (8, "latin", 1)):
        drawn.clear()
        hard = {"hard": True} if name == "GumbelSoftmax" else {}
        ESTIMATORS[name](samples=samples, sampling=sampling, **hard)(f, bits(scale * logits))
        wanted = torch.tensor([2.0, 4.0, 6.0]).repeat(5, 2) if scale else torch.ones(5, 6)
        assert torch.equal(drawn[0][:samples].sum(0), wanted)


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


# The ends of the interval


@pytest.fixture
def extreme(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let all uniforms be this one, in the last stratum."""

    def fix(value: float) -> None:
        monkeypatch.setattr(randomness, "rand", lambda shape, *_: torch.full(shape, value))
        monkeypatch.setattr(
            randomness, "_permutations", lambda keys: torch.full_like(keys, len(keys) - 1)
        )

    return fix


def test_relaxed_draws_are_finite_if_rounding_gives_1(extreme: Callable[[float], None]) -> None:
    """The last stratum of float32 contains 1 by rounding, whose Gumbel would be infinite."""
    extreme(LARGEST)
    logits = torch.zeros(2, 6, 4, requires_grad=True)
    q = one_hots(logits)
    value = catlog.GumbelSoftmax(4, sampling="latin")(lambda x: x[..., 0].square().sum(-1), q)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("sampling", "u"), [("antithetic", 0.0), ("latin", LARGEST)])
def test_no_impossible_bit_is_drawn_if_rounding_gives_1(
    sampling: randomness.Sampling, u: float, extreme: Callable[[float], None]
) -> None:
    impossible = torch.full((2, 6), -torch.inf)
    node = Node([], impossible, size=6, bits=True)
    for q in (bits(impossible), BayesianNetwork({"bits": node}, [2])):
        extreme(u)
        assert not Randomness(view(q)).points(4, sampling).any()


def test_the_largest_uniforms_of_float32_are_ranked_in_order() -> None:
    largest = torch.full((200,), LARGEST)
    assert randomness._insertions(largest).tolist() == list(range(200))
