"""Estimates written in the logits: the score of every draw, gradients of the mean, a gradient's length, and its surrogate."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..distributions.conditionals import Conditionals
from ..distributions.factors import Factors
from ..estimator import Kind


def score_in_logits(
    law: Factors | Conditionals, index: Int64[Tensor, "n *batch d"]
) -> tuple[Float[Tensor, "m *batch d k"], Float[Tensor, "n *batch d k"]]:
    """log q(x_i = k | x_<i), and the score in the logits of these, 1[x_i = k] - q(k | x_<i).

    The first has autograd, is 0 where k is impossible, and has one row (m = 1) where it is the same for all draws; the second
    has no autograd. A Bernoulli variable has two categories like any other.
    """
    table = (
        law.log_conditionals(index) if isinstance(law, Conditionals) else law.log_probs.unsqueeze(0)
    )
    known = table.detach()
    drawn = index.unsqueeze(-1) == torch.arange(law.k, device=index.device)
    return table.masked_fill(known == -torch.inf, 0.0), drawn.to(known.dtype) - known.exp()


def by_category(law: Factors, slope: Tensor) -> Float[Tensor, "n *batch d k"]:
    """The derivative of f in a point, per category: that of the one-hot point where x holds bits."""
    flat = law.flat(slope).to(law.real)
    return torch.stack([torch.zeros_like(flat), flat], -1) if law.kind == Kind.BITS else flat


def to_logit_gradient(
    law: Factors, gradient: Float[Tensor, "n *batch d k"]
) -> Float[Tensor, "n *batch d k"]:
    """A gradient in the log-probabilities, as one in the logits that they are made from."""
    return gradient - law.probs.detach() * gradient.sum(-1, keepdim=True)


def mean_gradient(
    law: Factors, slope: Float[Tensor, "n *batch d k"]
) -> Float[Tensor, "n *batch d k"]:
    """The gradient of slope . p in the logits, slope held fixed."""
    return to_logit_gradient(law, slope * law.probs.detach())


def leave_one_out(terms: Float[Tensor, "n *rest"]) -> Float[Tensor, "n *rest"]:
    """For every draw the mean over the other draws."""
    return (terms.sum(0) - terms) / (terms.shape[0] - 1)


def squared_norm(
    law: Factors | Conditionals, gradient: Float[Tensor, "*lead d k"]
) -> Float[Tensor, "*lead"]:
    """The squared norm of a gradient in the logits; a Bernoulli variable has one logit."""
    return (gradient[..., 1:] if law.kind == Kind.BITS else gradient).square().sum((-1, -2))


def finite_log_probs(law: Factors) -> Float[Tensor, "*batch d k"]:
    """log p, with 0 (and no gradient) in place of -inf for impossible categories: safe to multiply."""
    return torch.where(law.possible, law.log_probs, 0.0)


def logit_surrogate(law: Factors, slope: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch"]:
    """A surrogate whose derivative in logit k of variable i is ``slope[i, k]``, for laws given by logits or by probabilities.

    It is sum_k slope_k log p_k: where the slopes of a variable add up to zero, the normaliser drops out. Impossible categories
    get nothing, and the others are centred again.
    """
    possible = law.possible
    slope = slope.detach().masked_fill(~possible, 0.0)
    slope = slope - possible * (slope.sum(-1, keepdim=True) / possible.sum(-1, keepdim=True))
    return (slope * finite_log_probs(law)).sum((-1, -2))
