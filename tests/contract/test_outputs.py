"""Functions with many outputs: tables, divided, logarithms.

On structured distributions: tests/frozen.
"""

import pytest
import torch
from torch import Tensor

import catlog
from catlog.core.estimator import tie
from catlog.functions import DigitsOfSum, Sharded
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import select
from support.gradients import assert_same
from support.laws import integers


def test_estimators_of_one_output_say_so() -> None:
    q, refusing = integers(torch.zeros(2, 3)), select(many_outputs=False).values()
    assert refusing
    for E in refusing:
        with pytest.raises(
            ValueError, match=f"outputs: {type(E).__name__} takes functions with one"
        ):
            E(lambda x: x, q, outputs=1)


def digits(base: int, places: int, batch: int = 3) -> tuple[DigitsOfSum, Tensor]:
    """Return a function of random targets, and logits."""
    target = torch.randint(0, base, (batch, places + 1), generator=seeded(base + places))
    return DigitsOfSum(target, base), normals(batch, 2 * places, base, seed=places)


def test_value_over_the_variables_that_matter_is_unbiased_and_less_noisy() -> None:
    """Against Exact, by the mean of many estimates; and against the mean over all variables."""
    f, logits = digits(3, 2, batch=1)

    class WithoutTouches(DigitsOfSum):
        touches = None

    plain = WithoutTouches(f.target, 3)
    repeats = 20_000
    many = integers(logits.expand(repeats, -1, -1))
    exact = catlog.Exact()(f, integers(logits), outputs=1)
    variances = []
    for function in (f, plain):
        values = catlog.IndeCateR(2)(function, many, outputs=1, generator=seeded())
        error = (values.mean(0) - exact[0]).abs()
        assert bool((error < 5 * values.std(0) / repeats**0.5 + 1e-12).all())
        variances.append(values.var(0))
    assert bool((variances[0][1:] < variances[1][1:]).all())  # the first digit is certain


def test_an_output_that_no_variable_touches_has_the_mean_over_all() -> None:
    f, logits = digits(3, 2)
    results = []
    for is_touched in (False, True):
        touches = f.touches.clone()
        touches[:, 0] = is_touched
        f.__class__ = type("Touching", (DigitsOfSum,), {"touches": touches})
        theta = logits.clone().requires_grad_()
        value = catlog.IndeCateR(2)(f, integers(theta), outputs=1, generator=seeded(1))
        results.append((value, *torch.autograd.grad(value.sum(), theta)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert results[0][0].isfinite().all()


def test_touches_is_checked() -> None:
    f, logits = digits(3, 2)
    f.__class__ = type("Wrong", (DigitsOfSum,), {"touches": torch.ones(2, 3)})
    with pytest.raises(ValueError, match=r"f.touches must hold bools of shape \(4, 3\)"):
        catlog.IndeCateR(2)(f, integers(logits), outputs=1)


def test_sharded_function_keeps_outputs_and_table() -> None:
    f, logits = digits(4, 2)
    q = integers(logits.requires_grad_())
    whole, sharded = (
        catlog.IndeCateR(2)(function, q, outputs=1, generator=seeded(3))
        for function in (f, Sharded(f))
    )
    assert_same(sharded, whole, logits)


def test_logarithm_per_output_with_a_second_estimator_for_the_value() -> None:
    """With Exact for both, the gradient is that of the logarithm."""
    f, logits = digits(3, 2)
    f.target[:, 0] = 1  # a digit that is possible
    theta = logits.requires_grad_()
    q, E, noisy = integers(theta), catlog.Exact(), catlog.RLOO(3)
    exact = E(f, q, outputs=1).log()
    value = catlog.log_expectation(E, f, q, value=E, outputs=1)
    assert_same(value, exact, theta)
    # The value and the denominator are those of `value`, the numerator is E's.
    value = catlog.log_expectation(noisy, f, q, value=E, outputs=1, generator=seeded())
    numerator = noisy(f, q, outputs=1, generator=seeded())
    wanted = tie(exact, numerator / exact.detach().exp())
    assert_same(value, wanted, theta)
