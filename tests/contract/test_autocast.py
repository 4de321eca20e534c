"""Numbers of few bits: f and the networks of q may compute in them, the estimators do not.

In the tests of autocast, f has no operation that autocast changes, so that values and gradients
must stay the same.
"""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

import catlog
from catlog.estimators import ESTIMATORS, FAMILIES
from catlog.functions import DigitsOfSum
from catlog.testing.cases import seeded
from catlog.testing.settings import estimators, supports
from support.laws import KINDS, integers

LOGITS = torch.randn(20, 3, 3, generator=seeded())
DISTRIBUTIONS = KINDS | {
    "structured": lambda logits: catlog.distributions.MarkovChain(
        logits[..., 0, :], logits, length=4
    )
}


def kinds(E: catlog.Estimator) -> list[str]:
    """Return the kinds of distribution that E takes."""
    return [kind for kind in DISTRIBUTIONS if supports(E, kind)]


def f(x: Tensor) -> Tensor:
    points = x.float().flatten(2)
    return (points * torch.arange(1.0, 1 + points.shape[-1])).sum(-1).sin()


def estimate(E: catlog.Estimator, kind: str, outputs: int, is_on: bool) -> tuple[Tensor, Tensor]:
    """Return value and gradient of a second call, by an estimator that may have learned."""
    E, leaf = deepcopy(E), LOGITS.clone().requires_grad_()
    options = {"outputs": 1} if outputs else {}

    def function(x: Tensor) -> Tensor:
        return torch.stack([f(x), f(x) ** 2], -1) if outputs else f(x)

    torch.manual_seed(0)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            value = E(function, DISTRIBUTIONS[kind](leaf), **options)
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("E", estimators())
def test_values_and_gradients_are_those_without_autocast(E: catlog.Estimator) -> None:
    for kind in kinds(E):
        for outputs in (0, 1) if E.many_outputs else (0,):
            with_autocast = estimate(E, kind, outputs, True)
            for given, wanted in zip(with_autocast, estimate(E, kind, outputs, False), strict=True):
                torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


def test_the_mean_of_digits_is_that_without_autocast() -> None:
    f = DigitsOfSum(torch.tensor([0, 9, 1]))
    q = integers(torch.linspace(-1, 1, 40).view(4, 10))
    with torch.autocast("cpu", torch.bfloat16):
        mean = catlog.Exact()(f, q, outputs=1)
    torch.testing.assert_close(mean, catlog.Exact()(f, q, outputs=1))


TRICK = [name for module in FAMILIES["the CatLog trick"] for name in module.__all__]


@pytest.mark.parametrize("name", ["Exact", *TRICK])
def test_probabilities_of_32_bits_do_not_round_large_values(name: str) -> None:
    """A large number that is added to f, in 64 bits, changes no gradient."""
    for kind in kinds(ESTIMATORS[name]()):
        if (name, kind) == ("LEG", "structured"):
            continue  # its weights of dependent variables do not add up to 0
        gradients = []
        for shift in (0.0, 2.0**27):
            E, leaf = ESTIMATORS[name](), LOGITS.clone().requires_grad_()
            q = DISTRIBUTIONS[kind](leaf)
            value = E(lambda x, shift=shift: f(x).double() + shift, q, generator=seeded())
            gradients += torch.autograd.grad(value.sum(), leaf)
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("E", estimators())
def test_values_of_sixteen_bits_are_widened(E: catlog.Estimator, dtype: torch.dtype) -> None:
    """As autocast makes them. Their differences and means would be rounded once more."""
    for kind in kinds(E):
        results = []
        for is_widened in (False, True):
            leaf = LOGITS.clone().requires_grad_()

            def function(x: Tensor, is_widened: bool = is_widened) -> Tensor:
                values = (f(x) + 10).to(dtype)
                return values.float() if is_widened else values

            torch.manual_seed(0)
            value = deepcopy(E)(function, DISTRIBUTIONS[kind](leaf))
            value.sum().backward()
            assert value.dtype == torch.float32
            results.append((value.detach(), leaf.grad))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
