"""Warn of an f that is another function at each call, where an estimator subtracts its values."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .left_alone import left_alone, modules_of
from .tracing import can_inspect, in_inference_mode, inside_functorch

if TYPE_CHECKING:
    from .factors import Factors

SAME = 1e-5  # relative; far above the rounding of a repeated call, far below dropout
NOISE = (
    "f: it draws random numbers in every call, as dropout does. The estimator subtracts values of "
    "f, and noise of different calls does not cancel. Call eval() on the network in f, or draw the "
    "noise once per step, outside f (see `catlog.check`)."
)
BATCH = (
    "f: it has batch normalisation in training mode, so its value at a point depends on the other "
    "points of a call. The estimator subtracts values of different calls. Call eval() on the "
    "network in f, or use LayerNorm or GroupNorm."
)
SILENCE = " warnings.simplefilter('ignore', catlog.NoisyFunctionWarning) turns this warning off."


class NoisyFunctionWarning(UserWarning):
    """A warning of estimators that subtract values of f, if f is another function at each call.

    They compare f at points that differ in one variable (`IndeCateR`, `SCateR`, `LEG`,
    `SlopeCateR`, ...). If f draws other random numbers at each point, as dropout does, these
    differences are mostly noise. Batch normalisation makes the value of a point depend on the
    others.

    Estimators look at the first four uses of f, and then at every power of two. They see whether f
    draws from torch's global generators, or counts batches. Only if it draws, they evaluate it at a
    point twice. :func:`catlog.check` finds all kinds of noise.
    """


@dataclass(frozen=True)
class Trace:
    """What a call of f changes if f is noisy, as it was before the call.

    Attributes:
        f: the function.
        device: of its points.
        states: of torch's global random number generators.
        batches: what counts the batches of each batch normalisation, and how often it was written.
    """

    f: Callable[[Tensor], Tensor]
    device: torch.device
    states: list[Tensor]
    batches: list[tuple[Tensor, int]]

    # Uses of a module, a class of functions or a function's code.
    _uses: ClassVar[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()

    @classmethod
    def before(cls, f: Callable[[Tensor], Tensor], q: "Factors") -> "Trace | None":
        """Return the present state, or None if Python may not look at it or need not now.

        Ranks that share f's points must agree on what they do, so nothing is looked at there, nor
        if f says that it ``is_noisy``. Later looks are needed because the first uses may be those
        of a validation.
        """
        if not can_inspect(q.validate) or inside_functorch() or in_inference_mode():
            return None
        if q.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        function = f
        while isinstance(function, partial):
            function = function.func
        is_module = isinstance(function, nn.Module)
        key = function if is_module else getattr(function, "__code__", type(function))
        uses = cls._uses[key] = cls._uses.get(key, 0) + 1
        if uses > 4 and uses & (uses - 1):
            return None
        if getattr(f, "ranks", 1) > 1 or getattr(f, "is_noisy", False):
            return None
        counters = [
            module.num_batches_tracked
            for root in modules_of(f)
            for module in root.modules()
            if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        batches = [
            (counter, counter._version)
            for counter in counters
            if counter is not None and not counter.is_inference()
        ]
        return cls(f, q.device, _states(q.device), batches)

    def warn_if_changed(self, repeated: Callable[[], Tensor], calls: int = 2) -> None:
        """Warn if f has counted a batch since, or has drawn random numbers that change its value.

        A Pyro model, for example, draws initial values of its parameters at every run, and does not
        use them.

        Args:
            repeated: evaluates f at two equal points in one call.
            calls: 2 if the estimator subtracts values of different calls, else 1.
        """
        if any(counter._version != version for counter, version in self.batches):
            warnings.warn(BATCH + SILENCE, NoisyFunctionWarning, _callers_level())
        states = zip(self.states, _states(self.device), strict=True)
        if all(torch.equal(before, after) for before, after in states):
            return
        try:
            with left_alone(self.f), torch.no_grad():
                values = [repeated() for _ in range(calls)]
        except Exception:  # f may raise anything where it was not called before
            return
        first, second = values if calls == 2 else values[0].chunk(2)
        if bool(((first - second).abs() > SAME * first.abs().max()).any()):
            warnings.warn(NOISE + SILENCE, NoisyFunctionWarning, _callers_level())


def _states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _callers_level() -> int:
    """Return the stack level, for the function that calls this one, of the code that uses catlog.

    Modules are called through torch.
    """
    level, frame = 0, sys._getframe(1)
    inside = ("catlog", "torch")
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    return level + 1
