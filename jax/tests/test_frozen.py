"""The estimators compute what those of the torch library compute, from the same random numbers.

`tests/frozen/numbers.npz` of the repository holds values and gradients of the torch library, in
float64, at fixed seeds. Here they are computed again, for all setups that exist in both.
"""

# ruff: noqa: F403, F405  # estimators and distributions

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catlog_jax
from catlog_jax import *
from torch_numbers import TorchGenerator, normals

FILE = Path(__file__).parents[2] / "tests" / "frozen" / "numbers.npz"
PARAMETER = np.array([0.7, -0.4, 1.1, 0.3, -0.9, 0.5])
WEIGHTS, MATRIX = normals(6, seed=1), normals(6, 6, seed=2)
# Settings that this package does not have. Of many Latin draws, torch ranks the keys otherwise.
ONLY_IN_TORCH = r"per_variable|samples=12|suffix=|SCateR\(variables|categories|slope_entries|every"


class Case(NamedTuple):
    """A distribution: its parameters, q made from them and a mask, and features of a point."""

    theta: np.ndarray
    q: Callable[[Any], Factors]
    features: Callable[[Any], Any]
    mask: Any = 0.0


def one_hot(x: Any) -> Any:
    return jax.nn.one_hot(x, 3).ravel()


def with_squares(x: Any) -> Any:
    return jnp.concatenate([x, x**2])


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
CASES = {  # Those by `probs` are not here: no distribution of this package has them.
    "bits": Case(normals(3), Bernoulli, with_squares),
    "bits, two event dims": Case(
        normals(1, 2), Bernoulli, lambda x: x.ravel() @ normals(2, 6, seed=5)
    ),
    "integers": Case(normals(2, 3), Categorical, one_hot),
    "one integer": Case(normals(3), Categorical, lambda x: one_hot(x) @ normals(3, 6, seed=6)),
    "one-hot": Case(normals(2, 3), OneHot, jnp.ravel),
    "masked": Case(normals(2, 3), Categorical, one_hot, MASK),
    "mixed cardinalities": Case(normals(2, 3), Categorical, one_hot, LAST),
    "recurrent, step": Case(normals(6, seed=3), recurrent, lambda x: x @ normals(3, 6, seed=8)),
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


def batched(name: str, generator: TorchGenerator, shape: tuple[int, ...]) -> Any:
    """Draw a request as torch does, for a batch of two, and put the batch first."""
    if name.startswith("IndeCateR") and len(shape) == 1:  # a deck of variables
        return generator.narrow_uniform(2, *shape)
    axis = 2 if name == "GumbelRao" and len(shape) == 4 else 1
    axis = 2 if name == "SCateR" and len(shape) == 3 else axis
    return np.moveaxis(generator.uniform(*shape[:axis], 2, *shape[axis:]), axis, 0)


def read() -> dict[str, np.ndarray]:
    """Return the numbers of the setups that exist here, too."""
    with np.load(FILE) as file:
        rows = np.split(file["numbers"], file["ends"][:-1])
        numbers = dict(zip(file["names"].tolist(), rows, strict=True))
    return {
        name: row
        for name, row in numbers.items()
        if hasattr(catlog_jax, name.split("(")[0])
        and name.split(" | ")[1] in CASES
        and not re.search(ONLY_IN_TORCH, name)
    }


FROZEN = read()


@cache
def program(E: Any, q: Any, features: Any, has_outputs: bool) -> Any:
    """Return the tapes of a call, and its compiled value and gradients for a batch of two.

    Cases that differ in numbers alone share it.
    """
    tapes: list[Tape] = []

    def one(theta: Any, c: Any, learned: Any, mask: Any, arrays: Any) -> Any:
        now, options = E, learned
        if isinstance(E, REBAR):
            now = E.replace(eta=learned["eta"], temperature=jnp.exp(learned["log"]))
            options = {}
        tapes.append(Tape(factors := q(theta + mask), arrays))
        g = lambda x: f(features(x), c, has_outputs)  # noqa: E731
        return now.evaluate(g, factors, tapes[-1], outputs=has_outputs, **options)

    def total(theta: Any, c: Any, learned: Any, mask: Any, arrays: Any) -> Any:
        value = jax.vmap(one, (0, None, None, None, 0))(theta, c, learned, mask, arrays)
        weight = jnp.linspace(-1.0, 1.4, value.size).reshape(value.shape)
        return (weight * value).sum(), value

    return one, tapes, jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))


def numbers(setup: str) -> np.ndarray:
    """Return the values and gradients of calls in turn, as the torch library lists them."""
    estimator, label, outputs = setup.split(" | ")
    name = estimator.split("(")[0]
    words = re.sub(r"=([a-z]+)\b", r"='\1'", estimator)  # the names of choices
    E = eval(words, vars(catlog_jax))
    case, has_outputs = CASES[label], outputs.startswith("1")
    theta = np.stack([case.theta, case.theta / 2])
    learned: dict[str, Any] = {}
    if isinstance(E, REBAR):
        start = np.array([E.eta, np.log(E.temperature)], np.float32)  # as torch's parameters
        learned = {"eta": jnp.float64(start[0]), "log": jnp.float64(start[1])}
    if isinstance(E, SlopeCateR):
        learned = {"state": E.init(theta[0].size // (3 if label == "one-hot" else 1), float)}
    one, tapes, gradient = program(E, case.q, case.features, has_outputs)
    jax.eval_shape(lambda theta: one(theta, PARAMETER, learned, case.mask, None), theta[0])
    shapes = tapes[-1].shapes
    generator, parts = TorchGenerator(7), []
    for _ in range(3 if isinstance(E, SlopeCateR) else 2):
        arrays = [jnp.asarray(batched(name, generator, shape)) for shape in shapes]
        results = gradient(theta, PARAMETER, learned, case.mask, arrays)
        (by_theta, by_c, seen), value = results
        parts += [value, by_theta, by_c]
        if isinstance(E, REBAR):
            parts += [seen["eta"], seen["log"]]
        if isinstance(E, SlopeCateR):
            learned = {"state": E.update(learned["state"], seen["state"])}
    return np.concatenate([np.ravel(part) for part in parts])


GROUPS = sorted({name.split(" | ")[0] for name in FROZEN})


@pytest.mark.parametrize("group", GROUPS)
def test_same_numbers_as_the_torch_library(group: str) -> None:
    setups = [name for name in FROZEN if name.split(" | ")[0] == group]
    for setup in setups:
        np.testing.assert_allclose(
            numbers(setup), FROZEN[setup], rtol=1e-10, atol=1e-10, err_msg=setup
        )


def test_most_setups_are_compared() -> None:
    assert len(FROZEN) > 350
