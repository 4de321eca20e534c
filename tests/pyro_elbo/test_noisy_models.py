"""Dropout in a model is named, and infinite values; not what the ELBO draws by itself."""

import warnings
from math import inf
from weakref import WeakKeyDictionary

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.nn.functional import dropout

import catlog
import catlog.pyro
from catlog.core.noise import Trace


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_only_noise_of_the_model_is_named(
    noisy: bool, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "_uses", WeakKeyDictionary())  # all models share a function's code
    inner = {"estimator": catlog.RLOO(2)} if nested else {}

    def guide() -> None:
        pyro.sample("a", dist.Bernoulli(0.4))
        with pyro.plate("data", 3):
            pyro.sample("b", dist.Bernoulli(0.6), infer=inner)

    def model() -> None:
        weight = pyro.param("weight", lambda: torch.rand(3))
        torch.rand(2)  # not used, as initial values of known parameters are not
        a = pyro.sample("a", dist.Bernoulli(0.5))
        with pyro.plate("data", 3):
            b = pyro.sample("b", dist.Bernoulli(0.5))
            mean = a * b * weight + (dropout(1 + a + b, 0.5) if noisy else 0)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.ones(3))

    with pyro.validation_enabled(False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        catlog.pyro.ELBO(catlog.IndeCateR(1)).differentiable_loss(model, guide)
    names = {warning.category for warning in caught}
    assert (catlog.NoisyFunctionWarning in names) == (noisy and not nested)


@pytest.mark.parametrize("validate", [False, True])
def test_infinite_values_are_named_with_and_without_pyros_validation(validate: bool) -> None:
    bad = 0.0

    def guide() -> None:
        pyro.sample("x", dist.Bernoulli(0.5).expand([3]).to_event(1))

    def model() -> None:
        x = pyro.sample("x", dist.Bernoulli(0.5).expand([3]).to_event(1))
        pyro.factor("y", x.sum(-1) + bad)

    elbo = catlog.pyro.ELBO(catlog.IndeCateR(1))
    elbo.differentiable_loss(model, guide)
    bad = inf
    with (
        pyro.validation_enabled(validate),
        pytest.raises(ValueError, match="f must return finite numbers"),
    ):
        elbo.differentiable_loss(model, guide)
