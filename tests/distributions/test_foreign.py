"""Distributions that are converted: mixtures, multinomials, torchrl's, and those that users add.

test_checklist.py judges the probabilities of mixtures and multinomials, test_every_estimator.py the
gradients of all estimators on them.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
)

import catlog
from catlog.core.factors import IndependentFactors
from catlog.core.view import CONVERSIONS, view
from catlog.distributions import (
    Categoricals,
    MixtureOfProducts,
    component_first,
    register_distribution,
)
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same
from support.structured_cases import STRUCTURED_CASES, close, every

bits = STRUCTURED_CASES["mixture of bits"].distribution


def test_the_component_may_be_drawn_first() -> None:
    """The joint distribution sums to the mixture, and gives the same expectation."""
    theta = normals(8).requires_grad_()
    q = bits(theta)
    joint = component_first(q)
    assert joint.cardinalities == (2, 2, 2, 2)
    log_joint = joint.log_prob(every(2, 2, 2, 2)).view(2, 8)
    probs = STRUCTURED_CASES["mixture of bits"].probabilities(theta)
    torch.testing.assert_close(log_joint.exp().sum(0), probs)
    weights = normals(3, seed=1)
    seen = catlog.Exact()(lambda x: (x @ weights).sin(), q)
    drawn = catlog.Exact()(lambda x: (x[..., 1:].double() @ weights).sin(), joint)
    assert_same(seen, drawn, theta, rtol=0, atol=1e-12)
    numbers = STRUCTURED_CASES["mixture of single numbers"]
    assert component_first(numbers.distribution(theta)).event_shape == (2,)


# torchrl, by classes with its names and attributes; tests/peers has the real ones.


def of_torchrl(kind: type) -> type:
    kind.__module__ = "torchrl.modules.distributions.discrete"
    return kind


@of_torchrl
class MaskedCategorical(Categorical):
    def __init__(self, logits: Tensor, mask: Tensor, indices: Tensor | None = None) -> None:
        self._sparse_mask, self._padding_value = indices is not None, -1
        self._mask = mask if indices is None else indices
        self.num_samples = logits.shape[-1]
        logits = logits.masked_fill(~mask, -torch.inf)
        if indices is not None:
            padding = indices == -1
            logits = logits.gather(-1, indices.masked_fill(padding, 0))
            logits = logits.masked_fill(padding, -torch.inf)
        super().__init__(logits=logits)


@of_torchrl
class MaskedOneHotCategorical(MaskedCategorical):
    pass


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
def test_masked_categoricals_of_torchrl(kind: type) -> None:
    logits = normals(2, 4).requires_grad_()
    mask = torch.tensor([[True, False, True, True], [True, False, False, True]])
    dense, sparse = kind(logits, mask), kind(logits, mask, torch.tensor([[0, 2, 3], [0, 3, -1]]))
    laws = [view(q) for q in (dense, sparse, Independent(dense, 1))]
    expected = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    for law in laws:
        assert isinstance(law, IndependentFactors)
        close(law.probs.view(2, 4), expected)
    assert laws[2].event_shape == ((2,) if kind is MaskedCategorical else (2, 4))

    def f(x: Tensor) -> Tensor:
        return (x.argmax(-1) if kind is MaskedOneHotCategorical else x).double()

    value, exact = catlog.IndeCateR(1)(f, sparse).sum(), (expected * torch.arange(4)).sum()
    assert_same(value, exact, logits, rtol=0, atol=1e-12)


# Distributions of users


class Coin(Distribution):
    arg_constraints: dict[str, object] = {}

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        super().__init__(logits.shape, validate_args=False)


class BiasedCoin(Coin):
    pass


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catlog.core.view.CONVERSIONS", dict(CONVERSIONS))


@pytest.mark.usefixtures("clean")
def test_a_users_distribution() -> None:
    logits = normals(3).requires_grad_()
    with pytest.raises(
        TypeError, match=r"For other types there is catlog\.distributions\.register_distribution"
    ):
        catlog.RLOO(2)(lambda x: x, Coin(logits))
    register_distribution(Coin, lambda q: Bernoulli(logits=q.logits))
    register_distribution(f"{__name__}.BiasedCoin", lambda q: Bernoulli(logits=q.logits + 1))
    for q, shift in ((Coin(logits), 0), (BiasedCoin(logits), 1)):
        value = catlog.IndeCateR(1)(lambda x: 2 * x, q)
        torch.testing.assert_close(value, 2 * (logits + shift).sigmoid(), rtol=0, atol=1e-12)
        value = catlog.Exact()(lambda x: 2 * x.sum(-1), Independent(q, 1))
        torch.testing.assert_close(value, 2 * (logits + shift).sigmoid().sum(), rtol=0, atol=1e-12)


class Wrapped:
    """A distribution that is none of torch's, as those of stable-baselines3 are."""

    def __init__(self, logits: Tensor) -> None:
        self.distribution = [Categorical(logits=part) for part in logits.split([3, 2], -1)]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("kind", [Wrapped, f"{__name__}.Wrapped"])
def test_a_class_that_is_no_distribution_of_torch(kind: type | str) -> None:
    def convert(q: Wrapped) -> Distribution:
        return Categoricals([part.logits for part in q.distribution])

    def f(x: Tensor) -> Tensor:
        return x.sum(-1).double().square()

    logits = normals(4, 5).requires_grad_()
    q = Wrapped(logits.detach())
    with pytest.raises(TypeError, match=r"Wrapped was given.*\.register_distribution"):
        catlog.RLOO(2)(f, q)
    register_distribution(kind, convert)
    for E in (catlog.RLOO(2), catlog.SCateR(1), catlog.Exact(), catlog.IndeCateR(2)):
        laws = Wrapped(logits), convert(Wrapped(logits))
        values = [E(f, law, generator=seeded()) for law in laws]
        assert_same(*values, logits, rtol=0, atol=0)
        assert E.evaluations(q) == E.evaluations(convert(q))
    value = catlog.log_expectation(catlog.RLOO(2), lambda x: 1 + f(x), q)
    assert value.shape == (4,)
    with pytest.raises(ValueError, match="log_expectation: `f` must be at least 0"):
        catlog.log_expectation(catlog.RLOO(2), lambda x: -1 - f(x), q)
    assert len(catlog.compare(f, Wrapped(logits), [catlog.RLOO(2)], repeats=3).rows) == 1


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("message", "convert"),
    [
        ("of Coin must return a distribution, .* Tensor", lambda q: q.logits),
        (r"keep the batch shape \(2,\), .* with \(\)", lambda q: Bernoulli(logits=q.logits[0])),
    ],
)
def test_bad_conversions(message: str, convert: Any) -> None:
    register_distribution(Coin, convert)
    with pytest.raises((TypeError, ValueError), match=message):
        catlog.RLOO(2)(lambda x: x, Coin(normals(2)))


@pytest.mark.parametrize("size", [1e9, -1e9, 1e30, torch.finfo(torch.float32).max])
def test_a_mixture_with_logits_of_large_numbers(size: float) -> None:
    """An offset of logits, or a mask of any size, changes no probability of other points."""
    weights, logits = torch.tensor([0.0, 1.0]), normals(2, 3, 3).float()
    first = torch.tensor([True, False, False])
    masked = logits.masked_fill(first, -torch.inf)
    equal = torch.zeros(2, 3, 3)
    equal[0, :, 0] = -torch.inf  # the components differ in the size of their sums

    def probs(table: Tensor) -> Tensor:
        components = Independent(Categorical(logits=table), 1)
        mixture = MixtureSameFamily(Categorical(logits=weights), components)
        return MixtureOfProducts(mixture).log_prob(every(3, 3, 3)).exp()

    for large, small in (
        (logits.masked_fill(first, -abs(size)), masked),
        (equal + size, equal),
    ):
        torch.testing.assert_close(probs(large), probs(small), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e9, torch.finfo(torch.float32).max])
def test_equal_logits_of_large_numbers_are_normalised(size: float) -> None:
    q = Categoricals([torch.full((3,), size), torch.full((2,), -size)])
    torch.testing.assert_close(q.log_prob(torch.tensor([0, 1])).exp(), torch.tensor(1 / 6))
