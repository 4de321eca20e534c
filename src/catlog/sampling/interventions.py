"""Points with one variable clamped to another category and its descendants drawn again: one ancestral sweep for all clamps."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ..distributions.inverse_cdf import as_index, inverse_cdf, select_rows
from ..distributions.ordered import Ordered, at_least_float32
from .gumbel import gumbels

Suffix = Literal["independent", "common", "gumbel"]
SUFFIXES: tuple[str, ...] = get_args(Suffix)


@dataclass(frozen=True, eq=False)
class Interventions:
    """Base draws and, per move, the same draws with one variable clamped.

    x: base draws.
    moved: for every move, the base draw with ``variable`` set to ``category`` and later variables drawn accordingly.
    weight: 1 for a category that is always looked at; for one drawn from a remainder, the remainder's probability over its own.
    """

    x: Int64[Tensor, "n *batch d"]
    moved: Int64[Tensor, "moves n *batch d"]
    variable: Int64[Tensor, "moves n *batch"]
    category: Int64[Tensor, "moves n *batch"]
    weight: Float[Tensor, "moves n *batch"]


def alternatives_per_variable(q: Ordered, categories: int | None) -> list[int]:
    """How many other categories of each variable are looked at: none of one that has nothing to learn."""
    most = max(q.cardinalities) if categories is None else categories + 1
    return [0 if i in q.fixed else min(size - 1, most) for i, size in enumerate(q.cardinalities)]


def noise_shape(
    q: Ordered, n: int, suffix: Suffix, categories: int | None, moves: int
) -> tuple[int, ...]:
    """Shape of the uniforms that one sweep needs: a group per move or one for all, and one to draw from the remainders."""
    groups = (1 + moves if suffix == "independent" else 1) + (categories is not None)
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
    """All clamps of all variables, block by block.

    A group of rows is the n draws under one move; group 0 is the base. At each block the base and those groups whose clamped
    variable is an ancestor draw the block anew, the others copy the base; then the block's own variables found new groups.
    """
    n, batch = noise.shape[1], q.batch_shape
    points = torch.zeros(
        (1, n, *batch, len(q.cardinalities)), dtype=torch.int64, device=noise.device
    )
    counts = alternatives_per_variable(q, categories)
    clamped: list[int] = []
    category: list[Tensor] = []
    weight: list[Tensor] = []
    state = q.start(torch.Size([n, *batch])) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        where = as_index(variables)
        active = [0] + [
            g for g, variable in enumerate(clamped, 1) if variable in q.ancestors[block]
        ]
        lead = torch.Size([len(active) * n, *batch])
        some = points if len(active) == len(points) else points[active]
        raw, state = q.next_logits(block, some.flatten(0, 1), state, previous)
        log_probs = q.block_log_probs(raw, block, lead, validate).unflatten(0, (len(active), n))
        drawn = _drawn(
            log_probs, noise, active, where, suffix, None if x is None else x[..., where]
        )
        points[..., where] = drawn[0]
        if len(active) == len(points):
            points[..., where] = drawn
        elif len(active) > 1:
            block_points = points[..., where]
            block_points[active] = drawn
            points[..., where] = block_points
        founded = []
        for position, variable in enumerate(variables):
            if counts[variable] == 0:
                continue
            others = log_probs[0, ..., position, : q.cardinalities[variable]]
            u = noise[-1, ..., variable, 0] if suffix == "gumbel" else noise[-1, ..., variable]
            to, its_weight = _alternative_categories(others, drawn[0, ..., position], categories, u)
            group = points[:1].expand(counts[variable], *points.shape[1:]).clone()
            group[..., variable] = to
            founded.append(group)
            clamped += [variable] * counts[variable]
            category.append(to)
            weight.append(its_weight)
        points = torch.cat([points, *founded])
        if q.incremental:
            base = torch.arange(n, device=noise.device)
            state = select_rows(
                state,
                torch.cat(
                    [torch.arange(lead[0], device=noise.device), base.repeat(counts[variables[0]])]
                ),
            )
            previous = points[..., variables[0]].flatten(0, 1)
    moves = (
        torch.tensor(clamped, dtype=torch.int64, device=noise.device)
        .view(-1, *[1] * (1 + len(batch)))
        .expand(-1, n, *batch)
    )
    nothing = torch.zeros((0, n, *batch), dtype=noise.dtype, device=noise.device)
    return Interventions(
        points[0],
        points[1:],
        moves,
        torch.cat([nothing.long(), *category]),
        torch.cat([nothing, *weight]),
    )


def chosen_interventions(
    q: Ordered,
    noise: Tensor,
    chosen: Int64[Tensor, "n *batch m"],
    x: Int64[Tensor, "n *batch d"] | None = None,
    suffix: Suffix = "independent",
    validate: bool = True,
) -> Interventions:
    """All other categories of a few variables of each draw; which ones differs between draws and batch elements.

    Every row walks the whole law: before its clamped variable it copies the base, after it it draws what depends on it.
    """
    n, m, k = chosen.shape[0], chosen.shape[-1], max(q.cardinalities)
    device = noise.device
    groups = m * (k - 1)
    variable = chosen.movedim(-1, 0).repeat_interleave(k - 1, 0)
    offset = torch.arange(1, k, device=device).repeat(m).view(-1, *[1] * (chosen.dim() - 1))
    sizes = torch.tensor(q.cardinalities, device=device)
    reached = torch.zeros(len(sizes), len(sizes), dtype=torch.bool, device=device)
    for block, variables in enumerate(q.blocks):
        for i in variables:
            reached[i, sorted(q.ancestors[block])] = True
    points = torch.zeros(
        (1 + groups, n, *q.batch_shape, len(sizes)), dtype=torch.int64, device=device
    )
    category = torch.zeros_like(variable)
    lead = torch.Size([(1 + groups) * n, *q.batch_shape])
    state = q.start(lead) if q.incremental else None
    previous = None
    everyone = list(range(1 + groups))
    for block, variables in enumerate(q.blocks):
        where = as_index(variables)
        raw, state = q.next_logits(block, points.flatten(0, 1), state, previous)
        log_probs = q.block_log_probs(raw, block, lead, validate).unflatten(0, (1 + groups, n))
        drawn = _drawn(
            log_probs, noise, everyone, where, suffix, None if x is None else x[..., where]
        )
        for position, i in enumerate(variables):
            base = drawn[0, ..., position]
            to = (base + offset) % sizes[i]
            allowed = (
                log_probs[0, ..., position, :].gather(-1, to.movedim(0, -1)).movedim(-1, 0)
                > -torch.inf
            )
            to = torch.where(allowed, to, base)
            own = variable == i
            points[0, ..., i] = base
            points[1:, ..., i] = torch.where(
                own, to, torch.where(reached[i][variable], drawn[1:, ..., position], base)
            )
            category = torch.where(own, to, category)
        previous = points[..., variables[0]].flatten(0, 1)
    weight = torch.ones(category.shape, dtype=at_least_float32(q.real), device=device)
    return Interventions(points[0], points[1:], variable, category, weight)


def _drawn(
    log_probs: Float[Tensor, "active n *batch m k"],
    noise: Tensor,
    active: list[int],
    where: slice | list[int],
    suffix: Suffix,
    x: Int64[Tensor, "n *batch m"] | None,
) -> Int64[Tensor, "active n *batch m"]:
    """The block's values in every active group; those of group 0 are ``x`` where it is given."""
    if suffix == "gumbel":
        drawn = (log_probs + gumbels(noise[:1, ..., where, : log_probs.shape[-1]])).argmax(-1)
        return drawn if x is None else torch.cat([x.unsqueeze(0), drawn[1:]])
    if suffix == "independent":
        drawn = inverse_cdf(
            log_probs.exp(), (noise if len(active) == len(noise) else noise[active])[..., where]
        )
        return drawn if x is None else torch.cat([x.unsqueeze(0), drawn[1:]])
    u = noise[:1, ..., where]
    if x is not None:  # the uniform that would have drawn x: one in its interval of the CDF
        p = log_probs[0].exp()
        low = pad(p.cumsum(-1), (1, 0))[..., :-1].gather(-1, x.unsqueeze(-1)).squeeze(-1)
        u = (low + u[0] * p.gather(-1, x.unsqueeze(-1)).squeeze(-1)).unsqueeze(0)
    drawn = inverse_cdf(log_probs.exp(), u)
    return drawn if x is None else torch.cat([x.unsqueeze(0), drawn[1:]])


def _alternative_categories(
    log_probs: Float[Tensor, "n *batch k"],
    own: Int64[Tensor, "n *batch"],
    categories: int | None,
    u: Float[Tensor, "n *batch"],
) -> tuple[Int64[Tensor, "count n *batch"], Float[Tensor, "count n *batch"]]:
    """Other categories to look at: all; or the likeliest ``categories`` and one drawn from the rest, with its weight.

    An impossible category is replaced by the draw's own (a difference of zero), so f never sees it.
    """
    k = log_probs.shape[-1]
    if categories is None or categories + 1 >= k - 1:
        to = (own + torch.arange(1, k, device=own.device).view(-1, *[1] * own.dim())) % k
        allowed = log_probs.gather(-1, to.movedim(0, -1)).movedim(-1, 0) > -torch.inf
        return torch.where(allowed, to, own), torch.ones(
            to.shape, dtype=log_probs.dtype, device=own.device
        )
    others = log_probs.scatter(-1, own.unsqueeze(-1), -torch.inf)
    top_log_prob, top = others.topk(categories, -1)
    rest = others.scatter(-1, top, -torch.inf).exp()
    total = rest.sum(-1)
    sampled = inverse_cdf(rest, u * total)
    p = rest.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    some = p > 0
    sampled = torch.where(some, sampled, own)
    top = torch.where(top_log_prob > -torch.inf, top, own.unsqueeze(-1))
    to = torch.cat([top, sampled.unsqueeze(-1)], -1).movedim(-1, 0)
    weight = torch.cat(
        [torch.ones_like(top_log_prob), torch.where(some, total / p, 0.0).unsqueeze(-1)], -1
    )
    return to, weight.movedim(-1, 0)
