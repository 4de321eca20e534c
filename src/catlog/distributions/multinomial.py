"""Counts of categories in a number of draws, one category after the other."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Multinomial
from torch.nn.functional import pad

from ..core.categories import Kind
from ..core.factors import IndependentFactors
from ..core.ordered import Ordered, PointForm
from ..core.view import register_distribution
from .plackett_luce import suffix_log_sums


class MultinomialCounts(Ordered):
    r"""torch's ``Multinomial`` by its conditionals, which are binomial.

    .. math::
        q(x_i \mid x_{<i}) = \text{Binomial}\Bigl(x_i;\; n - \textstyle\sum_{j<i} x_j,\;
        p_i / \sum_{j \ge i} p_j\Bigr)

    f sees counts as ``Multinomial`` draws them: floats ``[*batch, k]`` that add up to n. The last
    count is certain, so no evaluations are spent on it.

    Cost: a count has n + 1 categories. :class:`~catlog.SCateR` evaluates f for each of them (with
    ``categories=m``, for the m likeliest and one more); estimators that score whole draws do not
    depend on n.

    Args:
        multinomial: with any number of categories and n.

    >>> q = MultinomialCounts(Multinomial(2, torch.ones(3)))
    >>> q.log_prob(torch.tensor([1, 0, 1])).exp()
    tensor(0.2222)
    """

    def __init__(self, multinomial: Multinomial) -> None:
        law = IndependentFactors(multinomial._categorical, multinomial.batch_shape, torch.Size())
        n, k = multinomial.total_count, law.k
        # By log-probabilities: a probability that underflows to zero is small, not impossible.
        possible = (law.log_probs > -torch.inf).squeeze(-2)
        # A sum of n of these is finite.
        floor = torch.finfo(law.real).min / (4 * (n + 1))
        logits = torch.where(possible, law.log_probs.squeeze(-2), floor)
        # The logarithm of p_i + p_{i+1} + ... is level + log. (Second derivatives of torch's
        # logcumsumexp are NaN.)
        level, log = suffix_log_sums(logits.detach(), logits - logits.detach())
        # Whether a category after i is possible: none after the last.
        later = possible.flip(-1).cummax(-1).values.flip(-1)
        self.possible = possible
        self.possible_later = pad(later[..., 1:], (0, 1), value=False)
        self.share = (logits - level) - log
        self.rest_share = pad(level.diff() + log.diff(), (0, 1))
        self.n = n
        self.cardinalities = (n + 1,) * k
        self.fixed = frozenset([k - 1])
        self.real = law.real
        self.device = law.device
        dtype = multinomial._categorical._param.dtype
        self.form = PointForm(Kind.INDEX, multinomial.event_shape, dtype)
        super().__init__(multinomial.batch_shape, torch.Size([k]), validate_args=False)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        remaining = self.n - x[..., :block].sum(-1, keepdim=True)
        return self._binomials(remaining, slice(block, block + 1))

    def raw_logits(self, x: Tensor) -> Tensor:
        return self._binomials(self.n - x.cumsum(-1) + x, slice(None))

    def _binomials(
        self, remaining: Int64[Tensor, "*lead m"], categories: slice
    ) -> Float[Tensor, "*lead m n_plus_1"]:
        """Return the logits of these counts; ``remaining`` draws are for each and later ones."""
        count = torch.arange(self.n + 1, device=remaining.device)
        rest = remaining.unsqueeze(-1) - count
        whole = rest.clamp(min=0).to(self.real)
        logits = (
            count * self.share[..., categories, None]
            + whole * self.rest_share[..., categories, None]
            - torch.lgamma(count.to(self.real) + 1)
            - torch.lgamma(whole + 1)
        )
        is_possible = self.possible[..., categories, None]
        later = self.possible_later[..., categories, None]
        impossible = (rest < 0) | ((rest > 0) & ~later) | ((count > 0) & ~is_possible)
        masked = logits.masked_fill(impossible, -torch.inf)
        # After counts that cannot happen, any probabilities will do.
        return torch.where(impossible.all(-1, keepdim=True), logits, masked)


register_distribution(Multinomial, MultinomialCounts)
