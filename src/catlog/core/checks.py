"""Checks of arguments and values. Errors say what was expected, what was given and what to do."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from math import floor, inf, log10
from numbers import Real
from sys import float_info, maxsize
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Independent

from .tracing import can_inspect

if TYPE_CHECKING:
    from .factors import Factors

P = ParamSpec("P")
T = TypeVar("T")
LARGEST = float_info.max  # read here, as torch 2.6 cannot trace it


def check_count(
    owner: str,
    name: str,
    value: object,
    least: int = 1,
    most: int | float = maxsize,
    hint: str = "",
) -> None:
    """Raise unless ``value`` is an int with ``least <= value <= most``."""
    is_open = most >= maxsize
    bounds = f"at least {least}" if is_open else f"between {least} and {most}"
    advice = f" {hint}" if hint else ""
    if isinstance(value, bool) or not isinstance(value, int):
        kind = f"an int of {bounds}" if is_open else f"an int {bounds}"
        raise TypeError(f"{owner}: `{name}` must be {kind}, but {value!r} was given.{advice}")
    if not least <= value <= most:
        bounds = "at most 2^63 - 1" if is_open and value > most else bounds
        raise ValueError(
            f"{owner}: `{name}` must be {bounds}, but {readable(value)} was given.{advice}"
        )


def check_choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{owner}: `{name}` must be one of {', '.join(map(repr, choices))}, but {value!r} was "
            "given."
        )


def check_flag(owner: str, name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: `{name}` must be True or False, but {value!r} was given.")


def check_outputs(outputs: object) -> None:
    """Raise unless ``outputs`` is a number of dimensions. Estimators get here when they read q."""
    if isinstance(outputs, bool) or not isinstance(outputs, int) or not 0 <= outputs <= 32:
        shown = readable(outputs) if isinstance(outputs, int) else repr(outputs)
        raise ValueError(
            "outputs must be the number of output dimensions of f, an integer from 0 to 32, but "
            f"{shown} was given. If f returns [n, *batch, 3], pass outputs=1."
        )


def check_number(
    owner: str,
    name: str,
    value: object,
    least: int | float = -inf,
    most: int | float = inf,
    *,
    closed: bool = False,
    above: bool = False,
    kind: str = "a number",
) -> None:
    """Raise unless ``value`` is finite and ``least <= value < most`` (``closed``: ``<= most``,
    ``above``: ``least < value``)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{owner}: `{name}` must be {kind}, but {value!r} was given.")
    if not isinstance(value, int | float):  # of NumPy, whose comparisons warn of an overflow
        value = float(value)
    inside = least <= value <= most and (closed or value < most) and not (above and value == least)
    if not (abs(value) <= LARGEST and inside):
        bounds = f"in {'(' if above else '['}{least}, {most}{']' if closed else ')'}"
        if most == inf:
            bounds = "finite" if least == -inf else f"at least {least}"
            bounds = "positive" if above and least == 0 else bounds
            bounds = bounds if abs(value) <= LARGEST else "finite"
        raise ValueError(f"{owner}: `{name}` must be {bounds}, but {readable(value)} was given.")
    if isinstance(value, int) and abs(value) > maxsize:
        raise ValueError(
            f"{owner}: `{name}` must be a float if it is as large as {readable(value)}. Write "
            f"{value:.0e}."
        )


def check_positive(owner: str, name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    check_number(owner, name, value, 0, above=True)


def check_temperature(
    owner: str, value: object, name: str = "temperature", *, many: bool = False
) -> None:
    """Raise unless ``value`` is a finite number above 0, or a tensor of one; ``many``: of some."""
    if not isinstance(value, Tensor):
        check_positive(owner, name, value)
        return check_number(owner, name, value, 1e-30)  # float32 would make 0 of one below 1e-45
    if not value.is_floating_point() or not (many or value.shape in ((), (1,))):
        expected = "a tensor of floats" if many else "a tensor of one float"
        advice = "" if many else " GumbelSoftmax takes a temperature per variable."
        raise TypeError(
            f"{owner}: `{name}` must be a number or {expected}, but one of {value.dtype} with "
            f"shape {tuple(value.shape)} was given.{advice}"
        )
    if can_inspect(True, value) and value.numel() > 0:
        for extreme in value.aminmax():
            check_temperature(owner, extreme.item(), name)


def check_baseline(value: object, fx: Float[Tensor, "n *batch"]) -> Tensor | float:
    """Return what a baseline returned, or raise unless it broadcasts to f's values."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not isinstance(value, Tensor) or not value.is_floating_point():
        returned = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            "Reinforce: `baseline` must return a number or a tensor of floats, but it returned "
            f"{returned}."
        )
    if not broadcasts(value.shape, fx.shape):
        raise ValueError(
            f"Reinforce: `baseline` must return a shape that broadcasts to {tuple(fx.shape)} "
            f"([n, *batch]), but it returned {tuple(value.shape)}."
        )
    return value


def check_function(f: object) -> None:
    """Raise unless ``f`` can be called."""
    if not callable(f):
        raise TypeError(f"f must be a function of points, but {type(f).__name__} was given.")


def check_generator(generator: object, device: torch.device | None = None) -> None:
    """Raise unless ``generator`` is None or a generator on this device (None: on any)."""
    if generator is None or torch.compiler.is_compiling():
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, but {type(generator).__name__} was "
            "given. With a seed, use torch.Generator(device).manual_seed(seed)."
        )
    if device is not None and not same_device(generator.device, device):
        raise ValueError(
            f"generator must be on {device}, where q is, but it is on {generator.device}. Make it "
            "with torch.Generator(device)."
        )


def check_is_tensor(owner: str, name: str, value: object, form: str) -> None:
    """Raise unless ``value`` is a tensor; ``form`` names its dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{owner}: `{name}` must be a tensor {form}, but {type(value).__name__} was given."
        )
    check_dense(f"{owner}: `{name}`", value)


def check_dense(name: str, value: Tensor) -> None:
    """Raise if a tensor is sparse, or of another layout that most operations do not take."""
    if value.layout != torch.strided:
        raise TypeError(
            f"{name} must be a dense tensor, but its layout is {value.layout}. Call its method "
            "`to_dense()`."
        )


def check_tensor(
    name: str, value: object, shape: tuple[int, ...], form: str, device: torch.device | None = None
) -> Tensor:
    """Return ``value``, or raise unless it is a tensor of this shape, named by ``form``."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape {shape} ({form}), but {type(value).__name__} was "
            "given."
        )
    if value.shape != torch.Size(shape):
        raise ValueError(
            f"{name} must have shape {shape} ({form}), but {tuple(value.shape)} was given."
        )
    if device is not None:
        check_device(name, value, device)
    return value


def check_device(name: str, value: Tensor, device: torch.device) -> None:
    """Raise unless the tensor is on the device of q."""
    if not same_device(value.device, device):
        raise ValueError(f"{name} must be on {device}, where q is, but it is on {value.device}.")


def check_together(owner: str, name: str, value: Tensor, first: str, device: torch.device) -> None:
    """Raise unless an argument of a distribution is on the device of its ``first`` one."""
    if not same_device(value.device, device):
        raise ValueError(
            f"{owner}: `{name}` must be on {device}, where {first} is, but it is on "
            f"{value.device}. Move it there."
        )


def is_checked(q: object) -> bool:
    """Return whether values at points of q are checked: unless q was made with
    ``validate_args=False``.

    torch's default is not asked: the first use of torch.compile switches it off for the whole
    process.
    """
    if torch.compiler.is_compiling():
        return False
    while getattr(q, "__dict__", {}).get("_validate_args", True):
        if not isinstance(q, Independent):
            return True
        q = q.base_dist
    return False


def check_validate_args(owner: str, value: object, hint: str = "") -> None:
    """Raise unless ``value`` is True, False or None; the message ends with ``hint``."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(
            f"{owner}: `validate_args` must be True, False or None, but {type(value).__name__} was "
            f"given.{hint}"
        )


def check_module_device(module: nn.Module, device: torch.device, variable: str = "E") -> None:
    """Raise unless a module keeps what it learns on the device of q; ``variable`` names it."""
    for value in (*module.parameters(), *module.buffers()):
        if not same_device(value.device, device):
            raise ValueError(
                f"{type(module).__name__} keeps what it learns on {value.device}, but q is on "
                f"{device}. Move it there once: {variable}.to({str(device)!r})."
            )


def check_context(context: object, q: "Factors") -> Float[Tensor, "*batch features"]:
    """Return the context of a network, or raise unless it holds floats ``[*batch, features]``."""
    if not isinstance(context, Tensor):
        raise TypeError(
            f"context must be a tensor of shape [*batch, features], but {type(context).__name__} "
            "was given."
        )
    if not context.is_floating_point():
        raise TypeError(f"context must hold floats, but {context.dtype} was given.")
    batch = tuple(q.batch_shape)
    shape = tuple(context.shape)
    if len(shape) != len(batch) + 1 or shape[:-1] != batch:
        raise ValueError(
            f"context must have shape [*batch, features] with batch {batch}, but {shape} was given."
        )
    check_device("context", context, q.device)
    return context


def with_known_arguments(
    advice: Callable[[list[str]], str],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function answer arguments that it does not have with its own ones, and with advice.

    ``advice`` makes a sentence of their names; those of surplus positions are missing. The
    constructor of an estimator also answers ``RLOO(f, q)``.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(function).parameters
        names = [name for name in parameters if name != "self"]
        keyword_only = [name for name in names if parameters[name].kind == Parameter.KEYWORD_ONLY]
        most = len(parameters) - len(keyword_only)
        owner = function.__qualname__.removesuffix(".__init__")
        is_constructor = "self" in parameters

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if is_constructor and len(args) > 1 and callable(args[1]):
                raise TypeError(
                    f"{owner}: `{names[0]}` must be a number, but {args[1]!r} was given. Make an "
                    f"instance first: E = {owner}(), then E(f, q)."
                )
            unknown = [name for name in kwargs if name not in parameters]
            if unknown or len(args) > most:
                given = [f"`{name}`" for name in unknown] or [f"{args[most]!r} without a name"]
                message = (
                    f"{owner}: the arguments are {', '.join(names)}, but {' and '.join(given)} "
                    f"was given. {advice(unknown)}"
                )
                raise TypeError(message.rstrip())
            return function(*args, **kwargs)

        return checked

    return decorate


def readable(number: object) -> str:
    """Return a number for a message; very large integers in powers of ten.

    >>> readable(4096), readable(2**10000), readable(0.5)
    ('4096', 'about 10^3010', '0.5')
    """
    if not isinstance(number, int) or abs(number) < 10**15:
        return str(number)
    return f"about {'-' * (number < 0)}10^{floor(log10(abs(number)))}"


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape expands to the ``full`` one.

    >>> broadcasts((1, 3), (5, 2, 3)), broadcasts((5, 2, 3), (1, 3))
    (True, False)
    """
    sizes = zip(shape[::-1], full[::-1], strict=False)
    return len(shape) <= len(full) and all(size in (1, most) for size, most in sizes)


def same_device(first: torch.device, second: torch.device) -> bool:
    """Return whether both are the same; ``cuda`` is any ``cuda:i``.

    >>> same_device(torch.device("cuda"), torch.device("cuda:1"))
    True
    """
    any_index = first.index is None or second.index is None
    return first.type == second.type and (any_index or first.index == second.index)


def call_network(
    owner: str, network: nn.Module, inputs: Float[Tensor, "..."], shape: tuple[int, ...]
) -> Float[Tensor, "..."]:
    """Return ``network(inputs)``, computed in the network's dtype.

    It must have this ``shape``, or one more dimension of 1, which is dropped.
    """
    dtypes = [parameter.dtype for parameter in network.parameters()]
    out = network(inputs.to(dtypes[0]) if dtypes else inputs)
    if isinstance(out, Tensor) and out.shape == (*shape, 1):
        out = out.squeeze(-1)
    if not isinstance(out, Tensor) or out.shape != torch.Size(shape):
        returned = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"{owner}: `network` must return shape {tuple(shape)} or {(*shape, 1)}, but it "
            f"returned {returned}."
        )
    return out.to(inputs.dtype)
