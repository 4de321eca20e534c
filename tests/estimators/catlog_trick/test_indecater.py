"""The paper's statements about independent variables, by exact enumeration."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent

import catlog
from catlog.testing.enumeration import Case, cases, functions, outcomes

CASES = {case.name: case for case in cases()}


def gradients(E: catlog.Estimator, case: Case, f, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """The estimate's gradient in the law's parameters, for every outcome: [outcomes, *parameters]."""
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    return torch.autograd.grad(E(f, case.law(theta), x=x).sum(), theta)[0]


def variance(E: catlog.Estimator, case: Case, f) -> Tensor:  # type: ignore[no-untyped-def]
    x, weight = outcomes(case, E.rows(case.law(case.theta)))
    each = gradients(E, case, f, x)
    weight = weight.view(-1, *[1] * case.theta.dim())
    return (weight * (each - (weight * each).sum(0)).square()).sum(0)


def test_one_variable_gives_the_exact_gradient() -> None:
    case = CASES["one integer"]

    def f(x: Tensor) -> Tensor:
        return (x.double() * 1.3).sin()

    x, _ = outcomes(case, 1)
    theta = case.theta.clone().requires_grad_()
    (exact,) = torch.autograd.grad(catlog.Exact()(f, case.law(theta)), theta)
    torch.testing.assert_close(
        gradients(catlog.IndeCateR(1), case, f, x), exact.expand(3, 3), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("name", ["bits", "integers", "one-hot", "masked", "mixed cardinalities"])
def test_additive_f_has_no_variance_with_one_sample(name: str) -> None:
    case = CASES[name]
    costs = torch.linspace(-1, 2, 6, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return case.features(x) @ costs

    assert variance(catlog.IndeCateR(1), case, f).max() < 1e-28
    assert variance(catlog.Reinforce(1), case, f).max() > 1e-3


@pytest.mark.parametrize("name", ["bits", "integers", "one-hot", "masked", "mixed cardinalities"])
@pytest.mark.parametrize("seed", range(5))
def test_variance_at_most_reinforce_per_separate_logit(name: str, seed: int) -> None:
    """The corollary, for random f: a table of values, one per point."""
    case = CASES[name]
    table = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def f(x: Tensor) -> Tensor:
        index = x.argmax(-1) if name == "one-hot" else x.long()
        return table[index[..., 0], index[..., 1], index[..., 2] if index.shape[-1] > 2 else 0]

    ours, reinforce = variance(catlog.IndeCateR(1), case, f), variance(catlog.Reinforce(1), case, f)
    assert (ours <= reinforce + 1e-14).all()
    assert ours.sum() < reinforce.sum()


def test_the_corollary_fails_for_a_shared_logit() -> None:
    """Two bits on one logit 0 and f = XOR: REINFORCE has variance 0, IndeCateR 1/8."""
    x = torch.tensor(list(product([0.0, 1.0], repeat=2)), dtype=torch.float64).unsqueeze(0)

    def xor(x: Tensor) -> Tensor:
        return (x[..., 0] - x[..., 1]).abs()

    for E, exact in ((catlog.Reinforce(1), 0.0), (catlog.IndeCateR(1), 0.125)):
        shared = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
        (each,) = torch.autograd.grad(
            E(xor, Independent(Bernoulli(logits=shared.expand(4, 2)), 1), x=x).sum(), shared
        )
        torch.testing.assert_close(each.var(correction=0), torch.tensor(exact, dtype=torch.float64))
        torch.testing.assert_close(each.mean(), torch.tensor(0.0, dtype=torch.float64))


def test_example_4_2() -> None:
    """Three 3-ary variables: the term of the second is a sum over its categories, the others at their drawn values."""
    logits = torch.randn(
        3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    table = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def f(x: Tensor) -> Tensor:
        return table[x[..., 0], x[..., 1], x[..., 2]]

    x = torch.tensor([[2, 0, 1]])
    (got,) = torch.autograd.grad(
        catlog.IndeCateR(1)(f, Independent(Categorical(logits=logits), 1), x=x), logits
    )
    p = logits.softmax(-1)
    (by_hand,) = torch.autograd.grad(sum(p[1, k] * table[2, k, 1] for k in range(3)), logits)
    torch.testing.assert_close(got[1], by_hand[1], rtol=0, atol=1e-15)


def test_the_value_is_rao_blackwellised() -> None:
    """A sparse f that the raw draw misses still has a positive value, so that its logarithm is finite."""
    q = Independent(Categorical(logits=torch.zeros(4, 10)), 1)
    x = torch.tensor([[1, 2, 3, 4]])  # sum 10, not 12

    def hits(x: Tensor) -> Tensor:
        return x.sum(-1) == 12

    assert not hits(x).any()
    value = catlog.IndeCateR(1)(hits, q, x=x)
    torch.testing.assert_close(
        value, torch.tensor(0.1)
    )  # each variable has one category of ten that hits
    assert catlog.Reinforce(1)(hits, q, x=x) == 0


def test_fresh_draws_need_not_agree_with_shared_ones() -> None:
    """Per-variable draws: variable i's term uses its own row only, and the same rows for all give the shared estimate."""
    case = CASES["integers"]
    f = functions()["sine"]
    c = torch.ones(6, dtype=torch.float64)
    shared = case.points[torch.tensor([[4, 7]])]  # [1, 2 outcomes, d]
    same = gradients(catlog.IndeCateR(1), case, lambda x: f(case.features(x), c), shared)
    fresh = gradients(
        catlog.IndeCateR(1, fresh=True),
        case,
        lambda x: f(case.features(x), c),
        shared.repeat(2, 1, 1),
    )
    torch.testing.assert_close(fresh, same, rtol=0, atol=1e-14)
    mixed = torch.stack(
        [shared[0], case.points[torch.tensor([0, 0])]]
    )  # another draw for variable 1 only
    moved = gradients(
        catlog.IndeCateR(1, fresh=True), case, lambda x: f(case.features(x), c), mixed
    )
    torch.testing.assert_close(moved[:, 0], same[:, 0], rtol=0, atol=1e-14)
    assert (moved[:, 1] - same[:, 1]).abs().max() > 1e-3
