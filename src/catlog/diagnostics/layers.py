"""Bias, variance and time of estimators inside a network whose layers draw by `catlog.sample`."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, product, repeat
from math import prod
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..core.checks import check_count
from ..core.left_alone import left_alone
from ..sample import SlopeEstimator, sample
from .arms import AnyEstimator, Arm, Chosen, copied_to, named_estimators
from .comparing import KnownGradient, measure, norm_of, row_of
from .comparison import Comparison
from .moments import Moments
from .task import Clock, Gradient, check_trainable, graph_leaves, listed

GROUP = 4  # runs of the network in one estimate of the reference by RLOO


@runtime_checkable
class Sampler(Protocol):
    """What a network calls in place of :func:`catlog.sample`, without an estimator."""

    def __call__(self, logits: Tensor, *, dim: int = -1, bits: bool = False) -> Tensor: ...


NetworkLoss = Callable[[Sampler], Tensor]


def compare_layers(
    loss: NetworkLoss,
    estimators: Chosen,
    parameters: Tensor | Sequence[Tensor] | None = None,
    *,
    repeats: int = 200,
    rounds: int = 15,
    limit: int = 4096,
    reference_runs: int = 4000,
    seed: int = 0,
    progress: bool = True,
    clock: Clock = time.perf_counter,
) -> Comparison:
    r"""Measure estimators inside a network whose layers draw by :func:`catlog.sample`.

    How biased is Gumbel-Softmax in this network, and which temperature is best? Every estimator
    draws in all layers, ``repeats`` times. The gradient is that of the expected loss, summed over
    rows, in the parameters. If a row has at most ``limit`` outcomes of all layers together, the
    reference is the exact gradient, a sum over these outcomes. Otherwise it is the mean of
    ``reference_runs`` runs by RLOO, whose noise is accounted for.

    Variance, time and intervals are those of :func:`catlog.compare`. Rows are sorted by
    :math:`\text{bias}^2 + \text{variance}`, the mean squared error of one estimate.

    Args:
        loss: a function of the sampler, which returns one loss per row, ``[*rows]``. It runs the
            network, whose layers call ``sampler(logits)`` (with ``dim`` and ``bits`` as in
            :func:`catlog.sample`) on logits ``[*rows, ...]``. No other randomness, such as dropout,
            may change between calls.
        estimators: those that :func:`catlog.sample` takes, their names or reprs, or a dict of them
            by name. Others are left out, with the reason.
        parameters: tensors to take the gradient in; None: all that the loss is computed from.
        repeats: estimates per estimator, at least 2.
        rounds: timed steps per estimator.
        limit: the most outcomes of a row to enumerate; the network runs once for each.
        reference_runs: runs of the network for the reference by RLOO, at least 8.
        seed: the seed of the draws.
        progress: show a bar, if the package rich is installed and the output is a terminal.
        clock: a function that returns seconds.

    >>> from torch import nn
    >>> from catlog import GumbelSoftmax, ReinMax
    >>> first, second, images = nn.Linear(3, 6), nn.Linear(6, 1), torch.ones(5, 3)
    >>> def loss(sampler):
    ...     codes = sampler(first(images).unflatten(-1, (2, 3)))
    ...     return second(codes.flatten(-2)).squeeze(-1).square()
    >>> estimators = [GumbelSoftmax(temperature=0.5, hard=True), ReinMax()]
    >>> result = compare_layers(loss, estimators, repeats=50, rounds=1, progress=False)
    >>> result.reference, sorted(row.name for row in result.rows)
    ('exact', ['GumbelSoftmax(1, temperature=0.5, hard=True)', 'ReinMax(1)'])
    """
    for name, value, least in (
        ("repeats", repeats, 2),
        ("rounds", rounds, 1),
        ("limit", limit, 0),
        ("reference_runs", reference_runs, 2 * GROUP),
    ):
        check_count("compare_layers", name, value, least)
    with left_alone(loss):
        network = Layers(loss, parameters, clock)
        arms = {
            name: Arm(copied_to(E, network.device), 1, network.generator(seed + 1 + number))
            for number, (name, E) in enumerate(named_estimators(estimators).items())
        }
        skipped: dict[str, str] = {}
        measure("compare_layers", network, arms, skipped, repeats, rounds, 0, progress)
        kind = "exact" if network.outcomes <= limit else "rloo"
        truth = network.exact() if kind == "exact" else network.by_rloo(reference_runs, seed)
    rows = [row_of(name, arm, truth, norm_of(truth)) for name, arm in arms.items()]
    rows.sort(key=lambda row: row.bias**2 + row.variance)
    return Comparison(tuple(rows), skipped, kind, "One draw per layer")


class _Recorder:
    """A sampler that draws, or takes given categories, and keeps the draws' log-probabilities.

    Args:
        generator: the source of randomness.
        categories: the categories of the variables of a row, of all layers in the order of calls;
            None: they are drawn.
        row_dims: the number of dimensions of rows.
    """

    def __init__(
        self,
        generator: torch.Generator | None = None,
        categories: Iterable[int] | None = None,
        row_dims: int = 0,
    ) -> None:
        self.generator = generator
        self.categories = None if categories is None else iter(categories)
        self.row_dims = row_dims
        self.log_probs: list[Tensor] = []
        self.cardinalities: list[int] = []

    def __call__(self, logits: Tensor, *, dim: int = -1, bits: bool = False) -> Tensor:
        table = torch.stack([-logits, logits], -1) if bits else logits.movedim(dim, -1)
        table = logsigmoid(table) if bits else table.log_softmax(-1)
        shape, rest = table.shape[:-1], table.shape[self.row_dims : -1]
        if self.categories is None:
            p = table.detach().exp().flatten(0, -2)
            index = torch.multinomial(p, 1, generator=self.generator).reshape(*shape, 1)
        else:
            chosen = list(islice(self.categories, prod(rest)))
            index = torch.tensor(chosen, device=table.device).reshape(rest)
            index = index.expand(shape).unsqueeze(-1)
        self.log_probs.append(table.gather(-1, index).squeeze(-1))
        self.cardinalities.append(table.shape[-1])
        if bits:
            return index.squeeze(-1).to(logits.dtype)
        return torch.zeros_like(table).detach().scatter(-1, index, 1.0).movedim(-1, dim)

    def log_prob(self, rows: torch.Size) -> Tensor:
        """Return the log-probability of all draws of a row, or raise if a layer has other rows."""
        total = torch.zeros(())
        for table in self.log_probs:
            if table.shape[: len(rows)] != rows:
                raise ValueError(
                    f"loss: it returned losses {tuple(rows)}, but a layer draws variables "
                    f"{tuple(table.shape)}. Return one loss per row, and let the logits of every "
                    "layer begin with the dimensions of the rows."
                )
            total = table.reshape(*rows, -1).sum(-1) + total.to(table)
        return total


class Layers(Gradient):
    """A loss with layers that draw, and its gradients, as arms observe them."""

    def __init__(
        self,
        loss: NetworkLoss,
        parameters: Tensor | Sequence[Tensor] | None,
        clock: Clock = time.perf_counter,
    ) -> None:
        if not callable(loss):
            raise TypeError(
                "loss must be a function of the sampler that returns one loss per row, but "
                f"{type(loss).__name__} was given."
            )
        self.loss = loss
        self.clock = clock
        recorder = _Recorder(categories=repeat(0))  # to see the layers; nothing is drawn
        losses = self.losses(recorder)
        if not recorder.log_probs:
            raise ValueError(
                "loss: it did not call its argument. Let every layer that draws call "
                "`sampler(logits)` in place of `catlog.sample(logits, E)`."
            )
        if losses.numel() == 0:
            raise ValueError(
                f"loss: it returned losses {tuple(losses.shape)}, so there is no gradient to "
                "measure. Give the network at least one row."
            )
        self.device = losses.device
        self.rows = losses.shape
        total = losses.sum() + recorder.log_prob(self.rows).sum()
        self.parameters = graph_leaves(total) if parameters is None else listed(parameters)
        self.leaves = self.parameters
        check_trainable(self.parameters)
        tables = zip(recorder.cardinalities, recorder.log_probs, strict=True)
        self.sizes = [  # of all variables of a row
            size for size, table in tables for _ in range(prod(table.shape[len(self.rows) :]))
        ]

    @property
    def outcomes(self) -> int:
        """The number of joint outcomes of all layers, for one row."""
        return prod(self.sizes)

    def losses(self, sampler: Sampler) -> Tensor:
        """Run the network; return one loss per row."""
        losses = self.loss(sampler)
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            raise TypeError(
                f"loss must return a tensor of floats, one per row, but {losses!r} was returned."
            )
        return losses

    def estimate(self, E: AnyEstimator, generator: torch.Generator | None) -> tuple[Tensor, None]:
        """Run the network with draws by E; it raises if E cannot draw without f."""
        sampler = partial(sample, estimator=cast(SlopeEstimator, E), generator=generator)
        return self.losses(sampler), None

    def exact(self) -> KnownGradient:
        """Return the gradient by enumeration of all outcomes of a row."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for categories in product(*map(range, self.sizes)):
            recorder = _Recorder(categories=categories, row_dims=len(self.rows))
            losses = self.losses(recorder)
            total = total + self.differentiated(recorder.log_prob(self.rows).exp() * losses)
        return total, torch.zeros_like(total)

    def by_rloo(self, runs: int, seed: int) -> KnownGradient:
        """Return the mean gradient of runs in groups by RLOO, and the variance of that mean."""
        generator, moments = self.generator(seed), Moments()
        for _ in range(runs // GROUP):
            recorders = [_Recorder(generator) for _ in range(GROUP)]
            losses = torch.stack([self.losses(recorder) for recorder in recorders])
            log_prob = torch.stack([recorder.log_prob(self.rows) for recorder in recorders])
            values = losses.detach()
            advantage = (values - values.mean(0)) * (GROUP / (GROUP - 1))
            surrogate = (losses + advantage * log_prob).mean(0)
            moments.add(self.differentiated(surrogate).unsqueeze(0))
        return moments.mean, moments.mean_variances
