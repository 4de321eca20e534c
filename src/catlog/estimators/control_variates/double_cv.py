"""Double control variates."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_module_device, check_number, refuse_outputs
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function, attach
from ...evaluation.evaluate import value_and_slope
from ...sampling.draw import draws_for
from ..logit_gradients import (
    by_category,
    leave_one_out,
    logit_surrogate,
    mean_gradient,
    score_in_logits,
    squared_norm,
)


class DoubleCV(FromDraws, nn.Module):
    r"""RLOO with a linear control variate, from derivatives of f, in the value and the baseline of
    each draw.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \Bigl[h_n - \frac1{N-1} \sum_{m \neq n} h_m\Bigr]\,
        \partial \log q(x^{(n)})
        + \alpha\, \frac1N \sum_n f'(x^{(n)}) \cdot \partial \mu, \qquad
        h_n = f(x^{(n)}) - \alpha\, \overline{f'}_{\neq n} \cdot (x^{(n)} - \mu)

    where :math:`\overline{f'}_{\neq n}` is the mean derivative of f at the *other* draws and
    :math:`\mu = p`. Unbiased for any :math:`\alpha`: given the others, the linear term of draw n
    adds :math:`-\alpha\,\overline{f'}_{\neq n} \cdot \partial\mu`, which is added back (the mean
    over n is :math:`\overline{f'} \cdot \partial \mu`). The linear term of draw m, in the baseline,
    has mean zero given all other draws. :math:`\alpha` is learned; 0 is :class:`RLOO`, 1 is exact
    for linear f. The paper writes it for bits, with the other sign of :math:`\alpha`; for one-hot
    points only :math:`\partial\mu` changes.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q; at least two draws; an optimiser for ``parameters()``.
    Reference: Titsias and Shi, "Double control variates for gradient estimation in discrete latent
    variable models", 2022.

    Args:
        samples: number of draws N, at least 2.
        alpha: initial value of the coefficient.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DoubleCV(alpha=1.0)(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    unbiased = True
    supports = RELAXABLE
    differentiates_f = True
    many_outputs = False
    least_samples = 2
    too_few = "One draw has no others to leave out: use MuProp."
    reference = "Titsias & Shi 2022"

    def __init__(self, samples: int = 2, alpha: float = 0.0, validate: bool = True) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        check_number("DoubleCV", "alpha", alpha)
        self.samples = samples
        self.validate = validate
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("DoubleCV", outputs, "it learns a control variate of one output")
        law = factors(q, validate=self.validate)
        check_module_device(self, law.device)
        relaxable(q, law, "DoubleCV")
        x = draws_for(self, law, x, generator)
        fx, slope = value_and_slope(f, x, law)
        slope = by_category(law, slope)
        score = score_in_logits(law, law.index(x))[1]
        alpha = self.alpha.to(law.real)
        h = fx.detach() - alpha * (leave_one_out(slope) * score).sum((-1, -2))
        advantage = (h - leave_one_out(h))[..., None, None]
        linear = alpha[..., None, None] * mean_gradient(law, slope).mean(0)
        gradient = (advantage * score).mean(0) + linear
        value = fx.mean(0)
        return attach(value, value + logit_surrogate(law, gradient), squared_norm(law, gradient))
