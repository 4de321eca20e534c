"""Checks of arguments and values. Errors say what was expected, what was given and what to do."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from math import floor, inf, log10
from numbers import Real
from sys import float_info, maxsize
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

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


def refusal(
    subject: str,
    claim: str,
    but: str,
    remedy: str = "",
    kind: type[ValueError] | type[TypeError] = ValueError,
) -> ValueError | TypeError:
    """Return the error "SUBJECT must CLAIM, but BUT. REMEDY".

    >>> refusal("x", "be positive", "-1 was given", "Take its square.")
    ValueError('x must be positive, but -1 was given. Take its square.')
    """
    return kind(f"{subject} must {claim}, but {but}. {remedy}".rstrip())


def shape_or_type(value: object) -> tuple[int, ...] | str:
    """Return the shape of a tensor, or the name of another type, for a message."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def check_kind(subject: str, value: object, kind: Any, claim: str, remedy: str = "") -> None:
    """Raise unless ``value`` is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise refusal(subject, claim, f"{type(value).__name__} was given", remedy, TypeError)


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
    subject = f"{owner}: `{name}`"
    if isinstance(value, bool) or not isinstance(value, int):
        claim = f"be an int {'of ' * is_open}{bounds}"
        raise refusal(subject, claim, f"{value!r} was given", hint, TypeError)
    if not least <= value <= most:
        bounds = "at most 2^63 - 1" if is_open and value > most else bounds
        raise refusal(subject, f"be {bounds}", f"{readable(value)} was given", hint)


def check_choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        claim = f"be one of {', '.join(map(repr, choices))}"
        raise refusal(f"{owner}: `{name}`", claim, f"{value!r} was given")


def check_flag(owner: str, name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        subject = f"{owner}: `{name}`"
        raise refusal(subject, "be True or False", f"{value!r} was given", kind=TypeError)


def check_outputs(outputs: object) -> None:
    """Raise unless ``outputs`` is a number of dimensions. Estimators get here when they read q."""
    if isinstance(outputs, bool) or not isinstance(outputs, int) or not 0 <= outputs <= 32:
        shown = readable(outputs) if isinstance(outputs, int) else repr(outputs)
        claim = "be the number of output dimensions of f, an integer from 0 to 32"
        remedy = "If f returns [n, *batch, 3], pass outputs=1."
        raise refusal("outputs", claim, f"{shown} was given", remedy)


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
    subject = f"{owner}: `{name}`"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(subject, f"be {kind}", f"{value!r} was given", kind=TypeError)
    if not isinstance(value, int | float):  # of NumPy, whose comparisons warn of an overflow
        value = float(value)
    inside = least <= value <= most and (closed or value < most) and not (above and value == least)
    if not (abs(value) <= LARGEST and inside):
        bounds = f"in {'(' if above else '['}{least}, {most}{']' if closed else ')'}"
        if most == inf:
            bounds = "positive" if above and least == 0 else f"at least {least}"
            bounds = bounds if abs(value) <= LARGEST and least > -inf else "finite"
        raise refusal(subject, f"be {bounds}", f"{readable(value)} was given")
    if isinstance(value, int) and abs(value) > maxsize:
        raise ValueError(
            f"{subject} must be a float if it is as large as {readable(value)}. Write {value:.0e}."
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
        claim = f"be a number or a tensor of {'floats' if many else 'one float'}"
        but = f"one of {value.dtype} with shape {tuple(value.shape)} was given"
        remedy = "" if many else "GumbelSoftmax takes a temperature per variable."
        raise refusal(f"{owner}: `{name}`", claim, but, remedy, TypeError)
    if can_inspect(True, value) and value.numel() > 0:
        for extreme in value.aminmax():
            check_temperature(owner, extreme.item(), name)


def check_baseline(value: object, fx: Float[Tensor, "n *batch"]) -> Tensor | float:
    """Return what a baseline returned, or raise unless it broadcasts to f's values."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    subject = "Reinforce: `baseline`"
    if not isinstance(value, Tensor) or not value.is_floating_point():
        returned = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        claim = "return a number or a tensor of floats"
        raise refusal(subject, claim, f"it returned {returned}", kind=TypeError)
    if not broadcasts(value.shape, fx.shape):
        claim = f"return a shape that broadcasts to {tuple(fx.shape)} ([n, *batch])"
        raise refusal(subject, claim, f"it returned {tuple(value.shape)}")
    return value


def check_function(f: object) -> None:
    """Raise unless ``f`` can be called."""
    if not callable(f):
        but = f"{type(f).__name__} was given"
        raise refusal("f", "be a function of points", but, kind=TypeError)


def check_generator(generator: object, device: torch.device | None = None) -> None:
    """Raise unless ``generator`` is None or a generator on this device (None: on any)."""
    if generator is None or torch.compiler.is_compiling():
        return
    if not isinstance(generator, torch.Generator):
        but = f"{type(generator).__name__} was given"
        remedy = "With a seed, use torch.Generator(device).manual_seed(seed)."
        raise refusal("generator", "be a torch.Generator or None", but, remedy, TypeError)
    if device is not None:
        check_device("generator", generator, device, remedy="Make it with torch.Generator(device).")


def check_is_tensor(owner: str, name: str, value: object, form: str) -> None:
    """Raise unless ``value`` is a tensor; ``form`` names its dimensions."""
    subject = f"{owner}: `{name}`"
    if not isinstance(value, Tensor):
        but = f"{type(value).__name__} was given"
        raise refusal(subject, f"be a tensor {form}", but, kind=TypeError)
    check_dense(subject, value)


def check_dense(name: str, value: Tensor) -> None:
    """Raise if a tensor is sparse, or of another layout that most operations do not take."""
    if value.layout != torch.strided:
        but, remedy = f"its layout is {value.layout}", "Call its method `to_dense()`."
        raise refusal(name, "be a dense tensor", but, remedy, TypeError)


def check_tensor(name: str, value: object, shape: tuple[int, ...], form: str) -> Tensor:
    """Return ``value``, or raise unless it is a tensor of this shape, named by ``form``."""
    if isinstance(value, Tensor) and value.shape == torch.Size(shape):
        return value
    is_tensor = isinstance(value, Tensor)
    claim = f"{'have' if is_tensor else 'be a tensor of'} shape {shape} ({form})"
    kind: Any = ValueError if is_tensor else TypeError
    raise refusal(name, claim, f"{shape_or_type(value)} was given", kind=kind)


def check_device(
    name: str,
    value: Tensor | torch.Generator,
    device: torch.device,
    first: str = "q",
    remedy: str = "",
) -> None:
    """Raise unless the tensor is on the device of ``first``."""
    if not same_device(value.device, device):
        claim = f"be on {device}, where {first} is"
        raise refusal(name, claim, f"it is on {value.device}", remedy)


def check_together(owner: str, name: str, value: Tensor, first: str, device: torch.device) -> None:
    """Raise unless an argument of a distribution is on the device of its ``first`` one."""
    check_device(f"{owner}: `{name}`", value, device, first, "Move it there.")


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
        subject, but = f"{owner}: `validate_args`", f"{type(value).__name__} was given"
        raise refusal(subject, "be True, False or None", but, hint, TypeError)


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
    claim = "be a tensor of shape [*batch, features]"
    if not isinstance(context, Tensor):
        raise refusal("context", claim, f"{type(context).__name__} was given", kind=TypeError)
    if not context.is_floating_point():
        raise refusal("context", "hold floats", f"{context.dtype} was given", kind=TypeError)
    batch, shape = tuple(q.batch_shape), tuple(context.shape)
    if len(shape) != len(batch) + 1 or shape[:-1] != batch:
        claim = f"have shape [*batch, features] with batch {batch}"
        raise refusal("context", claim, f"{shape} was given")
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
        most = sum(kind.kind != Parameter.KEYWORD_ONLY for kind in parameters.values())
        owner = function.__qualname__.removesuffix(".__init__")
        is_constructor = "self" in parameters

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if is_constructor and len(args) > 1 and callable(args[1]):
                remedy = f"Make an instance first: E = {owner}(), then E(f, q)."
                subject, but = f"{owner}: `{names[0]}`", f"{args[1]!r} was given"
                raise refusal(subject, "be a number", but, remedy, TypeError)
            unknown = [name for name in kwargs if name not in parameters]
            if unknown or len(args) > most:
                names_given = " and ".join(f"`{name}`" for name in unknown)
                shown = names_given or f"{args[most]!r} without a name"
                message = f"{owner}: the arguments are {', '.join(names)}, but {shown} was given."
                raise TypeError(f"{message} {advice(unknown)}".rstrip())
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
        returned = "shape " * isinstance(out, Tensor) + str(shape_or_type(out))
        claim = f"return shape {tuple(shape)} or {(*shape, 1)}"
        raise refusal(f"{owner}: `network`", claim, f"it returned {returned}")
    return out.to(inputs.dtype)
