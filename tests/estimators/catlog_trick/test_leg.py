"""LEG holds the points of one chunk at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent
from torch.utils._python_dispatch import TorchDispatchMode

from catlog import LEG, MarkovChain


class Sizes(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: Any = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        result = function(*arguments, **(options or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("law", ["bits", "chain"])
def test_memory_is_that_of_a_chunk(law: str) -> None:
    """All d moves of a draw are d^2 numbers."""
    d, chunk = 64, 8
    if law == "bits":
        q = Independent(Bernoulli(logits=torch.linspace(-1, 1, d).requires_grad_()), 1)
    else:
        q = MarkovChain(torch.zeros(2), torch.zeros(2, 2, requires_grad=True), length=d)
    with Sizes() as sizes:
        LEG(1, chunk_size=chunk)(lambda x: x.float().sum(-1).sin(), q).backward()
    assert sizes.largest <= 2 * chunk * d  # log-probabilities of two categories
