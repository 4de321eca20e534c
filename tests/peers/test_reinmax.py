"""reinmax 0.1.0, the authors' package: ReinMax on the same draws."""

import pytest
import torch
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog.testing import CASES, FUNCTIONS

peer = pytest.importorskip("reinmax", reason="reinmax is not installed: run `make test-peers`")

CASE = CASES["one-hot"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_reinmax(name: str, temperature: float) -> None:
    """The value, and its gradients in the logits and in the parameter of f."""
    torch.manual_seed(0)
    f = FUNCTIONS[name]
    logits = CASE.theta.clone().requires_grad_()
    c = torch.ones(6, dtype=torch.float64, requires_grad=True)
    x, _ = peer.reinmax(logits.expand(5, 2, 3).contiguous(), temperature)
    theirs = f(CASE.features(x), c).mean()
    wanted = torch.autograd.grad(theirs, [logits, c])
    E = catlog.ReinMax(samples=5, temperature=temperature)
    q = Independent(OneHotCategorical(logits=logits), 1)
    value = E(lambda x: f(CASE.features(x), c), q, x=x.detach())
    torch.testing.assert_close(value, theirs, rtol=0, atol=1e-12)
    for got, gradient in zip(torch.autograd.grad(value, [logits, c]), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-3
