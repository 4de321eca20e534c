"""storchastic 0.3.7: methods that agree, and methods with a wrong mean.

Rows of the parameters are separate expectations (a plate of storchastic), so that one call makes
many estimates.
"""

from collections.abc import Callable

import pytest
import torch
from benchmarks.peers import StorchasticStep
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import softplus

import catlog
from catlog.testing import CASES, FUNCTIONS, expected, z_limit

storch = pytest.importorskip("storch", reason="storchastic is not installed: run `make test-peers`")

KINDS: dict[str, Callable[[Tensor], Distribution]] = {
    "bits": lambda logits: Bernoulli(logits=logits),
    "integers": lambda logits: Categorical(logits=logits),
    "one-hot": lambda logits: OneHotCategorical(logits=logits),
}
PARAMETER = torch.ones(6, dtype=torch.float64)
# The peer holds 1 / samples in float32, which is exact for 2 and 4 samples.
SAME = {"rtol": 0, "atol": 1e-12}
LIMIT = z_limit(18)  # at most 18 numbers per test
REPEATS = 40_000


def parameters(kind: str, rows: int = 4) -> Tensor:
    """Return parameters that differ between rows."""
    theta = CASES[kind].theta
    return theta + 0.5 * torch.randn(
        rows, *theta.shape, dtype=theta.dtype, generator=torch.Generator().manual_seed(9)
    )


def function(kind: str, name: str = "network", c: Tensor = PARAMETER) -> Callable[[Tensor], Tensor]:
    return lambda x: FUNCTIONS[name](
        CASES[kind].features(x if kind == "integers" else x.double()), c
    )


def theirs(
    method: object, kind: str, theta: Tensor, f: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points, the sum of the values over rows, and its gradient."""
    storch.reset()
    theta = theta.clone().requires_grad_()
    x = method(KINDS[kind](storch.denote_independent(theta, 0, "rows")))
    storch.add_cost(storch.deterministic(f)(x), "f")
    mean = storch.backward(update_estimator_params=False)
    return x._tensor.detach(), mean.detach() * len(theta), theta.grad.detach() * len(theta)


def ours(
    E: catlog.Estimator, kind: str, theta: Tensor, f: Callable[[Tensor], Tensor], **x: Tensor
) -> tuple[Tensor, Tensor]:
    theta = theta.clone().requires_grad_()
    value = E(f, CASES[kind].distribution(theta), **x).sum()
    return value.detach(), torch.autograd.grad(value, theta)[0]


def off(gradient: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return the error of the mean gradient: in standard errors, and relative to the norm."""
    error = gradient.mean(0) - exact
    z = (error / (gradient.std(0) / len(gradient) ** 0.5)).abs().max()
    return float(z), float(error.norm() / exact.norm())


def many(kind: str) -> Tensor:
    theta = CASES[kind].theta
    return theta.expand(REPEATS, *theta.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_expect_is_exact(kind: str, name: str) -> None:
    theta, f = parameters(kind), function(kind, name)
    _, value, gradient = theirs(storch.method.Expect("x"), kind, theta, f)
    torch.testing.assert_close(ours(catlog.Exact(), kind, theta, f), (value, gradient), **SAME)


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_score_function_with_batch_average_is_rloo(kind: str, samples: int) -> None:
    """On the same draws; also the gradient in the parameter of f."""
    torch.manual_seed(0)
    theta, c = parameters(kind), PARAMETER.clone().requires_grad_()
    f = function(kind, c=c)
    method = storch.method.ScoreFunction("x", n_samples=samples, baseline_factory="batch_average")
    x, value, gradient = theirs(method, kind, theta, f)
    mine = ours(catlog.RLOO(samples), kind, theta, f, x=x)
    torch.testing.assert_close(mine, (value, gradient), **SAME)
    (in_c,) = torch.autograd.grad(
        catlog.RLOO(samples)(f, CASES[kind].distribution(theta), x=x).mean(), c
    )
    torch.testing.assert_close(in_c, c.grad, **SAME)


@pytest.mark.parametrize("kind", KINDS)
def test_score_function_is_reinforce(kind: str) -> None:
    torch.manual_seed(0)
    theta, f = parameters(kind), function(kind)
    x, value, gradient = theirs(storch.method.ScoreFunction("x", n_samples=4), kind, theta, f)
    mine = ours(catlog.Reinforce(4), kind, theta, f, x=x)
    torch.testing.assert_close(mine, (value, gradient), **SAME)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("samples", [1, 3])
def test_arm(samples: int, name: str) -> None:
    """With the same uniforms. (The value that the peer reports is d times too large.)"""
    theta, f = parameters("bits"), function("bits", name)
    noise = torch.rand(
        samples, *theta.shape, dtype=theta.dtype, generator=torch.Generator().manual_seed(0)
    )
    method = storch.method.ARM("x", n_samples=samples)

    def given(distribution: Bernoulli, *_: object) -> Tensor:
        return torch.cat(
            [noise.logit() + distribution.logits, -noise.logit() + distribution.logits]
        )

    method.sampling_method.set_mc_sample(given)
    gradient = theirs(method, "bits", theta, f)[2]
    torch.testing.assert_close(
        ours(catlog.estimators.ARM(samples), "bits", theta, f, noise=noise)[1], gradient, **SAME
    )


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("kind", ["bits", "one-hot"])
def test_rao_blackwell_is_sum_and_sample(kind: str, top: int) -> None:
    """The same draw. The peer has no baseline: it gets f less ours, the mean over the sum."""
    torch.manual_seed(0)
    theta, f = parameters(kind), function(kind)
    x = theirs(storch.method.RaoBlackwellSF("x", top + 1), kind, theta, f)[0].transpose(0, 1)
    weight = CASES[kind].distribution(theta).log_prob(x[:-1]).exp()
    baseline = (weight * f(x[:-1])).sum(0) / weight.sum(0)
    torch.manual_seed(0)
    again, value, gradient = theirs(
        storch.method.RaoBlackwellSF("x", top + 1),
        kind,
        theta,
        lambda x: f(x) - baseline.unsqueeze(-1),
    )
    assert torch.equal(again.transpose(0, 1), x)
    mine = ours(catlog.estimators.SumAndSample(top=top), kind, theta, f, x=x[-1:])
    torch.testing.assert_close(mine[0], value + baseline.sum(), **SAME)
    torch.testing.assert_close(mine[1], gradient, **SAME)


def control(z: Tensor) -> Tensor:
    return (z * torch.tensor([1.0, -2.0, 0.7], dtype=z.dtype)).sum(-1).tanh()


class Control(torch.nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return control(z)


# Errors of the peer, their least size relative to the gradient, the number of estimates that show
# it, and our unbiased counterpart.
WRONG = {
    # It leaves the same point out twice.
    "UnorderedSetEstimator": (
        "one-hot",
        lambda: storch.method.UnorderedSetEstimator("x", 3, num_int_points=100),
        0.1,
        10_000,
        catlog.estimators.UnorderedSet(3),
    ),
    "ScoreFunctionWOR": (
        "one-hot",
        lambda: storch.method.ScoreFunctionWOR("x", 3),
        0.5,
        10_000,
        catlog.estimators.UnorderedSet(2),
    ),
    "DisARM": (
        "bits", lambda: storch.method.DisARM("x", n_samples=1), 0.9, 10_000, catlog.DisARM(1)
    ),
    "RaoBlackwellSF of integers": (
        "integers",
        lambda: storch.method.RaoBlackwellSF("x", 3),
        0.5,
        10_000,
        catlog.estimators.SumAndSample(2),
    ),
    # They draw z given the bits from a wrong distribution: log1p(p) instead of -log1p(-p).
    "RELAX": (
        "bits",
        lambda: storch.method.RELAX("x", n_samples=1, c_phi=control),
        0.1,
        REPEATS,
        catlog.estimators.RELAX(1, network=Control()),
    ),
    "REBAR": (
        "bits",
        lambda: storch.method.REBAR("x", n_samples=1),
        0.1,
        REPEATS,
        catlog.REBAR(1, temperature=1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_in_the_peer(name: str) -> None:
    kind, make, least, repeats, E = WRONG[name]
    torch.manual_seed(0)
    f, exact = function(kind), expected(CASES[kind], FUNCTIONS["network"], PARAMETER)[1]
    z, far = off(theirs(make(), kind, many(kind)[:repeats], f)[2], exact)
    assert z > 2 * LIMIT
    assert far > least
    assert off(ours(E, kind, many(kind), f)[1], exact)[0] < LIMIT


def test_benchmark_step_has_the_gradient_of_rloo() -> None:
    """benchmarks/peers.py times the same mathematics as our RLOO."""
    step = StorchasticStep(4, "cpu")
    step.encoder.double(), step.decoder.double()
    images = (torch.rand(100, 784, generator=torch.Generator().manual_seed(0)) < 0.2).double()
    logits = step.encoder(images)
    torch.manual_seed(1)
    x = Bernoulli(logits=logits.detach()).sample((4,))

    def f(x: Tensor) -> Tensor:
        pixels = step.decoder(x)
        return (softplus(pixels) - pixels * images).sum(-1)

    q = Independent(Bernoulli(logits=logits), 1)
    divergence = torch.distributions.kl_divergence(
        q, Independent(Bernoulli(logits=torch.zeros_like(logits)), 1)
    )
    weights = [*step.encoder.parameters(), *step.decoder.parameters()]
    mine = torch.autograd.grad((catlog.RLOO(4)(f, q, x=x) + divergence).mean(), weights)
    before = [weight.detach().clone() for weight in weights]
    torch.manual_seed(1)
    step(images)
    for weight, gradient in zip(weights, mine, strict=True):
        # The peer holds 1 / 100 in float32.
        assert (weight.grad - gradient).norm() < 1e-6 * gradient.norm()
    assert not any(torch.equal(*pair) for pair in zip(before, weights, strict=True))
