"""The unordered-set estimator: REINFORCE without replacement."""

from dataclasses import dataclass
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_count
from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ...sampling.draw import categories, draws_for, uniforms_for
from ...tracing import can_inspect
from .likely_and_rest import probability_outside, remaining_probability, sample_outside, tree_of


@dataclass(frozen=True, repr=False)
class UnorderedSet(FromDraws):
    r"""REINFORCE on a set S of draws without replacement, each with the others as its baseline.

    .. math::
        \sum_{s \in S} w_s\, \partial f(s) + \sum_{s \in S} w_s\, \partial \log q(s) \sum_{t \in S}
        v_{t|s} (f(s) - f(t)),
        \qquad w_s = q(s) R(S, s) = \frac{H(S \setminus s)}{H(S)}, \quad
        v_{t|s} = \frac{H(S \setminus \{s, t\})}{H(S \setminus s)}

    The points are drawn one after the other, each from q without the earlier ones. :math:`w_s` is
    the probability that s came first, given the set (R is the leave-one-out ratio), :math:`v_{t|s}`
    that t came second times the probability of all but s. Both come from
    :math:`H(U) = \sum_{u \in U} H(U \setminus u) / (1 - q(S \setminus U))`,
    :math:`H(\emptyset) = 1`, a sum of positive numbers over the subsets of S. It is unbiased, and
    exact if S is the whole support.

    Cost: ``samples`` evaluations; drawing takes as many passes through q, the weights take
    2^samples numbers. Needs: any f.
    Reference: Kool et al., "Estimating gradients for discrete random variables by sampling without
    replacement", 2020.

    Args:
        samples: number of different points, 2 to 10. If q has fewer, the surplus has weight 0.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> q = torch.distributions.Categorical(logits=logits)
    >>> value = UnorderedSet(samples=3)(lambda x: x.square().float(), q)
    >>> torch.allclose(value, (q.probs * torch.tensor([0.0, 1.0, 4.0])).sum())
    True
    """

    samples: int = 2
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    draws_are_dependent = True
    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."
    reference = "Kool et al. 2020"

    def check_draws(self, name: str, count: object) -> None:
        super().check_draws(name, count)
        hint = "The weights need 2^samples sums: use RLOO."
        check_count("UnorderedSet", name, count, least=2, most=10, hint=hint)

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
        if x is None:
            u = uniforms_for(law, self.samples, generator)
            index = categories(law, u[:1])
            for row in range(1, self.samples):
                drawn, _ = sample_outside(law, index, u[row : row + 1])
                index = torch.cat([index, drawn])
        else:
            x = draws_for(self, law, x, generator)
            index = law.index(x)
        tree = tree_of(law, index)
        is_new = tree.is_new
        if x is not None and can_inspect(self.validate, x) and not bool(is_new.all()):
            bad = tuple((~is_new).nonzero()[0].tolist())
            raise ValueError(
                f"x must hold different points, but the point at index {bad} is a repetition. "
                "Give different points, or no x."
            )
        fx = evaluate(f, law.point(index), law)
        score = law.log_prob(index)
        rest = probability_outside(remaining_probability(law, index, tree))
        first, second = _chances(torch.where(is_new, score.detach().exp(), 0.0), rest)
        change = fx.detach().unsqueeze(1) - fx.detach()
        value = (first * fx).sum(0)
        return attach(value, value + (first * (second * change).sum(1) * score).sum(0))


def _chances(
    p: Float[Tensor, "n *batch"], rest: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "n *batch"], Float[Tensor, "n n *batch"]]:
    """Return w and v of the docstring, for points of probabilities p; ``rest`` is the probability
    of all other points.

    ``rest`` is 1 minus the sum of p, without the rounding error of that difference. The table of H
    is indexed by the bits of the subset and holds logarithms, in float64 where the device has it,
    because errors add up over the sizes of subsets.
    """
    dtype = p.dtype
    real = dtype if p.device.type == "mps" else torch.float64
    n, p, rest = len(p), p.to(real), rest.to(real)
    bit = 2 ** torch.arange(n, device=p.device)
    subset = torch.arange(2**n, device=p.device)
    holds = (subset.unsqueeze(1) & bit) > 0
    remaining = rest.clamp(min=torch.finfo(real).tiny) + torch.tensordot(holds.to(real), p, 1)
    by_size = holds.sum(1).argsort(stable=True)
    table = torch.zeros_like(remaining)
    start = 1
    for size in range(1, n + 1):
        subsets = by_size[start : start + comb(n, size)]
        start += len(subsets)
        members = holds[subsets].to(torch.uint8).topk(size, -1).indices
        smaller = table[subsets.unsqueeze(1) ^ bit[members]]
        table = table.index_copy(0, subsets, smaller.logsumexp(1) - remaining[subsets].log())
    ones = [1] * (p.dim() - 1)
    without_one = table[(2**n - 1) ^ bit]
    without_two = table[(2**n - 1) ^ bit.unsqueeze(1) ^ bit] - without_one.unsqueeze(1)
    is_same = torch.eye(n, dtype=torch.bool, device=p.device).view(n, n, *ones)
    first = (without_one - table[-1]).exp()
    second = without_two.masked_fill(is_same, -torch.inf).exp()
    return first.to(dtype), second.to(dtype)
