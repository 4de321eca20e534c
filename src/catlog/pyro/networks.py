"""Networks that take one batch dimension, called with rows and plates."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten


def rows(
    module: Callable[..., Any], *, event_dims: int | tuple[int, ...] = 1
) -> Callable[..., Any]:
    """Return a function that calls a module with all leading dimensions flattened into one.

    The evaluations of a step are rows, to the left of all plates (see :class:`ELBO`). A module that
    wants exactly one batch dimension (``nn.LSTMCell``, ``nn.Conv2d``, ``grid_sample``) gets rows
    and plates as that dimension, and its outputs get them back. The tensors among the positional
    arguments, alone or in tuples, lists and dictionaries, are broadcast against each other: what
    has no rows is repeated. Keyword arguments are passed on as they are.

    Wrap a module where it is called. As an attribute of another module, the function would hide
    the parameters.

    Args:
        module: from tensors ``[batch, *event]`` to tensors that have the batch first, alone or in
            tuples, lists and dictionaries.
        event_dims: the number of dimensions of one event of the arguments, or a tuple of one number
            per positional argument.

    >>> cell = torch.nn.LSTMCell(3, 4)
    >>> x, h = torch.zeros(5, 3), torch.zeros(8, 5, 4)  # h has 8 rows
    >>> h, c = rows(cell)(x, (h, torch.zeros(5, 4)))
    >>> h.shape, c.shape
    (torch.Size([8, 5, 4]), torch.Size([8, 5, 4]))
    >>> images = torch.zeros(8, 5, 1, 28, 28)
    >>> rows(torch.nn.Conv2d(1, 2, kernel_size=5), event_dims=3)(images).shape
    torch.Size([8, 5, 2, 24, 24])
    """

    def with_rows(*args: Any, **kwargs: Any) -> Any:
        dims = event_dims if isinstance(event_dims, tuple) else (event_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(
                f"rows: `event_dims` = {event_dims} has {len(dims)} numbers, but there are "
                f"{len(args)} positional arguments. Give one number per argument."
            )
        leaves, spec = tree_flatten(args)
        positions = [i for i, arg in enumerate(args) for _ in tree_leaves(arg)]
        parts = [
            _parts(leaf, dims[i], i) if isinstance(leaf, Tensor) else None
            for leaf, i in zip(leaves, positions, strict=True)
        ]
        batch = torch.broadcast_shapes(*(part[0] for part in parts if part))
        flat = [
            leaf.expand(batch + part[1]).reshape(batch.numel(), *part[1]) if part else leaf
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        outputs = module(*tree_unflatten(flat, spec), **kwargs)
        return tree_map_only(Tensor, lambda x: x.reshape(batch + x.shape[1:]), outputs)

    return with_rows


def _parts(value: Tensor, event_dims: int, position: int) -> tuple[torch.Size, torch.Size]:
    """Return the shape of the rows and plates of a positional argument, and that of an event."""
    batch_dims = value.dim() - event_dims
    if batch_dims < 0:
        raise ValueError(
            f"rows: argument {position} has shape {tuple(value.shape)}, fewer dimensions than "
            f"`event_dims` = {event_dims}. Pass event_dims={value.dim()}, or a tuple of one number "
            "per argument."
        )
    return value.shape[:batch_dims], value.shape[batch_dims:]
