"""The expectation of an estimate as a finite sum.

Every outcome of the sampler is one batch element. Weighted by their probabilities and
back-propagated once, the estimates add up to the estimator's expectation, which is compared with
the sum over the sample space. Nothing here uses the library's own enumeration.
"""

from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from catlog.distributions.factors import factors
from catlog.estimator import Estimator
from catlog.estimators import SlopeCateR
from catlog.estimators.catlog_trick.slope_predictions import gradient_scale, selection_probabilities

from .cases import Case, FeatureFunction
from .settings import chosen_per_draw

Moments = tuple[Tensor, Tensor, Tensor]  # a value, and its gradients in theta and in f's parameter


def _with_gradients(value: Tensor, theta: Tensor, c: Tensor) -> Moments:
    in_theta, in_c = torch.autograd.grad(value, [theta, c])
    return value.detach(), in_theta, in_c


def expected(case: Case, f: FeatureFunction, c: Tensor) -> Moments:
    """Return E[f] and its gradients in theta and in f's parameter c, summed over the points."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()
    value = (case.probabilities(theta) * f(case.features(case.points), c)).sum()
    return _with_gradients(value, theta, c)


def outcomes(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    """Return every x [rows, outcomes, *event] of independent draws, and its probability."""
    choice = torch.cartesian_prod(*[torch.arange(len(case.points))] * rows).view(-1, rows).T
    return case.points[choice], case.probabilities(case.theta)[choice].prod(0)


def every_deck(d: int, rows: int, per_draw: int) -> Tensor:
    """Return ``chosen`` [rows, decks, per_draw] for every order of the deck of variables."""
    decks = torch.tensor(list(permutations(range(d))))
    dealt = decks[:, torch.arange(rows * per_draw) % d]
    return dealt.view(-1, rows, per_draw).movedim(1, 0)


def every_start(E: Estimator, case: Case) -> tuple[Tensor, Tensor]:
    """Return middles and lengths of the intervals of ``start`` with the same corrections."""
    assert isinstance(E, SlopeCateR), "the intervals of `start` are known for SlopeCateR only"
    law = factors(case.distribution(case.theta))
    size = gradient_scale(law.probs) * E.sizes(law.d)
    ends = (E.turns(law.k) * selection_probabilities(size)[1]) % 1
    ends = torch.cat([ends.new_zeros(1), ends, ends.new_ones(1)]).sort().values
    return (ends[1:] + ends[:-1]) / 2, ends.diff()


def expectation(E: Estimator, case: Case, f: FeatureFunction, c: Tensor) -> Moments:
    """Return the expectation of the estimator's value and gradients over all outcomes."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()

    def black_box(x: Tensor) -> Tensor:
        return f(case.features(x), c)

    if not E.randomness:
        return _with_gradients(E(black_box, case.distribution(theta)), theta, c)
    injected, weight = all_outcomes(E, case)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    return _with_gradients((weight * E(black_box, q, **injected)).sum(), theta, c)


def all_outcomes(E: Estimator, case: Case) -> tuple[dict[str, Any], Tensor]:
    """Return every outcome of E's sampler as a batch element, and its probability.

    The outcomes are the keyword arguments that inject E's randomness.
    """
    q = case.distribution(case.theta)
    x, weight = outcomes(case, E.rows(q))
    injected: dict[str, Any] = {}
    if "chosen" in E.randomness:
        chosen = every_deck(factors(q).d, len(x), chosen_per_draw(E))
        decks = chosen.shape[1]
        injected["chosen"] = chosen.repeat_interleave(x.shape[1], 1)
        x = x.repeat(1, decks, *[1] * (x.dim() - 2))
        weight = weight.repeat(decks) / decks
    if "start" in E.randomness:
        start, length = every_start(E, case)
        injected["start"] = start.repeat(x.shape[1]).unsqueeze(0)
        x = x.repeat_interleave(len(start), 1)
        weight = (weight[:, None] * length).flatten()
    return injected | {"x": x}, weight
