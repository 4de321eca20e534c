"""SCateR: the CatLog-Derivative trick for dependent variables."""

from dataclasses import KW_ONLY

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from ..dependent import DependentFactors
from ..estimator import Count, Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Factors, IndependentFactors, expand
from ..randomness import Randomness
from .indecater import IndeCateR

__all__ = ["SCateR"]


class SCateR(Estimator[Factors]):
    r"""The CatLog-Derivative trick for dependent variables: it sums over one variable at a time,
    given the earlier ones, and resamples the later variables for each category.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_{i=1}^d \sum_k \frac1N \sum_n \partial q(k \mid
        x^{(n)}_{<i})\,
        \bigl[f(x^{(n)}_{<i}, k, \tilde x^{(n,i,k)}_{>i}) - f(x^{(n)})\bigr],
        \qquad \tilde x_{>i} \sim q(\cdot \mid x_{<i}, k)

    It is unbiased. For independent variables nothing is resampled, and it is :class:`IndeCateR`.

    Cost: N (1 + d (k - 1)) evaluations, and N d^2 (k - 1) uniforms and steps of q. Needs: any f.
    Reference: De Smet et al., 2023, Definition 3.2.

    Args:
        samples: number of draws N.
        chunk_size: evaluations of f at once; None: chosen for the device.

    >>> q = MarkovChain(jnp.zeros(2), jnp.zeros((2, 2)), length=3)
    >>> SCateR(samples=2).evaluations(q)
    8
    """

    samples: Count = 1
    _: KW_ONLY
    chunk_size: Count | None = None

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        if isinstance(q, IndependentFactors):
            return IndeCateR(self.samples).estimate(f, q, draw)
        assert isinstance(q, DependentFactors)
        d, k = q.d, q.k
        given = None if draw.x is None else draw.points(self.samples)
        n = self.samples if given is None else len(given)
        u = draw.uniform(1 + d * (k - 1), n, d)  # of the draws, then of one row per change
        x = q.point(q.from_uniforms(u[0])) if given is None else given
        index, fx = q.index(x), f(x)
        log_probs = q.log_conditionals(index)  # [n, d, k], differentiable
        row, variable, offset = jnp.meshgrid(
            jnp.arange(n), jnp.arange(d), jnp.arange(1, k), indexing="ij"
        )
        category = (index[row, variable] + offset) % k  # [n, d, k - 1]
        possible = stop_gradient(log_probs)[row, variable, category] > -jnp.inf
        f_constant = f.constant

        def changed(row: Array, i: Array, c: Array, number: Array) -> Array:
            kept = index[row].at[i].set(c.astype(jnp.int32))
            y = q.redraw(u[number, row], kept, jnp.arange(d) <= i)
            return f_constant(q.point(y[None])[0])

        seen = jnp.where(possible, category, index[row, variable])  # f sees no impossible one
        number = 1 + variable * (k - 1) + offset - 1
        values = f.map(changed, *(part.ravel() for part in (row, variable, seen, number)))
        values = values.reshape(n, d, k - 1, *fx.shape[1:])
        change = jnp.where(expand(possible, values), values - stop_gradient(fx)[:, None, None], 0.0)
        weight = jnp.exp(jnp.take_along_axis(log_probs, category, -1))
        total = (expand(weight, change) * change).sum((1, 2)).mean(0)
        base = fx.mean(0)
        return Estimate(base + total / d, base + total)
