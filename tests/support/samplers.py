"""All outcomes of the samplers of estimators for dependent variables, and their probabilities.

A draw by inverse CDF is a step function of its uniform, so the uniforms of one variable fall into
finitely many cells, the same for all prefixes once the breakpoints of all prefixes are joined.
Products of cells are all outcomes of the sampler.
"""

from dataclasses import dataclass, field
from itertools import permutations, product
from math import perm, prod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog.core.view import view
from catlog.distributions import Ordered
from catlog.estimators.sets.likely_and_rest import beam_search
from catlog.testing.settings import tape

Cells = tuple[Tensor, Tensor]  # a number in each of them, and their widths


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Every outcome as a batch element.

    Attributes:
        weight: probabilities ``[outcomes]``.
        options: the keyword arguments that give an estimator its randomness.
        memory: category numbers of the points that MAPO remembers.
    """

    weight: Tensor
    options: dict[str, Any]
    memory: Tensor | None = field(default=None)


def cells(q: Ordered) -> list[Cells]:
    """Return for every variable a uniform in each cell, and the cells' widths."""
    cdf = q.log_conditionals(_possible(q)).detach().exp().cumsum(-1).clamp(max=1)
    result = []
    for i, size in enumerate(q.cardinalities):
        ends = torch.tensor([0.0, 1.0], dtype=cdf.dtype)
        edges = torch.cat([ends[:1], cdf[:, i, : size - 1].flatten(), ends[1:]]).unique()
        edges = edges[torch.cat([edges.diff() > 1e-12, torch.ones(1, dtype=torch.bool)])]
        result.append(((edges[1:] + edges[:-1]) / 2, edges[1:] - edges[:-1]))
    return result


def _possible(q: Ordered) -> Tensor:
    points = q.enumerate_support()
    return points[q.log_prob(points) > -torch.inf]


def combine(free: list[Cells]) -> Cells:
    """Return all combinations [outcomes, free, ...] of cells, and their probabilities."""
    grid = torch.cartesian_prod(*[torch.arange(len(size)) for _, size in free])
    grid = grid.reshape(-1, len(free))
    middles = torch.stack([free[i][0][grid[:, i]] for i in range(len(free))], 1)
    return middles, torch.stack([free[i][1][grid[:, i]] for i in range(len(free))], -1).prod(-1)


def entries(E: catlog.SCateR, q: Ordered) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of groups of SCateR's noise, and the (group, variable) that are read."""
    d = len(q.cardinalities)
    used = [(0, i) for i in range(d)]
    if E.suffix == "common":
        return 1, used
    if E.variables is not None:
        groups = 1 + E.variables * (max(q.cardinalities) - 1)
        return groups, used + [(group, i) for group in range(1, groups) for i in range(d)]
    block_of = {i: block for block, variables in enumerate(q.blocks) for i in variables}
    group = 0
    for clamped in (i for variables in q.blocks for i in variables if i not in q.fixed):
        for _ in range(q.cardinalities[clamped] - 1):
            group += 1
            used += [(group, i) for i in range(d) if clamped in q.ancestors[block_of[i]]]
    return 1 + group, used


def interventions(E: catlog.SCateR, q: Ordered) -> Outcomes:
    """Return the noise [groups, n=1, outcomes, d] of SCateR, and the chosen variables."""
    by_variable, d = cells(q), len(q.cardinalities)
    groups, used = entries(E, q)
    free = [by_variable[i] for _, i in used]
    if E.variables is not None:
        free.append((torch.arange(d), torch.full((d,), 1 / d, dtype=torch.float64)))
    u, weight = combine(free)
    noise = torch.full((groups, 1, len(u), d), 0.5, dtype=torch.float64)
    for column, (group, i) in enumerate(used):
        noise[group, 0, :, i] = u[:, column]
    if E.variables is None:
        return Outcomes(weight, {"noise": noise})
    return Outcomes(weight, {"noise": (noise, u[:, -1].long().view(1, -1, 1))})


def independent_draws(points: Tensor, probs: Tensor, rows: int) -> Outcomes:
    choice = torch.tensor(list(product(range(len(points)), repeat=rows))).T
    return Outcomes(probs[choice].prod(0), {"x": points[choice]})


def without_replacement(points: Tensor, probs: Tensor, rows: int) -> Outcomes:
    choice = torch.tensor(list(permutations(range(len(points)), rows))).T
    p = probs[choice]
    return Outcomes((p / (1 - p.cumsum(0) + p)).prod(0), {"x": points[choice]})


def outside(q: Distribution, members: Tensor, points: Tensor, probs: Tensor, rows: int) -> Outcomes:
    """Return draws from outside the members, which are given by their category numbers."""
    is_member = (view(q).index(points).unsqueeze(1) == members).all(-1).any(1)
    p = probs[~is_member]
    draws = independent_draws(points[~is_member], p / p.sum(), rows)
    return Outcomes(draws.weight, draws.options, members)


def outcomes(E: catlog.Estimator, q: Distribution, points: Tensor, probs: Tensor) -> Outcomes:
    """Return all outcomes of E's sampler.

    ``q`` has no batch. ``points`` are its possible points, with their probabilities.
    """
    law = view(q)
    if isinstance(E, catlog.SCateR):
        return interventions(E, law.ordered)
    if isinstance(E, catlog.estimators.UnorderedSet):
        return without_replacement(points, probs, E.samples)
    if isinstance(E, catlog.estimators.SumAndSample):
        members, _ = beam_search(law, E.top)
        return outside(q, members[: E.top], points, probs, E.samples)
    if isinstance(E, catlog.estimators.MAPO):
        return outside(q, law.index(points).flip(0)[::2][: E.size], points, probs, E.samples)
    ((name, shape),) = tape(E, q)
    assert name == "points", f"the sampler of {type(E).__name__} is not known here"
    return independent_draws(points, probs, shape[0])


def count(E: catlog.Estimator, q: Distribution, points: int) -> int:
    """Return how many outcomes there are: 0 if q has too few points for the set."""
    ordered = view(q).ordered
    if isinstance(E, catlog.SCateR):
        sizes = [len(size) for _, size in cells(ordered)]
        deck = 1 if E.variables is None else len(sizes)
        return deck * prod(sizes[i] for _, i in entries(E, ordered)[1])
    if isinstance(E, catlog.estimators.UnorderedSet):
        return perm(points, E.samples)
    members = E.top if isinstance(E, catlog.estimators.SumAndSample) else 0
    members = min(E.size, (points + 1) // 2) if isinstance(E, catlog.estimators.MAPO) else members
    return max(0, points - members) ** E.samples
