"""A baseline for every token: a regression of the reward on the tokens before it."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..estimators.ridge import inverse_factor
from .groups import Present, Scores

RIDGE = 3.0  # CritiCateR's
CHUNK = 64  # tokens at once: 64 kernel matrices per group


def left_out_residuals(
    scores: Scores,
    present: Present,
    tokens: Int64[Tensor, "groups size length"],
    mask: Bool[Tensor, "groups size length"],
) -> Float[Tensor, "groups size length"]:
    r"""Return for every row and token the score minus a prediction from the tokens before it.

    The prediction is a ridge regression with an intercept. Its kernel :math:`K_t(n, m)` counts the
    tokens before t in which rows n and m agree. It is fitted to the *other* rows of the group.
    Leaving row n out needs no second fit:

    .. math::
        \frac{(M_t r)_n}{(M_t)_{nn}}, \qquad M_t = A_t - \frac{A_t 1 1^\top A_t}{1^\top A_t 1},
        \qquad A_t = (K_t + 3 I)^{-1}

    Before the first token :math:`K_t = 0`, and this is RLOO.

    Cost: one factorisation of a matrix of the group's size per token.
    """
    # A row that is not present agrees with none and is not summed over.
    ones = present.to(torch.float64).unsqueeze(1).unsqueeze(-1)  # [groups, 1, size, 1]
    target = scores.to(torch.float64).unsqueeze(1).unsqueeze(-1) * ones
    identity = torch.eye(scores.shape[-1], dtype=torch.float64, device=scores.device)
    agreement = torch.zeros_like(identity).expand(scores.shape[0], *identity.shape)
    residuals = []
    for chunk, is_chosen in zip(tokens.split(CHUNK, -1), mask.split(CHUNK, -1), strict=True):
        chunk, is_chosen = chunk.transpose(1, 2), is_chosen.transpose(1, 2)
        is_equal = chunk.unsqueeze(-1) == chunk.unsqueeze(-2)
        is_equal = is_equal & is_chosen.unsqueeze(-1) & is_chosen.unsqueeze(-2)
        counts = is_equal.to(torch.float64).cumsum(1)  # [groups, chunk, size, size]
        before = torch.cat([torch.zeros_like(counts[:, :1]), counts[:, :-1]], 1)
        factor = inverse_factor(before + agreement.unsqueeze(1) + RIDGE * identity)
        inverse = factor.mT @ factor
        weights = inverse @ ones
        total = (ones * weights).sum((-1, -2), keepdim=True)
        centred = inverse - weights @ weights.mT / total
        residual = (centred @ target).squeeze(-1)
        scale = centred.diagonal(dim1=-2, dim2=-1)
        residuals.append(residual / torch.where(present.unsqueeze(1), scale, 1.0))
        agreement = agreement + is_equal.sum(1)
    return torch.cat(residuals, 1).transpose(1, 2).to(scores.dtype)
