"""IndeCateR: the paper's statements about independent variables, by exact enumeration."""

from itertools import product

import pytest
import torch
from torch import Tensor

import catlog
from catlog.testing import CASES
from catlog.testing.cases import normals
from support.enumerated import gradients, variances
from support.laws import bits, integers


@pytest.mark.parametrize("name", ["bits", "integers", "one-hot", "masked", "mixed cardinalities"])
def test_additive_f_has_no_variance_with_one_sample(name: str) -> None:
    case = CASES[name]
    costs = torch.linspace(-1, 2, 6, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return case.features(x) @ costs

    assert variances(*gradients(catlog.IndeCateR(1), case, f)).max() < 1e-28
    assert variances(*gradients(catlog.Reinforce(1), case, f)).max() > 1e-3


@pytest.mark.parametrize("name", ["bits", "integers", "one-hot", "masked", "mixed cardinalities"])
def test_variance_of_separate_logits_is_at_most_reinforce_s(name: str) -> None:
    """The corollary, for a random f: a table with one value per point."""
    case = CASES[name]
    table = normals(3, 3, 3)

    def f(x: Tensor) -> Tensor:
        index = x.argmax(-1) if name == "one-hot" else x.long()
        return table[index[..., 0], index[..., 1], index[..., 2] if index.shape[-1] > 2 else 0]

    ours = variances(*gradients(catlog.IndeCateR(1), case, f))
    reinforce = variances(*gradients(catlog.Reinforce(1), case, f))
    assert (ours <= reinforce + 1e-14).all()
    assert ours.sum() < reinforce.sum()


def test_the_corollary_fails_for_a_shared_logit() -> None:
    """Two bits on one logit 0 and f = XOR: REINFORCE has variance 0, IndeCateR 1/8."""
    x = torch.tensor(list(product([0.0, 1.0], repeat=2)), dtype=torch.float64).unsqueeze(0)

    def xor(x: Tensor) -> Tensor:
        return (x[..., 0] - x[..., 1]).abs()

    for E, exact in ((catlog.Reinforce(1), 0.0), (catlog.IndeCateR(1), 0.125)):
        shared = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
        q = bits(shared.expand(4, 2))
        (slope,) = torch.autograd.grad(E(xor, q, x=x).sum(), shared)
        variance = slope.var(correction=0)
        torch.testing.assert_close(variance, torch.tensor(exact, dtype=torch.float64))
        torch.testing.assert_close(slope.mean(), torch.tensor(0.0, dtype=torch.float64))


def test_the_value_is_rao_blackwellised() -> None:
    """An f that is 0 at the draw still gets a positive value, with a finite logarithm."""
    q = integers(torch.zeros(4, 10))
    x = torch.tensor([[1, 2, 3, 4]])  # sum 10, not 12

    def hits(x: Tensor) -> Tensor:
        return x.sum(-1) == 12

    assert not hits(x).any()
    value = catlog.IndeCateR(1)(hits, q, x=x)
    # Each variable has one category of ten that hits.
    torch.testing.assert_close(value, torch.tensor(0.1))
    assert catlog.Reinforce(1)(hits, q, x=x) == 0


def test_chosen_variables_are_dealt_in_turn() -> None:
    """Three draws of one variable each cover all three, so that an additive f has no variance."""
    theta = normals(50, 3).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64)
    gradients = []
    for E in (catlog.IndeCateR(3, variables=1, control="none"), catlog.Exact()):
        value = E(lambda x: x @ weights, bits(theta))
        gradients.append(torch.autograd.grad(value.sum(), theta)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
