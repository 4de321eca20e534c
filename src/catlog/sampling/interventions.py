"""Interventions: set one variable to another category and draw its descendants again."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ..distributions.integers import integers
from ..distributions.inverse_cdf import as_index, inverse_cdf
from ..distributions.ordered import Ordered, at_least_float32
from ..tracing import inside_functorch
from .gumbel import gumbels

Suffix = Literal["independent", "common", "gumbel"]
SUFFIXES: tuple[str, ...] = get_args(Suffix)


@dataclass(frozen=True, eq=False)
class Interventions:
    """Base draws and, per move, the same draws with one variable set to another category.

    Attributes:
        x: base draws.
        moved: for every move, the base draw with ``variable`` set to ``category`` and its
            descendants drawn again.
        variable: the variable that the move sets.
        category: the category that it gets.
        weight: 1 for a category that is always evaluated. For one sampled from the remaining
            categories: their total probability over its own.
    """

    x: Int64[Tensor, "n *batch d"]
    moved: Int64[Tensor, "moves n *batch d"]
    variable: Int64[Tensor, "moves n *batch"]
    category: Int64[Tensor, "moves n *batch"]
    weight: Float[Tensor, "moves n *batch"]


def alternatives_per_variable(q: Ordered, categories: int | None) -> list[int]:
    """Return how many other categories of each variable are evaluated: none of fixed ones."""
    most = max(q.cardinalities) if categories is None else categories + 1
    return [0 if i in q.fixed else min(size - 1, most) for i, size in enumerate(q.cardinalities)]


def noise_shape(
    q: Ordered, n: int, suffix: Suffix, categories: int | None, moves: int
) -> tuple[int, ...]:
    """Return the shape of the uniforms that one sweep needs.

    That is a group per move, or one for all, and one more to sample from the remaining categories.
    """
    groups = 1 + moves if suffix == "independent" else 1
    groups += 0 if categories is None else 1
    tail = (max(q.cardinalities),) if suffix == "gumbel" else ()
    return (groups, n, *q.batch_shape, len(q.cardinalities), *tail)


def all_interventions(
    q: Ordered,
    noise: Tensor,
    x: Int64[Tensor, "n *batch d"] | None = None,
    suffix: Suffix = "independent",
    categories: int | None = None,
    validate: bool = True,
) -> Interventions:
    """Make all interventions on all variables, block by block.

    A group of rows is the n draws under one move; group 0 is the base. At each block, the base and
    the groups whose variable is an ancestor draw the block again, and the other groups copy the
    base. Then each variable of the block starts new groups, which have copied the base so far.
    """
    n, batch = noise.shape[1], q.batch_shape
    counts = alternatives_per_variable(q, categories)
    shape = (1 + sum(counts), n, *batch, len(counts))
    points = torch.zeros(shape, dtype=torch.int64, device=noise.device)
    moved_variables: list[int] = []
    category: list[Tensor] = []
    weight: list[Tensor] = []
    state = q.start(points.shape[1:-1]) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        index = as_index(variables)
        active = [0] + [
            g for g, variable in enumerate(moved_variables, 1) if variable in q.ancestors[block]
        ]
        started = 1 + len(moved_variables)
        all_active = len(active) == started
        groups = points[:started] if all_active else points[integers(active, points.device)]
        rows = groups.flatten(0, 1)
        raw, state = q.next_logits(block, rows, state, previous)
        log_probs = q.block_log_probs(raw, block, rows.shape[:-1], validate)
        log_probs = log_probs.unflatten(0, (len(active), n))
        drawn = _drawn(
            log_probs, noise, active, index, suffix, None if x is None else x[..., index]
        )
        points = _writable(points, drawn)
        points[..., index] = drawn[0]
        if all_active:
            points[:started, ..., index] = drawn
        elif len(active) > 1:
            block_points = points[..., index]
            block_points[integers(active, points.device)] = drawn
            points[..., index] = block_points
        for position, variable in enumerate(variables):
            if counts[variable] == 0:
                continue
            conditional = log_probs[0, ..., position, : q.cardinalities[variable]]
            u = noise[-1, ..., variable, 0] if suffix == "gumbel" else noise[-1, ..., variable]
            alternative, alternative_weight = _alternative_categories(
                conditional, drawn[0, ..., position], categories, u
            )
            points[started : started + counts[variable], ..., variable] = alternative
            started += counts[variable]
            moved_variables += [variable] * counts[variable]
            category.append(alternative)
            weight.append(alternative_weight)
        if q.incremental:
            kept = torch.arange(len(rows), device=noise.device)
            copies = torch.arange(n, device=noise.device).repeat(counts[variables[0]])
            state = q.select_rows(state, torch.cat([kept, copies]))
            previous = points[:started, ..., variables[0]].flatten(0, 1)
    moves = integers(moved_variables, noise.device).view(-1, *[1] * (1 + len(batch)))
    no_moves = torch.zeros((0, n, *batch), dtype=noise.dtype, device=noise.device)
    return Interventions(
        points[0],
        points[1:],
        moves.expand(-1, n, *batch),
        torch.cat([no_moves.long(), *category]),
        torch.cat([no_moves, *weight]),
    )


def chosen_interventions(
    q: Ordered,
    noise: Tensor,
    chosen: Int64[Tensor, "n *batch m"],
    x: Int64[Tensor, "n *batch d"] | None = None,
    suffix: Suffix = "independent",
    validate: bool = True,
) -> Interventions:
    """Make all interventions on the ``chosen`` variables of each draw and batch element.

    Every row passes through all blocks: it copies the base up to its variable, and draws the
    descendants again.
    """
    n, m, k = chosen.shape[0], chosen.shape[-1], max(q.cardinalities)
    device = noise.device
    groups = m * (k - 1)
    variable = chosen.movedim(-1, 0).repeat_interleave(k - 1, 0)
    offset = torch.arange(1, k, device=device).repeat(m).view(-1, *[1] * (chosen.dim() - 1))
    sizes = integers(q.cardinalities, device)
    is_ancestor = torch.zeros(len(sizes), len(sizes), dtype=torch.bool, device=device)
    for block, variables in enumerate(q.blocks):
        for i in variables:
            is_ancestor[i, integers(sorted(q.ancestors[block]), device)] = True
    points = torch.zeros(
        (1 + groups, n, *q.batch_shape, len(sizes)), dtype=torch.int64, device=device
    )
    category = torch.zeros_like(variable)
    lead = points.flatten(0, 1).shape[:-1]
    state = q.start(lead) if q.incremental else None
    previous = None
    all_groups = list(range(1 + groups))
    for block, variables in enumerate(q.blocks):
        index = as_index(variables)
        raw, state = q.next_logits(block, points.flatten(0, 1), state, previous)
        log_probs = q.block_log_probs(raw, block, lead, validate).unflatten(0, (1 + groups, n))
        drawn = _drawn(
            log_probs, noise, all_groups, index, suffix, None if x is None else x[..., index]
        )
        points = _writable(points, drawn)
        for position, i in enumerate(variables):
            base = drawn[0, ..., position]
            alternative = _or_current_if_impossible(
                (base + offset) % sizes[i], base, log_probs[0, ..., position, :]
            )
            is_moved = variable == i
            descendant = torch.where(is_ancestor[i][variable], drawn[1:, ..., position], base)
            points[0, ..., i] = base
            points[1:, ..., i] = torch.where(is_moved, alternative, descendant)
            category = torch.where(is_moved, alternative, category)
        previous = points[..., variables[0]].flatten(0, 1)
    weight = torch.ones(category.shape, dtype=at_least_float32(q.real), device=device)
    return Interventions(points[0], points[1:], variable, category, weight)


def _writable(
    points: Int64[Tensor, "groups n *batch d"], drawn: Int64[Tensor, "active n *batch m"]
) -> Int64[Tensor, "groups n *batch d"]:
    """Return the points such that ``drawn`` may be written into them.

    In ``torch.func.vmap`` a tensor that was made here is not mapped, and what is mapped cannot be
    written into it. Adding zeros that are mapped makes it so.
    """
    return points + torch.zeros_like(drawn[:1, ..., :1]) if inside_functorch() else points


def _drawn(
    log_probs: Float[Tensor, "active n *batch m k"],
    noise: Tensor,
    active: list[int],
    index: slice | list[int],
    suffix: Suffix,
    x: Int64[Tensor, "n *batch m"] | None,
) -> Int64[Tensor, "active n *batch m"]:
    """Draw the block's values in every active group; those of group 0 are ``x`` if it is given."""
    if suffix == "gumbel":
        drawn = (log_probs + gumbels(noise[:1, ..., index, : log_probs.shape[-1]])).argmax(-1)
    elif suffix == "independent":
        u = noise[..., index]
        u = u if len(active) == len(noise) else u[integers(active, noise.device)]
        drawn = inverse_cdf(log_probs.exp(), u)
    else:
        u = noise[:1, ..., index]
        if x is not None:  # the uniform that would have drawn x: one in its interval of the CDF
            p = log_probs[0].exp()
            low = pad(p.cumsum(-1), (1, 0))[..., :-1].gather(-1, x.unsqueeze(-1)).squeeze(-1)
            u = (low + u[0] * p.gather(-1, x.unsqueeze(-1)).squeeze(-1)).unsqueeze(0)
        drawn = inverse_cdf(log_probs.exp(), u)
    return drawn if x is None else torch.cat([x.unsqueeze(0), drawn[1:]])


def _alternative_categories(
    log_probs: Float[Tensor, "n *batch k"],
    current: Int64[Tensor, "n *batch"],
    categories: int | None,
    u: Float[Tensor, "n *batch"],
) -> tuple[Int64[Tensor, "count n *batch"], Float[Tensor, "count n *batch"]]:
    """Return other categories and their weights.

    These are all, or the likeliest ``categories`` and one sampled from the rest. An impossible
    category is replaced by the draw's own (a difference of zero), so that f never sees it.
    """
    k = log_probs.shape[-1]
    if categories is None or categories + 1 >= k - 1:
        offset = torch.arange(1, k, device=current.device).view(-1, *[1] * current.dim())
        alternative = _or_current_if_impossible((current + offset) % k, current, log_probs)
        return alternative, log_probs.new_ones(alternative.shape)
    alternatives = log_probs.scatter(-1, current.unsqueeze(-1), -torch.inf)
    top_log_prob, top = alternatives.topk(categories, -1)
    rest = alternatives.scatter(-1, top, -torch.inf).exp()
    total = rest.sum(-1)
    sampled = inverse_cdf(rest, u * total)
    p = rest.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    is_possible = p > 0
    sampled = torch.where(is_possible, sampled, current).unsqueeze(-1)
    sampled_weight = torch.where(is_possible, total / p, 0.0).unsqueeze(-1)
    top = torch.where(top_log_prob > -torch.inf, top, current.unsqueeze(-1))
    weight = torch.cat([torch.ones_like(top_log_prob), sampled_weight], -1)
    return torch.cat([top, sampled], -1).movedim(-1, 0), weight.movedim(-1, 0)


def _or_current_if_impossible(
    category: Int64[Tensor, "count n *batch"],
    current: Int64[Tensor, "n *batch"],
    log_probs: Float[Tensor, "n *batch k"],
) -> Int64[Tensor, "count n *batch"]:
    """Return the categories, those of probability zero replaced by the draw's own."""
    picked = log_probs.gather(-1, category.movedim(0, -1)).movedim(-1, 0)
    return torch.where(picked > -torch.inf, category, current)
