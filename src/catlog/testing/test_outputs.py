"""Functions with many outputs: one set of draws, one expectation per output.

Each output has the value and gradient of a call of its own, and these are unbiased.
"""

from copy import deepcopy
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from catlog.core.estimator import Estimator

from .battery import pairs
from .cases import FUNCTIONS, PARAMETER, Case, FeatureFunction, seeded
from .settings import select

each_shape = pytest.mark.parametrize("shape", [(3,), (2, 2)], ids=str)


def with_outputs(shape: tuple[int, ...]) -> FeatureFunction:
    """Return a function whose outputs have this shape; no two outputs are alike."""

    def f(z: Tensor, c: Tensor) -> Tensor:
        parts = list(FUNCTIONS.values())
        values = [parts[i % 3](z, c * (1 + i // 3)) + i for i in range(prod(shape))]
        return torch.stack(values, -1).unflatten(-1, shape)

    return f


def weights(shape: tuple[int, ...]) -> Tensor:
    """Return weights of both signs."""
    return torch.linspace(-1.0, 1.4, prod(shape), dtype=torch.float64).view(shape)


@each_shape
@pytest.mark.parametrize(("E", "case"), pairs(select(many_outputs=True)))
def test_every_output_equals_a_call_of_its_own(
    E: Estimator[Any], case: Case, shape: tuple[int, ...]
) -> None:
    """With the same draws: the value, and the gradient of any combination of outputs."""
    f, dims = with_outputs(shape), len(shape)
    theta = torch.stack([case.theta, case.theta / 2]).requires_grad_()
    c = PARAMETER.clone().requires_grad_()

    def call(output: int | None) -> Tensor:
        def g(x: Tensor) -> Tensor:
            values = f(case.features(x), c)
            return values if output is None else values.flatten(-dims)[..., output]

        options: dict[str, Any] = {} if output is not None else {"outputs": dims}
        return deepcopy(E)(g, case.distribution(theta), generator=seeded(5), **options)

    together = call(None)
    separate = torch.stack([call(i) for i in range(prod(shape))], -1).unflatten(-1, shape)
    torch.testing.assert_close(together, separate, rtol=0, atol=1e-12)
    totals = [(weights(shape) * values).sum() for values in (together, separate)]
    gradients = [torch.autograd.grad(total, [theta, c]) for total in totals]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
