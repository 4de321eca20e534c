"""A law and a few of its points: find likely ones, draw from what is left without them, sum the ones and sample the other."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .checks import may_look
from .conditionals import Conditionals, structure
from .draw import base_draws, uniforms
from .evaluate import evaluate
from .factors import Factors
from .logits import leave_one_out
from .structured import choose, span
from .surrogate import Function, attach


@torch.no_grad()
def likeliest(
    law: Factors | Conditionals, count: int, validate: bool = True
) -> tuple[Int64[Tensor, "m *batch d"], Bool[Tensor, "m *batch"]]:
    """Likely points by beam search, best first, and which of them are possible (the others repeat the best).

    They are the most probable ones where the variables are independent, and else what a beam of this width finds.
    """
    q = structure(law)
    points = torch.zeros((1, *q.batch_shape, len(q.cardinalities)), dtype=torch.int64, device=q.device)
    score = torch.zeros(points.shape[:-1], dtype=q.real, device=q.device)
    for block, variables in enumerate(q.blocks):
        raw = q.raw_logits(points)[block] if q.incremental else q.conditional(points, block)
        log_probs = q.block_log_probs(raw, block, points.shape[:-1], validate)
        k = log_probs.shape[-1]
        origin = torch.arange(len(points), device=q.device).view(-1, *[1] * len(q.batch_shape)).expand(score.shape)
        steps = []
        for position in range(len(variables)):
            local = log_probs[..., position, :].gather(0, origin.unsqueeze(-1).expand(*origin.shape, k))
            total = (score.unsqueeze(-1) + local).movedim(-1, 1).flatten(0, 1)
            score, best = total.topk(min(count, len(total)), 0)
            parent = torch.where(score > -torch.inf, best, best[:1])
            steps.append((parent // k, parent % k))
            origin = origin.gather(0, parent // k)
        points = points.gather(0, origin.unsqueeze(-1).expand(*origin.shape, points.shape[-1]))
        at = torch.arange(len(points), device=q.device).view(-1, *[1] * len(q.batch_shape)).expand(score.shape)
        chosen = []
        for parent, category in reversed(steps):
            chosen.append(category.gather(0, at))
            at = parent.gather(0, at)
        points[..., span(variables)] = torch.stack(chosen[::-1], -1)
    return points, score > -torch.inf


@torch.no_grad()
def draw_rest(
    law: Factors | Conditionals,
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"] | None,
    u: Float[Tensor, "n *batch d"],
    validate: bool = True,
) -> Int64[Tensor, "n *batch d"]:
    r"""Draws of :math:`q(x) / (1 - q(S))` outside S, the valid members (None: all), by one ancestral pass without rejection.

    A category keeps its conditional probability less that of the members that lie behind it. Where nothing is left (to
    rounding) a member is drawn.
    """
    q = structure(law)
    own = q.log_conditionals(members, validate).gather(-1, members.unsqueeze(-1)).squeeze(-1).exp()
    behind, tail = torch.ones_like(own), torch.ones_like(own[..., 0])
    for variables in reversed(q.blocks):
        for i in reversed(variables):
            behind[..., i] = tail
            tail = tail * own[..., i]
    alive = (torch.ones_like(tail, dtype=torch.bool) if valid is None else valid).unsqueeze(1).expand(-1, *u.shape[:-1])
    x = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    state = q.start(u.shape[:-1]) if q.incremental else None
    previous = None
    least = torch.finfo(own.dtype).eps * max(1, len(members))
    for block, variables in enumerate(q.blocks):
        raw, state = q.next_logits(block, x, state, previous)
        probs = q.block_log_probs(raw, block, u.shape[:-1], validate).exp()
        for position, i in enumerate(variables):
            p = probs[..., position, :]
            to = members[..., i].unsqueeze(1).expand(alive.shape)
            lost = (alive * behind[..., i].unsqueeze(1)).movedim(0, -1)
            kept = torch.ones_like(p).scatter_add(-1, to.movedim(0, -1), -lost)
            rest = p * torch.where(kept > least, kept, 0.0)
            rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
            x[..., i] = choose(rest, u[..., i] * rest.sum(-1))
            alive = alive & (x[..., i] == to)
        previous = x[..., variables[0]]
    return x


def among(
    x: Int64[Tensor, "n *batch d"], members: Int64[Tensor, "m *batch d"], valid: Bool[Tensor, "m *batch"]
) -> Bool[Tensor, "n *batch"]:
    """Whether x is one of the valid members."""
    return ((x.unsqueeze(1) == members).all(-1) & valid).any(1)


def first_of_its_kind(index: Int64[Tensor, "n *batch d"]) -> Bool[Tensor, "n *batch"]:
    """Whether no earlier row holds the same point."""
    same = (index.unsqueeze(1) == index).all(-1)
    earlier = torch.ones(same.shape[:2], dtype=torch.bool, device=index.device).tril(-1)
    return ~(same & earlier.view(*earlier.shape, *[1] * (same.dim() - 2))).any(1)


def sum_and_sample(
    f: Function,
    law: Factors | Conditionals,
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"],
    samples: int,
    x: Tensor | None,
    *,
    least: float = 0.0,
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "m_n *batch"], Int64[Tensor, "n *batch d"]]:
    """The estimate; f at the members and at the draws from the rest; the draws.

    Members are different points; an invalid one is any possible point and counts nothing. ``least`` is a lower bound on the
    weight of the members (above their probability it makes the estimate biased).
    """
    m = len(members)
    if x is None:
        u = uniforms(samples, (*law.batch_shape, law.d), dtype=law.real, device=law.device, generator=generator)
        drawn = draw_rest(law, members, valid, u, validate)
    else:
        drawn = law.index(base_draws(law, x, samples, validate=validate))
    n = len(drawn)
    log_prob = law.log_prob(torch.cat([members, drawn]))
    mass = torch.where(valid, log_prob[:m].exp(), 0.0)
    total = mass.detach().sum(0)
    inside = among(drawn, members, valid)
    if x is not None and may_look(validate, x) and bool((inside & (1 - total > 1e-6)).any()):
        bad = tuple((inside & (1 - total > 1e-6)).nonzero()[0].tolist())
        raise ValueError(
            f"x holds a point that is summed already: {drawn[bad].tolist()} at index {bad}. Give draws from the rest of q, or "
            "none."
        )
    weight = torch.where(total > 0, total.clamp(min=least, max=1.0), 0.0)
    mass = mass * (weight / total.clamp(min=torch.finfo(total.dtype).tiny))
    rest = torch.where(inside, 0.0, 1 - weight) / n

    values = evaluate(f, law.point(torch.cat([members, drawn])), law, validate=validate)
    mean = (torch.cat([mass.detach(), rest]) * values).sum(0)
    fm, fx = values[:m].detach(), values[m:].detach()
    summed = (mass.detach() * fm).sum(0)
    if n > 1:  # a baseline for each draw from the others
        baseline = summed + (1 - weight) * leave_one_out(fx)
    else:
        baseline = (summed / weight.clamp(min=torch.finfo(total.dtype).tiny)).unsqueeze(0)
    change = (mass * (fm - baseline.mean(0))).sum(0) + (rest * (fx - baseline) * log_prob[m:]).sum(0)
    return attach(mean, mean + change), values.detach(), drawn
