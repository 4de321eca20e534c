"""storchastic 0.3.7: methods with a wrong mean, and the step that a benchmark times.

Methods that agree: test_same_draws.py.
"""

import pytest
import torch
from benchmarks.peers import StorchasticStep
from torch import Tensor
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import softplus

import catlog
from catlog.testing import CASES, FUNCTIONS, expected, z_limit
from support.storchastic import ones, storch_gradient

storch = pytest.importorskip("storch", reason="storchastic is not installed: run `make test-peers`")

LIMIT = z_limit(18)  # at most 18 numbers per test
REPEATS = 40_000


def off(gradient: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return the error of the mean gradient: in standard errors, and relative to the norm."""
    error = gradient.mean(0) - exact
    z = (error / (gradient.std(0) / len(gradient) ** 0.5)).abs().max()
    return float(z), float(error.norm() / exact.norm())


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
        "one-hot", {"k": 3, "num_int_points": 100}, 0.1, 10_000, catlog.estimators.UnorderedSet(3)
    ),
    "ScoreFunctionWOR": ("one-hot", {"k": 3}, 0.5, 10_000, catlog.estimators.UnorderedSet(2)),
    "DisARM": ("bits", {"n_samples": 1}, 0.9, 10_000, catlog.DisARM(1)),
    "RaoBlackwellSF": (
        "integers", {"n_samples": 3}, 0.5, 10_000, catlog.estimators.SumAndSample(2)
    ),
    # They draw z given the bits from a wrong distribution: log1p(p) instead of -log1p(-p).
    "RELAX": (
        "bits", {"n_samples": 1, "c_phi": control}, 0.1, REPEATS,
        catlog.estimators.RELAX(1, network=Control()),
    ),
    "REBAR": ("bits", {"n_samples": 1}, 0.1, REPEATS, catlog.REBAR(1, temperature=1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_in_the_peer(name: str) -> None:
    kind, options, least, repeats, E = WRONG[name]
    torch.manual_seed(0)
    case, c = CASES[kind], ones().detach()
    exact = expected(case, FUNCTIONS["network"], c)[1]
    theta = case.theta.expand(REPEATS, *case.theta.shape).clone().requires_grad_()

    def f(x: Tensor) -> Tensor:
        features = case.features(x if kind == "integers" else x.double())
        return FUNCTIONS["network"](features, c)

    method = getattr(storch.method, name)("x", **options)
    theirs = storch_gradient(method, kind, theta[:repeats].detach(), f)[2]
    z, far = off(theirs, exact)
    assert z > 2 * LIMIT
    assert far > least
    value = E(f, case.distribution(theta)).sum()
    assert off(torch.autograd.grad(value, theta)[0], exact)[0] < LIMIT


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
