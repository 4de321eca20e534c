"""What a measurement leaves as it was: random numbers, and the buffers of the user's modules."""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributions import Distribution

MOST_OBJECTS = 10_000  # that are looked at: a function may refer to a whole data set
LEAVES = (Tensor, Distribution, ModuleType, type, str, bytes, int, float, complex)


@contextmanager
def left_alone(*sources: object) -> Iterator[None]:
    """Restore the random numbers of torch, numpy and Python, and the buffers of all modules in
    ``sources``.

    Gradients are enabled, also inside ``torch.no_grad``: without them every estimate would be zero.

    A network in training mode counts batches and keeps running statistics of them (BatchNorm). A
    measurement would change these, because it evaluates the network more often than training does,
    and at other points.

    >>> network = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> def f(x):
    ...     return network(x).sum(-1)
    >>> with left_alone(f):
    ...     values = f(torch.ones(3, 2))
    >>> network[0].num_batches_tracked
    tensor(0)
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "advise, compare and check measure gradients, which torch.inference_mode forbids. Call "
            "them outside of it."
        )
    buffers = [buffer for module in modules_of(*sources) for buffer in module.buffers()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    with restored(buffers), torch.random.fork_rng(devices), torch.enable_grad():
        try:
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


@contextmanager
def restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values and gradients of tensors, while graphs that hold them stay valid."""
    kept = [(t, t.detach().clone(), t.grad if t.is_leaf else None) for t in tensors]
    with ExitStack() as stack:
        for tensor in tensors:  # torch 2.6 takes one at a time
            stack.enter_context(_unsafe_preserve_version_counter(tensor))
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value, gradient in kept:
                    tensor.copy_(value)
                    if tensor.is_leaf:
                        tensor.grad = gradient


def modules_of(*sources: object) -> list[nn.Module]:
    """Return the modules that functions refer to: in closures, globals, arguments, attributes.

    >>> network = nn.Linear(2, 1)
    >>> modules_of(lambda x: network(x).squeeze(-1)) == [network]
    True
    """
    modules: list[nn.Module] = []
    stack, visited = list(sources), set[int]()
    while stack and len(visited) < MOST_OBJECTS:
        source = stack.pop()
        if id(source) in visited or isinstance(source, LEAVES) or source is None:
            continue
        visited.add(id(source))
        if isinstance(source, nn.Module):
            modules.append(source)
        else:
            stack += _references(source)
    return modules


def _references(source: object) -> list[object]:
    """Return what an object refers to, as far as a call of it may need it."""
    if isinstance(source, FunctionType):
        return [*_variables(source), *vars(source).values()]
    if isinstance(source, MethodType):
        return [source.__self__, source.__func__]
    if isinstance(source, partial):
        return [source.func, *source.args, *source.keywords.values()]
    if isinstance(source, Mapping):
        return list(source.values())[:MOST_OBJECTS]
    if isinstance(source, list | tuple | set | frozenset):
        return list(source)[:MOST_OBJECTS]
    attributes = list(getattr(source, "__dict__", {}).values())
    call = vars(type(source)).get("__call__")
    return [*attributes, call] if isinstance(call, FunctionType) else attributes


def _variables(function: FunctionType) -> list[object]:
    """Return the values of a function's defaults, of its closure and of the globals it names."""
    values: list[object] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        values += [function.__globals__.get(name) for name in code.co_names]
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return values
