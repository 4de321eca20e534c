"""Small distributions and functions on which estimators are judged."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import one_hot

from catlog.core.categories import Kind
from catlog.distributions import Categoricals

FeatureFunction = Callable[[Tensor, Tensor], Tensor]  # of features [..., 6] and a parameter [6]


@dataclass(frozen=True)
class Case:
    """A distribution over few points.

    Attributes:
        name: what the distribution is; ``kind`` is read from it.
        theta: the parameters.
        distribution: makes q from parameters with any leading batch.
        points: all points ``[points, *event]``, in the format of ``q.sample()``.
        features: turns points ``[..., *event]`` into reals ``[..., 6]``; categories to one-hot.
    """

    name: str
    theta: Tensor
    distribution: Callable[[Tensor], Distribution]
    points: Tensor
    features: Callable[[Tensor], Tensor]

    @property
    def kind(self) -> Kind:
        """The kind of distribution, as in an estimator's ``supports``."""
        kinds = {"bits": Kind.BITS, "integer": Kind.INDEX, "one-hot": Kind.ONE_HOT}
        return next((kind for word, kind in kinds.items() if word in self.name), Kind.MIXED)

    def function(self, name: str) -> Callable[[Tensor], Tensor]:
        """Return one of ``FUNCTIONS`` as a function of points."""
        return lambda x: FUNCTIONS[name](self.features(x), PARAMETER)

    def probabilities(self, theta: Tensor) -> Tensor:
        """Return the probabilities ``[points]`` of all points."""
        return self.distribution(theta).log_prob(self.points).exp()


def grid(*sizes: int) -> Tensor:
    """Return all points of variables with these numbers of categories."""
    return torch.tensor(list(product(*(range(size) for size in sizes))))


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator with this seed."""
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers in float64, the same for the same seed."""
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def placed(constant: Tensor, device: torch.device) -> Tensor:
    """Return the constant on the device: copied once, as a CUDA graph captures no copies."""
    # torch.compile warns of a cache, so it must not see one on a CPU.
    return constant if constant.device == device else _copied(constant, device)


@cache
def _copied(constant: Tensor, device: torch.device) -> Tensor:
    return constant.to(device)


def _many(
    kind: Callable[..., Distribution], parameter: str = "logits", dims: int = 1
) -> Callable[[Tensor], Distribution]:
    """Return how to make independent variables of this kind."""
    return lambda theta: Independent(kind(**{parameter: theta}), dims)


def _masked(logits: Tensor) -> Distribution:
    impossible = placed(IMPOSSIBLE, logits.device)
    return Independent(Categorical(logits=logits.masked_fill(impossible, -torch.inf)), 1)


def _mixed(logits: Tensor) -> Distribution:
    return Categoricals(logits, (3, 2))


def _with_squares(x: Tensor) -> Tensor:
    return torch.cat([x, x.square()], -1)


def _from_index(x: Tensor) -> Tensor:
    return one_hot(x, 3).flatten(-2).double()


def _flat(x: Tensor) -> Tensor:
    return x.flatten(-2)


BITS, PAIRS = grid(2, 2, 2).double(), grid(3, 3)
IMPOSSIBLE = torch.tensor([[False, False, True], [True, False, False]])
POSSIBLE = torch.tensor([[0, 1], [0, 2], [1, 1], [1, 2]])
ROW, LOGITS = normals(3), normals(2, 3)

# Bits, integers and one-hot vectors, by logits and by probabilities, two event dimensions, a
# single variable, masked categories, different numbers of categories.
_CASES = [
    Case("bits", ROW, _many(Bernoulli), BITS, _with_squares),
    Case("bits by probs", ROW.sigmoid(), _many(Bernoulli, "probs"), BITS, _with_squares),
    Case(
        "bits, two event dims",
        normals(1, 2),
        _many(Bernoulli, dims=2),
        grid(2, 2).double().view(4, 1, 2),
        lambda x: x.flatten(-2) @ normals(2, 6, seed=5),
    ),
    Case("integers", LOGITS, _many(Categorical), PAIRS, _from_index),
    Case("integers by probs", LOGITS.exp(), _many(Categorical, "probs"), PAIRS, _from_index),
    Case(
        "one integer",
        ROW,
        lambda logits: Categorical(logits=logits),
        torch.arange(3),
        lambda x: one_hot(x, 3).double() @ normals(3, 6, seed=6),
    ),
    Case("one-hot", LOGITS, _many(OneHotCategorical), torch.eye(3).double()[PAIRS], _flat),
    Case("masked", LOGITS, _masked, POSSIBLE, _from_index),
    Case("mixed cardinalities", LOGITS, _mixed, grid(3, 2), _from_index),
]
CASES = {case.name: case for case in _CASES}

PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)
_WEIGHTS = normals(6, seed=1)
_MATRIX = normals(6, 6, seed=2)

# Functions of features and of a parameter; none is linear in every variable.
FUNCTIONS: dict[str, FeatureFunction] = {
    "sine": lambda z, c: (z @ (_WEIGHTS * c) + ((z @ _MATRIX) * z).sum(-1)).sin(),
    "network": lambda z, c: ((z @ _MATRIX).tanh() * c).sum(-1).exp(),
    "max": lambda z, c: (z @ _MATRIX * c).amax(-1),
}
