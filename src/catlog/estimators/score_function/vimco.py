"""VIMCO: the multi-sample (importance-weighted) bound."""

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import refuse_outputs
from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ...sampling.draw import draws_for
from ..logit_gradients import differentiable_log_prob, leave_one_out


@dataclass(frozen=True, repr=False)
class VIMCO(FromDraws):
    r"""REINFORCE for the importance-weighted bound, with a leave-one-out baseline for each draw.

    **It does not estimate E[f] but the bound** that N draws give. f returns the *log-weight*
    :math:`\log w(x) = \log p(x, \text{data}) - \log q(x)`, and both value and gradient are unbiased
    for

    .. math::
        \mathcal{L}_N = \mathbb{E}\Bigl[\log \frac1N \sum_n w(x^{(n)})\Bigr] \ge \mathbb{E}[f(x)]

    The value is :math:`\hat L = \log \frac1N \sum_n w_n`, the gradient

    .. math::
        \sum_n \frac{w_n}{\sum_m w_m}\, \partial \log w_n + \bigl(\hat L - \hat L_{-n}\bigr)\,
        \partial \log q(x^{(n)}),
        \qquad \hat L_{-n} = \hat L \text{ with } \log w_n \to \frac{1}{N-1} \sum_{m \ne n} \log w_m

    f may depend on q's parameters, as :math:`\log q` does: the first term differentiates it.
    Maximise the value.

    Cost: ``samples`` evaluations, and N^2 numbers. Needs: any f; at least two draws.
    Reference: Mnih and Rezende, "Variational inference for Monte Carlo objectives", 2016.

    Args:
        samples: number of draws N, at least 2; more of them make the bound tighter.
        validate: check f's values for NaN and inf (eager mode only).

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(2)), 1)
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> VIMCO(samples=2)(lambda x: x.sum(-1).log1p(), q, x=x).exp()
    tensor(2.)
    """

    samples: int = 2
    validate: bool = True

    target = "bound"
    unbiased = True
    supports = ANY
    differentiates_f = False
    many_outputs = False
    least_samples = 2
    too_few = "The bound of one draw is E[f]: use Reinforce."
    reference = "Mnih & Rezende 2016"

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("VIMCO", outputs, "its bound is not linear in f")
        law = view(q, validate=self.validate)
        x = draws_for(self, law, x, generator)
        n = x.shape[0]
        log_w = evaluate(f, x, law)
        value = log_w.logsumexp(0) - log(n)
        constant = log_w.detach()
        substitute = leave_one_out(constant).unsqueeze(1)
        is_same_draw = torch.eye(n, dtype=torch.bool, device=constant.device)
        is_same_draw = is_same_draw.view(n, n, *[1] * (constant.dim() - 1))
        baseline = torch.where(is_same_draw, substitute, constant).logsumexp(1) - log(n)
        score = differentiable_log_prob(law, x)
        return attach(value, value + ((value.detach() - baseline) * score).sum(0))
