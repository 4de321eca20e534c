"""Gradients in a list of tensors, and the tensors that a value was computed from."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def listed(parameters: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters as a list, also if they are a single tensor."""
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def check_trainable(parameters: Sequence[object]) -> None:
    """Raise ValueError unless there are parameters, all of them tensors with a gradient."""
    if not parameters:
        raise ValueError(
            "parameters: tensors with requires_grad=True are needed, but none were given or found."
        )
    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor) or not parameter.requires_grad:
            kind = type(parameter).__name__
            lack = " without a gradient" if isinstance(parameter, Tensor) else ""
            raise ValueError(
                f"parameters: entry {number} must be a tensor with requires_grad=True, but it is a "
                f"{kind}{lack}. Call requires_grad_() before q is built from it."
            )


def graph_leaves(value: Tensor) -> list[Tensor]:
    """Return the leaves that a tensor was computed from."""
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    visited, stack, leaves = {value.grad_fn}, [value.grad_fn], []
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for source, _ in node.next_functions:
            if source is not None and source not in visited:
                visited.add(source)
                stack.append(source)
    return leaves


def normal_like(tensor: Tensor, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return standard normal numbers of the tensor's type, on its device."""
    return torch.randn(shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


def gradients_in(
    value: Tensor, leaves: Sequence[Tensor], weight: Tensor | None = None, retain: bool = False
) -> list[Tensor]:
    """Return the gradients of ``value.sum()`` (or of the weighted sum), zeros if there are none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    total = value.sum() if weight is None else (value * weight).sum()
    return list(torch.autograd.grad(total, leaves, retain_graph=retain, materialize_grads=True))


def flat_gradients(value: Tensor, leaves: Sequence[Tensor]) -> Float[Tensor, "parameters"]:
    """Return the gradient of ``value.sum()`` in all leaves, as one vector."""
    return flat(gradients_in(value, leaves), 0)


def flat(tensors: Sequence[Tensor], lead: int) -> Tensor:
    """Concatenate tensors along one dimension that follows ``lead`` leading ones."""
    return torch.cat(
        [part.flatten(lead) if part.dim() > lead else part.unsqueeze(-1) for part in tensors], -1
    )
