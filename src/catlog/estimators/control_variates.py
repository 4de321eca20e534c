"""Score-function estimators with a control variate made from derivatives of f."""

from dataclasses import KW_ONLY
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Estimate, Estimator, Evaluator, Learned, Learner, Positive, Randomness
from ..core.categories import IMPOSSIBLE, gumbels_given_argmax
from ..core.checks import call_network
from ..core.evaluator import NOT_DIFFERENTIABLE, derivatives
from ..core.factors import Bits, RelaxableFactors
from ..core.settings import Temperature
from .score_function import leave_one_out

__all__ = ["REBAR", "RELAX", "RODEO", "DoubleCV", "MuProp"]

Values = Float[Tensor, "n *batch"]
PerBit = Float[Tensor, "n *batch d"]

ONE_CONTROL = "it learns a control variate of one output"


def with_gradient(
    q: RelaxableFactors, fx: Values, gradient: Tensor, learns: bool = True
) -> Estimate:
    """Return the mean of f with this gradient in the logits of q, whose squared norm is learned."""
    value = fx.mean(0)
    objective = q.squared_norm(gradient) if learns else None
    return Estimate(value, value + q.with_gradient(gradient), objective)


class MuProp(Estimator[RelaxableFactors]):
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

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> MuProp()(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1

    differentiates_f = True
    many_outputs = False
    why_one_output = "it needs the slopes of every output"

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        mean = q.mean_point.detach().to(q.dtype).unsqueeze(0)
        at_mean, slope = f.slope(mean)
        slope = q.by_category(slope)
        score = q.score(q.index(x))[1]
        residual = (fx - at_mean).detach() - (slope * score).sum((-1, -2))
        gradient = (residual[..., None, None] * score).mean(0) + q.of_mean(slope).squeeze(0)
        return with_gradient(q, fx, gradient, learns=False)


class DoubleCV(Learner[RelaxableFactors]):
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

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DoubleCV(alpha=1.0)(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 2
    _: KW_ONLY
    alpha: Learned = 0.0

    differentiates_f = True
    many_outputs = False
    why_one_output = ONE_CONTROL
    least_samples = 2
    too_few = "One draw has no others to leave out: use MuProp."

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx, slope = f.slope(x)
        slope = q.by_category(slope)
        score = q.score(q.index(x))[1]
        alpha = self.alpha.to(q.real)
        h = fx.detach() - alpha * (leave_one_out(slope) * score).sum((-1, -2))
        advantage = (h - leave_one_out(h))[..., None, None]
        linear = alpha[..., None, None] * q.of_mean(slope).mean(0)
        return with_gradient(q, fx, (advantage * score).mean(0) + linear)


class RODEO(Learner[Bits]):
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

    >>> E = RODEO(samples=2, network=nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> E.alpha.grad is not None, E.beta.grad is not None
    (True, True)
    """

    samples: int = 2
    _: KW_ONLY
    alpha: Learned = 0.0
    beta: Learned = 0.0
    network: nn.Module | None = None

    differentiates_f = True
    many_outputs = False
    why_one_output = ONE_CONTROL
    instead = "DoubleCV (with one-hot points) or RLOO"
    least_samples = 2
    too_few = "One draw has no others to leave out: use MuProp."

    def estimate(self, f: Evaluator, q: Bits, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx, slope = f.slope(x)
        bits = q.flat(x).to(q.real)
        score = bits - q.p1
        values = fx.detach().to(q.real)
        at_x, flipped = self._surrogates(bits, values, q.flat(slope).to(q.real))
        flip_probability = score.abs()  # |x - p|
        stein = (flip_probability * (flipped - at_x)).sum(-1)
        alpha, beta = self.alpha.to(q.real), self.beta.to(q.real)
        signal = values - leave_one_out(values + alpha * stein[0])
        gradient = (
            score * (signal.unsqueeze(-1) + beta * (stein[-1].unsqueeze(-1) - flipped[-1]))
        ).mean(0)
        value = fx.mean(0)
        surrogate = value + q.with_odds_gradient(gradient)
        return Estimate(value, surrogate, gradient.square().sum(-1))

    def _surrogates(
        self, x: PerBit, fx: Values, slope: PerBit
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


class RelaxedDraws(NamedTuple):
    r"""Draws of q, each with the continuous :math:`z = \log p + g`, g Gumbel, whose argmax it is.

    With arrival times :math:`t = e^{-z}`, independent and exponential with rates p, the draw x is
    the first to arrive. Given x and its time T, the others come at :math:`t_k = T + e_k / p_k`,
    :math:`e_k` standard exponential; neither T nor e depend on p. So
    :math:`\partial z_k = \partial \log p_k`. Given x it is :math:`(1 - T/t_k)\, \partial \log p_k`,
    and 0 for k = x. The difference of the two has the weight :math:`T/t_k = e^{z_k - \max z}`.

    Attributes:
        q: the factors.
        fx: f at the draws.
        score: the score of the draws in the logits, a constant.
        z: the continuous draws.
        weight: of :math:`\partial \log p_k` in the derivative of :math:`z_k` less that derivative
            given the draw.
    """

    q: RelaxableFactors
    fx: Values
    score: Float[Tensor, "n *batch d k"]
    z: Float[Tensor, "n *batch d k"]
    weight: Float[Tensor, "n *batch d k"]

    @classmethod
    def of(cls, f: Evaluator, q: RelaxableFactors, draw: Randomness, n: int) -> "RelaxedDraws":
        """Draw points, evaluate f there, and draw the z behind each point."""
        x = draw.points(n)
        fx = f(x)
        index = q.index(x)
        score = q.score(index)[1]
        u = draw.uniform(*index.shape, q.k, batch_from=1)
        z = gumbels_given_argmax(q.log_probs, index, u).clamp(min=IMPOSSIBLE)
        return cls(q, fx, score, z, (z - z.amax(-1, keepdim=True)).exp())

    def points(self, z: Tensor, temperature: Tensor | float) -> Tensor:
        """Return softmax(z / temperature) as points; impossible categories have 0."""
        is_impossible = z < IMPOSSIBLE / 2
        scaled = z.masked_fill(is_impossible, 0.0) / temperature
        return self.q.to_point(scaled.masked_fill(is_impossible, -torch.inf).softmax(-1))

    def gradient(self, control: Values, slope: Tensor | None) -> Float[Tensor, "*batch d k"]:
        """Return the gradient in the logits; ``slope`` is the derivative of ``control`` in z."""
        gradient = (self.fx.detach().to(self.q.real) - control)[..., None, None] * self.score
        if slope is not None:
            gradient = gradient + self.q.in_logits(slope * self.weight)
        return gradient.mean(0)


class REBAR(Learner[RelaxableFactors]):
    r"""REINFORCE with f at a relaxed draw as control variate, whose gradient is added back
    pathwise.

    .. math::
        \partial f(x) + \bigl[f(x) - \eta c(\tilde z)\bigr]\, \partial \log q(x) + \eta\, \partial
        c(z)
        - \eta\, \partial c(\tilde z), \qquad c(z) = f\bigl(\operatorname{softmax}(z/\tau)\bigr)

    averaged over N draws: :math:`z = \log p + g` with Gumbel g, :math:`x = \arg\max z`, and
    :math:`\tilde z` drawn given x. The noise of :math:`\tilde z` is tied to that of z so that both
    have the same value. As functions of p they still differ, and working out the derivatives gives

    .. math::
        \bigl[f(x) - \eta c(z)\bigr]\, \partial \log q(x) + \eta \sum_{i,k} \frac{\partial
        c}{\partial z_{ik}}\,
        e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k)

    which needs two evaluations per draw, not three. A bit is a variable of two categories. Unbiased
    for any :math:`\eta` and :math:`\tau`. Both are learned, :math:`\tau` from the second derivative
    of f. If f has none, or to save its cost, freeze :math:`\tau` with
    ``E.log_temperature.requires_grad_(False)``.

    Cost: 2 ``samples`` evaluations, half of them with a backward pass (and one through that, for
    :math:`\tau`). Needs: f differentiable, defined between the categories; a Bernoulli or one-hot
    q; an optimiser for ``parameters()``.
    Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent
    variable models", 2017.

    Args:
        samples: number of draws N.
        eta: initial value of the coefficient.
        temperature: initial value of tau > 0.

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` from which z is made, given x.

    >>> E = REBAR(samples=2)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> E.eta.grad is not None, E.log_temperature.grad is not None
    (True, True)
    """

    samples: int = 1
    _: KW_ONLY
    eta: Learned = 1.0
    temperature: Temperature = 0.5

    differentiates_f = True
    many_outputs = False
    why_one_output = ONE_CONTROL

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log_temperature = nn.Parameter(torch.tensor(log(self.temperature)))

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        draws = RelaxedDraws.of(f, q, draw, self.samples)
        value = draws.fx.mean(0)
        if not torch.is_grad_enabled():
            return Estimate(value, value)

        def objective(
            eta: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]
        ) -> "tuple[Tensor, Tensor]":
            gradient = self._gradient(f, draws, eta, temperature)
            return q.squared_norm(gradient), gradient

        eta = self.eta.to(q.real)
        temperature = self.log_temperature.to(q.real).exp()
        # The parameters of f must not learn to lower the variance. So the derivatives in eta and
        # the temperature are taken first, in copies that do not belong to f's graph.
        (_, gradient), (by_eta, by_temperature) = derivatives(
            objective,
            eta.detach().expand(q.batch_shape),
            temperature.detach().expand(q.batch_shape),
        )
        assert by_eta is not None
        learned = by_eta * eta + (0.0 if by_temperature is None else by_temperature * temperature)
        return Estimate(value, value + q.with_gradient(gradient), learned)

    def _gradient(
        self,
        f: Evaluator,
        draws: RelaxedDraws,
        eta: Float[Tensor, "*batch"],
        temperature: Float[Tensor, "*batch"],
    ) -> Float[Tensor, "*batch d k"]:
        """Return the gradient in the logits, differentiable in eta and the temperature."""

        def control(z: Tensor) -> "tuple[Tensor]":
            points = draws.points(z, temperature[..., None, None]).to(draws.q.dtype)
            return (f(points).to(draws.q.real),)

        learns = self.log_temperature.requires_grad
        (c,), (slope,) = derivatives(control, draws.z, create_graph=learns)
        if slope is None:
            raise ValueError(NOT_DIFFERENTIABLE)
        c = c if learns else c.detach()
        return draws.gradient(eta * c, eta[..., None, None] * slope)


class RELAX(Learner[RelaxableFactors]):
    r"""REINFORCE with a network of the relaxed draw as control variate, whose gradient is added
    back pathwise.

    .. math::
        \frac1N \sum_n \partial f(x) + \bigl[f(x) - c(z)\bigr]\, \partial \log q(x) + \sum_{i,k}
        \frac{\partial c}{\partial z_{ik}}\, e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k),
        \qquad
        z = \log p + g,\ x = \arg\max z

    with Gumbel g and :math:`c(z) = \text{network}(\operatorname{softmax}(z/\tau))`: :class:`REBAR`
    with a network in place of f, which stays a black box. The paper's
    :math:`\partial c(z) - \partial c(\tilde z)` is taken with both noises tied (see
    :class:`REBAR`). Unbiased for any network; the network is trained to lower the variance. Without
    one it is :class:`Reinforce`.

    Cost: ``samples`` evaluations of f, and of the network with its second derivative. Needs:
    any f; a Bernoulli or one-hot q; an optimiser for ``parameters()``.
    Reference: Grathwohl et al., "Backpropagation through the void", 2018.

    Args:
        samples: number of draws N.
        network: c, a smooth module (no ReLU) that maps relaxed points ``[n, *batch, *event]``,
            written as f sees them but between the categories, to ``[n, *batch, 1]`` or ``[n,
            *batch]``; None: zero.
        temperature: tau > 0 of the relaxation.

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` that make z of x.

    >>> network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> E = RELAX(samples=2, network=network)
    >>> bits = torch.distributions.Bernoulli(logits=torch.zeros(5, 3))
    >>> q = torch.distributions.Independent(bits, 1)
    >>> E(lambda x: (x.sum(-1) > 1).float(), q).sum().backward()
    >>> network[0].weight.grad.shape
    torch.Size([8, 3])
    """

    samples: int = 1
    _: KW_ONLY
    network: nn.Module | None = None
    temperature: Positive = 1.0

    many_outputs = False
    why_one_output = ONE_CONTROL

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        draws = RelaxedDraws.of(f, q, draw, self.samples)
        if self.network is None:
            signal = draws.fx.detach().to(q.real)[..., None, None]
            return with_gradient(q, draws.fx, (signal * draws.score).mean(0), learns=False)
        network = self.network

        def control(z: Tensor) -> "tuple[Tensor]":
            points = draws.points(z, self.temperature)
            return (call_network("RELAX", network, points, draws.fx.shape),)

        (c,), (slope,) = derivatives(control, draws.z, create_graph=True)
        return with_gradient(q, draws.fx, draws.gradient(c, slope))
