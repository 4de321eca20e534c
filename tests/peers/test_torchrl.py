"""torchrl 0.14.1: its masked and one-hot categorical distributions have its probabilities."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

import catlog
from catlog.core.view import view

torchrl = pytest.importorskip(
    "torchrl.modules", reason="torchrl is not installed: run `make test-peers`"
)


def distributions(logits: Tensor) -> dict[str, tuple[Distribution, Tensor]]:
    """Return by name a distribution and the probabilities of its four categories."""
    mask = torch.tensor([[True, False, True, True], [True, False, False, True]])
    indices = torch.tensor([[0, 2, 3], [0, 3, -1]])
    masked = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    return {
        "mask": (torchrl.MaskedCategorical(logits, mask=mask), masked),
        "indices": (torchrl.MaskedCategorical(logits, indices=indices, padding_value=-1), masked),
        "one-hot mask": (torchrl.MaskedOneHotCategorical(logits, mask=mask), masked),
        "one-hot": (torchrl.OneHotCategorical(logits), logits.softmax(-1)),
    }


@pytest.mark.parametrize("name", ["mask", "indices", "one-hot mask", "one-hot"])
def test_the_view_has_torchrls_probabilities_and_points(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    q, probs = distributions(logits)[name]
    law = view(q)
    torch.testing.assert_close(law.probs.view(2, 4), probs, rtol=0, atol=1e-12)
    number = torch.tensor([[2, 3]])  # a possible point
    point = law.point(number.view(1, 2, 1))
    assert point.shape == q.sample((1,)).shape
    torch.testing.assert_close(
        q.log_prob(point[0]).exp(), probs.gather(-1, number.T).flatten(), rtol=0, atol=1e-12
    )

    def f(x: Tensor) -> Tensor:
        return (x.argmax(-1) if "one-hot" in name else x).double().square()

    value = catlog.IndeCateR(1)(f, q).sum()
    exact = (probs * torch.arange(4.0).square()).sum()
    torch.testing.assert_close(value, exact, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(total, logits, retain_graph=True) for total in (value, exact)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    if name == "mask":
        value = catlog.Exact()(lambda x: f(x).sum(-1), Independent(q, 1))
        torch.testing.assert_close(value, exact, rtol=0, atol=1e-12)
