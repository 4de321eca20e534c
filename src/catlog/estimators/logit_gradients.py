"""Gradients in the logits of q: scores of draws, gradients of means, norms and surrogates."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..distributions.conditionals import Conditionals
from ..distributions.factors import Factors
from ..estimator import Kind, attach


def score_in_logits(
    law: Factors | Conditionals, index: Int64[Tensor, "n *batch d"]
) -> tuple[Float[Tensor, "m *batch d k"], Float[Tensor, "n *batch d k"]]:
    """Return log q(x_i = k | x_<i) and the score in its logits, 1[x_i = k] - q(k | x_<i).

    The log-probabilities are differentiable and 0 where k is impossible. For independent variables
    they have one row (m = 1), which all draws share. The score is a constant. A Bernoulli variable
    has two categories like any other.
    """
    table = (
        law.log_conditionals(index) if isinstance(law, Conditionals) else law.log_probs.unsqueeze(0)
    )
    constant = table.detach()
    score = is_drawn(law, index).to(constant.dtype) - constant.exp()
    return table.masked_fill(constant == -torch.inf, 0.0), score


def is_drawn(
    law: Factors | Conditionals, index: Int64[Tensor, "n *batch d"]
) -> Bool[Tensor, "n *batch d k"]:
    """Return for every category whether it is the one drawn; unlike one_hot, vmap maps it."""
    return index.unsqueeze(-1) == torch.arange(law.k, device=index.device)


def differentiable_log_prob(law: Factors | Conditionals, x: Tensor) -> Float[Tensor, "n *batch"]:
    """Return log q(x) for the sake of its derivatives, of any order.

    For bits it is sum_i x_i (log p_i(1) - log p_i(0)) + log p_i(0). A product is many times faster
    than the choice between two numbers of ``log_prob``, but more is rounded.
    """
    if isinstance(law, Conditionals) or law.kind != Kind.BITS:
        return law.log_prob(law.index(x))
    zero, one = finite_log_probs(law).unbind(-1)
    return (law.flat(x.detach()).to(law.real) * (one - zero)).sum(-1) + zero.sum(-1)


def by_category(law: Factors, slope: Tensor) -> Float[Tensor, "n *batch d k"]:
    """Return the derivative of f in a point, per category; category 0 of a bit has 0."""
    flat = law.flat(slope).to(law.real)
    return torch.stack([torch.zeros_like(flat), flat], -1) if law.kind == Kind.BITS else flat


def to_logit_gradient(
    law: Factors, gradient: Float[Tensor, "n *batch d k"]
) -> Float[Tensor, "n *batch d k"]:
    """Return the gradient in the logits for a gradient in the log-probabilities."""
    return gradient - law.probs.detach() * gradient.sum(-1, keepdim=True)


def mean_gradient(
    law: Factors, slope: Float[Tensor, "n *batch d k"]
) -> Float[Tensor, "n *batch d k"]:
    """Return the gradient of slope . p in the logits, with the slope held fixed."""
    return to_logit_gradient(law, slope * law.probs.detach())


def leave_one_out(terms: Float[Tensor, "n *rest"]) -> Float[Tensor, "n *rest"]:
    """Return for every draw the mean over the other draws."""
    return (terms.sum(0) - terms) / (terms.shape[0] - 1)


def squared_norm(
    law: Factors | Conditionals, gradient: Float[Tensor, "*lead d k"]
) -> Float[Tensor, "*lead"]:
    """Return the squared norm of a gradient in the logits. A Bernoulli variable has one logit."""
    return (gradient[..., 1:] if law.kind == Kind.BITS else gradient).square().sum((-1, -2))


def finite_log_probs(law: Factors) -> Float[Tensor, "*batch d k"]:
    """Return log p, with 0 (and no gradient) instead of -inf for impossible categories."""
    return torch.where(law.possible, law.log_probs, 0.0)


def with_logit_gradient(
    fx: Float[Tensor, "n *batch"],
    law: Factors,
    gradient: Float[Tensor, "*batch d k"],
    objective: Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Return the mean of f's values, with this gradient in the logits of q and the gradient of f.

    The surrogate is sum_k g_k log p_k, so q may be given by logits or by probabilities. Where the
    gradient of a variable adds up to zero, the normaliser drops out. Impossible categories get no
    gradient, and that of the others is centred again. ``objective``: as for ``attach``.
    """
    value = fx.mean(0)
    centred_gradient = centred(gradient.detach(), law.possible)
    surrogate = (centred_gradient * finite_log_probs(law)).sum((-1, -2))
    return attach(value, value + surrogate, objective)


def centred(
    slope: Float[Tensor, "*lead d k"], possible: Bool[Tensor, "*#lead d k"]
) -> Float[Tensor, "*lead d k"]:
    """Return the slopes with 0 for impossible categories, and a sum of 0 over the others."""
    slope = slope.masked_fill(~possible, 0.0)
    return slope - possible * (slope.sum(-1, keepdim=True) / possible.sum(-1, keepdim=True))
