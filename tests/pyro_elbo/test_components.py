"""Sites that nothing connects are not summed jointly, where that would cost more."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import assert_same, brute_force, gradients
from programs import categories, free
from pyro.infer import TraceEnum_ELBO

import catlog
import catlog.pyro
from catlog.testing.cases import normals

MARKED = {"enumerate": "parallel"}
SITES = 30
y = normals(SITES, seed=60)
RUNS: list[int] = []  # the most rows of a site, for every run of the model


def model() -> None:
    """Bits of a sequential plate, each with its own observation."""
    RUNS.append(0)
    for i in pyro.plate("data", SITES):
        x = pyro.sample(f"x{i}", dist.Bernoulli(0.3))
        pyro.sample(f"y{i}", dist.Normal(x, 1.0), obs=y[i])
        RUNS[-1] = max(RUNS[-1], len(x.reshape(-1)))


def guide() -> None:
    for i in pyro.plate("data", SITES):
        free(f"x{i}", seed=i, infer=dict(MARKED))


def test_independent_sites_are_summed_in_few_runs() -> None:
    """2^30 points in one sum; here the sums have up to 16, four sites each."""
    elbo = catlog.pyro.ELBO()
    wanted = gradients(TraceEnum_ELBO(max_plate_nesting=0), model, guide)
    assert_same(gradients(elbo, model, guide), wanted)
    RUNS.clear()
    assert_same(gradients(elbo, model, guide), wanted)
    assert sorted(RUNS) == [4] + [16] * 7


@pytest.mark.parametrize(
    ("estimator", "rows"), [(catlog.IndeCateR(1), [1, SITES]), (catlog.RLOO(4), [4])], ids=str
)
def test_sites_share_runs_where_it_costs_no_more(
    estimator: catlog.Estimator, rows: list[int]
) -> None:
    """IndeCateR evaluates the draw and its changes; RLOO the draws."""
    unmarked = pyro.poutine.infer_config(guide, lambda site: {"enumerate": None})
    elbo = catlog.pyro.ELBO(estimator)
    for _ in range(2):
        RUNS.clear()
        elbo.loss(model, unmarked)
    assert rows == RUNS


def test_connected_sites_are_summed_together() -> None:
    """Pairs of sites, tied by an observation, by a guide site, by a parent or by nothing."""

    def model() -> None:
        x = [pyro.sample(f"x{i}", dist.Categorical(torch.ones(3))) for i in range(2)]
        x += [pyro.sample(f"x{i}", dist.Bernoulli(0.3)) for i in range(2, 8)]
        z = pyro.sample("z", dist.Normal(0.5, 1.0))
        for i, location in enumerate((1.0 * x[0] - x[0] * x[1], z, x[5] - x[4], x[6] * 2)):
            pyro.sample(f"y{i}", dist.Normal(location, 1.0), obs=y[i])

    def guide() -> None:
        x = [categories(f"x{i}", 3, seed=62 + i, infer=dict(MARKED)) for i in range(2)]
        x += [free(f"x{i}", seed=62 + i, infer={}) for i in range(2, 5)]
        weight = pyro.param("weight", torch.tensor(0.6))
        pyro.sample("x5", dist.Bernoulli(logits=weight * x[4] - 0.2))
        x += [free(f"x{i}", seed=62 + i, infer=dict(MARKED)) for i in (6, 7)]
        pyro.sample("z", dist.Delta(weight * (x[2] + x[3] * x[2])))

    elbo = catlog.pyro.ELBO(catlog.Exact())
    assert_same(gradients(elbo, model, guide), brute_force(model, guide))
