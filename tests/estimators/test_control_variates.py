"""NVIL, DoubleCV, RODEO and MuProp: textbook forms, unbiased while they learn."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from catlog import REBAR
from catlog.estimators import BBVI, NVIL, RELAX, RODEO, DoubleCV, MuProp
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expectation, expected, outcomes
from support.compiling import assert_compiles
from support.enumerated import EventNetwork, function_of, gradients, network, train, variances
from support.gradients import assert_same
from support.laws import bits
from support.more_cases import MASKED_ONE_HOT

BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]
LEARNERS: dict[str, tuple[Callable[[], nn.Module], Case]] = {
    "NVIL": (lambda: NVIL(2), BITS),
    "NVIL, network": (lambda: NVIL(1, network=network(6)), ONE_HOT),
    "DoubleCV, bits": (lambda: DoubleCV(2, alpha=0.3), BITS),
    "DoubleCV, one-hot": (lambda: DoubleCV(3, alpha=-0.2), ONE_HOT),
    "DoubleCV, masked": (lambda: DoubleCV(2, alpha=0.3), MASKED_ONE_HOT),
    "RODEO": (lambda: RODEO(2, alpha=0.2, beta=-0.3), BITS),
    "RODEO, network": (lambda: RODEO(3, alpha=0.5, beta=0.4, network=network(2, 2)), BITS),
}
learners = pytest.mark.parametrize(("make", "case"), LEARNERS.values(), ids=LEARNERS.keys())


def textbook(E: nn.Module, case: Case, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient in the logits at draws [n, outcomes, ...], as the papers write it."""
    leaf = x.clone().requires_grad_()
    value = f(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    value = value.detach()
    p = case.theta.sigmoid() if case is BITS else case.theta.softmax(-1)
    score = x - p
    n = len(x)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(2).sum(-1)

    def wide(a: Tensor) -> Tensor:
        return a.view(*a.shape, *[1] * (x.dim() - 2))

    total = 0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        if isinstance(E, NVIL):
            context = case.theta if case is BITS else case.theta.log_softmax(-1).flatten()
            baseline = E.centre + (0 if E.network is None else E.network(context).squeeze(-1))
            total = total + wide(value[i : i + 1] - baseline) * score[i]
        elif isinstance(E, DoubleCV):
            mean_slope = [sum(slope[m] for m in range(n) if m != j) / (n - 1) for j in range(n)]
            h = [
                value[j] - E.alpha * dot(mean_slope[j][None], score[j : j + 1])[0] for j in range(n)
            ]
            advantage = h[i] - sum(h[j] for j in others) / (n - 1)
            square = (
                torch.diag_embed(p.square()) if case is BITS else p.unsqueeze(-1) * p.unsqueeze(-2)
            )
            jacobian = torch.diag_embed(p) - square
            correction = E.alpha * (mean_slope[i].unsqueeze(-2) @ jacobian).squeeze(-2)
            total = total + wide(advantage[None]) * score[i] + correction
        else:
            total = total + stein_textbook(E, i, x, value, slope, p)
    return total.squeeze(0) / n if total.dim() > x.dim() - 1 else total / n


def stein_textbook(E: RODEO, i: int, x: Tensor, value: Tensor, slope: Tensor, p: Tensor) -> Tensor:
    n, d = len(x), x.shape[-1]

    def surrogate(k: int, y: Tensor) -> Tensor:
        """Return both surrogates of draw k at y [outcomes, d]."""
        result = torch.zeros(*y.shape[:-1], 2, dtype=y.dtype)
        for j in range(n):
            if j != k:
                linear = (slope[j] * (y - x[j])).sum(-1)
                pair = torch.stack([value[j], linear], -1)
                result = result + (
                    linear.unsqueeze(-1).expand(pair.shape)
                    if E.network is None
                    else E.network(pair)
                )
        return result / (n - 1)

    def gibbs(function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Return sum_i E[function | all but i] - function."""
        result = 0
        for v in range(d):
            zero, one = y.clone(), y.clone()
            zero[..., v], one[..., v] = 0, 1
            result = result + (1 - p[v]) * function(zero) + p[v] * function(one) - function(y)
        return result

    def baseline(j: int) -> Tensor:
        return value[j] + E.alpha * gibbs(lambda y: surrogate(j, y)[..., 0], x[j])

    advantage = value[i] - sum(baseline(j) for j in range(n) if j != i) / (n - 1)
    return advantage.unsqueeze(-1) * (x[i] - p) + E.beta * gibbs(
        lambda y: surrogate(i, y)[..., 1:] * (y - p), x[i]
    )


SMOOTH = {name: learner for name, learner in LEARNERS.items() if "masked" not in name}


@pytest.mark.parametrize(("make", "case"), SMOOTH.values(), ids=SMOOTH.keys())
def test_gradients_of_logits_and_parameters_are_the_textbook_s(
    make: Callable[[], nn.Module], case: Case
) -> None:
    """Parameters get the gradient of the variance, whatever the sign of the loss."""
    E, f = make().double(), function_of(case)
    got, weight = gradients(E, case, f)
    x, _ = outcomes(case, E.samples)
    by_hand = textbook(E, case, x, f)
    torch.testing.assert_close(got, by_hand.detach(), rtol=0, atol=1e-12)

    objective = (weight * by_hand.flatten(1).square().sum(-1)).sum()
    wanted = torch.autograd.grad(objective, list(E.parameters()), allow_unused=True)
    for scale in (1.0, -3.0):
        q = case.distribution(case.theta.expand(x.shape[1], *case.theta.shape))
        # The weights are squared on the way back, which gives the outcomes' probabilities.
        loss = scale * (weight.sqrt() * E(f, q, x=x)).sum()
        learned = torch.autograd.grad(loss, list(E.parameters()), allow_unused=True)
        assert any(slope is not None and bool(slope.abs().max() > 1e-6) for slope in learned)
        for a, b in zip(learned, wanted, strict=True):
            if b is not None:
                torch.testing.assert_close(a, scale**2 * b, rtol=1e-9, atol=1e-12)


@learners
def test_unbiased_while_learning(make: Callable[[], nn.Module], case: Case) -> None:
    E = make()  # in float32, while q and networks are in float64
    before = deepcopy(E.state_dict())
    for name in FUNCTIONS:
        for _ in range(2):
            got = expectation(E, case, FUNCTIONS[name], PARAMETER)
            exact = expected(case, FUNCTIONS[name], PARAMETER)
            torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)
            q = case.distribution(case.theta.expand(8, *case.theta.shape))
            train(E, q, function_of(case, name), 5, 0.1)
    assert any(not torch.equal(value, before[key]) for key, value in E.state_dict().items())


@pytest.mark.parametrize(
    ("make", "case", "factor"),
    [
        (lambda: NVIL(1), BITS, 20),
        (lambda: NVIL(1, network=network(3)), BITS, 20),
        (lambda: DoubleCV(2), BITS, 1.3),
        (lambda: RODEO(2), BITS, 1.3),
        (lambda: RODEO(3, network=network(2, 2)), BITS, 1.3),
    ],
    ids=["NVIL", "NVIL, network", "DoubleCV", "RODEO", "RODEO, network"],
)
def test_training_lowers_the_variance(
    make: Callable[[], nn.Module], case: Case, factor: float
) -> None:
    """The variance is exact: a sum over all outcomes."""
    E = make().double()

    def f(x: Tensor) -> Tensor:
        return (
            x @ torch.tensor([2.0, -1.0, 1.0], dtype=torch.float64)
            + 0.3 * FUNCTIONS["sine"](case.features(x), PARAMETER)
            + 4
        )

    before = variances(*gradients(E, case, f)).sum()
    train(E, case.distribution(case.theta.expand(64, *case.theta.shape)), f, 300, 0.05)
    assert variances(*gradients(E, case, f)).sum() < before / factor


@pytest.mark.parametrize("name", [*LEARNERS, "REBAR", "RELAX"])
def test_learning_changes_no_gradient_of_q_or_f(name: str) -> None:
    """A copy with the same state dict that does not learn gives the same gradients."""
    learners: dict[str, tuple[Callable[[], nn.Module], Case]] = {
        **LEARNERS,
        "REBAR": (lambda: REBAR(2, eta=0.4), ONE_HOT),
        "RELAX": (lambda: RELAX(2, network=EventNetwork(3, 1)), BITS),
    }
    make, case = learners[name]
    E, copy = make(), make()
    train(E, case.distribution(case.theta.expand(8, *case.theta.shape)), function_of(case), 3, 0.1)
    copy.load_state_dict(E.state_dict())
    copy.requires_grad_(False)
    theta = case.theta.expand(8, *case.theta.shape).clone().requires_grad_()
    c = PARAMETER.clone().requires_grad_()

    def f(x: Tensor) -> Tensor:
        return FUNCTIONS["sine"](case.features(x), c)

    learning, frozen = (
        learner(f, case.distribution(theta), generator=torch.Generator().manual_seed(1))
        for learner in (E, copy)
    )
    assert_same(learning, frozen, [theta, c], rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: REBAR(2),
        lambda: RELAX(2, network=EventNetwork(3, 1)),
        lambda: RODEO(2, alpha=0.1, beta=0.2, network=network(2, 2)),
        lambda: NVIL(2, network=network(3)),
    ],
    ids=["REBAR", "RELAX", "RODEO", "NVIL"],
)
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # raised by torch itself
def test_gradient_of_parameters_compiles(make: Callable[[], nn.Module]) -> None:
    E = make().double()

    def loss(theta: Tensor) -> Tensor:
        return E(lambda x: (x * theta.new_tensor([1.0, 2.0, -1.5])).sum(-1).sin(), bits(theta))

    theta = BITS.theta.expand(4, 3).clone().requires_grad_()
    assert_compiles(loss, theta, parameters=list(E.parameters()))


@pytest.mark.parametrize("case", [BITS, ONE_HOT, MASKED_ONE_HOT], ids=["bits", "one-hot", "masked"])
def test_muprop_is_the_textbook_s(case: Case) -> None:
    """At every outcome; also unbiased, and exact for linear f."""
    f = function_of(case)
    got, weight = gradients(MuProp(1), case, f)
    mean = (case.theta.sigmoid() if case is BITS else case.theta.softmax(-1)).requires_grad_()
    at_mean = f(mean)
    (slope,) = torch.autograd.grad(at_mean, mean)
    x = outcomes(case, 1)[0][0]
    score = x - mean.detach()
    residual = (f(x) - at_mean - (slope * score).flatten(1).sum(-1)).detach()
    residual = residual.view(-1, *[1] * (x.dim() - 1))
    p = mean.detach()
    in_logits = (
        slope * p * (1 - p) if case is BITS else p * (slope - (p * slope).sum(-1, keepdim=True))
    )
    torch.testing.assert_close(got, residual * score + in_logits, rtol=0, atol=1e-12)
    exact = expected(case, FUNCTIONS["sine"], PARAMETER)[1]
    torch.testing.assert_close(torch.tensordot(weight, got, 1), exact, rtol=0, atol=1e-12)
    for E in (MuProp(1), DoubleCV(2, alpha=1.0)):
        linear, weight = gradients(
            E, case, lambda x: case.features(x) @ PARAMETER[: case.features(x).shape[-1]]
        )
        if case is not BITS:  # the features of bits are not linear
            assert variances(linear, weight).sum() < 1e-12


FEW = r"`x.shape\[0\]` must be at least 2, but 1 was given.*[Uu]se"
NOISE = r"noise: a tensor of shape \(1, 2, 3, 2\) comes next.*but \(1, 3\) was given"
SHAPES = r": `network` must return shape {} or .*, but it returned shape {}"
WRONG = [
    *[(E, {"x": torch.zeros(1, 2, 3)}, FEW) for E in (BBVI(2), DoubleCV(2), RODEO(2))],
    *[(E, {"noise": torch.zeros(1, 3)}, NOISE) for E in (REBAR(1), RELAX(1))],
    (NVIL(1, network=nn.Linear(3, 4)), {}, "NVIL" + SHAPES.format(r"\(2,\)", r"\(2, 4\)")),
    (RELAX(1, network=nn.Linear(3, 4)), {}, "RELAX" + SHAPES.format(r"\(1, 2\)", r"\(1, 2, 4\)")),
    (RODEO(2, network=nn.Linear(2, 1)), {}, "RODEO" + SHAPES.format(r"\(1, 2, 2, 4, 2\)", "")),
]


@pytest.mark.parametrize(("E", "options", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_wrong_arguments_are_named(E: nn.Module, options: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        E(function_of(BITS), BITS.distribution(BITS.theta.expand(2, 3)), **options)


def test_wrong_distributions_and_functions_are_named() -> None:
    with pytest.raises(TypeError, match=r"RODEO is for binary variables.*Use DoubleCV"):
        RODEO()(function_of(ONE_HOT), ONE_HOT.distribution(ONE_HOT.theta))
    with pytest.raises(ValueError, match=r"f: its derivative in x is needed by .*RELAX"):
        REBAR()(lambda x: (x.sum(-1) > 1).double(), BITS.distribution(BITS.theta))


def test_rodeo_without_a_network_is_that_of_a_linear_one() -> None:
    """The means over the other draws are taken first, not over all pairs."""

    class Second(nn.Module):
        def forward(self, pairs: Tensor) -> Tensor:
            return pairs[..., 1:].expand(pairs.shape)

    def f(x: Tensor) -> Tensor:
        return (x @ torch.linspace(-1, 2, 5, dtype=torch.float64)).sin() + 3 * x[..., 0] * x[..., 1]

    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    q = bits(theta)
    x = (torch.rand(4, 3, 5, generator=generator) < 0.5).double()
    results = []
    for h in (None, Second()):
        E = RODEO(4, alpha=0.3, beta=-0.4, network=h).double()
        value = E(f, q, x=x)
        (gradient,) = torch.autograd.grad(value.sum(), theta, retain_graph=True)
        value.sum().backward()
        results.append([value.detach(), gradient, E.alpha.grad, E.beta.grad])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
