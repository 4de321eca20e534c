"""Values together with their gradients, and comparisons of both."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close


def with_gradients(value: Tensor, leaves: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the value, and the gradients of its sum in the leaves."""
    return [value.detach(), *torch.autograd.grad(value.sum(), leaves, retain_graph=True)]


def assert_same(
    got: Tensor, wanted: Tensor, leaves: Tensor | Sequence[Tensor], **tolerance: Any
) -> None:
    """Check that two values, and the gradients of their sums in the leaves, are close."""
    assert_close(with_gradients(got, leaves), with_gradients(wanted, leaves), **tolerance)
