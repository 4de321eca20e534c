"""Gradients at every outcome of a sampler, their variance, a masked case, and small networks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import catlog
from catlog.testing import CASES, Case, outcomes
from catlog.testing.cases import POSSIBLE
from catlog.testing.settings import tape

MASKED_ONE_HOT = Case(
    "one-hot, masked",
    torch.tensor([[0.3, -0.8, -torch.inf], [-torch.inf, 0.5, 0.1]], dtype=torch.float64),
    CASES["one-hot"].distribution,
    torch.eye(3).double()[POSSIBLE],
    CASES["one-hot"].features,
)


def gradients_at(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor], Tensor], x: Tensor, **injected: Tensor
) -> Tensor:
    """Return the gradient in theta for every outcome x [rows, outcomes, *event]."""
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    return torch.autograd.grad(E(f, case.distribution(theta), x=x, **injected).sum(), theta)[0]


def gradients(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gradient in theta for every outcome of the sampler, and its probability."""
    (_, shape), *_ = tape(E, case.distribution(case.theta))  # independent draws
    x, weight = outcomes(case, shape[0])
    return gradients_at(E, case, f, x), weight


def variances(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the variance of every derivative over the outcomes."""
    weight = weight.view(-1, *[1] * (gradient.dim() - 1))
    return (weight * (gradient - (weight * gradient).sum(0)).square()).sum(0)


def network(inputs: int, outputs: int = 1, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


class EventNetwork(nn.Module):
    """A network on points with any event shape, for RELAX."""

    def __init__(self, size: int, event_dims: int, seed: int = 0) -> None:
        super().__init__()
        self.event_dims = event_dims
        self.network = network(size, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flatten(-self.event_dims)).squeeze(-1)
