"""reinmax 0.1.0, the authors' package: ReinMax on the same draws."""

import pytest
import torch
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog.testing.enumeration import cases, functions

peer = pytest.importorskip("reinmax", reason="reinmax is not installed: run `make test-peers`")

CASE = next(case for case in cases() if case.name == "one-hot")


@pytest.mark.parametrize("name", functions())
@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_reinmax(name: str, temperature: float) -> None:
    """The gradient in the logits and in f's own parameters; the value."""
    torch.manual_seed(0)
    f = functions()[name]
    logits, own = (
        CASE.theta.clone().requires_grad_(),
        torch.ones(6, dtype=torch.float64, requires_grad=True),
    )
    x, _ = peer.reinmax(logits.expand(5, 2, 3).contiguous(), temperature)
    theirs = f(CASE.features(x), own).mean()
    wanted = torch.autograd.grad(theirs, [logits, own])
    E, q = (
        catlog.ReinMax(samples=5, temperature=temperature),
        Independent(OneHotCategorical(logits=logits), 1),
    )
    value = E(lambda x: f(CASE.features(x), own), q, x=x.detach())
    torch.testing.assert_close(value, theirs, rtol=0, atol=1e-12)
    for got, gradient in zip(torch.autograd.grad(value, [logits, own]), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-3
