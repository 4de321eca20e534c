"""Gumbel-Rao: straight-through Gumbel-Softmax with its noise averaged out."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_count, check_temperature
from ...distributions.factors import Factors, factors, relaxable
from ...estimator import RELAXABLE, Function, Kind, Target, label
from ...sampling.draw import base_draws
from ...sampling.gumbel import gumbels_given_argmax
from ..logit_gradients import finite_log_probs
from .relaxation import mean_through, straight_through, to_point


@dataclass(frozen=True)
class GumbelRao:
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
    validate: bool = True

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = False
    supports: ClassVar[frozenset[Kind]] = RELAXABLE
    differentiates_f: ClassVar[bool] = True
    randomness: ClassVar[tuple[str, ...]] = ("x", "noise")
    many_outputs: ClassVar[bool] = True
    reference: ClassVar[str] = "Paulus et al. 2021"

    __repr__ = label

    def __post_init__(self) -> None:
        check_count("GumbelRao", "samples", self.samples)
        check_count("GumbelRao", "noise_samples", self.noise_samples)
        check_temperature("GumbelRao", self.temperature)

    def rows(self, q: Distribution) -> int:
        return self.samples

    def evaluations(self, q: Distribution) -> int:
        return self.samples

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        relaxable(q, law, "GumbelRao")
        points = self.points(law, x=x, noise=noise, generator=generator)
        return mean_through(f, law, points, self.validate)

    def points(
        self,
        law: Factors,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *batch_event"]:
        """Return draws of q with this estimator's derivative, ``[n, *batch, *event]``."""
        x = base_draws(law, x, self.samples, generator=generator, validate=self.validate)
        z = gumbels_given_argmax(
            law, law.index(x), noise, (self.noise_samples,), generator, self.validate
        )
        logits = finite_log_probs(law)
        soft = ((z + (logits - logits.detach())) / self.temperature).softmax(-1).mean(0)
        return straight_through(law, x, to_point(law, soft))
