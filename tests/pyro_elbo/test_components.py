"""Sites that nothing connects are not summed jointly, where that would cost more."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import EveryOutcome, assert_same, brute_force, gradients
from programs import Program
from pyro.infer import TraceEnum_ELBO

import catlog
import catlog.pyro
from catlog.testing.cases import normals


def sequential(sites: int) -> tuple[Program, Program]:
    """Bits of a sequential plate, each with its own observation."""
    y = normals(sites, seed=60)
    runs: list[int] = []

    def model() -> None:
        runs.append(0)
        for i in pyro.plate("data", sites):
            x = pyro.sample(f"x{i}", dist.Bernoulli(0.3))
            pyro.sample(f"y{i}", dist.Normal(x, 1.0), obs=y[i])
            runs[-1] = max(runs[-1], len(x.reshape(-1)))

    def guide() -> None:
        logits = pyro.param("logits", normals(sites, seed=61))
        for i in pyro.plate("data", sites):
            bernoulli = dist.Bernoulli(logits=logits[i])
            pyro.sample(f"x{i}", bernoulli, infer={"enumerate": "parallel"})

    model.runs = runs  # type: ignore[attr-defined]
    return model, guide


def test_thirty_independent_sites_are_summed_in_few_runs() -> None:
    """2^30 points in one sum; here the sums have up to 16, four sites each."""
    model, guide = sequential(30)
    elbo = catlog.pyro.ELBO()
    wanted = gradients(TraceEnum_ELBO(max_plate_nesting=0), model, guide)
    assert_same(gradients(elbo, model, guide), wanted)
    model.runs.clear()  # type: ignore[attr-defined]
    assert_same(gradients(elbo, model, guide), wanted)
    assert model.runs == [16] * 7 + [4]  # type: ignore[attr-defined]


def test_sites_share_runs_where_it_costs_no_more() -> None:
    """IndeCateR evaluates the draw and its changes; RLOO the draws."""
    model, guide = sequential(30)
    unmarked = pyro.poutine.infer_config(guide, lambda site: {"enumerate": None})
    for estimator, rows in ((catlog.IndeCateR(1), [1, 30]), (catlog.RLOO(4), [4])):
        elbo = catlog.pyro.ELBO(estimator)
        elbo.loss(model, unmarked)
        model.runs.clear()  # type: ignore[attr-defined]
        elbo.loss(model, unmarked)
        assert model.runs == rows  # type: ignore[attr-defined]


def pairs(marked: dict[str, object], unmarked: dict[str, object]) -> tuple[Program, Program]:
    """Pairs of sites, tied by an observation, by a guide site, by a parent or by nothing."""

    def model() -> None:
        x = [pyro.sample(f"x{i}", dist.Categorical(torch.ones(3))) for i in range(2)]
        x += [pyro.sample(f"x{i}", dist.Bernoulli(0.3)) for i in range(2, 8)]
        pyro.sample("y0", dist.Normal(1.0 * x[0] - x[0] * x[1], 1.0), obs=torch.tensor(0.7))
        z = pyro.sample("z", dist.Normal(0.5, 1.0))
        pyro.sample("y1", dist.Normal(z, 1.0), obs=torch.tensor(-0.7))
        pyro.sample("y2", dist.Normal(x[5] - x[4], 1.0), obs=torch.tensor(0.2))
        pyro.sample("y3", dist.Normal(x[6] * 2, 1.0), obs=torch.tensor(0.4))

    def guide() -> None:
        logits = pyro.param("logits", normals(8, 3, seed=62))
        x = [
            pyro.sample(f"x{i}", dist.Categorical(logits=logits[i]), infer=infer)
            for i, infer in enumerate((marked, unmarked))
        ]
        for i, infer in enumerate((marked, unmarked, marked), 2):
            x.append(pyro.sample(f"x{i}", dist.Bernoulli(logits=logits[i, 0]), infer=infer))
        weight = pyro.param("weight", torch.tensor(0.6))
        logit = logits[5, 0] + weight * x[4]
        pyro.sample("x5", dist.Bernoulli(logits=logit), infer=unmarked)
        for i in (6, 7):
            pyro.sample(f"x{i}", dist.Bernoulli(logits=logits[i, 0]), infer=marked)
        pyro.sample("z", dist.Delta(weight * (x[2] + x[3] * x[2])))

    return model, guide


@pytest.mark.parametrize(
    "other", [{}, {"estimator": EveryOutcome(catlog.IndeCateR(1))}], ids=["Exact", "IndeCateR"]
)
def test_connected_sites_are_summed_together(other: dict[str, object]) -> None:
    programs = pairs({"enumerate": "parallel"}, other)
    elbo = catlog.pyro.ELBO(catlog.Exact())
    assert_same(gradients(elbo, *programs), brute_force(*programs))


def test_too_many_points_of_dependent_sites() -> None:
    """The way out is for dependent sites."""

    def program() -> None:
        x = torch.tensor(0.0)
        for i in range(25):
            x = pyro.sample(f"x{i}", dist.Bernoulli(0.3 + 0.4 * x))

    with pytest.raises(ValueError, match=r"Exact: q has .* points.* Use SCateR or RLOO"):
        catlog.pyro.ELBO(catlog.Exact()).loss(program, program)
