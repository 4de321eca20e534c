"""Estimators with coupled draws, judged without sampling error.

Their noise is continuous. But the draws are constant, and the estimates constant or linear, on
finitely many cells of it: the pieces of a segment (a uniform) or of a triangle (a Dirichlet vector
of three). So the integral over a cell is its size times the estimate at its centre, and the
expectation of the estimate is a finite sum.
"""

from collections.abc import Callable
from itertools import permutations, product
from math import prod

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical
from torch.testing import assert_close

import catlog
from catlog.estimators import ARM, ARMS, ARSM, CARMS, DisARMTree
from catlog import DisARM
from catlog.distributions.factors import factors
from catlog.estimators.coupled_draws.carms import _sticks, _summed_pairs, _weights
from catlog.estimators.coupled_draws.coupling import pair_probability
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expected
from catlog.testing.cases import seeded
from support.more_cases import MORE_CATEGORIES
from support.simplex import Cells, cells

BITS = ("bits", "bits by probs", "bits, two event dims")
SMALL = tuple(CASES)
LARGE = tuple(MORE_CATEGORIES)
ALL_CASES = CASES | MORE_CATEGORIES


def above(size: int, threshold: Tensor) -> list[Tensor]:
    """Return forms that are positive where one coordinate exceeds the threshold."""
    return list(torch.eye(size, dtype=torch.float64) - threshold)


def uniform(chance: Tensor) -> Cells:
    """Return cells of a uniform u on which u < chance and 1 - u < chance are constant."""
    middle, size = cells(2, above(2, chance))
    return middle[:, :1], size


def dirichlet(n: int, chance: Tensor) -> Cells:
    return cells(n, above(n, 1 - chance ** (1 / (n - 1))))


def sticks(p: Tensor, descending: bool = False) -> list[Tensor]:
    """Return the probability of every category but the last, given that no earlier one was."""
    p = p.sort(descending=descending).values
    return [p[j] / p[j:].sum() for j in range(len(p) - 1)]


def nodes(p: Tensor) -> list[Tensor]:
    """Return the probability of the right side of every node of a balanced tree, a heap."""
    k = len(p)
    mass = torch.cat([torch.zeros(k), p])
    for node in range(k - 1, 0, -1):
        mass[node] = mass[2 * node] + mass[2 * node + 1]
    return [
        mass[2 * node + 1] / mass[node] if mass[node] > 0 else mass[node] for node in range(1, k)
    ]


def races(p: Tensor) -> Cells:
    """Return cells of a Dirichlet vector on which the winner is constant, for all swaps."""
    unit, possible = torch.eye(len(p), dtype=torch.float64), [k for k in range(len(p)) if p[k] > 0]
    pairs = [(a, b) for a in possible for b in possible if a < b]
    return cells(
        len(p),
        [
            unit[c] / p[a] - unit[d] / p[b]
            for a, b in pairs
            for c, d in permutations(range(len(p)), 2)
        ],
    )


def noise_cells(
    E: catlog.Estimator, q: object, descending: bool = False
) -> tuple[list[Cells], tuple[int, ...], bool]:
    """Return the cells of every part of E's noise, its shape, and whether parts span its rows."""
    law = factors(q)
    p, n, d, k = law.probs.detach().double(), E.samples, law.d, law.k
    if isinstance(E, ARM | DisARM):
        return [uniform(probs[1]) for probs in p] * n, (n, d), False
    if isinstance(E, ARMS):
        return [dirichlet(n, probs.min()) for probs in p], (n, d), True
    if isinstance(E, CARMS):
        return (
            [dirichlet(n, stick) for probs in p for stick in sticks(probs, descending)],
            (n, d, k - 1),
            True,
        )
    if isinstance(E, DisARMTree):
        split = sticks if E.tree == "stick" else nodes
        chances = [chance for probs in p for chance in split(probs)]
        return [uniform(chance) for chance in chances] * n, (n, d, k - 1), False
    return [races(probs) for probs in p] * n, (n, d, k), False


def all_noise(E: catlog.Estimator, q: object, descending: bool = False) -> Cells:
    """Return a noise [n, outcomes, ...] for every combination of cells, and its probability."""
    parts, shape, first = noise_cells(E, q, descending)
    assert prod(len(size) for _, size in parts) <= 30_000
    choice = torch.cartesian_prod(*(torch.arange(len(size)) for _, size in parts)).view(
        -1, len(parts)
    )
    # [outcomes, parts, coordinates]
    noise = torch.stack([middle[choice[:, i]] for i, (middle, _) in enumerate(parts)], 1)
    weight = torch.stack([size[choice[:, i]] for i, (_, size) in enumerate(parts)]).prod(0)
    noise = noise.movedim(-1, 1) if first else noise
    return noise.reshape(len(weight), *shape).movedim(0, 1), weight


def expectation(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor, Tensor], Tensor], descending: bool = False
) -> list[Tensor]:
    """Return value and gradients, in theta and in f's parameter, integrated over the noise."""
    theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
    noise, weight = all_noise(E, case.distribution(theta), descending)
    assert_close(weight.sum(), torch.ones((), dtype=torch.float64), rtol=0, atol=1e-12)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    total = (weight * E(lambda x: f(case.features(x), c), q, noise=noise)).sum()
    return [total.detach(), *torch.autograd.grad(total, [theta, c])]


EXACT = [
    *((E, name) for E in (ARM(1), ARM(2), DisARM(1), DisARM(2), ARMS(2), ARMS(3)) for name in BITS),
    *(
        (E, name)
        for E in (ARSM(1), CARMS(2), CARMS(3), DisARMTree(1), DisARMTree(1, tree="stick"))
        for name in SMALL
    ),
    *((E, name) for E in (CARMS(2), DisARMTree(1), DisARMTree(1, tree="stick")) for name in LARGE),
    *((E, "one integer") for E in (DisARMTree(2), ARSM(2))),
    (CARMS(3), "one integer of five"),
]


@pytest.mark.parametrize(("E", "name"), EXACT, ids=str)
def test_unbiased(E: catlog.Estimator, name: str) -> None:
    """Value and gradient, in the parameters of q and f, integrated exactly over the noise."""
    case = ALL_CASES[name]
    for f in FUNCTIONS.values():
        got, exact = expectation(E, case, f), list(expected(case, f, PARAMETER))
        assert_close(got, exact, rtol=0, atol=1e-12)


def _descending(probs: Tensor) -> tuple[Tensor, Tensor]:
    ordered, order = probs.sort(dim=-1, descending=True)
    return order, (ordered / ordered.flip(-1).cumsum(-1).flip(-1))[..., :-1]


BUGS = {
    "ARM with its pair swapped": (
        ARM(1),
        "bits",
        "arm.categories",
        lambda law, u: (u < law.probs[..., 1]).long(),
    ),
    "DisARM given unequal pairs": (
        DisARM(1),
        "bits",
        "disarm.categories",
        lambda law, u: (u > law.probs[..., 1]).long(),
    ),
    "ARMS without its weight": (
        ARMS(3),
        "bits",
        "arms.pair_correction",
        lambda n, chance: torch.ones_like(chance),
    ),
    "CARMS as if independent": (
        CARMS(3),
        "one integer",
        "carms.pair_probability",
        lambda n, chance: chance.square(),
    ),
    "CARMS, commonest first": (CARMS(2), "one integer", "carms._sticks", _descending),
    "tree without its masses": (
        DisARMTree(1),
        "integers",
        "disarm_tree.inverse_cdf",
        lambda p, u: (u < p[..., 0]).long(),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_judge_catches_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One breaks the sticks in the wrong order, in which some pairs of categories cannot occur."""
    E, name, place, planted = BUGS[bug]
    monkeypatch.setattr(f"catlog.estimators.coupled_draws.{place}", planted)
    exact = expected(CASES[name], FUNCTIONS["sine"], PARAMETER)[1]
    got = expectation(E, CASES[name], FUNCTIONS["sine"], descending="commonest" in bug)[1]
    assert (got - exact).norm() > 1e-5  # test_unbiased allows 1e-12


def f_of_bits(x: Tensor) -> Tensor:
    return (x.double() * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).sum(-1).sin()


def estimate(
    E: catlog.Estimator, logits: Tensor, noise: Tensor, categorical: bool = False
) -> list[Tensor]:
    logits = logits.detach().requires_grad_()
    law = (
        Categorical(logits=torch.stack([0 * logits, logits], -1))
        if categorical
        else Bernoulli(logits=logits)
    )
    value = E(f_of_bits, Independent(law, 1), noise=noise)
    return [value.detach(), torch.autograd.grad(value.sum(), logits)[0]]


LOGITS = torch.randn(50, 3, dtype=torch.float64, generator=seeded(5))
U = torch.rand(2, 50, 3, dtype=torch.float64, generator=seeded(6))


def test_disarm_is_the_conditional_expectation_of_arm() -> None:
    """ARM is linear in the noise that gives a pair, so that its mean is ARM at the middle."""
    rare = torch.minimum(LOGITS.sigmoid(), (-LOGITS).sigmoid())
    middle = torch.where(rare > U, rare / 2, torch.where(1 - rare < U, 1 - rare / 2, 0.5))
    arm, middle_arm, disarm = (
        estimate(ARM(2), LOGITS, U),
        estimate(ARM(2), LOGITS, middle),
        estimate(DisARM(2), LOGITS, U),
    )
    assert_close(disarm, middle_arm, rtol=1e-12, atol=1e-14)
    assert (arm[1] - disarm[1]).norm() > 0.1 * disarm[1].norm()


@pytest.mark.parametrize("categorical", [False, True])
def test_arsm_of_two_categories_is_arm(categorical: bool) -> None:
    pi = torch.stack([U, 1 - U], -1)
    assert_close(
        estimate(ARSM(2), LOGITS, pi, categorical),
        estimate(ARM(2), LOGITS, U),
        rtol=1e-12,
        atol=1e-14,
    )


def test_tree_of_two_categories_is_disarm() -> None:
    noise = U.unsqueeze(-1)
    for categorical in (False, True):
        got = estimate(DisARMTree(2), LOGITS, noise, categorical)
        assert_close(got, estimate(DisARM(2), LOGITS, U), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("categorical", [False, True])
def test_carms_of_two_categories_is_arms(n: int, categorical: bool) -> None:
    noise = ARMS(n)._noise(factors(Independent(Bernoulli(logits=LOGITS), 1)), None, seeded(1))
    got = estimate(CARMS(n), LOGITS, noise.unsqueeze(-1), categorical)
    assert_close(got, estimate(ARMS(n), LOGITS, noise), rtol=1e-12, atol=1e-14)


def test_arms_of_two_draws_is_disarm() -> None:
    first = torch.where(LOGITS < 0, U[0], 1 - U[0])
    got = estimate(ARMS(2), LOGITS, torch.stack([first, 1 - first]))
    assert_close(got, estimate(DisARM(1), LOGITS, U[:1]), rtol=1e-12, atol=1e-14)


def test_two_events_happen_together_as_often_as_computed() -> None:
    """The closed form is the area where two coordinates exceed their threshold."""
    for chance in torch.tensor([0.02, 0.2, 0.26, 0.45, 0.5], dtype=torch.float64):
        middle, size = dirichlet(3, chance)
        happens = (1 - middle).square() < chance
        assert_close(size @ happens.double(), chance.expand(3), rtol=0, atol=1e-14)
        together = (size * happens[:, 0] * happens[:, 1]).sum()
        assert_close(pair_probability(3, chance), together, rtol=0, atol=1e-14)


def test_two_draws_of_a_uniform_distribution_never_agree() -> None:
    """All pairs of different categories are equally likely, as if drawn without replacement."""
    q = Categorical(logits=torch.zeros(5, dtype=torch.float64))
    noise, weight = all_noise(CARMS(2), q)
    frequency = torch.zeros(5, 5, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        frequency.index_put_((x[0], x[1]), weight, accumulate=True)
        return x.double()

    CARMS(2)(f, q.expand((len(weight),)), noise=noise)
    assert_close(frequency, (1 - torch.eye(5, dtype=torch.float64)) / 20, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_weights_of_carms_stay_below_two(n: int) -> None:
    for scale in (0.0, 0.1, 1.0, 10.0):
        for k in (2, 3, 40):
            logits = scale * torch.randn(200, k, dtype=torch.float64, generator=seeded(k))
            weights = _weights(n, _sticks(logits.softmax(-1))[1])
            assert bool(((weights > 0) & (weights < 2)).all())


ALL = [ARM(2), DisARM(2), ARMS(3), ARSM(2), CARMS(3), DisARMTree(2), DisARMTree(2, tree="stick")]


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("E", ALL, ids=str)
def test_batch_equals_loop_and_types_agree(E: catlog.Estimator, kind: str) -> None:
    """With the same noise, a batch equals its elements, and float32 agrees with float64."""
    if kind not in E.supports:
        pytest.skip("not for this distribution")
    case = CASES[kind]
    theta = case.theta + torch.linspace(-1, 1, 6, dtype=torch.float64).view(
        2, 3, *[1] * case.theta.dim()
    )
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
    noise = E._noise(factors(case.distribution(theta)), None, seeded(1)).float().double()

    def run(theta: Tensor, scale: Tensor, noise: Tensor) -> list[Tensor]:
        theta = theta.detach().requires_grad_()
        f = FUNCTIONS["sine"]
        value = E(
            lambda x: f(case.features(x.double()), PARAMETER) * scale,
            case.distribution(theta),
            noise=noise,
        )
        return [value.detach().double(), torch.autograd.grad(value.sum(), theta)[0].double()]

    whole = run(theta, scale, noise)
    for i, j in product(range(2), range(3)):
        alone = run(theta[i, j], scale[i, j], noise[:, i, j])
        assert_close([part[i, j] for part in whole], alone, rtol=1e-12, atol=1e-13)
    assert_close(run(theta.float(), scale, noise.float()), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("E", ALL, ids=str)
def test_probabilities_of_zero_and_one(E: catlog.Estimator) -> None:
    """Impossible categories are never shown to f, and a certain variable gets no gradient."""
    p = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64).expand(200, 3).clone().requires_grad_()

    def f(x: Tensor) -> Tensor:
        assert bool((x[..., 0] == 0).all())
        assert bool((x[..., 1] == 1).all())
        return f_of_bits(x)

    value = E(f, Independent(Bernoulli(probs=p), 1))
    (gradient,) = torch.autograd.grad(value.sum(), p)
    assert bool((gradient[:, :2] == 0).all())
    assert bool((gradient[:, 2] != 0).any())
    assert bool(gradient.isfinite().all())


ONE_HOT = Independent(OneHotCategorical(logits=torch.zeros(2, 3)), 1)


@pytest.mark.parametrize(
    ("E", "remedy"), [(ARM(), "ARSM"), (DisARM(), "DisARMTree"), (ARMS(), "CARMS")], ids=str
)
def test_categories_are_refused_with_a_remedy(E: catlog.Estimator, remedy: str) -> None:
    name = type(E).__name__
    match = (
        rf"{name} is for binary variables.*Independent\(OneHotCategorical, 1\) was "
        rf"given\. Use {remedy}\."
    )
    with pytest.raises(TypeError, match=match):
        E(lambda x: x.sum((-1, -2)), ONE_HOT)
    assert "one-hot" in catlog.estimators.ESTIMATORS[remedy].supports


@pytest.mark.parametrize("E", ALL, ids=str)
def test_wrong_noise_is_named(E: catlog.Estimator) -> None:
    q = Independent(Bernoulli(logits=torch.zeros(4, 3)), 1)
    with pytest.raises(
        ValueError, match=rf"x: {type(E).__name__} cannot use it; give `noise` or a `generator`"
    ):
        E(f_of_bits, q, x=torch.zeros(E.samples, 4, 3))
    match = (
        rf"noise must have shape \({E.samples}, 4, 3.*\) \(for {type(E).__name__} with "
        rf"this q\), but \(1, 3\) was given"
    )
    with pytest.raises(ValueError, match=match):
        E(f_of_bits, q, noise=torch.rand(1, 3))


@pytest.mark.parametrize("n", [2, 5])
def test_sum_over_pairs_of_carms(n: int) -> None:
    """It is the double sum, with the weight of the pair's lower rank; f may be far from zero."""
    generator = seeded(n)
    batch, d, k = 3, 4, 3
    fx = 1e3 + torch.randn(n, batch, dtype=torch.float64, generator=generator)
    rank = torch.randint(k, (n, batch, d), generator=generator)
    weight = torch.rand(batch, d, k, dtype=torch.float64, generator=generator)
    expected = torch.zeros_like(weight)
    for b, i, first, second in product(range(batch), range(d), range(n), range(n)):
        r, other = int(rank[first, b, i]), int(rank[second, b, i])
        if r != other:
            change = fx[first, b] - fx[second, b]
            expected[b, i, r] += change * weight[b, i, min(r, other)]
    assert_close(_summed_pairs(fx, rank, weight), expected, rtol=0, atol=1e-11)
