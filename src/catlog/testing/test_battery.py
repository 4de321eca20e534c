"""One battery over the registry: an estimator is tested by being listed."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass
from inspect import signature

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog import ESTIMATORS
from catlog.distributions.factors import factors
from catlog.sampling.draw import categories
from catlog.testing.enumeration import Case, cases, expectation, expected, functions
from catlog.testing.settings import NOISY_ON_CONSTANTS, continuous, estimators, supports

CASES = {case.name: case for case in cases()}
FUNCTIONS = functions()
PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)


def home(E: catlog.Estimator) -> Case:
    """A law that E takes: of three categories where it can."""
    return CASES["one-hot" if supports(E, "one-hot") else "bits"]


def applies(E: catlog.Estimator, case: Case) -> bool:
    law = factors(case.law(case.theta))
    if not supports(E, case.kind):
        return False
    if getattr(E, "variables", None) and (
        law.d < E.variables or law.d == 1 or case.name == "bits, two event dims"
    ):
        return False
    if isinstance(E, catlog.Exact):
        return True
    return len(case.points) ** min(E.rows(case.law(case.theta)), 12) <= 300_000


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("E", estimators(unbiased=True, of_mean=True))
def test_unbiased(E: catlog.Estimator, case: Case) -> None:
    """Value and gradient, in the law's and f's parameters, by exact enumeration over all outcomes of the sampler."""
    if continuous(E) or not applies(E, case):
        pytest.skip("not for this law, too many outcomes, or continuous noise")
    for f in FUNCTIONS.values():
        for got, exact in zip(
            expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER), strict=True
        ):
            torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)


def z_scores(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor, Tensor], Tensor], repeats: int = 20_000
) -> Tensor:
    """How many standard errors the mean of many estimates (value; gradient) lies from the exact one, per number."""
    theta = case.theta.expand(repeats, *case.theta.shape).clone().requires_grad_()
    value = E(
        lambda x: f(case.features(x), PARAMETER),
        case.law(theta),
        generator=torch.Generator().manual_seed(0),
    )
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    exact = expected(case, f, PARAMETER)
    scores = []
    for got, wanted in ((value.detach(), exact[0]), (gradient, exact[1])):
        error = (got.mean(0) - wanted).abs() - 1e-12  # rounding, where the estimate does not vary
        scores.append(
            (error.clamp(min=0) / (got.std(0) / repeats**0.5).clamp(min=1e-300)).flatten()
        )
    return torch.cat(scores)


# One false failure in a million runs of one test: 7 numbers or fewer, three functions, two-sided, normal.
LIMIT = 5.8


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("E", estimators(unbiased=True, continuous=True))
def test_unbiased_by_z_test(E: catlog.Estimator, kind: str) -> None:
    """Where the noise is continuous: a z-test that would see a gradient that is 10 % too long (the second assertion)."""
    if not supports(E, kind):
        pytest.skip("not for this law")
    seen = []
    for f in FUNCTIONS.values():
        assert z_scores(E, CASES[kind], f).max() < LIMIT
        seen.append(z_scores(_Longer(E), CASES[kind], f).max() > LIMIT)
    assert any(seen), "the test has no power"


@dataclass(frozen=True)
class _Longer:
    E: catlog.Estimator

    def __call__(self, f: Callable[[Tensor], Tensor], q: Independent, **options: object) -> Tensor:
        value = self.E(f, q, **options)
        return catlog.estimator.attach(value, 1.1 * value)


@pytest.mark.parametrize("draws", ["antithetic", "latin"])
@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("options", [{}, {"variables": 1}])
def test_unbiased_with_dependent_draws(draws: str, kind: str, options: dict[str, int]) -> None:
    """Probabilities are multiples of 1/8, so cells of width 1/8 hold every outcome of two dependent uniforms, equally likely."""
    cell = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    if draws == "antithetic":
        pairs = torch.stack([cell, 1 - cell], -1)
    else:
        low, high = cell[:4], cell[4:]
        straight = torch.cartesian_prod(low, high)
        pairs = torch.cat([straight, straight.flip(-1)])
    first, second = (
        each.flatten() for each in torch.meshgrid(*[torch.arange(len(pairs))] * 2, indexing="ij")
    )
    u = torch.stack([pairs[first], pairs[second]], -1).movedim(1, 0)  # [n=2, outcomes, d=2]

    if kind == "bits":
        theta = torch.tensor([3 / 8, 6 / 8], dtype=torch.float64, requires_grad=True)

        def law(t: Tensor) -> Independent:
            return Independent(Bernoulli(probs=t), 1)
    else:
        theta = torch.tensor(
            [[1 / 8, 5 / 8, 2 / 8], [4 / 8, 1 / 8, 3 / 8]], dtype=torch.float64, requires_grad=True
        )

        def law(t: Tensor) -> Independent:
            return Independent(OneHotCategorical(probs=t), 1)

    def f(x: Tensor) -> Tensor:
        z = x if kind == "bits" else x @ torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64)
        return (z[..., 0] * 2.0 + z[..., 1] + 3 * z[..., 0] * z[..., 1]).sin()

    q = law(theta.expand(u.shape[1], *theta.shape))
    E = catlog.IndeCateR(samples=2, draws=draws, **options)
    x = factors(q).point(categories(factors(q), u))
    if "variables" in options:  # both decks of two variables
        q = law(theta.expand(2 * u.shape[1], *theta.shape))
        decks = torch.tensor([[0, 1], [1, 0]]).repeat_interleave(u.shape[1], 0)
        got = E(f, q, x=torch.cat([x, x], 1), chosen=decks.T.unsqueeze(-1)).mean()
    else:
        got = E(f, q, x=x).mean()
    exact = catlog.Exact()(f, law(theta))
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(each, theta)[0] for each in (got, exact)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("E", estimators(unbiased=False))
def test_biased(E: catlog.Estimator, kind: str) -> None:
    """Estimators listed as biased are: by enumeration, or by 30 standard errors where the noise is continuous."""
    if not supports(E, kind):
        pytest.skip("not for this law")
    case, f = CASES[kind], FUNCTIONS["network"]
    exact = expected(case, f, PARAMETER)[1]
    if continuous(E):
        assert z_scores(E, case, f).max() > 30
    else:
        got = expectation(E, case, f, PARAMETER)
        assert (got[1] - exact).norm() > 0.05 * exact.norm()
        torch.testing.assert_close(got[0], expected(case, f, PARAMETER)[0])  # the value is unbiased


def test_straight_through_is_unbiased_for_multilinear_f() -> None:
    case = CASES["bits"]

    def f(z: Tensor, c: Tensor) -> Tensor:
        return c[0] * z[..., 0] * z[..., 1] - c[1] * z[..., 1] * z[..., 2] + c[2] * z[..., 0]

    got, exact = (
        expectation(catlog.StraightThrough(), case, f, PARAMETER),
        expected(case, f, PARAMETER),
    )
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


class _Halved(catlog.RLOO):
    def __call__(self, f: Callable[[Tensor], Tensor], q: Independent, **options: Tensor) -> Tensor:
        value = super().__call__(f, q, **options)  # 1/n in place of 1/(n-1)
        return catlog.estimator.attach(value, value * (self.samples - 1) / self.samples)


class _FirstVariableOnly(catlog.IndeCateR):
    def __call__(self, f: Callable[[Tensor], Tensor], q: Independent, **options: Tensor) -> Tensor:
        return super().__call__(f, q, **{**options, "chosen": torch.zeros_like(options["chosen"])})


BUGS = {
    "RLOO divided by n": _Halved(2),
    "a baseline that saw the draw": catlog.Reinforce(2, baseline=lambda fx: fx.mean(0)),
    "variables not dealt evenly": _FirstVariableOnly(1, variables=1),
}


@pytest.mark.parametrize("E", BUGS.values(), ids=BUGS.keys())
def test_the_judge_catches_a_planted_bug(E: catlog.Estimator) -> None:
    case, f = CASES["bits"], FUNCTIONS["sine"]
    got, exact = expectation(E, case, f, PARAMETER)[1], expected(case, f, PARAMETER)[1]
    assert (got - exact).norm() > 0.01 * exact.norm()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("E", estimators())
def test_evaluations_as_promised(E: catlog.Estimator, case: Case) -> None:
    q = case.law(case.theta.expand(4, *case.theta.shape))
    law = factors(q)
    if not supports(E, case.kind) or (getattr(E, "variables", None) or 0) > law.d:
        pytest.skip("not for this law")
    seen = 0

    def f(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        return FUNCTIONS["sine"](case.features(x), PARAMETER)

    assert E(f, q).shape == (4,)
    assert seen == E.evaluations(q)


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("E", estimators())
def test_batch_equals_loop(E: catlog.Estimator, kind: str) -> None:
    """Separate expectations in one call do not touch each other."""
    if continuous(E) or not supports(E, kind):
        pytest.skip("not for this law, or its draws cannot be injected")
    case = CASES[kind]
    theta = (
        case.theta
        + torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3, *[1] * case.theta.dim())
    ).requires_grad_()
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)

    def call(theta: Tensor, scale: Tensor, **options: Tensor) -> Tensor:
        return E(
            lambda x: FUNCTIONS["sine"](case.features(x), PARAMETER) * scale,
            case.law(theta),
            **options,
        )

    options: dict[str, Tensor] = {}
    if not isinstance(E, catlog.Exact):
        options["x"] = case.law(theta).sample((E.rows(case.law(theta)),))
    d = factors(case.law(theta)).d
    if getattr(E, "variables", None):
        options["chosen"] = torch.rand(E.samples, 2, 3, d).argsort(-1)[..., : E.variables]
    if isinstance(E, catlog.SlopeCateR):
        options["start"] = torch.rand(1, 2, 3, dtype=torch.float64)
    if isinstance(E, catlog.SlopeCateR | catlog.MemoryCateR):
        E = deepcopy(E).eval()  # what it learns from the first call would change the second
    whole = call(theta, scale, **options)
    parts = [
        call(theta[i, j], scale[i, j], **{key: value[:, i, j] for key, value in options.items()})
        for i in range(2)
        for j in range(3)
    ]
    torch.testing.assert_close(whole, torch.stack(parts).view(2, 3), rtol=1e-13, atol=1e-13)
    gradients = [torch.autograd.grad(each.sum(), theta)[0] for each in (whole, torch.stack(parts))]
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


class _NoDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x.sum(-1) * 1.7).sin()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise AssertionError("the derivative of f was used")


@pytest.mark.parametrize("E", estimators(differentiates_f=False))
def test_derivative_of_f_not_used(E: catlog.Estimator) -> None:
    theta = torch.zeros(3, requires_grad=True)
    E(_NoDerivative.apply, Independent(Bernoulli(logits=theta), 1)).backward()
    assert theta.grad is not None


@pytest.mark.parametrize("E", estimators(differentiates_f=True))
def test_derivative_of_f_used_where_declared(E: catlog.Estimator) -> None:
    theta = torch.zeros(3, requires_grad=True)
    with pytest.raises((AssertionError, ValueError), match="derivative"):
        E(_NoDerivative.apply, Independent(Bernoulli(logits=theta), 1)).backward()


@pytest.mark.parametrize("E", estimators())
def test_same_generator_same_result(E: catlog.Estimator) -> None:
    case = home(E)

    def run(seed: int) -> tuple[Tensor, Tensor]:
        theta = case.theta.expand(50, *case.theta.shape).clone().requires_grad_()
        generator = torch.Generator().manual_seed(seed)
        fresh = deepcopy(E)  # one with a memory is to have the same each time
        value = fresh(
            lambda x: FUNCTIONS["sine"](case.features(x), PARAMETER),
            case.law(theta),
            generator=generator,
        )
        return value.detach(), torch.autograd.grad(value.sum(), theta)[0]

    state = torch.random.get_rng_state()
    (value, gradient), (again, gradient_again), (other, _) = run(1), run(1), run(2)
    assert torch.equal(value, again)
    assert torch.equal(gradient, gradient_again)
    assert torch.equal(value, other) == isinstance(E, catlog.Exact)
    assert torch.equal(state, torch.random.get_rng_state())  # the global generator was left alone


@pytest.mark.parametrize("E", estimators())
def test_constant_f(E: catlog.Estimator) -> None:
    """No noise from a constant, except for REINFORCE and its like, whose defect that is."""
    case = home(E)
    theta = case.theta.expand(20, *case.theta.shape).clone().requires_grad_()
    value = E(lambda x: 5 + 0 * case.features(x).sum(-1), case.law(theta))
    torch.testing.assert_close(value, torch.full((20,), 5.0, dtype=torch.float64))
    gradient = torch.autograd.grad(value.sum(), theta)[0]
    assert (gradient.abs().max() < 1e-13) != (type(E).__name__ in NOISY_ON_CONSTANTS)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("E", estimators())
def test_dtypes(E: catlog.Estimator, dtype: torch.dtype, tolerance: float) -> None:
    """The same draws in a narrower type: the same result to its precision; a law in bfloat16 still sums in float32."""
    case = home(E)
    narrow = case.theta.expand(30, *case.theta.shape).to(dtype)
    options: dict[str, Tensor] = {}
    if not isinstance(E, catlog.Exact) and not continuous(E):
        options["x"] = case.law(narrow.double()).sample((E.rows(case.law(narrow)),))
    if getattr(E, "variables", None):
        options["chosen"] = torch.rand(E.samples, 30, factors(case.law(narrow)).d).argsort(-1)[
            ..., : E.variables
        ]
    if isinstance(E, catlog.SlopeCateR):
        options["start"] = torch.full(
            (1, 30), 0.8
        )  # away from where rounding decides which variable is looked at
    if isinstance(E, catlog.SlopeCateR | catlog.MemoryCateR):
        E = deepcopy(E).eval()
    results = []
    for each in (torch.float64, dtype):
        theta = narrow.to(each).requires_grad_()
        given = {key: value.to(each) if key == "x" else value for key, value in options.items()}
        seen: set[torch.dtype] = set()

        def f(x: Tensor, seen: set[torch.dtype] = seen) -> Tensor:
            seen.add(x.dtype)
            return FUNCTIONS["sine"](case.features(x.double()), PARAMETER)

        value = E(f, case.law(theta), generator=torch.Generator().manual_seed(0), **given)
        assert seen == {each}
        results.append((value.double(), torch.autograd.grad(value.sum(), theta)[0].double()))
    if continuous(E):
        assert all(each.isfinite().all() for each in results[1])  # other noise in another type
    else:
        for got, exact in zip(results[1], results[0], strict=True):
            assert (got - exact).norm() <= tolerance * exact.norm()


@pytest.mark.parametrize("E", estimators())
def test_composes(E: catlog.Estimator) -> None:
    """-log E[f] has the gradient of the chain rule at the returned value."""
    case = CASES["bits"]
    theta = case.theta.clone().requires_grad_()

    def run() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return deepcopy(E)(
            lambda x: FUNCTIONS["network"](case.features(x), PARAMETER),
            case.law(theta),
            generator=generator,
        )

    value = run()
    (plain,) = torch.autograd.grad(value, theta)
    (log,) = torch.autograd.grad(-run().log(), theta)
    torch.testing.assert_close(log, -plain / value.detach())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_registry(name: str) -> None:
    cls = ESTIMATORS[name]
    E = cls()
    assert isinstance(E, catlog.Estimator)
    assert cls.__name__ == name
    assert getattr(catlog, name) is cls
    assert ">>>" in cls.__doc__
    assert ".. math::" in cls.__doc__
    assert "Cost:" in cls.__doc__
    assert all(f"{name}:" in cls.__doc__ for name in signature(cls).parameters), (
        "an argument is not documented"
    )
    if not isinstance(E, nn.Module):
        with pytest.raises(FrozenInstanceError):
            E.validate = False
    else:
        assert E.state_dict().keys() == {
            key for key, _ in (*E.named_parameters(), *E.named_buffers())
        }


def test_moving_average_baseline() -> None:
    """Unbiased while it moves: the baseline of a call is made from earlier calls only, and is saved."""
    case, f = CASES["bits"], FUNCTIONS["sine"]
    baseline = catlog.MovingAverageBaseline(decay=0.5).double()
    baseline(torch.full((3,), 4.0, dtype=torch.float64))
    torch.testing.assert_close(
        baseline.mean / baseline.weight, torch.tensor([4.0], dtype=torch.float64)
    )
    copy = catlog.MovingAverageBaseline(decay=0.5).double()
    copy.load_state_dict(baseline.state_dict())
    got = expectation(catlog.Reinforce(1, baseline=baseline), case, f, PARAMETER)
    torch.testing.assert_close(
        got[1], expectation(catlog.Reinforce(1, baseline=4.0), case, f, PARAMETER)[1]
    )
    torch.testing.assert_close(got[1], expected(case, f, PARAMETER)[1], rtol=0, atol=1e-12)
    assert baseline.mean / baseline.weight != copy.mean / copy.weight
