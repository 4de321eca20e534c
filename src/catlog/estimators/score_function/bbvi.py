"""BBVI: REINFORCE with the best baseline for every logit."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ...sampling.draw import draws_for
from ...tracing import full_precision
from ..logit_gradients import score_in_logits


@dataclass(frozen=True, repr=False)
class BBVI(FromDraws):
    r"""REINFORCE with an optimal baseline for every logit, estimated from the other draws.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_{i,k} \bigl(f(x^{(n)}) - a^{(n)}_{ik}\bigr)\,
        s^{(n)}_{ik}\, \partial l_{ik},
        \qquad a^{(n)}_{ik} = \frac{\sum_{m \neq n} f(x^{(m)})\, (s^{(m)}_{ik})^2}{\sum_{m \neq n}
        (s^{(m)}_{ik})^2}

    with logits l and their score :math:`s_{ik} = [x_i = k] - q(k \mid x_{<i})`. The best
    coefficient is :math:`\operatorname{Cov}(f s, s) / \operatorname{Var}(s)`, which is
    :math:`\mathbb{E}[f s^2] / \mathbb{E}[s^2]` because the mean of s is known to be 0. It is
    estimated by a mean over the *other* draws, weighted by :math:`s^2`, so that two draws are
    enough and the estimate is unbiased. Using the same draws in numerator, denominator and
    gradient, as is often done, would cause a bias of order 1/N. With N = 2, and for bits of
    probability 1/2, it is :class:`RLOO`. The mean of a variable's k terms is subtracted, because
    the true gradient adds up to zero.

    The paper also drops the terms of f that do not depend on :math:`x_i`. They are unknown for a
    black-box f, so nothing is dropped here. If f is a sum of local terms, use one expectation for
    each term.

    Cost: ``samples`` evaluations. Needs: any f; at least two draws.
    Reference: Ranganath et al., "Black box variational inference", 2014.

    Args:
        samples: number of draws N, at least 2.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> BBVI(samples=2)(lambda x: x[..., 0], q, x=torch.eye(2)).backward()
    >>> logits.grad
    tensor([ 0.5000, -0.5000])
    """

    samples: int = 4
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."
    reference = "Ranganath et al. 2014"

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = view(q, outputs=outputs, validate=self.validate)
        x = draws_for(self, law, x, generator)
        n = x.shape[0]
        fx = evaluate(f, x, law)
        log_probs, score = score_in_logits(law, law.index(x))
        values = fx.detach()[..., None, None]
        # Sums over the other draws, not the total less one term: weights may differ by many orders
        # of magnitude.
        is_other = 1 - torch.eye(n, dtype=score.dtype, device=score.device)
        weight = score.square() + torch.finfo(score.dtype).tiny  # all zero: the plain mean
        coefficient = _sum_over(is_other, values * weight) / _sum_over(is_other, weight)
        gradient = (values - coefficient) * score
        possible = score != 0
        common = gradient.sum(-1, keepdim=True) / possible.sum(-1, keepdim=True).clamp(min=1)
        gradient = (gradient - common).masked_fill(~possible, 0.0)
        return attach(fx.mean(0), (fx + (gradient * log_probs).sum((-1, -2))).mean(0))


def _sum_over(
    is_other: Float[Tensor, "n n"], terms: Float[Tensor, "n *rest"]
) -> Float[Tensor, "n *rest"]:
    """Return for every draw the sum over the other draws."""
    with full_precision(terms):
        return (is_other.to(terms.dtype) @ terms.flatten(1)).unflatten(1, terms.shape[1:])
