"""torchrl 0.14.1: its masked and one-hot categorical distributions have its probabilities."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog.testing.cases import normals
from support.gradients import assert_same

torchrl = pytest.importorskip(
    "torchrl.modules", reason="torchrl is not installed: run `make test-peers`"
)
MASK = torch.tensor([[True, False, True, True], [True, False, False, True]])
INDICES = torch.tensor([[0, 2, 3], [0, 3, -1]])


def distributions(logits: Tensor) -> dict[str, Distribution]:
    return {
        "mask": torchrl.MaskedCategorical(logits, mask=MASK),
        "indices": torchrl.MaskedCategorical(logits, indices=INDICES, padding_value=-1),
        "one-hot mask": torchrl.MaskedOneHotCategorical(logits, mask=MASK),
        "one-hot": torchrl.OneHotCategorical(logits),
    }


@pytest.mark.parametrize("name", ["mask", "indices", "one-hot mask", "one-hot"])
def test_the_expectation_has_torchrls_probabilities(name: str) -> None:
    logits = normals(2, 4).requires_grad_()
    possible = MASK if name != "one-hot" else torch.ones_like(MASK)

    def f(x: Tensor) -> Tensor:
        return (x.argmax(-1) if "one-hot" in name else x).double().square()

    q = distributions(logits)[name]
    probs = logits.masked_fill(~possible, -torch.inf).softmax(-1)
    assert f(q.sample((20,))).shape == (20, 2)
    exact = probs @ torch.arange(4.0, dtype=torch.float64).square()
    assert_same(catlog.IndeCateR(1)(f, q), exact, logits, rtol=0, atol=1e-12)
