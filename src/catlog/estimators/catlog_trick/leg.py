"""LEG: local expectation gradients."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_chunk_size
from ...distributions.conditionals import Conditionals, structure, view
from ...distributions.factors import Factors
from ...distributions.integers import integers
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import chunks, evaluate, evaluate_chunked
from ...sampling.draw import draws_for


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

    Cost: N (1 + d (k - 1)) evaluations and as many passes through q. Needs: nothing of f.
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
        ordered = structure(law)
        x = draws_for(self, law, x, generator)
        index = law.index(x)
        fx = evaluate(f, x, law)
        score = ordered.log_conditionals(index, self.validate)  # [n, *batch, d, k], differentiable
        with torch.no_grad():
            moved, slot = _single_changes(law, index)
            joint = [score.new_zeros((0, *law.batch_shape))]
            for part in chunks(len(moved), law, f, self.chunk_size):
                log_probs = ordered.log_conditionals(moved[part], self.validate)
                joint.append(log_probs.gather(-1, moved[part].unsqueeze(-1)).squeeze(-1).sum(-1))
            log_joint = torch.cat(joint)
            unmoved = index.repeat(slot.shape[-1], *[1] * (index.dim() - 1))
            moved = torch.where((log_joint > -torch.inf).unsqueeze(-1), moved, unmoved)
            values = evaluate_chunked(
                f, lambda part: law.point(moved[part]), len(moved), law, chunk_size=self.chunk_size
            )
            log_prob = score.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
            log_weight = _table(law, index, slot, log_prob, log_joint, -torch.inf)
            weight = log_weight.softmax(-1)  # q(k | all others)
            cost = weight * _table(law, index, slot, fx.detach(), values, 0.0)
        base = fx.mean(0)
        # A category of weight zero may have log-probability -inf.
        change = (cost * torch.where(cost != 0, score, 0.0)).sum((-1, -2)).mean(0)
        return attach(cost.sum((-1, -2)).mean(0) / law.d, base + change)


def _single_changes(
    law: Factors | Conditionals, index: Int64[Tensor, "n *batch d"]
) -> tuple[Int64[Tensor, "moves_n *batch d"], Int64[Tensor, "n *batch moves"]]:
    """Return the draws with one variable set to another category, all of them in turn, and the
    place of each change among the d k categories."""
    moves = [(i, offset) for i, size in enumerate(law.cardinalities) for offset in range(1, size)]
    variable = integers([i for i, _ in moves], law.device)
    offset = integers([offset for _, offset in moves], law.device)
    cardinality = integers(law.cardinalities, law.device)[variable]
    category = (index[..., variable] + offset) % cardinality
    moved = index.unsqueeze(-2).repeat_interleave(len(variable), -2)
    place = variable[:, None].expand(*moved.shape[:-1], 1)
    moved = moved.scatter(-1, place, category.unsqueeze(-1))
    return moved.movedim(-2, 0).flatten(0, 1), variable * law.k + category


def _table(
    law: Factors | Conditionals,
    index: Int64[Tensor, "n *batch d"],
    slot: Int64[Tensor, "n *batch moves"],
    at_draws: Float[Tensor, "n *batch"],
    at_moves: Float[Tensor, "moves_n *batch"],
    empty: float,
) -> Float[Tensor, "n *batch d k"]:
    """Return numbers at the draws and at all their single changes by variable and category."""
    entries = at_draws.new_full((*at_draws.shape, law.d * law.k), empty)
    at_moves = at_moves.unflatten(0, (slot.shape[-1], len(at_draws))).movedim(0, -1)
    entries = entries.scatter(-1, slot.expand(at_moves.shape), at_moves.to(at_draws.dtype))
    entries = entries.unflatten(-1, (law.d, law.k))
    drawn = at_draws[..., None, None].expand(*at_draws.shape, law.d, 1)
    return entries.scatter(-1, index.unsqueeze(-1).expand(drawn.shape), drawn)
