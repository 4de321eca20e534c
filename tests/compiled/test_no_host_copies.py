"""No estimator copies from the host to the device: a CUDA graph could not capture it.

The device is torch's "meta", which computes shapes only. So there are no values to branch on (which
would fail, as it should), and real sizes cost nothing. It needs no GPU.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Geometric, Independent, Poisson

from catlog.core.categories import Kind
from catlog.distributions import (
    Categoricals,
    LinearChainCRF,
    MarkovChain,
    PlackettLuce,
    Subset,
)
from catlog.estimators import ESTIMATORS, CountDifferences
from catlog.testing.settings import supports
from real_sizes import BATCH, DRAWS, NoHostCopies, settings_of
from support.laws import KINDS

# Variables, categories, and the distribution of logits [batch, variables, categories].
LAWS: dict[str, tuple[int, int, Callable[[Tensor], Distribution]]] = {
    "bits": (200, 2, KINDS["bits"]),
    "one-hot": (20, 10, KINDS["one-hot"]),
    "index": (20, 10, KINDS["index"]),
    "mixed": (20, 10, lambda t: Categoricals(t, [2 + i % 9 for i in range(t.shape[-2])])),
    "MarkovChain": (
        6,
        10,
        lambda t: MarkovChain(t[:, 0], t[:, :1].expand(-1, 10, 10), length=len(t[0])),
    ),
    "Subset": (6, 2, lambda t: Subset(t[..., 0], 2)),
    "PlackettLuce": (6, 2, lambda t: PlackettLuce(t[..., 0])),
    "LinearChainCRF": (6, 10, lambda t: LinearChainCRF(t, t[:, :1].expand(-1, 10, 10))),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_host_copies(name: str, kind: str) -> None:
    with torch.device("meta"):
        E = ESTIMATORS[name](**settings_of(name))
    if not supports(E, kind if kind in list(Kind) else "structured"):
        pytest.skip("not this kind of distribution")
    if name == "Exact" and kind in ("Subset", "PlackettLuce"):
        pytest.skip("the host lists their points")
    d, k, make = LAWS[kind]
    if name == "Exact":
        d = min(d, 8 if k == 2 else 2)
    with torch.device("meta"):
        E = ESTIMATORS[name](**settings_of(name))
        if isinstance(E, nn.Module):
            E.to("meta")
        logits = torch.zeros(BATCH, d, k, requires_grad=True)
        decoder = nn.Linear(d * k if kind == "one-hot" else d, 784)
    with NoHostCopies():

        def f(x: Tensor) -> Tensor:
            points = x.flatten(-2) if kind == "one-hot" else x.to(torch.float32)
            return decoder(points).square().mean(-1)

        E(f, make(logits)).mean().backward()
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("law", [Poisson, Geometric])
def test_counts_without_host_copies(law: type[Distribution]) -> None:
    probs = torch.full((BATCH, 20), 0.5, device="meta", requires_grad=True)
    with NoHostCopies():
        E = CountDifferences(DRAWS)
        E(lambda x: x.square().sum(-1), Independent(law(probs), 1)).mean().backward()
    assert probs.grad is not None
