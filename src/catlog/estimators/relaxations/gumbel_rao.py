"""Gumbel-Rao: straight-through Gumbel-Softmax with its noise averaged out."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...checks import check_count, check_temperature, check_uniforms
from ...distributions.factors import Factors
from ...sampling.draw import Draws
from ...sampling.gumbel import gumbels_given_argmax, positive
from ...sampling.randomness import rand
from ...tracing import inside_functorch
from ..logit_gradients import finite_log_probs
from .relaxation import MeanThroughDraws, is_learned


@dataclass(frozen=True, repr=False)
class GumbelRao(MeanThroughDraws):
    r"""Straight-through Gumbel-Softmax, averaged over the noise that gives the same draw.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \frac1M \sum_{m}
        \partial \operatorname{softmax}\bigl((\log p + g^{(n,m)})/\tau\bigr),
        \qquad g \sim \text{Gumbel} \mid \arg\max(\log p + g) = x^{(n)}

    The noise g is held fixed in the derivative, as in ``GumbelSoftmax(hard=True)``, of which this
    is the conditional mean given the draw: the same expectation, also **biased**, at a lower
    variance. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M softmaxes. Needs: f differentiable, a
    Bernoulli or one-hot q.
    Reference: Paulus et al., "Rao-Blackwellizing the straight-through Gumbel-Softmax gradient
    estimator", 2021.

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0, a number, or a 0-d tensor.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    The uniforms behind the Gumbels can be given to a call as ``noise``, ``[M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> GumbelRao(noise_samples=100)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad[0] > 0.3, logits.grad[1]
    (tensor(True), tensor(0.))
    """

    samples: int = 1
    noise_samples: int = 10
    temperature: float | Tensor = 1.0
    draws: Draws = "independent"
    validate: bool = True

    randomness = ("x", "noise")
    reference = "Paulus et al. 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("GumbelRao", "noise_samples", self.noise_samples)
        check_temperature("GumbelRao", self.temperature)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        index = law.index(x)
        logits = finite_log_probs(law)
        if law.k == 2 and not is_learned(self.temperature):
            odds = logits[..., 1] - logits[..., 0]
            with torch.no_grad():
                slope = self._rise(law, index, noise, generator)
            rise = slope * (odds - odds.detach())
            return torch.stack([-rise, rise], -1)
        z = gumbels_given_argmax(law, index, noise, (self.noise_samples,), generator)
        return ((z + (logits - logits.detach())) / self.temperature).softmax(-1).mean(0)

    def _rise(
        self,
        law: Factors,
        index: Int64[Tensor, "n *batch d"],
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, "n *batch d"]:
        r"""Return the mean derivative of the softmax's second entry in the log-odds, for two
        categories.

        The difference of the two z is :math:`\log(1 + e_o / (p_o e_j))` for the drawn category j
        and the other one o, with standard exponential e. The softmax's entries are in the ratio
        :math:`t = (1 + e_o / (p_o e_j))^{-1/\tau}`, and the derivative is
        :math:`t / (\tau (1 + t)^2)`.
        """
        repeats = self.noise_samples
        if noise is not None:
            shape = (repeats, *index.shape, law.k)
            form = "[..., n, *batch, d, k]"
            noise = check_uniforms("noise", noise, shape, form, law, lead=2)
        second_is_drawn = index.bool()
        p = law.probs.detach()
        other = torch.where(second_is_drawn, p[..., 0], p[..., 1])
        totals: dict[int, Tensor] = {}
        for which, draws in _parts(repeats, index, law.k):
            drawn = second_is_drawn[draws]
            if noise is None:
                rows = len(range(repeats)[which])
                size = (rows, *drawn.shape, law.k)
                u = rand(size, dtype=law.real, device=law.device, generator=generator)
            else:
                u = noise[which, draws]
            exponential = -positive(u).log()
            first, second = exponential[..., 0], exponential[..., 1]
            ratio = torch.where(drawn, first / second, second / first) / other[draws] + 1
            t = 1 / ratio if self.temperature == 1 else ratio.pow(-1 / self.temperature)
            total = (t / (1 + t).square()).sum(0)
            start = draws.start
            totals[start] = totals[start] + total if start in totals else total
        return torch.cat(list(totals.values())) / (repeats * self.temperature)


def _parts(repeats: int, index: Tensor, k: int) -> list[tuple[slice, slice]]:
    """Return slices of repeats and draws: on a CPU few at a time, so that they stay in its caches.

    They are in the order of memory, so that the uniforms are those of one large call.
    """
    n = len(index)
    if index.device.type != "cpu" or torch.compiler.is_compiling() or inside_functorch():
        return [(slice(0, repeats), slice(0, n))]
    step = max(1, 2**17 * n // max(1, index.numel() * k))
    return [
        (slice(row, row + 1), slice(start, min(start + step, n)))
        for row in range(repeats)
        for start in range(0, n, step)
    ]
