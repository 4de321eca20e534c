"""The one place that calls a user's network."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def call_network(
    owner: str, network: nn.Module, inputs: Float[Tensor, "..."], shape: tuple[int, ...]
) -> Float[Tensor, "..."]:
    """Return ``network(inputs)``, computed in the network's dtype.

    It must have this ``shape``, or one more dimension of 1, which is dropped.
    """
    dtypes = [parameter.dtype for parameter in network.parameters()]
    out = network(inputs.to(dtypes[0]) if dtypes else inputs)
    if isinstance(out, Tensor) and out.shape == (*shape, 1):
        out = out.squeeze(-1)
    if not isinstance(out, Tensor) or out.shape != torch.Size(shape):
        returned = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"{owner}: `network` must return shape {tuple(shape)} or {(*shape, 1)}, but it "
            f"returned {returned}."
        )
    return out.to(inputs.dtype)
