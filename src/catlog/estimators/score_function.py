"""Estimators that score whole draws: REINFORCE and its baselines."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Estimate, Estimator, Evaluator, Learner, Randomness
from ..core.checks import (
    call_network,
    check_baseline,
    check_context,
    check_module_device,
    check_number,
)
from ..core.evaluator import mean_over_draws
from ..core.factors import Bits, Factors, IndependentFactors
from ..core.learning import frozen, learns, write
from ..core.tracing import full_precision

__all__ = ["BBVI", "NVIL", "RLOO", "VIMCO", "Reinforce"]


def leave_one_out(terms: Float[Tensor, "n *rest"]) -> Float[Tensor, "n *rest"]:
    """Return for every draw the mean over the other draws."""
    return (terms.sum(0) - terms) / (terms.shape[0] - 1)


def with_baseline(
    q: Factors, x: Tensor, fx: Float[Tensor, "n *batch"], baseline: Tensor | float
) -> Estimate:
    r"""Return the mean of f, with the derivatives of its expectation of any order.

    The first derivative of the ratio is the score. A mean of f times this ratio has, in
    expectation, all derivatives of E[f]; so has that of f less a baseline.

    Reference: Foerster et al., "DiCE: The infinitely differentiable Monte Carlo estimator", 2018.
    """
    log_prob = q.log_prob_at(x)
    # q(x) / q(x) with the denominator held fixed: 1, with the derivatives of q(x) over q(x).
    ratio = (log_prob - log_prob.detach()).exp().to(fx.dtype)
    if not isinstance(baseline, Tensor):
        baseline = fx.new_full((), baseline)
    mean = mean_over_draws(torch.lerp(baseline.to(fx.dtype), fx, ratio))
    return Estimate(mean, mean)


class Reinforce(Estimator[Factors]):
    r"""The score-function estimator: f at each draw times the gradient of the draw's
    log-probability.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - b\bigr)\, \partial \log q(x^{(n)})

    Unbiased for any baseline b that does not depend on the draws of this call. It works for every q
    and f, but it is noisy. Its second derivatives are also unbiased.

    Cost: ``samples`` evaluations. Needs: any f.
    Reference: Williams, "Simple statistical gradient-following algorithms", 1992.

    Args:
        samples: number of draws N.
        baseline: b, a number, or a callable that takes the values ``[n, *batch]`` of this call and
            returns a baseline made from *earlier* ones, such as :class:`MovingAverageBaseline`.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> Reinforce(samples=4)(lambda x: x.sum(-1), q, x=torch.eye(4, 3))
    tensor(0.7500)
    """

    samples: int = 1
    _: KW_ONLY
    baseline: float | Callable[[Tensor], Tensor] = 0.0

    twice = True

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        if not callable(self.baseline):
            return with_baseline(q, x, fx, self.baseline)
        return with_baseline(q, x, fx, check_baseline(self.baseline(fx.detach()), fx))


class RLOO(Estimator[Factors]):
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

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> RLOO(samples=2)(lambda x: x[..., 0], q, x=torch.eye(2)).backward()
    >>> logits.grad
    tensor([ 0.5000, -0.5000])
    """

    samples: int = 2

    twice = True
    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        return with_baseline(q, x, fx, leave_one_out(fx.detach()))


class BBVI(Estimator[Factors]):
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

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> BBVI(samples=2)(lambda x: x[..., 0], q, x=torch.eye(2)).backward()
    >>> logits.grad
    tensor([ 0.5000, -0.5000])
    """

    samples: int = 4

    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        log_probs, score = q.score(q.index(x))
        values = fx.detach()[..., None, None]
        # Sums over the other draws, not the total less one term: weights may differ by many orders
        # of magnitude.
        is_other = 1 - torch.eye(len(x), dtype=score.dtype, device=score.device)
        weight = score.square() + torch.finfo(score.dtype).tiny  # all zero: the plain mean
        coefficient = _sum_over(is_other, values * weight) / _sum_over(is_other, weight)
        gradient = (values - coefficient) * score
        possible = score != 0
        common = gradient.sum(-1, keepdim=True) / possible.sum(-1, keepdim=True).clamp(min=1)
        gradient = (gradient - common).masked_fill(~possible, 0.0)
        return Estimate(fx.mean(0), (fx + (gradient * log_probs).sum((-1, -2))).mean(0))


def _sum_over(
    is_other: Float[Tensor, "n n"], terms: Float[Tensor, "n *rest"]
) -> Float[Tensor, "n *rest"]:
    """Return for every draw the sum over the other draws."""
    with full_precision(terms):
        return (is_other.to(terms.dtype) @ terms.flatten(1)).unflatten(1, terms.shape[1:])


class VIMCO(Estimator[Factors]):
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

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(2)), 1)
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> VIMCO(samples=2)(lambda x: x.sum(-1).log1p(), q, x=x).exp()
    tensor(2.)
    """

    samples: int = 2

    target = "bound"
    many_outputs = False
    why_one_output = "its bound is not linear in f"
    least_samples = 2
    too_few = "The bound of one draw is E[f]: use Reinforce."

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        n = len(x)
        log_w = f(x)
        value = log_w.logsumexp(0) - log(n)
        constant = log_w.detach()
        substitute = leave_one_out(constant).unsqueeze(1)
        is_same_draw = torch.eye(n, dtype=torch.bool, device=constant.device)
        is_same_draw = is_same_draw.view(n, n, *[1] * (constant.dim() - 1))
        baseline = torch.where(is_same_draw, substitute, constant).logsumexp(1) - log(n)
        advantage = value.detach() - baseline
        return Estimate(value, value + (advantage * q.log_prob_at(x)).sum(0))


class NVIL(Learner[Factors]):
    r"""REINFORCE with a learned baseline: a constant c, and a network C of the context of each
    batch element.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - c - C(\text{context})\bigr)\,
        \partial \log q(x^{(n)})

    It is unbiased for any c and C, because they do not see the draws. They learn to lower the
    variance: their gradient is that of :math:`\frac1{N^2} \sum_n (f - c - C)^2 \lVert s \rVert^2`,
    with the score s in the logits. (The products of two draws' terms have an expectation that does
    not depend on c and C, so they are left out.) The paper fits them to f by least squares, without
    the weight :math:`\lVert s \rVert^2`, and divides the signal by :math:`\max(1, \sigma)` with a
    running :math:`\sigma`. That changes the gradient's length, not its direction in expectation,
    provided that :math:`\sigma` comes from earlier calls. It is left out here; divide the loss by
    such a number if you want it.

    Cost: ``samples`` evaluations. Needs: any f; an optimiser for ``parameters()``.
    Reference: Mnih and Gregor, "Neural variational inference and learning in belief networks",
    2014.

    Args:
        samples: number of draws N.
        network: C, a module that maps ``[*batch, features]`` to ``[*batch, 1]`` or ``[*batch]``;
            None: no C.

    The call takes ``context`` ``[*batch, features]``, for instance the encoder's input. None: the
    logits of q (bits, ``[*batch, d]``) or log-probabilities (``[*batch, d k]``), within [-30, 30].

    >>> E = NVIL(samples=2, network=nn.Linear(3, 1))
    >>> bits = torch.distributions.Bernoulli(logits=torch.zeros(5, 3))
    >>> q = torch.distributions.Independent(bits, 1)
    >>> E(lambda x: x.sum(-1), q, context=torch.randn(5, 3)).sum().backward()
    >>> E.centre.grad is not None
    True
    """

    samples: int = 1
    _: KW_ONLY
    network: nn.Module | None = None

    many_outputs = False
    why_one_output = "it learns one baseline of f"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.centre = nn.Parameter(torch.zeros(()))

    def estimate(
        self,
        f: Evaluator,
        q: Factors,
        draw: Randomness,
        context: Float[Tensor, "*batch features"] | None = None,
    ) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        log_probs, score = q.score(q.index(x))
        signal = fx.detach() - self._baseline(q, context).to(fx.dtype)
        surrogate = (fx + signal.detach() * (score * log_probs).sum((-1, -2))).mean(0)
        objective = (signal.square() * q.squared_norm(score)).mean(0) / len(x)
        return Estimate(fx.mean(0), surrogate, objective)

    def _baseline(self, q: Factors, context: Tensor | None) -> Float[Tensor, "*batch"]:
        if self.network is None:
            return self.centre.expand(q.batch_shape)
        if context is None:
            if not isinstance(q, IndependentFactors):
                raise ValueError(
                    "context: NVIL's network needs [*batch, features] here; a structured "
                    "distribution has no fixed logits to read."
                )
            log_probs = q.log_probs.detach().clamp(min=-30.0)
            context = log_probs.flatten(-2)
            if isinstance(q, Bits):
                context = log_probs[..., 1] - log_probs[..., 0]
        context = check_context(context, q).detach()
        return self.centre + call_network("NVIL", self.network, context, q.batch_shape)


class MovingAverageBaseline(nn.Module):
    r"""A baseline for :class:`Reinforce`: the moving average of f over *earlier* calls, all draws
    and the batch.

    .. math:: m \leftarrow \gamma m + (1-\gamma)\,\overline{f}, \qquad b = m / (1 - \gamma^t)

    The current values enter only after b has been read, so the estimate stays unbiased. The state
    is saved in ``state_dict``.

    Args:
        decay: :math:`\gamma`, at least 0 and below 1.

    >>> baseline = MovingAverageBaseline(decay=0.5)
    >>> [baseline(torch.tensor([value])).item() for value in (4.0, 8.0, 8.0)]
    [0.0, 4.0, 6.666666507720947]
    """

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        check_number("MovingAverageBaseline", "decay", decay, 0, 1)
        self.decay = decay
        # Shape [1], not []: torch.compile takes a 0-d float64 tensor for a number and does not
        # write to it.
        self.mean = nn.Buffer(torch.zeros(1))
        self.weight = nn.Buffer(torch.zeros(1))

    def forward(self, values: Tensor) -> Tensor:
        check_module_device(self, values.device, "baseline")
        weight = self.weight.clamp(min=torch.finfo(self.weight.dtype).tiny)
        (baseline,) = frozen(self, self.mean / weight)
        if learns(self, values):
            rate = 1 - self.decay
            mean = values.detach().mean().to(self.mean)
            write(
                [
                    (self.mean, self.mean.lerp(mean, rate)),
                    (self.weight, self.weight.lerp(torch.ones_like(self.weight), rate)),
                ]
            )
        return baseline.squeeze(0)
