"""REINFORCE with a leave-one-out baseline."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function, likelihood_ratio, tie
from ...evaluation.evaluate import evaluate
from ...sampling.draw import draws_for
from ..logit_gradients import differentiable_log_prob, leave_one_out


@dataclass(frozen=True, repr=False)
class RLOO(FromDraws):
    r"""REINFORCE whose baseline for each draw is the mean of the other draws.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)})
        + \frac{1}{N-1} \sum_n \bigl(f(x^{(n)}) - \overline{f}\bigr)\, \partial \log q(x^{(n)})

    It is unbiased, needs no tuning, and is hard to beat with a budget of only a few evaluations.
    Its second derivatives are also unbiased.

    VarGrad is RLOO on an ELBO: for :math:`f = \log q - \log p` the second sum is the derivative of
    half the sample variance of f (with the factor :math:`1/(N-1)`), with the draws held fixed. The
    first sum is then the mean score, whose expectation is zero. Write ``q.log_prob(x).detach()``
    inside f to leave it out; the gradient in the parameters of p remains.

    Cost: ``samples`` evaluations. Needs: any f; at least two draws.
    Reference: Salimans and Knowles, "On using control variates with stochastic approximation for
    variational Bayes", 2014; Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!",
    2019; Richter et al., "VarGrad: A low-variance gradient estimator for variational inference",
    2020.

    Args:
        samples: number of draws N, at least 2.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> RLOO(samples=2)(lambda x: x[..., 0], q, x=torch.eye(2)).backward()
    >>> logits.grad
    tensor([ 0.5000, -0.5000])
    """

    samples: int = 2
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."
    reference = "Salimans & Knowles 2014; Kool et al. 2019"

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
        fx = evaluate(f, x, law)
        baseline = leave_one_out(fx.detach())
        ratio = likelihood_ratio(differentiable_log_prob(law, x))
        return tie(fx.mean(0), ((fx - baseline) * ratio + baseline).mean(0))
