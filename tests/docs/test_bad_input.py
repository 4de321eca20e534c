"""The first mistakes with integrations that have no file of their own: every error names the way
out, and that way works. (Pyro, CausalLM, advantages and sample have theirs in their own tests.)
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, OneHotCategorical

import catlog

NVEC = np.array([3, 5, 3, 5])  # of Gymnasium's MultiDiscrete([3, 5, 3, 5])
SIZES = tuple(NVEC.tolist())
TOKENS, EXPERTS = 6, 4


def test_logits_of_multidiscrete_actions_side_by_side() -> None:
    """What a network's last layer returns, with the space's own `nvec`."""
    logits = torch.zeros(7, sum(SIZES))
    split = r"logits\.split\(\(3, 5, 3, 5\), -1\)"
    with pytest.raises(ValueError, match=rf"does not fit logits of shape \(7, 16\).*{split}"):
        catlog.Categoricals(logits, NVEC)
    with pytest.raises(ValueError, match=r"`cardinalities` is needed.*logits\.split\(sizes, -1\)"):
        catlog.Categoricals(logits)
    q = catlog.Categoricals(logits.split(SIZES, -1))
    assert q.sample().shape == (7, 4)
    assert catlog.Categoricals(torch.zeros(7, 4, 5), NVEC).cardinalities == q.cardinalities


@pytest.mark.parametrize(
    ("q_values", "returned"),
    [
        (lambda x: x.double(), r"\(1, 7, 4\).*outputs=1.*Reduce the event dimensions \(4,\)"),
        (lambda x: x.double().sum(-1).mean(), r"\(\).*Reduce the event dimensions \(4,\)"),
    ],
    ids=["a value per action", "a mean over states"],
)
def test_q_functions_of_another_shape(q_values, returned: str) -> None:  # type: ignore[no-untyped-def]
    policy = catlog.Categoricals(torch.zeros(7, sum(SIZES)).split(SIZES, -1))
    with pytest.raises(ValueError, match=rf"f must return one value per point.*{returned}"):
        catlog.IndeCateR(1)(q_values, policy)


def router(form: type = OneHotCategorical) -> Independent:
    logits = torch.zeros(TOKENS, EXPERTS, requires_grad=True)
    return Independent(form(logits=logits), 1)


def loss(x: Tensor) -> Tensor:
    return x.double().flatten(-2 if x.dim() == 3 else -1).square().sum(-1)


def test_routers_that_draw_integers() -> None:
    for E in (catlog.ReinMax(), catlog.StraightThrough()):
        with pytest.raises(TypeError, match=r"draws integers\. Use OneHotCategorical"):
            E(loss, router(Categorical))
    E = catlog.IndeCateR(1, variables=2)
    way = r"draws integers\. Use OneHotCategorical .*, or pass control='none'\."
    with pytest.raises(TypeError, match=way):
        E(loss, router(Categorical))
    assert E(loss, router()).shape == ()
    black_box = catlog.IndeCateR(1, variables=2, control="none")
    assert black_box(loss, router(Categorical)).shape == ()


def test_routers_with_fewer_tokens_than_are_tried() -> None:
    with pytest.raises(ValueError, match=r"between 1 and 6, but 8 was given\. q has 6 variables"):
        catlog.IndeCateR(1, variables=8)(loss, router())


def test_routers_whose_tokens_are_a_batch() -> None:
    """Without Independent every token has an expectation of its own, and the loss is one number."""
    q = OneHotCategorical(logits=torch.zeros(TOKENS, EXPERTS))
    with pytest.raises(ValueError, match=r"must return shape .*6\) \(\[n, \*batch\]\)"):
        catlog.IndeCateR(1)(lambda x: x.sum((-1, -2)), q)
