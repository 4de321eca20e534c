"""MuProp: REINFORCE on the residual of a first-order expansion at the mean."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import refuse_outputs
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function
from ...evaluation.evaluate import evaluate, value_and_slope
from ...sampling.draw import draws_for
from ..logit_gradients import by_category, mean_gradient, score_in_logits, with_logit_gradient
from ..relaxations.relaxation import to_point


@dataclass(frozen=True, repr=False)
class MuProp(FromDraws):
    r"""The gradient of f's first-order Taylor expansion at the mean of q, exactly, and REINFORCE on
    the residual.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl[f(x^{(n)}) - f(\mu) - f'(\mu) \cdot (x^{(n)} -
        \mu)\bigr]\,
        \partial \log q(x^{(n)}) + f'(\mu) \cdot \partial \mu, \qquad \mu = p

    Unbiased: the score of a linear function has the expectation :math:`f'(\mu) \cdot \partial \mu`,
    which is added back. It is exact for linear f, and good if f is smooth between the categories.
    It is worse than REINFORCE if the expansion at :math:`\mu` does not predict f at the discrete
    points.

    Cost: ``samples`` + 1 evaluations, one of them with a backward pass. Needs: f differentiable,
    defined between the categories; a Bernoulli or one-hot q.
    Reference: Gu et al., "MuProp: Unbiased backpropagation for stochastic neural networks", 2016.

    Args:
        samples: number of draws N.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> MuProp()(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    validate: bool = True

    unbiased = True
    supports = RELAXABLE
    differentiates_f = True
    many_outputs = False
    reference = "Gu et al. 2016"

    def evaluations(self, q: Distribution) -> int:
        return self.samples + 1

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("MuProp", outputs, "it needs the slopes of every output")
        law = factors(q, validate=self.validate)
        relaxable(q, law, "MuProp")
        x = draws_for(self, law, x, generator)
        fx = evaluate(f, x, law)
        mean = to_point(law, law.probs.detach()).to(law.dtype).unsqueeze(0)
        at_mean, slope = value_and_slope(f, mean, law)
        slope = by_category(law, slope)
        score = score_in_logits(law, law.index(x))[1]
        residual = (fx - at_mean).detach() - (slope * score).sum((-1, -2))
        linear = mean_gradient(law, slope).squeeze(0)
        gradient = (residual[..., None, None] * score).mean(0) + linear
        return with_logit_gradient(fx, law, gradient)
