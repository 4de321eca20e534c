"""Where a call takes its randomness from: a key, or what the caller provides."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from .factors import Factors
from .settings import Sampling

__all__ = ["Randomness"]


@dataclass
class Randomness:
    """The randomness of one call: a tape. Its i-th uniforms are made from ``fold_in(key, i)``.

    Attributes:
        q: the factors that points are drawn from.
        x: the points that were given, or None.
        noise: the uniforms that were given and are still to be used, or None.
        requests: how often uniforms were asked for.
        reads_points: whether points were asked for.
    """

    key: Array
    q: Factors
    x: Array | None = None
    noise: list[Array] | None = None
    requests: int = 0
    reads_points: bool = False

    def uniform(self, n: int, *shape: int, sampling: Sampling = "independent") -> Array:
        """Return uniforms in [0, 1), ``[n, *shape]``, those of ``noise`` if it was given.

        - independent: they do not depend on each other.
        - antithetic: in pairs u and 1 - u (if n is odd, the last has none).
        - latin: one in each of the n strata [i/n, (i+1)/n), in a random order.
        """
        if self.noise is None:
            return self._dependent(n, *shape, sampling=sampling)
        self.requests += 1
        u = jnp.asarray(self.noise.pop(0)) if self.noise else None
        if u is None or u.shape != (n, *shape):
            raise ValueError(
                f"noise: uniforms of shape {(n, *shape)} come next, number {self.requests}, but "
                f"{'nothing' if u is None else u.shape} was given."
            )
        return stop_gradient(u).astype(self.q.real)

    def _dependent(self, n: int, *shape: int, sampling: Sampling) -> Array:
        """Return uniforms made from the key."""
        if sampling == "independent":
            return self._drawn((n, *shape))
        if sampling == "antithetic":
            half = self._drawn(((n + 1) // 2, *shape))
            u = jnp.concatenate([half, 1 - half])[:n]
        else:
            order = self._drawn((n, *shape))
            rank = (order < order[:, None]).sum(1)  # few draws: counting is faster than sorting
            u = (rank + self._drawn((n, *shape))) / n
        # They may be 1 after rounding, where a Gumbel is infinite.
        return jnp.minimum(u, 1 - jnp.finfo(self.q.real).epsneg)

    def _drawn(self, shape: tuple[int, ...]) -> Array:
        self.requests += 1
        return jax.random.uniform(jax.random.fold_in(self.key, self.requests), shape, self.q.real)

    def points(self, n: int, sampling: Sampling = "independent") -> Array:
        """Return n points, ``[n, *event]``, those of ``x`` if it was given.

        Every point is distributed as q; ``sampling`` says how they depend on each other, as in
        :meth:`uniform`.
        """
        self.reads_points = True
        if self.x is not None:
            return self.x
        u = self._dependent(n, self.q.d, sampling=sampling)
        return stop_gradient(self.q.point(self.q.from_uniforms(u)))

    def variables(self, n: int, m: int) -> Array:
        """Return m different variables for each of n draws, ``[n, m]``.

        They are dealt in turn from one shuffled deck, so that all are chosen equally often.
        """
        d = self.q.d
        if m > d:
            raise ValueError(f"`variables` must be at most {d}, the variables of q, but it is {m}.")
        deck = jnp.argsort(self.uniform(d))
        return deck[jnp.arange(n * m) % d].reshape(n, m)

    def check_used(self, owner: str) -> None:
        """Raise if something was given that the call did not use."""
        if self.x is not None and not self.reads_points:
            raise ValueError(f"x: {owner} draws its points in its own way; give `noise` instead.")
        if self.noise:
            raise ValueError(
                f"noise: {owner} used {self.requests} arrays of uniforms, and {len(self.noise)} "
                "more were given. Give what it draws besides points."
            )
