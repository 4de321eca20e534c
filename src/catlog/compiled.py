"""A fast training step: compiled and, on a GPU, captured in a CUDA graph."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .estimators.slopecater import SlopeCateR

# Sums over fewer than 17 draws or categories are unrolled: as loops, they would leave most of a
# GPU's threads idle.
OPTIONS: dict[str, bool | int | str | Callable[..., Any]] = {"unroll_reductions_threshold": 17}


class Recording(NamedTuple):
    """A captured step, and the buffer that holds its loss after a replay."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor


class CompiledStep:
    """A training step ``step(*inputs) -> loss``, made by :func:`catlog.compiled_step`.

    Attributes:
        mode: how it runs: "eager", "compiled", "captured" or "compiled, captured"; None before the
            first call.
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
        warmup: int = 3,
    ) -> None:
        self.loss = loss
        self.optimiser = optimiser
        self.estimator: SlopeCateR | None = None
        if isinstance(estimator, SlopeCateR) and estimator.every > 1:
            self.estimator = estimator
        self.group = group
        self.warmup = warmup
        groups = optimiser.param_groups
        self.parameters: list[Tensor] = [p for group in groups for p in group["params"]]
        self.compile = compile
        self.mode: str | None = None
        self.why = ""
        self._run: Callable[..., Tensor] = self._mean
        self._update: Callable[[], object] = optimiser.step
        self._inputs: tuple[Tensor, ...] = ()
        self._recordings: dict[bool | None, Recording] = {}  # by whether the estimator corrects

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.mode is None:
            self._prepare(inputs)
        if self.mode == "eager":  # the estimator decides by itself whether it corrects
            return self._step(*inputs)
        corrects = self._decide()
        if not self._recordings:
            return self._step_with(corrects, inputs)
        for buffer, value in zip(self._inputs, inputs, strict=True):
            if buffer.shape != value.shape:
                raise ValueError(
                    f"compiled_step: an input of shape {tuple(value.shape)} was given, but the "
                    f"graph was captured with {tuple(buffer.shape)}. Keep shapes fixed (drop the "
                    "last, smaller batch) or make another step for them."
                )
            buffer.copy_(value)
        graph, loss = self._recordings[corrects]
        graph.replay()
        return loss

    def _mean(self, *inputs: Tensor) -> Tensor:
        return self.loss(*inputs).mean()

    def _step(self, *inputs: Tensor) -> Tensor:
        self.optimiser.zero_grad()
        loss = self._run(*inputs)
        loss.backward()
        if self.group is not None:
            self._average()
        self._update()
        return loss.detach()

    def _decide(self) -> bool | None:
        """Return whether the estimator corrects in this call, or None if it always does."""
        if self.estimator is None:
            return None
        decided = self.estimator.corrects
        return self.estimator.toss() if decided is None else decided

    def _step_with(self, corrects: bool | None, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run a step in which the estimator corrects or does not; None changes nothing."""
        if self.estimator is None:
            return self._step(*inputs)
        with self.estimator.deciding(corrects):
            return self._step(*inputs)

    def _average(self) -> None:
        """Average all gradients over ranks, in one message per dtype; a graph can capture it."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            same_dtype = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.flatten() for gradient in same_dtype])
            dist.all_reduce(flat, group=self.group)
            flat /= dist.get_world_size(self.group)
            means = flat.split([gradient.numel() for gradient in same_dtype])
            for gradient, mean in zip(same_dtype, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _prepare(self, inputs: tuple[Tensor, ...]) -> None:
        devices = {parameter.device.type for parameter in self.parameters}
        compiles = devices == {"cuda"} if self.compile is None else self.compile
        if compiles:
            mean = _with_code_copy(self._mean)
            self._run = torch.compile(mean, fullgraph=True, dynamic=False, options=OPTIONS)
        self.mode = "compiled" if compiles else "eager"
        if devices != {"cuda"}:
            self.why = "CUDA graphs need all parameters on one GPU."
            return
        if not all(group.get("capturable", False) for group in self.optimiser.param_groups):
            name = type(self.optimiser).__name__
            self.why = f"{name} was not made with capturable=True, so it cannot be captured."
            return
        if compiles and _can_compile(self.optimiser):
            self._update = compiled_update(self.optimiser)
        self.mode = None  # until it is captured
        self._inputs = tuple(value.clone() for value in inputs)
        self._recordings = {
            corrects: self._capture(corrects)
            for corrects in ([None] if self.estimator is None else [True, False])
        }
        self.mode = "compiled, captured" if compiles else "captured"

    def _capture(self, corrects: bool | None) -> Recording:
        """Warm up on a side stream, restore parameters and optimiser state, and record one step."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        state = {parameter: deepcopy(slots) for parameter, slots in self.optimiser.state.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.warmup):
                self._step_with(corrects, self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)
            # The optimiser's state is restored in place, where the graph and the compiled update
            # find it. New state begins at zero.
            for parameter, slots in self.optimiser.state.items():
                for name, slot in slots.items():
                    if isinstance(slot, Tensor):
                        slot.copy_(state[parameter][name]) if parameter in state else slot.zero_()
        graph = torch.cuda.CUDAGraph()
        with _captured(graph):
            loss = self._step_with(corrects, self._inputs)
        return Recording(graph, loss)


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


def _with_code_copy(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the same function with a copy of its code object.

    torch.compile counts recompilations per code object and gives up after eight. Models that share
    a loss method (the runs of a sweep, the rows of a benchmark) would use them up.
    """
    if isinstance(loss, MethodType):
        return MethodType(_with_code_copy(loss.__func__), loss.__self__)
    if not isinstance(loss, FunctionType):
        return loss
    rest = (loss.__globals__, loss.__name__, loss.__defaults__, loss.__closure__)
    copy = FunctionType(loss.__code__.replace(), *rest)
    copy.__kwdefaults__ = loss.__kwdefaults__
    return copy


def compiled_step(
    loss: Callable[..., Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    compile: bool | None = None,
    estimator: object = None,
    group: Any = None,
) -> CompiledStep:
    """Return a training step that is as fast as the device allows.

    Make it by ``step = compiled_step(loss, optimiser)``, then call ``step(batch)``.
    ``loss(*inputs)`` maps tensors to a loss (one number, or one per batch element, which are
    averaged). On a GPU the loss is compiled with ``torch.compile(fullgraph=True)``, and so is the
    update. Loss, backward and update are captured once in a CUDA graph; each call copies its inputs
    into the graph's buffers and replays it. The returned loss lives in a buffer that the next call
    overwrites. On a CPU the step runs in eager mode, or compiled with ``compile=True``.
    ``step.mode`` says how it runs, ``step.why`` what prevented a faster mode. Make the optimiser
    with ``capturable=True``, and put schedules into tensors. (An update with ``fused=True`` or with
    hooks is captured without being compiled. For small models torch's fused Adam is slow, because
    it gives each block of a GPU 65,536 numbers.)

    ``estimator`` is for ``E = SlopeCateR(every=R)``, which corrects in one call of R. Compiled code
    cannot toss a coin, so the step does, before every call: ``compiled_step(loss, optimiser,
    estimator=E)``. It is compiled and captured once with corrections and once without. Other
    estimators may be given, too; they change nothing.

    ``group`` is a process group of torch.distributed whose ranks train one model: each calls the
    step with its part of the batch (equally large parts), and the gradients are averaged before the
    update. Start all ranks with the same parameters.

    >>> theta = torch.nn.Parameter(torch.zeros(2))
    >>> step = compiled_step(lambda x: (theta - x).square().sum(), torch.optim.SGD([theta], 0.5))
    >>> float(step(torch.ones(2))), theta.tolist(), step.mode
    (2.0, [1.0, 1.0], 'eager')
    """
    return CompiledStep(loss, optimiser, compile=compile, estimator=estimator, group=group)
