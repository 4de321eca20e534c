"""The mean of f at draws, differentiated through the draws: straight-through and relaxations."""

from dataclasses import KW_ONLY
from typing import Annotated, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..core import Count, Estimate, Estimator, Evaluator, Randomness, Range, Sampling
from ..core.categories import gumbels, gumbels_given_argmax, logistics, positive, times_jacobian
from ..core.checks import broadcasts
from ..core.evaluator import mean_over_draws
from ..core.factors import Bits, DependentFactors, Factors, RelaxableFactors, beside
from ..core.settings import Temperature, Temperatures
from ..core.tracing import inside_functorch
from ..core.view import relaxable
from ..distributions.subset import Subset

__all__ = [
    "DARN",
    "SIMPLE",
    "DecoupledStraightThrough",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmax",
    "MinimumVarianceStraightThrough",
    "ReDGE",
    "ReinMax",
    "ReinMaxCV",
    "ReinMaxRao",
    "StraightThrough",
]

R = TypeVar("R", bound=RelaxableFactors)
Points = Float[Tensor, "n *batch_event"]
Table = Float[Tensor, "#n *batch d k"]
Index = Int64[Tensor, "n *batch d"]
ByVariable = Float[Tensor, "n *batch d"]
Probs = Float[Tensor, "*batch d"]

SMALL = 2**13  # numbers that one kernel makes faster than a loop whose temporaries fit the caches


class Through(Estimator[R]):
    """The mean of f at draws of independent variables, differentiated through the draws.

    A subclass defines :meth:`points`. It can be used without f as well, by :func:`catlog.sample`.
    """

    samples: int = 1

    unbiased = False
    differentiates_f = True

    def points(self, q: R, draw: Randomness) -> Points:
        """Return draws with this estimator's derivative, ``[n, *batch, *event]``."""
        raise NotImplementedError

    def estimate(self, f: Evaluator, q: R, draw: Randomness) -> Estimate:
        mean = mean_over_draws(f.through(self.points(q, draw)))
        return Estimate(mean, mean)


class ThroughDraws(Through[R]):
    """The mean of f at draws of q. A subclass defines :meth:`mean` or :meth:`points`."""

    _: KW_ONLY
    sampling: Sampling = "independent"

    def points(self, q: R, draw: Randomness) -> Points:
        x = draw.points(self.samples, self.sampling)
        return q.through(x, q.to_point(self.mean(q, x, draw)))

    def mean(self, q: R, x: Tensor, draw: Randomness) -> Table:
        """Return what is differentiated in place of the draws x, a number per category."""
        raise NotImplementedError


class StraightThrough(ThroughDraws[RelaxableFactors]):
    r"""The derivative of f at the draw, used as the derivative of f in the probabilities.

    .. math:: \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial p

    **Biased**, except for f that is multilinear in x (there it is exact in expectation). The value
    is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Bengio et al., "Estimating or propagating gradients through stochastic neurons",
    2013.

    Args:
        samples: number of draws N.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> StraightThrough()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        return q.through(draw.points(self.samples, self.sampling), q.mean_point)


class DARN(ThroughDraws[Bits]):
    r"""REINFORCE for bits, with a baseline that is predicted from the derivative of f at the draw.

    .. math::
        \text{order 1:}\quad \frac1N \sum_n \sum_i f_i'(x^{(n)})\, (x^{(n)}_i - p_i)\, \partial \log
        q(x^{(n)}_i), \qquad
        \text{order 2:}\quad \frac1N \sum_n \sum_i \tfrac12 f_i'(x^{(n)})\, \frac{\partial
        p_i}{q(x^{(n)}_i)}

    Order 1 takes the baseline :math:`f(x) + f_i'(x)(p_i - x_i)`, Taylor's f at the mean, and is
    exact in expectation for f that is linear in each bit given the others. Order 2, the
    "1/2-estimator", weighs the slopes at both values of the bit equally,
    :math:`f(1) - f(0) \approx \tfrac12 (f'(0) + f'(1))`, and is exact in expectation for f that is
    *quadratic* in each bit. Otherwise **biased**: the baseline depends on the draw and its mean is
    left out. The value is unbiased. :class:`ReinMax` is order 2 for categories.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli q.
    Reference: Gregor et al., "Deep autoregressive networks", 2014; Gu et al., "MuProp", 2016,
    section 3.

    Args:
        samples: number of draws N.
        order: 1 or 2.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DARN()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    order: Annotated[int, Range(1, 2)] = 2

    instead = "ReinMax, which is the same for categories"

    def points(self, q: Bits, draw: Randomness) -> Points:
        x = draw.points(self.samples, self.sampling)
        return q.weighted(x, 0.0, 1.0) if self.order == 1 else q.weighted(x, 0.5, 0.5)


class ReinMax(ThroughDraws[RelaxableFactors]):
    r"""Straight-through of second order: differences of f are approximated by the trapezoidal rule.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \bigl(2 J(\tfrac{x^{(n)} + p_\tau}{2}) - \tfrac12 J(p)\bigr)\, \partial \text{logits},
        \qquad
        J(p) = \operatorname{diag}(p) - p p^\top, \quad p_\tau =
        \operatorname{softmax}(\text{logits} / \tau)

    In expectation, at tau = 1, every difference of f between two categories is replaced by the mean
    of its slopes at both, :math:`\tfrac12 (\partial f(a) + \partial f(b)) \cdot (a - b)`.
    **Biased**, except (at tau = 1) for f that is quadratic in each variable given the others: there
    it is exact in expectation. For bits it is :class:`DARN`. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Liu et al., "Bridging discrete and backpropagation: straight-through and beyond",
    2023.

    Args:
        samples: number of draws N.
        temperature: tau > 0, a number, or a 0-d tensor; above 1 it trades bias for variance.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMax()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    temperature: Temperature = 1.0

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        if not isinstance(self.temperature, Tensor) and self.temperature == 1:
            return q.weighted(draw.points(self.samples, self.sampling), 0.5, 0.5)
        return super().points(q, draw)

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        tempered = (q.log_probs.detach() / self.temperature).softmax(-1)
        change = times_jacobian(tempered, q.logits) - times_jacobian(q.p, q.logits)
        return reinmax_mean(q, x, tempered) + change / 2


def reinmax_mean(
    q: RelaxableFactors, x: Tensor, tempered: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "n *batch d k"]:
    """Return what ReinMax differentiates in place of the draws x, with probabilities ``tempered``.

    It is 2 J((x + p) / 2) = 1/2 sum_k p_k (k - x) (k - x)^T + 1/2 J(p), with k and x one-hot.
    """
    drawn = q.drawn(x)
    change = tempered / 2 * (q.logits - (drawn * q.logits).sum(-1, keepdim=True))
    return change - drawn * change.sum(-1, keepdim=True)


class GivenDraws(ThroughDraws[RelaxableFactors]):
    """The derivative of relaxed draws, averaged over M vectors of noise that give the same draw."""

    _: KW_ONLY
    noise_samples: Count = 10
    temperature: Temperature = 1.0

    def softened(self, q: RelaxableFactors, scores: Tensor) -> Tensor:
        """Return the softmax of constant scores, with the derivative of logits that are scores."""
        return ((scores + (q.logits - q.logits.detach())) / self.temperature).softmax(-1)


class GumbelSoftmax(Through[RelaxableFactors]):
    r"""The gradient of f through a continuous relaxation of the draw.

    .. math::
        \frac1N \sum_n \partial f\bigl(\operatorname{softmax}((\log p + g^{(n)})/\tau)\bigr), \qquad
        g \sim \text{Gumbel}

    A Bernoulli q uses the binary Concrete :math:`\sigma((\text{logit} + \ell)/\tau)` with logistic
    noise. With ``hard``, f sees the discrete draw (the argmax) and only the derivative is that of
    the relaxed one: this is straight-through Gumbel-Softmax (ST-Gumbel); :class:`GumbelRao` has its
    expectation at a lower variance. The variance is low. It is **biased** for every temperature,
    and its gradient is zero if f is piecewise constant. Without ``hard`` the value is also that of
    the relaxed draw.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable, defined between
    the categories; a Bernoulli or one-hot q.
    Reference: Jang et al., "Categorical reparameterization with Gumbel-Softmax", 2017; Maddison et
    al., "The Concrete distribution", 2017.

    Args:
        samples: number of draws N.
        temperature: tau > 0: a number; a tensor of one, where a schedule changes it inside a
            captured graph; or a tensor that broadcasts to the logits of q, for a temperature per
            variable.
        hard: straight-through.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, *batch, d]`` for bits, else
    ``[samples, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = GumbelSoftmax(samples=8, temperature=0.5)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> logits.grad.shape
    torch.Size([2])
    """

    _: KW_ONLY
    temperature: Temperatures = 1.0
    hard: bool = False
    sampling: Sampling = "independent"

    twice = True  # those of the relaxation

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        """Return relaxed draws or, with ``hard``, draws with their derivative."""
        is_bits = isinstance(q, Bits)
        shape = (*q.batch_shape, q.d) if is_bits else (*q.batch_shape, q.d, q.k)
        temperature = self.temperature_for(q.seen_batch + q.event_shape)
        if isinstance(temperature, Tensor) and temperature.dim() > 0:
            temperature = temperature.reshape(shape)
        u = draw.uniforms(self.samples, *shape, sampling=self.sampling)
        if isinstance(q, Bits):
            odds = beside(q.log_odds, self.samples)
            relaxed = self.relax(odds, logistics(u), temperature, bits=True)
        else:
            log_probs = beside(q.log_probs, self.samples)
            relaxed = self.relax(log_probs, gumbels(u), temperature)
        return q.shaped(relaxed.to(q.dtype)).clone()

    def temperature_for(self, shape: tuple[int, ...]) -> float | Tensor:
        """Return the temperature, expanded to logits of this shape if it is one per variable."""
        temperature = self.temperature
        if not isinstance(temperature, Tensor) or temperature.dim() == 0:
            return temperature
        if not broadcasts(temperature.shape, shape):
            raise ValueError(
                "GumbelSoftmax: `temperature` must be a number or broadcast to the logits, "
                f"{tuple(shape)}, but its shape is {tuple(temperature.shape)}."
            )
        return temperature.expand(shape)

    def relax(
        self,
        logits: Float[Tensor, "..."],
        noise: Float[Tensor, "*shape"],
        temperature: float | Tensor,
        *,
        bits: bool = False,
        dim: int = -1,
    ) -> Float[Tensor, "*shape"]:
        """Return relaxed draws or, with ``hard``, draws with their derivative.

        Args:
            logits: along ``dim``, normalised or not; one per variable for bits.
            noise: Gumbel noise, logistic noise for bits; it may have more leading dimensions.
            temperature: what ``temperature_for`` returned.
            bits: whether the variables are bits.
            dim: the dimension of the categories.
        """
        scores = logits + noise
        if isinstance(temperature, Tensor) or temperature != 1:
            scores = scores / temperature
        relaxed = scores.sigmoid() if bits else scores.softmax(dim)
        if not self.hard:
            return relaxed
        constant = relaxed.detach()
        if bits:
            discrete = (constant > 0.5).to(relaxed.dtype)
        else:
            zeros = torch.zeros_like(constant)
            put = zeros.scatter if inside_functorch() else zeros.scatter_
            discrete = put(dim, constant.argmax(dim, keepdim=True), 1.0)
        return discrete + (relaxed - constant)


class GumbelRao(GivenDraws):
    r"""Straight-through Gumbel-Softmax, averaged over the noise that gives the same draw.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \frac1M \sum_{m}
        \partial \operatorname{softmax}\bigl((\log p + g^{(n,m)})/\tau\bigr),
        \qquad g \sim \text{Gumbel} \mid \arg\max(\log p + g) = x^{(n)}

    The noise g is held fixed in the derivative, as in ``GumbelSoftmax(hard=True)``, of which this
    is the conditional mean given the draw: the same expectation, also **biased**, at a lower
    variance. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M softmaxes. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: Paulus et al., "Rao-Blackwellizing the straight-through Gumbel-Softmax gradient
    estimator", 2021.

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0, a number, or a 0-d tensor.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    The uniforms behind the Gumbels can be given to a call as ``noise``, ``[M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> GumbelRao(noise_samples=100)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad[0] > 0.3, logits.grad[1]
    (tensor(True), tensor(0.))
    """

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        index, logits = q.index(x), q.logits
        if q.k == 2 and not is_learned(self.temperature):
            odds = logits[..., 1] - logits[..., 0]
            with torch.no_grad():
                slope = self._rise(q, index, draw)
            rise = slope * (odds - odds.detach())
            return torch.stack([-rise, rise], -1)
        u = draw.uniform(self.noise_samples, *index.shape, q.k, batch_from=2)
        z = gumbels_given_argmax(q.log_probs, index, u)
        return self.softened(q, z).mean(0)

    def _rise(self, q: RelaxableFactors, index: Index, draw: Randomness) -> ByVariable:
        r"""Return the mean derivative of the softmax's second entry in the log-odds, for two
        categories.

        The difference of the two z is :math:`\log(1 + e_o / (p_o e_j))` for the drawn category j
        and the other one o, with standard exponential e. The softmax's entries are in the ratio
        :math:`t = (1 + e_o / (p_o e_j))^{-1/\tau}`, and the derivative is
        :math:`t / (\tau (1 + t)^2)`.
        """
        second_is_drawn = index.bool()
        other = torch.where(second_is_drawn, q.p[..., 0], q.p[..., 1])
        u = draw.uniform(self.noise_samples, *index.shape, q.k, batch_from=2)
        is_eager = not (torch.compiler.is_compiling() or inside_functorch())
        few_at_a_time = is_eager and u.device.type == "cpu" and u.numel() > SMALL
        total = torch.zeros_like(other)
        for part in u.split(1) if few_at_a_time else [u]:
            first, second = (-positive(part).log()).unbind(-1)
            ratio = torch.where(second_is_drawn, first / second, second / first) / other + 1
            t = 1 / ratio if self.temperature == 1 else ratio.pow(-1 / self.temperature)
            total = total + (t / (1 + t).square()).sum(0)
        return total / (self.noise_samples * self.temperature)


def is_learned(temperature: float | Tensor) -> bool:
    """Return whether the estimate is differentiated in the temperature, too."""
    return isinstance(temperature, Tensor) and temperature.requires_grad


class ReinMaxRao(GivenDraws):
    r"""ReinMax, with the derivative at the midpoint averaged as in Gumbel-Rao.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \Bigl(\frac2M \sum_m
        \partial \operatorname{softmax}\bigl((\log \tfrac{x^{(n)} + p}{2} + g^{(n,m)})/\tau\bigr)
        - \tfrac12 \partial p\Bigr),
        \qquad g \sim \text{Gumbel} \mid \arg\max(\log \tfrac{x^{(n)} + p}{2} + g) = x^{(n)}

    x and g are held fixed in the derivative. :class:`ReinMax` has :math:`2 J(\tfrac{x + p}{2})` as
    its first term. This estimator smooths the spread of that term over draws; a higher temperature
    smooths more. **Biased**, also for quadratic f. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M softmaxes. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: Wang & Bui, "Beyond ReinMax: low-variance gradient estimators for discrete latent
    variables", 2026, with the second term at p, as in the authors' code (equation 17 has a slip).

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0, a number, or a 0-d tensor.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    The uniforms behind the Gumbels can be given to a call as ``noise``, ``[M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMaxRao()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad.isfinite().all(), logits.grad[1]
    (tensor(True), tensor(0.))
    """

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        index = q.index(x)
        u = draw.uniform(self.noise_samples, *index.shape, q.k, batch_from=2)
        z = gumbels_given_argmax(_log_midpoint(q, index), index, u)
        return 2 * self.softened(q, z).mean(0) - times_jacobian(q.p, q.logits) / 2


def _log_midpoint(q: Factors, index: Index) -> Float[Tensor, "n *batch d k"]:
    """Return the log-probabilities halfway between q and each draw, a constant."""
    return ((q.is_drawn(index) + q.log_conditionals(index).detach().exp()) / 2).log()


class ReinMaxCV(GivenDraws):
    r"""ReinMax, plus a control variate: Gumbel-Rao minus Gumbel-Softmax at the midpoint.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \Bigl(J_{\text{ReinMax}} + \eta\,
        \bigl(\frac1M \sum_m J(s(g^{(n,m)})) - J(s(h^{(n)}))\bigr)/\tau \Bigr)\, \partial
        \text{logits}, \qquad
        s(g) = \operatorname{softmax}\bigl((\log \tfrac{x + p}{2} + g)/\tau\bigr)

    with :math:`J_{\text{ReinMax}}` and J as in :class:`ReinMax` at tau = 1. The Gumbels h are those
    that drew x, :math:`x = \arg\max(\log p + h)`, and the g are drawn so that
    :math:`x = \arg\max(\log \tfrac{x + p}{2} + g)`. The two conditions differ, so the control
    variate's mean is small, but not 0. **Biased**, also for quadratic f, where ReinMax is exact.
    The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M + 1 softmaxes. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: Wang & Bui, "Beyond ReinMax: low-variance gradient estimators for discrete latent
    variables", 2026, with the whole of ReinMax, as in the authors' code (equation 18 has a slip).

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0 of the control variate, a number, or a 0-d tensor.
        control_weight: eta, the weight of the control variate; 0 is ReinMax.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    The uniforms behind h, then g can be given to a call as ``noise``, ``[1 + M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMaxCV(control_weight=0.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    control_weight: float = 0.5

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        index = q.index(x)
        u = draw.uniform(1 + self.noise_samples, *index.shape, q.k, batch_from=2)
        centre = _log_midpoint(q, index)
        h = gumbels_given_argmax(q.log_probs, index, u[0]) - q.logits.detach()
        rao = self.softened(q, gumbels_given_argmax(centre, index, u[1:])).mean(0)
        drawn = self.softened(q, torch.where(q.possible, centre, 0.0) + h)
        return reinmax_mean(q, x, q.p) + self.control_weight * (rao - drawn)


class GappedStraightThrough(ThroughDraws[RelaxableFactors]):
    r"""Straight-through at logits that are moved, so that they favour the draw by a gap.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \partial \operatorname{softmax}\bigl((\text{logits} + m_1 - m_2)/\tau\bigr), \qquad
        m_1 = (\max \text{logits} - \text{logits}) \odot x, \quad
        m_2 = (\text{logits} - \max \text{logits} + \text{gap})_+ \odot (1 - x)

    The moves :math:`m_1` and :math:`m_2` are held fixed in the derivative. They lift the logit of
    the drawn category to the largest one and push those of the others at least a gap below, the two
    properties of the Gumbel-Softmax's noisy logits that matter, without its noise. **Biased**, also
    for linear f. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Fan et al., "Training discrete deep generative models via gapped straight-through
    estimator", 2022.

    Args:
        samples: number of draws N.
        temperature: tau > 0, a number, or a 0-d tensor.
        gap: at least 0. None: :math:`-\log(1 - p(x)) / p(x)` for the drawn category, as the
            authors' code offers it.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> GappedStraightThrough(gap=0.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    temperature: Temperature = 1.0
    gap: Annotated[float, Range(0)] | None = 1.0

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        if not isinstance(q, Bits) or is_learned(self.temperature):
            return super().points(q, draw)
        x = draw.points(self.samples, self.sampling)
        return q.with_weights(x, self._weight(q, q.flat(x).to(q.real)))

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        drawn = q.is_drawn(q.index(x))
        logits = q.log_probs.detach()
        top = logits.amax(-1, keepdim=True)
        gap: float | Tensor | None = self.gap
        if gap is None:
            gap = automatic_gap((q.p * drawn).sum(-1, keepdim=True))
        lowered = logits - (logits - top + gap).clamp(min=0)
        moved = torch.where(drawn, top, lowered)
        return ((moved + (q.logits - q.logits.detach())) / self.temperature).softmax(-1)

    def _weight(self, q: Bits, bit: ByVariable) -> ByVariable:
        """Return the derivative of the softmax at the moved logits in the log-odds of the bit.

        The moved logits differ by the log-odds of the drawn value, or by the gap if that is more.
        """
        odds = (2 * bit - 1) * q.log_odds.detach()
        if self.gap is None:
            odds = odds.maximum(automatic_gap(torch.where(bit > 0, q.p1, q.p0)))
        else:
            odds = odds.clamp(min=self.gap)
        other = (-odds / self.temperature).sigmoid()
        return other * (1 - other) / self.temperature


def automatic_gap(p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the gap that the authors' code offers for a drawn category of probability p."""
    p = p * (1 - 1e-5)  # a certain category would have an infinite gap
    return -(-p).log1p() / p


class DecoupledStraightThrough(ThroughDraws[RelaxableFactors]):
    r"""Straight-through Gumbel-Softmax with one temperature for draws and one for derivatives.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \partial \operatorname{softmax}(\text{logits}/\tau_b + g^{(n)}), \qquad
        x^{(n)} = \arg\max(\text{logits}/\tau_f + g^{(n)}), \quad g \sim \text{Gumbel}

    The forward temperature :math:`\tau_f` sets how much is explored: x is drawn from
    :math:`\operatorname{softmax}(\text{logits}/\tau_f)`. The backward temperature :math:`\tau_b`
    sets how the gradient is spread over the categories. **Biased** for every pair. Unless
    :math:`\tau_f = 1`, so is the value: it is an expectation under the tempered distribution.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Shah et al., "Improving discrete optimisation via decoupled straight-through
    Gumbel-Softmax", 2024 (arXiv 2410.13331, first version).

    Args:
        samples: number of draws N.
        forward_temperature: :math:`\tau_f > 0`, a number, or a 0-d tensor.
        backward_temperature: :math:`\tau_b > 0`, a number, or a 0-d tensor.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = DecoupledStraightThrough(forward_temperature=0.5, backward_temperature=2.0)
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad[0] > 0, logits.grad[1]
    (tensor(True), tensor(0.))
    """

    _: KW_ONLY
    forward_temperature: Temperature = 1.0
    backward_temperature: Temperature = 1.0

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        log_forward = (q.log_probs.detach() / self.forward_temperature).log_softmax(-1)
        x = draw.points(self.samples, self.sampling, probs=log_forward.exp())
        index = q.index(x)
        u = draw.uniform(*index.shape, q.k, batch_from=1)
        z = gumbels_given_argmax(log_forward, index, u)
        gumbel = z - torch.where(q.possible, log_forward, 0.0)  # still -inf where impossible
        soft = (gumbel + q.logits / self.backward_temperature).softmax(-1)
        return q.through(x, q.to_point(soft))


class MinimumVarianceStraightThrough(ThroughDraws[RelaxableFactors]):
    r"""The derivative of the draw with the lowest variance for its bias on quadratic f.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot S(x^{(n)})\, \partial \text{logits}, \qquad
        S = \arg\min_{\mathbb{E}[S(x)] = J(p)} \;
        \mathbb{E} \lVert S(x) \rVert^2 + \tfrac{w}{2} \sum_{ij} \lVert B_{ij} \rVert^2

    where :math:`J(p) = \operatorname{diag}(p) - p p^\top` and
    :math:`B_{ij} = p_j S(j)_i + p_i S(i)_j - [i = j]\, J(p)_i` is the bias for f with the second
    derivative i, j. (S(j) is the matrix for the draw j, and S(j)_i its row i.) The constraint makes
    it exact in expectation for f that is multilinear. **Biased** otherwise. As the weight w of the
    bias grows, it becomes exact for f that is quadratic in each variable given the others, as
    :class:`ReinMax` is, and has the least :math:`\mathbb{E} \lVert S(x) \rVert^2` of all that are.
    At w = 0 it is :class:`StraightThrough`. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; one system of k equations per variable.
    Needs: f differentiable; a Bernoulli or one-hot q.
    Reference: Hooper & Shekhovtsov, "Generalized and optimal straight-through estimators", 2026.

    Args:
        samples: number of draws N.
        bias_weight: w, at least 0 (the authors raise it from 1 to a million in training). Any
            finite weight is accurate, also in float32.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = MinimumVarianceStraightThrough()
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    bias_weight: Annotated[float, Range(0)] = 100.0

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        if not isinstance(q, Bits):
            return super().points(q, draw)
        x = draw.points(self.samples, self.sampling)
        zero, one = self._weights(q.p0, q.p1)
        return q.with_weights(x, zero + q.flat(x).to(q.real) * (one - zero))

    def mean(self, q: RelaxableFactors, x: Tensor, draw: Randomness) -> Table:
        p, drawn = q.p, q.is_drawn(q.index(x))
        slope = times_jacobian(p, q.logits)
        multiplier = self._multiplier(p, slope)
        a, b = self._shares(p.dtype)

        def of_drawn(table: Tensor) -> Tensor:
            """Return the entry of the drawn category."""
            return (table * drawn).sum(-1, keepdim=True)

        total = a * multiplier + b * (p * (multiplier - of_drawn(multiplier)) + drawn * slope)
        return total / (a + b * (p + of_drawn(p)))

    def _shares(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return a = 1 / (1 + w) and b = w / (1 + w), with which no weight overflows.

        Every 1 + w p is written as (a + b p) / a. The bound of a keeps its products from underflow.
        """
        least = 2**24 * torch.finfo(dtype).tiny
        return max(1 / (1 + self.bias_weight), least), self.bias_weight / (1 + self.bias_weight)

    def _weights(self, zero: Probs, one: Probs) -> tuple[Probs, Probs]:
        """Return S for draws 0 and 1 of a bit, in the log-odds; the arguments are probabilities.

        It is ``mean`` with the two equations of ``_multiplier`` solved by hand, so that no
        differences of probabilities or of multipliers cancel.
        """
        a, b = self._shares(one.dtype)
        slope = zero * one
        coupling = b * slope
        zero_pair, one_pair = a + 2 * b * zero, a + 2 * b * one
        zero_sum = zero / zero_pair + one
        one_sum = one / one_pair + zero
        zero_right = -(a + b * zero) / zero_pair * slope
        one_right = (a + b * one) / one_pair * slope
        both_right = b * (zero - one) / zero_pair * (slope / one_pair)  # their sum, over a
        determinant = a * zero_sum * one_sum + coupling * (zero_sum + one_sum)
        one_multiplier = (zero_sum * one_right + coupling * both_right) / determinant
        difference = (zero_sum * one_right - one_sum * zero_right) / determinant
        drawn_zero = a * one_multiplier + b * one * difference
        drawn_one = (a * one_multiplier + b * slope) / one_pair
        return drawn_zero, drawn_one

    def _multiplier(
        self, p: Float[Tensor, "*batch d k"], slope: Float[Tensor, "*batch d k"]
    ) -> Float[Tensor, "*batch d k"]:
        """Return Lagrange's multiplier of the constraint, times the logits; ``slope`` is J(p) times
        the logits.

        The rows of the symmetric matrix add up to a s. As w grows, a s vanishes beside the entries,
        and the matrix becomes singular: a constant can be added to the solution. The sum of all
        equations, s . solution = total / a, says which. It is added to every equation, after each
        was divided by its diagonal.
        """
        a, b = self._shares(p.dtype)
        row, column = p.unsqueeze(-1), p.unsqueeze(-2)
        pairs = a + b * (row + column)
        share = column / pairs
        s = share.sum(-1)
        is_same = torch.eye(p.shape[-1], dtype=torch.bool, device=p.device)
        coupling = (b * row * share).masked_fill(is_same, 0.0)
        diagonal = a * s + coupling.sum(-1)
        right = (a + b * p) / (a + 2 * b * p) * slope / diagonal
        matrix = torch.where(is_same, 1.0, -coupling / diagonal.unsqueeze(-1))
        # The slopes add up to 0, so the sum of all right sides is a times this.
        total = (slope / (a + 2 * b * p)).sum(-1, keepdim=True) / 2
        norm = s.sum(-1, keepdim=True)
        matrix = matrix + (s / norm).unsqueeze(-2)
        solution: Tensor = torch.linalg.solve_ex(matrix, (right + total / norm).unsqueeze(-1))[0]
        return solution.squeeze(-1)


class ReDGE(Through[RelaxableFactors]):
    r"""Straight-through at the mean that a diffusion model of the categories predicts.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial \hat x_{t_1}(z_{t_1}), \quad
        x \sim \hat x_{t_1}, \qquad
        \hat x_t(z) = \operatorname{softmax}\bigl(\text{logits} + \tfrac{1 - t}{t^2} z\bigr), \quad
        z_s = (1 - s)\, \hat x_t(z_t) + \tfrac{s}{t} \bigl(z_t - (1 - t)\, \hat x_t(z_t)\bigr)

    starting from Gaussian noise :math:`z_1`. :math:`\hat x_t(z)` is the mean of x given
    :math:`(1 - t)\, x + t\, \varepsilon = z`, in closed form: nothing is trained. The times t are
    ``steps`` equal steps from 1 to :math:`t_1`, and the derivative passes through all of them
    (DDIM). One step is :class:`StraightThrough`. **Biased**. The path is discretised, so x is drawn
    from q only approximately (exactly with one step), and the value also has a small bias.

    Cost: ``samples`` evaluations, forward and backward; ``steps`` softmaxes. Needs: f
    differentiable; a Bernoulli or one-hot q.
    Reference: Gourevitch et al., "Categorical reparameterization with denoising diffusion models",
    2026.

    Args:
        samples: number of draws N.
        steps: number of denoising steps, at least 1 (one less than ``n_steps`` of the authors'
            code, where time 1 is 0.9999).
        last_time: :math:`t_1`, above 0 and at most 1; the lower, the nearer to one-hot is the
            relaxed draw.

    In place of ``x``, a call takes uniforms as ``noise``, ``[2, samples, *batch, d, k]``: those
    behind :math:`z_1`, and those behind the Gumbels that draw x.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReDGE(steps=1)(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    _: KW_ONLY
    steps: Count = 4
    last_time: Annotated[float, Range(0, 1, above=True)] = 0.5

    def points(self, q: RelaxableFactors, draw: Randomness) -> Points:
        u = draw.uniform(2, self.samples, *q.batch_shape, q.d, q.k, batch_from=2)
        soft = self._denoised(q, u[0])
        index = (soft.detach().log() + gumbels(u[1])).argmax(-1)
        return q.through(q.point(index), q.to_point(soft))

    def _denoised(
        self, q: RelaxableFactors, u: Float[Tensor, "n *batch d k"]
    ) -> Float[Tensor, "n *batch d k"]:
        """Return the relaxed draws at the end of the path, from the uniforms behind its start."""
        z = torch.special.ndtri(u.clamp(min=torch.finfo(u.dtype).tiny))
        log_probs, span = q.log_probs, 1 - self.last_time
        soft = log_probs.softmax(-1).expand(z.shape)
        for step in range(1, self.steps):
            before = 1 - span * (step - 1) / (self.steps - 1)
            after = 1 - span * step / (self.steps - 1)
            z = (1 - after) * soft + after / before * (z - (1 - before) * soft)
            soft = (log_probs + (1 - after) / after**2 * z).softmax(-1)
        return soft


class SIMPLE(Estimator[RelaxableFactors | DependentFactors]):
    r"""The derivative of f at exact draws of a :class:`~catlog.distributions.Subset`, used as the
    derivative of f in the exact marginals.

    .. math:: \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial \mu, \qquad \mu_i = q(x_i = 1)

    **Biased**, except for f that is linear in x: there it is exact, without noise. The value is
    unbiased. f gets the bits of a subset as floats, so that it can be differentiated in them. For
    independent variables the marginals are the probabilities, and SIMPLE is
    :class:`StraightThrough`.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Subset, or a
    Bernoulli or one-hot q.
    Reference: Ahmed et al., "SIMPLE: a gradient estimator for k-subset sampling", 2023.

    Args:
        samples: number of draws N.

    >>> from catlog.distributions import Subset
    >>> logits = torch.zeros(4, requires_grad=True)
    >>> SIMPLE()(lambda x: 3 * x[..., 0], Subset(logits, k=2)).backward()
    >>> logits.grad
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    samples: int = 1

    supports = StraightThrough.supports
    unbiased = False
    differentiates_f = True

    def estimate(
        self, f: Evaluator, q: RelaxableFactors | DependentFactors, draw: Randomness
    ) -> Estimate:
        subset = q.distribution
        if isinstance(q, DependentFactors) and isinstance(subset, Subset):
            mean = subset.mean.reshape(q.batch_shape + q.event_shape)
            points = draw.points(self.samples).to(mean.dtype) + (mean - mean.detach())
        else:
            factors = relaxable(q, "SIMPLE")
            points = factors.through(draw.points(self.samples), factors.mean_point)
        value = f.through(points).mean(0)
        return Estimate(value, value)
