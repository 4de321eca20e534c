"""Counts: gradients from differences against series, and truncation with its error bound."""

from math import inf

import pytest
import torch
from torch.distributions import (
    Binomial,
    Geometric,
    Independent,
    NegativeBinomial,
    OneHotCategorical,
    Poisson,
)
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

import catlog
from catlog import Exact
from catlog.distributions import lost_mass, truncated
from catlog.distributions.counts import counts
from catlog.estimators import CountDifferences
from catlog.testing.cases import seeded
from support.gradients import assert_same, with_gradients


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def of_binomial(n):
    return lambda z: (-(z + 1).lgamma() - ((n - z).clamp(min=0) + 1).lgamma()).where(z <= n, -inf)


def of_failures(r):
    return lambda z: (z + r).lgamma() - (z + 1).lgamma()


MOST = 400  # of the counts beyond, the mass is below 1e-15
SIZES, REALS = double(3, 1, 6), double(0.7, 1.0, 4.0)
# The parameter and the distribution, and by hand the log-mass of z counts but for a constant: z
# times a number that the parameter gives, and a number that it does not.
# fmt: off
FAMILIES = {
    "Poisson": (double(0.3, 2.0, 7.5), Poisson, torch.log, lambda z: -(z + 1).lgamma()),
    "Binomial": (
        double(0.07, 0.5, 0.93), lambda p: Binomial(5, probs=p), torch.logit, of_binomial(5)),
    "Binomial, sizes": (double(0.2, 0.7, 0.5), lambda p: Binomial(SIZES.to(p), probs=p),
        torch.logit, of_binomial(SIZES)),
    "Binomial by logits": (
        double(-2.0, 0.3, 2.0), lambda y: Binomial(4, logits=y), torch.clone, of_binomial(4)),
    "Geometric": (double(0.25, 0.5, 0.9), Geometric, lambda p: (-p).log1p(), torch.zeros_like),
    "Geometric by logits": (double(-0.5, 0.0, 2.0), lambda y: Geometric(logits=y),
        lambda y: logsigmoid(-y), torch.zeros_like),
    "NegativeBinomial": (double(0.1, 0.4, 0.6), lambda p: NegativeBinomial(2.5, probs=p),
        torch.log, of_failures(2.5)),
    "a fourth of a failure": (double(0.1, 0.4, 0.9), lambda p: NegativeBinomial(0.25, probs=p),
        torch.log, of_failures(0.25)),
    "NegativeBinomial by logits": (double(-1, 0, 0.5),
        lambda y: NegativeBinomial(REALS.to(y), logits=y), logsigmoid, of_failures(REALS)),
}
# fmt: on
EXTREME = {
    "Binomial by logits": double(80.0, -80.0, 0.3),
    "Geometric by logits": double(80.0, 40.0, 2.0),
    "NegativeBinomial by logits": double(-80.0, -40.0, 0.3),
    "Poisson": double(-80.0, -40.0, 1.0).exp(),
}
FUNCTIONS = {
    "square": lambda z: (z - 2.5).square(),
    "indicator": lambda z: (z >= 3).to(z.dtype),
    "sine": lambda z: (0.9 * z).sin() + z.sqrt(),
}
families = pytest.mark.parametrize("family", FAMILIES)
starts = pytest.mark.parametrize(
    ("family", "start"),
    [
        *(pytest.param(name, start, id=name) for name, (start, *_) in FAMILIES.items()),
        *(pytest.param(name, start, id=f"extreme {name}") for name, start in EXTREME.items()),
    ],
)


def log_mass(family, theta, most):
    """Return the log-masses of counts below ``most`` by hand, ``[most, variables]``."""
    *_, slope, constant = FAMILIES[family]
    z = torch.arange(MOST, dtype=torch.float64).unsqueeze(-1)
    return (z * slope(theta) + constant(z)).log_softmax(0)[:most]


def series(family, theta, f, most=MOST):
    """Return E[f] of every variable by summing over the counts."""
    z = torch.arange(most, dtype=torch.float64).unsqueeze(-1)
    return (log_mass(family, theta, most).exp() * f(z)).sum(0)


@starts
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_equals_the_series(family, start, name):
    """The mean over all counts, each one batch element, weighted by its probability."""
    theta, f = start.clone().requires_grad_(), FUNCTIONS[name]
    mass = log_mass(family, theta, MOST).detach().exp()
    z = torch.arange(MOST, dtype=torch.float64).unsqueeze(-1).where(mass > 0, 0.0)
    make = FAMILIES[family][1]
    q, most = make(theta.expand(z.shape)), counts(Independent(make(start), 1)).most

    def possible(z):
        assert ((z >= 0) & (z <= most)).all()
        return f(z)

    estimates = CountDifferences()(possible, q, x=z[None])
    assert_same((mass * estimates).sum(0), series(family, theta, f), theta, rtol=0, atol=1e-10)


@families
def test_vectors_of_counts(family):
    """f is not additive, and has a parameter. The sums leave out a mass of at most 1e-14."""
    start, make, *_ = FAMILIES[family]
    scale = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def f(z):
        return (scale * z[..., 0] * z[..., 1] + z[..., 2]).sin()

    theta = start.clone().requires_grad_()
    fewer = start.clone()
    sizes = [truncated(make(fewer), error=1e-14).logits.shape[-1]] * 2
    z = torch.cartesian_prod(*(torch.arange(size, dtype=torch.float64) for size in sizes))
    z = torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], -1)
    z = z[(z <= counts(Independent(make(fewer), 1)).most).all(-1)]
    many = Independent(make(theta.expand(len(z), 3)), 1)
    pairs = Independent(make(theta.expand(len(z), 3)), 0).log_prob(z)[:, :2].sum(-1).exp()
    expected = torch.autograd.grad((pairs * f(z)).sum(), [theta, scale], retain_graph=True)
    estimate = (pairs.detach() * CountDifferences()(f, many, x=z[None])).sum()
    actual = torch.autograd.grad(estimate, [theta, scale])
    # The third count is always 1, so that its own derivative is not that of a mean.
    assert_close(actual[0][:2], expected[0][:2], rtol=0, atol=1e-10)
    assert_close(actual[1], expected[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@starts
def test_truncated_probabilities_are_those_of_q(family, start, dtype):
    """Those by hand, normalised, with their gradients; also after the parameters were cached."""
    theta, leaf = start.clone().requires_grad_(), start.to(dtype).requires_grad_()
    q = Independent(FAMILIES[family][1](leaf), 1)
    wanted, atol = log_mass(family, theta, 5).log_softmax(0).T, 1e-12 if leaf is theta else 1e-5
    for short in (truncated(q, categories=5), truncated(q, categories=5)):
        logits = short.base_dist.logits
        assert_close(logits.double(), wanted, rtol=1e-5, atol=atol)
        for count in range(5):
            got, slope = (
                with_gradients(rows[:, count].where(wanted[:, count] > -torch.inf, 0.0), leaf_of)[1]
                for rows, leaf_of in ((logits, leaf), (wanted, theta))
            )
            assert_close(got.double(), slope, rtol=1e-5, atol=1e-5)
    one_hot = truncated(q, categories=5, one_hot=True).base_dist
    assert isinstance(one_hot, OneHotCategorical)
    assert torch.equal(one_hot.logits, logits)
    value = CountDifferences(50)(lambda z: (z < 2).to(dtype).sum(-1), q)
    assert torch.autograd.grad(value, leaf)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name[-9:] != "by logits"])
def test_narrow_types_are_truncated_as_wide_ones(family, dtype):
    """1 - p is 1 in bfloat16 where p is 0.001."""
    start, make, *_ = FAMILIES[family]
    theta = start.to(dtype)
    theta[0] = 0.001
    got, wanted = (truncated(make(leaf), categories=6).probs for leaf in (theta, theta.float()))
    assert got.dtype == torch.float32
    assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@families
def test_expand_and_batches(family):
    """A batch equals a loop, and an expanded distribution repeats itself."""
    start, make, *_ = FAMILIES[family]
    q, wide = Independent(make(start), 1), Independent(make(start), 1).expand([4, 2])
    assert counts(wide).batch_shape == (4, 2)
    expected = truncated(q, categories=6).base_dist.logits
    assert_close(truncated(wide, categories=6).base_dist.logits, expected.expand(4, 2, 3, 6))
    x = q.sample((5,)).unsqueeze(1).unsqueeze(1).expand(5, 4, 2, 3)
    theta = start.clone().requires_grad_()
    p, f = Independent(make(theta), 1), lambda z: z.square().sum(-1).sin()
    batch = CountDifferences(5)(f, p.expand([4, 2]), x=x)
    alone = CountDifferences(5)(f, p, x=x[:, 0, 0])
    assert_same(batch.mean(), alone, theta, rtol=0, atol=1e-12)
    assert_close(alone.detach(), f(x[:, 0, 0]).mean())


@pytest.mark.parametrize(
    ("make", "start", "slopes"),  # of the mean count, where it is certain
    [
        (lambda p: Binomial(4, probs=p), double(0.0, 1.0, 0.3), double(4, 4)),
        (Geometric, double(1.0, 0.5), double(-1)),
        (lambda p: NegativeBinomial(2, probs=p), double(0.0, 0.5), double(2)),
        (Poisson, double(0.0, 2.0), double(1)),
    ],
)
def test_certain_counts_have_a_gradient(make, start, slopes):
    theta = start.clone().requires_grad_()
    short = truncated(make(theta), categories=5)
    assert not short.probs.isnan().any()
    for E, q in ((Exact(), short), (CountDifferences(3), make(theta))):
        value = E(lambda z: z.double().sum(-1), Independent(q, 1))
        slope = torch.autograd.grad(value, theta)[0]
        assert slope.isfinite().all()
    assert_close(slope[: len(slopes)], slopes)


def test_shapes_outputs_chunks_and_generators():
    rate = torch.rand(2, 3, 4, 5) + 0.5
    q = Independent(Poisson(rate.requires_grad_()), 2)
    E = CountDifferences(3, chunk_size=7)
    assert E.evaluations(q) == 3 * 21
    assert repr(E) == "CountDifferences(3, chunk_size=7)"
    assert isinstance(E, catlog.Estimator)

    def f(z):
        return torch.stack([z.sum((-1, -2)), z.square().mean((-1, -2))], -1)

    def gradients(E):
        value = E(f, q, outputs=1, generator=seeded())
        assert value.shape == (2, 3, 2)
        return torch.autograd.grad((value * torch.tensor([1.0, 2.0])).sum(), rate)[0]

    assert_close(gradients(E), gradients(CountDifferences(3)))
    single = [E(lambda z, i=i: f(z)[..., i], q, generator=seeded()) for i in range(2)]
    by_output = torch.autograd.grad((single[0] + 2 * single[1]).sum(), rate)[0]
    assert_close(gradients(E), by_output)


@families
@pytest.mark.parametrize("error", [1e-2, 1e-6])
def test_truncation_keeps_its_error_bound(family, error):
    start, make, *_ = FAMILIES[family]
    theta = start.clone().requires_grad_()
    q = Independent(make(theta), 1)
    short = truncated(q, error)
    k = short.base_dist.logits.shape[-1]
    bound = float(lost_mass(q, k))
    assert bound <= error
    tails = 1 - series(family, theta, lambda z: (z < k).double()).detach()
    assert -1e-13 <= tails.sum() <= bound + 1e-13  # and the bound is close where there is a tail
    if tails.sum() > 1e-9:
        assert bound < 5 * tails.sum()
    if k > 1:
        assert float(lost_mass(q, k - 1)) > error
    # The distance of means of an f in [0, 1].
    for f in (lambda z: (z > 1).double(), lambda z: (2 * z).sin().square()):
        exact = series(family, theta, f).prod()
        value = Exact()(lambda z, f=f: f(z.double()).prod(-1), short)
        assert abs(value - exact) <= bound + 1e-12


# Many trials, the parameter, and the ratio of the masses of k + 1 and k, times k + 1.
# fmt: off
RARE = {
    "Binomial": (lambda y: Binomial(10**7, logits=y), -10.0, lambda y, k: (10**7 - k) * y.exp()),
    "NegativeBinomial": (lambda y: NegativeBinomial(torch.full_like(y, 1e6), logits=y), -10.0,
        lambda y, k: (1e6 + k) * y.sigmoid()),
    "Poisson": (lambda y: Poisson(y.exp()), 16.0, lambda y, k: y.exp()),
    "Poisson of a huge rate": (lambda y: Poisson(y.exp()), 60.0, lambda y, k: y.exp()),
}
# fmt: on


@pytest.mark.parametrize("name", RARE)
def test_rare_events_of_many_trials_are_truncated_in_float32(name):
    """Their log-masses are small differences of large numbers."""
    (make, parameter, ratio), probs = RARE[name], []
    for dtype in (torch.float32, torch.float64):
        y = torch.tensor(parameter, dtype=dtype, requires_grad=True)
        q = truncated(make(y), categories=600)
        mean = (q.probs * torch.arange(600)).sum()
        (slope,) = torch.autograd.grad(mean, y)
        probs.append(torch.cat([q.probs.detach(), mean.detach()[None], slope[None]]).double())
        assert q.probs.dtype == dtype
    assert_close(probs[0], probs[1], rtol=1e-4, atol=1e-5)
    k = torch.arange(599, dtype=torch.float64)
    wanted = (ratio(y.detach(), k) / (k + 1)).log()
    assert_close(q.logits.detach().diff(), wanted, rtol=0, atol=1e-6)
    assert probs[1][:-2].max() - probs[1][:-2].min() > 1e-3  # not uniform by rounding


def test_binomials_are_not_cut_off_without_error():
    p = double(0.2, 0.9).requires_grad_()
    q = Independent(Binomial(double(3, 5), probs=p), 1)
    short = truncated(q, error=0)
    assert short.base_dist.logits.shape == (2, 6)
    assert lost_mass(q, 6) == 0
    value = Exact()(lambda z: z.double().prod(-1), short)
    assert_close(value, 15 * p.prod())
    assert_close(torch.autograd.grad(value, p)[0], double(13.5, 3.0))


@pytest.mark.parametrize("rate", [1e-3, 1e-8, 1e-20])
def test_rare_counts_have_a_gradient(rate):
    """The derivative in a small rate is f(1) - f(0), although all counts are nearly certain."""
    theta = double(rate).requires_grad_()
    value = Exact()(lambda z: (z.double() + 2) ** 2, truncated(Poisson(theta)))
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    assert gradient.item() == pytest.approx(5.0, rel=5e-3)
    assert truncated(Binomial(0, double(0.5))).probs.shape == (1, 1)  # no count but 0
