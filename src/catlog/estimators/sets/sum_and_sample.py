"""Sum-and-sample: sum over the most probable points, sample the rest."""

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_count
from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function
from .likely_and_rest import beam_search, sum_and_sample


@dataclass(frozen=True, repr=False)
class SumAndSample(FromDraws):
    r"""An exact sum over the most probable points C, and REINFORCE with N draws from the rest.

    .. math::
        \sum_{c \in C} q(c)\, \partial f(c) + \partial q(c) \bigl(f(c) - \overline{b}\bigr) +
        \frac{1 - q(C)}{N} \sum_n
        \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - b_n\bigr)\, \partial \log q(x^{(n)}), \qquad
        x^{(n)} \sim q(\cdot \mid x \notin C)

    The baseline :math:`b_n` is the estimate of :math:`\mathbb{E}[f]` from C and the other draws;
    for N = 1, the mean over C. Unbiased for every set C that does not depend on the draws. C is
    found by beam search of width ``top``, which finds the most probable points for independent
    variables, and likely ones for structured distributions. If C is the whole support, the estimate
    is exact. It pays off if q is concentrated on few points.

    Cost: top + samples evaluations (at most the number of points + samples). Needs: any f.
    Reference: Liu et al., "Rao-Blackwellized stochastic gradients for discrete distributions",
    2019.

    Args:
        top: number of points in C.
        samples: number N of draws from the rest; given as ``x``, they must lie outside C.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> q = torch.distributions.Categorical(logits=logits)
    >>> value = SumAndSample(top=2)(lambda x: x.float(), q)  # the rest is one point, 0
    >>> torch.allclose(value, q.probs[1] + 2 * q.probs[2])
    True
    """

    top: int = 1
    samples: int = 1
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    draws_are_dependent = True
    reference = "Liu et al. 2019"

    def __post_init__(self) -> None:
        check_count(
            "SumAndSample", "top", self.top, hint="Without points to sum use RLOO or Reinforce."
        )
        super().__post_init__()

    def evaluations(self, q: Distribution) -> int:
        return min(self.top, prod(view(q, validate=False).cardinalities)) + self.samples

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
        count = min(self.top, prod(law.cardinalities))
        members, valid = beam_search(law, count)
        return sum_and_sample(
            f, law, members[:count], valid[:count], self.samples, x, generator=generator
        )[0]
