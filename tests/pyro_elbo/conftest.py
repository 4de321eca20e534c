"""Settings of the tests with Pyro, which ``make test-pyro`` installs."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [] if find_spec("pyro") else ["*.py"]
collect_ignore = ["swapped/swap_loss.py"]  # a plugin for Pyro's own tests


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Compute in float64, from a fixed seed and without parameters of other tests."""
    import pyro

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    yield
    torch.set_default_dtype(before)
