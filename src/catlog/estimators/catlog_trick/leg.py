"""LEG: local expectation gradients."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_chunk_size
from ...distributions.conditionals import Conditionals, view
from ...distributions.factors import Factors
from ...distributions.integers import integers
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import chunks, evaluate, evaluate_chunked
from ...sampling.draw import draws_for
from .indecater import IndeCateR


@dataclass(frozen=True, repr=False)
class LEG(FromDraws):
    r"""Local expectation gradients: each variable is summed out given *all* others, weighted by its
    conditional probabilities given them.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \frac1N \sum_n \sum_i \sum_k
        q(k \mid x^{(n)}_{\neq i})\, f(x^{(n)}_{\neq i}, k)\; \partial \log q(k \mid x^{(n)}_{<i})

    Unbiased. Nothing is resampled: the later variables keep the values that they have in the draw,
    and the weight accounts for that. For independent variables the weight is :math:`p_i(k)` and LEG
    is :class:`IndeCateR`.

    Cost: N (1 + d (k - 1)) evaluations and, for dependent variables, as many passes through q.
    Needs: any f.
    Reference: Titsias and Lázaro-Gredilla, "Local expectation gradients for black box variational
    inference", 2015; for shared parameters, De Smet et al., 2023, appendix.

    Args:
        samples: number of pivot draws N.
        chunk_size: evaluations of f at once; None: chosen for the device.
        validate: check the values of f and q for NaN and inf (eager mode only).

    >>> from catlog import MarkovChain
    >>> q = MarkovChain(torch.zeros(2), torch.zeros(2, 2), length=3)
    >>> LEG(samples=2)(lambda x: x.sum(-1).float(), q).shape
    torch.Size([])
    """

    samples: int = 1
    chunk_size: int | None = None
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    reference = "Titsias & Lázaro-Gredilla 2015"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chunk_size("LEG", self.chunk_size)

    def evaluations(self, q: Distribution) -> int:
        law = view(q, validate=False)
        return self.samples * (1 + sum(law.cardinalities) - law.d)

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
        if isinstance(law, Factors):  # there, weights may multiply differences of f
            E = IndeCateR(self.samples, chunk_size=self.chunk_size, validate=self.validate)
            return E(f, q, x=x, outputs=outputs, generator=generator)
        x = draws_for(self, law, x, generator)
        index = law.index(x)
        fx = evaluate(f, x, law)
        score = law.log_conditionals(index)  # [n, *batch, d, k], differentiable
        with torch.no_grad():
            changes = _SingleChanges.of(law, index)
            parts = chunks(changes.rows, law, f, self.chunk_size)
            joint = [law.log_prob(changes.made(part)[1]) for part in parts]
            log_joint = torch.cat([score.new_zeros((0, *law.batch_shape)), *joint])

            def points(part: slice) -> Tensor:
                """Return the points after possible changes, and the draws in place of others."""
                before, after = changes.made(part)
                is_possible = (log_joint[part] > -torch.inf).unsqueeze(-1)
                return law.point(torch.where(is_possible, after, before))

            values = evaluate_chunked(f, points, changes.rows, law, chunk_size=self.chunk_size)
            log_prob = score.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
            log_weight = changes.table(law, log_prob, log_joint, -torch.inf)
            weight = log_weight.softmax(-1)  # q(k | all others)
            cost = weight * changes.table(law, fx.detach(), values, 0.0)
        base = fx.mean(0)
        # A category of weight zero may have log-probability -inf.
        change = (cost * torch.where(cost != 0, score, 0.0)).sum((-1, -2)).mean(0)
        return attach(cost.sum((-1, -2)).mean(0) / law.d, base + change)


@dataclass(frozen=True, eq=False)
class _SingleChanges:
    """Draws with one variable set to another category: a row for every change of every draw.

    Attributes:
        index: the draws.
        variable: the variable that a change sets.
        category: the category that it sets in each draw.
    """

    index: Int64[Tensor, "n *batch d"]
    variable: Int64[Tensor, " changes"]
    category: Int64[Tensor, "changes n *batch"]

    @classmethod
    def of(cls, law: Conditionals, index: Int64[Tensor, "n *batch d"]) -> "_SingleChanges":
        """Return the changes of the draws to all other categories of all variables."""
        sizes = law.cardinalities
        changes = [(i, offset) for i, size in enumerate(sizes) for offset in range(1, size)]
        variable = integers([i for i, _ in changes], law.device)
        offset = integers([offset for _, offset in changes], law.device)
        category = (index[..., variable] + offset) % integers(sizes, law.device)[variable]
        # Contiguous, so that its rows are a view: a copy in every chunk would take quadratic time.
        return cls(index, variable, category.movedim(-1, 0).contiguous())

    @property
    def rows(self) -> int:
        return len(self.variable) * len(self.index)

    def made(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return the draws of some rows, and the same after their changes.

        Only these rows exist, which bounds the memory.
        """
        row = torch.arange(part.start, part.stop, device=self.index.device)
        change, draw = row // len(self.index), row % len(self.index)
        before = self.index.index_select(0, draw)
        category = self.category.flatten(0, 1)[part].unsqueeze(-1)
        place = self.variable[change].view(-1, *[1] * (before.dim() - 1))
        return before, before.scatter(-1, place.expand(category.shape), category)

    def table(
        self,
        law: Conditionals,
        at_draws: Float[Tensor, "n *batch"],
        at_changes: Float[Tensor, "rows *batch"],
        empty: float,
    ) -> Float[Tensor, "n *batch d k"]:
        """Return numbers at the draws and at their changes by variable and category."""
        entries = at_draws.new_full((*at_draws.shape, law.d * law.k), empty)
        shape = (len(self.variable), len(at_draws))
        at_changes = at_changes.unflatten(0, shape).movedim(0, -1).to(at_draws.dtype)
        entry = self.variable * law.k + self.category.movedim(0, -1)
        entries = entries.scatter(-1, entry.expand(at_changes.shape), at_changes)
        entries = entries.unflatten(-1, (law.d, law.k))
        drawn = at_draws[..., None, None].expand(*at_draws.shape, law.d, 1)
        return entries.scatter(-1, self.index.unsqueeze(-1).expand(drawn.shape), drawn)
