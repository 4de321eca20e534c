"""Functions with tables of their own, and the distributions that they are tested on."""

import torch
from torch import Tensor, nn

from catlog.core.view import view
from catlog.distributions import Categoricals
from catlog.functions import (
    Additive,
    BernoulliCrossEntropy,
    FirstLayerLinear,
    OfSum,
    Pairwise,
    Potts,
    ising,
)
from catlog.testing.cases import normals
from support.laws import KINDS

LAWS = KINDS | {
    "categoricals": lambda logits: Categoricals(logits, [2, 3, 1, 3][-logits.shape[-2] :])
}


def wave(total: Tensor) -> Tensor:
    return (total.double() * 0.7).sin() + 1.5


def set_normals(net: nn.Module) -> nn.Module:
    """Fill the parameters with the same normal numbers every time, of float64."""
    net.double()
    with torch.no_grad():
        for seed, parameter in enumerate(net.parameters()):
            parameter.copy_(normals(*parameter.shape, seed=seed) / parameter[0].numel() ** 0.5)
    return net


def network(inputs: int, out: int = 1) -> nn.Sequential:
    return set_normals(nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, out)))


def functions(batch, d, k, one_hot):
    """Return how to make each function of d variables with k categories."""
    inputs = d * k if one_hot else d
    tables, costs, fields = normals(d, k, d, k), normals(d, k), normals(d, k, seed=1)
    whole, mixed = torch.tensor([2.0, -1.0, 1.0, 3.0])[:d], torch.tensor([-2, -1, -1, -3])[:d]
    several, cross_entropy = (
        network(inputs, out=4),
        BernoulliCrossEntropy(normals(*batch, 4).sigmoid()),
    )
    return {
        "additive": lambda: Additive(costs, one_hot),
        "additive, batched": lambda: Additive(normals(*batch, d, k), one_hot),
        "pairwise": lambda: Pairwise(tables, fields, one_hot),
        "pairwise, no fields": lambda: Pairwise(tables, one_hot=one_hot),
        "potts": lambda: Potts(normals(d, d), fields, one_hot),
        "ising": lambda: ising(normals(d, d), normals(d, seed=1)),
        "sum": lambda: OfSum(wave, k, one_hot=one_hot),
        "sum, knows the batch": lambda: OfSum(
            lambda s: wave(s + normals(*batch)), k, None, one_hot
        ),
        "weighted sum": lambda: OfSum(wave, k, normals(d), one_hot),
        "weighted sum, whole": lambda: OfSum(wave, k, whole, one_hot),
        "weighted sum, integers": lambda: OfSum(wave, k, mixed, one_hot),
        "network": lambda: FirstLayerLinear(network(inputs), one_hot=one_hot),
        "network, chunks": lambda: FirstLayerLinear(network(inputs), None, one_hot, chunk_size=3),
        "network, head": lambda: FirstLayerLinear(several, lambda y: y.logsumexp(-1), one_hot),
        "network, cross-entropy": lambda: FirstLayerLinear(several, cross_entropy, one_hot),
        "numbers, network": lambda: FirstLayerLinear(network(d), categories=k),
        "numbers, network, chunks": lambda: FirstLayerLinear(
            network(d), categories=k, chunk_size=3
        ),
    }


APPLIES = {
    "ising": ["bits"],
    "network": ["bits", "one-hot"],
    "numbers": ["bits", "index", "categoricals"],
}
CASES = [
    (name, kind)
    for name in functions((), 1, 1, False)
    for kind in APPLIES.get(name.split(",")[0], LAWS)
]


def build(name, kind, batch=(), d=4):
    """Return a function, a distribution of its points, and the view of that."""
    q = LAWS[kind](normals(*batch, d, 3))
    return functions(batch, d, 2 if kind == "bits" else 3, kind == "one-hot")[name](), q, view(q)
