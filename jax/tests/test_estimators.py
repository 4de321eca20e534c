"""Every estimator against the sum over all points: exactly where its draws can be enumerated, and
by z-tests elsewhere."""

# ruff: noqa: F403, F405  # estimators and distributions

from itertools import permutations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catlog_jax import *
from support import KEY, LARGEST_Z, close, largest_z, normals

A = normals(6, 6, seed=1)
TABLE = jnp.asarray(normals(2, 3, seed=2))


def recurrent(params: Any, state: Any, previous: Any) -> Any:
    state = jnp.tanh(params[previous, :2] + 0.5 * state)
    return state, params[:3, :2] @ state


Q: dict[str, Any] = {
    "bits": Bernoulli(jnp.array([0.3, -0.5, 1.0])),
    "certain bits": Bernoulli(jnp.array([0.3, jnp.inf, -jnp.inf])),
    "integers": Categorical(TABLE),
    "one-hot": OneHot(TABLE),
    "masked": OneHot(TABLE.at[0, 1].set(-jnp.inf)),
    "Markov": MarkovChain(TABLE[0], jnp.asarray(normals(3, 3, seed=3)), 3),
    "autoregressive": Autoregressive(
        jnp.asarray(normals(4, 2, seed=4)), jnp.zeros(2), recurrent, 3, 3
    ),
}
BITS, RELAXABLE = ("bits", "certain bits"), ("bits", "certain bits", "one-hot", "masked")
INDEPENDENT, DEPENDENT = (*RELAXABLE, "integers"), ("Markov", "autoregressive")
EVERY = (*INDEPENDENT, *DEPENDENT)


def f(theta: Any, x: Any) -> Any:
    """Two outputs, which are linear in nothing."""
    x = x.reshape(-1) * 1.0
    y = x @ A[: len(x), : len(x)] @ x + jnp.sin(2 * x.sum() + theta)
    return jnp.stack([y, jnp.cos(y) + theta * x[0]])


def first(theta: Any, x: Any) -> Any:
    return f(theta, x)[0]


def with_derivatives(value: Any, q: Factors) -> Any:
    """Return a function's value, and its derivatives in q and in a parameter of f."""
    derivatives, v = jax.jacrev(lambda *at: 2 * (value(*at),), (0, 1), has_aux=True)(q, 0.4)
    return v, derivatives


def estimates(E: Estimator, q: Factors, key: Any = KEY, g: Any = None, **options: Any) -> Any:
    g = g or (f if E.many_outputs else first)
    options["outputs"] = g is f
    return with_derivatives(lambda q, theta: E(key, lambda x: g(theta, x), q, **options), q)


def possible(q: Factors) -> Any:
    """Return the category numbers of all possible points."""
    index = jnp.asarray(list(product(range(q.k), repeat=q.d)))
    return index[jnp.exp(q.log_prob(index)) > 0]


def points(q: Factors) -> tuple[Any, Any]:
    """Return all possible points, and their probabilities."""
    return q.point(possible(q)), jnp.exp(q.log_prob(possible(q)))


def right(q: Factors, g: Any = f) -> Any:
    """Return the numbers of which these are estimates: a sum over all points."""
    index = possible(q)

    def value(q: Any, theta: Any) -> Any:
        fx = jax.vmap(lambda x: g(theta, x))(q.point(index))
        return jnp.tensordot(jnp.exp(q.log_prob(index)), fx, 1)

    return with_derivatives(value, q)


def mean_over_draws(E: Estimator, q: Factors, n: int, **options: Any) -> Any:
    """Return the exact mean of an estimate over all lists of n points."""
    x, p = points(q)
    rows = jnp.asarray(list(product(range(len(x)), repeat=n)))
    weight = p[rows].prod(1)
    if isinstance(E, UnorderedSet):  # of two points, without replacement
        weight = jnp.where(rows[:, 0] == rows[:, 1], 0.0, weight / (1 - p[rows[:, 0]]))
    rows, weight = rows[weight > 0], weight[weight > 0]
    every = jax.jit(jax.vmap(lambda row: estimates(E, q, x=x[row], **options)))(rows)
    return jax.tree.map(lambda t: jnp.tensordot(weight, t, 1), every)


def settings(cases: list[tuple[Estimator, tuple[str, ...]]]) -> Any:
    """Return a test's parameters: every estimator with every kind of q that it is for."""
    return pytest.mark.parametrize(
        ("E", "kind"), [(E, k) for E, kinds in cases for k in kinds], ids=str
    )


def test_narrow_logits_of_chains_are_drawn_in_wide_numbers() -> None:
    logits = jnp.zeros(1000, jnp.bfloat16)
    q = MarkovChain(logits, jnp.broadcast_to(logits, (1000, 1000)), length=1)
    middle = (jnp.arange(1000.0)[:, None] + 0.5) / 1000
    close(q.from_uniforms(middle)[:, 0], jnp.arange(1000))


@settings([(Exact(), EVERY), (Exact(chunk_size=3), ("bits",))])
def test_exact_is_the_sum_over_all_points(E: Estimator, kind: str) -> None:
    close(estimates(E, Q[kind]), right(Q[kind]))


@settings(
    [
        (Reinforce(2, baseline=0.7), EVERY),
        (RLOO(2), EVERY),
        (UnorderedSet(2), ("bits", "masked", "Markov")),
        (IndeCateR(1), INDEPENDENT),
        (IndeCateR(2), ("bits", "masked")),
        (IndeCateR(1, chunk_size=2), ("one-hot", "integers")),
    ]
)
def test_mean_over_all_draws_is_right(E: Estimator, kind: str) -> None:
    close(mean_over_draws(E, Q[kind], E.samples), right(Q[kind]))


@settings(
    [
        (IndeCateR(1, variables=1), RELAXABLE),
        (IndeCateR(1, variables=1, control="none"), INDEPENDENT),
    ]
)
def test_mean_over_all_draws_and_decks_is_right(E: Estimator, kind: str) -> None:
    q = Q[kind]
    decks = [jnp.asarray(order) / q.d for order in permutations(range(q.d))]
    means = [mean_over_draws(E, q, 1, noise=deck) for deck in decks]
    close(jax.tree.map(lambda *t: sum(t) / len(t), *means), right(q))


@pytest.mark.parametrize("kind", ["bits", "masked", "Markov"])
def test_vimco_is_right_for_its_bound(kind: str) -> None:
    q, index = Q[kind], possible(Q[kind])
    rows = jnp.asarray(list(product(range(len(index)), repeat=2)))

    def bound(q: Any, theta: Any) -> Any:
        p = jnp.exp(q.log_prob(index))
        log_w = jax.vmap(lambda x: first(theta, x))(q.point(index))
        return (p[rows].prod(1) * (jax.nn.logsumexp(log_w[rows], 1) - jnp.log(2))).sum()

    close(mean_over_draws(VIMCO(2), q, 2), with_derivatives(bound, q))


def quadratic(theta: Any, x: Any) -> Any:
    return (x.ravel() * theta) @ A[: x.size, : x.size] @ x.ravel()


def linear(theta: Any, x: Any) -> Any:
    return theta * (x.ravel() @ A[0, : x.size])


@settings([(ReinMax(1), RELAXABLE), (StraightThrough(1), RELAXABLE)])
def test_biased_estimators_are_right_for_simple_functions(E: Estimator, kind: str) -> None:
    g = quadratic if isinstance(E, ReinMax) else linear
    close(mean_over_draws(E, Q[kind], 1, g=g), right(Q[kind], g))


RANDOM = [
    (DisARM(1), BITS),
    (ARMS(3), BITS),
    (REBAR(1, eta=0.8), RELAXABLE),
    (SCateR(1), DEPENDENT),
    (SCateR(2, chunk_size=5), ("Markov",)),
    (UnorderedSet(3), ("integers", "autoregressive")),
    (IndeCateR(3, sampling="latin"), ("bits", "integers")),
    (IndeCateR(2, sampling="antithetic"), ("masked",)),
    (IndeCateR(2, variables=2), ("bits", "masked")),
    (SlopeCateR(4), RELAXABLE),
    (SlopeCateR(2, corrections=5, pairs=True), ("one-hot", "masked")),
    (SlopeCateR(3, corrections=1, pairs=False, sampling="independent"), ("bits", "one-hot")),
]


def many(E: Estimator, q: Factors, count: int = 20_000, **options: Any) -> Any:
    keys = jax.random.split(KEY, count)
    return jax.jit(jax.vmap(lambda key: estimates(E, q, key, **options)))(keys)


@settings(RANDOM)
def test_mean_over_keys_is_right(E: Estimator, kind: str) -> None:
    g = f if E.many_outputs else first
    assert largest_z(many(E, Q[kind]), right(Q[kind], g)) < LARGEST_Z


def test_slopecater_is_right_whatever_it_has_learned() -> None:
    E, q = SlopeCateR(4), Q["bits"]
    state = E.init(3, float)
    loss = lambda state, key: E(key, lambda x: first(0.4, x), q, state=state)  # noqa: E731
    step = jax.jit(lambda state, key: (E.update(state, jax.grad(loss)(state, key)), None))
    state, _ = jax.lax.scan(step, state, jax.random.split(KEY, 200))
    assert jnp.abs(state.coefficients() - 1).max() > 0.1
    runs, before = many(E, q, g=first, state=state), many(E, q, g=first)
    assert largest_z(runs, right(q, first)) < LARGEST_Z
    assert runs[1][0].logits.var(0).sum() < before[1][0].logits.var(0).sum()


@settings([(StraightThrough(1), ("bits", "one-hot")), (GumbelRao(1), ("bits",))])
def test_a_bias_would_be_seen(E: Estimator, kind: str) -> None:
    assert largest_z(many(E, Q[kind]), right(Q[kind])) > 20


@pytest.mark.parametrize("kind", ["bits", "masked"])
def test_gumbel_rao_is_a_mean_of_gumbel_softmax(kind: str) -> None:
    runs = many(GumbelSoftmax(1, temperature=0.7, hard=True), Q[kind], 100_000)
    mean = jax.tree.map(lambda run: run.mean(0), runs)
    error = jax.tree.map(lambda run: run.std(0) / len(run) ** 0.5, runs)
    E = GumbelRao(1, noise_samples=3, temperature=0.7)
    assert largest_z(many(E, Q[kind], 100_000), mean, error) < LARGEST_Z


LAYERS = (ReinMax(), StraightThrough(), GumbelSoftmax(hard=True), GumbelRao())


@settings([(E, ("bits", "one-hot")) for E in LAYERS])
def test_sample_has_the_gradient_of_its_estimator(E: Estimator, kind: str) -> None:
    q = Q[kind]
    x, pull = jax.vjp(lambda q: sample(KEY, q, E), q)
    slope = jax.grad(lambda x: first(0.4, x))(x)
    close(pull(slope)[0], jax.grad(lambda q: E(KEY, lambda x: first(0.4, x), q))(q))
    assert set(np.unique(x)) == {0.0, 1.0}


ONE_OF_EACH = [Exact(), Reinforce(2), RLOO(2), VIMCO(2), UnorderedSet(2)]
ONE_OF_EACH += [E for E, _ in RANDOM[:4]] + [IndeCateR(), IndeCateR(2, variables=2), SlopeCateR(4)]
ONE_OF_EACH += [StraightThrough(), ReinMax(2), GumbelSoftmax(2), GumbelRao()]


@pytest.mark.parametrize("E", ONE_OF_EACH, ids=str)
def test_transformations_give_the_same_numbers(E: Estimator) -> None:
    q = Q["Markov" if isinstance(E, SCateR) else "bits"]

    def g(q: Any, key: Any = KEY, E: Estimator = E) -> Any:
        return E(key, lambda x: first(0.3, x), q)

    keys = jnp.stack([KEY, KEY])
    body = jax.checkpoint(lambda total, key, q: total + g(q, key))
    transformed = [
        jax.checkpoint(g),
        lambda q: jax.vmap(g)(jax.tree.map(lambda t: jnp.stack([t, t + 0.1]), q), keys)[0],
        lambda q: jax.lax.map(lambda key: g(q, key), keys).mean(),
        lambda q: jax.lax.scan(lambda t, key: (body(t, key, q), None), 0.0, keys)[0] / 2,
    ]

    @jax.jit
    def together(E: Estimator, q: Any) -> Any:
        plain = jax.value_and_grad(lambda q: g(q, E=E))(q)
        tangent = jax.jvp(g, (q,), (jax.tree.map(jnp.ones_like, q),))[1]
        return plain, tangent, [jax.value_and_grad(h)(q) for h in transformed]

    plain, tangent, results = together(E, q)
    for result in results:
        close(result, plain)
    close(tangent, sum(t.sum() for t in jax.tree.leaves(plain[1])))
    close(jax.grad(g)(q), plain[1])
