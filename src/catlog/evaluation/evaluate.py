"""The one place that calls f: at once, in chunks or with its derivative; results are checked."""

from collections.abc import Callable
from math import ceil, prod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_dense, check_function
from ..distributions.conditionals import Conditionals, without_outputs
from ..distributions.counts import Counts
from ..distributions.factors import Factors
from ..estimator import Function
from ..tracing import can_inspect, in_inference_mode, inside_functorch
from .noise import Trace

View = Factors | Conditionals | Counts

NOT_DIFFERENTIABLE = (
    "f: its derivative in x is needed by this estimator, but f's value does not depend "
    "differentiably on x. Use a black-box estimator (RLOO, RELAX, IndeCateR without `variables`, "
    "or with control='none'), or make f differentiable."
)
FLAT = frozenset(  # nodes of autograd whose derivative is 0, or missing
    [
        *(f"{name}Backward0" for name in ("Ceil", "Floor", "Round", "Sgn", "Sign", "Trunc")),
        "RoundBackward1",
        "torch::autograd::NotImplemented",
    ]
)


def evaluate(f: Function, x: Tensor, law: View) -> Float[Tensor, "n *batch"]:
    """Return ``f(x)`` for points ``[n, *batch, *event]``; f gets a copy and may write into it."""
    check_function(f)
    return called(f, x.clone(), law)


def evaluate_through(f: Function, points: Tensor, law: View) -> Float[Tensor, "n *batch"]:
    """Return ``f(points)``, or raise if it is not differentiable in the points.

    The error is raised in eager mode with ``law.validate``. f may write into the points.
    """
    check_function(f)
    origin = (
        points.grad_fn
        if law.validate and not torch.compiler.is_compiling() and not inside_functorch()
        else None
    )
    fx = called(f, points, law)
    if origin is not None and not depends(fx, origin):
        raise ValueError(NOT_DIFFERENTIABLE)
    return fx


def evaluate_chunked(
    f: Function,
    points: Callable[[slice], Tensor],
    rows: int,
    law: View,
    *,
    chunk_size: int | None = None,
    subtracted: bool = True,
) -> Float[Tensor, "rows *batch"]:
    """Return f at ``rows`` points, of which ``points(part)`` makes a slice; f may write into them.

    Only one chunk of points exists at a time, which bounds the memory. Warn if f is noisy, unless
    the values are not ``subtracted`` from others.
    """
    check_function(f)
    values = [torch.zeros((0, *law.batch_shape), dtype=law.real, device=law.device)]
    trace = Trace.before(f, law) if subtracted else None
    for part in chunks(rows, law, f, chunk_size):
        chunk = points(part)
        values.append(called(f, chunk, law))
        del chunk  # before the next one is made
    if trace is not None and rows > 0:
        trace.warn_if_changed(lambda: evaluate(f, points(slice(0, 1))[[0, 0]], law))
    return torch.cat(values[1:]) if rows > 0 else values[0]


def chunks(rows: int, law: View, f: Function, chunk_size: int | None) -> list[slice]:
    """Return equal slices of ``rows``, each of at most ``chunk_size`` evaluations of f.

    A row is one evaluation per batch element. A function that divides its rows among ranks
    (``f.ranks``) gets more of them.
    """
    if rows == 0:
        return []
    if chunk_size is None:
        ranks = 1 if law.device.type == "cuda" else getattr(f, "ranks", 1)
        chunk_size = default_chunk_size(law) * ranks
    count = ceil(rows / max(1, chunk_size // max(1, law.batch_size)))
    step = ceil(rows / count)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def default_chunk_size(law: View) -> int:
    """Return how many evaluations of f are made at once.

    On a GPU they fill it: 2**28 numbers are 1 GiB of float32 input. On a CPU they are few enough to
    stay near its caches, and many enough that the threads seldom have to wait for each other: every
    operation of f ends with such a wait, which takes milliseconds where another program uses a
    core. 4,096 evaluations of a layer of 784 units are 13 MB, and a loss has a few such
    temporaries. Together they stay below the 64 MB at which the C library's allocator returns freed
    memory to the system. Points of many variables are fewer: 2**20 numbers, but no less than 1,024
    points.
    """
    numbers = max(1, prod(law.event_shape))
    if law.device.type == "cuda":
        return max(1, 2**28 // numbers)
    return max(1024, min(4096, 2**20 // numbers))


def value_and_slope(f: Function, x: Tensor, law: View) -> tuple[Tensor, Tensor]:
    """Return ``f(x)`` and its derivative in x at every point, by one batched backward pass.

    If no gradient is wanted (``no_grad``, ``inference_mode``), nothing is differentiated and the
    derivative is 0.
    """
    if in_inference_mode() or not torch.is_grad_enabled():
        return evaluate(f, x, law), torch.zeros_like(x)
    check_function(f)
    if law.outputs:
        return _value_and_slopes(f, x, law)

    def value(points: Tensor) -> "tuple[Tensor]":
        return (called(f, points, law),)

    (fx,), (slope,) = value_and_grad(value, x)
    if slope is None:
        raise ValueError(NOT_DIFFERENTIABLE)
    check_finite(slope, "f's derivative in x must have", law.validate)
    return fx, slope


def _value_and_slopes(f: Function, x: Tensor, law: View) -> tuple[Tensor, Tensor]:
    """Return ``f(x)`` and the derivative of every output in x, by one backward pass per output.

    The derivatives have the outputs where x has dimensions of size 1.
    """
    sizes: list[torch.Size] = []

    def value(points: Tensor) -> Tensor:
        fx = called(f, points, law)
        sizes.append(fx.shape[fx.dim() - law.outputs :])
        return fx.flatten(fx.dim() - law.outputs)

    if torch.compiler.is_compiling() or inside_functorch():
        fx, pull = torch.func.vjp(value, x.clone())[:2]
        columns = torch.eye(fx.shape[-1], dtype=fx.dtype, device=fx.device)
        slopes = [pull(column.expand(fx.shape))[0] for column in columns]
    else:
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            copy = leaf.clone()
            origin = copy.grad_fn
            fx = value(copy)
            if origin is None or not depends(fx, origin):
                raise ValueError(NOT_DIFFERENTIABLE)
            totals = [column.sum() for column in fx.unbind(-1)]
            slopes = [torch.autograd.grad(total, leaf, retain_graph=True)[0] for total in totals]
    batch_end = 1 + len(law.batch_shape) - law.outputs
    slope = torch.stack([as_seen(slope.detach(), law) for slope in slopes], batch_end)
    check_finite(slope, "f's derivative in x must have", law.validate)
    return fx.unflatten(-1, sizes[0]), slope.unflatten(batch_end, sizes[0])


def value_and_grad(
    function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, create_graph: bool = False
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Return the results of ``function`` and the derivatives of the first one's sum in the inputs.

    A derivative is None where the first result does not depend differentiably on that input (eager
    mode only). The results can be differentiated in what else the function depends on, and with
    ``create_graph`` so can the derivatives. The function may write into its inputs.
    """
    if torch.compiler.is_compiling() or inside_functorch():

        def first_and_rest(*inputs: Tensor) -> "tuple[Tensor, tuple[Tensor, ...]]":
            results = function(*inputs)
            return results[0], results[1:]

        copies = [tensor.clone() for tensor in inputs]
        first, pull, *rest = torch.func.vjp(first_and_rest, *copies, has_aux=True)
        results = (first, *rest[0])
        grads = pull(torch.ones_like(first))
    else:
        with torch.enable_grad():
            leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
            copies = [leaf.clone() for leaf in leaves]
            origins = [copy.grad_fn for copy in copies]
            results = function(*copies)
            is_used = [origin is not None and depends(results[0], origin) for origin in origins]
            grads = (None,) * len(leaves)
            if any(is_used):
                total = results[0].sum()
                grads = torch.autograd.grad(
                    total, leaves, retain_graph=True, create_graph=create_graph, allow_unused=True
                )
            grads = tuple(grad if used else None for grad, used in zip(grads, is_used, strict=True))
    if create_graph:
        return results, grads
    return results, tuple(None if grad is None else grad.detach() for grad in grads)


def depends(result: Tensor, origin: torch.autograd.graph.Node) -> bool:
    """Return whether ``result`` depends on the node ``origin`` by a differentiable path.

    >>> x = torch.ones(2, requires_grad=True).clone()
    >>> [depends(y, x.grad_fn) for y in (x.sum() * 0, x.round().sum(), x.round() + x, x.detach())]
    [True, False, True, False]
    """
    visited = set()
    waiting = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is origin:
            return True
        if node is None or node in visited or node.name() in FLAT:
            continue
        visited.add(node)
        waiting.extend(parent for parent, _ in node.next_functions)
    return False


def as_seen(x: Tensor, law: View) -> Tensor:
    """Return points as f sees them, without output dimensions: ``[n, *batch, *event]``."""
    if law.outputs == 0:
        return x
    return x.reshape(x.shape[:1] + without_outputs(law) + law.event_shape)


def called(f: Function, x: Tensor, law: View) -> Float[Tensor, "n *batch"]:
    """Return f at these points, checked; an error of f gets a note on what x was."""
    if torch.compiler.is_compiling():  # which breaks its graph behind a `try`, not inside
        return checked(f(as_seen(x, law)), x, law)
    points = as_seen(x, law)
    try:
        fx = f(points)
    except Exception as error:
        note = (
            f"f was called with x of shape {tuple(points.shape)} ([n, *batch, *event]) and dtype "
            f"{points.dtype} on {points.device}, as q draws it."
        )
        if "dtype" in str(error) or "scalar type" in str(error):
            note += " If f needs another dtype, convert x in f, or the parameters of q before."
        error.add_note(note)
        raise
    return checked(fx, x, law)


def checked(fx: object, x: Tensor, law: View) -> Float[Tensor, "n *batch"]:
    """Return ``fx``, or raise an error that says what f returned and what it must return."""
    expected = x.shape[:1] + without_outputs(law)
    if not isinstance(fx, Tensor):
        raise TypeError(
            f"f must return a tensor of shape {_shape(expected, law)}, but it returned "
            f"{type(fx).__name__}. If these are the values, wrap them: torch.as_tensor(values, "
            f"dtype={law.real}, device={str(x.device)!r})."
        )
    if fx.layout != torch.strided:
        raise TypeError(
            f"f must return a dense tensor, but it returned {fx.layout}: end it with `.to_dense()`."
        )
    if fx.dim() != len(expected) + law.outputs or fx.shape[: len(expected)] != expected:
        raise ValueError(_wrong_shape(fx, x, law, expected))
    if fx.device != x.device:
        raise ValueError(
            f"f must return its values on {x.device}, the device of its input, but they are on "
            f"{fx.device}."
        )
    check_dense("f: its value", fx)
    if fx.dtype == torch.bool:
        return fx.to(law.real)
    if not fx.is_floating_point():
        raise TypeError(
            f"f must return floats or bools, but it returned {fx.dtype}: end it with `.float()` "
            "(or `.double()`)."
        )
    check_finite(fx, "f must return", law.validate)
    # Weights are differences of values and of their means, which 16 bits would round again.
    if fx.dtype.itemsize < 4:
        return fx.float()
    # f may return the same memory at its next call, as simulators do.
    return fx if fx.requires_grad else fx.clone()


def check_finite(values: Tensor, claim: str, validate: bool) -> None:
    """Raise if a value is NaN or infinite, where Python may look (``can_inspect``)."""
    if can_inspect(validate, values) and not bool(values.isfinite().all()):
        bad = (~values.isfinite()).nonzero()
        first = tuple(bad[0].tolist())
        raise ValueError(
            f"{claim} finite numbers, but {len(bad)} of {values.numel()} are NaN or infinite, the "
            f"first ({cast(float, values[first].item())}) at index {first}. Pass validate=False to "
            "the estimator to let them through."
        )


def _shape(expected: torch.Size, law: View) -> str:
    """Return the expected shape in words; the sizes of outputs are free."""
    if law.outputs == 0:
        return str(tuple(expected))
    return f"({', '.join([*map(str, expected), *['*'] * law.outputs])})"


def _wrong_shape(fx: Tensor, x: Tensor, law: View, expected: torch.Size) -> str:
    shape = tuple(as_seen(x, law).shape)
    if law.outputs:
        return (
            f"f must return {law.outputs} output dimension{'s' * (law.outputs > 1)} per point: it "
            f"was given x of shape {shape} and must return shape {_shape(expected, law)} "
            f"([n, *batch, *outputs]), but it returned {tuple(fx.shape)}. Change `outputs` or f."
        )
    message = (
        f"f must return one value per point: it was given x of shape {shape} and must "
        f"return shape {tuple(expected)} ([n, *batch]), but it returned {tuple(fx.shape)}."
    )
    extra = fx.dim() - len(expected)
    if extra > 0 and fx.shape[: len(expected)] == expected:
        message = (
            f"{message} If each of its last dimensions is an output with an expectation of its "
            f"own, pass outputs={extra} to the call."
        )
    for missing in range(1, len(law.batch_shape) + 1):
        if fx.shape == expected[:-missing]:
            return (
                f"{message} It seems to treat the last {missing} batch "
                f"dimension{'s' * (missing > 1)} of q as variables of one event: wrap the "
                f"distribution as Independent(q, {missing})."
            )
    return (
        f"{message} Reduce the event dimensions {tuple(law.event_shape)} and keep the leading ones."
    )
