"""What several tests share: a key, two judges, and the random numbers of torch on a CPU."""

from math import prod
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


# The generator of torch is NumPy's Mersenne Twister with the same seed, read 32 bits at a time.


def uniforms(twister: np.random.RandomState, *shape: int) -> np.ndarray:
    """Return ``torch.rand(shape, dtype=torch.float64)``."""
    high, low = twister.randint(0, 2**32, (prod(shape), 2), dtype=np.uint64).T
    return ((((high << 32) | low) & (2**53 - 1)) * 2.0**-53).reshape(shape)


def narrow_uniforms(twister: np.random.RandomState, *shape: int) -> np.ndarray:
    """Return ``torch.rand(shape)``, in float32."""
    bits = twister.randint(0, 2**32, shape, dtype=np.uint64) & np.uint64(2**24 - 1)
    return (bits * 2.0**-24).astype(np.float32)


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    """Return ``torch.randn(shape, dtype=torch.float64)`` after ``torch.manual_seed(seed)``."""
    twister, size = np.random.RandomState(seed), prod(shape)
    if size < 16:
        angle, radius = uniforms(twister, (size + 1) // 2, 2).T
        return box_and_muller(radius, angle).T.ravel()[:size].reshape(shape)
    values = uniforms(twister, size)
    blocks = [values[start : start + 16] for start in range(0, size - 15, 16)]
    for block in blocks:
        block[:] = box_and_muller(*block.reshape(2, 8)).ravel()
    if size % 16:
        values[-16:] = box_and_muller(*uniforms(twister, 2, 8)).ravel()
    return values.reshape(shape)


def box_and_muller(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return pairs of normal numbers, ``[2, n]``, made from uniforms."""
    return np.sqrt(-2 * np.log1p(-radius)) * [np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)]
