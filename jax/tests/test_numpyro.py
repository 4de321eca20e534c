"""The ELBO for NumPyro: gradients against sums over all values, and against TraceGraph_ELBO."""

# ruff: noqa: F403, F405  # estimators and distributions

from functools import cache
from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import TraceGraph_ELBO
from numpyro.infer.util import log_density

from catlog_jax import *
from catlog_jax.factors import view
from catlog_jax.numpyro import ELBO
from support import KEY, LARGEST_Z, close, largest_z, normals

DATA = jnp.asarray(normals(4, 3, seed=1))
W = jnp.asarray(normals(2, 3, seed=2))


def vae_model() -> None:
    w = numpyro.param("w")
    with numpyro.plate("rows", 4):
        z = numpyro.sample("z", dist.Bernoulli(logits=jnp.full((4, 2), -0.5)).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.tanh(z @ w), 0.8).to_event(1), obs=DATA)


def vae_guide() -> None:
    with numpyro.plate("rows", 4):
        numpyro.sample("z", dist.Bernoulli(logits=DATA @ numpyro.param("e")).to_event(1))


def subsampled_model() -> None:
    w = numpyro.param("w")
    rows = numpyro.plate("rows", 4, subsample_size=2)
    with rows as index, numpyro.handlers.mask(mask=index != 3):
        z = numpyro.sample("z", dist.Categorical(logits=jnp.arange(3.0)))
        numpyro.sample("y", dist.Normal(w[z], 0.8), obs=DATA[index, 0])


def subsampled_guide() -> None:
    e = numpyro.param("e")
    with numpyro.plate("rows", 4, subsample_size=2) as rows:
        numpyro.sample("z", dist.Categorical(logits=e[rows]))


def tree_model() -> None:
    w = numpyro.param("w")
    a = numpyro.sample("a", dist.Categorical(logits=jnp.array([0.2, 0.0, -0.3])))
    with numpyro.plate("rows", 2):
        b = numpyro.sample("b", dist.Bernoulli(logits=jnp.asarray(w)[a]))
        numpyro.sample("y", dist.Normal(b + 0.5 * a, 0.8), obs=DATA[:2, 0])


def tree_guide() -> None:
    a = numpyro.sample("a", dist.Categorical(logits=numpyro.param("a_logits")))
    with numpyro.plate("rows", 2) as rows:
        numpyro.sample("b", dist.Bernoulli(logits=jnp.asarray(numpyro.param("b_logits"))[rows, a]))


def nested_model() -> None:
    w = numpyro.param("w")
    with numpyro.plate("outer", 2, dim=-2), numpyro.plate("inner", 2, dim=-1):
        b = numpyro.sample("b", dist.Bernoulli(0.4))
        c = numpyro.sample("c", dist.Categorical(logits=w[b]))
        numpyro.sample("y", dist.Normal(b + 1.0 * c, 0.8), obs=DATA[:2, :2])


def nested_guide() -> None:
    e = numpyro.param("e")
    inner, outer = numpyro.plate("inner", 2, dim=-1), numpyro.plate("outer", 2, dim=-2)
    with outer, inner:
        b = numpyro.sample("b", dist.Bernoulli(logits=e[..., 0]))
        logits = e[..., 1:] * (1.0 + b[..., None])
        numpyro.sample("c", dist.Categorical(logits=logits))


def mixed_model() -> None:
    bias = numpyro.param("bias")
    z = numpyro.sample("z", dist.Bernoulli(logits=jnp.full(2, -0.5)).to_event(1))
    c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(a, 1.0))
    mean = z @ W + bias + (a + b) * jnp.array([0.0, 1.0, -1.0])[c]
    numpyro.sample("y", dist.Normal(mean, 0.8).to_event(1), obs=DATA[0])


def mixed_guide() -> None:
    a = numpyro.sample("a", dist.Normal(numpyro.param("m"), 0.5))
    numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("z_logits")).to_event(1))
    c = numpyro.sample("c", dist.Categorical(logits=numpyro.param("c_logits") + a))
    numpyro.sample("b", dist.Normal(numpyro.param("means")[c], 0.7))


MIXED = {"bias": normals(3), "m": np.array(0.3), "means": normals(3, seed=11)}
MIXED |= {"z_logits": normals(2, seed=9), "c_logits": normals(3, seed=10)}
ROWS = {"w": normals(3, seed=4), "e": normals(4, 3, seed=5)}
TREE = {"w": normals(3, seed=4), "a_logits": normals(3), "b_logits": normals(2, 3, seed=6)}
NESTED = {"w": normals(2, 3, seed=7), "e": normals(2, 2, 4, seed=8)}
# A model, a guide, and their parameters.
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "local bits": (vae_model, vae_guide, {"w": W, "e": normals(3, 2, seed=3)}),
    "subsampled": (subsampled_model, subsampled_guide, ROWS),
    "dependent": (tree_model, tree_guide, TREE),
    "nested plates": (nested_model, nested_guide, NESTED),
    "continuous": (mixed_model, mixed_guide, MIXED),
}


def runs(elbo: Any, name: str, count: int) -> tuple[Any, Any]:
    """Return losses and gradients, for many keys."""
    model, guide, params = MODELS[name]
    keys = jax.random.split(KEY, count)

    def loss(params: Any, key: Any) -> Any:
        return elbo.loss(key, params, model, guide)

    result: tuple[Any, Any] = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))(params, keys)
    return result


@cache
def by_hand(name: str) -> tuple[Any, Any]:
    """Return the loss and its gradient, as a sum over all values of the discrete sites."""
    model, guide, params = MODELS[name]
    subsets, scale = [{}], 1.0
    if name == "subsampled":  # the mean over all subsets of two of the four rows
        subsets, scale = [{"rows": jnp.array(rows)} for rows in combinations(range(4), 2)], 2.0
    sites = trace(seed(substitute(guide, data=params), KEY)).get_trace().items()
    discrete = {site: view(at["fn"]) for site, at in sites if at["type"] == "sample"}
    every = product(*(range(q.k) for q in discrete.values() for _ in range(q.d)))
    flat, values = jnp.array(list(every)), {}
    for site, q in discrete.items():
        values[site], flat = flat[:, : q.d].reshape(-1, *q.shape), flat[:, q.d :]

    def loss(params: Any) -> Any:
        def term(values: Any, rows: Any) -> Any:
            log_p, log_q = (
                log_density(program, (), {}, params | values | rows)[0]
                for program in (model, guide)
            )
            return jnp.exp(log_q / scale) * (log_q - log_p)

        parts = [jax.vmap(lambda v, rows=rows: term(v, rows))(values).sum() for rows in subsets]
        return sum(parts) / len(subsets)

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize("name", ["local bits", "dependent", "nested plates"])
def test_exact_is_the_sum_over_all_values(name: str) -> None:
    close(jax.tree.map(lambda run: run[0], runs(ELBO(Exact()), name, 1)), by_hand(name))


ESTIMATORS = {
    "local bits": [RLOO(2), IndeCateR(), SCateR(), DisARM(), SlopeCateR(2)],
    "subsampled": [Exact(), RLOO(2), IndeCateR(), UnorderedSet(2)],
    "dependent": [Reinforce(), RLOO(2), SCateR(), UnorderedSet(2)],
    "nested plates": [RLOO(2), SCateR()],
    "continuous": [Exact(), RLOO(2), IndeCateR()],
}


@cache
def of_trace_graph(name: str) -> tuple[Any, Any]:
    """Return the means over many runs, and their standard errors."""
    graph = runs(TraceGraph_ELBO(), name, 100_000)
    mean = jax.tree.map(lambda run: run.mean(0), graph)
    return mean, jax.tree.map(lambda run: run.std(0) / len(run) ** 0.5, graph)


@pytest.mark.parametrize(
    ("name", "E"), [(n, E) for n in ESTIMATORS for E in ESTIMATORS[n]], ids=str
)
def test_gradients_are_unbiased(name: str, E: Estimator) -> None:
    right = of_trace_graph(name) if name == "continuous" else (by_hand(name),)
    assert largest_z(runs(ELBO(E), name, 100_000), *right) < LARGEST_Z


@pytest.mark.parametrize(
    ("name", "loss"),
    [("local bits", ELBO(StraightThrough())), ("subsampled", TraceGraph_ELBO())],
    ids=["StraightThrough", "TraceGraph_ELBO"],  # NumPyro scales the score function twice
)
def test_a_bias_would_be_seen(name: str, loss: Any) -> None:
    assert largest_z(runs(loss, name, 20_000), by_hand(name)) > 20


def test_guides_without_discrete_sites_are_reparameterised() -> None:
    def model() -> None:
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(a, 1.0), obs=2.0)

    def guide() -> None:
        numpyro.sample("a", dist.Normal(numpyro.param("m"), 1.0))

    gradient = jax.grad(lambda m, key: ELBO(RLOO()).loss(key, {"m": m}, model, guide))
    runs = jax.vmap(gradient, (None, 0))(0.3, jax.random.split(KEY, 1000))
    assert largest_z(runs, jnp.array(2 * 0.3 - 2)) < LARGEST_Z


def test_elements_of_a_plate_have_their_own_baselines() -> None:
    """What is added to the cost of one row does not change the gradients of the other rows."""

    def model(added: Any) -> None:
        with numpyro.plate("rows", 4) as rows:
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.factor("f", z * DATA[:, 0] + added * z * (rows == 0))

    def guide(added: Any) -> None:
        with numpyro.plate("rows", 4):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("e")))

    @jax.jit
    def gradients(added: Any) -> Any:
        loss = lambda e, key: ELBO(RLOO(3)).loss(key, {"e": e}, model, guide, added)  # noqa: E731
        return jax.vmap(jax.grad(loss), (None, 0))(DATA[:, 1], jax.random.split(KEY, 100))

    without, added = gradients(0.0), gradients(100.0)
    assert added[:, 0].var() > 100 * without[:, 0].var()
    close(added[:, 1:], without[:, 1:])


def latent(name: str, fn: Any) -> Any:
    return lambda: numpyro.sample(name, fn)


def mutable() -> None:
    numpyro.primitives.mutable("state", 0.0)
    numpyro.sample("z", dist.Bernoulli(0.5))


def in_scan() -> None:
    def step(carry: Any, _: Any) -> Any:
        return carry, numpyro.sample("z", dist.Bernoulli(0.5))

    scan(step, 0.0, jnp.arange(3))


def in_turn() -> None:
    numpyro.sample("b", dist.Bernoulli(logits=1.0 * numpyro.sample("c", BIT)))


def bound(model: Any, guide: Any, E: Estimator = RLOO()) -> Any:
    return lambda: ELBO(E).loss(KEY, {}, model, guide)


BIT, THREE = dist.Bernoulli(0.5), latent("c", dist.Categorical(jnp.ones(3) / 3))
COUNT = latent("n", dist.Poisson(3.0))
REFUSED = [
    (bound(COUNT, COUNT), "'n' .*Poisson"),
    (bound(latent("z", BIT), lambda: None), "'z' of the model is not in the guide"),
    (bound(lambda: None, latent("z", BIT)), "'z' of the guide is not in the model"),
    (bound(mutable, latent("z", BIT)), "'state' of the model is mutable"),
    (bound(in_scan, in_scan), "'z' of the guide is discrete, and in control flow"),
    (bound(THREE, THREE, ReinMax()), "ReinMax takes Bernoulli or OneHot"),
    (bound(in_turn, in_turn, IndeCateR()), "IndeCateR takes independent variables"),
    (lambda: ELBO(REBAR()), "between bits"),
    (lambda: ELBO(GumbelSoftmax()), "between bits"),
    (lambda: ELBO(3), "must be an estimator"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_supported_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises((NotImplementedError, TypeError), match=message) as caught:
        call()
    notes = getattr(caught.value, "__notes__", [])
    assert any("sites of the guide: c" in note for note in notes) == ("takes" in message)
