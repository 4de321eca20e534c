"""The score of an estimator: how long training takes with it, up to a common factor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, sqrt

import torch
from torch import Tensor

from ..diagnostics import pilot_settings as settings
from .moments import Moments
from .trials import Trial


@dataclass
class Scoring:
    r"""Scores of trials, the lower the better.

    .. math::
        \bigl(10\, \lVert g \rVert^2 + 100\, \text{bias}^2 + \sigma^2 + \text{variance}\bigr)
        \times \text{seconds per step}

    g is the gradient and :math:`\sigma^2` the noise that the choice of the minibatch puts into it.
    At its best length, a step along a noisy gradient makes progress in proportion to
    :math:`\lVert g \rVert^2 / (\lVert g \rVert^2 + \text{noise})`, so the score is the time for a
    given progress. Momentum averages about 10 gradients, and so their noise; it does not average
    the signal or the bias. Precision beyond the gradient's own length, or beyond the noise of the
    minibatch, is worth nothing.

    Reference: McCandlish et al., "An empirical model of large-batch training", 2018, section 2.2.

    Attributes:
        minibatch: :math:`\sigma^2`; 0 if the distributions of the batch share no parameters.
        truth: The gradient to compare with if all estimators are biased, by a loss or by design.
        penalty: The gradient of what is added to the loss, which is a part of g; None: nothing is.
    """

    minibatch: float = 0.0
    truth: Moments | None = None
    penalty: Tensor | None = None
    _biases: dict[tuple[int, int, int, int], float] = field(default_factory=dict, repr=False)

    def reference(self, trials: Sequence[Trial]) -> Moments | None:
        """Return the most precise mean of an unbiased estimator."""
        if self.truth is not None:
            return self.truth
        unbiased = [
            trial.moments
            for trial in trials
            if trial.estimator.unbiased and trial.moments.count and trial.variance < inf
        ]
        return min(unbiased, key=lambda moments: moments.mean_variance, default=None)

    def floor(self, trials: Sequence[Trial]) -> float:
        """Return what all estimators share: the squared gradient and the minibatch's noise."""
        reference = self.reference(trials)
        signal = 0.0 if reference is None else reference.shifted_norm2(self.penalty)
        return settings.MOMENTUM_STEPS * signal + self.minibatch

    def squared_errors(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Return the variance and, unless the estimator is unbiased, the weighted squared bias."""
        reference = self.reference(trials)
        return {trial.name: self._squared_error(trial, reference) for trial in trials}

    def scores(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Return the score of every trial."""
        floor, errors = self.floor(trials), self.squared_errors(trials)
        reference = self.reference(trials)
        # Where all noise is zero, time decides.
        rounding = torch.finfo(torch.float32).eps ** 2 * (reference.norm2 if reference else 0.0)
        floor = max(floor, rounding, 1e-300)
        return {trial.name: (floor + errors[trial.name]) * trial.seconds for trial in trials}

    def errors(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Return the relative standard error of every score, from that of the variance."""
        floor, squared_errors = self.floor(trials), self.squared_errors(trials)
        errors = {}
        for trial in trials:
            noise = squared_errors[trial.name]
            share = noise / (floor + noise) if 0 < noise < inf else 1.0
            errors[trial.name] = trial.error * share
        return errors

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials by score, best first."""
        scores = self.scores(trials)
        return sorted(trials, key=lambda trial: scores[trial.name])

    def surely_worse(self, leader: Trial, trials: Sequence[Trial]) -> set[str]:
        """Return the trials whose scores exceed the leader's by more than errors explain."""
        scores, errors = self.scores(trials), self.errors(trials)
        worse = set()
        for trial in trials:
            error = sqrt(errors[trial.name] ** 2 + errors[leader.name] ** 2)
            doubt = settings.DOUBT_TIMES * exp(settings.DOUBT_ERRORS * error)
            if scores[trial.name] > scores[leader.name] * doubt:
                worse.add(trial.name)
        return worse

    def _squared_error(self, trial: Trial, reference: Moments | None) -> float:
        if trial.estimator.unbiased and self.truth is None:
            return trial.variance
        if reference is None or trial.variance == inf:
            return inf
        bias = self.squared_bias(trial, reference)
        return trial.variance + settings.BIAS_WEIGHT * bias

    def squared_bias(self, trial: Trial, reference: Moments) -> float:
        """Return the squared distance of the mean from the reference, minus the noise in it.

        The bias does not depend on the number of draws, so the most precise mean of the candidate
        counts.
        """
        trials = (trial,) if trial.source is None else (trial, trial.source)
        means = [entry.moments for entry in trials if entry.moments.count > 1]
        if not means:
            return inf
        moments = min(means, key=lambda moments: moments.mean_variance)
        key = (id(moments), moments.count, id(reference), reference.count)
        if key not in self._biases:
            gap = float((moments.mean - reference.mean).square().sum())
            noise = moments.mean_variance + reference.mean_variance
            self._biases[key] = max(0.0, gap - noise)
        return self._biases[key]
