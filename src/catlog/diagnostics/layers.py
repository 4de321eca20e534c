"""Bias, variance and time of estimators inside a network whose layers draw by `catlog.sample`."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, OneHotCategorical

from ..core.checks import check_count, refusal
from ..core.left_alone import left_alone
from ..sample import SlopeEstimator, sample
from .arms import entered
from .comparing import Comparison, KnownGradient, measure, rows_of
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
    check_count("compare_layers", "reference_runs", reference_runs, 2 * GROUP)
    with left_alone(loss):
        network = Layers(loss, parameters, clock)
        arms, skipped = entered(network, named_estimators(estimators), seed)
        measure("compare_layers", network, arms, skipped, repeats, rounds, 0, progress)
        rows = rows_of(arms, network.by_rloo(reference_runs, seed))
    rows.sort(key=lambda row: row.bias**2 + row.variance)
    return Comparison(tuple(rows), skipped, "rloo", "One draw per layer")


class Layers(Gradient):
    """A loss with layers that draw, and its gradients, as arms observe them."""

    def __init__(self, loss: NetworkLoss, parameters: Parameters, clock: Clock) -> None:
        self.loss, self.clock = loss, clock
        losses, log_probs = self.drawn()
        self.device = losses.device
        found = graph_leaves(losses + log_probs) if parameters is None else parameters
        self.leaves = self.parameters = trainable(found)

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

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Run the network with plain draws; return the loss of every row, and the log-probability
        of all its draws."""
        tables: list[Tensor] = []

        def sampler(logits: Tensor, *, dim: int = -1, bits: bool = False) -> Tensor:
            last = logits if bits else logits.movedim(dim, -1)
            law: Distribution = (Bernoulli if bits else OneHotCategorical)(logits=last)
            draw = law.sample()
            tables.append(law.log_prob(draw))
            return draw if bits else draw.movedim(-1, dim)

        losses = self.losses(sampler)
        if not tables:
            remedy = "Let layers call `sampler(logits)` in place of `catlog.sample(logits, E)`."
            raise refusal("loss", "call its argument, the sampler", "it did not", remedy)
        rows, total = losses.shape, torch.zeros_like(losses)
        for table in tables:
            if table.shape[: len(rows)] != rows:
                but = f"it returned {tuple(rows)}, and a layer draws variables {tuple(table.shape)}"
                remedy = "Let the logits of every layer begin with the dimensions of the rows."
                raise refusal("loss", "return one value per row of the logits", but, remedy)
            total = total + table.reshape(*rows, -1).sum(-1).to(total)
        return losses, total

    def by_rloo(self, runs: int, seed: int) -> KnownGradient:
        """Return the mean gradient of runs in groups by RLOO, and the variance of that mean."""
        torch.manual_seed(seed)
        moments = Moments()
        for _ in range(runs // GROUP):
            pairs = [self.drawn() for _ in range(GROUP)]
            losses, log_probs = map(torch.stack, zip(*pairs, strict=True))
            advantage = (losses - losses.mean(0)).detach() * (GROUP / (GROUP - 1))
            surrogate = (losses + advantage * log_probs).mean(0)
            moments.add(self.differentiated(surrogate).unsqueeze(0))
        return moments.mean, moments.mean_variances
