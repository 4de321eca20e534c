"""The expectation of an estimate as a finite sum.

Every outcome of the sampler is one batch element. Weighted by their probabilities and
back-propagated once, the estimates add up to the estimator's expectation, which is compared with
the sum over the sample space. Nothing here uses the library's own enumeration.
"""

from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from catlog.core.estimator import Estimator
from catlog.core.factors import RelaxableFactors
from catlog.core.view import view
from catlog.estimators.slopecater import gradient_scale, selection_probabilities

from .cases import Case, FeatureFunction
from .settings import chosen_per_draw, tape

Moments = tuple[Tensor, Tensor, Tensor]  # a value, and its gradients in theta and in f's parameter


def with_gradients(value: Tensor, theta: Tensor, c: Tensor) -> Moments:
    in_theta, in_c = torch.autograd.grad(value, [theta, c])
    return value.detach(), in_theta, in_c


def expected(case: Case, f: FeatureFunction, c: Tensor) -> Moments:
    """Return E[f] and its gradients in theta and in f's parameter c, summed over the points."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()
    value = (case.probabilities(theta) * f(case.features(case.points), c)).sum()
    return with_gradients(value, theta, c)


def outcomes(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    """Return every x [rows, outcomes, *event] of independent draws, and its probability."""
    choice = torch.cartesian_prod(*[torch.arange(len(case.points))] * rows).view(-1, rows).T
    return case.points[choice], case.probabilities(case.theta)[choice].prod(0)


def every_deck(d: int, rows: int, per_draw: int) -> Tensor:
    """Return ``chosen`` [rows, decks, per_draw] for every order of the deck of variables."""
    decks = torch.tensor(list(permutations(range(d))))
    dealt = decks[:, torch.arange(rows * per_draw) % d]
    return dealt.view(-1, rows, per_draw).movedim(1, 0)


def every_start(E: Any, case: Case) -> tuple[Tensor, Tensor]:
    """Return middles [starts, cells] and sizes of the cells of ``start`` with the same corrections
    of E, a SlopeCateR.

    The first start decides which variables are corrected. With pairs, a second one decides to which
    category they change, by the CDF of those that were not drawn.
    """
    q = view(case.distribution(case.theta))
    assert isinstance(q, RelaxableFactors)
    p, turns = q.coordinates_of_q()[0], E.turns(q.k)
    ends = selection_probabilities(gradient_scale(p) * E.sizes(q.d))[1]
    axes = [intervals(turns * ends)]
    if E.uses_pairs(q.k):
        rest = q.p.unsqueeze(-2) * (1 - torch.eye(q.k))  # [d, drawn, k]
        total = rest.sum(-1, keepdim=True)  # 0 if the drawn category is certain
        ends = rest.cumsum(-1) / torch.where(total > 0, total, 1.0)
        shift = torch.arange(turns) / turns
        axes.append(intervals((ends.flatten() - shift.unsqueeze(-1)).flatten()))
    middles = torch.cartesian_prod(*(middle for middle, _ in axes)).view(-1, len(axes)).T
    lengths = torch.cartesian_prod(*(length for _, length in axes)).view(-1, len(axes))
    return middles, lengths.prod(-1)


def intervals(ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return middles and lengths of the intervals between these points, taken modulo 1."""
    ends = torch.cat([ends.new_zeros(1), ends % 1, ends.new_ones(1)]).sort().values
    return (ends[1:] + ends[:-1]) / 2, ends.diff()


def expectation(
    E: Estimator[Any], case: Case, f: FeatureFunction, c: Tensor, w: Tensor | None = None
) -> Moments:
    """Return the expectation of the estimator's value and gradients over all outcomes.

    With many outputs, those of their sum with the weights w.
    """
    w = torch.ones((), dtype=torch.float64) if w is None else w
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()

    def black_box(x: Tensor) -> Tensor:
        return f(case.features(x), c)

    injected, weight = all_outcomes(E, case)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    value = E(black_box, q, outputs=w.dim(), **injected)
    return with_gradients((weight.view(-1, *[1] * w.dim()) * w * value).sum(), theta, c)


def all_outcomes(E: Estimator[Any], case: Case) -> tuple[dict[str, Any], Tensor]:
    """Return all outcomes of E's sampler, as arguments that inject them, with probabilities."""
    q = case.distribution(case.theta)
    taken = dict(tape(E, q))
    if not taken:
        return {}, torch.ones(1, dtype=torch.float64)
    x, weight = outcomes(case, taken["points"][0])
    noise: Tensor | None = None
    if "variables" in taken:
        noise = every_deck(view(q).d, len(x), chosen_per_draw(E))
        decks = noise.shape[1]
        noise = noise.repeat_interleave(x.shape[1], 1)
        x = x.repeat(1, decks, *[1] * (x.dim() - 2))
        weight = weight.repeat(decks) / decks
    elif "uniform" in taken:
        start, length = every_start(E, case)
        noise = start.repeat(1, x.shape[1])
        x = x.repeat_interleave(start.shape[1], 1)
        weight = (weight[:, None] * length).flatten()
    return {"x": x, "noise": noise}, weight
