"""Networks that take one batch dimension, called with rows and plates."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map


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
        shapes = [
            _batch_shape(leaf, d, position)
            for position, (arg, d) in enumerate(zip(args, dims, strict=True))
            for leaf in tree_flatten(arg)[0]
            if isinstance(leaf, Tensor)
        ]
        batch = torch.broadcast_shapes(*shapes)

        def flat(value: Any, d: int) -> Any:
            if not isinstance(value, Tensor):
                return value
            event = value.shape[value.dim() - d :]
            return value.expand(batch + event).reshape(batch.numel(), *event)

        def unflat(value: Any) -> Any:
            return value.reshape(batch + value.shape[1:]) if isinstance(value, Tensor) else value

        flattened = [
            tree_map(lambda leaf, d=d: flat(leaf, d), arg)
            for arg, d in zip(args, dims, strict=True)
        ]
        return tree_map(unflat, module(*flattened, **kwargs))

    return with_rows


def _batch_shape(value: Tensor, event_dims: int, position: int) -> torch.Size:
    """Return the shape of the rows and plates of a positional argument."""
    if value.dim() < event_dims:
        raise ValueError(
            f"rows: argument {position} has shape {tuple(value.shape)}, fewer dimensions than "
            f"`event_dims` = {event_dims}. Pass event_dims={value.dim()}, or a tuple of one number "
            "per argument."
        )
    return value.shape[: value.dim() - event_dims]
