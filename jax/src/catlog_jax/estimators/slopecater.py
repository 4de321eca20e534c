"""SlopeCateR: gradients predicted from derivatives of f, corrected by a few exact sums.

Points are tables ``[n, d, w]`` here: w = k numbers per one-hot vector, and w = 1 per bit. The
matrix J(p) = diag(p) - p p^T is the same for both.
"""

from dataclasses import KW_ONLY
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient

from ..estimator import Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import RelaxableFactors, expand, inverse_cdf, pytree, ratio, times_jacobian, zero
from ..randomness import Randomness
from ..settings import Count, Flag, Sampling, Share

__all__ = ["SlopeCateR", "SlopeState"]

UNIFORM_SHARE = 0.1  # of the corrections: keeps every probability positive, as unbiasedness needs
RIDGE = 1.01  # times the diagonal: shrinks the coefficients towards 1 by about 1 %


@pytree
class SlopeState:
    """What SlopeCateR has learned: means over earlier calls.

    As a gradient it holds the sums over the calls of one step.

    Attributes:
        gram: the matrix of the normal equations of alpha and beta, ``[2, 2]``.
        excess: their right-hand side less the matrix times (1, 1), ``[2]``.
        size2: squared norms of the straight predictions, ``[d]``.
        spread2: what they would be for slopes of size 1, ``[d]``.
        calls: 0; as a gradient, the number of calls.
    """

    gram: Array
    excess: Array
    size2: Array
    spread2: Array
    calls: Array

    def coefficients(self) -> Array:
        """Return alpha and beta, ``[2]``: a least-squares fit of exact gradients on predictions.

        They are shrunk slightly towards 1, and exactly 1 before any data.
        """
        scale = ratio(1.0, jnp.sqrt(jnp.diagonal(self.gram)), 0.0)
        correlation = self.gram[0, 1] * scale[0] * scale[1]
        scaled = self.excess * scale
        solved = (RIDGE * scaled - correlation * scaled[::-1]) / (RIDGE**2 - correlation**2)
        return 1 + scale * solved

    def sizes(self) -> Array:
        """Return the RMS slopes of the variables, ``[d]``; 1 before any data."""
        return jnp.sqrt(ratio(self.size2, self.spread2, 1.0))


class SlopeCateR(Estimator[RelaxableFactors]):
    r"""A prediction of every variable's gradient from the derivatives of f, corrected by
    evaluations that change a few variables.

    Let :math:`G(x) = \partial f / \partial x_i`, one entry per category, and let c be the drawn
    category. The prediction for variable i is

    .. math::
        \sum_k \partial p_i(k)\, \alpha\, G_k(x) \;+\; \beta\, \tfrac12 \Bigl( \bigl[G_c(x) -
        \textstyle\sum_k p_i(k) G_k(x)\bigr]
        \,\partial \log p_i(c) - \sum_k \partial p_i(k)\, G_k(x) \Bigr)

    averaged over N draws. With :math:`\alpha = \beta = 1` it is :class:`ReinMax`. Then M variables
    are summed out exactly, one at a time, as in :class:`IndeCateR`:

    .. math::
        \sum_{j=1}^M \frac1{M \pi_{i_j}} \sum_k \partial p_{i_j}(k)\, \bigl[ f(x_{\neq i}, k) - \hat
        f_i(x_{\neq i}, k) \bigr]

    where :math:`\hat f_i` is the mean of the prediction over :math:`x_i`, from the slopes at the
    same points. Systematic sampling chooses the variables, in proportion to how undecided they are
    times how large their slopes were, and a tenth equally. Any :math:`\pi_i > 0` and any
    coefficients from *earlier* calls leave the estimate unbiased. The value is the mean of f over
    the N draws, in which the corrected variables are summed out.

    Exact sums over many categories are expensive. Then (``pairs``) a correction takes one other
    category b for the drawn category a, and compares f with ReinMax at this pair alone.

    **It learns if it is given a state.** The gradient of the state holds what this step has seen::

        E = SlopeCateR(8)
        state = E.init(d)
        grads, seen = jax.grad(loss, (0, 1))(params, state)  # with E(key, f, q, state=state)
        state = E.update(state, seen)

    Without a state, alpha and beta are 1, all slopes count as equally large, and forward-mode
    derivatives (``jvp``) work.

    Cost: N + ``corrections`` (k - 1) evaluations, with pairs N + ``corrections``, and one backward
    pass through them. Needs: f differentiable; a Bernoulli or one-hot q.
    Reference: the torch library catlog; the prediction is that of Liu et al., 2023.

    Args:
        samples: number of draws N.
        corrections: number M of corrections, spread evenly over the draws; None: two fifths of the
            evaluations, M = 2 N / 3 with pairs and 2 N / (3 (k - 1)) without.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        decay: of the state; 1 keeps alpha = beta = 1.
        pairs: whether a correction takes one other category instead of all k - 1; None: if k - 1 is
            more than 2 N / 3.

    >>> E = SlopeCateR(samples=2)
    >>> E.evaluations(Bernoulli(jnp.zeros(3)))
    4
    """

    samples: Count = 8
    _: KW_ONLY
    corrections: Count | None = None
    sampling: Sampling = "latin"
    decay: Share = 0.98
    pairs: Flag | None = None

    differentiates_f = True

    def uses_pairs(self, k: int) -> bool:
        """Return whether a correction takes one of the k - 1 other categories, instead of all."""
        return k > 2 and (ceil(2 * self.samples / 3) < k - 1 if self.pairs is None else self.pairs)

    def turns(self, k: int) -> int:
        """Return M, the number of corrections of variables of k categories."""
        if self.corrections is not None:
            return self.corrections
        return ceil(2 * self.samples / (3 if self.uses_pairs(k) else 3 * max(k - 1, 1)))

    def init(self, d: int, dtype: Any = jnp.float32) -> SlopeState:
        """Return the state for q of d variables, before any data."""
        zeros = partial(jnp.zeros, dtype=dtype)
        return SlopeState(zeros((2, 2)), zeros(2), zeros(d), zeros(d), zeros(()))

    def update(self, state: SlopeState, seen: SlopeState) -> SlopeState:
        """Return the state after a step. ``seen`` is the gradient of the loss in ``state``.

        Numbers that are NaN or infinite are left out.
        """
        calls = jnp.maximum(seen.calls, 1)
        rate = jnp.where(seen.calls > 0, 1 - self.decay, 0.0)

        def moved(old: Array, total: Array) -> Array:
            new = old + rate * (total / calls - old)
            return jnp.where(jnp.isfinite(new), new, old)

        new: SlopeState = jax.tree.map(moved, state, seen)
        return SlopeState(new.gram, new.excess, new.size2, new.spread2, state.calls)

    def estimate(
        self, f: Evaluator, q: RelaxableFactors, draw: Randomness, state: SlopeState | None = None
    ) -> Estimate:
        if state is not None and state.size2.shape != (q.d,):
            raise ValueError(
                f"SlopeCateR: `state` must come from init({q.d}), as q has {q.d} variables, but it "
                f"is for {state.size2.shape}."
            )
        logits, undecided = q.scores, gradient_scale(q.p)
        w = logits.shape[-1]
        x = q.drawn(stop_gradient(draw.points(self.samples, self.sampling)))[..., -w:]
        n, p, learned = len(x), q.p[:, -w:], state or self.init(q.d, q.real)
        plan = self._plan(q, x, undecided * stop_gradient(learned.sizes()), draw)
        alpha, beta = stop_gradient(learned.coefficients())
        beta = alpha if plan.is_of_pairs else beta
        # Slopes enter linearly, so that they are derivatives of the points, per unit of share.
        flat, bent = predictions(p, x, logits)
        moved = (alpha * flat + beta * bent) / n
        flat, bent = predictions(plan.center, plan.compared, logits[plan.variable])
        removed = (plan.weight * plan.chance)[..., None] * (alpha * flat + beta * bent)
        points, shares = plan.points(x), plan.shares(n)
        moved = jnp.pad(moved, ((0, len(points) - n), (0, 0), (0, 0)))
        moved = moved.at[plan.numbers(n), plan.variable].add(-removed)
        points = points + zero(moved * ratio(1.0, shares, 0.0)[:, None, None])
        corrected = zero(logits[plan.variable])
        if state is not None:
            points, corrected = observed(points, corrected, state, (p, undecided, shares, plan))
        fx = f.through(q.to_point(points))
        exact = plan.exact(stop_gradient(fx), n)  # [m, w, *out]
        value = (expand(shares, fx) * fx).sum(0)
        return Estimate(value, value + (expand(corrected, exact) * exact).sum((0, 1)))

    def _plan(self, q: RelaxableFactors, x: Array, size: Array, draw: Randomness) -> "Plan":
        """Choose the corrections of this call."""
        (n, d, w), k = x.shape, q.k
        m, pairs = self.turns(k), self.uses_pairs(k)
        probability = (1 - UNIFORM_SHARE) * ratio(size, size.sum(), 1 / d) + UNIFORM_SHARE / d
        start = draw.uniform(1 + pairs)
        ends = m * jnp.cumsum(probability)[:-1]
        variable = (ends <= (start[0] + jnp.arange(m))[:, None]).sum(-1)
        p, weight = q.p[variable], 1 / (m * probability[variable])
        drawn = x[np.arange(m) % n, variable]
        first = drawn[:, 0].astype(jnp.int32) if w == 1 else drawn.argmax(-1)
        if pairs:
            rest = jnp.where(first[:, None] == jnp.arange(k), 0.0, p)
            total = rest.sum(-1)
            u = (start[1] + jnp.arange(m) / m) % 1
            other = jnp.where(total > 0, inverse_cdf(rest, u * total), first)
            category = jnp.stack([first, other])
        else:
            category = (first + jnp.arange(k)[:, None]) % k
        compared = jax.nn.one_hot(category, k, dtype=p.dtype)
        chance = (compared * p).sum(-1)
        if pairs:
            rest = ((1 - compared) * p).sum(-1)  # never subtracted from 1
            total = rest.sum(0)  # 0 if the variable is certain: then both categories are the same
            chance, weight = ratio(rest[::-1], total, 0.5), weight * total
        return Plan(variable, weight, compared[..., -w:], chance)


def predictions(p: Array, x: Array, along: Array) -> Array:
    """Return what alpha and beta are multiplied with, ``[2, ..., w]``: the products of two matrices
    and vectors ``along``. The matrices are J = diag(p) - p p^T and ((x - p) (x - p)^T - J) / 2.

    They map slopes to predicted gradients in the logits. As they are symmetric, they also map
    logits to the change of a point by which its slope makes that prediction.
    """
    flat, above = times_jacobian(p, along), x - p
    bent = (above * (above * along).sum(-1, keepdims=True) - flat) / 2
    return jnp.stack([jnp.broadcast_to(flat, bent.shape), bent])


class Plan(NamedTuple):
    r"""The corrections of a call. The draws take turns to serve them.

    A correction compares the drawn category with all others or, as a pair of categories a and b,
    with one that is drawn from the rest. Given what is compared, the drawn category has the
    probabilities ``chance``: those of q or, of a pair, proportional to the probability of all
    categories but the *other* one. With them a pair is a variable of two categories.

    Attributes:
        variable: the corrected variables, ``[m]``.
        weight: one over how often each is corrected in expectation, ``[m]``; of a pair, times the
            sum that its chances are divided by.
        compared: the categories that are compared, that of the draw first, ``[c, m, w]``.
        chance: of each of them to be the one drawn, given these, ``[c, m]``.
    """

    variable: Array
    weight: Array
    compared: Array
    chance: Array

    @property
    def is_of_pairs(self) -> bool:
        """Whether each compares two of more categories."""
        return len(self.compared) < self.compared.shape[-1]

    @property
    def center(self) -> Array:
        """The mean of the compared categories, ``[m, w]``."""
        return (self.chance[..., None] * self.compared).sum(0)

    def numbers(self, n: int) -> np.ndarray:
        """Return which points are compared, ``[c, m]``: first one of the n draws, then others."""
        c, m = self.chance.shape
        return np.concatenate([np.arange(m) % n, n + np.arange((c - 1) * m)]).reshape(c, m)

    def shares(self, n: int) -> Array:
        """Return the weights of all points in the value, in which corrected variables are summed
        out.

        A draw and its changed points share the weight 1/n by the probabilities of the corrected
        variable's categories; with several corrections, as the mean over them.
        """
        numbers = self.numbers(n)
        counts = np.bincount(numbers[0], minlength=n)  # of corrections
        uncorrected = np.pad((counts == 0) / n, (0, numbers[1:].size))
        part = self.chance / jnp.asarray(n * counts[numbers[0]], self.chance.dtype)
        return jnp.asarray(uncorrected, part.dtype).at[numbers].add(part)

    def points(self, x: Array) -> Array:
        """Return the draws, and then the draws with every other compared category in place of the
        drawn one, unless it is impossible, ``[n + (c - 1) m, d, w]``."""
        value = jnp.where(self.chance[1:, :, None] > 0, self.compared[1:], self.compared[0])
        is_corrected = (self.variable[:, None] == jnp.arange(x.shape[1]))[..., None]
        changed = jnp.where(is_corrected, value[:, :, None], x[self.numbers(len(x))[0]])
        return jnp.concatenate([x, changed.reshape(-1, *x.shape[1:])])

    def exact(self, values: Array, n: int) -> Array:
        """Return the gradients of f in the logits of the corrected variables, ``[m, w, *out]``,
        from its values at all points."""
        compared = values[self.numbers(n)]
        change = (compared[1:] - compared[0])[:, :, None]  # [c - 1, m, 1, *out]
        weight = (self.weight * self.chance[1:])[..., None] * (self.compared[1:] - self.center)
        return (expand(weight, change) * change).sum(0)


def gradient_scale(p: Array) -> Array:
    r"""Return how undecided each variable is, ``[d]``: the RMS gradient in its logits for
    independent slopes of variance 1.

    It is the square root of :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`, and 2 p (1 - p) for a
    bit.
    """
    square = p**2
    variance = (square * (1 - 2 * p + square.sum(-1, keepdims=True))).sum(-1)
    return jnp.sqrt(jnp.maximum(variance, 0.0))


@jax.custom_vjp
def observed(
    points: Array, corrected: Array, state: SlopeState, arrays: Any
) -> tuple[Array, Array]:
    """Return the points, and the zeros of corrected variables. In a backward pass, which brings the
    slopes of f and the exact gradients, the gradient of ``state`` is what they teach."""
    return points, corrected


def _forward(points: Array, corrected: Array, state: Any, arrays: Any) -> Any:
    return (points, corrected), (state, arrays)


def _backward(residuals: Any, gradients: tuple[Array, Array]) -> Any:
    state, (p, undecided, shares, plan) = residuals
    by_point, exact = gradients
    n = len(shares) - plan.chance[1:].size
    slopes = ratio(by_point, shares[:, None, None], 0.0)
    norms = (times_jacobian(p, slopes[:n]) ** 2).sum(-1).mean(0)
    norms = 2 * norms if p.shape[-1] == 1 else norms  # a bit has two categories
    # vmap sums what is mapped, and only that: a 1 that is mapped as the slopes are.
    count = jnp.where(jnp.isnan(by_point.ravel()[0]), 1.0, 1.0)
    seen = statistics(plan, p[plan.variable], slopes, exact, n)
    new = SlopeState(*seen, norms, count * undecided**2, count)
    return by_point, exact, jax.tree.map(lambda new, old: new.astype(old.dtype), new, state), None


observed.defvjp(_forward, _backward)


def statistics(plan: Plan, p: Array, slopes: Array, exact: Array, n: int) -> tuple[Array, Array]:
    """Return the terms of the normal equations, from the slopes at all points and the exact
    gradients ``[m, w]``, less the noise of the predictions."""
    at, m = slopes[plan.numbers(n), plan.variable], len(exact)  # [c, m, w]
    chance = plan.chance[..., None]
    mean = (chance * predictions(plan.center, plan.compared, at)).sum(1) * plan.weight[:, None]
    spread = predictions(p, plan.compared, at)
    spread = spread - (chance * spread).sum(1, keepdims=True)
    if plan.is_of_pairs:  # with one coefficient
        mean, spread = (jnp.stack([t.sum(0), jnp.zeros_like(t[0])]) for t in (mean, spread))
    noise = plan.weight / n * (chance * (spread[:, None] * spread)).sum((2, 4))
    gram = ((mean[:, None] * mean).sum(-1) + noise).sum(-1) / m
    return gram, (mean * exact).sum((1, 2)) / m - gram.sum(1)
