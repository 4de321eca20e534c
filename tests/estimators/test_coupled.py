"""Estimators with coupled draws, judged without sampling error.

Their noise is continuous. But the draws are constant, and the estimates constant or linear, on
finitely many cells of it: the pieces of a segment (a uniform) or of a triangle (a Dirichlet vector
of three). So the integral over a cell is its size times the estimate at its centre, and the
expectation of the estimate is a finite sum.
"""

from itertools import permutations
from math import prod

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.testing import assert_close

import catlog
from catlog import DisARM
from catlog.core.view import view
from catlog.estimators import ARM, ARMS, ARSM, CARMS, DisARMTree
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expected
from catlog.testing.cases import seeded
from support.laws import bits, integers
from support.more_cases import MORE_CATEGORIES
from support.simplex import Cells, cells

TREES = (DisARMTree(1), DisARMTree(1, tree="stick"))


def above(size: int, threshold: Tensor) -> list[Tensor]:
    """Return forms that are positive where one coordinate exceeds the threshold."""
    return list(torch.eye(size, dtype=torch.float64) - threshold)


def uniform(chance: Tensor) -> Cells:
    """Return cells of a uniform u on which u < chance and 1 - u < chance are constant."""
    middle, size = cells(2, above(2, chance))
    return middle[:, :1], size


def dirichlet(n: int, chance: Tensor) -> Cells:
    return cells(n, above(n, 1 - chance ** (1 / (n - 1))))


def sticks(p: Tensor) -> list[Tensor]:
    """Return the probability of every category but the last, given that no earlier one was."""
    p = p.sort().values
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


def noise_cells(E: catlog.Estimator, q: object) -> tuple[list[Cells], tuple[int, ...], bool]:
    """Return the cells of every part of E's noise, its shape, and whether parts span its rows."""
    factors = view(q)
    p, n, d, k = factors.p.double(), E.samples, factors.d, factors.k
    if isinstance(E, ARM | DisARM):
        return [uniform(probs[1]) for probs in p] * n, (n, d), False
    if isinstance(E, ARMS):
        return [dirichlet(n, probs.min()) for probs in p], (n, d), True
    if isinstance(E, CARMS):
        return [dirichlet(n, stick) for probs in p for stick in sticks(probs)], (n, d, k - 1), True
    if isinstance(E, DisARMTree):
        split = sticks if E.tree == "stick" else nodes
        chances = [chance for probs in p for chance in split(probs)]
        return [uniform(chance) for chance in chances] * n, (n, d, k - 1), False
    return [races(probs) for probs in p] * n, (n, d, k), False


def uniforms_of(dirichlet: Tensor) -> Tensor:
    """Return uniforms from which an estimator makes these Dirichlet vectors."""
    return (-dirichlet).exp()


def all_noise(E: catlog.Estimator, q: object) -> Cells:
    """Return a noise [n, outcomes, ...] for every combination of cells, and its probability."""
    parts, shape, first = noise_cells(E, q)
    assert prod(len(size) for _, size in parts) <= 30_000
    choice = torch.cartesian_prod(*(torch.arange(len(size)) for _, size in parts)).view(
        -1, len(parts)
    )
    # [outcomes, parts, coordinates]
    noise = torch.stack([middle[choice[:, i]] for i, (middle, _) in enumerate(parts)], 1)
    weight = torch.stack([size[choice[:, i]] for i, (_, size) in enumerate(parts)]).prod(0)
    noise = noise.movedim(-1, 1) if first else noise
    noise = noise.reshape(len(weight), *shape).movedim(0, 1)
    return uniforms_of(noise) if isinstance(E, ARMS | CARMS | ARSM) else noise, weight


EXACT = [
    *((E, "bits") for E in (ARM(1), ARM(2), DisARM(1), DisARM(2), ARMS(2), ARMS(3))),
    *(
        (E, name)
        for E in (ARSM(1), CARMS(2), CARMS(3), *TREES)
        for name in ("bits", "one-hot", "masked", "mixed cardinalities")
    ),
    *((E, name) for E in (CARMS(2), *TREES) for name in MORE_CATEGORIES),
    *((E, "one integer") for E in (DisARMTree(2), ARSM(2))),
    (CARMS(3), "one integer of five"),
]


@pytest.mark.parametrize(("E", "name"), EXACT, ids=str)
def test_unbiased(E: catlog.Estimator, name: str) -> None:
    """Value and gradient, in the parameters of q and f, integrated exactly over the noise."""
    case = (CASES | MORE_CATEGORIES)[name]
    theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
    noise, weight = all_noise(E, case.distribution(theta))
    assert_close(weight.sum(), torch.ones((), dtype=torch.float64), rtol=0, atol=1e-12)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    f = FUNCTIONS["sine"]
    total = (weight * E(lambda x: f(case.features(x), c), q, noise=noise)).sum()
    got = (total.detach(), *torch.autograd.grad(total, [theta, c]))
    assert_close(got, expected(case, f, PARAMETER), rtol=0, atol=1e-12)


LOGITS = torch.randn(50, 3, dtype=torch.float64, generator=seeded(5))
U = torch.rand(2, 50, 3, dtype=torch.float64, generator=seeded(6))
FIRST = torch.where(LOGITS < 0, U[0], 1 - U[0])


def estimate(E: catlog.Estimator, noise: Tensor) -> list[Tensor]:
    """Return value and gradient; of categories, where E takes them."""
    logits = LOGITS.clone().requires_grad_()
    pairs = torch.stack([0 * logits, logits], -1)
    q = integers(pairs) if "index" in E.supports else bits(logits)
    value = E(lambda x: (x.double() @ torch.tensor([1.0, 2.0, 4.0]).double()).sin(), q, noise=noise)
    return [value.detach(), torch.autograd.grad(value.sum(), logits)[0]]


def test_disarm_is_the_conditional_expectation_of_arm() -> None:
    """ARM is linear in the noise that gives a pair, so that its mean is ARM at the middle."""
    rare = torch.minimum(LOGITS.sigmoid(), (-LOGITS).sigmoid())
    middle = torch.where(rare > U, rare / 2, torch.where(1 - rare < U, 1 - rare / 2, 0.5))
    arm, disarm = estimate(ARM(2), U), estimate(DisARM(2), U)
    assert_close(disarm, estimate(ARM(2), middle), rtol=1e-12, atol=1e-14)
    assert (arm[1] - disarm[1]).norm() > 0.1 * disarm[1].norm()


OF_TWO_CATEGORIES = {
    "ARSM is ARM": (ARSM(2), uniforms_of(torch.stack([U, 1 - U], -1)), ARM(2), U),
    "a tree is DisARM": (DisARMTree(2), U.unsqueeze(-1), DisARM(2), U),
    "CARMS is ARMS": (CARMS(4), U.repeat(2, 1, 1).unsqueeze(-1), ARMS(4), U.repeat(2, 1, 1)),
    "ARMS is DisARM": (ARMS(2), uniforms_of(torch.stack([FIRST, 1 - FIRST])), DisARM(1), U[:1]),
}


@pytest.mark.parametrize("name", OF_TWO_CATEGORIES)
def test_special_cases(name: str) -> None:
    E, noise, other, other_noise = OF_TWO_CATEGORIES[name]
    assert_close(estimate(E, noise), estimate(other, other_noise), rtol=1e-12, atol=1e-14)


def test_a_node_on_neither_path_has_no_weight() -> None:
    """Both draws go left at the root, so that the bit of the right node does not matter."""
    gradients = []
    for last in (0.1, 0.5):
        logits = torch.tensor([[0.4, 0.5, 0.04, 0.06]], dtype=torch.float64).log().requires_grad_()
        noise = torch.tensor([[[0.5, 0.2, last]]], dtype=torch.float64)
        value = DisARMTree()(lambda x: x[..., 0].double(), integers(logits), noise=noise)
        gradients.append(torch.autograd.grad(value, logits)[0])
    assert gradients[0].abs().max() > 1e-3
    assert_close(gradients[0], gradients[1], rtol=0, atol=0)


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
