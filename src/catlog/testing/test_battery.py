"""The battery: every estimator of the registry is judged by being listed there."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from inspect import signature
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.core.estimator import Estimator
from catlog.estimators import ESTIMATORS

from .battery import draw_randomness, estimates, few_outcomes, pairs, scores, z_limit
from .cases import CASES, FUNCTIONS, PARAMETER, Case, seeded
from .enumeration import expectation, expected
from .settings import NOISY_ON_CONSTANTS, continuous, estimators, home, select, tape

KINDS = ("bits", "one-hot")
LIMIT = z_limit(3 * 7)  # three functions; a value and at most six derivatives


@pytest.mark.parametrize(
    ("E", "case"), pairs(select(unbiased=True, target="expectation", continuous=False))
)
def test_unbiased(E: Estimator[Any], case: Case) -> None:
    """Value and gradient, in the parameters of q and f, by enumeration of all outcomes."""
    if not few_outcomes(E, case):
        test_unbiased_by_z_test(E, case)
        return
    for f in FUNCTIONS.values():
        got, exact = expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER)
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("E", "case"), pairs(select(unbiased=True, continuous=True), KINDS))
def test_unbiased_by_z_test(E: Estimator[Any], case: Case) -> None:
    """Where the noise is continuous, or too many outcomes are possible.

    The second assertion shows that it detects a gradient that is 10 % too long.
    """
    is_detected = []
    for f in FUNCTIONS.values():
        value, gradient = estimates(E, case, f)
        assert scores(value, gradient, case, f).max() < LIMIT
        is_detected.append(scores(value, 1.1 * gradient, case, f).max() > LIMIT)
    assert any(is_detected), "the test has no power"


@pytest.mark.parametrize(("E", "case"), pairs(select(unbiased=False), KINDS))
def test_biased(E: Estimator[Any], case: Case) -> None:
    """Shown by enumeration, or by 30 standard errors where the noise is continuous."""
    f = FUNCTIONS["network"]
    exact = expected(case, f, PARAMETER)[1]
    if continuous(E):
        assert scores(*estimates(E, case, f), case, f).max() > 30
    else:
        got = expectation(E, case, f, PARAMETER)
        assert (got[1] - exact).norm() > 0.05 * exact.norm()
        torch.testing.assert_close(got[0], expected(case, f, PARAMETER)[0])  # the value is unbiased


def dependent() -> dict[str, Estimator[Any]]:
    """Return the estimators that offer draws which depend on each other, with such draws."""
    made: dict[str, Estimator[Any]] = {}
    for E in select(continuous=False).values():
        cls: Any = type(E)
        offered = get_args(get_type_hints(cls).get("sampling"))
        if hasattr(E, "samples") and "independent" in offered and E.least_samples <= 2:
            for n, sampling in product((2, 3), {*offered} - {"independent"}):
                made[f"{cls.__name__}({n}, {sampling})"] = cls(samples=n, sampling=sampling)
    return dict(sorted(made.items()))


@pytest.mark.parametrize(
    ("E", "case"), pairs(dependent(), ("bits, two event dims", "integers", "one-hot"))
)
def test_dependent_draws_keep_the_expectation(E: Any, case: Case) -> None:
    """By enumeration of the uniforms behind the draws."""
    f, alone = FUNCTIONS["sine"], replace(E, sampling="independent")
    got, wanted = (expectation(kind, case, f, PARAMETER) for kind in (E, alone))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("E", "case"), pairs(select()))
def test_evaluations_as_promised(E: Estimator[Any], case: Case) -> None:
    q = case.distribution(case.theta.expand(4, *case.theta.shape))
    evaluations = 0

    def f(x: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += len(x)
        return case.function("sine")(x)

    assert E(f, q).shape == (4,)
    assert evaluations == E.evaluations(q)


@pytest.mark.parametrize(("E", "case"), pairs(select(continuous=False), KINDS))
def test_batch_equals_loop(E: Estimator[Any], case: Case) -> None:
    """Separate expectations in one call do not influence each other; their draws are injected."""
    shifts = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3, *[1] * case.theta.dim())
    theta = (case.theta + shifts).requires_grad_()
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)

    def call(theta: Tensor, scale: Tensor, **options: Any) -> Tensor:
        f = case.function("sine")
        return E(lambda x: f(x) * scale, case.distribution(theta), **options)

    options = draw_randomness(E, case.distribution(theta))
    if isinstance(E, nn.Module):
        E = deepcopy(E).eval()  # what it learns from the first call would change the second
    whole = call(theta, scale, **options)
    elements = list(product(range(2), range(3)))
    parts = [call(theta[ij], scale[ij], **_of_element(options, *ij)) for ij in elements]
    torch.testing.assert_close(whole, torch.stack(parts).view(2, 3), rtol=1e-13, atol=1e-13)
    totals = (whole.sum(), torch.stack(parts).sum())
    gradients = [torch.autograd.grad(total, theta)[0] for total in totals]
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


def _of_element(options: dict[str, Any], i: int, j: int) -> dict[str, Any]:
    """Return the draws of one batch element; the batch is the second and third dimension."""
    of = {"x": options["x"][:, i, j]} if "x" in options else {}
    if "noise" in options:
        of["noise"] = tuple(noise[:, i, j] for noise in options["noise"])
    return of


class _NoDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x.sum(-1) * 1.7).sin()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise AssertionError("the derivative of f was used")


@pytest.mark.parametrize("E", estimators())
def test_the_derivative_of_f_is_used_where_declared(E: Estimator[Any]) -> None:
    theta = torch.zeros(3, requires_grad=True)
    refuses = pytest.raises((AssertionError, ValueError), match="derivative")
    with refuses if E.differentiates_f else nullcontext():
        E(_NoDerivative.apply, Independent(Bernoulli(logits=theta), 1)).backward()
    assert E.differentiates_f or theta.grad is not None


@pytest.mark.parametrize("E", estimators())
def test_same_generator_same_result(E: Estimator[Any]) -> None:
    case = home(E)

    def run(seed: int) -> tuple[Tensor, Tensor]:
        theta = case.theta.expand(50, *case.theta.shape).clone().requires_grad_()
        fresh = deepcopy(E)  # an estimator that learns starts from the same state
        q, generator = case.distribution(theta), seeded(seed)
        value = fresh(case.function("sine"), q, generator=generator)
        return value.detach(), torch.autograd.grad(value.sum(), theta)[0]

    state = torch.random.get_rng_state()
    (value, gradient), (same_value, same_gradient), (new_value, _) = run(1), run(1), run(2)
    assert torch.equal(value, same_value)
    assert torch.equal(gradient, same_gradient)
    assert torch.equal(value, new_value) == (not tape(E))
    assert torch.equal(state, torch.random.get_rng_state())  # the global generator is not used


@pytest.mark.parametrize("E", estimators())
def test_constant_f(E: Estimator[Any]) -> None:
    """A constant f has no gradient; only REINFORCE and its relatives make noise of it."""
    case = home(E)
    theta = case.theta.expand(20, *case.theta.shape).clone().requires_grad_()
    value = E(lambda x: 5 + 0 * case.features(x).sum(-1), case.distribution(theta))
    torch.testing.assert_close(value, torch.full((20,), 5.0, dtype=torch.float64))
    gradient = torch.autograd.grad(value.sum(), theta)[0]
    assert (gradient.abs().max() < 1e-13) != (type(E).__name__ in NOISY_ON_CONSTANTS)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("E", estimators())
def test_dtypes(E: Estimator[Any], dtype: torch.dtype, tolerance: float) -> None:
    """A narrower type gives the same result to its precision; bfloat16 still sums in float32.

    The draws are shared where they can be injected. Elsewhere the noise differs, and the means of
    many estimates are compared.
    """
    case, shares_draws = home(E), not continuous(E)
    batch = 30 if shares_draws else 4000
    narrow = case.theta.expand(batch, *case.theta.shape).to(dtype)
    options = draw_randomness(E, case.distribution(narrow.double())) if shares_draws else {}
    for noise in options.get("noise", ()):
        if noise.is_floating_point():
            noise.fill_(0.8)  # where rounding does not decide which variable is corrected
    if isinstance(E, nn.Module):
        E = deepcopy(E).eval()

    def run(dtype: torch.dtype) -> Tensor:
        """Return values and gradients [batch, numbers]."""
        theta = narrow.to(dtype).requires_grad_()
        injected: dict[str, Any] = dict(options)
        if "x" in injected:
            injected["x"] = injected["x"].to(dtype)
        dtypes: set[torch.dtype] = set()

        def f(x: Tensor) -> Tensor:
            dtypes.add(x.dtype)
            return case.function("sine")(x.double())

        generator = seeded()
        value = E(f, case.distribution(theta), generator=generator, **injected)
        assert dtypes == {dtype}
        (gradient,) = torch.autograd.grad(value.sum(), theta)
        return torch.cat([value.detach().double().unsqueeze(-1), gradient.double().flatten(1)], -1)

    got, exact = run(dtype), run(torch.float64)
    assert bool(got.isfinite().all())
    if shares_draws:
        for columns in (slice(0, 1), slice(1, None)):  # the value, the gradient
            error = (got[:, columns] - exact[:, columns]).norm()
            assert error <= tolerance * exact[:, columns].norm()
    else:
        noise = ((got.var(0) + exact.var(0)) / batch).sqrt()
        rounding = tolerance * exact.square().mean(0).sqrt()
        limit = z_limit(got.shape[-1]) * noise + rounding
        assert bool(((got.mean(0) - exact.mean(0)).abs() <= limit).all())


@pytest.mark.parametrize("E", estimators())
def test_composes(E: Estimator[Any]) -> None:
    """-log E[f] has the gradient of the chain rule at the returned value."""
    case = CASES["bits"]
    theta = case.theta.clone().requires_grad_()

    def run() -> Tensor:
        q, generator = case.distribution(theta), seeded(3)
        return deepcopy(E)(case.function("network"), q, generator=generator)

    value = run()
    (plain,) = torch.autograd.grad(value, theta)
    (log,) = torch.autograd.grad(-run().log(), theta)
    torch.testing.assert_close(log, -plain / value.detach())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_registry(name: str) -> None:
    cls = ESTIMATORS[name]
    E, text = cls(), cls.__doc__ or ""
    assert isinstance(E, Estimator)
    assert cls.__name__ == name
    assert getattr(catlog.estimators, name) is cls
    arguments = signature(cls).parameters
    needed = [">>>", ".. math::", "Cost:", *(f"{argument}:" for argument in arguments)]
    assert [words for words in needed if words not in text] == [], "missing in the docstring"
    if isinstance(E, nn.Module):
        named = (*E.named_parameters(), *E.named_buffers())
        assert E.state_dict().keys() == {key for key, _ in named}
    else:
        for argument in arguments:
            with pytest.raises(FrozenInstanceError):
                setattr(E, argument, None)
