"""Coefficients of two predictions from the normal equations of a least-squares fit."""

import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 1.01  # times the diagonal: shrinks the coefficients towards 1 by about 1 %


def shrunk_coefficients(
    gram: Float[Tensor, "*fits 2 2"], excess: Float[Tensor, "*fits 2"]
) -> Float[Tensor, "*fits 2"]:
    """Solve ``gram @ (c - 1) = excess`` for two regression coefficients c, shrunk slightly towards
    1.

    Before any data they are exactly 1.

    >>> shrunk_coefficients(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([-2.0, 0.0]))
    tensor([0.0099, 1.0000])
    """
    size = gram.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(size > 0, size, torch.inf).rsqrt()
    # In this order: the product of both scales may overflow.
    correlation = gram[..., 0, 1:] * scale[..., :1] * scale[..., 1:]
    scaled = excess * scale
    solved = (RIDGE * scaled - correlation * scaled.flip(-1)) / (RIDGE**2 - correlation**2)
    return 1 + scale * solved
