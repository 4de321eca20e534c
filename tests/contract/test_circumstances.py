"""In all circumstances an estimator has the value and the gradients of a plain call.

One that learns makes two calls in turn, so that what the first one learned shows in the second one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import grad, vmap
from torch.testing import assert_close

import catlog
from catlog.distributions import MarkovChain
from catlog.estimators import (
    ESTIMATORS,
    FAMILIES,
    MAPO,
    MemoryCateR,
    SumAndSample,
    UnorderedSet,
)
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import continuous, estimators, supports, tape
from support.laws import KINDS, bits

LOGITS = normals(2, 3, 3)  # batch, variables, categories
LAWS: dict[str, Callable[[Tensor], Distribution]] = KINDS | {
    "structured": lambda logits: MarkovChain(logits[..., 0, :], logits, length=2)
}
WEIGHT = torch.ones((), dtype=torch.float64, requires_grad=True)  # a parameter of f
SETS = (MAPO, SumAndSample, UnorderedSet)
Function = Callable[[Tensor], Tensor]


def kinds(E: catlog.Estimator) -> list[str]:
    """Return the kinds of distribution that E takes."""
    return [kind for kind in LAWS if supports(E, kind)]


def f(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Not additive, and of operations that autocast does not change."""
    points = x.to(dtype).flatten(2)
    weights = torch.arange(1.0, 1 + points.shape[-1], dtype=dtype)
    return (points * weights).sum(-1).sin() * WEIGHT.to(dtype) + 2


def overwriting(x: Tensor) -> Tensor:
    values = f(x.mul_(2) / 2)
    x.zero_()
    return values


def into_one_buffer(x: Tensor, buffer: Tensor = torch.empty(2**12).double()) -> Tensor:
    values = f(x).detach()
    return buffer[: values.numel()].view(values.shape).copy_(values)


def plain(E: Any, f: Function, q: Distribution, generator: torch.Generator) -> Tensor:
    return E(f, q, generator=generator)


def under_autocast(E: Any, f: Function, q: Distribution, generator: torch.Generator) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return E(f, q, generator=generator)


def one_of_two_outputs(E: Any, f: Function, q: Distribution, generator: torch.Generator) -> Tensor:
    if not E.many_outputs:
        return E(f, q, generator=generator)
    return E(lambda x: torch.stack([f(x), -f(x)], -1), q, outputs=1, generator=generator)[..., 0]


def in_a_session(E: Any, f: Function, q: Distribution, generator: torch.Generator) -> Tensor:
    """Return the estimate of a session, in which every question is asked twice."""
    session = catlog.Session(E, q, seed=generator.initial_seed())
    while (x := session.ask()) is not None:
        again = session.ask()
        assert again is not None
        assert torch.equal(x, again)
        session.tell(f(x))
    return session.estimate


@dataclass(frozen=True)
class Circumstance:
    """How a call is made.

    Attributes:
        f: the function.
        same: the function of the plain call.
        call: makes the call.
        dtype: of the parameters of q.
        is_black_box: whether f cannot be differentiated.
        tolerance: absolute and relative.
    """

    f: Function = f
    same: Function = f
    call: Callable[..., Tensor] = plain
    dtype: torch.dtype = torch.float64
    is_black_box: bool = False
    tolerance: float = 1e-12


narrow_f = partial(f, dtype=torch.float32)
CIRCUMSTANCES = {
    "f overwrites its input": Circumstance(overwriting),
    "f writes into one buffer": Circumstance(
        into_one_buffer, lambda x: f(x).detach(), is_black_box=True
    ),
    "f returns bools": Circumstance(
        lambda x: f(x) > 2, lambda x: (f(x) > 2).double(), is_black_box=True
    ),
    **{
        f"f returns {dtype}": Circumstance(
            lambda x, dtype=dtype: (f(x) + 10).to(dtype),
            lambda x, dtype=dtype: (f(x) + 10).to(dtype).float(),
            tolerance=0,
        )
        for dtype in (torch.float16, torch.bfloat16)
    },
    "autocast": Circumstance(
        narrow_f, narrow_f, under_autocast, dtype=torch.float32, tolerance=1e-5
    ),
    "one of two outputs": Circumstance(call=one_of_two_outputs),
    "a session": Circumstance(call=in_a_session, is_black_box=True),
}


def results(E: Any, kind: str, f: Function, dtype: torch.dtype, call: Any) -> list[Tensor]:
    """Return values, gradients and what E learned."""
    E, numbers, learns = deepcopy(E), [], isinstance(E, nn.Module)
    leaves = [LOGITS.to(dtype, copy=True).requires_grad_(), WEIGHT]
    leaves += list(E.parameters()) if learns else []
    for seed in range(2 if learns else 1):
        value = call(E, f, LAWS[kind](leaves[0]), generator=seeded(seed))
        numbers += [value.detach()]
        numbers += torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
    return numbers + (list(E.state_dict().values()) if learns else [])


@pytest.mark.parametrize("name", CIRCUMSTANCES)
@pytest.mark.parametrize("E", estimators())
def test_results_are_those_of_a_plain_call(E: catlog.Estimator, name: str) -> None:
    at = CIRCUMSTANCES[name]
    for kind in kinds(E) if not (at.is_black_box and E.differentiates_f) else []:
        got, expected = (
            results(E, kind, f, at.dtype, call) for f, call in ((at.f, at.call), (at.same, plain))
        )
        assert_close(got, expected, rtol=at.tolerance, atol=at.tolerance)


def value_and_next_gradients(
    E: Any, kind: str, mode: Callable[[], AbstractContextManager[Any]], is_made_inside: bool
) -> list[Tensor]:
    """Return the value of a call in a mode, and the gradients of a later call."""
    E, leaf = deepcopy(E), LOGITS.clone().requires_grad_()
    q = LAWS[kind](leaf)
    with mode():
        value = E(f, LAWS[kind](leaf) if is_made_inside else q, generator=seeded()).clone()
    later = E(f, q, generator=seeded(1))
    return [value.detach(), *torch.autograd.grad(later.sum(), [leaf, WEIGHT])]


@pytest.mark.parametrize("is_made_inside", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("E", estimators())
def test_without_gradients_the_value_is_the_same_and_training_continues(
    E: catlog.Estimator, mode: Any, is_made_inside: bool
) -> None:
    learns_nothing = isinstance(E, catlog.SlopeCateR) or (
        isinstance(E, MemoryCateR | MAPO) and mode is torch.inference_mode
    )
    count = 1 if learns_nothing else None  # else the next call differs
    for kind in kinds(E):
        got = value_and_next_gradients(E, kind, mode, is_made_inside)
        expected = value_and_next_gradients(E, kind, nullcontext, False)
        assert_close(got[:count], expected[:count], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("E", estimators(differentiates_f=True))
def test_f_with_an_inference_tensor(E: Any) -> None:
    """torch cannot save it for a backward pass."""
    with torch.inference_mode():
        weight = torch.arange(3.0, dtype=torch.float64)
        value = deepcopy(E)(lambda x: (x * weight).square().sum(-1), LAWS["bits"](LOGITS))
        assert bool(value.isfinite().all())


@pytest.mark.parametrize("E", estimators())
def test_injected_randomness_is_not_changed(E: Any) -> None:
    q = LAWS["bits"](LOGITS)
    injected = draw_randomness(E, q)
    if isinstance(E, SETS):  # they take either points or noise
        injected.pop("x")
    given = deepcopy(injected)
    deepcopy(E)(overwriting, q, **given)
    assert_close(given, injected, rtol=0, atol=0)


@pytest.mark.parametrize("E", estimators())
def test_grad_and_vmap(E: Any) -> None:
    """The transforms of torch.func, in q's parameters and in f's, mapped over the batch where all
    randomness is injected: gradients of every example."""

    def loss(leaves: tuple[Tensor, Tensor], injected: dict[str, Any]) -> Tensor:
        logits, weight = leaves

        def f(x: Tensor) -> Tensor:
            return (x * weight).sum(-1).sin() + x.prod(-1)

        return deepcopy(E)(f, bits(logits, validate_args=False), **injected)

    def by_backward(injected: dict[str, Any]) -> tuple[Tensor, ...]:
        copies = tuple(leaf.clone().requires_grad_() for leaf in leaves)
        return torch.autograd.grad(loss(copies, injected).sum(), copies)

    leaves = LOGITS[..., 0], torch.arange(1.0, 4.0).double()
    torch.manual_seed(0)
    got = grad(lambda leaves: loss(leaves, {}).sum())(leaves)
    torch.manual_seed(0)
    assert_close(got, by_backward({}), rtol=1e-12, atol=1e-12)
    if tape(E) and not continuous(E):
        injected = draw_randomness(E, bits(leaves[0]))
        by_logits, by_weight = vmap(grad(loss), in_dims=((0, None), 1))(leaves, injected)
        wanted = by_backward(injected)
        assert_close((by_logits, by_weight.sum(0)), wanted, rtol=1e-12, atol=1e-12)


TRICK = [name for module in FAMILIES["the CatLog trick"] for name in module.__all__]


@pytest.mark.parametrize("name", ["Exact", *TRICK])
def test_probabilities_of_32_bits_do_not_round_large_values(name: str) -> None:
    """A large number that is added to f, in 64 bits, changes no gradient."""
    for kind in kinds(ESTIMATORS[name]()):
        if (name, kind) == ("LEG", "structured"):
            continue  # its weights of dependent variables do not add up to 0
        gradients = []
        for shift in (0.0, 2.0**27):
            leaf = LOGITS.float().requires_grad_()
            E, q = ESTIMATORS[name](), LAWS[kind](leaf)
            value = E(lambda x, shift=shift: f(x) + shift, q, generator=seeded())
            gradients += torch.autograd.grad(value.sum(), leaf)
        assert_close(*gradients, rtol=1e-5, atol=1e-5)
