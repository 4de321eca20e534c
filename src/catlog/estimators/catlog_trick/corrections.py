"""Which variables SlopeCateR corrects, and how corrections enter its sums."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ...tracing import inside_functorch

UNIFORM_SHARE = 0.1  # of the corrections: keeps every probability positive, as unbiasedness needs


def gradient_scale(probs: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d"]:
    r"""Return how undecided each variable is: the RMS gradient in its logits for independent slopes
    of variance 1.

    It is the square root of :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`, and 2 p (1 - p) for a
    bit.
    """
    if probs.shape[-1] == 2:
        zero, one = probs.unbind(-1)
        return 2 * zero * one
    square = probs.square()
    return (square * (1 - 2 * probs + square.sum(-1, keepdim=True))).sum(-1).clamp(min=0).sqrt()


def selection_probabilities(size: Float[Tensor, "*batch d"]) -> tuple[Tensor, Tensor]:
    """Return selection probabilities, 90 % proportional to ``size`` and 10 % uniform, and their
    cumulative sums."""
    d, running = size.shape[-1], size.cumsum(-1)
    total = running[..., -1:]
    equal = torch.arange(1, d + 1, dtype=size.dtype, device=size.device) / d
    share = torch.where(total > 0, size / total, 1 / d)
    cumulative = torch.where(total > 0, running / total, equal)
    kept = 1 - UNIFORM_SHARE
    return kept * share + UNIFORM_SHARE / d, kept * cumulative + UNIFORM_SHARE * equal


def systematic_sample(
    ends: Float[Tensor, "*batch d"], m: int, start: Float[Tensor, "1 *batch"]
) -> Int64[Tensor, "m *batch"]:
    """Return m variables by systematic sampling.

    ``ends`` are cumulative sums of how often each variable is picked in expectation, over the
    uniform ``start``. Every count is within one of its expectation.

    >>> systematic_sample(torch.tensor([0.5, 1.5, 2.0]), 2, torch.tensor([0.75]))
    tensor([1, 2])
    """
    ticks = start.movedim(0, -1) + torch.arange(m, dtype=ends.dtype, device=ends.device)
    if torch.compiler.is_compiling() or inside_functorch():
        # A compiler fuses a search into every kernel that reads the variables, which repeats it. It
        # does not do so with a sum. vmap would copy the ticks for a search, with a warning.
        variable = (ends.unsqueeze(-2) <= ticks.unsqueeze(-1)).sum(-1)
    else:
        variable = torch.searchsorted(ends, ticks, right=True)
    return variable.clamp(max=ends.shape[-1] - 1).movedim(-1, 0)


def add_at(
    total: Float[Tensor, "*batch d width"],
    variable: Int64[Tensor, "m *batch"],
    terms: Float[Tensor, "m *batch width"],
) -> Float[Tensor, "*batch d width"]:
    """Return ``total`` with the terms of all variables added to it.

    >>> add_at(torch.zeros(3, 1), torch.tensor([2, 2]), torch.tensor([[1.0], [5.0]])).tolist()
    [[0.0], [0.0], [6.0]]
    """
    if torch.compiler.is_compiling():  # a compiler fuses this, but not a scatter
        is_corrected = variable.unsqueeze(-1) == torch.arange(total.shape[-2], device=total.device)
        return total + torch.where(is_corrected.unsqueeze(-1), terms.unsqueeze(-2), 0.0).sum(0)
    terms = terms.movedim(0, -2)
    return total.scatter_add(-2, variable.movedim(0, -1).unsqueeze(-1).expand(terms.shape), terms)


def corrected_variables(
    x: Float[Tensor, "n *batch d k"],
    probs: Float[Tensor, "*batch d k"],
    variable: Int64[Tensor, "m *batch"],
) -> tuple[Float[Tensor, "m *batch k"], Float[Tensor, "m *batch k"]]:
    """Return the corrected variables in their draws, and their probabilities."""
    index = variable[..., None, None].expand(*variable.shape, 1, probs.shape[-1])
    drawn = x[rows_in_turn(variable, len(x))].gather(-2, index).squeeze(-2)
    return drawn, probs.expand(len(variable), *probs.shape).gather(-2, index).squeeze(-2)


def rows_in_turn(variable: Int64[Tensor, "m *batch"], n: int) -> Int64[Tensor, " m"]:
    """Return which of n draws each correction changes: they take turns."""
    return torch.arange(len(variable), device=variable.device) % n


def shares_of_points(
    drawn: Float[Tensor, "m *batch"], alternatives: Float[Tensor, "others m *batch"], n: int
) -> Float[Tensor, "rows *batch"]:
    """Return the weights of n draws and of their corrected points in the value.

    A draw and its corrected points share the weight 1/n by the probabilities of the corrected
    variable's categories; with several corrections, as the mean over them.

    >>> shares_of_points(torch.tensor([0.25]), torch.tensor([[0.75]]), n=2)
    tensor([0.1250, 0.5000, 0.3750])
    """
    m = len(drawn)
    if m <= n:
        at_draws = pad(drawn / n, (0, 0) * (drawn.dim() - 1) + (0, n - m), value=1 / n)
        return torch.cat([at_draws, (alternatives / n).flatten(0, 1)])
    row = torch.arange(m, device=drawn.device) % n
    counts = (m // n + (row < m % n)).to(drawn.dtype)
    weight = (1 / (n * counts)).view(-1, *[1] * (drawn.dim() - 1))
    at_draws = pad(drawn * weight, (0, 0) * (drawn.dim() - 1) + (0, -m % n)).unflatten(0, (-1, n))
    return torch.cat([at_draws.sum(0), (alternatives * weight).flatten(0, 1)])
