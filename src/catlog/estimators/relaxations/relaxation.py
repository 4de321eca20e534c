"""Relaxed points: the continuous draw behind a discrete one, and straight-through derivatives."""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_choice, check_randomness
from ...distributions.factors import Factors, bits_only, factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function, Kind, once
from ...evaluation.evaluate import evaluate, evaluate_through
from ...sampling.draw import DRAWS, Draws, base_draws
from ...sampling.gumbel import gumbels_given_argmax
from ..logit_gradients import finite_log_probs, score_in_logits, to_logit_gradient

IMPOSSIBLE = -1e30  # z of an impossible category: finite, so that 0 times it is 0


class RelaxedDraws(NamedTuple):
    r"""Draws of q, each with the continuous :math:`z = \log p + g`, g Gumbel, whose argmax it is.

    With arrival times :math:`t = e^{-z}`, independent and exponential with rates p, the draw x is
    the first to arrive. Given x and its time T, the others come at :math:`t_k = T + e_k / p_k`,
    :math:`e_k` standard exponential; neither T nor e depend on p. So
    :math:`\partial z_k = \partial \log p_k`. Given x it is :math:`(1 - T/t_k)\, \partial \log p_k`,
    and 0 for k = x. The difference of the two has the weight :math:`T/t_k = e^{z_k - \max z}`.

    Attributes:
        fx: f at the draws.
        score: the score of the draws in the logits, a constant.
        z: the continuous draws.
        weight: of :math:`\partial \log p_k` in the derivative of :math:`z_k` less that derivative
            given the draw.
    """

    fx: Float[Tensor, "n *batch"]
    score: Float[Tensor, "n *batch d k"]
    z: Float[Tensor, "n *batch d k"]
    weight: Float[Tensor, "n *batch d k"]

    def gradient(
        self, law: Factors, control: Float[Tensor, "n *batch"], slope: Tensor | None
    ) -> Float[Tensor, "*batch d k"]:
        """Return the gradient in the logits; ``slope`` is the derivative of ``control`` in z."""
        gradient = (self.fx.detach().to(law.real) - control)[..., None, None] * self.score
        if slope is not None:
            gradient = gradient + to_logit_gradient(law, slope * self.weight)
        return gradient.mean(0)


def relaxed_draws(
    f: Function,
    law: Factors,
    x: Tensor | None,
    samples: int,
    noise: Tensor | None,
    generator: torch.Generator | None,
) -> RelaxedDraws:
    """Draw points, evaluate f there, and draw the z behind each point from ``noise``."""
    x = base_draws(law, x, samples, generator=generator)
    fx = evaluate(f, x, law)
    index = law.index(x)
    score = score_in_logits(law, index)[1]
    z = gumbels_given_argmax(law, index, noise, (), generator).clamp(min=IMPOSSIBLE)
    return RelaxedDraws(fx, score, z, (z - z.amax(-1, keepdim=True)).exp())


def relaxed(law: Factors, z: Float[Tensor, "n *batch d k"], temperature: Tensor | float) -> Tensor:
    """Return softmax(z / temperature) as points; impossible categories have 0."""
    is_impossible = z < IMPOSSIBLE / 2
    scaled = z.masked_fill(is_impossible, 0.0) / temperature
    return to_point(law, scaled.masked_fill(is_impossible, -torch.inf).softmax(-1))


def to_point(law: Factors, table: Float[Tensor, "*lead d k"]) -> Tensor:
    """Return a number per category as a point ``[*lead, *event]``; a bit has that of category 1."""
    return law.shaped(table[..., 1] if law.kind == Kind.BITS else table)


def drawn_categories(law: Factors, x: Tensor) -> Float[Tensor, "n *batch d k"]:
    """Return for points x of bits or one-hot vectors 1 for the categories drawn, else 0."""
    flat = law.flat(x).to(law.real)
    return torch.stack([1 - flat, flat], -1) if law.kind == Kind.BITS else flat


def weighted_log_odds(
    law: Factors, weight: Float[Tensor, "n *batch d"]
) -> Float[Tensor, "n *batch d 2"]:
    """Return a mean of bits: a constant weight times the log-odds, for either category."""
    logits = finite_log_probs(law)
    mean = weight * (logits[..., 1] - logits[..., 0])
    return mean.unsqueeze(-1).expand(*mean.shape, 2)  # a point of bits has that of category 1


def is_learned(temperature: float | Tensor) -> bool:
    """Return whether the estimate is differentiated in the temperature, too."""
    return isinstance(temperature, Tensor) and temperature.requires_grad


def straight_through(law: Factors, x: Tensor, mean: Tensor) -> Float[Tensor, "n *batch_event"]:
    """Return the points x exactly, with the derivative of ``mean``."""
    return x + (mean - mean.detach()).to(law.dtype)


def mean_through(
    f: Function, law: Factors, points: Float[Tensor, "n *batch_event"]
) -> Float[Tensor, "*batch"]:
    """Return the mean of f at the points, differentiated through them once."""
    return once(evaluate_through(f, points, law).mean(0))


class MeanThroughDraws(FromDraws):
    """The mean of f at draws of independent variables, differentiated through the draws.

    A subclass adds ``mean`` or, if its draws are not those of q, replaces ``points``.
    """

    draws: Draws = "independent"

    unbiased = False
    supports = RELAXABLE
    differentiates_f = True
    for_categories: ClassVar[str] = ""  # a method of bits: what to use for categories

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "draws", self.draws, DRAWS)

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        check_randomness(self, x=x, noise=noise)
        law = factors(q, outputs=outputs, validate=self.validate)
        if self.for_categories:
            bits_only(q, law, type(self).__name__, self.for_categories)
        relaxable(q, law, type(self).__name__)
        points = self.points(law, x=x, noise=noise, generator=generator)
        return mean_through(f, law, points)

    def points(
        self,
        law: Factors,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *batch_event"]:
        """Return draws with this estimator's derivative, ``[n, *batch, *event]``."""
        x = base_draws(law, x, self.samples, self.draws, generator=generator)
        return straight_through(law, x, to_point(law, self.mean(law, x, noise, generator)))

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        """Return what is differentiated in place of the draws x, a number per category."""
        raise NotImplementedError
