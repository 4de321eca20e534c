"""The expectation of an estimate as a finite sum.

Every outcome of the sampler is one batch element. Weighted by their probabilities and
back-propagated once, the estimates add up to the estimator's expectation, which is compared with
the sum over the sample space. Nothing here uses the library's own enumeration.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import permutations
from math import factorial, prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from catlog.core.estimator import Estimator
from catlog.core.factors import RelaxableFactors
from catlog.core.view import view
from catlog.estimators.slopecater import gradient_scale, selection_probabilities

from .cases import Case, FeatureFunction
from .settings import Coupling, chosen_per_draw, recorded

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


def every_coupling(coupling: Coupling) -> tuple[list[Tensor], Tensor]:
    """Return every outcome of draws that depend on each other, and its probability.

    An outcome is what the library draws: uniforms ``[rows, outcomes, groups, d]``, or for strata
    two such tensors. A uniform stands in the middle of a cell in which no draw changes.
    """
    of_variables = [_of_one_variable(coupling, steps) for steps in coupling.steps]
    of_variables *= coupling.groups
    choice = torch.cartesian_prod(*(torch.arange(len(chance)) for _, chance in of_variables))
    columns = choice.view(-1, len(of_variables)).unbind(-1)
    each = list(zip(of_variables, columns, strict=True))
    weight = torch.stack([chance[column] for (_, chance), column in each]).prod(0)
    calls = range(len(of_variables[0][0]))
    drawn = [torch.stack([of[call][:, column] for (of, _), column in each], -1) for call in calls]
    return [numbers.unflatten(-1, (coupling.groups, -1)) for numbers in drawn], weight


def count(coupling: Coupling) -> int:
    """Return how many outcomes :func:`every_coupling` lists."""
    orders = factorial(coupling.n) if coupling.sampling == "latin" else 1
    cells = [len(_cells(coupling, steps)[0]) for steps in coupling.steps]
    return prod(orders * size**coupling.rows for size in cells) ** coupling.groups


def _cells(coupling: Coupling, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Return middles and lengths of the cells of a uniform in which no draw changes."""
    is_latin = coupling.sampling == "latin"
    return intervals(coupling.n * steps if is_latin else torch.cat([steps, 1 - steps]))


def _of_one_variable(coupling: Coupling, steps: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the outcomes for a variable whose category changes at these ``steps`` of a uniform:
    uniforms ``[rows, outcomes]``, and their probabilities."""
    middle, length = _cells(coupling, steps)
    cell = torch.cartesian_prod(*[torch.arange(len(length))] * coupling.rows)
    cell = cell.view(-1, coupling.rows).T
    if coupling.sampling == "antithetic":
        return [middle[cell]], length[cell].prod(0)
    keys = (torch.tensor(list(permutations(range(coupling.n)))).T + 0.5) / coupling.n
    orders, cells = keys.shape[1], cell.shape[1]
    places, chance = middle[cell].repeat(1, orders), length[cell].prod(0).repeat(orders)
    return [keys.repeat_interleave(cells, 1).to(places), places], chance / orders


@contextmanager
def drawing(calls: Sequence[Tensor]) -> Iterator[None]:
    """Let the library draw these uniforms ``[rows, outcomes, groups, d]``, one tensor per call."""
    rest = iter(calls)

    def rand(shape: tuple[int, ...], *options: object) -> Tensor:
        return next(rest).movedim(2, 1).reshape(shape)

    with patch("catlog.core.randomness.rand", rand):
        yield
    assert next(rest, None) is None, "not all uniforms were drawn"


def every_deck(d: int, rows: int, per_draw: int) -> tuple[Tensor, Tensor]:
    """Return ``chosen`` [rows, decks, per_draw] for every order of the deck of variables, and the
    orders' probabilities."""
    decks = torch.tensor(list(permutations(range(d))))
    dealt = decks[:, torch.arange(rows * per_draw) % d]
    chance = torch.full((len(decks),), 1 / len(decks), dtype=torch.float64)
    return dealt.view(-1, rows, per_draw).movedim(1, 0), chance


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
    middles, lengths = (ends[1:] + ends[:-1]) / 2, ends.diff()
    has_length = lengths > 1e-12  # longer than rounding
    return middles[has_length], lengths[has_length]


def expectation(E: Estimator[Any], case: Case, f: FeatureFunction, c: Tensor) -> Moments:
    """Return the expectation of the estimator's value and gradients over all outcomes."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()
    injected, weight = all_outcomes(E, case)
    calls = injected.pop("draws", None)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    with nullcontext() if calls is None else drawing(calls):
        value = E(lambda x: f(case.features(x), c), q, **injected)
    return with_gradients((weight * value).sum(), theta, c)


def all_outcomes(E: Estimator[Any], case: Case) -> tuple[dict[str, Any], Tensor]:
    """Return all outcomes of E's sampler, as arguments that inject them, with probabilities.

    Draws that depend on each other are no argument: ``draws`` are the uniforms behind them, for
    :func:`drawing`.
    """
    q = case.distribution(case.theta)
    record = recorded(E, q)
    taken = dict(record.taken)
    if not taken:
        return {}, torch.ones(1, dtype=torch.float64)
    rows, noise = taken["points"][0], None
    if record.coupling is None:
        x, weight = outcomes(case, rows)
        points = [x]
    else:
        points, weight = every_coupling(record.coupling)
    if {"variables", "uniform"} & taken.keys():
        decks = "variables" in taken
        d, chosen = view(q).d, chosen_per_draw(E)
        noise, chance = every_deck(d, rows, chosen) if decks else every_start(E, case)
        number = torch.arange(len(weight)), torch.arange(len(chance))
        outcome, of_noise = torch.cartesian_prod(*number).T
        noise, weight = noise[:, of_noise], weight[outcome] * chance[of_noise]
        points = [numbers[:, outcome] for numbers in points]
    drawn = {"x": points[0]} if record.coupling is None else {"draws": points}
    return drawn | {"noise": noise}, weight
