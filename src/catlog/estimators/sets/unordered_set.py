"""The unordered-set estimator: draws without replacement."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_count
from ...distributions.conditionals import view
from ...estimator import ANY, Function, Kind, Target, attach, label
from ...evaluation.evaluate import evaluate
from ...sampling.draw import base_draws, categories, uniforms
from ...tracing import can_inspect
from .likely_and_rest import (
    is_first_occurrence,
    probability_outside,
    remaining_probability,
    sample_outside,
)


@dataclass(frozen=True)
class UnorderedSet:
    r"""REINFORCE over a set S of different draws, in whatever order they came, each with the others as its baseline.

    .. math::
        \sum_{s \in S} w_s\, \partial f(s) + \sum_{s \in S} w_s\, \partial \log q(s) \sum_{t \in S} v_{t|s} (f(s) - f(t)),
        \qquad w_s = q(s) R(S, s) = \frac{H(S \setminus s)}{H(S)}, \quad
        v_{t|s} = \frac{H(S \setminus \{s, t\})}{H(S \setminus s)}

    The points are drawn one after the other from q without those before. :math:`w_s` is the probability that s came first,
    given the set (R is the leave-one-out ratio), :math:`v_{t|s}` that t came second times the probability of all but s. Both
    come from :math:`H(U) = \sum_{u \in U} H(U \setminus u) / (1 - q(S \setminus U))`, :math:`H(\emptyset) = 1`, a sum of
    positive numbers over the subsets of S. Unbiased; where S is the whole support it is exact.

    Cost: ``samples`` evaluations; drawing takes as many passes of the law, the weights 2^samples numbers. Needs: nothing of f.
    Reference: Kool et al., "Estimating gradients for discrete random variables by sampling without replacement", 2020.

    Args:
        samples: number of different points, 2 to 10. Where q has fewer, the surplus counts nothing.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> q = torch.distributions.Categorical(logits=logits)
    >>> torch.allclose(UnorderedSet(samples=3)(lambda x: x.square().float(), q), (q.probs * torch.tensor([0.0, 1.0, 4.0])).sum())
    True
    """

    samples: int = 2
    validate: bool = True

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = ANY
    differentiates_f: ClassVar[bool] = False
    randomness: ClassVar[tuple[str, ...]] = ("x",)
    reference: ClassVar[str] = "Kool et al. 2020"

    __repr__ = label

    def __post_init__(self) -> None:
        check_count(
            "UnorderedSet",
            "samples",
            self.samples,
            least=2,
            hint="One draw has no others to leave out: use Reinforce.",
        )
        check_count(
            "UnorderedSet",
            "samples",
            self.samples,
            least=2,
            most=10,
            hint="The weights need 2^samples sums: use RLOO.",
        )

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
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        law = view(q, validate=self.validate)
        if x is None:
            u = uniforms(
                self.samples,
                (*law.batch_shape, law.d),
                dtype=law.real,
                device=law.device,
                generator=generator,
            )
            index = categories(law, u[:1])
            for row in range(1, self.samples):
                index = torch.cat(
                    [index, sample_outside(law, index, None, u[row : row + 1], self.validate)]
                )
        else:
            x = base_draws(
                law,
                x,
                self.samples,
                least=2,
                most=10,
                owner="UnorderedSet",
                generator=generator,
                validate=self.validate,
            )
            index = law.index(x)
        new = is_first_occurrence(index)
        if x is not None and can_inspect(self.validate, x) and not bool(new.all()):
            bad = tuple((~new).nonzero()[0].tolist())
            raise ValueError(
                f"x holds a point a second time at index {bad}. Give different points, or none."
            )
        fx = evaluate(f, law.point(index), law, validate=self.validate)
        score = law.log_prob(index)
        rest = probability_outside(remaining_probability(law, index, validate=self.validate))
        first, second = _chances(torch.where(new, score.detach().exp(), 0.0), rest)
        change = fx.detach().unsqueeze(1) - fx.detach()
        value = (first * fx).sum(0)
        return attach(value, value + (first * (second * change).sum(1) * score).sum(0))


def _chances(
    p: Float[Tensor, "n *batch"], rest: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "n *batch"], Float[Tensor, "n n *batch"]]:
    """w and v of the docstring for points of probabilities p, with ``rest`` for all other points.

    H is tabled by the bits of the subset, in logarithms, and in float64 where the device has it: the rounds add up their errors.
    ``rest`` is 1 less the sum of p, but known to its own last digits.
    """
    given, real = p.dtype, p.dtype if p.device.type == "mps" else torch.float64
    n, p, rest = len(p), p.to(real), rest.to(real)
    bit = 2 ** torch.arange(n, device=p.device)
    subset = torch.arange(2**n, device=p.device)
    holds = (subset.unsqueeze(1) & bit) > 0
    left = (rest.clamp(min=torch.finfo(real).tiny) + torch.tensordot(holds.to(real), p, 1)).log()
    empty, out = (each.view(*each.shape, *[1] * (p.dim() - 1)) for each in (subset == 0, ~holds))
    table = torch.where(empty, 0.0, -torch.inf).expand(left.shape).to(real)
    for _ in range(n):  # after i rounds subsets of i points are right
        table = torch.where(
            empty,
            0.0,
            table[subset.unsqueeze(1) ^ bit].masked_fill(out, -torch.inf).logsumexp(1) - left,
        )
    others = table[(2**n - 1) ^ bit]
    without = table[(2**n - 1) ^ bit.unsqueeze(1) ^ bit] - others.unsqueeze(1)
    itself = torch.eye(n, dtype=torch.bool, device=p.device).view(n, n, *[1] * (p.dim() - 1))
    return (others - table[-1]).exp().to(given), without.masked_fill(itself, -torch.inf).exp().to(
        given
    )
