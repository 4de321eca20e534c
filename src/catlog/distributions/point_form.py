"""How f sees a point of a structured distribution."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from ..estimator import Kind
from ..tracing import inside_functorch


def one_hots(
    index: Int64[Tensor, "*lead"], k: int, dtype: torch.dtype
) -> Shaped[Tensor, "*lead k"]:
    """Return one-hot vectors. Unlike torch's ``one_hot``, ``vmap`` maps it.

    In eager mode, writing the ones is faster than a comparison. Compilers before PyTorch 2.13 lose
    the dtype of numbers that are written into zeros: the vectors would be integers, which a GPU
    cannot multiply with a matrix.
    """
    index = index.unsqueeze(-1)
    if torch.compiler.is_compiling() or inside_functorch():
        return (index == torch.arange(k, device=index.device)).to(dtype)
    zeros = torch.zeros(*index.shape[:-1], k, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index.long(), 1)


@dataclass(frozen=True)
class PointForm:
    """The form of a point: that of ``sample()`` of the distribution that the user gave.

    Attributes:
        kind: bits (floats 0 and 1), category numbers (also as floats: counts) or one-hot vectors.
        event_shape: of a point.
        dtype: of a point.
    """

    kind: Kind
    event_shape: torch.Size
    dtype: torch.dtype

    def point(self, index: Int64[Tensor, "*lead d"], k: int) -> Tensor:
        """Return the point with these category numbers, of at most ``k``, in a new tensor."""
        is_one_hot = self.kind == Kind.ONE_HOT
        flat = one_hots(index, k, self.dtype) if is_one_hot else index.clone().to(self.dtype)
        return flat.reshape(index.shape[:-1] + self.event_shape)

    def index(self, x: Tensor, d: int) -> Int64[Tensor, "*lead d"]:
        """Return the category numbers of the ``d`` variables of points."""
        lead = x.shape[: x.dim() - len(self.event_shape)]
        if self.kind == Kind.ONE_HOT:
            return x.reshape((*lead, d, self.event_shape[-1])).argmax(-1)
        return x.reshape((*lead, d)).long()
