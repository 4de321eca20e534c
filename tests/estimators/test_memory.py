"""Estimators make no tensor that is much larger than the points that f gets."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import catlog


class Largest(TorchDispatchMode):
    """The number of bytes of the largest tensor that an operation allocates."""

    bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):  # a view of a small tensor may look large
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(
    ("E", "d", "k", "numbers"),
    [
        (catlog.SCateR(chunk_size=10), 300, 2, 10 * 300),
        (catlog.SCateR(variables=200, chunk_size=10), 300, 2, 10 * 300),
        (catlog.RAM(chunk_size=10), 300, 2, 10 * 300),
        (catlog.DisARMTree(), 2, 300, 4 * 2 * 300),
        (catlog.DisARMTree(tree="stick"), 2, 300, 4 * 2 * 300),
        (catlog.ARSM(), 20, 150, 20 * 4096),  # not d k^2: swaps are evaluated in chunks
    ],
    ids=repr,
)
def test_no_tensor_is_larger_than_stated(E: catlog.Estimator, d: int, k: int, numbers: int) -> None:
    logits = torch.zeros(d, k, requires_grad=True)
    q = Independent(Categorical(logits=logits, validate_args=False), 1)
    with Largest() as largest:
        E(lambda x: x.float().mean(-1), q).backward()
    assert largest.bytes <= 8 * numbers
