"""The one source of uniforms and exponentials."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import Known, check_uniforms


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


def given_or_rand(
    noise: Tensor | None,
    shape: tuple[int, ...],
    form: str,
    law: Known,
    generator: torch.Generator | None,
    *,
    lead: int = 1,
    closed: bool = False,
    name: str = "noise",
) -> Tensor:
    """Return the uniforms that were injected as ``name``, checked, or draw them.

    ``form`` names the dimensions of ``shape``. The batch stands after ``lead`` of them. With
    ``closed``, injected ones may be 1.
    """
    if noise is None:
        return rand(shape, dtype=law.real, device=law.device, generator=generator)
    return check_uniforms(name, noise, shape, form, law, lead=lead, closed=closed)


def exponentials(like: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Return standard exponential noise, of the shape, dtype and device of ``like``.

    It is drawn as ``torch.nn.functional.gumbel_softmax`` draws it, so both use a seed alike.
    """
    noise = torch.empty_like(like, memory_format=torch.legacy_contiguous_format)
    return noise.exponential_() if generator is None else noise.exponential_(generator=generator)
