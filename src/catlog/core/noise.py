"""Warn of an f that is another function at each call, where an estimator subtracts its values."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .left_alone import left_alone, modules_of
from .tracing import can_inspect, in_inference_mode, inside_functorch

if TYPE_CHECKING:
    from .evaluator import Evaluator

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
    point again, twice. :func:`catlog.check` finds all kinds of noise.
    """


# Uses of a module, a class of functions or a function's code.
USES: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def watched(f: "Evaluator", point: Callable[[], Tensor], due: bool = True) -> Callable[[], None]:
    """Look at what f changes if it is noisy. The result, called after f, warns if it has.

    Args:
        f: the evaluator.
        point: makes one point, ``[1, *batch, *event]``.
        due: False: do not look.
    """
    if not (due and _is_due(f)):
        return _nothing
    x = point()
    states, batches = _states(x.device), _batches(f.f)

    def warn() -> None:
        if batches != _batches(f.f):
            warnings.warn(BATCH + SILENCE, NoisyFunctionWarning, _callers_level())
        if all(map(torch.equal, states, _states(x.device))):
            return
        # A Pyro model, for example, draws initial values of its parameters and does not use them.
        try:
            with left_alone(f.f), torch.no_grad():
                first, second = f(x), f(x)
        except Exception:  # f may raise anything where it was not called before
            return
        if bool(((first - second).abs() > SAME * first.abs().max()).any()):
            warnings.warn(NOISE + SILENCE, NoisyFunctionWarning, _callers_level())

    return warn


def _nothing() -> None:
    pass


def _is_due(f: "Evaluator") -> bool:
    """Return whether to look at this use of f, and whether Python may.

    Ranks that share f's points must agree on what they do, so nothing is looked at there, nor if f
    says that it ``is_noisy``. Later looks are needed because the first uses may be those of a
    validation.
    """
    if not can_inspect(f.q.validate) or inside_functorch() or in_inference_mode():
        return False
    if f.q.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    function = f.f
    while isinstance(function, partial):
        function = function.func
    is_module = isinstance(function, nn.Module)
    key = function if is_module else getattr(function, "__code__", type(function))
    uses = USES[key] = USES.get(key, 0) + 1
    is_silent = getattr(f.f, "ranks", 1) > 1 or getattr(f.f, "is_noisy", False)
    return (uses <= 4 or uses & (uses - 1) == 0) and not is_silent


def _batches(f: object) -> list[int]:
    """Return how many batches each batch normalisation in training mode has counted."""
    modules = [module for root in modules_of(f) for module in root.modules() if module.training]
    layers = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    counters = [layer.num_batches_tracked for layer in layers]
    return [int(counter) for counter in counters if counter is not None]


def _states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's global random number generators."""
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
