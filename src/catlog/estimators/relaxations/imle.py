"""I-MLE: implicit maximum likelihood with perturb-and-MAP."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_positive, refuse_outputs
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function
from ...evaluation.evaluate import value_and_slope
from ...sampling.draw import draws_for
from ...sampling.gumbel import argmax_shift, gumbels_given_argmax
from ..logit_gradients import by_category, with_logit_gradient


@dataclass(frozen=True, repr=False)
class IMLE(FromDraws):
    r"""The difference between a draw and a second draw with the same noise, made after a gradient
    step on the logits.

    .. math::
        \frac1N \sum_n \frac{x^{(n)} - y^{(n)}}{\lambda} \cdot \partial \text{logits}, \qquad
        x = \arg\max(\text{logits} + g), \quad y = \arg\max\bigl(\text{logits} + g - \lambda\,
        \partial_x f(x)\bigr)

    Each variable has its own argmax over its categories. With Gumbel noise g, used here, x is a
    draw of q and the value is unbiased (the paper's sum-of-Gamma noise is for argmaxes over larger
    sets; for one of k categories it tends to a Gumbel). The gradient is **biased**. For f that is
    linear in each variable given the others, its expectation is
    :math:`\mathbb{E}[\operatorname{softmax}(\text{logits}) -
    \operatorname{softmax}(\text{logits} - \lambda \partial_x f)]`
    over lambda, which tends to the truth as lambda goes to 0, while the variance grows as 1 /
    lambda.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Niepert et al., "Implicit MLE: backpropagating through discrete exponential family
    distributions", 2021.

    Args:
        samples: number of draws N.
        step: lambda > 0.
        validate: check f's values for NaN and inf (eager mode only).

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> IMLE(step=100.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([0.0100, 0.0000])
    """

    samples: int = 1
    step: float = 1.0
    validate: bool = True

    unbiased = False
    supports = RELAXABLE
    differentiates_f = True
    randomness = ("x", "noise")
    many_outputs = False
    reference = "Niepert et al. 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("IMLE", "step", self.step)

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("IMLE", outputs, "its perturbed point depends on the slope of one output")
        law = factors(q, validate=self.validate)
        relaxable(q, law, "IMLE")
        x = draws_for(self, law, x, generator)
        index = law.index(x)
        z = gumbels_given_argmax(law, index, noise, generator=generator)
        fx, slope = value_and_slope(f, x, law)
        shift = argmax_shift(law, index, z, by_category(law, slope), -self.step)
        return with_logit_gradient(fx, law, shift)
