"""Estimators that sum over some points and sample the rest."""

from dataclasses import KW_ONLY
from math import comb, prod
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...core import Count, Estimate, Estimator, Evaluator, Learner, Randomness, Range
from ...core.categories import integers
from ...core.checks import check_count
from ...core.factors import Factors
from ...core.learning import frozen, learns
from ...core.tracing import can_inspect
from .likely_and_rest import Members, beam_search, sum_and_sample
from .prefix_tree import as_words

__all__ = ["MAPO", "SumAndSample", "UnorderedSet"]

TOO_MANY = "The weights need 2^samples sums: use RLOO."


class UnorderedSet(Estimator[Factors]):
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

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> q = torch.distributions.Categorical(logits=logits)
    >>> value = UnorderedSet(samples=3)(lambda x: x.square().float(), q)
    >>> torch.allclose(value, (q.probs * torch.tensor([0.0, 1.0, 4.0])).sum())
    True
    """

    samples: Annotated[int, Range(2, 10, hint=TOO_MANY)] = 2

    least_samples = 2
    too_few = "One draw has no others to leave out: use Reinforce."

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.given_points(self.samples)
        if x is None:
            u = draw.uniform(self.samples, *q.batch_shape, q.d, batch_from=1)
            with torch.no_grad():
                index = q.from_uniforms(u[:1])
            for row in range(1, self.samples):
                drawn, _ = Members(q, index).draw_outside(u[row : row + 1])
                index = torch.cat([index, drawn])
        else:
            check_count("UnorderedSet", "x.shape[0]", len(x), least=2, most=10, hint=TOO_MANY)
            index = q.index(x)
        members = Members(q, index)
        is_new = members.is_new
        if x is not None and can_inspect(q.validate, x) and not bool(is_new.all()):
            bad = tuple((~is_new).nonzero()[0].tolist())
            raise ValueError(
                f"x must hold different points, but the point at index {bad} is a repetition. "
                "Give different points, or no x."
            )
        fx = f(q.point(index))
        score = q.log_prob(index)
        p = torch.where(is_new, score.detach().exp(), 0.0)
        first, second = _chances(p, members.probability_outside)
        change = fx.detach().unsqueeze(1) - fx.detach()
        value = (first * fx).sum(0)
        return Estimate(value, value + (first * (second * change).sum(1) * score).sum(0))


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


class SumAndSample(Estimator[Factors]):
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
        samples: number N of draws from the rest; given as ``x``, they must lie outside C.
        top: number of points in C.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> q = torch.distributions.Categorical(logits=logits)
    >>> value = SumAndSample(top=2)(lambda x: x.float(), q)  # the rest is one point, 0
    >>> torch.allclose(value, q.probs[1] + 2 * q.probs[2])
    True
    """

    samples: int = 1
    _: KW_ONLY
    top: Count = 1

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        count = min(self.top, prod(q.cardinalities))
        members, valid = beam_search(q, count)
        return sum_and_sample(f, q, draw, members[:count], valid[:count], self.samples)[0]


class MAPO(Learner[Factors]):
    r"""An exact sum over a memory M of the best points so far, and REINFORCE with N draws from
    outside it.

    .. math::
        w_M \sum_{m \in M} \frac{q(m)}{w_M}\, g(m) + \frac{1 - w_M}{N} \sum_n g(x^{(n)}), \qquad w_M
        = \sum_{m \in M} q(m),
        \quad x^{(n)} \sim q(\cdot \mid x \notin M),

    with :math:`g(x) = \partial f(x) + (f(x) - b)\, \partial \log q(x)` and b as in
    :class:`SumAndSample`. After each call in training mode (``E.train()``, the default) the best
    points of memory and draws become the memory of the *next* call, so that every estimate is
    unbiased while the memory changes. All batch elements share one memory, where a point counts
    with its best value among them. If good points differ between contexts, make one estimator for
    each context. The buffer ``memory`` is saved in ``state_dict``.

    Cost: size + samples evaluations. Needs: any f. Meant for sequences with sparse rewards.
    Reference: Liang et al., "Memory augmented policy optimization for program synthesis and
    semantic parsing", 2018.

    Args:
        samples: number N of draws from outside the memory; given as ``x``, they must lie outside
            it.
        size: number of points remembered.
        maximise: whether large values of f are good (a reward) or small ones (a loss).
        clip: the least weight of a memory that holds a possible point (0.1 in the paper).
            **Biased** above 0. It keeps good points in the gradient although the policy gives them
            little probability.
        max_variables: the largest number of variables that q may have.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E = MAPO(size=1, samples=2, max_variables=4)
    >>> E(lambda x: x.sum(-1), q, x=torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]])), E.memory
    (tensor(1.5000), tensor([[ 1,  0,  1, -1]]))
    """

    samples: int = 2
    _: KW_ONLY
    size: Count = 4
    maximise: bool = True
    clip: Annotated[float, Range(0, 1, below=True)] = 0.0
    max_variables: Count = 64

    many_outputs = False
    why_one_output = "it remembers the points where one output is high"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Category numbers, then -1.
        self.memory = nn.Buffer(torch.full((self.size, self.max_variables), -1))

    @property
    def unbiased(self) -> bool:
        return self.clip == 0

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        members, valid = self._recall(q)
        estimate, values, drawn = sum_and_sample(
            f, q, draw, members, valid, self.samples, self.clip
        )
        if learns(self, values):
            self._remember(values, valid, drawn, q.k)
        return estimate

    @torch.no_grad()
    def _recall(self, q: Factors) -> tuple[Tensor, Bool[Tensor, "m *batch"]]:
        """Return the remembered points (a likely one for an impossible) and which are possible."""
        hint = f"q has {q.d} variables."
        check_count("MAPO", "max_variables", self.max_variables, least=q.d, hint=hint)
        (memory,) = frozen(self, self.memory)
        stored, beyond = memory[:, : q.d], memory[:, q.d :]
        fits = ((stored >= 0) & (stored < integers(q.cardinalities, stored.device))).all(-1)
        fits = fits & (beyond < 0).all(-1)
        lead = (self.size, *[1] * len(q.batch_shape))
        best, _ = beam_search(q, 1)
        points = torch.where(fits.view(*lead, 1), stored.view(*lead, q.d), best)
        # What follows an impossible prefix need not be a distribution, so it is not checked.
        log_prob = q.ordered.log_prob_of_rows(points, validate=False)
        valid = fits.view(lead) & (log_prob > -torch.inf)
        return torch.where(valid.unsqueeze(-1), points, best), valid

    @torch.no_grad()
    def _remember(self, values: Tensor, valid: Tensor, drawn: Tensor, k: int) -> None:
        """Keep the best different points of memory and draws, by the values of f in this call."""
        score = (values if self.maximise else -values).masked_fill(~values.isfinite(), -torch.inf)
        old = score[: self.size].masked_fill(~valid, -torch.inf).reshape(self.size, -1).amax(1)
        score = torch.cat([old, score[self.size :].flatten()])
        padding = (0, self.max_variables - drawn.shape[-1])
        pool = torch.cat([self.memory, pad(drawn.flatten(0, -2), padding, value=-1)])
        words = as_words(pool[:, : drawn.shape[-1]], k)
        kept = []
        for _ in range(self.size):
            best = score.argmax(0, keepdim=True)
            row = pool.index_select(0, best)
            kept.append(torch.where(score.index_select(0, best).unsqueeze(1) > -torch.inf, row, -1))
            same = (words == words.index_select(0, best)).all(-1)
            score = score.masked_fill(same, -torch.inf)
        self.memory.copy_(torch.cat(kept))
