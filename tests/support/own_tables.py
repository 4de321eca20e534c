"""Functions with tables of their own, and the distributions that they are tested on."""

from itertools import product

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.testing import assert_close

from catlog.core.view import view
from catlog.distributions import Categoricals
from catlog.functions import (
    Additive,
    BernoulliCrossEntropy,
    DigitsOfSum,
    FirstLayerLinear,
    OfSum,
    Pairwise,
    Potts,
    ising,
)
from catlog.testing.cases import normals
from support.laws import KINDS, integers

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


def waves(total: Tensor) -> Tensor:
    """Return three outputs."""
    return torch.stack([wave(total), (total > 2).double(), total.double()], -1)


def network(inputs: int, out: int = 1) -> nn.Sequential:
    return set_normals(nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, out)))


def functions(batch, d, k, one_hot):
    """Return how to make each function of d variables with k categories."""
    inputs = d * k if one_hot else d
    tables, costs, fields = normals(d, k, d, k), normals(d, k), normals(d, k, seed=1)
    whole, mixed = torch.tensor([2.0, -1.0, 1.0, 3.0])[:d], torch.tensor([-2, -1, -1, -3])[:d]
    several, one_layer = network(inputs, out=4), set_normals(nn.Sequential(nn.Linear(inputs, 4)))
    cross_entropy = BernoulliCrossEntropy(normals(*batch, 4).sigmoid())
    binary = BernoulliCrossEntropy(normals(*batch, 4) > 0)  # of another type than the network
    digits = (normals(*batch, d // 2 + 1) + k / 2).clamp(0, k).to(torch.uint8)
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
        "weighted sum, zero": lambda: OfSum(wave, k, torch.tensor([0, 2, -1, 3])[:d], one_hot),
        "weighted sum, integers": lambda: OfSum(wave, k, mixed, one_hot),
        "sum, indicator": lambda: OfSum(lambda s: s == 3, k, one_hot=one_hot),
        "sum, outputs": lambda: OfSum(waves, k, one_hot=one_hot),
        "weighted sum, outputs": lambda: OfSum(waves, k, whole, one_hot),
        "digits, outputs": lambda: DigitsOfSum(digits, k, one_hot),  # k: no digit of any sum
        "network": lambda: FirstLayerLinear(network(inputs), one_hot=one_hot),
        "network, chunks": lambda: FirstLayerLinear(several, cross_entropy, one_hot, chunk_size=3),
        "network, head": lambda: FirstLayerLinear(several, lambda y: y.logsumexp(-1), one_hot),
        "network, cross-entropy": lambda: FirstLayerLinear(several, binary, one_hot),
        "network, one layer": lambda: FirstLayerLinear(one_layer, cross_entropy, one_hot),
        "numbers, network": lambda: FirstLayerLinear(network(d), categories=k),
        "numbers, network, chunks": lambda: FirstLayerLinear(
            network(d), categories=k, chunk_size=3
        ),
    }


APPLIES = {
    "ising": ["bits"],
    "digits": ["bits", "index", "one-hot"],
    "network": ["bits", "one-hot"],
    "numbers": ["bits", "index", "categoricals"],
}
CASES = [
    (name, kind)
    for name in functions((), 1, 1, False)
    for kind in APPLIES.get(name.split(",")[0], LAWS)
]
MEAN_LAWS = LAWS | {
    "bits by probs": lambda logits: Independent(Bernoulli(probs=logits[..., 0].sigmoid()), 1),
    "masked": lambda logits: integers(
        logits.masked_fill(normals(*logits.shape[-2:], seed=9) > 1, -torch.inf)
    ),
}
MEAN_CASES = [
    (name, kind)
    for name in functions((), 4, 1, False)
    for kind in MEAN_LAWS
    if "network" not in name
    and name != "weighted sum"
    and (name != "ising" or kind.startswith("bits"))
]


def build(name, kind, batch=(), d=4):
    """Return a function, a distribution of its points, and the view of that."""
    q = LAWS[kind](normals(*batch, d, 3))
    return functions(batch, d, 2 if kind == "bits" else 3, kind == "one-hot")[name](), q, view(q)


def assert_right_table(f, x, law, chosen=2, atol=1e-10):
    """Check the tables of all variables, and of ``chosen`` ones, against f at all neighbours."""
    index, entries = law.index(x), []
    for i, k in product(range(law.d), range(law.k)):
        changed = index.clone()
        changed[..., i] = min(k, law.cardinalities[i] - 1)
        entries.append(f(law.point(changed)))
    lead = index.dim() - 1
    expected = torch.stack(entries, lead).unflatten(lead, (law.d, law.k))
    is_possible = law.possible.expand(expected.shape[: lead + 2])
    table = f.neighbours(x)
    assert table.shape == expected.shape
    assert_close(table[is_possible].double(), expected[is_possible].double(), rtol=0, atol=atol)
    chosen = normals(*index.shape).argsort(-1)[..., :chosen]
    rows = chosen.view(*chosen.shape, *[1] * (expected.dim() - lead - 1))
    rows = rows.expand(*chosen.shape, *expected.shape[lead + 1 :])
    assert_close(f.neighbours(x, chosen), table.gather(lead, rows), rtol=0, atol=atol)


def brute_mean(f, q):
    """Return the mean of f from q.log_prob at every point, without any estimator."""
    law, batch = view(q), q.batch_shape
    index = torch.tensor(list(product(*(range(size) for size in law.cardinalities))))
    x = law.point(index.view(-1, *[1] * len(batch), law.d).expand(-1, *batch, law.d))
    values = f(x)
    weight = q.log_prob(x).exp()
    weight = weight.view(*weight.shape, *[1] * (values.dim() - weight.dim()))
    return torch.where(weight > 0, weight * values.to(weight), 0.0).sum(0)
