"""Functions of a sum know their mean and its logarithm, also where probabilities underflow."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Multinomial
from torch.testing import assert_close

from catlog import Exact, log_expectation
from catlog.core.view import view
from catlog.distributions import MarkovChain
from catlog.functions import Additive, OfSum
from catlog.testing.cases import grid, normals
from support.gradients import assert_same, with_gradients
from support.laws import bits, integers
from support.own_tables import wave


def test_six_digits_by_fft_against_all_million_points(monkeypatch):
    monkeypatch.setattr("catlog.functions.of_sum.FEW_SUMS", 0)
    logits = (2 * normals(6, 10)).requires_grad_()
    q = integers(logits)
    f = OfSum(lambda total: (total - 20.0).abs().double().sqrt(), categories=10)
    mean, expected = Exact()(f, q), Exact()(lambda x: f(x), q)
    assert_close(mean, expected, rtol=1e-12, atol=0)
    assert_same(mean, expected, logits, rtol=0, atol=1e-12)


def test_rare_events_are_relatively_accurate():
    """P(all of 1,000 digits are 9) is a product, far below the rounding error of an FFT."""
    logits = (0.1 * normals(1000, 10)).requires_grad_()
    logits.data[:, 9] += 3.0
    exact = logits.log_softmax(-1)[:, 9].sum()
    assert -708 < exact.item() < -100
    mean = Exact()(OfSum(lambda total: total == 9000, categories=10), integers(logits))
    assert_close(mean.log(), exact, rtol=1e-12, atol=0)
    assert_same(mean.log(), exact, logits, rtol=1e-9, atol=1e-13)


def peaked(*digits):
    """Return logits of digits that are nearly certain."""
    logits = torch.full((len(digits), 10), -150.0)
    return logits.index_put((torch.arange(len(digits)), torch.tensor(digits)), torch.tensor(0.0))


WEIGHTS = (None, [-2, 0, 1], [0, 0, 0], [3, 1, 2])
LOGARITHMS = {  # q, its logits, and f
    **{
        f"{dtype}, {logit}": (bits, torch.full((3,), logit).to(dtype), OfSum(lambda s: s == 2, 2))
        for dtype in (torch.float32, torch.float64)
        for logit in (-100.0, -300.0, -1e4)
    },
    "one variable is surprising": (integers, peaked(3, 4), OfSum(lambda s: s == 8, 10)),
    **{
        f"weights {weights}, at least {least}": (
            integers,
            normals(3, 3, 5, seed=2).mul(4),
            OfSum(
                lambda s, least=least: (s >= least).double() * (9 + s),
                5,
                None if weights is None else torch.tensor(weights),
            ),
        )
        for weights in WEIGHTS
        for least in (0, 5, 11, 12)
    },
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithm_equals_that_of_the_sum_over_all_points(name):
    kind, logits, f = LOGARITHMS[name]
    logits = logits.clone().requires_grad_()
    q, wide = kind(logits), kind(logits.double())
    law = view(wide)
    index = grid(*law.cardinalities)
    x = law.point(index.view(-1, *[1] * len(q.batch_shape), law.d).expand(-1, *q.batch_shape, -1))
    terms = wide.log_prob(x) + f(x).double().log()
    if bool((terms == -torch.inf).all(0).any()):
        return  # impossible sums have a test of their own
    expected = terms.logsumexp(0)
    value = log_expectation(Exact(), f, q)
    assert value.dtype == logits.dtype
    close = {"rtol": 1e-6, "atol": 0} if kind is bits else {"rtol": 1e-9, "atol": 1e-9}
    close = {"rtol": 1e-5, "atol": 1e-6} if name == "one variable is surprising" else close
    assert_same(value.double(), expected, logits, **close)
    floored = log_expectation(Exact(), f, q, floor=1e-3)
    assert_close(floored.double(), (expected.exp() + 1e-3).log(), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithm_of_a_mean_that_underflows(dtype):
    logits = normals(1000, 10).to(dtype).mul(3).requires_grad_()
    exact = logits.double().log_softmax(-1)[:, 0].sum()
    assert exact < -3000
    value = log_expectation(Exact(), OfSum(lambda s: s == 0, categories=10), integers(logits))
    assert value.dtype == dtype
    assert_close(value.double(), exact, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    gradient, expected = (with_gradients(y, logits)[1] for y in (value, exact))
    assert_close(gradient, expected, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-7)


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


def test_float32():
    logits = normals(300, 10).float()
    f = OfSum(lambda total: total == 1300, categories=10)
    value, double = (Exact()(f, integers(leaf)) for leaf in (logits, logits.double()))
    assert value.dtype == torch.float32
    assert_close(value.double(), double, rtol=1e-5, atol=0)
