"""The random numbers of torch's generator on a CPU, made by NumPy."""

from math import prod

import numpy as np


class TorchGenerator:
    """``torch.Generator().manual_seed(seed)``: a Mersenne Twister, read 32 bits at a time."""

    def __init__(self, seed: int) -> None:
        self.twister = np.random.RandomState(seed)
        self.kept: float | None = None  # Box and Muller make normal numbers in pairs

    def _bits(self, count: int) -> np.ndarray:
        return self.twister.randint(0, 2**32, count, dtype=np.uint64)

    def uniform(self, *shape: int) -> np.ndarray:
        """Return ``torch.rand(shape, dtype=torch.float64)``."""
        high, low = self._bits(2 * prod(shape)).reshape(-1, 2).T
        return ((((high << 32) | low) & (2**53 - 1)) * 2.0**-53).reshape(shape)

    def narrow_uniform(self, *shape: int) -> np.ndarray:
        """Return ``torch.rand(shape)``, in float32."""
        bits = self._bits(prod(shape)) & np.uint64(2**24 - 1)
        return (bits * 2.0**-24).astype(np.float32).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray:
        """Return ``torch.randn(shape, dtype=torch.float64)``."""
        size = prod(shape)
        if size < 16:
            return np.array([self._one_normal() for _ in range(size)]).reshape(shape)
        values = self.uniform(size)
        for start in range(0, size - 15, 16):
            values[start : start + 16] = _sixteen(values[start : start + 16])
        if size % 16:
            values[-16:] = _sixteen(self.uniform(16))
        return values.reshape(shape)

    def _one_normal(self) -> float:
        if self.kept is not None:
            value, self.kept = self.kept, None
            return value
        angle, size = self.uniform(2)
        radius = np.sqrt(-2 * np.log1p(-size))
        self.kept = radius * np.sin(2 * np.pi * angle)
        return radius * np.cos(2 * np.pi * angle)


def _sixteen(uniforms: np.ndarray) -> np.ndarray:
    radius = np.sqrt(-2 * np.log(1 - uniforms[:8]))
    angle = 2 * np.pi * uniforms[8:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    """Return standard normal numbers, those that torch makes from this seed."""
    return TorchGenerator(seed).normal(*shape)
