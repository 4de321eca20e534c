"""REBAR and RELAX: the textbook form, unbiased by quadrature while they learn."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor, nn

from catlog import REBAR, Reinforce
from catlog.estimators import RELAX
from catlog.estimators.control_variates import RelaxedDraws
from catlog.testing import CASES, PARAMETER, Case
from catlog.testing.cases import seeded
from support.enumerated import EventNetwork, function_of, train
from support.gradients import assert_same

BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]


def quadrature(case: Case, nodes: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    """Return points x [1, outcomes, *event], noise of z given x, and weights of an integral.

    The estimate depends only on the ratios of a variable's exponentials. So they may be taken from
    a simplex, where they are uniform: an interval for two categories, a triangle for three.
    """
    t, weight = map(torch.from_numpy, leggauss(nodes))
    t, weight = (t + 1) / 2, weight / 2
    # Denser at the ends, where there are powers like t**1.3.
    t, weight = t**2 * (3 - 2 * t), weight * 6 * t * (1 - t)
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
        BITS.distribution,
        torch.cartesian_prod(*[torch.arange(2.0).double()] * 2),
        lambda x: x,
    ),
    "one-hot": Case(
        "one-hot",
        ONE_HOT.theta[:1],
        ONE_HOT.distribution,
        torch.eye(3).double().unsqueeze(1),
        lambda x: x.squeeze(-2),
    ),
    "masked": Case(
        "one-hot, masked",
        torch.tensor([[0.3, -torch.inf, -0.8]], dtype=torch.float64),
        ONE_HOT.distribution,
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
    """Return value and gradients integrated over all draws, then the exact ones."""
    x, noise, weight = quadrature(case)
    results: list[Tensor] = []
    for integrated in (True, False):
        theta, c = case.theta.clone().requires_grad_(), PARAMETER[:3].clone().requires_grad_()
        if integrated:
            q = case.distribution(theta.expand(x.shape[1], *theta.shape))
            total = (weight * E(small_f(case, c), q, x=x, noise=noise)).sum()
        else:
            total = (case.probabilities(theta) * small_f(case, c)(case.points)).sum()
        results += [total.detach(), *torch.autograd.grad(total, [theta, c])]
    return tuple(results)


def examples(kind: str) -> Iterator[nn.Module]:
    size, dims = (2, 1) if kind == "bits" else (3, 2)
    yield REBAR(1)
    yield REBAR(1, eta=0.3, temperature=0.8)
    yield RELAX(1, network=EventNetwork(size, dims), temperature=0.7)


@pytest.mark.parametrize("kind", SMALL)
def test_rebar_and_relax_are_unbiased_while_learning(kind: str) -> None:
    """By quadrature over the noise, before and after some training steps."""
    case = SMALL[kind]
    for E in examples(kind):
        E.double()
        before = deepcopy(E.state_dict())
        for _ in range(2):
            got = integral(E, case)
            torch.testing.assert_close(got[:3], got[3:], rtol=0, atol=1e-8)
            train(
                E,
                case.distribution(case.theta.expand(8, *case.theta.shape)),
                small_f(case, PARAMETER),
                5,
                0.05,
            )
        assert all(not torch.equal(value, before[key]) for key, value in E.state_dict().items())


def test_a_forgotten_conditional_derivative_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the derivative of z given x, all of the derivative of z remains."""
    whole = property(lambda draws: torch.ones_like(draws.z))
    monkeypatch.setattr(RelaxedDraws, "weight", whole)
    got = integral(REBAR(1).double(), SMALL["bits"])
    assert (got[1] - got[4]).norm() > 0.05 * got[4].norm()


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
def test_rebar_and_relax_are_the_textbook_s(kind: str) -> None:
    """z and z~ are differentiated by autograd, each with its noise held fixed."""
    case = SMALL[kind]
    f = small_f(case, PARAMETER)
    x, noise, _ = quadrature(case, 5)
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    drawn = torch.stack([1 - x[0], x[0]], -1) if kind == "bits" else x[0]
    for E in examples(kind):
        E.double()
        log_p = (
            nn.functional.logsigmoid(torch.stack([-theta, theta], -1))
            if kind == "bits"
            else theta.log_softmax(-1)
        )
        e = -noise[0].log()
        first = (e * drawn).sum(-1, keepdim=True)
        # z~: a function of the noise e
        conditional = torch.where(drawn.bool(), -first.log(), -(e / log_p.exp() + first).log())
        free = log_p + (conditional - log_p).detach()  # z: a function of Gumbel noise

        def c(z: Tensor, E: nn.Module = E) -> Tensor:
            tau = E.log_temperature.exp() if isinstance(E, REBAR) else E.temperature
            soft = (z / tau).softmax(-1)
            soft = soft[..., 1] if kind == "bits" else soft
            return E.eta * f(soft) if isinstance(E, REBAR) else E.network(soft)

        (score,) = torch.autograd.grad((drawn * log_p).sum(), theta, retain_graph=True)
        (path,) = torch.autograd.grad((c(free) - c(conditional)).sum(), theta, create_graph=True)
        wanted = (f(x)[0] - c(conditional.detach())).view(
            -1, *[1] * (theta.dim() - 1)
        ) * score + path
        wanted_learned = torch.autograd.grad(
            wanted.square().sum(), list(E.parameters()), allow_unused=True
        )

        leaf = theta.detach().clone().requires_grad_()
        value = E(f, case.distribution(leaf), x=x, noise=noise)
        got, *learned = torch.autograd.grad(value.sum(), [leaf, *E.parameters()])
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-10, atol=1e-10)
        for a, b in zip(learned, wanted_learned, strict=True):
            wanted_slope = torch.zeros_like(a) if b is None else b
            torch.testing.assert_close(a, wanted_slope, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: REBAR(1, eta=0.1, temperature=3.0),
        lambda: RELAX(1, network=EventNetwork(3, 1), temperature=0.5),
    ],
    ids=["REBAR", "RELAX"],
)
def test_training_lowers_the_variance_of_rebar_and_relax(make: Callable[[], nn.Module]) -> None:
    """The variance of 20,000 estimates has a standard error of about 1 %."""
    E = make().double()

    def f(x: Tensor) -> Tensor:
        return (
            (x - torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)).square().sum(-1) * 2
            + x.prod(-1)
            + 1
        )

    def spread() -> Tensor:
        theta = BITS.theta.expand(20_000, 3).clone().requires_grad_()
        value = E(f, BITS.distribution(theta), generator=seeded(1))
        return torch.autograd.grad(value.sum(), theta)[0].var(0).sum()

    before = spread()
    train(E, BITS.distribution(BITS.theta.expand(64, 3)), f, 300, 0.03)
    assert spread() < before / 2


@pytest.mark.parametrize("case", [BITS, ONE_HOT], ids=["bits", "one-hot"])
def test_relax_without_a_network_is_reinforce(case: Case) -> None:
    """The same draws give the same gradient."""
    x = case.distribution(case.theta.expand(10, *case.theta.shape)).sample((3,))
    theta = case.theta.expand(10, *case.theta.shape).clone().requires_grad_()
    relax, reinforce = (
        E(function_of(case), case.distribution(theta), x=x) for E in (RELAX(3), Reinforce(3))
    )
    assert_same(relax, reinforce, theta, rtol=0, atol=1e-13)


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

    frozen, learning = REBAR(2, eta=0.3).double(), REBAR(2, eta=0.3).double()
    frozen.log_temperature.requires_grad_(False)
    for E, f in ((frozen, Once.apply), (learning, lambda x: x.square().sum(-1))):
        E(f, BITS.distribution(BITS.theta), generator=seeded()).backward()
    torch.testing.assert_close(frozen.eta.grad, learning.eta.grad)
    assert frozen.log_temperature.grad is None
