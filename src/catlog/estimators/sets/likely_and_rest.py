"""A law and a few of its points: find likely ones, draw from what is left without them, sum the ones and sample the other."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ...distributions.conditionals import Conditionals, structure
from ...distributions.factors import Factors
from ...distributions.inverse_cdf import as_index, inverse_cdf
from ...estimator import Function, attach
from ...evaluation.evaluate import evaluate
from ...sampling.draw import base_draws, uniforms
from ...tracing import can_inspect
from ..logit_gradients import leave_one_out


@torch.no_grad()
def beam_search(
    law: Factors | Conditionals, count: int, validate: bool = True
) -> tuple[Int64[Tensor, "m *batch d"], Bool[Tensor, "m *batch"]]:
    """Likely points by beam search, best first, and which of them are possible (the others repeat the best).

    They are the most probable ones where the variables are independent, and else what a beam of this width finds.
    """
    q = structure(law)
    points = torch.zeros(
        (1, *q.batch_shape, len(q.cardinalities)), dtype=torch.int64, device=q.device
    )
    score = torch.zeros(points.shape[:-1], dtype=q.real, device=q.device)
    for block, variables in enumerate(q.blocks):
        raw = q.raw_logits(points)[block] if q.incremental else q.conditional(points, block)
        log_probs = q.block_log_probs(raw, block, points.shape[:-1], validate)
        k = log_probs.shape[-1]
        origin = (
            torch.arange(len(points), device=q.device)
            .view(-1, *[1] * len(q.batch_shape))
            .expand(score.shape)
        )
        steps = []
        for position in range(len(variables)):
            local = log_probs[..., position, :].gather(
                0, origin.unsqueeze(-1).expand(*origin.shape, k)
            )
            total = (score.unsqueeze(-1) + local).movedim(-1, 1).flatten(0, 1)
            score, best = total.topk(min(count, len(total)), 0)
            parent = torch.where(score > -torch.inf, best, best[:1])
            steps.append((parent // k, parent % k))
            origin = origin.gather(0, parent // k)
        points = points.gather(0, origin.unsqueeze(-1).expand(*origin.shape, points.shape[-1]))
        at = (
            torch.arange(len(points), device=q.device)
            .view(-1, *[1] * len(q.batch_shape))
            .expand(score.shape)
        )
        chosen = []
        for parent, category in reversed(steps):
            chosen.append(category.gather(0, at))
            at = parent.gather(0, at)
        points[..., as_index(variables)] = torch.stack(chosen[::-1], -1)
    return points, score > -torch.inf


@torch.no_grad()
def remaining_probability(
    law: Factors | Conditionals,
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"] | None = None,
    validate: bool = True,
) -> Float[Tensor, "m *batch depths"]:
    """The probability that a draw is no valid member (None: all), given that its first i variables are those of a member.

    Variables are counted in drawing order, i = 0 ... d. Probabilities of what lies outside are added up, and none is taken from
    1, so that little is known as well as much. A member that is not valid gets no meaningful number.
    """
    q = structure(law)
    order = [i for block in q.blocks for i in block]
    probs = q.log_conditionals(members, validate).exp()
    here = torch.ones_like(members[..., 0], dtype=torch.bool) if valid is None else valid
    here = here.unsqueeze(0).expand(len(members), *here.shape)
    agree, shared = (
        here.long(),
        here,
    )  # one more than the number of variables that two members share, 0 for an invalid one
    for i in order:
        shared = shared & (members[..., i].unsqueeze(1) == members[..., i])
        agree = agree + shared
    left = [torch.zeros_like(probs[..., 0, 0])]
    for depth in reversed(range(len(order))):
        p, to = probs[..., order[depth], :], members[..., order[depth]].expand(agree.shape)
        left.append((p * _kept(p, to, agree > depth, left[-1].expand(agree.shape))).sum(-1))
    return torch.stack(left[::-1], -1)


def _kept(p: Tensor, to: Tensor, behind: Tensor, left: Tensor) -> Float[Tensor, "n *batch k"]:
    """What is left of every category: ``left`` of the members that lie behind it, all of it where none does."""
    value = torch.where(behind, left, 1.0)
    return torch.ones_like(p).scatter_reduce(-1, to.movedim(1, -1), value.movedim(1, -1), "amin")


def probability_outside(
    left: Float[Tensor, "m *batch depths"], valid: Bool[Tensor, "m *batch"] | None = None
) -> Float[Tensor, "*batch"]:
    """The probability of being no valid member, from what :func:`left_behind` gives."""
    whole = left[..., 0]
    return (whole if valid is None else torch.where(valid, whole, 1.0)).amin(0)


@torch.no_grad()
def sample_outside(
    law: Factors | Conditionals,
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"] | None,
    u: Float[Tensor, "n *batch d"],
    validate: bool = True,
    left: Float[Tensor, "m *batch depths"] | None = None,
) -> Int64[Tensor, "n *batch d"]:
    r"""Draws of :math:`q(x) / (1 - q(S))` outside S, the valid members (None: all), by one ancestral pass without rejection.

    A category keeps its conditional probability times what is left behind it (``left``, where :func:`left_behind` has been
    called already). Where nothing is left a member is drawn.
    """
    q = structure(law)
    left = remaining_probability(law, members, valid, validate) if left is None else left
    here = torch.ones_like(left[..., 0], dtype=torch.bool) if valid is None else valid
    alive = here.unsqueeze(0).expand(len(u), *here.shape)
    x = torch.zeros_like(u + left[0, ..., :1], dtype=torch.int64)  # mapped where u or q is
    state = q.start(u.shape[:-1]) if q.incremental else None
    previous, depth = None, 0
    for block, variables in enumerate(q.blocks):
        raw, state = q.next_logits(block, x, state, previous)
        probs = q.block_log_probs(raw, block, u.shape[:-1], validate).exp()
        for position, i in enumerate(variables):
            p, to, depth = probs[..., position, :], members[..., i].expand(alive.shape), depth + 1
            rest = p * _kept(p, to, alive, left[..., depth].expand(alive.shape))
            rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
            x[..., i] = inverse_cdf(rest, u[..., i] * rest.sum(-1))
            alive = alive & (x[..., i].unsqueeze(1) == to)
        previous = x[..., variables[0]]
    return x


def is_member(
    x: Int64[Tensor, "n *batch d"],
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"],
) -> Bool[Tensor, "n *batch"]:
    """Whether x is one of the valid members."""
    return ((x.unsqueeze(1) == members).all(-1) & valid).any(1)


def is_first_occurrence(index: Int64[Tensor, "n *batch d"]) -> Bool[Tensor, "n *batch"]:
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
    left = remaining_probability(law, members, valid, validate)
    remaining = probability_outside(left, valid)
    if x is None:
        u = uniforms(
            samples,
            (*law.batch_shape, law.d),
            dtype=law.real,
            device=law.device,
            generator=generator,
        )
        drawn = sample_outside(law, members, valid, u, validate, left)
    else:
        drawn = law.index(base_draws(law, x, samples, generator=generator, validate=validate))
    n = len(drawn)
    log_prob = law.log_prob(torch.cat([members, drawn]))
    mass = torch.where(valid, log_prob[:m].exp(), 0.0)
    total = mass.detach().sum(0)
    inside = is_member(drawn, members, valid)
    if x is not None and can_inspect(validate, x) and bool((inside & (remaining > 0)).any()):
        bad = tuple((inside & (remaining > 0)).nonzero()[0].tolist())
        raise ValueError(
            f"x holds a point that is summed already: {drawn[bad].tolist()} at index {bad}. Give draws from the rest of q, or "
            "none."
        )
    weight = torch.where(total > 0, total.clamp(min=least, max=1.0), 0.0)
    mass = mass * (weight / total.clamp(min=torch.finfo(total.dtype).tiny))
    remaining = torch.where((total > 0) & (total < least), 1 - least, remaining)
    rest = torch.where(inside, 0.0, remaining) / n

    values = evaluate(f, law.point(torch.cat([members, drawn])), law, validate=validate)
    mean = (torch.cat([mass.detach(), rest]) * values).sum(0)
    fm, fx = values[:m].detach(), values[m:].detach()
    summed = (mass.detach() * fm).sum(0)
    if n > 1:  # a baseline for each draw from the others
        baseline = summed + remaining * leave_one_out(fx)
    else:
        baseline = (summed / weight.clamp(min=torch.finfo(total.dtype).tiny)).unsqueeze(0)
    change = (mass * (fm - baseline.mean(0))).sum(0) + (rest * (fx - baseline) * log_prob[m:]).sum(
        0
    )
    return attach(mean, mean + change), values.detach(), drawn
