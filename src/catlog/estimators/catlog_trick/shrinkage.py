"""How far to trust two predictions, from the normal equations of a least-squares fit."""

import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 1.01  # times the diagonal: draws the coefficients to 1


def shrunk_coefficients(
    gram: Float[Tensor, "2 2"], excess: Float[Tensor, "2"]
) -> Float[Tensor, "2"]:
    """Two coefficients c with gram (c - 1) = excess, drawn a little towards (1, 1), which they are where nothing is known.

    >>> near_one(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([-2.0, 0.0]))
    tensor([0.0099, 1.0000])
    """
    size = gram.diagonal()
    scale = torch.where(size > 0, size, torch.inf).rsqrt()
    overlap, given = (
        gram[0, 1] * scale[0] * scale[1],
        excess * scale,
    )  # the product of both scales may overflow
    return 1 + scale * (RIDGE * given - overlap * given.flip(0)) / (RIDGE**2 - overlap**2)
