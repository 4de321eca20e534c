"""SlopeCateR: gradients predicted from derivatives of f, corrected by a few exact sums.

All numbers here are in coordinates of the logits: w = k numbers per one-hot vector and w = 1 per
bit, with J(p) = diag(p) - p p^T for both.
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

from ..estimator import Count, Estimate, Estimator, Share
from ..evaluator import Evaluator
from ..factors import RelaxableFactors, expand, inverse_cdf, pytree, times_jacobian, zero
from ..randomness import Randomness, Sampling

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
        size = jnp.diagonal(self.gram)
        scale = jnp.where(size > 0, 1 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
        correlation = self.gram[0, 1] * scale[0] * scale[1]
        scaled = self.excess * scale
        solved = (RIDGE * scaled - correlation * scaled[::-1]) / (RIDGE**2 - correlation**2)
        return 1 + scale * solved

    def sizes(self) -> Array:
        """Return the RMS slopes of the variables, ``[d]``; 1 before any data."""
        known = self.spread2 > 0
        return jnp.sqrt(jnp.where(known, self.size2 / jnp.where(known, self.spread2, 1.0), 1.0))


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
    pairs: bool | None = None

    @property
    def differentiates_f(self) -> bool:
        return True

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
        self,
        f: Evaluator,
        q: RelaxableFactors,
        draw: Randomness,
        state: SlopeState | None = None,
    ) -> Estimate:
        x = q.coordinates(stop_gradient(draw.points(self.samples, self.sampling)))  # [n, d, w]
        p, logits = q.coordinates_of_q()
        undecided = gradient_scale(p)
        alpha, beta = jnp.ones(2, q.real)
        size = undecided
        if state is not None:
            alpha, beta = stop_gradient(state.coefficients()).astype(q.real)
            size = size * stop_gradient(state.sizes()).astype(q.real)
        plan = self._plan(x, p, size, q.k, draw)
        # Slopes enter linearly, so that they are derivatives of the points, per unit of share.
        straight, outer = (alpha / 2, alpha / 2) if plan.is_pair else (alpha - beta / 2, beta / 2)
        above = x - p
        along = (above * logits).sum(-1, keepdims=True)
        moved = (straight * times_jacobian(p, logits) + outer * above * along) / len(x)
        removed = plan.removed(logits, straight, outer)  # [c, m, w]
        moved = moved.at[plan.row, plan.variable].add(-removed[0])
        row_share, change_share = plan.shares(len(x))
        is_seen = change_share > 0
        per_share = jnp.where(is_seen, 1 / jnp.where(is_seen, change_share, 1.0), 0.0)
        points = jnp.concatenate(
            [
                x + zero(moved / row_share[:, None, None]),
                plan.changed(x, zero(-removed[1:] * per_share[..., None])),
            ]
        )
        shares = jnp.concatenate([row_share, change_share.ravel()])
        corrected = zero(logits[plan.variable])
        if state is not None:
            arrays = (x, p, undecided, shares, *plan[1:-1])
            points, corrected = observed(plan.is_pair, points, corrected, state, arrays)
        fx = f.through(q.from_coordinates(points))
        exact = plan.exact(stop_gradient(fx), len(x))  # [m, w, *out]
        value = (expand(shares, fx) * fx).sum(0)
        return Estimate(value, value + (expand(corrected, exact) * exact).sum((0, 1)))

    def _plan(self, x: Array, p: Array, size: Array, k: int, draw: Randomness) -> "Plan":
        """Choose the corrections of this call."""
        m, pairs = self.turns(k), self.uses_pairs(k)
        d, n = len(size), len(x)
        total = size.sum()
        share = jnp.where(total > 0, size / jnp.where(total > 0, total, 1.0), 1 / d)
        probability = (1 - UNIFORM_SHARE) * share + UNIFORM_SHARE / d
        start = draw.uniform(1 + pairs)
        ends = m * jnp.cumsum(probability)[:-1]
        variable = (ends <= (start[0] + jnp.arange(m))[:, None]).sum(-1)
        row = np.arange(m) % n  # draws take turns
        drawn, p_here = x[row, variable], p[variable]  # [m, w]
        weight = 1 / (m * probability[variable])
        pair_weight = jnp.ones_like(weight)
        if p.shape[-1] == 1:
            compared = jnp.stack([drawn, 1 - drawn])
            chance = jnp.where(compared > 0, p_here, 1 - p_here)[..., 0]
        elif not pairs:
            category = (drawn.argmax(-1) + np.arange(k)[:, None]) % k
            compared = jax.nn.one_hot(category, k, dtype=p.dtype)
            chance = jnp.take_along_axis(p_here.T, category, 0)
        else:
            rest = p_here * (1 - drawn)
            total = rest.sum(-1)
            u = (start[1] + np.arange(m) / m) % 1
            other = jnp.where(total > 0, inverse_cdf(rest, u * total), drawn.argmax(-1))
            compared = jnp.stack([drawn, jax.nn.one_hot(other, k, dtype=p.dtype)])
            rest = ((1 - compared) * p_here).sum(-1)  # never subtracted from 1
            total = rest.sum(0)
            is_certain = total <= 0  # then both categories are the same
            chance = jnp.where(is_certain, 0.5, rest[::-1] / jnp.where(is_certain, 1.0, total))
            pair_weight = jnp.where(is_certain, 0.0, rest[0] * chance[0])
        return Plan(row, variable, weight, pair_weight, p_here, compared, chance, pairs)


class Plan(NamedTuple):
    r"""The corrections of a call. Draw ``row`` serves each.

    A correction compares the drawn category with all others or, as a pair of categories a and b,
    with one that is drawn from the rest. Given the pair, each of the two was drawn first with a
    probability that is proportional to the probability of all categories but the *other* one.
    ReinMax puts :math:`\frac12 (G(a) + G(b)) \cdot (e_a - e_b)` in place of f(a) - f(b), so that it
    is compared with f pair by pair. It has one coefficient, alpha.

    Attributes:
        row: the draws, ``[m]``.
        variable: the corrected variables, ``[m]``.
        weight: one over how often each is corrected in expectation, ``[m]``.
        pair_weight: of a difference between the two of a pair; 1 where all are compared, ``[m]``.
        p: the probabilities of the variables, ``[m, w]``.
        compared: the categories that are compared, that of the draw first, ``[c, m, w]``.
        chance: of each of them to be the one drawn, given these, ``[c, m]``.
        is_pair: whether one other category is compared, of more than one.
    """

    row: Any
    variable: Array
    weight: Array
    pair_weight: Array
    p: Array
    compared: Array
    chance: Array
    is_pair: bool

    def shares(self, n: int) -> tuple[Array, Array]:
        """Return the weights of the draws ``[n]`` and of the changed points ``[c - 1, m]`` in the
        value, in which corrected variables are summed out.

        A draw and its changed points share the weight 1/n by the probabilities of the corrected
        variable's categories; with several corrections, as the mean over them.
        """
        counts = jnp.asarray(np.bincount(self.row, minlength=n), self.p.dtype)  # of corrections
        part = self.chance / (n * counts[self.row])
        base = jnp.where(counts == 0, 1 / n, 0.0).at[self.row].add(part[0])
        return base, part[1:]

    def changed(self, x: Array, moved: Array) -> Array:
        """Return the draws with every other compared category in place of the drawn one, unless it
        is impossible, ``[(c - 1) m, d, w]``; ``moved`` is added to it."""
        possible = self.chance[1:, :, None] > 0
        value = jnp.where(possible, self.compared[1:], self.compared[0]) + moved
        is_corrected = (self.variable[:, None] == np.arange(x.shape[1]))[..., None]
        points = jnp.where(is_corrected, value[:, :, None], x[self.row])
        return points.reshape(-1, *x.shape[1:])

    def removed(self, logits: Array, straight: Array, outer: Array) -> Array:
        """Return the derivatives by which the slopes at the compared points predict the exact
        gradient of a variable, ``[c, m, w]``, with respect to the logits ``[d, w]``."""
        here = logits[self.variable]
        if self.is_pair:
            change = self.compared[0] - self.compared[1]
            weight = self.weight * self.pair_weight * outer
            along = (weight * (change * here).sum(-1))[:, None] * change
            return jnp.stack([along, along])
        above = self.compared - self.p
        along = (above * here).sum(-1, keepdims=True)
        predicted = straight * times_jacobian(self.p, here) + outer * above * along
        return self.weight[:, None] * self.chance[..., None] * predicted

    def exact(self, values: Array, n: int) -> Array:
        """Return the gradients of f in the logits of the corrected variables, ``[m, w, *out]``,
        from its values at the draws and at the changed points."""
        out = values.shape[1:]
        changed = values[n:].reshape(-1, len(self.variable), *out)
        change = (changed - values[self.row])[:, :, None]  # [c - 1, m, 1, *out]
        if self.is_pair:
            weight = (self.weight * self.pair_weight)[:, None]
            direction = weight * (self.compared[1] - self.compared[0])
            return change[0] * expand(direction, change[0])
        above = self.compared[1:] - self.p
        weight = (self.weight * self.chance[1:])[..., None] * above  # [c - 1, m, w]
        return (expand(weight, change) * change).sum(0)


def gradient_scale(p: Array) -> Array:
    r"""Return how undecided each variable is, ``[d]``: the RMS gradient in its logits for
    independent slopes of variance 1.

    It is the square root of :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`, and 2 p (1 - p) for a
    bit.
    """
    if p.shape[-1] == 1:
        return 2 * p[:, 0] * (1 - p[:, 0])
    square = p**2
    variance = (square * (1 - 2 * p + square.sum(-1, keepdims=True))).sum(-1)
    return jnp.sqrt(jnp.maximum(variance, 0.0))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def observed(
    is_pair: bool, points: Array, corrected: Array, state: SlopeState, arrays: Any
) -> tuple[Array, Array]:
    """Return the points, and the zeros of corrected variables. In a backward pass, which brings the
    slopes of f and the exact gradients, the gradient of ``state`` is what they teach."""
    return points, corrected


def _forward(is_pair: bool, points: Array, corrected: Array, state: Any, arrays: Any) -> Any:
    return (points, corrected), (state, arrays)


def _backward(is_pair: bool, residuals: Any, gradients: tuple[Array, Array]) -> Any:
    state, (x, p, undecided, shares, *planned) = residuals
    by_point, exact = gradients
    plan = Plan(np.arange(len(exact)) % len(x), *planned, is_pair)  # type: ignore[call-arg]
    known = (shares > 0)[:, None, None]
    slopes = jnp.where(known, by_point / jnp.where(known, shares[:, None, None], 1.0), 0.0)
    seen = statistics(plan, slopes, exact, len(x))
    norms = (times_jacobian(p, slopes[: len(x)]) ** 2).sum(-1).mean(0)
    # vmap sums what is mapped, and only that: a 1 that is mapped as the slopes are.
    one = jnp.where(jnp.isnan(by_point.ravel()[0]), 1.0, 1.0)
    norms = 2 * norms if p.shape[-1] == 1 else norms  # a bit has two categories
    new = SlopeState(*seen, norms, one * undecided**2, one)
    return by_point, exact, jax.tree.map(lambda new, old: new.astype(old.dtype), new, state), None


observed.defvjp(_forward, _backward)


def statistics(plan: Plan, slopes: Array, exact: Array, n: int) -> tuple[Array, Array]:
    """Return the terms of the normal equations, from the slopes at all points and the exact
    gradients ``[m, w]``, less the noise of the predictions."""
    m = len(exact)
    at_draw = slopes[plan.row, plan.variable]
    at_change = slopes[n:].reshape(-1, m, *slopes.shape[1:])[:, np.arange(m), plan.variable]
    at = jnp.concatenate([at_draw[None], at_change])  # [c, m, w]
    flat = times_jacobian(plan.p, at)
    above = plan.compared - plan.p
    bent = (above * (above * at).sum(-1, keepdims=True) - flat) / 2
    if plan.is_pair:
        change = plan.compared[0] - plan.compared[1]
        along = plan.pair_weight * (at.mean(0) * change).sum(-1)
        straight, curved = along[:, None] * change, jnp.zeros_like(change)
        at_a, at_b = flat + bent
        noise_ss = plan.pair_weight * ((at_a - at_b) ** 2).sum(-1)
        noise_sc = noise_cc = jnp.zeros_like(noise_ss)
    else:
        chance = plan.chance[..., None]
        straight, curved = (chance * flat).sum(0), (chance * bent).sum(0)
        s, c = flat - straight, bent - curved
        noise_ss, noise_sc, noise_cc = (
            (chance * product).sum((0, -1)) for product in (s * s, s * c, c * c)
        )
    straight, curved = plan.weight[:, None] * straight, plan.weight[:, None] * curved
    scale = plan.weight / n
    ss = ((straight * straight).sum(-1) + scale * noise_ss).mean()
    sc = ((straight * curved).sum(-1) + scale * noise_sc).mean()
    cc = ((curved * curved).sum(-1) + scale * noise_cc).mean()
    es, ec = (exact * straight).sum(-1).mean(), (exact * curved).sum(-1).mean()
    return jnp.array([[ss, sc], [sc, cc]]), jnp.array([es - ss - sc, ec - sc - cc])
