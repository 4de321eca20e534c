"""Estimators with coupled draws: identities, and what must not matter.

Their means are judged by the battery, and their numbers by tests/frozen.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import catlog
from catlog import DisARM
from catlog.estimators import ARM, ARMS, ARSM, CARMS, DisARMTree
from catlog.testing.cases import seeded
from support.laws import bits, integers


def uniforms_of(dirichlet: Tensor) -> Tensor:
    """Return uniforms from which an estimator makes these Dirichlet vectors."""
    return (-dirichlet).exp()


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
    pairs = torch.zeros(5, 5)

    def f(x: Tensor) -> Tensor:
        pairs.index_put_((x[0, :, 0], x[1, :, 0]), torch.ones(x.shape[1]), accumulate=True)
        return x[..., 0].double()

    CARMS(2)(f, integers(torch.zeros(100_000, 1, 5)), generator=seeded())
    assert not pairs.diag().any()
    others = pairs[~torch.eye(5, dtype=torch.bool)] / 100_000
    assert (others - 1 / 20).abs().max() < 5 * (0.05 * 0.95 / 100_000) ** 0.5
