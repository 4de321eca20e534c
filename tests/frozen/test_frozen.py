"""Every estimator computes what it computed in the first edition, from the same random numbers."""

import numpy as np
import pytest

from .judge import Setup, numbers, read, setups

FROZEN = read()


@pytest.mark.parametrize("setup", setups(), ids=lambda setup: setup.name)
def test_same_numbers(setup: Setup) -> None:
    np.testing.assert_allclose(numbers(setup), FROZEN[setup.name], rtol=1e-10, atol=1e-10)
