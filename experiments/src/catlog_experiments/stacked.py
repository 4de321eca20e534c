"""Several models of one experiment in one training step.

A step of a small model is mostly spent on launching its kernels. A stack of models, which differ in
their seeds, has one more dimension in its weights and in the batch of its distribution, and as many
kernels as one model. Every model has its own images, draws and gradients; what an estimator learns,
it learns for each of them.
"""

from dataclasses import replace
from itertools import pairwise
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from catlog import REBAR, Estimator, SlopeCateR
from catlog.estimators import RELAX, RODEO, DoubleCV


class StackedMLP(nn.Module):
    """Multilayer perceptrons of equal widths, a leading dimension of every weight for the models.

    Inputs are ``[*rows, models, batch, inputs]``. Each layer is one batched product.

    Args:
        models: number of models.
        widths: numbers of units, from the inputs to the outputs.
        slope: of the leaky ReLUs between the layers below zero; 0: ReLU.

    >>> StackedMLP(3, (5, 4, 2))(torch.zeros(7, 3, 6, 5)).shape
    torch.Size([7, 3, 6, 2])
    """

    def __init__(self, models: int, widths: tuple[int, ...], slope: float = 0.0) -> None:
        super().__init__()
        self.models = models
        self.slope = slope
        pairs = list(pairwise(widths))
        self.weights = nn.ParameterList([torch.zeros(models, *pair) for pair in pairs])
        self.biases = nn.ParameterList([torch.zeros(models, 1, outputs) for _, outputs in pairs])

    def forward(
        self, x: Float[Tensor, "*rows models batch inputs"]
    ) -> Float[Tensor, "*rows models batch outputs"]:
        by_model = x.movedim(-3, 0)
        hidden = by_model.flatten(1, -2)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.bmm(hidden, weight) + bias  # a compiler fuses the sum, not baddbmm's
            if i < last:
                hidden = leaky_relu(hidden, self.slope)
        return hidden.unflatten(1, by_model.shape[1:-1]).movedim(0, -3)


@torch.no_grad()
def glorot_by_seed(networks: list[StackedMLP], seed: int) -> None:
    """Initialise the networks as Keras does. Model s has the start of a single model with seed
    ``seed + s``."""
    for s in range(networks[0].models):
        generator = torch.Generator().manual_seed(seed + s)
        for network in networks:
            for weight in network.weights:
                inputs, outputs = weight.shape[1:]
                bound = sqrt(6 / (inputs + outputs))
                weight[s].uniform_(-bound, bound, generator=generator)


class PairNetwork(nn.Module):
    """RODEO's network H for every model, with the published size: 2 - 100 - 2, LeakyReLU(0.3).

    It maps ``[n, m, models, batch, points, 2]`` to the same shape. The sums over hidden units are
    written out, so that a compiler need not store the hidden units of all points.
    """

    def __init__(self, models: int, hidden: int = 100) -> None:
        super().__init__()
        bounds = sqrt(6 / (1 + hidden)), sqrt(6 / (hidden + 2))
        self.inputs = nn.Parameter(torch.empty(2, models, 1, 1, hidden).uniform_(-1, 1) * bounds[0])
        self.bias = nn.Parameter(torch.zeros(models, 1, 1, hidden))
        self.outputs = nn.Parameter(
            torch.empty(2, models, 1, 1, hidden).uniform_(-1, 1) * bounds[1]
        )
        self.output_bias = nn.Parameter(torch.zeros(models, 1, 1, 2))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = pairs.unsqueeze(-2).unbind(-1)
        hidden = leaky_relu(first * self.inputs[0] + second * self.inputs[1] + self.bias, 0.3)
        sums = [(hidden * weight).sum(-1) for weight in self.outputs]
        return torch.stack(sums, -1) + self.output_bias


# Parameters that every model of a stack has of its own, with their further dimensions of size 1.
LEARNED: dict[type, dict[str, int]] = {
    DoubleCV: {"alpha": 1},
    REBAR: {"eta": 1, "log_temperature": 1},
    RODEO: {"alpha": 1, "beta": 2},
    RELAX: {},
}


def stack_estimator(E: Estimator, models: int, variables: int) -> Estimator:
    """Return the estimator for a stack of models: whatever it learns, it learns for each of them.

    RODEO and RELAX get the control networks of their published experiments, if they have none.

    >>> from catlog import RLOO
    >>> stack_estimator(RLOO(4), 3, 200), stack_estimator(DoubleCV(4), 3, 200).alpha.shape
    (RLOO(4), torch.Size([3, 1]))
    """
    if isinstance(E, SlopeCateR):
        return replace(E, fits=models)
    if isinstance(E, nn.Module) and type(E) not in LEARNED and models > 1:
        raise ValueError(
            f"--models must be 1 with {type(E).__name__}, whose state the models of a stack would "
            f"share, but {models} was given. Use several seeds instead."
        )
    for name, dimensions in LEARNED.get(type(E), {}).items():
        shape = models, *[1] * dimensions
        setattr(E, name, nn.Parameter(getattr(E, name).detach().expand(shape).clone()))
    if isinstance(E, RODEO):
        E.network = PairNetwork(models) if E.network is None else E.network
    if isinstance(E, RELAX) and E.network is None:
        E.network = StackedMLP(models, (variables, 137, 1), slope=0.3)
        glorot_by_seed([E.network], seed=0)
    return E
