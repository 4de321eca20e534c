"""SlopeCateR's gradient: computed in the backward pass, from the derivatives that arrive there."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...distributions.factors import Factors
from ...estimator import Kind
from ...evaluation.evaluate import check_finite
from ...evaluation.learning import write
from ..logit_gradients import finite_log_probs
from ..relaxations.reinmax import times_jacobian
from ..relaxations.relaxation import straight_through, to_point, weighted_log_odds
from .corrections import add_at
from .slope_predictions import make_predictions
from .slope_statistics import fit_updates, scale_updates


class Choice(NamedTuple):
    """The corrections of a call.

    Attributes:
        variable: the variables that are corrected.
        other: the categories that they change to; None: all others.
        weight: one over how often each of them is corrected in expectation.
        undecided: the gradient scale of all variables.
    """

    variable: Int64[Tensor, "m *batch"]
    other: Int64[Tensor, "m *batch"] | None
    weight: Float[Tensor, "m *batch 1"]
    undecided: Float[Tensor, "*batch d"]


def predicted_points(
    law: Factors,
    x: Float[Tensor, "n *batch_event"],
    alpha: Float[Tensor, "*batch_or_1"],
    beta: Float[Tensor, "*batch_or_1"],
) -> Float[Tensor, "n *batch_event"]:
    r"""Return the draws x, with a derivative that has SlopeCateR's prediction: all that a call
    without corrections needs.

    In the logits it is the symmetric matrix :math:`(\alpha - \tfrac\beta2) J(p) + \tfrac\beta2
    (x - p) (x - p)^\top`, where J(p) is the derivative of the probabilities. For a bit, whose
    point is one number, it is :math:`\alpha p (1 - p) + \beta (\tfrac12 - p) (x - p)`.
    """
    p, alpha, beta = law.probs.detach(), alpha.unsqueeze(-1), beta.unsqueeze(-1)
    flat = law.flat(x.detach()).to(law.real)
    if law.kind == Kind.BITS:
        one = p[..., 1]
        weight = alpha * (one * (1 - one)) + beta * (0.5 - one) * (flat - one)
        mean = weighted_log_odds(law, weight)
    else:
        logits, above = finite_log_probs(law), flat - p
        squared = above * (above * logits).sum(-1, keepdim=True)
        half = beta.unsqueeze(-1) / 2
        mean = (alpha.unsqueeze(-1) - half) * times_jacobian(p, logits) + half * squared
    return straight_through(law, x, to_point(law, mean))


class Plan(NamedTuple):
    """What the backward pass needs to know of a call.

    Attributes:
        x: the draws.
        probs: the probabilities.
        variable, other, weight, undecided: the :class:`Choice` of corrections.
        shares: the weights of all points in the value.
        coefficients: alpha and beta, the same for all batch elements or for each of them.
    """

    x: Float[Tensor, "n *event"]
    probs: Float[Tensor, "*batch d k"]
    variable: Int64[Tensor, "m *batch"]
    other: Int64[Tensor, "m *batch"] | None
    weight: Float[Tensor, "m *batch 1"]
    undecided: Float[Tensor, "*batch d"]
    shares: Float[Tensor, "rows *batch"]
    coefficients: Float[Tensor, "2 *batch_or_1"]


TENSORS = len(Plan._fields)


class SlopePoints(torch.autograd.Function):
    """The points at which f is evaluated, as a function of log p that has SlopeCateR's gradient.

    ``apply(log_p, corrected_points, rate, validate, *plan, *buffers)`` returns the draws with the
    corrected points after them, and zeros ``marks`` ``[m, *batch, width]``. The estimate is the
    mean of f at the points by their shares, plus ``marks`` times the exact gradients of the
    corrected variables. So the backward pass brings the slopes of f, times the shares, and the
    exact gradients, both times the gradient of the loss in the estimate. One backward pass through
    f thus serves f's parameters and log p. With ``rate`` > 0, ``buffers`` are what
    :class:`Coefficients` and :class:`SlopeScales` have learned; they learn from this call, too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        log_p: Tensor, corrected_points: Tensor, rate: float, validate: bool, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        plan = Plan(*tensors[:TENSORS])
        width = 1 if plan.x.dim() == log_p.dim() else log_p.shape[-1]
        marks = plan.weight.new_zeros((*plan.weight.shape[:-1], width))
        return torch.cat([plan.x, corrected_points]), marks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, ctx.rate, ctx.validate, *tensors = inputs
        ctx.save_for_backward(*tensors[:TENSORS])
        ctx.buffers = tensors[TENSORS:]

    @staticmethod
    def backward(
        ctx: Any, by_point: Tensor, exact: Float[Tensor, "m *batch width"]
    ) -> tuple[Tensor | None, ...]:
        plan = Plan(*ctx.saved_tensors)
        n, is_bits = len(plan.x), plan.x.dim() == plan.probs.dim()
        shares = plan.shares.reshape(*plan.shares.shape, *[1] * (2 - is_bits))
        by_point = by_point.to(shares.dtype)
        slopes = torch.where(shares > 0, by_point / shares, 0.0)
        check_finite(slopes, "f's derivative in x must have", ctx.validate)
        predictions = make_predictions(plan.x, plan.probs, plan.variable, plan.other)
        (straight, curved), noise = predictions.predicted(slopes)
        straight, curved = straight * plan.weight, curved * plan.weight
        alpha, beta = plan.coefficients.unbind()
        first, second = predictions.first_and_second_order(slopes[:n])
        residual = exact - alpha.unsqueeze(-1) * straight - beta.unsqueeze(-1) * curved
        predicted = alpha[..., None, None] * first + beta[..., None, None] * second
        gradient = add_at(predicted, plan.variable, residual)
        if ctx.rate > 0:
            gram, excess, size2, spread2 = ctx.buffers
            terms, scale = (exact, straight, curved), plan.weight.squeeze(-1) / n
            sizes = [
                (size2, predictions.size2(slopes[:n])),
                (spread2, plan.undecided.square()),
            ]
            write(
                fit_updates(gram, excess, terms, noise, scale, ctx.rate)
                + scale_updates(sizes, ctx.rate)
            )
        rest = [None] * (3 + TENSORS + len(ctx.buffers))
        return predictions.in_log_probs(gradient), *rest
