"""Warn of an f that is another function at each call, where an estimator subtracts its values."""

import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..distributions.conditionals import Conditionals
from ..distributions.counts import Counts
from ..distributions.factors import Factors
from ..estimator import Function
from ..tracing import can_inspect, inside_functorch
from .left_alone import modules_of

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
    others. Only torch's global generators and buffers that f changes are looked at, so that f is
    not evaluated once more; :func:`catlog.check` finds all kinds of noise.
    """


@dataclass(frozen=True)
class Trace:
    """What a call of f changes if f is noisy, as it was before the call.

    Attributes:
        states: of torch's global random number generators.
        batches: what counts the batches of each batch normalisation, and how often it was written.
    """

    states: list[Tensor]
    batches: list[tuple[Tensor, int]]

    # Uses of a module, a class of functions or a function's code.
    _uses: ClassVar[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()

    @classmethod
    def before(cls, f: Function, law: Factors | Conditionals | Counts) -> "Trace | None":
        """Return the present state, or None where Python may not look at it.

        Ranks that share f's points must agree on what they do, so nothing is looked at there.
        """
        if not can_inspect(law.validate) or inside_functorch() or getattr(f, "ranks", 1) > 1:
            return None
        if law.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        return cls(_states(law.device), cls._batch_counters(f))

    @classmethod
    def _batch_counters(cls, f: Function) -> list[tuple[Tensor, int]]:
        """Look for batch normalisation at the first four uses of f, then at every power of two.

        Looking follows all references of f. Later looks are needed because the first uses may be
        those of a validation.
        """
        while isinstance(f, partial):
            f = f.func
        key = f if isinstance(f, nn.Module) else getattr(f, "__code__", type(f))
        uses = cls._uses[key] = cls._uses.get(key, 0) + 1
        if uses > 4 and uses & (uses - 1):
            return []
        counters = [
            module.num_batches_tracked
            for root in modules_of(f)
            for module in root.modules()
            if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        return [
            (counter, counter._version)
            for counter in counters
            if counter is not None and not counter.is_inference()
        ]

    def warn_if_changed(self, law: Factors | Conditionals | Counts) -> None:
        """Warn if f has drawn random numbers since, or has counted a batch."""
        states = zip(self.states, _states(law.device), strict=True)
        if any(not torch.equal(before, after) for before, after in states):
            warnings.warn(NOISE + SILENCE, NoisyFunctionWarning, _callers_level())
        if any(counter._version != version for counter, version in self.batches):
            warnings.warn(BATCH + SILENCE, NoisyFunctionWarning, _callers_level())


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
