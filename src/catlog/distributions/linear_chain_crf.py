"""Conditional random fields of a chain: exact posteriors of sequences."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.categories import as_logits
from ..core.checks import check_is_tensor, check_together, refusal
from ..core.tracing import can_inspect
from .bit_counts import IMPOSSIBLE, LARGEST
from .markov_chain import MarkovChain, check_tables, serves_every_step

LARGEST_ROUNDING = 1e-2  # of the log-weights of sequences


class LinearChainCRF(MarkovChain):
    r"""A chain of states with weights for states and for pairs of neighbours.

    .. math:: q(z) = \frac1Z \exp\Bigl(\sum_t u_t(z_t) + \sum_{t>1} w_t(z_{t-1}, z_t)\Bigr)

    Messages from the last state to the first,
    :math:`\beta_t(i) = \log \sum_j e^{w_{t+1}(i, j) + u_{t+1}(j) + \beta_{t+1}(j)}`, make it a
    Markov chain with a table per step. Log-probability, marginals, entropy and :math:`\log Z` (the
    attribute ``log_partition``) are exact. Weights may be large, such as masks of -1e9. But if
    every sequence has a weight that is lower by L than the best of its step, small differences
    between sequences are rounded as numbers of size L are. An error is raised if they are lost.

    The posterior of a hidden Markov model is one: :math:`u_t(z)` is the log-probability of
    observation t given state z (for t = 1, plus the initial one), w has the log-probabilities of
    the transitions, and :math:`\log Z` is the log-likelihood of the observations.

    Cost: O(T k^2) per batch element, in T steps.
    Reference: Lafferty et al., "Conditional random fields", 2001.

    Args:
        unary: u, ``[*batch, T, k]``. -inf forbids a state.
        pairwise: w, ``[k, k]`` (the next state given the row), ``[*batch, k, k]`` or
            ``[*batch, T - 1, k, k]``. -inf forbids a transition.
        validate_args: False skips the checks that read numbers (which wait for a GPU).

    >>> stay = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> evidence = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> LinearChainCRF(evidence, stay).marginals()[:, 0]
    tensor([0.8808, 0.8671, 0.8539])
    """

    def __init__(
        self,
        unary: Float[Tensor, "*batch T k"],
        pairwise: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        check_is_tensor("LinearChainCRF", "unary", unary, "[*batch, T, k]")
        check_is_tensor("LinearChainCRF", "pairwise", pairwise, "[k, k]")
        check_together("LinearChainCRF", "pairwise", pairwise, "`unary`", unary.device)
        if unary.dim() < 2 or 0 in unary.shape[-2:]:
            claim, but = "have shape [*batch, T, k], both at least 1", f"{tuple(unary.shape)}"
            raise refusal("LinearChainCRF: `unary`", claim, f"{but} was given")
        length, k = unary.shape[-2:]
        batch = unary.shape[:-2]
        check_tables("LinearChainCRF", "pairwise", pairwise, unary.shape)
        unary, pairwise = as_logits(unary), as_logits(pairwise)
        # Constants go into log Z alone. Messages stay near zero, so that their small differences
        # survive the rounding, however large the weights of whole sequences are.
        states, level_of_states = _levelled(unary, 1)
        pairs = pairwise.unsqueeze(-3) if serves_every_step(pairwise, batch) else pairwise
        pairs, level_of_pairs = _levelled(pairs, 2)
        steps = pairs.expand((*batch, length - 1, k, k))
        *earlier, message = states.unbind(-2)
        levels, transitions = [], []
        for state, step in zip(reversed(earlier), reversed(steps.unbind(-3)), strict=True):
            level = message.detach().amax(-1, keepdim=True)
            levels.append(level)
            transition = step + (message - level).unsqueeze(-2)
            transitions.append(transition)
            message = state + transition.logsumexp(-1)
        parts = torch.cat([*levels, message.logsumexp(-1, keepdim=True)], -1)
        if can_inspect(validate_args is not False, unary, pairwise) and parts.numel() > 0:
            _check_parts(parts.detach(), unary, pairwise)
        self.unary = unary
        self.pairwise = pairwise
        self.levelled = states, pairs.flatten(-2)
        self.levels = level_of_states, level_of_pairs
        self.parts = parts
        self.log_sum = parts.sum(-1)
        table = torch.stack(transitions[::-1], -3) if transitions else steps
        # A state without a future is never entered. Any row will do for it, so it stays as it is.
        is_zero = table < IMPOSSIBLE / 2
        is_dead = is_zero.all(-1, keepdim=True)
        table = table.masked_fill(is_zero & ~is_dead, -torch.inf)
        initial = message.masked_fill(message < IMPOSSIBLE / 2, -torch.inf)
        super().__init__(initial, table, length, validate_args=validate_args)

    @property
    def log_partition(self) -> Float[Tensor, "*batch"]:
        """log Z, differentiable."""
        of_states, of_pairs = self.levels
        steps = self.unary.shape[-2] - 1
        log_scale = of_states.sum(-1) + of_pairs.expand((*of_states.shape[:-1], steps)).sum(-1)
        is_impossible = (self.parts < IMPOSSIBLE / 2).any(-1)
        log_partition = (self.log_sum + log_scale).masked_fill(is_impossible, -torch.inf)
        return log_partition.expand(self.batch_shape)

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        """Return the weights of paths less log Z, both without what all paths have in common."""
        path, k = x.movedim(0, -1), self.cardinalities[0]
        steps = path[..., :-1, :] * k + path[..., 1:, :]
        log_prob = -self.log_sum.unsqueeze(-1)
        for weights, index in zip(self.levelled, (path, steps), strict=True):
            table = weights.expand(index.shape[:-1] + weights.shape[-1:])
            log_prob = log_prob + table.gather(-1, index).sum(-2)
        return log_prob.masked_fill(log_prob < IMPOSSIBLE / 2, -torch.inf).movedim(-1, 0)


def _check_parts(parts: Float[Tensor, "*batch T"], unary: Tensor, pairwise: Tensor) -> None:
    """Raise if weights are NaN or +inf, or so low that they forbid or drown all sequences."""
    subject, lowest = "LinearChainCRF: `unary` and `pairwise`", float(parts.amin())
    if lowest != lowest:  # NaN, also from +inf
        name = "unary" if bool((unary.isnan() | (unary == torch.inf)).any()) else "pairwise"
        raise refusal(f"LinearChainCRF: `{name}`", "be finite or -inf", "it has NaN or +inf")
    if lowest < IMPOSSIBLE / 2:
        bad = tuple((parts < IMPOSSIBLE / 2).any(-1).nonzero()[0].tolist())
        but = "every sequence has weight zero" + (f" at batch index {bad}" if bad else "")
        remedy = (
            "The evidence is impossible: look for a step whose states are all -inf, or forbidden "
            "by all transitions."
        )
        raise refusal(subject, "allow a sequence of states", but, remedy)
    if lowest * torch.finfo(parts.dtype).eps < -LARGEST_ROUNDING:
        claim = "allow a sequence of states without a very low weight"
        but = f"every one has one that is lower by {-lowest:.2g} than the best of its step"
        remedy = f"It drowns differences in {parts.dtype}. Do masks contradict each other?"
        raise refusal(subject, claim, but, remedy)


def _levelled(weights: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Return the weights less their maximum over the last dimensions, and this maximum.

    All are finite, so that no derivative is NaN, and -inf is far below the others.
    """
    level = weights.detach().amax(tuple(range(-dims, 0)), keepdim=True)
    level = level.clamp(min=torch.finfo(weights.dtype).min)
    levelled = (weights - level).clamp(min=-LARGEST)
    return levelled.masked_fill(weights == -torch.inf, IMPOSSIBLE), level.flatten(-dims).squeeze(-1)
