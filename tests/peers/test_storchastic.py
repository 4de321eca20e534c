"""storchastic 0.3.7: the step that a benchmark times."""

import pytest
import torch
from benchmarks.peers import StorchasticStep
from torch import Tensor
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import softplus

import catlog

pytest.importorskip("storch", reason="storchastic is not installed: run `make test-peers`")


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
