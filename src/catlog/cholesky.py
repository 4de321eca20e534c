"""Inverse Cholesky factors of many small systems, also inside a CUDA graph, where the libraries' own cannot be captured."""

import torch
from jaxtyping import Float
from torch import Tensor


def inverse_factor(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """W, lower triangular, with W gram W' = 1; without autograd.

    The inverse of ``gram`` is W' W, and a leading block of W is that of the leading block of ``gram``.

    >>> inverse_factor(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    if torch.compiler.is_compiling() and gram.is_cuda:  # the step may be captured later
        return compiled_inverse_factor(gram)
    if gram.is_cuda and torch.cuda.is_current_stream_capturing():
        return by_halves(gram)
    return _by_library(gram)


def _by_library(gram: Tensor) -> Tensor:
    one = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve_triangular(torch.linalg.cholesky_ex(gram).L, one.expand(gram.shape), upper=False)


def by_halves(gram: Tensor) -> Tensor:
    """The same by products of halves of the matrices, in float64 (TF32 would not do); any order of launches can be captured."""
    return _halved(gram.double()).to(gram.dtype)


def _halved(gram: Tensor) -> Tensor:
    n = gram.shape[-1]
    if n == 1:
        return gram.rsqrt()
    first = _halved(gram[..., : n // 2, : n // 2])
    below = gram[..., n // 2 :, : n // 2] @ first.mT  # of the Cholesky factor itself
    last = _halved(gram[..., n // 2 :, n // 2 :] - below @ below.mT)
    whole = torch.zeros_like(gram)
    whole[..., : n // 2, : n // 2] = first
    whole[..., n // 2 :, n // 2 :] = last
    whole[..., n // 2 :, : n // 2] = -(last @ (below @ first))
    return whole


@torch.library.custom_op("catlog::inverse_factor", mutates_args=())
def compiled_inverse_factor(gram: Tensor) -> Tensor:
    """:func:`inverse_factor`, opaque to ``torch.compile``: which way it goes is decided when it runs."""
    capturing = gram.is_cuda and torch.cuda.is_current_stream_capturing()
    return by_halves(gram) if capturing else _by_library(gram).contiguous()


@compiled_inverse_factor.register_fake
def _(gram: Tensor) -> Tensor:
    return torch.empty(gram.shape, dtype=gram.dtype, device=gram.device)
