"""Functions that know their mean: the same numbers as brute force over all points."""

from itertools import product
from math import log

import pytest
import torch
from torch import nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    MixtureSameFamily,
    Multinomial,
    OneHotCategorical,
)
from torch.testing import assert_close

from catlog import Exact, log_expectation
from catlog.core.view import view
from catlog.distributions import MarkovChain
from catlog.functions import Additive, DigitsOfSum, OfSum, Pairwise, Potts
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same, with_gradients
from support.laws import bits, integers
from support.own_tables import LAWS, functions, wave

LAWS = LAWS | {
    "bits by probs": lambda logits: Independent(Bernoulli(probs=logits[..., 0].sigmoid()), 1),
    "masked": lambda logits: integers(
        logits.masked_fill(normals(*logits.shape[-2:], seed=9) > 1, -torch.inf)
    ),
}


def means(batch, d, k, one_hot):
    """Return how to make each function that knows its mean."""
    known = functions(batch, d, k, one_hot)
    known = {name: f for name, f in known.items() if "network" not in name}
    return known | {
        "sum, indicator": lambda: OfSum(lambda s: s == 3, k, one_hot=one_hot),
        "sum, without one": lambda: OfSum(wave, k, torch.tensor([2.0, -1.0, 0.0, 3.0]), one_hot),
    }


CASES = [
    (name, kind)
    for name in means((), 4, 1, False)
    for kind in LAWS
    if name != "weighted sum" and (name != "ising" or kind.startswith("bits"))
]


def brute_force(f, q, batch):
    """Return the mean of f from q.log_prob at every point, without any estimator."""
    law = view(q)
    index = torch.tensor(list(product(*(range(size) for size in law.cardinalities))))
    index = index.view(-1, *[1] * len(batch), law.d).expand(-1, *batch, law.d)
    x = law.point(index)
    weight = q.log_prob(x).exp()
    return torch.where(weight > 0, weight * f(x).to(weight), 0.0).sum(0)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_mean_and_gradient_equal_brute_force(name, kind, batch):
    d = 4
    logits = normals(*batch, d, 3, seed=3).requires_grad_()
    q = LAWS[kind](logits)
    f = means(batch, d, 2 if "bits" in kind else 3, kind == "one-hot")[name]()
    weight = normals(*batch, seed=7)
    expected = brute_force(f, q, batch)
    mean = Exact()(f, q)
    assert mean.shape == batch
    assert_close(mean, expected, rtol=0, atol=1e-12)
    assert_same(weight * mean, weight * expected, logits, rtol=0, atol=1e-12)


def test_six_digits_by_fft_against_all_million_points(monkeypatch):
    monkeypatch.setattr("catlog.functions.of_sum.FEW_SUMS", 0)
    logits = (2 * normals(6, 10)).requires_grad_()
    q = integers(logits)
    f = OfSum(lambda total: (total - 20.0).abs().double().sqrt(), categories=10)
    mean, expected = Exact()(f, q), Exact()(lambda x: f(x), q)
    assert_close(mean, expected, rtol=1e-12, atol=0)
    assert_same(mean, expected, logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize(("places", "base"), [(1, 3), (2, 4), (3, 2)])
def test_digits_of_a_sum_against_all_points(places, base, dtype, one_hot):
    """Targets of every kind, also digits that no sum has."""
    batch = (5,)
    target = torch.randint(0, base + 1, (*batch, places + 1), generator=seeded()).to(dtype)
    target[0] = torch.tensor([1] + [0] * places)
    logits = normals(*batch, 2 * places, base).requires_grad_()
    kind = OneHotCategorical if one_hot else Categorical
    q = Independent(kind(logits=logits), 1)
    f = DigitsOfSum(target, base, one_hot)
    mean, expected = Exact()(f, q, outputs=1), Exact()(lambda x: f(x), q, outputs=1)
    weight = normals(*mean.shape, seed=4)
    assert_same(weight * mean, weight * expected, logits, rtol=0, atol=1e-13)


class Bits(nn.Module):
    def forward(self, x):
        raise AssertionError("f was evaluated")

    def expectation(self, q):
        return q.base_dist.probs


def test_f_is_not_called():
    q = bits(normals(3, 5))
    assert_close(Exact()(Bits(), q, outputs=1), Exact()(lambda x: x, q, outputs=1))


def test_rare_events_are_relatively_accurate():
    """P(all of 1,000 digits are 9) is a product, far below the rounding error of an FFT."""
    logits = (0.1 * normals(1000, 10)).requires_grad_()
    logits.data[:, 9] += 3.0
    q = integers(logits)
    f = OfSum(lambda total: total == 9000, categories=10)
    exact = logits.log_softmax(-1)[:, 9].sum()
    assert -708 < exact.item() < -100
    expected = torch.autograd.grad(exact, logits)[0]
    mean = Exact()(f, q)
    assert_close(mean.log(), exact, rtol=1e-12, atol=0)
    gradient = torch.autograd.grad(mean, logits)[0] / mean
    assert_close(gradient, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithm_of_a_mean_that_underflows(dtype):
    logits = normals(1000, 10).to(dtype).mul(3).requires_grad_()
    q = integers(logits)
    f = OfSum(lambda total: total == 0, categories=10)
    exact = logits.double().log_softmax(-1)[:, 0].sum()
    assert exact < -3000
    value = log_expectation(Exact(), f, q)
    assert value.dtype == dtype
    assert_close(value.double(), exact, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    gradient, expected = (with_gradients(y, logits)[1] for y in (value, exact))
    assert_close(gradient, expected, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-7)


@pytest.mark.parametrize("logit", [-100.0, -300.0, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithm_where_probabilities_underflow(dtype, logit):
    """Two of three bits are 1, each with the probability exp(logit): there are three ways."""
    logits = torch.full((3,), logit, dtype=dtype, requires_grad=True)
    q = bits(logits)
    value = log_expectation(Exact(), OfSum(lambda total: total == 2, categories=2), q)
    assert value.item() == pytest.approx(2 * logit + log(3), rel=1e-6)
    (gradient,) = torch.autograd.grad(value, logits)
    assert_close(gradient, torch.full_like(logits, 2 / 3), rtol=1e-6, atol=0)


def test_logarithm_where_one_variable_is_surprising():
    """A confident classifier of two digits, 3 and 4, whose sum is 8: 4 + 4 or 3 + 5."""
    logits = torch.full((2, 10), -150.0)
    logits[0, 3] = logits[1, 4] = 0.0
    logits.requires_grad_()
    q = integers(logits)
    value = log_expectation(Exact(), OfSum(lambda total: total == 8, categories=10), q)
    value.backward()
    assert value.item() == pytest.approx(log(2) - 150)
    expected = torch.zeros(2, 10)
    expected[0, 4] = expected[1, 5] = 0.5
    expected[0, 3] = expected[1, 4] = -0.5
    assert_close(logits.grad, expected, rtol=1e-5, atol=1e-6)


COSTS = Additive(normals(3, 4))
SUM = OfSum(wave, categories=4)
MIXTURE = MixtureSameFamily(Categorical(logits=normals(2)), integers(normals(2, 3, 4)))
CHAIN = MarkovChain(normals(4), normals(4, 4, seed=1), length=3)


@pytest.mark.parametrize(
    ("f", "q", "why"),
    [
        (COSTS, MIXTURE, "MixtureSameFamily depend on each other"),
        (COSTS, CHAIN, "MarkovChain depend on each other"),
        (SUM, MIXTURE, "MixtureSameFamily depend on each other"),
        (SUM, CHAIN, "MarkovChain depend on each other"),
        (SUM, Multinomial(3, logits=normals(3)), "Multinomial depend on each other"),
        (OfSum(wave, 4, normals(3)), integers(normals(3, 4)), "others were given"),
        (OfSum(wave, 4, nn.Parameter(torch.ones(3))), integers(normals(3, 4)), "others were given"),
    ],
)
def test_exact_lists_points_where_the_mean_is_not_known(f, q, why):
    """Dependent variables, and weights that are no whole numbers or are learned."""
    assert_close(Exact()(f, q), Exact()(lambda x: f(x), q))
    with pytest.raises(NotImplementedError, match=f"{type(f).__name__}: its mean is .*{why}"):
        f.expectation(q)


@pytest.mark.parametrize("threshold", [0, 5, 11, 12])
@pytest.mark.parametrize("weights", [None, [-2, 0, 1], [0, 0, 0], [3, 1, 2]], ids=str)
def test_logarithm_equals_that_of_the_sum_over_all_points(weights, threshold):
    logits = normals(3, 3, 5, seed=2).mul(4).requires_grad_()
    q = integers(logits)
    weights = None if weights is None else torch.tensor(weights)
    f = OfSum(lambda total: (total >= threshold).double() * (9 + total), 5, weights)
    mean = brute_force(f, q, (3,))
    if not mean.all():  # impossible sums have a test of their own
        return
    value = log_expectation(Exact(), f, q)
    assert_same(value, mean.log(), logits, rtol=1e-9, atol=1e-9)
    floored = log_expectation(Exact(), f, q, floor=1e-3)
    assert_close(floored, (mean + 1e-3).log(), rtol=1e-12, atol=1e-12)


def test_negative_values_have_the_logarithm_of_their_mean():
    q = integers(normals(3, 4))
    f = OfSum(lambda total: total - 1.0, categories=4)
    with pytest.raises(NotImplementedError, match="OfSum: the logarithm of its mean is known for"):
        f.log_expectation(q)
    assert_close(log_expectation(Exact(), f, q), Exact()(f, q).log())


@pytest.mark.parametrize("floor", [None, 1e-8])
def test_impossible_sums_have_a_finite_logarithm_and_no_gradient(floor):
    logits = torch.zeros(2, 3, requires_grad=True)
    q = integers(logits)
    value = log_expectation(Exact(), OfSum(lambda total: total == 100, 3), q, floor=floor)
    value.backward()
    assert value.item() == pytest.approx(torch.tensor(floor or 1.1754943508222875e-38).log().item())
    assert not logits.grad.any()


def test_values_of_g_at_impossible_sums_do_not_matter():
    logits = torch.tensor([[-torch.inf, 0.0, 1.0]]).repeat(300, 1).requires_grad_()
    q = integers(logits)
    f = OfSum(lambda total: 1 / (total - 299.0).clamp(min=0), categories=3)
    mean, log_mean = Exact()(f, q), log_expectation(Exact(), f, q)
    assert mean.isfinite()
    assert_same(log_mean, mean.log(), logits, rtol=1e-5, atol=1e-6)
    value = log_expectation(Exact(), OfSum(lambda total: total * torch.nan, 3), q)
    assert value.isnan()  # no logarithm of a small number


def test_a_function_of_other_variables_is_refused():
    for f, message in (
        (Additive(torch.zeros(5, 3)), "Additive: q must have 5 variables"),
        (Potts(torch.zeros(4, 4), torch.zeros(4, 2)), "Potts: q must have at most 2 categories"),
        (OfSum(torch.sin, 3, torch.ones(3)), "OfSum: q must have 3 variables"),
    ):
        with pytest.raises(ValueError, match=f"{message}, as f has"):
            Exact()(f, integers(torch.zeros(4, 3)))


def test_q_may_have_fewer_categories_than_f():
    q = integers(normals(4, 2))
    potts = Potts(normals(4, 4), normals(4, 3))
    for f in (Additive(normals(4, 3)), Pairwise(normals(4, 3, 4, 3)), potts, OfSum(wave, 3)):
        assert_close(Exact()(f, q), Exact()(lambda x, f=f: f(x), q))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"shape \(2,\), a mean per .* of q, but it returned \(3,\)"),
        (1.0, ValueError, "returned float"),
        (torch.zeros(2, dtype=torch.int64), TypeError, "f.expectation must return floats"),
        (torch.full((2,), torch.nan), ValueError, "f.expectation must return finite numbers"),
    ],
)
def test_a_bad_mean_is_refused(returned, error, message):
    def f(x):
        return x.sum(-1)

    f.expectation = lambda q: returned
    with pytest.raises(error, match=message):
        Exact()(f, bits(torch.zeros(2, 5)))


def test_float32_and_compiled():
    logits = normals(300, 10).float().requires_grad_()
    f = OfSum(lambda total: total == 1300, categories=10)

    def mean(logits):
        return Exact()(f, integers(logits, validate_args=False))

    value = mean(logits)
    compiled = torch.compile(mean, fullgraph=True, backend="eager")(logits)
    double = mean(logits.double())
    assert value.dtype == torch.float32
    assert_close(value.double(), double, rtol=1e-5, atol=0)
    assert_close(value, compiled, rtol=1e-6, atol=0)
    assert_same(value, compiled, logits, rtol=1e-4, atol=1e-9)
