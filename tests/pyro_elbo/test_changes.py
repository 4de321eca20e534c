"""A guide or a model that changes between steps is looked at again, at the step that changes."""

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import EveryOutcome, assert_same, brute_force, gradients
from programs import Program, free

import catlog
import catlog.pyro
from catlog.testing.cases import normals

Edges = frozenset[tuple[int, int]]
PAIRS = ((0, 1), (0, 2), (1, 2))
ALL_EDGES = [frozenset(edges) for n in range(4) for edges in combinations(PAIRS, n)]
SUMMED = EveryOutcome(catlog.IndeCateR(1))  # it evaluates some single rows


def check_steps(elbo: Any, model: Program, guide: Program, steps: Sequence[Hashable]) -> None:
    """Check that the estimate of each step is that of enumeration; programs get the step."""
    for step in steps:
        assert_same(gradients(elbo, model, guide, step), brute_force(model, guide, step))


def network(infer: dict[str, Any]) -> tuple[Program, Program]:
    """Three bits; the argument of both programs says which depend on which in the guide."""

    def model(edges: Edges) -> None:
        x = [pyro.sample(f"x{i}", dist.Bernoulli(0.3)) for i in range(3)]
        location = x[0] - 2 * x[1] * x[2] + x[0] * x[2]
        pyro.sample("y", dist.Normal(location, 1.0), obs=torch.tensor(0.7))

    def guide(edges: Edges) -> None:
        logits, weights = pyro.param("logits", normals(3)), pyro.param("weights", normals(3))
        x: list[torch.Tensor] = []
        for j, logit in enumerate(logits):
            for edge, weight in zip(PAIRS, weights, strict=True):
                if edge in edges and edge[1] == j:
                    logit = logit + 2 * weight * x[edge[0]]
            x.append(pyro.sample(f"x{j}", dist.Bernoulli(logits=logit), infer={**infer}))

    return model, guide


@pytest.mark.parametrize("before", ALL_EDGES, ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_every_change_of_three_bits(before: Edges, nested: bool) -> None:
    """All bits as one distribution, or each one with an expectation of its own."""
    elbo = catlog.pyro.ELBO(catlog.Exact())
    model, guide = network({"estimator": catlog.Exact()} if nested else {})
    for after in ALL_EDGES:
        for edges in (before, after):
            found = gradients(elbo, model, guide, edges)
        assert_same(found, brute_force(model, guide, after))


@pytest.mark.parametrize("is_parent", [False, True])
@pytest.mark.parametrize("form", ["value", "mask", "site"])
def test_other_sites_that_begin_to_depend_on_a_bit(form: str, is_parent: bool) -> None:
    """A Delta site by its value or by its mask only, or another bit.

    Another Delta site depends on the bit from the start if the bit ``is_parent``.
    """

    def model(is_late: bool) -> None:
        x = pyro.sample("x", dist.Bernoulli(0.3))
        with pyro.poutine.mask(mask=(x == 1) | torch.tensor(not is_late or form != "mask")):
            pyro.sample("z", dist.Normal(0.5, 1.0))
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x + u, 1.0), obs=torch.tensor(0.8))
        w = pyro.sample("w", dist.Bernoulli(0.3))
        pyro.sample("v", dist.Normal(w, 1.0), obs=torch.tensor(0.4))

    def guide(is_late: bool) -> None:
        x = pyro.sample("x", dist.Bernoulli(logits=pyro.param("logit", torch.tensor(0.4))))
        pyro.sample("u", dist.Delta(pyro.param("u0", torch.tensor(0.2)) * (x if is_parent else 1)))
        logit = pyro.param("w_logit", torch.tensor(0.9))
        logit = logit * x if is_late and form == "site" else logit
        pyro.sample("w", dist.Bernoulli(logits=logit), infer={"estimator": catlog.Exact()})
        location = pyro.param("location", torch.tensor([-0.5, 1.5]))
        density = pyro.param("density", torch.tensor(0.7))
        value = location[x.long()] if is_late and form == "value" else location[0]
        with pyro.poutine.mask(mask=(x == 1) if is_late and form == "mask" else True):
            pyro.sample("z", dist.Delta(value, log_density=density))

    check_steps(catlog.pyro.ELBO(SUMMED), model, guide, (False, True, False, True))


@pytest.mark.parametrize("outer", [False, True])
def test_a_model_that_begins_to_depend_on_a_bit(outer: bool) -> None:
    """One row at a time does not show it by its shape; or what else depends on the outer bit
    depends on the inner one as well."""

    def model(is_late: bool) -> None:
        w = pyro.sample("w", dist.Bernoulli(0.3)) if outer else 0.0
        x = pyro.sample("x", dist.Bernoulli(0.3 + 0.2 * w))
        pyro.sample("y", dist.Normal(x if is_late else 0.5, 1.0), obs=torch.tensor(0.8))

    def guide(is_late: bool) -> None:
        for i, name in enumerate("xw" if outer else "x"):
            infer = {"estimator": catlog.Exact(limit=100 + i)} if outer else {}
            free(name, seed=i, infer=infer)

    check_steps(catlog.pyro.ELBO(SUMMED), model, guide, (False, True, False, True))


@pytest.mark.parametrize("estimator", [catlog.Exact(), SUMMED], ids=["Exact", "IndeCateR"])
def test_a_factor_that_changes_what_it_depends_on(estimator: catlog.Estimator) -> None:
    """It comes and goes, leaves its plate, or reads the bits."""

    def model(form: str) -> None:
        with pyro.plate("bits", 2):
            x = pyro.sample("x", dist.Bernoulli(0.3))
            if form == "inside":
                pyro.factor("f", x.square() * 2)
        if form == "constant":
            pyro.factor("f", torch.tensor(0.7))
        elif form == "outside":
            pyro.factor("f", x.sum(-1, keepdim=True).square())

    steps = ("constant", "inside", "outside", "constant", "none", "outside", "none", "inside")
    check_steps(
        catlog.pyro.ELBO(estimator), model, lambda form: free("x", 2, seed=33, bits=2), steps
    )


def test_control_flow_that_begins_later_is_refused() -> None:
    def program(is_late: bool, is_guide: bool) -> None:
        x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.6)))
        pyro.sample("w", dist.Bernoulli(0.3 if is_guide and is_late and x else 0.6))

    model, guide = partial(program, is_guide=False), partial(program, is_guide=True)
    elbo = catlog.pyro.ELBO(catlog.Exact())
    elbo.loss(model, guide, False)
    with pytest.raises(RuntimeError, match=r"guide cannot be vectorised"):
        elbo.loss(model, guide, True)
    elbo.loss(model, guide, False)


@pytest.mark.parametrize("particles", [1, 2])
def test_dependences_are_found_once(particles: int) -> None:
    """Also where every run of the guide makes its own estimator, until that is another one."""
    runs = 0

    def model(samples: int) -> None:
        pyro.sample("x", dist.Bernoulli(0.3))

    def guide(samples: int) -> None:
        nonlocal runs
        runs += 1
        pyro.sample("x", dist.Bernoulli(0.6), infer={"estimator": catlog.RLOO(samples)})

    elbo = catlog.pyro.ELBO(num_particles=particles, vectorize_particles=True)
    counts = []
    for samples in (2, 2, 3, 3):
        runs = 0
        elbo.loss(model, guide, samples)
        counts.append(runs)
    assert counts[0] > counts[1] == counts[3] == 1
    assert counts[2] > 1
