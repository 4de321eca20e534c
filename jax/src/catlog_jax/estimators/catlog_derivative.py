"""The CatLog-Derivative trick: one variable at a time is summed out."""

from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from ..estimator import Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Factors, IndependentFactors, RelaxableFactors, expand
from ..randomness import Randomness
from ..settings import Count, Sampling

__all__ = ["IndeCateR", "SCateR"]


class IndeCateR(Estimator[IndependentFactors]):
    r"""The CatLog-Derivative trick for independent variables: it sums exactly over one variable at
    a time and samples the others.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_{i=1}^d \sum_{k} \partial p_i(k)\;
        \frac1N \sum_{n} \bigl[f(x^{(n)}_{\neq i}, k) - f(x^{(n)})\bigr]

    The estimator is unbiased, needs no tuning, and is exact for d = 1 and for additive f. The
    *value* is the Rao-Blackwellised mean
    :math:`\frac1{Nd}\sum_{n,i,k} p_i(k) f(x^{(n)}_{\neq i}, k)`.

    ``variables=m`` sums out m random variables of each draw instead of all d. For a differentiable
    f, one backward pass predicts all differences (``control="taylor"``), and the exact ones correct
    the prediction:

    .. math::
        \sum_{i,k} \partial p_i(k)\, T_{ik} + \frac{d}{m} \sum_{i \in S} \sum_k \partial p_i(k)\,
        \bigl[f(x_{\neq i}, k) - f(x) - T_{ik}\bigr], \qquad
        T_{ik} = \partial_{x_i} f(x) \cdot (e_k - x_i)

    The sets of the N draws are taken in turn from one random permutation of the variables, so that
    all variables are chosen equally often.

    Cost: N (1 + d (k - 1)) evaluations; ``variables=m``: N (1 + m (k - 1)) and one backward pass
    for all draws. Needs: any f (``control="taylor"``: f differentiable and a Bernoulli or one-hot
    q).
    Reference: De Smet et al., "Differentiable sampling of categorical distributions using the
    CatLog-Derivative trick", 2023, Proposition 4.1.

    Args:
        samples: number of draws N.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        variables: number m of variables to sum out in each draw; None: all.
        control: with ``variables``, "taylor" or "none" (for black-box f).
        chunk_size: evaluations of f at once, in one call; None: chosen for the device and the size
            of ``E.batch``. Bounds the memory.

    >>> weights = jnp.array([1.0, 2.0, 4.0])
    >>> jax.grad(
    ...     lambda logits: IndeCateR()(
    ...         jax.random.key(0), lambda x: x @ weights, Bernoulli(logits)
    ...     )
    ... )(jnp.zeros(3))
    Array([0.25, 0.5 , 1.  ], dtype=float32)
    """

    samples: Count = 1
    _: KW_ONLY
    sampling: Sampling = "independent"
    variables: Count | None = None
    control: Literal["taylor", "none"] = "taylor"
    chunk_size: Count | None = None

    @property
    def differentiates_f(self) -> bool:  # type: ignore[override]  # a setting decides
        return self.variables is not None and self.control == "taylor"

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples, self.sampling)
        fx, index, possible = f(x), q.index(x), q.possible[None]
        base = fx.mean(0)
        if self.variables is None:
            exact = change = q.mean(f.neighbours(index, fx, possible).mean(0))
        else:
            chosen = draw.variables(len(x), self.variables)
            table = f.neighbours(index, fx, possible, chosen)
            exact = change = q.mean(mean_over_draws(table, chosen, q.d))
            if self.control == "taylor":
                change = q.mean(self._taylor(f, q, x, table, chosen))
        # Rao-Blackwellised value: averaged over the variables, each of them summed out.
        return Estimate(base + stop_gradient(exact).sum(0) / q.d, base + change.sum(0))

    def _taylor(self, f: Evaluator, q: Factors, x: Array, table: Array, chosen: Array) -> Array:
        """Return the mean first-order prediction of every difference, corrected by the exact ones,
        ``[d, k, *out]``."""
        if not isinstance(q, RelaxableFactors):
            raise TypeError(
                "q: IndeCateR(variables=..., control='taylor') takes Bernoulli or OneHot, whose "
                "points have a derivative. Pass control='none' for others."
            )
        by_category = f.slope(x)
        at_draw = (expand(q.drawn(x), by_category) * by_category).sum(2, keepdims=True)
        predicted = by_category - at_draw
        predicted_chosen = jnp.take_along_axis(predicted, expand(chosen, predicted), 1)
        return predicted.mean(0) + mean_over_draws(table - predicted_chosen, chosen, q.d)


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
        d, k = q.d, q.k
        replayed = None if draw.x is None else draw.points(self.samples)
        n = self.samples if replayed is None else len(replayed)
        u = draw.uniform(1 + d * (k - 1), n, d)  # of the draws, then of one row per change
        x = q.point(q.from_uniforms(u[0])) if replayed is None else replayed
        index, fx = q.index(x), f(x)
        log_probs = q.log_conditionals(index)  # [n, d, k], differentiable

        def redrawn(kept: Array, row: Array, i: Array, c: Array) -> Array:
            number = i * (k - 1) + (c - index[row, i]) % k
            return q.redraw(u[number, row], kept, jnp.arange(d) <= i)

        possible = stop_gradient(log_probs) > -jnp.inf
        table = f.neighbours(index, fx, possible, redrawn=redrawn)
        total = (expand(jnp.exp(log_probs), table) * table).sum((1, 2)).mean(0)
        base = fx.mean(0)
        return Estimate(base + total / d, base + total)


def mean_over_draws(table: Array, chosen: Array, d: int) -> Array:
    """Return the mean over draws, ``[d, k, *out]``, of a table ``[n, m, k, *out]``; chosen
    variables have the weight d / m, the others 0."""
    n, m = chosen.shape
    rest = table.shape[2:]
    total = jnp.zeros((d, *rest), table.dtype)
    return total.at[chosen.ravel()].add(table.reshape(n * m, *rest)) * (d / (n * m))
