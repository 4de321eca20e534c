"""No estimator copies from the host to the device: a CUDA graph could not capture it.

The device is torch's "meta", which computes shapes only. So there are no values to branch on (which
would fail, as it should), and real sizes cost nothing. It needs no GPU.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Geometric,
    Independent,
    Poisson,
)
from torch.distributions import OneHotCategorical as OneHot

import catlog
from catlog.estimator import Kind
from catlog.estimators import ESTIMATORS
from catlog.testing.settings import supports
from real_sizes import BATCH, DRAWS, NoHostCopies, settings_of

SIZES = {
    "bits": (200, 2),
    "one-hot": (20, 10),
    "index": (20, 10),
    "mixed": (20, 10),
    "MarkovChain": (6, 10),
    "Subset": (6, 2),
    "PlackettLuce": (6, 2),
    "LinearChainCRF": (6, 10),
}


def make(kind: str, logits: Tensor) -> Distribution:
    if kind == "bits":
        return Independent(Bernoulli(logits=logits[..., 0]), 1)
    if kind == "mixed":
        sizes = [2 + i % 9 for i in range(logits.shape[-2])]
        return catlog.Categoricals(logits, cardinalities=sizes)
    if kind == "MarkovChain":
        return catlog.MarkovChain(
            logits[:, 0], logits[:, :1].expand(-1, 10, 10), length=len(logits[0])
        )
    if kind == "Subset":
        return catlog.Subset(logits[..., 0], 2)
    if kind == "PlackettLuce":
        return catlog.PlackettLuce(logits[..., 0])
    if kind == "LinearChainCRF":
        return catlog.LinearChainCRF(logits, logits[:, :1].expand(-1, 10, 10))
    law = OneHot if kind == "one-hot" else Categorical
    return Independent(law(logits=logits), 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", list(SIZES))
@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_no_host_copies(name: str, kind: str) -> None:
    if not supports(ESTIMATORS[name], kind if kind in list(Kind) else "structured"):
        pytest.skip("not this kind of distribution")
    if name == "Exact" and kind in ("Subset", "PlackettLuce"):
        pytest.skip("the host lists their points")
    d, k = SIZES[kind]
    if name == "Exact":
        d = min(d, 8 if k == 2 else 2)
    with torch.device("meta"):
        E = ESTIMATORS[name](**settings_of(name), validate=False)
        if isinstance(E, nn.Module):
            E.to("meta")
        logits = torch.zeros(BATCH, d, k, requires_grad=True)
        decoder = nn.Linear(d * k if kind == "one-hot" else d, 784)
    with NoHostCopies():

        def f(x: Tensor) -> Tensor:
            points = x.flatten(-2) if kind == "one-hot" else x.to(torch.float32)
            return decoder(points).square().mean(-1)

        E(f, make(kind, logits)).mean().backward()
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("law", [Poisson, Geometric])
def test_counts_without_host_copies(law: type[Distribution]) -> None:
    probs = torch.full((BATCH, 20), 0.5, device="meta", requires_grad=True)
    with NoHostCopies():
        E = catlog.CountDifferences(DRAWS, validate=False)
        E(lambda x: x.square().sum(-1), Independent(law(probs), 1)).mean().backward()
    assert probs.grad is not None
