"""f as estimators call it: the one place where it is evaluated, and its values are checked."""

from collections.abc import Callable
from math import ceil, isfinite, prod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from .abilities import has_mean, has_touches
from .checks import check_dense, check_function, refusal, shape_or_type
from .factors import Factors, IndependentFactors
from .neighbours import Neighbours, Slots, Table
from .noise import watched
from .tracing import can_inspect, in_inference_mode, is_transformed

Function = Callable[[Tensor], Tensor]
Rows = Float[Tensor, "rows *batch"]

NOT_DIFFERENTIABLE = (
    "f: its derivative in x is needed by this estimator, but f's value does not depend "
    "differentiably on x. Use a black-box estimator (RLOO, RELAX, IndeCateR without `variables`, "
    "or with control='none'), or make f differentiable."
)
FLAT = frozenset(  # nodes of autograd whose derivative is 0, or missing
    [
        *(f"{name}Backward0" for name in ("Ceil", "Floor", "Round", "Sgn", "Sign", "Trunc")),
        "RoundBackward1",
        "NotImplemented",
    ]
)


class Evaluator:
    """f, for one call of an estimator.

    Its values are floats of at least 32 bits, ``[n, *batch]``; with output dimensions ``[n, *batch,
    *outputs]``, where q has batch dimensions of size 1.

    Attributes:
        f: the function that the user gave.
        q: the factors of its points.
        chunk_size: evaluations at once where many points are made; None: chosen for the device.
    """

    def __init__(self, f: Function, q: Factors, chunk_size: int | None = None) -> None:
        check_function(f)
        self.f = f
        self.q = q
        self.chunk_size = chunk_size

    def __call__(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        """Return f at points ``[n, *batch, *event]``; f gets a copy, and may write into it."""
        return self.q.shown(x, self._values)

    def through(self, x: Tensor, *, subtracted: bool = False) -> Float[Tensor, "n *batch"]:
        """Return f at points that carry a derivative, or raise if f does not depend on it.

        f may write into the points. With ``subtracted``, warn if f is noisy.
        """
        origin = None if self.q.is_transformed else x.grad_fn
        warn = watched(self, lambda: x.detach()[:1].clone(), subtracted)
        fx = self._values(self.q.seen(x))
        warn()
        if origin is not None and not depends(fx, origin):
            raise ValueError(NOT_DIFFERENTIABLE)
        return fx

    def slope(self, x: Tensor) -> tuple[Float[Tensor, "n *batch"], Tensor]:
        """Return f and its derivative in x at every point, by one batched backward pass.

        If no gradient is wanted (``no_grad``, ``inference_mode``), nothing is differentiated and
        the derivative is 0. With outputs there is one backward pass for each, and the derivatives
        have the outputs where x has dimensions of size 1.
        """
        if in_inference_mode() or not torch.is_grad_enabled():
            return self(x), torch.zeros_like(x)
        q = self.q
        (fx,), pull = pullback(lambda points: (self._values(q.seen(points)),), x)
        sizes = fx.shape[fx.dim() - q.outputs :]
        columns = torch.eye(prod(sizes), dtype=fx.dtype, device=fx.device).view(-1, *sizes)
        slopes = [pull(column.expand(fx.shape))[0] for column in columns]
        if any(slope is None for slope in slopes):
            raise ValueError(NOT_DIFFERENTIABLE)
        parts = [q.seen(slope.detach()) for slope in slopes if slope is not None]
        batch_end = 1 + len(q.seen_batch)
        slope = torch.stack(parts, batch_end).unflatten(batch_end, sizes) if sizes else parts[0]
        self.check_finite(slope, "f's derivative in x must have")
        return fx, slope

    def chunked(
        self, points: Callable[[slice], Tensor], rows: int, *, subtracted: bool = True
    ) -> Rows:
        """Return f at ``rows`` points, of which ``points(part)`` makes a slice; f may write there.

        Only one chunk of points exists at a time, which bounds the memory. Warn if f is noisy,
        unless the values are not ``subtracted`` from others.
        """
        warn = watched(self, lambda: points(slice(0, 1)), subtracted and rows > 0)
        values = []
        for part in self.parts(rows):
            chunk = points(part)
            values.append(self._values(self.q.seen(chunk)))
            del chunk  # before the next one is made
        warn()
        if not values:
            return torch.zeros((0, *self.q.batch_shape), dtype=self.q.real, device=self.q.device)
        return torch.cat(values) if len(values) > 1 else values[0]

    def parts(self, rows: int) -> list[slice]:
        """Return equal slices of ``rows``, each of at most ``chunk_size`` evaluations of f."""
        if rows == 0:
            return []
        most = self.chunk_size or self._default_chunk_size()
        count = ceil(rows / max(1, most // max(1, prod(self.q.batch_shape))))
        step = ceil(rows / count)
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def _default_chunk_size(self) -> int:
        """Return how many evaluations of f are made at once.

        On a GPU they fill it: 2**28 numbers are 1 GiB of float32 input. On a CPU they are few
        enough to stay near its caches, and many enough that the threads seldom have to wait for
        each other: every operation of f ends with such a wait, which takes milliseconds where
        another program uses a core. 4,096 evaluations of a layer of 784 units are 13 MB, and a loss
        has a few such temporaries. Together they stay below the 64 MB at which the C library's
        allocator returns freed memory to the system. Points of many variables are fewer: 2**20
        numbers, but no less than 1,024 points.
        """
        numbers = max(1, prod(self.q.event_shape))
        if self.q.device.type == "cuda":
            return max(1, 2**28 // numbers)
        ranks = getattr(self.f, "ranks", 1)
        return max(1024, min(4096, 2**20 // numbers)) * ranks

    # Changes of one variable

    def neighbours(
        self, x: Tensor, fx: Rows, variables: Slots | None = None, per_variable: bool = False
    ) -> Table:
        """Return ``f(x with x_i = k) - f(x)``, ``[n, *batch, d, k]``, without autograd; of the
        given ``variables`` of each draw, ``[n, *batch, m, k]``; or with one draw per variable."""
        with torch.no_grad():
            return Neighbours(self, x, fx, variables, per_variable).changes()

    def summed_out(
        self, x: Tensor, fx: Rows, per_variable: bool = False
    ) -> Float[Tensor, "*batch d"]:
        """Return the mean of :meth:`neighbours` over the draws and over the categories of each
        variable, differentiable in q.

        Draws with large tables are taken a few at a time, so that the tables of all of them never
        exist at once. In compiled code this is done only if f has outputs, since how many draws
        they are depends on the size of the batch.
        """
        q = self.q
        assert isinstance(q, IndependentFactors)
        group = q.d if per_variable else 1
        draws = at_once = len(x) // group
        if q.outputs or not torch.compiler.is_compiling():
            # Tables of 1 GiB of float32 on a GPU, and of 16 MiB on a CPU.
            most = 2**28 if x.is_cuda else 2**22
            at_once = max(1, most // max(1, prod(fx.shape[1:]) * q.d * q.k))
        with torch.no_grad():
            total = None
            for first in range(0, draws, at_once):
                rows = slice(first * group, (first + at_once) * group)
                part = (x, fx) if at_once >= draws else (x[rows], fx[rows])
                table = Neighbours(self, *part, None, per_variable).total()
                total = table if total is None else total + table
        assert total is not None
        return q.mean(total if draws == 1 else total / draws)

    # What f knows of itself

    def mean(self) -> Float[Tensor, "*batch_outputs"] | None:
        """Return f's own mean, checked; None if it has none, or does not know it for this q."""
        if not has_mean(self.f):
            return None
        try:
            mean: object = self.f.expectation(self.q.distribution)
        except NotImplementedError:
            return None
        q, batch = self.q, self.q.seen_batch
        is_tensor = isinstance(mean, Tensor) and mean.dim() == len(batch) + q.outputs
        if not is_tensor or mean.shape[: len(batch)] != batch:  # type: ignore[attr-defined]
            form = f"a mean per batch element of q{' and output of f' * bool(q.outputs)}"
            claim = f"return a tensor of shape {self._shape(batch)}, {form}"
            raise refusal("f.expectation", claim, f"it returned {shape_or_type(mean)}")
        mean = cast(Tensor, mean)
        if not mean.is_floating_point():
            but = f"it returned {mean.dtype}"
            raise refusal("f.expectation", "return floats", but, kind=TypeError)
        self.check_finite(mean, "f.expectation must return")
        return mean.to(q.real)

    def shares(self, fx: Tensor) -> Float[Tensor, "*outputs d"] | float:
        """Return the shares of the variables in the value of each output: equal, for those that
        ``f.touches`` names. Any shares that do not depend on the draws keep it unbiased."""
        q = self.q
        if not q.outputs or not has_touches(self.f):
            return 1 / q.d
        touches: object = self.f.touches
        expected = (q.d, *fx.shape[fx.dim() - q.outputs :])
        is_bools = isinstance(touches, Tensor) and touches.dtype == torch.bool
        if not is_bools or touches.shape != expected:  # type: ignore[attr-defined]
            claim = f"hold bools of shape {expected} ([variables, *outputs])"
            raise refusal("f.touches", claim, f"it is {touches!r}")
        by_output = cast(Tensor, touches).to(q.device).movedim(0, -1)
        by_output = by_output | ~by_output.any(-1, keepdim=True)  # none: all
        return by_output.to(q.real) / by_output.sum(-1, keepdim=True)

    # Values

    def _values(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        q = self.q
        shape, expected = x.shape, x.shape[:1] + q.seen_batch  # f may resize x
        fx: object = self._called(x)
        if not isinstance(fx, Tensor):
            claim = f"return a tensor of shape {self._shape(expected)}"
            form = f"dtype={q.real}, device={str(x.device)!r}"
            remedy = f"If these are the values, wrap them: torch.as_tensor(values, {form})."
            raise refusal("f", claim, f"it returned {type(fx).__name__}", remedy, TypeError)
        check_dense("f: its value", fx)
        if fx.dim() != len(expected) + q.outputs or fx.shape[: len(expected)] != expected:
            raise ValueError(self._wrong_shape(fx, tuple(shape), expected))
        if fx.device != x.device:
            claim = f"return its values on {x.device}, the device of its input"
            raise refusal("f", claim, f"they are on {fx.device}")
        if fx.dtype == torch.bool:
            return fx.to(q.real)
        if not fx.is_floating_point():
            remedy = "end it with `.float()` (or `.double()`)."
            message = f"f must return floats or bools, but it returned {fx.dtype}: {remedy}"
            raise TypeError(message)
        self.check_finite(fx, "f must return")
        # Weights are differences of values and of their means, which 16 bits would round again.
        if fx.dtype.itemsize < 4:
            return fx.float()
        # f may return the same memory at its next call, as simulators do.
        return fx if fx.requires_grad else fx.clone()

    def _called(self, x: Tensor) -> object:
        """Return f(x); an error of f gets a note on what x was."""
        if self.q.is_transformed:  # a compiler breaks its graph behind a `try`
            return self.f(x)
        try:
            return self.f(x)
        except Exception as error:
            note = (
                f"f was called with x of shape {tuple(x.shape)} ([n, *batch, *event]) and dtype "
                f"{x.dtype} on {x.device}, as q draws it."
            )
            if "dtype" in str(error) or "scalar type" in str(error):
                note += " If f needs another dtype, convert x in f, or the parameters of q before."
            error.add_note(note)
            raise

    def check_finite(self, values: Tensor, claim: str) -> None:
        """Raise if a value is NaN or infinite, where Python may look."""
        # The sum of finite numbers is finite, unless it overflows. It is one look, not three.
        if not can_inspect(self.q.validate, values) or isfinite(values.detach().sum().item()):
            return
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            first = tuple(bad[0].tolist())
            raise ValueError(
                f"{claim} finite numbers, but {len(bad)} of {values.numel()} are NaN or infinite, "
                f"the first ({values[first].item()}) at index {first}. A q with "
                "validate_args=False lets them through."
            )

    def _shape(self, expected: torch.Size) -> str:
        """Return the expected shape in words; the sizes of outputs are free."""
        if self.q.outputs == 0:
            return str(tuple(expected))
        return f"({', '.join([*map(str, expected), *['*'] * self.q.outputs])})"

    def _wrong_shape(self, fx: Tensor, shape: tuple[int, ...], expected: torch.Size) -> str:
        outputs, returned = self.q.outputs, f"it returned {tuple(fx.shape)}"
        shown = f"it was given x of shape {shape} and must return shape {self._shape(expected)}"
        if outputs:
            return (
                f"f must return {outputs} output dimension{'s' * (outputs > 1)} per point: {shown} "
                f"([n, *batch, *outputs]), but {returned}. Change `outputs` or f."
            )
        message = f"f must return one value per point: {shown} ([n, *batch]), but {returned}."
        extra = fx.dim() - len(expected)
        if extra > 0 and fx.shape[: len(expected)] == expected:
            message = (
                f"{message} If each of its last dimensions is an output with an expectation of its "
                f"own, pass outputs={extra} to the call."
            )
        for missing in range(1, len(expected)):
            if fx.shape == expected[:-missing]:
                return (
                    f"{message} It seems to treat the last {missing} batch "
                    f"dimension{'s' * (missing > 1)} of q as variables of one event: wrap the "
                    f"distribution as Independent(q, {missing})."
                )
        return (
            f"{message} Reduce the event dimensions {tuple(self.q.event_shape)} and keep the "
            "leading ones."
        )


def mean_over_draws(values: Float[Tensor, "n *rest"]) -> Float[Tensor, "*rest"]:
    """Return the mean over draws; of a single one by a sum, whose backward pass is a view."""
    return values.sum(0) if values.shape[0] == 1 else values.mean(0)


Results = tuple[Tensor, ...]
Pull = Callable[[Tensor], tuple[Tensor | None, ...]]


def pullback(
    function: Callable[..., Results], *inputs: Tensor, create_graph: bool = False
) -> tuple[Results, Pull]:
    """Return the results of ``function``, and what maps a derivative in the first one to those in
    the inputs.

    A derivative is None where the first result does not depend differentiably on that input (eager
    mode only). The results can be differentiated in what else the function depends on, and with
    ``create_graph`` so can the derivatives. The function may write into its inputs.
    """
    if is_transformed():
        # The annotation is text because compilers cannot trace that of an inner function.
        def first_and_rest(*inputs: Tensor) -> "tuple[Tensor, Results]":
            results = function(*inputs)
            return results[0], results[1:]

        copies = [tensor.clone() for tensor in inputs]
        first, vjp, rest = torch.func.vjp(first_and_rest, *copies, has_aux=True)  # type: ignore[misc]
        return (first, *rest), vjp
    with torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        copies = [leaf.clone() for leaf in leaves]
        origins = [copy.grad_fn for copy in copies]
        results = function(*copies)
    is_used = [origin is not None and depends(results[0], origin) for origin in origins]
    options: dict[str, bool] = {"create_graph": create_graph, "allow_unused": True}

    def pull(weight: Tensor) -> tuple[Tensor | None, ...]:
        if not any(is_used):
            return (None,) * len(leaves)
        grads = torch.autograd.grad(results[0], leaves, weight, retain_graph=True, **options)
        return tuple(grad if used else None for grad, used in zip(grads, is_used, strict=True))

    return results, pull


def derivatives(
    function: Callable[..., Results], *inputs: Tensor, create_graph: bool = False
) -> tuple[Results, tuple[Tensor | None, ...]]:
    """Return the results of ``function``, and the derivatives of the first one's sum in the inputs,
    as :func:`pullback` does; constants without ``create_graph``."""
    results, pull = pullback(function, *inputs, create_graph=create_graph)
    grads = pull(torch.ones_like(results[0]))
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
        if node is None or node in visited or type(node).__name__ in FLAT:
            continue
        visited.add(node)
        # The first operand is visited first: it is where points mostly come from.
        for parent, _ in reversed(node.next_functions):
            waiting.append(parent)
    return False
