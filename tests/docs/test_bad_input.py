"""The first mistakes with Gymnasium's spaces and with routers: every error names the way out, and
that way works. (Pyro, CausalLM, advantages and sample have theirs in their own tests.)
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, OneHotCategorical

import catlog

NVEC = np.array([3, 5, 3, 5])  # of Gymnasium's MultiDiscrete([3, 5, 3, 5])
SIZES = tuple(NVEC.tolist())


def test_logits_of_multidiscrete_actions_side_by_side() -> None:
    """What a network's last layer returns, with the space's own `nvec`."""
    logits = torch.zeros(7, sum(SIZES))
    split = r"logits\.split\(\(3, 5, 3, 5\), -1\)"
    with pytest.raises(ValueError, match=rf"does not fit logits of shape \(7, 16\).*{split}"):
        catlog.distributions.Categoricals(logits, NVEC)
    with pytest.raises(ValueError, match=r"`cardinalities` is needed.*logits\.split\(sizes, -1\)"):
        catlog.distributions.Categoricals(logits)
    q = catlog.distributions.Categoricals(logits.split(SIZES, -1))
    assert q.sample().shape == (7, 4)
    assert (
        catlog.distributions.Categoricals(torch.zeros(7, 4, 5), NVEC).cardinalities
        == q.cardinalities
    )


def test_routers_that_draw_integers() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.double().flatten(-2 if x.dim() == 3 else -1).square().sum(-1)

    logits = torch.zeros(6, 4, requires_grad=True)  # tokens, experts
    integers = Independent(Categorical(logits=logits), 1)
    E = catlog.IndeCateR(1, variables=2)
    way = r"draws integers\. Use OneHotCategorical .*, or pass control='none'\."
    with pytest.raises(TypeError, match=way):
        E(loss, integers)
    assert E(loss, Independent(OneHotCategorical(logits=logits), 1)).shape == ()
    assert catlog.IndeCateR(1, variables=2, control="none")(loss, integers).shape == ()
