"""Every estimator of catlog is unbiased inside catlog.pyro.ELBO, or is refused by name."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import assert_mean, gradients
from programs import Program

import catlog
import catlog.pyro
from catlog.core.categories import Kind
from catlog.testing.cases import normals

BETWEEN = ("MuProp", "REBAR")  # they evaluate f between the categories


def bits(copies: int) -> tuple[Program, Program]:
    """Three bits with an interaction, in many copies, each with its own parameters."""

    def model() -> None:
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.4)).to_event(1))
            location = x.sum(-1) - 2 * x[..., 0] * x[..., 1]
            pyro.sample("y", dist.Normal(location, 1.0), obs=torch.tensor(0.6))

    def guide() -> None:
        logits = pyro.param("logits", normals(3, seed=40).repeat(copies, 1))
        with pyro.plate("copies", copies):
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1))

    return model, guide


@pytest.mark.parametrize("name", catlog.estimators.ESTIMATORS)
def test_estimators_are_unbiased_or_refused(name: str) -> None:
    """By z-tests at 1e-6 for the three derivatives together."""
    torch.manual_seed(0)  # of estimators with a network
    estimator = catlog.estimators.ESTIMATORS[name]()
    if not estimator.unbiased or estimator.target != "expectation":
        with pytest.raises(ValueError, match=rf"must be unbiased.*{name}"):
            catlog.pyro.ELBO(estimator)
        return
    if Kind.BITS not in estimator.supports:
        pytest.skip("not for bits")
    elbo = catlog.pyro.ELBO(estimator)
    if name in BETWEEN:
        with pytest.raises(NotImplementedError, match=rf"{name}.*between the categories"):
            gradients(elbo, *bits(2))
        return
    _, wanted = gradients(catlog.pyro.ELBO(catlog.Exact()), *bits(1))
    _, found = gradients(elbo, *bits(20000))
    assert_mean(found, {"logits": wanted["logits"][0]})
