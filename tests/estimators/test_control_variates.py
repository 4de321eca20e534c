"""Baselines and control variates: textbook forms, unbiased while they learn, and trained by the derivative of the variance."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product

import pytest
import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

import catlog
import catlog.estimators.control_variates.rebar as rebar_file
from catlog import BBVI, NVIL, REBAR, RELAX, RLOO, RODEO, DoubleCV, MuProp, Reinforce
from catlog.testing.enumeration import Case, cases, expectation, expected, functions, outcomes

CASES = {case.name: case for case in cases()}
FUNCTIONS = functions()
PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)
BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]
MASKED = Case(
    "one-hot, masked",
    torch.tensor([[0.3, -0.8, -torch.inf], [-torch.inf, 0.5, 0.1]], dtype=torch.float64),
    lambda t: Independent(OneHotCategorical(logits=t), 1),
    torch.eye(3).double()[torch.tensor([[0, 1], [0, 2], [1, 1], [1, 2]])],
    lambda x: x.flatten(-2),
)


def network(inputs: int, outputs: int = 1, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


class OfEvent(nn.Module):
    """A network on points with any event shape, for RELAX."""

    def __init__(self, size: int, event_dims: int, seed: int = 0) -> None:
        super().__init__()
        self.event_dims, self.network = event_dims, network(size, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flatten(-self.event_dims)).squeeze(-1)


LEARNERS: dict[str, tuple[Callable[[], nn.Module], Case]] = {
    "NVIL": (lambda: NVIL(2), BITS),
    "NVIL, network": (lambda: NVIL(1, network(6)), ONE_HOT),
    "DoubleCV, bits": (lambda: DoubleCV(2, alpha=0.3), BITS),
    "DoubleCV, one-hot": (lambda: DoubleCV(3, alpha=-0.2), ONE_HOT),
    "DoubleCV, masked": (lambda: DoubleCV(2, alpha=0.3), MASKED),
    "RODEO": (lambda: RODEO(2, alpha=0.2, beta=-0.3), BITS),
    "RODEO, network": (lambda: RODEO(3, alpha=0.5, beta=0.4, network=network(2, 2)), BITS),
}
learners = pytest.mark.parametrize(("make", "case"), LEARNERS.values(), ids=LEARNERS.keys())


def gradients(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradient in theta for every outcome of the sampler, and the outcomes' probabilities."""
    x, weight = outcomes(case, E.rows(case.law(case.theta)))
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    return torch.autograd.grad(E(f, case.law(theta), x=x).sum(), theta)[0], weight


def variance(gradient: Tensor, weight: Tensor) -> Tensor:
    flat = gradient.flatten(1)
    return (weight * flat.square().sum(-1)).sum() - (weight @ flat).square().sum()


def of(case: Case, name: str = "sine", shift: float = 0.0) -> Callable[[Tensor], Tensor]:
    return lambda x: FUNCTIONS[name](case.features(x), PARAMETER) + shift


def train(
    E: nn.Module, q: Distribution, f: Callable[[Tensor], Tensor], steps: int, lr: float
) -> None:
    """The estimator's own parameters, through ``backward`` of what it returns."""
    optimiser = torch.optim.Adam(E.parameters(), lr)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimiser.zero_grad()
        E(f, q, generator=generator).mean().backward()
        optimiser.step()


# --- Textbook forms of the gradient in the logits, draws [n, outcomes, ...], written as the papers write them


def textbook(E: nn.Module, case: Case, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
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
            own = h[i] - sum(h[j] for j in others) / (n - 1)
            square = (
                torch.diag_embed(p.square()) if case is BITS else p.unsqueeze(-1) * p.unsqueeze(-2)
            )
            jacobian = torch.diag_embed(p) - square
            correction = E.alpha * (mean_slope[i].unsqueeze(-2) @ jacobian).squeeze(-2)
            total = total + wide(own[None]) * score[i] + correction
        else:
            total = total + stein_textbook(E, i, x, value, slope, p)
    return total.squeeze(0) / n if total.dim() > x.dim() - 1 else total / n


def stein_textbook(E: RODEO, i: int, x: Tensor, value: Tensor, slope: Tensor, p: Tensor) -> Tensor:
    n, d = len(x), x.shape[-1]

    def surrogate(k: int, y: Tensor) -> Tensor:
        """h_k and the other one at y [outcomes, d]."""
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
        """sum_i E[function | all but i] - function."""
        result = 0
        for v in range(d):
            zero, one = y.clone(), y.clone()
            zero[..., v], one[..., v] = 0, 1
            result = result + (1 - p[v]) * function(zero) + p[v] * function(one) - function(y)
        return result

    def baseline(j: int) -> Tensor:
        return value[j] + E.alpha * gibbs(lambda y: surrogate(j, y)[..., 0], x[j])

    own = value[i] - sum(baseline(j) for j in range(n) if j != i) / (n - 1)
    return own.unsqueeze(-1) * (x[i] - p) + E.beta * gibbs(
        lambda y: surrogate(i, y)[..., 1:] * (y - p), x[i]
    )


SMOOTH = {name: each for name, each in LEARNERS.items() if "masked" not in name}


@pytest.mark.parametrize(("make", "case"), SMOOTH.values(), ids=SMOOTH.keys())
def test_gradient_and_own_gradient_are_the_textbook_s(
    make: Callable[[], nn.Module], case: Case
) -> None:
    """Every outcome's gradient; and the own parameters' gradient is that of the exact variance, whatever the loss' sign."""
    E, f = make().double(), of(case)
    got, weight = gradients(E, case, f)
    x, _ = outcomes(case, E.rows(case.law(case.theta)))
    by_hand = textbook(E, case, x, f)
    torch.testing.assert_close(got, by_hand.detach(), rtol=0, atol=1e-12)

    objective = (weight * by_hand.flatten(1).square().sum(-1)).sum()
    wanted = torch.autograd.grad(objective, list(E.parameters()), allow_unused=True)
    for scale in (1.0, -3.0):
        q = case.law(case.theta.expand(x.shape[1], *case.theta.shape))
        loss = (
            scale * (weight.sqrt() * E(f, q, x=x)).sum()
        )  # squared, these are the outcomes' probabilities
        own = torch.autograd.grad(loss, list(E.parameters()), allow_unused=True)
        assert sum(each is not None and bool(each.abs().max() > 1e-6) for each in own) > 0
        for a, b in zip(own, wanted, strict=True):
            if b is not None:
                torch.testing.assert_close(a, scale**2 * b, rtol=1e-9, atol=1e-12)


@learners
def test_unbiased_while_learning(make: Callable[[], nn.Module], case: Case) -> None:
    E = make()  # in float32, q in float64, except for its network
    before = deepcopy(E.state_dict())
    for name in FUNCTIONS:
        for _ in range(2):
            got = expectation(E, case, FUNCTIONS[name], PARAMETER)
            for a, b in zip(got, expected(case, FUNCTIONS[name], PARAMETER), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
            train(E, case.law(case.theta.expand(8, *case.theta.shape)), of(case, name), 5, 0.1)
    assert any(not torch.equal(each, before[key]) for key, each in E.state_dict().items())


@pytest.mark.parametrize(
    ("make", "case", "factor"),
    [
        (lambda: NVIL(1), BITS, 20),
        (lambda: NVIL(1, network(3)), BITS, 20),
        (lambda: DoubleCV(2), BITS, 1.3),
        (lambda: RODEO(2), BITS, 1.3),
        (lambda: RODEO(3, network=network(2, 2)), BITS, 1.3),
    ],
    ids=["NVIL", "NVIL, network", "DoubleCV", "RODEO", "RODEO, network"],
)
def test_training_lowers_the_variance(
    make: Callable[[], nn.Module], case: Case, factor: float
) -> None:
    """Exactly: the variance is a sum over all outcomes."""
    E = make().double()

    def f(x: Tensor) -> Tensor:
        return (
            x @ torch.tensor([2.0, -1.0, 1.0], dtype=torch.float64)
            + 0.3 * FUNCTIONS["sine"](case.features(x), PARAMETER)
            + 4
        )

    before = variance(*gradients(E, case, f))
    train(E, case.law(case.theta.expand(64, *case.theta.shape)), f, 300, 0.05)
    assert variance(*gradients(E, case, f)) < before / factor


@pytest.mark.parametrize("name", [*LEARNERS, "REBAR", "RELAX"])
def test_state_dict_and_other_gradients(name: str) -> None:
    """What was learned is saved; learning touches neither the gradient of the law's parameters nor that of f's own."""
    made: dict[str, tuple[Callable[[], nn.Module], Case]] = {
        **LEARNERS,
        "REBAR": (lambda: REBAR(2, 0.4), ONE_HOT),
        "RELAX": (lambda: RELAX(2, OfEvent(3, 1)), BITS),
    }
    make, case = made[name]
    E, other = make(), make()
    train(E, case.law(case.theta.expand(8, *case.theta.shape)), of(case), 3, 0.1)
    other.load_state_dict(E.state_dict())
    for each in other.parameters():
        each.requires_grad_(False)
    results = []
    for each in (E, other):
        theta = case.theta.expand(8, *case.theta.shape).clone().requires_grad_()
        c = PARAMETER.clone().requires_grad_()
        generator = torch.Generator().manual_seed(1)
        value = each(
            lambda x, c=c: FUNCTIONS["sine"](case.features(x), c),
            case.law(theta),
            generator=generator,
        )
        results.append([value.detach(), *torch.autograd.grad(value.sum(), [theta, c])])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


# --- REBAR and RELAX


def quadrature(case: Case, nodes: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    """Points x [1, outcomes, *event], noise of z given x, and weights: an integral over all draws of z.

    The estimate depends on the exponentials of a variable by their ratios, so they may be taken from a simplex, where they are
    uniform: an interval for two categories, a triangle for three.
    """
    t, weight = (torch.from_numpy(each) for each in leggauss(nodes))
    t, weight = (t + 1) / 2, weight / 2
    t, weight = (
        t**2 * (3 - 2 * t),
        weight * 6 * t * (1 - t),
    )  # denser at the ends, where there are powers like t**1.3
    if case.kind == "bits":
        simplex, density = torch.stack([t, 1 - t], -1), weight
    else:
        s, r = torch.cartesian_prod(t, t).T
        simplex = torch.stack([1 - s, s * r, s * (1 - r)], -1)
        density = torch.cartesian_prod(weight, weight).prod(-1) * 2 * s
    d = 2 if case.kind == "bits" else 1
    pick = torch.cartesian_prod(torch.arange(len(case.points)), *[torch.arange(len(simplex))] * d)
    weights = case.probabilities(case.theta)[pick[:, 0]] * density[pick[:, 1:]].prod(-1)
    return (
        case.points[pick[:, 0]].unsqueeze(0),
        (-20 * simplex[pick[:, 1:]]).exp().unsqueeze(0),
        weights,
    )


SMALL = {
    "bits": Case(
        "bits",
        BITS.theta[:2],
        BITS.law,
        torch.cartesian_prod(*[torch.arange(2.0).double()] * 2),
        lambda x: x,
    ),
    "one-hot": Case(
        "one-hot",
        ONE_HOT.theta[:1],
        ONE_HOT.law,
        torch.eye(3).double().unsqueeze(1),
        lambda x: x.squeeze(-2),
    ),
    "masked": Case(
        "one-hot, masked",
        torch.tensor([[0.3, -torch.inf, -0.8]], dtype=torch.float64),
        ONE_HOT.law,
        torch.eye(3).double()[[0, 2]].unsqueeze(1),
        lambda x: x.squeeze(-2),
    ),
}


def small_f(case: Case, c: Tensor) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        z = case.features(x)
        first, last = z[..., 0], z[..., -1]
        return (
            (2 * first - c[0] * last).sin()
            + c[1] * first * last**2
            + (c[2] * z.sum(-1) - first).exp()
        )

    return f


def integral(E: nn.Module, case: Case) -> tuple[Tensor, ...]:
    """E over all draws of the value and of the gradients, in theta and in f's own parameter; and the exact ones."""
    x, noise, weight = quadrature(case)
    results: list[Tensor] = []
    for integrated in (True, False):
        theta, c = case.theta.clone().requires_grad_(), PARAMETER[:3].clone().requires_grad_()
        if integrated:
            q = case.law(theta.expand(x.shape[1], *theta.shape))
            total = (weight * E(small_f(case, c), q, x=x, noise=noise)).sum()
        else:
            total = (case.probabilities(theta) * small_f(case, c)(case.points)).sum()
        results += [total.detach(), *torch.autograd.grad(total, [theta, c])]
    return tuple(results)


def continuous(kind: str) -> Iterator[nn.Module]:
    size, dims = (2, 1) if kind == "bits" else (3, 2)
    yield REBAR(1)
    yield REBAR(1, eta=0.3, temperature=0.8)
    yield RELAX(1, OfEvent(size, dims), temperature=0.7)


@pytest.mark.parametrize("kind", SMALL)
def test_rebar_and_relax_are_unbiased_while_learning(kind: str) -> None:
    """By quadrature over the noise, before and after some steps of training."""
    case = SMALL[kind]
    for E in continuous(kind):
        E.double()
        before = deepcopy(E.state_dict())
        for _ in range(2):
            got = integral(E, case)
            for a, b in zip(got[:3], got[3:], strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
            train(
                E,
                case.law(case.theta.expand(8, *case.theta.shape)),
                small_f(case, PARAMETER),
                5,
                0.05,
            )
        assert all(not torch.equal(each, before[key]) for key, each in E.state_dict().items())


def test_a_conditional_derivative_that_is_forgotten_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the derivative of z given x, the whole derivative of z is left."""
    right = rebar_file.conditional_gumbels
    monkeypatch.setattr(
        rebar_file,
        "conditional_gumbels",
        lambda *given: (right(*given)[0], torch.ones_like(right(*given)[1])),
    )
    got = integral(REBAR(1).double(), SMALL["bits"])
    assert (got[1] - got[4]).norm() > 0.05 * got[4].norm()


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
def test_rebar_and_relax_are_the_textbook_s(kind: str) -> None:
    """Three terms, with z and z~ as functions of the logits by autograd, each from its own noise; also the own gradient."""
    case = SMALL[kind]
    f = small_f(case, PARAMETER)
    x, noise, _ = quadrature(case, 5)
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    drawn = torch.stack([1 - x[0], x[0]], -1) if kind == "bits" else x[0]
    for E in continuous(kind):
        E.double()
        log_p = (
            nn.functional.logsigmoid(torch.stack([-theta, theta], -1))
            if kind == "bits"
            else theta.log_softmax(-1)
        )
        e = -noise[0].log()
        first = (e * drawn).sum(-1, keepdim=True)
        given = torch.where(
            drawn.bool(), -first.log(), -(e / log_p.exp() + first).log()
        )  # z~: noise e, held fixed
        free = log_p + (given - log_p).detach()  # z: Gumbel noise, held fixed

        def c(z: Tensor, E: nn.Module = E) -> Tensor:
            tau = E.log_temperature.exp() if isinstance(E, REBAR) else E.temperature
            soft = (z / tau).softmax(-1)
            soft = soft[..., 1] if kind == "bits" else soft
            return E.eta * f(soft) if isinstance(E, REBAR) else E.network(soft)

        (score,) = torch.autograd.grad((drawn * log_p).sum(), theta, retain_graph=True)
        (path,) = torch.autograd.grad((c(free) - c(given)).sum(), theta, create_graph=True)
        wanted = (f(x)[0] - c(given.detach())).view(-1, *[1] * (theta.dim() - 1)) * score + path
        wanted_own = torch.autograd.grad(
            wanted.square().sum(), list(E.parameters()), allow_unused=True
        )

        leaf = theta.detach().clone().requires_grad_()
        value = E(f, case.law(leaf), x=x, noise=noise)
        got, *own = torch.autograd.grad(value.sum(), [leaf, *E.parameters()])
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-10, atol=1e-10)
        for a, b in zip(own, wanted_own, strict=True):
            torch.testing.assert_close(
                a, torch.zeros_like(a) if b is None else b, rtol=1e-9, atol=1e-10
            )


@pytest.mark.parametrize(
    "make",
    [lambda: REBAR(1, eta=0.1, temperature=3.0), lambda: RELAX(1, OfEvent(3, 1), temperature=0.5)],
    ids=["REBAR", "RELAX"],
)
def test_training_lowers_the_variance_of_rebar_and_relax(make: Callable[[], nn.Module]) -> None:
    """Of 20,000 estimates with the same seed before and after; the standard error of a variance is 1 % or so."""
    E = make().double()

    def f(x: Tensor) -> Tensor:
        return (
            (x - torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)).square().sum(-1) * 2
            + x.prod(-1)
            + 1
        )

    def spread() -> Tensor:
        theta = BITS.theta.expand(20_000, 3).clone().requires_grad_()
        value = E(f, BITS.law(theta), generator=torch.Generator().manual_seed(1))
        return torch.autograd.grad(value.sum(), theta)[0].var(0).sum()

    before = spread()
    train(E, BITS.law(BITS.theta.expand(64, 3)), f, 300, 0.03)
    assert spread() < before / 2


@pytest.mark.parametrize("case", [BITS, ONE_HOT], ids=["bits", "one-hot"])
def test_relax_without_a_network_is_reinforce(case: Case) -> None:
    """The same draws, the same gradient."""
    x = case.law(case.theta.expand(10, *case.theta.shape)).sample((3,))
    results = []
    for E in (RELAX(3), Reinforce(3)):
        theta = case.theta.expand(10, *case.theta.shape).clone().requires_grad_()
        value = E(of(case), case.law(theta), x=x)
        results.append([value.detach(), torch.autograd.grad(value.sum(), theta)[0]])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "make",
    [
        lambda: REBAR(2),
        lambda: RELAX(2, OfEvent(3, 1)),
        lambda: RODEO(2, 0.1, 0.2, network(2, 2)),
        lambda: NVIL(2, network(3)),
    ],
    ids=["REBAR", "RELAX", "RODEO", "NVIL"],
)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_own_gradient_compiles(make: Callable[[], nn.Module]) -> None:
    torch._dynamo.reset()
    E = make().double()

    def loss(theta: Tensor) -> Tensor:
        return E(
            lambda x: (x * theta.new_tensor([1.0, 2.0, -1.5])).sum(-1).sin(),
            Independent(Bernoulli(logits=theta), 1),
        )

    results = []
    for call in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")):
        torch.manual_seed(0)
        theta = BITS.theta.expand(4, 3).clone().requires_grad_()
        results.append(torch.autograd.grad(call(theta).sum(), [theta, *E.parameters()]))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_rebar_with_a_frozen_temperature_needs_one_derivative_of_f() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square().sum(-1)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * gradient.unsqueeze(-1)

    E, other = REBAR(2, 0.3).double(), REBAR(2, 0.3).double()
    E.log_temperature.requires_grad_(False)
    for each, f in ((E, Once.apply), (other, lambda x: x.square().sum(-1))):
        each(f, BITS.law(BITS.theta), generator=torch.Generator().manual_seed(0)).backward()
    torch.testing.assert_close(E.eta.grad, other.eta.grad)
    assert E.log_temperature.grad is None


# --- BBVI, MuProp, VarGrad and other identities


def same_gradients(E: catlog.Estimator, other: catlog.Estimator, case: Case) -> None:
    torch.testing.assert_close(
        gradients(E, case, of(case))[0], gradients(other, case, of(case))[0], rtol=0, atol=1e-12
    )


def test_rloo_as_a_special_case() -> None:
    fair = Case("bits", torch.zeros(3, dtype=torch.float64), BITS.law, BITS.points, BITS.features)
    for case in (BITS, ONE_HOT):
        same_gradients(BBVI(2), RLOO(2), case)
        same_gradients(DoubleCV(3), RLOO(3), case)
    same_gradients(BBVI(3), RLOO(3), fair)
    same_gradients(RODEO(3), RLOO(3), BITS)


@pytest.mark.parametrize("case", [BITS, ONE_HOT], ids=["bits", "one-hot"])
def test_bbvi_is_the_textbook_s(case: Case) -> None:
    got, _ = gradients(BBVI(3), case, of(case))
    x, _ = outcomes(case, 3)
    score = x - (case.theta.sigmoid() if case is BITS else case.theta.softmax(-1))
    value = of(case)(x).view(*x.shape[:2], *[1] * (x.dim() - 2))
    wanted = torch.zeros_like(got)
    for n, m, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        a = (value[m] * score[m] ** 2 + value[k] * score[k] ** 2) / (score[m] ** 2 + score[k] ** 2)
        wanted = wanted + (value[n] - a) * score[n] / 3
    if case is ONE_HOT:
        wanted = wanted - wanted.mean(-1, keepdim=True)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_a_coefficient_of_the_same_draws_is_biased() -> None:
    """What BBVI's docstring warns of, by enumeration; and the coefficient is the best one: less variance than any constant."""
    x, weight = outcomes(BITS, 3)
    score = x - BITS.theta.sigmoid()
    value = of(BITS)(x).unsqueeze(-1)
    same = (value * score**2).sum(0) / (score**2).sum(0)
    exact = expected(BITS, FUNCTIONS["sine"], PARAMETER)[1]
    got = (weight.unsqueeze(-1) * ((value - same) * score).mean(0)).sum(0)
    assert (got - exact).norm() > 0.05 * exact.norm()

    x, weight = outcomes(BITS, 1)
    score, value = (x - BITS.theta.sigmoid())[0], of(BITS)(x)[0].unsqueeze(-1)
    best = (weight.unsqueeze(-1) * value * score**2).sum(0) / (weight.unsqueeze(-1) * score**2).sum(
        0
    )
    at_best = variance((value - best) * score, weight)
    for step in (-0.1, 0.1):
        assert variance((value - best - step) * score, weight) > at_best


@pytest.mark.parametrize(
    "make",
    [lambda: BBVI(2), lambda: NVIL(2), lambda: NVIL(1, network(2))],
    ids=["BBVI", "NVIL", "network"],
)
def test_structured_laws(make: Callable[[], catlog.Estimator]) -> None:
    """Unbiased for a Markov chain, by enumeration."""
    E = make()
    extra = (
        {"context": torch.tensor([0.3, -0.7])} if getattr(E, "network", None) is not None else {}
    )
    theta = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    q = catlog.MarkovChain(theta[:2], theta[2:].view(2, 2), length=3)

    def f(x: Tensor) -> Tensor:
        return (x.double() @ theta.new_tensor([1.0, -2.0, 0.7]) + 0.3).sin() * (1 + x[..., 0])

    points = torch.tensor(list(product(range(2), repeat=3)))
    probability = q.log_prob(points).exp()
    wanted = (probability * f(points)).sum()
    got = torch.zeros((), dtype=torch.float64)
    for choice in product(range(8), repeat=E.rows(q)):
        x = points[list(choice)]
        got = got + probability[list(choice)].prod().detach() * E(f, q, x=x, **extra)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(each, theta, retain_graph=True)[0] for each in (got, wanted))
    )
    if extra:
        with pytest.raises(ValueError, match="context: NVIL's network needs"):
            E(f, q)


@pytest.mark.parametrize("case", [BITS, ONE_HOT, MASKED], ids=["bits", "one-hot", "masked"])
def test_muprop(case: Case) -> None:
    """The textbook form for every outcome; exact for linear f; unbiased."""
    f = of(case)
    got, weight = gradients(MuProp(1), case, f)
    mean = (case.theta.sigmoid() if case is BITS else case.theta.softmax(-1)).requires_grad_()
    at_mean = f(mean)
    (slope,) = torch.autograd.grad(at_mean, mean)
    x = outcomes(case, 1)[0][0]
    score = x - mean.detach()
    rest = (
        (f(x) - at_mean - (slope * score).flatten(1).sum(-1))
        .detach()
        .view(-1, *[1] * (x.dim() - 1))
    )
    p = mean.detach()
    back = slope * p * (1 - p) if case is BITS else p * (slope - (p * slope).sum(-1, keepdim=True))
    torch.testing.assert_close(got, rest * score + back, rtol=0, atol=1e-12)
    exact = expected(case, FUNCTIONS["sine"], PARAMETER)[1]
    torch.testing.assert_close(torch.tensordot(weight, got, 1), exact, rtol=0, atol=1e-12)
    for E in (MuProp(1), DoubleCV(2, alpha=1.0)):
        linear, weight = gradients(
            E, case, lambda x: case.features(x) @ PARAMETER[: case.features(x).shape[-1]]
        )
        if case is not BITS:  # the features of bits are not linear
            assert variance(linear, weight) < 1e-12


def test_vargrad_is_rloo_on_an_elbo() -> None:
    """Half the sample variance of log q - log p, differentiated with the draws held fixed; log q is detached inside f."""
    theta = BITS.theta.clone().requires_grad_()
    q, p = BITS.law(theta), BITS.law(torch.tensor([0.4, -1.0, 0.2], dtype=torch.float64))
    x = q.sample((5,))
    (wanted,) = torch.autograd.grad((q.log_prob(x) - p.log_prob(x)).var(0) / 2, theta)
    (got,) = torch.autograd.grad(
        RLOO(5)(lambda x: q.log_prob(x).detach() - p.log_prob(x), q, x=x), theta
    )
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    (both,) = torch.autograd.grad(RLOO(5)(lambda x: q.log_prob(x) - p.log_prob(x), q, x=x), theta)
    (score,) = torch.autograd.grad(q.log_prob(x).mean(), theta)
    torch.testing.assert_close(both - got, score, rtol=0, atol=1e-12)  # of mean zero


def test_nvil_reads_the_context_it_is_given() -> None:
    """A baseline that knows each expectation's level takes the noise away."""
    level = torch.tensor([[-5.0], [0.0], [5.0]], dtype=torch.float64)
    identity = nn.Linear(1, 1).double()
    nn.init.ones_(identity.weight)
    nn.init.zeros_(identity.bias)
    theta = BITS.theta.expand(3, 3).clone().requires_grad_()
    value = NVIL(1, identity)(
        lambda x: x[..., 0] * 0 + level.squeeze(-1), BITS.law(theta), context=level
    )
    assert torch.autograd.grad(value.sum(), theta)[0].abs().max() < 1e-12
    same = NVIL(1, network(3))
    assert torch.isfinite(
        same(of(BITS), BITS.law(torch.tensor([torch.inf, 0.0, 1.0], dtype=torch.float64)))
    )


def test_errors() -> None:
    q = BITS.law(BITS.theta.expand(2, 3))
    one_hot = ONE_HOT.law(ONE_HOT.theta)
    f = of(BITS)
    with pytest.raises(TypeError, match=r"RODEO is for binary variables.*Use DoubleCV"):
        RODEO()(of(ONE_HOT), one_hot)
    for E in (BBVI, DoubleCV, RODEO):
        with pytest.raises(
            ValueError, match=r"`samples` must be at least 2, but 1 was given.*[Uu]se"
        ):
            E(1)
        with pytest.raises(
            ValueError, match=r"`x.shape\[0\]` must be at least 2, but 1 was given.*[Uu]se"
        ):
            E(2)(f, q, x=torch.zeros(1, 2, 3))
    for E in (REBAR, RELAX):
        with pytest.raises(ValueError, match=r"`temperature` must be positive, but 0.0 was given"):
            E(1, temperature=0.0)
        with pytest.raises(
            ValueError, match=r"noise must have shape \(1, 2, 3, 2\).*but \(1, 3\) was given"
        ):
            E(1)(f, q, noise=torch.zeros(1, 3))
    with pytest.raises(
        ValueError, match=r"f: its derivative in x is needed by this estimator.*RELAX"
    ):
        REBAR()(lambda x: (x.sum(-1) > 1).double(), q)
    with pytest.raises(
        ValueError,
        match=r"NVIL: `network` must return shape \(2,\) or \(2, 1\), but it returned shape \(2, 4\)",
    ):
        NVIL(1, nn.Linear(3, 4))(f, q)
    with pytest.raises(
        ValueError,
        match=r"RELAX: `network` must return shape \(1, 2\) or .*but it returned shape \(1, 2, 4\)",
    ):
        RELAX(1, nn.Linear(3, 4))(f, q)
    with pytest.raises(
        ValueError,
        match=r"RODEO: `network` must return shape \(2, 2, 2, 4, 2\) or .*but it returned shape",
    ):
        RODEO(2, network=nn.Linear(2, 1))(f, q)
