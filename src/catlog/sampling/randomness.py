"""The one source of uniforms."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rand(
    shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return uniforms; torch.compile rejects ``generator=None`` beside a symbolic size."""
    if generator is None:
        return torch.rand(tuple(shape), dtype=dtype, device=device)
    return torch.rand(tuple(shape), dtype=dtype, device=device, generator=generator)
