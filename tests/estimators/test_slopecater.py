"""SlopeCateR: unbiased in any state, exact where slopes are, and never led astray by them."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog import SlopeCateR
from catlog.estimators.catlog_trick.slope_predictions import (
    gradient_scale,
    selection_probabilities,
    systematic_sample,
)
from catlog.testing.enumeration import Case, cases, expectation, expected, functions

CASES = {case.name: case for case in cases()}
FUNCTIONS = functions()
PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)
MASKED = Case(
    "one-hot, masked",
    torch.tensor([[0.3, -0.8, -torch.inf], [-torch.inf, 0.5, 0.1]], dtype=torch.float64),
    lambda t: Independent(OneHotCategorical(logits=t), 1),
    torch.eye(3).double()[torch.tensor([[0, 1], [0, 2], [1, 1], [1, 2]])],
    lambda x: x.flatten(-2),
)


def bits(logits: Tensor) -> Independent:
    return Independent(Bernoulli(logits=logits), 1)


def gradients(E: SlopeCateR, f, logits: Tensor, repeats: int) -> Tensor:  # type: ignore[no-untyped-def]
    copies = logits.expand(repeats, *logits.shape).clone().requires_grad_()
    E(f, bits(copies), generator=torch.Generator().manual_seed(0)).sum().backward()
    assert copies.grad is not None
    return copies.grad


@pytest.mark.parametrize(
    "case", [CASES["bits"], CASES["one-hot"], MASKED], ids=lambda case: case.name
)
@pytest.mark.parametrize("seed", range(3))
def test_unbiased_in_any_state(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    E = SlopeCateR(2, corrections=1 + seed)
    root = torch.randn(2, 2, generator=generator)
    E.coefficients.gram.copy_(root @ root.T)
    E.coefficients.excess.copy_(3 * torch.randn(2, generator=generator))
    E.sizes.size2.copy_(torch.rand(1024, generator=generator) * 4)
    E.sizes.spread2.copy_(torch.rand(1024, generator=generator))
    assert (E.coefficients() - 1).abs().min() > 0.1
    for f in FUNCTIONS.values():
        for got, exact in zip(
            expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER), strict=True
        ):
            torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


def test_turns_are_as_expected() -> None:
    """Systematic sampling, integrated over its uniform: the exact expected counts, each count next to its expectation."""
    often = torch.tensor([0.3, 1.9, 0.05, 0.75], dtype=torch.float64)
    ends = torch.cat([torch.zeros(1), often.cumsum(-1) % 1, torch.ones(1)]).double().sort().values
    middles, lengths = (ends[1:] + ends[:-1]) / 2, ends.diff()
    chosen = systematic_sample(often.expand(len(middles), 4), 3, middles.unsqueeze(0))
    counts = torch.nn.functional.one_hot(chosen, 4).sum(0).double()
    torch.testing.assert_close(lengths @ counts, often, rtol=1e-14, atol=1e-14)
    assert ((counts - often).abs() < 1).all()


def test_spread_is_the_size_of_a_gradient() -> None:
    """2 p (1 - p) for bits; in general the root mean square over slopes that are independent with variance 1."""
    p = torch.tensor([0.5, 0.1, 1.0, 0.9], dtype=torch.float64)
    torch.testing.assert_close(gradient_scale(torch.stack([1 - p, p], -1)), 2 * p * (1 - p))
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.7, 0.3, 0.0]], dtype=torch.float64)
    jacobian = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    torch.testing.assert_close(gradient_scale(probs), jacobian.square().sum((-1, -2)).sqrt())


def test_chances() -> None:
    torch.testing.assert_close(selection_probabilities(torch.zeros(4)), torch.full((4,), 0.25))
    torch.testing.assert_close(
        selection_probabilities(torch.tensor([0.0, 0.0, 5.0, 0.0])),
        torch.tensor([0.025, 0.025, 0.925, 0.025]),
    )


@pytest.mark.parametrize(("law", "factor"), [("bits", 1.0), ("one-hot", 2.0)])
@pytest.mark.parametrize("places", [0, 3, 1024])
def test_remembers_the_sizes_of_slopes(law: str, factor: float, places: int) -> None:
    """Of f(x) = w . x all slopes are known; variables that share a place have the root mean square of theirs."""
    w = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5])
    logits = torch.zeros(7, 5)  # all equally undecided
    q = (
        bits(logits)
        if law == "bits"
        else Independent(OneHotCategorical(logits=torch.stack([logits, logits], -1)), 1)
    )
    E = SlopeCateR(4, places=places)
    for _ in range(3):
        E(
            (lambda x: x @ w)
            if law == "bits"
            else (lambda x: (x * torch.stack([-w, w], -1)).sum((-1, -2))),
            q,
        )
    alone = w.abs() * factor / 2**0.5
    shared = torch.stack(
        [(alone[0] ** 2 + alone[3] ** 2) / 2, (alone[1] ** 2 + alone[4] ** 2) / 2, alone[2] ** 2]
    ).sqrt()
    expected = {0: torch.ones(5), 3: shared.repeat(2)[:5], 1024: alone}[places]
    torch.testing.assert_close(E.sizes(5), expected)


def test_no_noise_from_corrections_of_quadratic_functions() -> None:
    """With alpha = beta = 1 the prediction is right for f quadratic in each variable: the corrections are zero."""
    a = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def f(x: Tensor) -> Tensor:
        return ((x @ a) * x).sum(-1)

    logits = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = bits(logits.expand(20, 5)).sample((4,))
    got = []
    for corrections in (1, 7):
        leaf = logits.expand(20, 5).clone().requires_grad_()
        SlopeCateR(4, corrections)(f, bits(leaf), x=x).sum().backward()
        got.append(leaf.grad)
    leaf = logits.expand(20, 5).clone().requires_grad_()
    catlog.ReinMax(4)(f, bits(leaf), x=x).sum().backward()
    torch.testing.assert_close(got[0], leaf.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got[1], leaf.grad, rtol=1e-12, atol=1e-12)


def test_learns_what_slopes_are_worth() -> None:
    """alpha falls to 0 where slopes say nothing, beta where f is linear in each variable; frozen in eval()."""
    logits = torch.tensor([0.4, -0.3, 1.2, -2.0, 0.1])
    weight = torch.tensor([1.0, -0.7, 0.4, 1.3, 0.6])

    def trained(f) -> SlopeCateR:  # type: ignore[no-untyped-def]
        E = SlopeCateR(6)
        for _ in range(40):
            gradients(E, f, logits, 50)
        return E

    product = trained(lambda x: (1 - weight * x).prod(-1))
    assert abs(product.coefficients()[0] - 1) < 0.1
    assert abs(product.coefficients()[1]) < 0.1

    def misleading(
        x: Tensor,
    ) -> Tensor:  # its slopes at 0 and 1 are ten times what a bit is worth, with the wrong sign
        return (x @ weight).square() - 11 / (2 * torch.pi) * (2 * torch.pi * x).sin() @ weight

    E = trained(misleading)
    assert E.coefficients()[0].abs() < 0.4
    naive = SlopeCateR(6, decay=1.0)
    assert (
        gradients(deepcopy(E).eval(), misleading, logits, 400).var(0).sum()
        < 0.3 * gradients(naive, misleading, logits, 400).var(0).sum()
    )
    before = deepcopy(E.state_dict())
    gradients(E.eval(), misleading, logits, 2)
    assert all(torch.equal(value, before[key]) for key, value in E.state_dict().items())


def test_state_is_saved() -> None:
    E, other = SlopeCateR(4), SlopeCateR(4)
    f = lambda x: x.sum(-1).square().sin()  # noqa: E731
    for _ in range(3):
        gradients(E, f, torch.zeros(3), 5)
    other.load_state_dict(E.state_dict())
    torch.testing.assert_close(
        gradients(E, f, torch.zeros(3), 5), gradients(other, f, torch.zeros(3), 5), rtol=0, atol=0
    )


def test_errors() -> None:
    with pytest.raises(ValueError, match="SlopeCateR: `corrections` must be"):
        SlopeCateR(2, corrections=0)
    with pytest.raises(ValueError, match="SlopeCateR: `decay` must be in"):
        SlopeCateR(2, decay=1.5)
    with pytest.raises(ValueError, match="its derivative in x is needed"):
        SlopeCateR(2)(lambda x: (x > 0.5).float().sum(-1), bits(torch.zeros(3)))
