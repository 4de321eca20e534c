"""A fast training step: compiled and, on a GPU, captured in a CUDA graph."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .core.checks import check_flag, check_kind
from .core.left_alone import left_alone, modules_of

# Sums over fewer than 17 draws or categories are unrolled: as loops, they would leave most of a
# GPU's threads idle.
OPTIONS: dict[str, bool | int | str | Callable[..., Any]] = {"unroll_reductions_threshold": 17}
AUTOTUNE: dict[str, bool | int | str | Callable[..., Any]] = {"max_autotune": True}


class Graph(Protocol):
    """What :class:`torch.cuda.CUDAGraph` is here."""

    def replay(self) -> None: ...


class CudaGraphs:
    """A stream for steps that are not captured yet, and their capture.

    The nodes that accumulate gradients remember the stream of their first step. That must not be
    the default stream, on which nothing can be captured.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the body on that stream, after all that came before and before all that comes."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def capture(self, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the graph of a step, and the buffer that holds its result after a replay."""
        graph = torch.cuda.CUDAGraph()
        with _captured(graph):
            result = step()
        return graph, result


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture the body in ``graph``, and restore torch's state after a failure.

    After a failed capture torch stays on the capture's stream, and its generator refuses to draw
    because it is still registered with the graph. Old graphs are collected before the capture: to
    free one during the capture would invalidate it.
    """
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    cause: Exception | None = None
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            try:
                yield
            except Exception as raised:
                cause = raised
                raise
    except Exception as raised:
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(generator.clone_state())
        graph.reset()
        cause = cause or raised
        raise RuntimeError(
            "compiled_step: the step runs, but it could not be captured in a CUDA graph: "
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''} Remove "
            "what waits for the GPU (.item(), branches on values, some calls of linear algebra), "
            "or make the optimiser without capturable=True for a step that is not captured."
        ) from cause
    finally:
        if collects:
            gc.enable()


class SeldomCorrecting(Protocol):
    """An estimator with two kinds of calls, such as ``SlopeCateR(every=4)``."""

    corrects: bool | None

    def toss(self) -> bool: ...

    def deciding(self, corrects: bool | None) -> AbstractContextManager[None]: ...


class Recording(NamedTuple):
    """A captured step.

    Attributes:
        graph: repeats the step.
        loss: the buffer that holds the loss after a replay.
        gradients: the buffers that hold the gradients of all parameters.
    """

    graph: Graph
    loss: Tensor
    gradients: list[Tensor | None]


class CompiledStep:
    """A training step ``step(*inputs) -> loss``, made by :func:`catlog.compiled_step`.

    Attributes:
        mode: how it runs: "eager", "compiled", "captured" or "compiled, captured"; None
            before the first call.
        why: what prevented a faster mode.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        optimiser: torch.optim.Optimizer,
        *,
        compile: bool | None = None,
        estimator: object = None,
        group: Any = None,
        autotune: bool = False,
        warmup: int = 3,
    ) -> None:
        _check(loss, optimiser, compile)
        check_flag("compiled_step", "autotune", autotune)
        self.loss = loss
        self.optimiser = optimiser
        # Only one that corrects seldom has two kinds of calls.
        self.estimator: SeldomCorrecting | None = None
        if getattr(estimator, "every", 1) > 1:
            self.estimator = cast(SeldomCorrecting, estimator)
        self.compile = compile
        self.options = OPTIONS | AUTOTUNE if autotune else OPTIONS
        self.group = group
        self.warmup = warmup
        self.mode: str | None = None
        self.why = ""
        self._plain_mode = "eager"
        self._run: Callable[..., Tensor] = self._mean
        self._graphs: CudaGraphs | None = None  # None: steps are not captured
        self._device = torch.device("cpu")
        self._inputs: tuple[Tensor, ...] = ()
        self._modules: list[nn.Module] = []
        self._settings: dict[str, object] = {}  # after the last step that was not replayed
        self._rates: list[Tensor | None] = []  # of each group: what graphs read; None: its own
        self._written: list[float] = []  # what was written into them
        self._recordings: dict[bool | None, Recording] = {}  # by whether the estimator corrects

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.mode is None:
            self._prepare(inputs)
        corrects = self._decide()
        if self._graphs is None:
            return self._step(corrects, inputs, self.optimiser.step)
        self._copy_inputs(inputs)
        settings = self._read_settings()
        if settings != self._settings:
            return self._step_before_capture(corrects, inputs, settings)
        if not self._recordings:
            self._record()
        self._copy_rates()
        return self._replay(self._recordings[corrects])

    def _mean(self, *inputs: Tensor) -> Tensor:
        return self.loss(*inputs).mean()

    def _step(
        self, corrects: bool | None, inputs: tuple[Tensor, ...], update: Callable[[], object]
    ) -> Tensor:
        """Run a step in which the estimator corrects or does not; None changes nothing."""
        E = self.estimator
        with nullcontext() if E is None else E.deciding(corrects):
            self.optimiser.zero_grad()
            loss = self._run(*inputs)
            loss.backward()
            if self.group is not None:
                self._average()
            update()
        return loss.detach()

    def _decide(self) -> bool | None:
        """Return whether the estimator corrects in this call, or None if it always does."""
        if self.estimator is None:
            return None
        decided = self.estimator.corrects
        return self.estimator.toss() if decided is None else decided

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimiser.param_groups for p in group["params"]]

    def _average(self) -> None:
        """Average all gradients over ranks, in one message per dtype; a graph can capture it."""
        gradients = [parameter.grad for parameter in self._parameters()]
        present = [gradient for gradient in gradients if gradient is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in present):
            same_dtype = [gradient for gradient in present if gradient.dtype == dtype]
            flat = torch.cat([gradient.flatten() for gradient in same_dtype])
            dist.all_reduce(flat, group=self.group)
            flat /= dist.get_world_size(self.group)
            means = flat.split([gradient.numel() for gradient in same_dtype])
            for gradient, mean in zip(same_dtype, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _prepare(self, inputs: tuple[Tensor, ...]) -> None:
        devices = {parameter.device.type for parameter in self._parameters()}
        compiles = devices == {"cuda"} if self.compile is None else self.compile
        if compiles:
            mean = _with_code_copy(self._mean)
            self._run = torch.compile(mean, fullgraph=True, dynamic=False, options=self.options)
        self._plain_mode = "compiled" if compiles else "eager"
        self.why = why_not_captured(self.optimiser, devices)
        if not self.why:
            self._inputs = tuple(_buffer(value) for value in inputs)
            self._modules = [m for module in modules_of(self.loss) for m in module.modules()]
            self._graphs = CudaGraphs()
            self._device = self._parameters()[0].device
        elif not compiles:
            self.estimator = None  # it decides by itself
        self.mode = self._plain_mode

    def _copy_inputs(self, inputs: tuple[Tensor, ...]) -> None:
        shapes = [tuple(buffer.shape) for buffer in self._inputs]
        if [tuple(value.shape) for value in inputs] != shapes:
            text = ", ".join(str(tuple(value.shape)) for value in inputs)
            raise ValueError(
                f"compiled_step: the inputs must have the shapes {', '.join(map(str, shapes))} "
                f"that the graph was captured with, but {text} were given. Keep shapes fixed "
                "(drop the last, smaller batch) or make another step for them."
            )
        for buffer, value in zip(self._inputs, inputs, strict=True):
            buffer.copy_(value)

    def _read_settings(self) -> dict[str, object]:
        """Return what a graph holds and Python may change: numbers, flags, addresses."""
        parameters, modules = self._parameters(), self._modules
        tables = [table for m in modules for table in (m._parameters, m._buffers)]
        tensors = [t for table in tables for t in table.values() if t is not None]
        slots = [s for slots in self.optimiser.state.values() for s in slots.values()]
        return {
            "settings of the optimiser": [
                (name, _constant(value, self._device))
                for group in self.optimiser.param_groups
                for name, value in group.items()
                if name != "params" and not (name == "lr" and self._reads_tensor(group))
            ],
            "parameters": list(map(Tensor.data_ptr, parameters)),
            "requires_grad of parameters": [parameter.requires_grad for parameter in parameters],
            "the optimiser's state": [s.data_ptr() for s in slots if isinstance(s, Tensor)],
            "tensors of modules": list(map(Tensor.data_ptr, tensors)),
            "training mode of modules": [module.training for module in modules],
            "autocast": torch.is_autocast_enabled("cuda"),
            "grad mode": torch.is_grad_enabled(),
        }

    def _reads_tensor(self, group: dict[str, Any]) -> bool:
        """Return whether graphs read the learning rate of a group, a number, from a tensor.

        All optimisers of torch that can be captured take tensors, but some loop over parameters
        (``foreach=False``) in a way that reads them on the host.
        """
        if not type(self.optimiser).step.__module__.startswith("torch.optim."):
            return False
        rate = group.get("lr")
        is_number = not isinstance(rate, Tensor) or rate.device != self._device
        return is_number and rate is not None and group.get("foreach") is not False

    def _changed(self, settings: dict[str, object]) -> str:
        """Return the names of what has changed."""
        return ", ".join(name for name in settings if settings[name] != self._settings[name])

    def _step_before_capture(
        self, corrects: bool | None, inputs: tuple[Tensor, ...], settings: dict[str, object]
    ) -> Tensor:
        """Run a step as it is. The first one is captured at once; after a change, the next one is,
        unless something changes again."""
        assert self._graphs is not None
        is_first = not self._settings
        self.mode = self._plain_mode
        self.why = "" if is_first else f"{self._changed(settings)} changed since the last call."
        self._recordings = {}
        with self._graphs.aside():
            loss = self._step(corrects, inputs, self.optimiser.step)
        self._settings = self._read_settings()
        if is_first:
            self._record()
        return loss

    def _record(self) -> None:
        """Capture the step, with corrections of the estimator and without."""
        assert self._graphs is not None
        compiles = self._plain_mode == "compiled"
        update: Callable[[], object] = self.optimiser.step
        if compiles and _can_compile(self.optimiser):
            update = compiled_update(self.optimiser)
        self._rates = [
            _rate_buffer(group, self._device) if self._reads_tensor(group) else None
            for group in self.optimiser.param_groups
        ]
        self._written = []
        self._copy_rates()
        recordings = {}
        for corrects in [None] if self.estimator is None else [True, False]:
            step = partial(self._step, corrects, self._inputs, update)
            with self._gradients_kept(), self._rates_in_tensors():
                with self._undone(), self._graphs.aside():
                    for _ in range(self.warmup):
                        step()
                graph, loss = self._graphs.capture(step)
                gradients = [parameter.grad for parameter in self._parameters()]
            recordings[corrects] = Recording(graph, loss, gradients)
        if changed := self._changed(self._read_settings()):
            raise RuntimeError(
                f"compiled_step: the step must change tensors in place, but it replaces {changed}, "
                "which no replay of its graph would do. Write into buffers by copy_, mul_ or add_, "
                "or make the optimiser without capturable=True."
            )
        self._recordings = recordings
        self.mode, self.why = "compiled, captured" if compiles else "captured", ""

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Restore parameters, the optimiser's state and buffers of modules after the body, in
        place, where graphs and the compiled update find them."""
        slots = [s for slots in self.optimiser.state.values() for s in slots.values()]
        tensors = [*self._parameters(), *(slot for slot in slots if isinstance(slot, Tensor))]
        values = [tensor.detach().clone() for tensor in tensors]
        with left_alone(self.loss, self.estimator):
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, value in zip(tensors, values, strict=True):
                        tensor.copy_(value)

    @contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        """Restore the gradients of the last step after the body: a capture computes none."""
        kept = [(parameter, parameter.grad) for parameter in self._parameters()]
        try:
            yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    def _groups_with_rates(self) -> list[tuple[dict[str, Any], Tensor]]:
        """Return the groups whose learning rate is a number, and the tensor that stands for it."""
        pairs = zip(self.optimiser.param_groups, self._rates, strict=True)
        return [(group, rate) for group, rate in pairs if rate is not None]

    def _copy_rates(self) -> None:
        """Write learning rates into the tensors that the graphs read."""
        pairs = self._groups_with_rates()
        numbers = [float(group["lr"]) for group, _ in pairs]
        if numbers != self._written:
            for (_, rate), number in zip(pairs, numbers, strict=True):
                rate.fill_(number)
            self._written = numbers

    @contextmanager
    def _rates_in_tensors(self) -> Iterator[None]:
        """Let the optimiser read the tensors instead of the numbers."""
        pairs = self._groups_with_rates()
        numbers = [group["lr"] for group, _ in pairs]
        try:
            for group, rate in pairs:
                group["lr"] = rate
            yield
        finally:
            for (group, _), number in zip(pairs, numbers, strict=True):
                group["lr"] = number

    def _replay(self, recording: Recording) -> Tensor:
        recording.graph.replay()
        for parameter, gradient in zip(self._parameters(), recording.gradients, strict=True):
            if parameter.grad is not gradient:  # that of another graph, or set to None
                parameter.grad = gradient
        return recording.loss


def _check(loss: object, optimiser: object, compile: object) -> None:
    """Raise unless the arguments can make a step."""
    remedy = "Write compiled_step(loss, optimiser)."
    check_kind("compiled_step: `loss`", loss, Callable, "be a function of the inputs", remedy)
    remedy = "Make one of the parameters, such as torch.optim.Adam(model.parameters())."
    claim = "be an optimiser of torch.optim"
    check_kind("compiled_step: `optimiser`", optimiser, torch.optim.Optimizer, claim, remedy)
    if compile is not None:
        check_flag("compiled_step", "compile", compile)


def why_not_captured(optimiser: torch.optim.Optimizer, devices: set[str]) -> str:
    """Return what prevents the capture of steps; empty if nothing does."""
    if devices != {"cuda"}:
        return "CUDA graphs need all parameters on one GPU."
    if not all(group.get("capturable", False) for group in optimiser.param_groups):
        name = type(optimiser).__name__
        return f"{name} was not made with capturable=True, so it cannot be captured."
    return ""


def _buffer(value: Any) -> Tensor:
    """Return a buffer for an input of captured steps."""
    remedy = "A graph would keep its first value."
    check_kind("compiled_step: the inputs", value, Tensor, "be tensors", remedy)
    return value.detach().clone()


def _constant(value: object, device: torch.device) -> object:
    """Return what a graph holds of a setting: a number, or the address of a tensor."""
    if isinstance(value, tuple | list):
        return [_constant(part, device) for part in value]
    if isinstance(value, Tensor):
        return value.data_ptr() if value.device == device else value.tolist()
    return value


def _rate_buffer(group: dict[str, Any], device: torch.device) -> Tensor:
    """Return a tensor for the learning rate of a group. Fused updates read 32 bits only."""
    is_double = any(parameter.dtype.to_real() == torch.float64 for parameter in group["params"])
    dtype = torch.float64 if is_double and not group.get("fused") else torch.float32
    return torch.zeros((), dtype=dtype, device=device)


def _can_compile(optimiser: torch.optim.Optimizer) -> bool:
    """Return whether the update may be compiled: not fused, not differentiable, no hooks."""
    hooks = optimiser._optimizer_step_pre_hooks or optimiser._optimizer_step_post_hooks
    return not hooks and not any(
        group.get("fused") or group.get("differentiable") for group in optimiser.param_groups
    )


def compiled_update(optimiser: torch.optim.Optimizer) -> Callable[[], object]:
    """Return the optimiser's compiled ``step``, without torch's profiling and graph breaks."""
    step = MethodType(unwrap(type(optimiser).step), optimiser)
    return torch.no_grad()(torch.compile(_with_code_copy(step), dynamic=False))


def _with_code_copy(method: Any) -> MethodType:
    """Return the same method with a copy of its code object.

    torch.compile counts recompilations per code object and gives up after eight. Models that share
    a loss method (the runs of a sweep, the rows of a benchmark) would use them up.
    """
    function = method.__func__
    rest = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy = FunctionType(function.__code__.replace(), *rest)
    copy.__kwdefaults__ = function.__kwdefaults__
    return MethodType(copy, method.__self__)


def compiled_step(
    loss: Callable[..., Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    compile: bool | None = None,
    estimator: object = None,
    group: Any = None,
    autotune: bool = False,
) -> CompiledStep:
    """Return a training step that is as fast as the device allows.

    Make it by ``step = compiled_step(loss, optimiser)``, then call ``step(batch)``.
    ``loss(*inputs)`` maps tensors to a loss (one number, or one per batch element, which are
    averaged). On a GPU the loss is compiled with ``torch.compile(fullgraph=True)``, and so is the
    update. The first call runs as it is, and then captures loss, backward and update in a CUDA
    graph. Each further call copies its inputs into the graph's buffers and replays it. The returned
    loss and the gradients live in buffers that a later call overwrites. On a CPU the step runs in
    eager mode, or compiled with ``compile=True``. ``step.mode`` says how it runs, ``step.why`` what
    prevented a faster mode. Make the optimiser with ``capturable=True``. (An update with
    ``fused=True`` or with hooks is captured without being compiled. For small models torch's fused
    Adam is slow, because it gives each block of a GPU 65,536 numbers.)

    Learning rates may change in every call, also those that are floats. The step also notices
    other settings and a loaded state of the optimiser, new parameter groups, ``requires_grad``,
    ``train()`` and ``eval()``, and new memory of parameters. After such a change one call runs as
    it is, and the next one captures the step again. So a value that changes in every call, such as
    the momentum in OneCycleLR, prevents the capture. Everything else that ``loss`` reads in Python
    stays as it was captured: put numbers that follow a schedule into tensors.

    ``estimator`` is for ``E = SlopeCateR(every=R)``, which corrects in one call of R. Compiled code
    cannot toss a coin, so the step does, before every call: ``compiled_step(loss, optimiser,
    estimator=E)``. It is compiled and captured once with corrections and once without. Other
    estimators may be given, too; they change nothing.

    ``group`` is a process group of torch.distributed whose ranks train one model: each calls the
    step with its part of the batch (equally large parts), and the gradients are averaged before the
    update. Start all ranks with the same parameters.

    ``autotune`` lets the compiler time several kernels for every matrix product. The first call
    takes about a minute longer, and steps of small models become about a tenth shorter. Products in
    TF32 save more: ``torch.set_float32_matmul_precision("high")``.

    >>> theta = torch.nn.Parameter(torch.zeros(2))
    >>> step = compiled_step(lambda x: (theta - x).square().sum(), torch.optim.SGD([theta], 0.5))
    >>> float(step(torch.ones(2))), theta.tolist(), step.mode
    (2.0, [1.0, 1.0], 'eager')
    """
    return CompiledStep(
        loss, optimiser, compile=compile, estimator=estimator, group=group, autotune=autotune
    )
