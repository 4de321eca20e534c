"""Several models of one experiment in one training step.

A step of a small model is mostly the time to launch its kernels. A stack of models, which differ in
their seeds, has one more dimension in its weights and in the batch of its distribution, and as many
kernels as one model. Every model has its own images, draws and gradients; what an estimator learns,
it learns for each of them.
"""

from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import leaky_relu

from ..distributions.factors import factors, relaxable
from ..estimator import Estimator, Function, Kind, attach
from ..estimators import REBAR, RELAX, RODEO, DoubleCV, SlopeCateR
from ..estimators.catlog_trick.shrinkage import shrunk_coefficients
from ..estimators.catlog_trick.slope_predictions import (
    gradient_scale,
    make_predictions,
    selection_probabilities,
    systematic_sample,
)
from ..estimators.learning import frozen, learns, write
from ..estimators.logit_gradients import logit_surrogate
from ..evaluation.evaluate import value_and_slope
from ..sampling.draw import base_draws
from ..sampling.randomness import rand


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
            hidden = torch.baddbmm(bias, hidden, weight)
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
                weight[s] = torch.empty(inputs, outputs).uniform_(
                    -bound, bound, generator=generator
                )


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


class StackedSlopeCateR(SlopeCateR):
    """:class:`SlopeCateR` with separate running fits for each of the stacked models.

    The batch of q is ``[models, batch]``. Each model has the estimate and the updates that a
    SlopeCateR of its own would have.
    """

    def __init__(self, models: int, variables: int, **settings: Any) -> None:
        super().__init__(**settings)
        if 0 < self.slope_entries < variables:
            raise ValueError(
                f"SlopeCateR: `slope_entries` must be 0 or at least {variables}, the number of "
                f"variables, in a stack of models, but it is {self.slope_entries}."
            )
        entries = min(self.slope_entries, variables)
        del self.coefficients, self.sizes
        self.register_buffer("gram", torch.zeros(models, 2, 2))
        self.register_buffer("excess", torch.zeros(models, 2))
        self.register_buffer("size2", torch.zeros(models, entries))
        self.register_buffer("spread2", torch.zeros(models, entries))
        self.gram: Tensor
        self.excess: Tensor
        self.size2: Tensor
        self.spread2: Tensor

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        start: Float[Tensor, "1 models batch"] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "models batch"]:
        law = factors(q, validate=self.validate)
        relaxable(q, law, "SlopeCateR")
        x = base_draws(
            law, x, self.samples, self.draws, generator=generator, validate=self.validate
        )
        n, m = x.shape[0], self.turns(law.k)
        undecided = gradient_scale(law.probs.detach())
        has_sizes = self.slope_entries > 0
        (learned,) = frozen(
            self,
            torch.cat([torch.vmap(shrunk_coefficients)(self.gram, self.excess), self._sizes()], -1),
        )
        learned = learned.to(law.real).unsqueeze(1)  # [models, 1, 2 + entries]
        scale = undecided * learned[..., 2:] if has_sizes else undecided
        often = m * selection_probabilities(scale)
        if start is None:
            start = rand(
                (1, *law.batch_shape), dtype=law.real, device=law.device, generator=generator
            )
        variable = systematic_sample(often, m, start)
        predictions = make_predictions(law, x, variable)
        points = torch.cat([law.flat(x), predictions.corrected_points().to(law.dtype)])
        learning = self.decay < 1 and learns(self, points)
        values, slopes = value_and_slope(
            f, law.shaped(points), law, validate=self.validate, learns=learning
        )
        slopes = law.flat(slopes).to(law.real)
        terms, noise = predictions.exact_and_predicted(values.detach(), slopes)
        weight = 1 / often.expand(m, *often.shape).gather(-1, variable.unsqueeze(-1))
        exact, straight, curved = terms[0] * weight, terms[1] * weight, terms[2] * weight
        alpha, beta = learned[..., :1], learned[..., 1:2]  # [models, 1, 1]
        first, second = predictions.first_and_second_order(slopes[:n])
        residual = (exact - alpha * straight - beta * curved).movedim(0, -2)
        slot = variable.movedim(0, -1).unsqueeze(-1).expand(residual.shape)
        prediction = alpha.unsqueeze(-1) * first + beta.unsqueeze(-1) * second
        gradient = prediction.scatter_add(-2, slot, residual)
        if law.kind == Kind.BITS:
            gradient = torch.cat([-gradient, gradient], -1)
        if learning:
            updates = self._updates((exact, straight, curved), noise, weight.squeeze(-1) / n)
            if has_sizes:
                updates += [(self.size2, predictions.size2(slopes[:n]).mean(1))]
                updates += [(self.spread2, undecided.square().mean(1))]
            rate = 1 - self.decay
            write([(buffer, buffer.lerp(new.to(buffer), rate)) for buffer, new in updates])
        value = values[:n].mean(0)
        return attach(value, value + logit_surrogate(law, gradient))

    def _sizes(self) -> Float[Tensor, "models entries"]:
        """Return the RMS slope of every variable, 1 before any data."""
        return torch.where(self.spread2 > 0, self.size2 / self.spread2, 1.0).sqrt()

    @torch.no_grad()
    def _updates(
        self,
        terms: tuple[Tensor, Tensor, Tensor],
        noise: tuple[Tensor, Tensor, Tensor],
        scale: Tensor,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the buffers of the least-squares fits, and the means of this call."""
        exact, straight, curved = terms

        def mean(values: Tensor) -> Float[Tensor, " models"]:
            return values.mean((0, 2))

        ss = mean((straight * straight).sum(-1) + scale * noise[0])
        sc = mean((straight * curved).sum(-1) + scale * noise[1])
        cc = mean((curved * curved).sum(-1) + scale * noise[2])
        es = mean((exact * straight).sum(-1))
        ec = mean((exact * curved).sum(-1))
        gram = torch.stack([ss, sc, sc, cc], -1).unflatten(-1, (2, 2))
        excess = torch.stack([es - ss - sc, ec - sc - cc], -1)
        return [(self.gram, gram), (self.excess, excess)]


def stack_estimator(E: Estimator, models: int, variables: int) -> Estimator:
    """Return the estimator for a stack of models: whatever it learns, it learns for each of them.

    RODEO and RELAX get the control networks of their published experiments, if they have none.

    >>> from catlog import RLOO
    >>> stack_estimator(RLOO(4), 3, 200), stack_estimator(DoubleCV(4), 3, 200).alpha.shape
    (RLOO(4), torch.Size([3, 1]))
    """
    if isinstance(E, SlopeCateR):
        names = ("samples", "corrections", "draws", "decay", "slope_entries", "validate")
        return StackedSlopeCateR(models, variables, **{name: getattr(E, name) for name in names})
    if isinstance(E, DoubleCV):
        E.alpha = _for_each(E.alpha, models, 1)
    elif isinstance(E, REBAR):
        E.eta = _for_each(E.eta, models, 1)
        E.log_temperature = _for_each(E.log_temperature, models, 1)
    elif isinstance(E, RODEO):
        E.alpha = _for_each(E.alpha, models, 1)
        E.beta = _for_each(E.beta, models, 1, 1)
        E.network = PairNetwork(models) if E.network is None else E.network
    elif isinstance(E, RELAX):
        if E.network is None:
            E.network = StackedMLP(models, (variables, 137, 1), slope=0.3)
            glorot_by_seed([E.network], seed=0)
    elif isinstance(E, nn.Module) and models > 1:
        raise ValueError(
            f"--models must be 1 with {type(E).__name__}, whose state the models of a stack would "
            f"share, but {models} was given. Use several seeds instead."
        )
    return E


def _for_each(parameter: nn.Parameter, *shape: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach().expand(shape).clone())
