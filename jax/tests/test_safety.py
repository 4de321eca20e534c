"""What is refused, also while tracing; masks; batches; distributions of other libraries."""

# ruff: noqa: F403, F405  # estimators and distributions

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from catlog_jax import *
from support import KEY, close
from test_estimators import ONE_OF_EACH, Q, first, points

BITS = Q["bits"]
ZEROS = jnp.zeros(3)


def loss(E: Estimator, logits: Any, f: Any = lambda x: first(0.3, x), **options: Any) -> Any:
    return E(KEY, f, Bernoulli(logits), **options)


@pytest.mark.parametrize("E", [Reinforce(2), RLOO(2)], ids=str)
@pytest.mark.parametrize("kind", ["bits", "one-hot", "Markov"])
def test_second_derivatives_are_right(E: Estimator, kind: str) -> None:
    q = Q[kind]

    def hessian(E: Estimator, x: Any) -> Any:
        return jax.hessian(lambda q: E(KEY, lambda x: first(0.3, x), q, x=x))(q)

    exact = jax.jit(hessian, static_argnums=0)(Exact(), None)
    assert max(jnp.abs(h).max() for h in jax.tree.leaves(exact)) > 0.01
    x, p = points(q)
    pair = jnp.stack(jnp.meshgrid(*2 * [jnp.arange(len(x))]), -1).reshape(-1, 2)
    runs = jax.jit(jax.vmap(lambda row: hessian(E, x[row])))(pair)
    close(jax.tree.map(lambda t: jnp.tensordot(p[pair].prod(1), t, 1), runs), exact)


@pytest.mark.parametrize("E", [E for E in ONE_OF_EACH if not E.twice], ids=str)
def test_wrong_second_derivatives_are_refused_while_tracing(E: Estimator) -> None:
    g = lambda logits: loss(E, logits)  # noqa: E731
    for second in (jax.hessian(g), jax.grad(lambda z: jax.grad(g)(z).sum())):
        with pytest.raises(TypeError, match="second derivatives"):
            jax.eval_shape(second, ZEROS)
    # Those of a factor of the estimate are right.
    jax.eval_shape(jax.grad(lambda w: jax.grad(lambda z: w**2 * g(z))(ZEROS).sum()), 2.0)


STEPS = [lambda x: (x > 0.5).sum() * 1.0, lambda x: jnp.round(x).sum(), lambda x: jnp.ones(())]


@pytest.mark.parametrize("E", [E for E in ONE_OF_EACH if E.differentiates_f], ids=str)
@pytest.mark.parametrize("f", STEPS)
def test_a_function_without_a_derivative_is_refused_while_tracing(E: Estimator, f: Any) -> None:
    with pytest.raises(ValueError, match="does not depend differentiably on x"):
        jax.eval_shape(lambda z: loss(E, z, f), ZEROS)


def f_that_fails_at(category: int, seen: set[int]) -> Any:
    def f(x: Any) -> Any:
        jax.debug.callback(lambda c: seen.update(np.ravel(c).tolist()), x[0])
        return jnp.where(x[0] == category, jnp.nan, first(0.4, jax.nn.one_hot(x, 3)))

    return f


BLACK_BOX = [RLOO(3), IndeCateR(), UnorderedSet(3), Exact(), IndeCateR(variables=1, control="none")]


@pytest.mark.parametrize("E", BLACK_BOX, ids=str)
def test_impossible_categories_are_never_seen_and_have_no_gradient(E: Estimator) -> None:
    logits = Q["integers"].logits.at[0, 1].set(-jnp.inf)
    seen: set[int] = set()
    g = lambda z: E(KEY, f_that_fails_at(1, seen), Categorical(z))  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(g))(logits)
    jax.effects_barrier()
    assert {0} <= seen <= {0, 2}
    close(value, value)
    close(gradient[0, 1], 0.0)
    close(gradient, gradient)
    assert jnp.isnan(Exact()(KEY, f_that_fails_at(2, seen), Categorical(logits)))


def test_a_batch_is_a_map() -> None:
    logits, data = jnp.asarray(np.ones((5, 3))), jnp.arange(15.0).reshape(5, 3)
    f = lambda x, datum: (x @ datum) ** 2  # noqa: E731
    for E in (RLOO(4), IndeCateR(chunk_size=2)):
        one = lambda key, z, datum, E=E: E(key, lambda x: f(x, datum), Bernoulli(z))  # noqa: E731
        keys = jax.random.split(KEY, 5)
        close(E.batch(KEY, f, Bernoulli(logits), data), jax.vmap(one)(keys, logits, data))


def test_chunks_know_the_batch() -> None:
    def program(batch: int) -> str:
        logits = jnp.zeros((batch, 40))
        return str(jax.make_jaxpr(lambda q: IndeCateR().batch(KEY, jnp.sum, q))(Bernoulli(logits)))

    assert "scan" in program(256)
    assert "scan" not in program(2)


LOGITS, TABLE = BITS.logits, Q["integers"].logits
OF_OTHERS = [
    ("bits", distrax.Independent(distrax.Bernoulli(LOGITS))),
    ("bits", dist.Bernoulli(logits=LOGITS).to_event(1)),
    ("bits", dist.Bernoulli(probs=jax.nn.sigmoid(LOGITS))),
    ("integers", distrax.Categorical(TABLE)),
    ("integers", dist.Categorical(probs=jax.nn.softmax(TABLE)).mask(True)),
    ("one-hot", distrax.OneHotCategorical(TABLE)),
]


@pytest.mark.parametrize(("kind", "q"), OF_OTHERS)
def test_distributions_of_distrax_and_numpyro(kind: str, q: Any) -> None:
    value, same = (RLOO()(KEY, lambda x: first(0.1, x), of) for of in (q, Q[kind]))
    close(value, same)


WIDE = Autoregressive(0, 0, lambda params, state, previous: (state, jnp.zeros(5)), 2, 4)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: RLOO(1), ValueError, "RLOO: `samples` must be an int of at least 2, but it is 1"),
    (lambda: IndeCateR(samples=2.0), ValueError, "IndeCateR: `samples` must be an int"),
    (lambda: IndeCateR(sampling="Latin"), ValueError, "`sampling` must be one of 'independent'"),
    (lambda: GumbelSoftmax(temperature=0.0), ValueError, "`temperature` must be positive"),
    (lambda: Exact(chunk_size=0), ValueError, "`chunk_size` must be an int of at least 1"),
    (lambda: GumbelSoftmax(hard=1), ValueError, "`hard` must be True or False"),
    (lambda: SlopeCateR(decay=2.0), ValueError, "`decay` must be in"),
    (lambda: UnorderedSet(11), ValueError, "`samples` must be an int from 2 to 10"),
    (lambda: loss(RLOO(), ZEROS, lambda x: x), ValueError, "f must return a scalar"),
    (lambda: loss(RLOO(), ZEROS, lambda x: jnp.int32(3)), TypeError, "floats or bools"),
    (lambda: loss(RLOO(), ZEROS, 3.0), TypeError, "f must be a function"),
    (lambda: loss(REBAR(), ZEROS, outputs=True), ValueError, "functions with one output"),
    (lambda: loss(RLOO(), ZEROS, x=jnp.ones((2, 4))), ValueError, "x must have shape"),
    (lambda: loss(ARMS(), ZEROS, x=jnp.ones((2, 3))), ValueError, "give `noise` instead"),
    (lambda: loss(RLOO(), ZEROS, noise=ZEROS), ValueError, "RLOO used"),
    (lambda: loss(GumbelSoftmax(), ZEROS, noise=ZEROS), ValueError, "come next"),
    (lambda: loss(Exact(limit=7), ZEROS), ValueError, "points, more than `limit` = 7"),
    (lambda: loss(IndeCateR(variables=4), ZEROS), ValueError, "`variables` must be at most 3"),
    (lambda: IndeCateR()(KEY, jnp.sum, Q["Markov"]), TypeError, "takes independent variables"),
    (lambda: ReinMax()(KEY, jnp.sum, Q["integers"]), TypeError, "takes Bernoulli or OneHot"),
    (lambda: RLOO()(KEY, jnp.sum, 3), TypeError, "q must be one of"),
    (lambda: RLOO()(KEY, jnp.sum, Bernoulli(jnp.zeros(3, int))), TypeError, "must be floats"),
    (lambda: RLOO()(KEY, jnp.sum, Categorical(jnp.zeros((0, 3)))), ValueError, "at least one"),
    (lambda: sample(KEY, BITS, RLOO()), TypeError, "sample: `estimator` must be ReinMax"),
    (lambda: RLOO()(KEY, jnp.sum, MarkovChain(ZEROS, TABLE, 2)), ValueError, "`transition` must"),
    (lambda: RLOO()(KEY, jnp.sum, WIDE), ValueError, "must be 4 floats"),
    (lambda: loss(SlopeCateR(), ZEROS, state=SlopeCateR().init(4)), ValueError, "from init.3."),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_settings_are_shown_and_replaced() -> None:
    assert repr(IndeCateR(3, sampling="latin")) == "IndeCateR(3, sampling='latin')"
    assert RLOO(2).replace(samples=5) == RLOO(5)
    assert {E.evaluations(BITS) for E in (RLOO(4), IndeCateR(), SlopeCateR(2))} == {4}
