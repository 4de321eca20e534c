"""What a CUDA graph does, on a CPU: so that captured steps can be tested without a GPU."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
HIDDEN_WRITES = {torch.ops.aten.native_batch_norm.default, torch.ops.aten.batch_norm.default}


class CpuGraph(TorchDispatchMode):
    """The operations of a step, which a replay repeats on the same memory, with the same numbers.

    As on a GPU, the capture itself changes no memory that was there before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self.own: set[int] = set()  # addresses of memory that the step allocates

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        schema = function._schema
        if any(r.alias_info and not r.alias_info.is_write for r in schema.returns):
            return function(*args, **kwargs)  # a view
        held_args, held_kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        given = [*args, *kwargs.values()]
        names = [*(a.name for a in schema.arguments[: len(args)]), *kwargs]
        writes = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
        if writes and all(r.alias_info for r in schema.returns):
            written = [value for name, value in zip(names, given, strict=True) if name in writes]
            self.calls.append((function, held_args, held_kwargs, []))
            if all(address(tensor) in self.own for tensor in tree_leaves(written)):
                return function(*args, **kwargs)
            return written[0] if schema.returns else None
        if writes or function in HIDDEN_WRITES:
            args, kwargs = tree_map_only(Tensor, Tensor.clone, (args, kwargs))
        result = function(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.own |= {address(output) for output in outputs}
        held = [output.detach() for output in outputs]
        self.calls.append((function, held_args, held_kwargs, held))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, outputs in self.calls:
            leaves = tree_leaves(function(*args, **kwargs))
            results = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            for output, result in zip(outputs, results if outputs else [], strict=True):
                output.copy_(result)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class CpuGraphs:
    """In place of :class:`catlog.compiled.CudaGraphs`."""

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, step: Callable[[], Tensor]) -> tuple[CpuGraph, Tensor]:
        graph = CpuGraph()
        with graph:
            result = step()
        return graph, result
