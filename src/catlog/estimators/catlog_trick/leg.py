"""LEG: local expectation gradients."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_chunk_size
from ...distributions.conditionals import structure, view
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
            moves = [
                (i, offset) for i, size in enumerate(law.cardinalities) for offset in range(1, size)
            ]
            variable = integers([i for i, _ in moves], law.device)
            offset = integers([offset for _, offset in moves], law.device)
            cardinality = integers(law.cardinalities, law.device)[variable]
            category = (index[..., variable] + offset) % cardinality
            slot = variable * law.k + category
            # Rows of all moves of all draws; only one chunk of their points exists at a time.
            rows = len(moves) * len(x)
            draw = torch.arange(len(x), device=law.device).repeat(len(moves))
            to_variable = variable.repeat_interleave(len(x), output_size=rows)
            to_category = category.movedim(-1, 0).flatten(0, 1).unsqueeze(-1)

            def moved(part: slice) -> tuple[Tensor, Tensor]:
                """Return the draws of some rows, and the same after their moves."""
                start, category = index.index_select(0, draw[part]), to_category[part]
                place = to_variable[part].view(-1, *[1] * (start.dim() - 1))
                return start, start.scatter(-1, place.expand(category.shape), category)

            joint = [score.new_zeros((0, *law.batch_shape))]
            for part in chunks(rows, law, f, self.chunk_size):
                _, after = moved(part)
                log_probs = ordered.log_conditionals(after, self.validate)
                joint.append(log_probs.gather(-1, after.unsqueeze(-1)).squeeze(-1).sum(-1))
            log_joint = torch.cat(joint)

            def points(part: slice) -> Tensor:
                """Return the points after possible moves, and the draws in place of the others."""
                start, after = moved(part)
                is_possible = (log_joint[part] > -torch.inf).unsqueeze(-1)
                return law.point(torch.where(is_possible, after, start))

            values = evaluate_chunked(f, points, rows, law, chunk_size=self.chunk_size)

            def table(at_draws: Tensor, at_moves: Tensor, empty: float) -> Tensor:
                """Return the values at the draws and at the moves as ``[n, *batch, d, k]``."""
                entries = at_draws.new_full((*at_draws.shape, law.d * law.k), empty)
                at_moves = at_moves.unflatten(0, (len(moves), len(fx))).movedim(0, -1)
                at_moves = at_moves.to(at_draws.dtype)
                entries = entries.scatter(-1, slot.expand(at_moves.shape), at_moves)
                entries = entries.unflatten(-1, (law.d, law.k))
                drawn = at_draws[..., None, None].expand(*at_draws.shape, law.d, 1)
                return entries.scatter(-1, index.unsqueeze(-1).expand(drawn.shape), drawn)

            log_prob = score.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
            weight = table(log_prob, log_joint, -torch.inf).softmax(-1)  # q(k | all others)
            cost = weight * table(fx.detach(), values, 0.0)
        base = fx.mean(0)
        # A category of weight zero may have log-probability -inf.
        change = (cost * torch.where(cost != 0, score, 0.0)).sum((-1, -2)).mean(0)
        return attach(cost.sum((-1, -2)).mean(0) / law.d, base + change)
