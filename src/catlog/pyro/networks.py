"""Networks that take one batch dimension, called with rows and plates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


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
        tensors = [(x, n) for arg, n in zip(args, dims, strict=True) for x in tree_leaves(arg)]
        tensors = [(x, n) for x, n in tensors if isinstance(x, Tensor)]
        for x, n in tensors:
            if x.dim() < n:
                raise ValueError(
                    f"rows: an argument has shape {tuple(x.shape)}, fewer dimensions than "
                    f"`event_dims` = {event_dims}. Pass event_dims={x.dim()}, or a tuple of one "
                    "number per argument."
                )
        batch = torch.broadcast_shapes(*(x.shape[: x.dim() - n] for x, n in tensors))

        def flat(x: Tensor, n: int) -> Tensor:
            event = x.shape[x.dim() - n :]
            return x.expand(batch + event).reshape(batch.numel(), *event)

        args = tuple(
            tree_map_only(Tensor, partial(flat, n=n), x) for x, n in zip(args, dims, strict=True)
        )
        outputs = module(*args, **kwargs)
        return tree_map_only(Tensor, lambda x: x.reshape(batch + x.shape[1:]), outputs)

    return with_rows
