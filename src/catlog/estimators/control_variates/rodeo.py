"""RODEO: control variates from a discrete Stein operator."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_module_device, check_network, check_number, refuse_outputs
from ...distributions.factors import bits_only, factors
from ...estimator import BITS, FromDraws, Function
from ...evaluation.evaluate import value_and_slope
from ...evaluation.networks import call_network
from ...sampling.draw import draws_for
from ..logit_gradients import leave_one_out, squared_norm, with_logit_gradient


class RODEO(FromDraws, nn.Module):
    r"""RLOO with two control variates of mean zero, made by a Stein operator from values and
    derivatives of f.

    .. math::
        \frac1N \sum_n \partial f(x_n) + \Bigl[f(x_n) - \frac1{N-1} \sum_{m \neq n} \bigl(f(x_m) +
        \alpha\, A h_m(x_m)\bigr)
        \Bigr]\, s(x_n)\, \partial l + \beta\, A(\tilde h_n s)(x_n)\, \partial l

    with the logits l, the score :math:`s(x) = x - p`, and the Stein operator of the Gibbs sampler,
    :math:`A h(x) = \sum_i \mathbb{E}_{y_i \sim q_i}[h(x_{\neq i}, y_i)] - h(x) =
    \sum_i q_i(1 - x_i)\,[h(x^i) - h(x)]`,
    where :math:`x^i` is x with bit i flipped. A has mean zero under q for *any* h, and
    :math:`h_n, \tilde h_n` are made from the other draws only, so the estimate is unbiased. For the
    second term, per logit,

    .. math:: A(\tilde h s_j)(x) = s_j(x)\,\bigl[A\tilde h(x) - \tilde h(x^j)\bigr].

    h must be cheap at all neighbours. From the values and derivatives of f at the other draws it is
    :math:`h_n(y) = \frac1{N-1} \sum_{m \neq n} H\bigl(f(x_m),\, f'(x_m) \cdot (y - x_m)\bigr)`,
    where H is the network or, without one, its second argument. f is not evaluated again. (The
    paper has :math:`A / d`; here :math:`\alpha, \beta` hold the d.)

    Cost: ``samples`` evaluations, forward and backward; N d numbers without a network, and with one
    :math:`N (N - 1) (d + 1)` evaluations of it, in memory at once. Needs: f differentiable; a
    Bernoulli q; at least two draws; an optimiser for ``parameters()``.
    Reference: Shi et al., "Gradient estimation with discrete Stein operators", 2022.

    Args:
        samples: number of draws N, at least 2.
        alpha: initial value of the baseline's coefficient; with both 0 it is :class:`RLOO`.
        beta: initial value of the gradient's coefficient.
        network: H, from pairs ``[..., 2]`` to pairs ``[..., 2]``: h and the other h, that of the
            gradient; None: the second argument for both.
        validate: check f's values for NaN and inf (eager mode only).

    >>> E = RODEO(samples=2, network=nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> E.alpha.grad is not None, E.beta.grad is not None
    (True, True)
    """

    unbiased = True
    supports = BITS
    differentiates_f = True
    many_outputs = False
    least_samples = 2
    too_few = "One draw has no others to leave out: use MuProp."
    reference = "Shi et al. 2022"

    def __init__(
        self,
        samples: int = 2,
        alpha: float = 0.0,
        beta: float = 0.0,
        network: nn.Module | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        check_number("RODEO", "alpha", alpha)
        check_number("RODEO", "beta", beta)
        check_network("RODEO", network)
        self.samples = samples
        self.network = network
        self.validate = validate
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.beta = nn.Parameter(torch.tensor(float(beta)))

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("RODEO", outputs, "it learns a control variate of one output")
        law = factors(q, validate=self.validate)
        check_module_device(self, law.device)
        bits_only(q, law, "RODEO", "DoubleCV (with one-hot points) or RLOO")
        x = draws_for(self, law, x, generator)
        fx, slope = value_and_slope(f, x, law)
        bits = law.flat(x).to(law.real)
        score = bits - law.probs.detach()[..., 1]
        values = fx.detach().to(law.real)
        at_x, flipped = self._surrogates(bits, values, law.flat(slope).to(law.real))
        flip_probability = score.abs()  # |x - p|
        stein = (flip_probability * (flipped - at_x)).sum(-1)
        alpha, beta = self.alpha.to(law.real), self.beta.to(law.real)
        signal = values - leave_one_out(values + alpha * stein[0])
        gradient = (
            score * (signal.unsqueeze(-1) + beta * (stein[-1].unsqueeze(-1) - flipped[-1]))
        ).mean(0)
        gradient = torch.stack([-gradient, gradient], -1)
        return with_logit_gradient(fx, law, gradient, squared_norm(law, gradient))

    def _surrogates(
        self,
        x: Float[Tensor, "n *batch d"],
        fx: Float[Tensor, "n *batch"],
        slope: Float[Tensor, "n *batch d"],
    ) -> tuple[Float[Tensor, "h n *batch 1"], Float[Tensor, "h n *batch d"]]:
        """Return both h_n (one if they are the same) at x_n, and at x_n with each bit flipped."""
        flip = 1 - 2 * x
        if self.network is None:  # linear, so the mean over the others is that of their slopes
            other_slope = leave_one_out(slope)
            offset = leave_one_out((slope * x).sum(-1, keepdim=True))
            at_x = (other_slope * x).sum(-1, keepdim=True) - offset
            return at_x.unsqueeze(0), (at_x + other_slope * flip).unsqueeze(0)
        others = range(1, x.shape[0])
        x_m, fx_m, slope_m = (
            torch.stack([table.roll(-shift, 0) for shift in others]) for table in (x, fx, slope)
        )  # [n - 1, n, ...]: the other draws of every draw
        at_x = (slope_m * (x - x_m)).sum(-1, keepdim=True)
        linear = torch.cat([at_x, at_x + slope_m * flip], -1)
        pairs = torch.stack([fx_m.unsqueeze(-1).expand(linear.shape), linear], -1)
        h = call_network("RODEO", self.network, pairs, pairs.shape).mean(0).movedim(-1, 0)
        return h[..., :1], h[..., 1:]
