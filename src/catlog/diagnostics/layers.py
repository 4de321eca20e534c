"""Bias, variance and time of estimators inside a network whose layers draw by `catlog.sample`."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..core.checks import check_count, refusal
from ..core.left_alone import left_alone
from ..sample import SlopeEstimator, sample
from .arms import Arm, copied_to
from .comparing import KnownGradient, measure, norm_of, row_of
from .comparison import Comparison
from .moments import Moments
from .naming import AnyEstimator, Chosen, named_estimators
from .task import Clock, Gradient, Parameters, graph_leaves, trainable

GROUP = 4  # runs of the network in one estimate of the reference by RLOO


Sampler = Callable[..., Tensor]  # of logits, with the options ``dim`` and ``bits``
NetworkLoss = Callable[[Sampler], Tensor]


def compare_layers(
    loss: NetworkLoss,
    estimators: Chosen,
    parameters: Parameters = None,
    *,
    repeats: int = 200,
    rounds: int = 15,
    reference_runs: int = 4000,
    seed: int = 0,
    progress: bool = True,
    clock: Clock = time.perf_counter,
) -> Comparison:
    r"""Measure estimators inside a network whose layers draw by :func:`catlog.sample`.

    How biased is Gumbel-Softmax in this network, and which temperature is best? Every estimator
    draws in all layers, ``repeats`` times. The gradient is that of the expected loss, summed over
    rows, in the parameters. The reference is the mean of ``reference_runs`` runs by RLOO on all
    layers, whose noise is accounted for.

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
        reference_runs: runs of the network for the reference, at least 8.
        seed: the seed of the draws.
        progress: say on a terminal what is being measured.
        clock: a function that returns seconds.

    >>> from torch import nn
    >>> from catlog import GumbelSoftmax, ReinMax
    >>> first, second, images = nn.Linear(3, 6), nn.Linear(6, 1), torch.ones(5, 3)
    >>> def loss(sampler):
    ...     codes = sampler(first(images).unflatten(-1, (2, 3)))
    ...     return second(codes.flatten(-2)).squeeze(-1).square()
    >>> estimators = [GumbelSoftmax(temperature=0.5, hard=True), ReinMax()]
    >>> result = compare_layers(
    ...     loss, estimators, repeats=50, rounds=1, reference_runs=400, progress=False
    ... )
    >>> sorted(row.name for row in result.rows)
    ['GumbelSoftmax(1, temperature=0.5, hard=True)', 'ReinMax(1)']
    """
    counts = ("repeats", repeats, 2), ("rounds", rounds, 1)
    for name, value, least in (*counts, ("reference_runs", reference_runs, 2 * GROUP)):
        check_count("compare_layers", name, value, least)
    with left_alone(loss):
        network = Layers(loss, parameters, clock)
        arms = {
            name: Arm(copied_to(E, network.device), 1, network.generator(seed + 1 + number))
            for number, (name, E) in enumerate(named_estimators(estimators).items())
        }
        skipped: dict[str, str] = {}
        measure("compare_layers", network, arms, skipped, repeats, rounds, 0, progress)
        truth = network.by_rloo(reference_runs, seed)
    rows = [row_of(name, arm, truth, norm_of(truth)) for name, arm in arms.items()]
    rows.sort(key=lambda row: row.bias**2 + row.variance)
    return Comparison(tuple(rows), skipped, "rloo", "One draw per layer")


class _Recorder:
    """A sampler that draws, and keeps the log-probabilities of the draws."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator
        self.log_probs: list[Tensor] = []

    def __call__(self, logits: Tensor, *, dim: int = -1, bits: bool = False) -> Tensor:
        table = torch.stack([-logits, logits], -1) if bits else logits.movedim(dim, -1)
        table = logsigmoid(table) if bits else table.log_softmax(-1)
        p = table.detach().exp()
        index = torch.multinomial(p.flatten(0, -2), 1, generator=self.generator)
        index = index.reshape(*p.shape[:-1], 1)
        self.log_probs.append(table.gather(-1, index).squeeze(-1))
        if bits:
            return index.squeeze(-1).to(logits.dtype)
        return torch.zeros_like(p).scatter(-1, index, 1.0).movedim(-1, dim)

    def log_prob(self, rows: torch.Size) -> Tensor:
        """Return the log-probability of all draws of a row, or raise if a layer has other rows."""
        total = torch.zeros(())
        for table in self.log_probs:
            if table.shape[: len(rows)] != rows:
                but = f"it returned {tuple(rows)}, and a layer draws variables {tuple(table.shape)}"
                remedy = "Let the logits of every layer begin with the dimensions of the rows."
                raise refusal("loss", "return one value per row of the logits", but, remedy)
            total = table.reshape(*rows, -1).sum(-1) + total.to(table)
        return total


class Layers(Gradient):
    """A loss with layers that draw, and its gradients, as arms observe them."""

    def __init__(
        self, loss: NetworkLoss, parameters: Parameters, clock: Clock = time.perf_counter
    ) -> None:
        self.loss = loss
        self.clock = clock
        recorder = _Recorder(None)
        losses = self.losses(recorder)
        if not recorder.log_probs:
            remedy = "Let layers call `sampler(logits)` in place of `catlog.sample(logits, E)`."
            raise refusal("loss", "call its argument, the sampler", "it did not", remedy)
        self.device = losses.device
        self.rows = losses.shape
        total = losses.sum() + recorder.log_prob(self.rows).sum()
        self.parameters = trainable(graph_leaves(total) if parameters is None else parameters)
        self.leaves = self.parameters

    def losses(self, sampler: Sampler) -> Tensor:
        """Run the network; return one loss per row."""
        losses = self.loss(sampler)
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            claim, but = "return a tensor of floats, one per row", f"{losses!r} was returned"
            raise refusal("loss", claim, but, kind=TypeError)
        return losses

    def estimate(self, E: AnyEstimator, generator: torch.Generator | None) -> Tensor:
        """Run the network with draws by E; it raises if E cannot draw without f."""
        sampler = partial(sample, estimator=cast(SlopeEstimator, E), generator=generator)
        return self.losses(sampler)

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
