"""What several tests share: a key, and two judges."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(3)
LARGEST_Z = 4.5  # of one number; by chance in one of 150,000


def close(computed: Any, right: Any, tolerance: float = 1e-10) -> None:
    """Raise unless two trees of numbers are finite and equal."""
    pairs = zip(jax.tree.leaves(computed), jax.tree.leaves(right), strict=True)
    for x, y in pairs:
        assert jnp.isfinite(x).all()
        np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance)


def largest_z(runs: Any, right: Any, error: Any = None) -> float:
    """Return the largest distance of the means over runs from the right numbers, in standard
    errors; ``error`` is that of ``right``, where it is a mean, too."""
    worst = 0.0
    errors = jax.tree.leaves(jax.tree.map(jnp.zeros_like, right) if error is None else error)
    for run, y, e in zip(jax.tree.leaves(runs), jax.tree.leaves(right), errors, strict=True):
        assert jnp.isfinite(run).all()
        spread = jnp.sqrt(run.var(0) / len(run) + e**2)
        rounding = 1e-9 * (1 + jnp.abs(y))
        worst = max(worst, float((jnp.abs(run.mean(0) - y) / (spread + rounding)).max()))
    return worst
