"""Every estimator computes what it computed in the first edition, from the same random numbers."""

import numpy as np
import pytest

from .judge import SETTINGS, numbers, read, setups

FROZEN = read()


@pytest.mark.parametrize("name", SETTINGS)
def test_same_numbers(name: str) -> None:
    judged = 0
    for setup in setups(name):
        judged += 1
        np.testing.assert_allclose(
            numbers(setup), FROZEN[setup.name], rtol=1e-10, atol=1e-10, err_msg=setup.name
        )
    assert judged == sum(key.startswith(f"{name}(") for key in FROZEN)
