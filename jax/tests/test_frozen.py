"""The estimators compute what those of the torch library compute, from the same random numbers.

`tests/frozen/numbers.npz` of the repository holds values and gradients of the torch library, in
float64, at fixed seeds. Here they are computed again, for all setups that exist in both.
"""

# ruff: noqa: F403, F405  # estimators and distributions

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import stop_gradient

import catlog_jax
from catlog_jax import *
from support import narrow_uniforms, normals, uniforms

FILE = Path(__file__).parents[2] / "tests" / "frozen" / "numbers.npz"
PARAMETER = np.array([0.7, -0.4, 1.1, 0.3, -0.9, 0.5])
WEIGHTS, MATRIX = normals(6, seed=1), normals(6, 6, seed=2)
# Settings that this package does not have. Of many Latin draws, torch ranks the keys otherwise.
ONLY_IN_TORCH = r"per_variable|samples=12|suffix=|SCateR\(variables|categories|slope_entries|every"


def one_hot(x: Any) -> Any:
    return jax.nn.one_hot(x, 3).ravel()


def with_squares(x: Any) -> Any:
    return jnp.concatenate([x, x**2])


def projected(size: int, seed: int) -> Any:
    return lambda x: x.ravel() @ normals(size, 6, seed=seed)


def recurrent(theta: Any) -> Factors:
    def step(theta: Any, state: Any, previous: Any) -> Any:
        hidden, count = state
        _, decay, new, first, second, slope = theta
        is_first = previous == 2
        previous = jnp.where(is_first, 0, previous)
        hidden = jnp.where(
            is_first, hidden, jnp.tanh(hidden * decay + new * previous + 0.3 * count)
        )
        logits = jnp.stack([first * hidden, second - hidden * slope])
        return (hidden, count + previous), logits

    return Autoregressive(theta, (theta[0], jnp.zeros(())), step, 3, 2)


MASK = np.where([[False, False, True], [True, False, False]], -np.inf, 0.0)
LAST = np.where([[False, False, False], [False, False, True]], -np.inf, 0.0)
TWO = normals(2, 3)
# Parameters, q made from them and a mask, features of a point, and the mask.
CASES: dict[str, tuple[np.ndarray, Any, Any, Any]] = {  # No q here has `probs`.
    "bits": (normals(3), Bernoulli, with_squares, 0.0),
    "bits, two event dims": (normals(1, 2), Bernoulli, projected(2, seed=5), 0.0),
    "integers": (TWO, Categorical, one_hot, 0.0),
    "one integer": (normals(3), Categorical, lambda x: one_hot(x) @ normals(3, 6, seed=6), 0.0),
    "one-hot": (TWO, OneHot, jnp.ravel, 0.0),
    "masked": (TWO, Categorical, one_hot, MASK),
    "mixed cardinalities": (TWO, Categorical, one_hot, LAST),
    "recurrent, step": (normals(6, seed=3), recurrent, projected(3, seed=8), 0.0),
}


def f(z: Any, c: Any, outputs: bool) -> Any:
    sine = jnp.sin(z @ (WEIGHTS * c) + (z @ MATRIX) @ z)
    if not outputs:
        return sine
    network = jnp.exp((jnp.tanh(z @ MATRIX) * c).sum())
    return jnp.stack([sine, network, (z @ MATRIX * c).max()])


class Tape(Randomness):
    """Randomness that lists what is asked for, or reads it from arrays."""

    def __init__(self, q: Factors, arrays: list[Any] | None = None) -> None:
        super().__init__(jax.random.key(0), q)
        self.arrays = arrays
        self.shapes: list[tuple[int, ...]] = []

    def _drawn(self, shape: tuple[int, ...]) -> Any:
        self.shapes.append(shape)
        if self.arrays is None:
            return jnp.full(shape, 0.5)
        return self.arrays[len(self.shapes) - 1]


def batched(name: str, twister: np.random.RandomState, shape: tuple[int, ...]) -> Any:
    """Draw a request as torch does, for a batch of two, and put the batch first."""
    if name.startswith("IndeCateR") and len(shape) == 1:  # a deck of variables
        return narrow_uniforms(twister, 2, *shape)
    axis = 2 if (name, len(shape)) in (("GumbelRao", 4), ("SCateR", 3)) else 1
    return np.moveaxis(uniforms(twister, *shape[:axis], 2, *shape[axis:]), axis, 0)


with np.load(FILE) as file:
    rows = np.split(file["numbers"], file["ends"][:-1])
    FROZEN = {  # the numbers of the setups that exist here, too
        name: row
        for name, row in zip(file["names"].tolist(), rows, strict=True)
        if hasattr(catlog_jax, name.split("(")[0])
        and name.split(" | ")[1] in CASES
        and not re.search(ONLY_IN_TORCH, name)
    }


@cache
def program(E: Any, q: Any, features: Any, has_outputs: bool) -> Any:
    """Return the tapes of a call, and its compiled value and gradients for a batch of two.

    Cases that differ in numbers alone share it. What is learned is an estimator and its state.
    """
    tapes: list[Tape] = []

    def one(theta: Any, c: Any, learned: Any, mask: Any, arrays: Any) -> Any:
        E, options = learned
        tapes.append(Tape(factors := q(theta + mask), arrays))
        g = Evaluator(lambda x: f(features(x), c, has_outputs), factors, outputs=has_outputs)
        value, surrogate = E.estimate(g, factors, tapes[-1], **options)
        return stop_gradient(value) + surrogate - stop_gradient(surrogate)

    def total(theta: Any, c: Any, learned: Any, mask: Any, arrays: Any) -> Any:
        value = jax.vmap(one, (0, None, None, None, 0))(theta, c, learned, mask, arrays)
        weight = jnp.linspace(-1.0, 1.4, value.size).reshape(value.shape)
        return (weight * value).sum(), value

    return one, tapes, jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))


def numbers(setup: str) -> np.ndarray:
    """Return the values and gradients of calls in turn, as the torch library lists them."""
    estimator, label, outputs = setup.split(" | ")
    words = re.sub(r"=([a-z]+)\b", r"='\1'", estimator)  # the names of choices
    E = eval(words, vars(catlog_jax))
    start, q, features, mask = CASES[label]
    theta, options = np.stack([start, start / 2]), {}
    one, tapes, gradient = program(E, q, features, outputs.startswith("1"))
    if isinstance(E, REBAR):  # torch's parameters are eta and log(temperature), in float32
        eta, log = jnp.array([E.eta, np.log(E.temperature)], jnp.float32).astype(float)
        E = E.replace(eta=eta, temperature=jnp.exp(log))
    if isinstance(E, SlopeCateR):
        options = {"state": E.init(q(start).d, float)}
    jax.eval_shape(lambda theta: one(theta, PARAMETER, (E, options), mask, None), start)
    shapes = tapes[-1].shapes
    twister, parts = np.random.RandomState(7), []
    for _ in range(3 if isinstance(E, SlopeCateR) else 2):
        arrays = [batched(type(E).__name__, twister, shape) for shape in shapes]
        slopes, value = gradient(theta, PARAMETER, (E, options), mask, arrays)
        by_theta, by_c, (by_E, seen) = slopes
        parts += [value, by_theta, by_c]
        if isinstance(E, REBAR):
            parts += [by_E.eta, by_E.temperature * E.temperature]
        if isinstance(E, SlopeCateR):
            options = {"state": E.update(options["state"], seen["state"])}
    return np.concatenate([np.ravel(part) for part in parts])


GROUPS = sorted({name.split(" | ")[0] for name in FROZEN})


@pytest.mark.parametrize("group", GROUPS)
def test_same_numbers_as_the_torch_library(group: str) -> None:
    for setup, right in FROZEN.items():
        if setup.startswith(f"{group} | "):
            np.testing.assert_allclose(numbers(setup), right, 1e-10, 1e-10, err_msg=setup)


def test_most_setups_are_compared() -> None:
    assert len(FROZEN) > 350
