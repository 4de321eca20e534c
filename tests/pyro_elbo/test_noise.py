"""Continuous sites that depend on discrete ones: which rows share their noise.

Every estimator of catlog is unbiased there, or refused by name. Noise of the model is named.
"""

import warnings
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import assert_mean, gradients
from programs import Program
from torch import Tensor
from torch.nn.functional import dropout

import catlog
import catlog.pyro
from catlog.core.categories import Kind
from catlog.testing import z_limit
from catlog.testing.cases import normals

BETWEEN = ("MuProp", "REBAR")  # they evaluate f between the categories


def uniforms(estimator: Any, copies: int = 3, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the noise of a step: of a site before the last discrete one, and of one after it.

    Each is ``[rows, copies, 2]``, for the last run of the model with rows.
    """
    seen: dict[str, Tensor] = {}

    def model() -> None:
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Categorical(torch.ones(4)))
            for name in ("early", "late"):
                if name == "late":
                    y = pyro.sample("y", dist.Bernoulli(0.5))
                unit = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
                seen[name] = pyro.sample(name, unit).detach()
            pyro.sample("w", dist.Normal(1.0 * x + y, 1.0), obs=torch.tensor(0.0))

    def guide() -> None:
        logits = pyro.param("logits", normals(copies, 4, seed=0))
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Categorical(logits=logits))
            none = 0.0 * x.unsqueeze(-1) + torch.zeros(2)
            pyro.sample("early", dist.Uniform(none, none + 1).to_event(1))
            y = pyro.sample("y", dist.Bernoulli(torch.full((copies,), 0.5)))
            none = none + 0.0 * y.unsqueeze(-1)
            pyro.sample("late", dist.Uniform(none, none + 1).to_event(1))

    catlog.pyro.ELBO(estimator, **options).differentiable_loss(model, guide)
    return seen["early"], seen["late"]


@pytest.mark.parametrize("estimator", [catlog.Exact(), catlog.RLOO(8)], ids=repr)
def test_rows_share_their_noise_or_have_a_stratum_each(estimator: Any) -> None:
    """A site before the last discrete one shares it always."""
    early, late = uniforms(estimator, noise="stratified")
    for shared in (early, *uniforms(estimator)):
        assert (shared == shared[:1]).all()
    assert late.shape == (8, 3, 2)
    strata = (8 * late).floor().sort(0).values
    assert torch.equal(strata, torch.arange(8.0).reshape(8, 1, 1).expand(8, 3, 2))


def test_every_row_is_uniform_and_its_elements_are_independent() -> None:
    """The counts of pairs of quarters, for each of 8 rows, by z-tests with an error rate of 1e-6.

    A row that is half a percent too often in a quarter would be noticed.
    """
    copies = 200_000
    estimator = catlog.Exact(chunk_size=8 * copies)  # all rows at once
    _, late = uniforms(estimator, copies, noise="stratified")
    assert late.shape == (8, copies, 2)
    quarters = (4 * late).floor().long()
    for pairs in (4 * quarters[..., 0] + quarters[..., 1]).unbind():
        counts = pairs.bincount(minlength=16).double()
        z = (counts - copies / 16) / (copies * 15 / 16**2) ** 0.5
        assert z.abs().max() < z_limit(8 * 16)


# A label of two bits, a style that depends on it, and the gradient of the bound by hand.

PARAMETERS = {
    "logits": torch.tensor([0.4, -0.3]),
    "mean": torch.tensor([0.6, -0.4]),
    "log_scale": torch.tensor(-0.7),
}
DATUM = 0.7


def style(copies: int) -> tuple[Program, Program]:
    def model() -> None:
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Bernoulli(torch.full((2,), 0.4)).to_event(1))
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            location = z * (1 + x[..., 0]) - 2 * x[..., 0] * x[..., 1]
            pyro.sample("y", dist.Normal(location, 1.0), obs=torch.tensor(DATUM))

    def guide() -> None:
        values = {
            name: pyro.param(name, value.double().expand(copies, *value.shape).clone())
            for name, value in PARAMETERS.items()
        }
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Bernoulli(logits=values["logits"]).to_event(1))
            mean = (values["mean"] * x).sum(-1)
            pyro.sample("z", dist.Normal(mean, values["log_scale"].exp()))

    return model, guide


def gradient_by_hand() -> dict[str, Tensor]:
    """Return the gradient of the bound: a sum over the bits, in which z has its moments."""
    leaves = {name: value.double().requires_grad_() for name, value in PARAMETERS.items()}
    q = dist.Bernoulli(logits=leaves["logits"]).to_event(1)
    p = dist.Bernoulli(torch.full((2,), 0.4)).to_event(1)
    total = torch.zeros(())
    for x in torch.cartesian_prod(*[torch.arange(2.0)] * 2):
        mean, scale = (leaves["mean"] * x).sum(), leaves["log_scale"].exp()
        slope, shift = 1 + x[0], 2 * x[0] * x[1]
        fit = (DATUM - slope * mean + shift).square() + (slope * scale).square()
        bound = leaves["log_scale"] - (mean.square() + scale.square() + fit) / 2
        total = total + q.log_prob(x).exp() * (bound + p.log_prob(x) - q.log_prob(x))
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


@pytest.mark.parametrize("noise", ["shared", "stratified"])
@pytest.mark.parametrize("name", catlog.estimators.ESTIMATORS)
def test_estimators_are_unbiased_or_refused(name: str, noise: Any) -> None:
    """By z-tests at 1e-6 for the five derivatives together."""
    torch.manual_seed(0)  # of estimators with a network
    estimator = catlog.estimators.ESTIMATORS[name]()
    if not estimator.unbiased or estimator.target != "expectation":
        with pytest.raises(ValueError, match=rf"must be unbiased.*{name}"):
            catlog.pyro.ELBO(estimator)
        return
    if Kind.BITS not in estimator.supports:
        pytest.skip("not for bits")
    elbo = catlog.pyro.ELBO(estimator, noise=noise)
    if name in BETWEEN:
        with pytest.raises(NotImplementedError, match=rf"{name}.*between the categories"):
            gradients(elbo, *style(2))
        return
    assert_mean(gradients(elbo, *style(20000))[1], gradient_by_hand())


def later_site() -> tuple[Any, Program, Program]:
    """SCateR resamples ``b`` where ``a`` changes: both must belong to the same z."""

    def model() -> None:
        with pyro.plate("copies", 20000):
            a = pyro.sample("a", dist.Bernoulli(0.5))
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            b = pyro.sample("b", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(a + z - 2 * b, 1.0), obs=torch.tensor(DATUM))

    def guide() -> None:
        logit, slope = (pyro.param(name, torch.full((20000,), 0.9)) for name in ("logit", "slope"))
        with pyro.plate("copies", 20000):
            a = pyro.sample("a", dist.Bernoulli(logits=logit))
            z = pyro.sample("z", dist.Normal(a, 1.0))
            pyro.sample("b", dist.Bernoulli(logits=slope * (z + 2 * a - 1)))

    return catlog.SCateR(1), model, guide


def nested(outer: Any) -> tuple[Any, Program, Program]:
    """A site that depends on the outer group, and one that depends on both."""

    def model() -> None:
        with pyro.plate("copies", 20000):
            a, b = (pyro.sample(name, dist.Bernoulli(0.5)) for name in "ab")
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            v = pyro.sample("v", dist.Normal(a, 1.0))
            pyro.sample("y", dist.Normal(u * b + v * a, 1.0), obs=torch.tensor(DATUM))

    def guide() -> None:
        logits = pyro.param("logits", normals(2, seed=4).repeat(20000, 1)).unbind(-1)
        scale = pyro.param("scale", torch.full((20000,), 0.5))
        with pyro.plate("copies", 20000):
            a = pyro.sample("a", dist.Bernoulli(logits=logits[0]), infer={"estimator": outer})
            b = pyro.sample("b", dist.Bernoulli(logits=logits[1]))
            pyro.sample("u", dist.Normal(a, scale))
            pyro.sample("v", dist.Normal(a - b, scale))

    return catlog.RLOO(2), model, guide


@pytest.mark.parametrize(
    "case",
    [later_site, partial(nested, catlog.Exact()), partial(nested, catlog.IndeCateR(1))],
    ids=["later site", "inside Exact", "inside IndeCateR"],
)
def test_gradients_with_strata_have_the_mean_of_exact_sums(case: Any) -> None:
    estimator, model, guide = case()
    _, found = gradients(catlog.pyro.ELBO(estimator, noise="stratified"), model, guide)
    _, wanted = gradients(catlog.pyro.ELBO(catlog.Exact()), model, guide)
    differences = {name: found[name] - wanted[name] for name in found}
    assert_mean(differences, {name: torch.zeros(found[name].shape[1:]) for name in found})


def test_the_check_of_rows_compares_them_at_the_same_noise() -> None:
    """With noise per row, rows that are right differ from separate runs, and mixed ones do too."""

    def program(mixes: bool, is_model: bool) -> None:
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Categorical(torch.ones(4)))
            z = pyro.sample("z", dist.Normal(0.0 if is_model else 1.0 * x, 1.0))
            if is_model:
                location = x + z - (z.mean(0) if mixes else 0)
                pyro.sample("y", dist.Normal(location, 1.0), obs=torch.tensor(DATUM))

    elbo = catlog.pyro.ELBO(catlog.Exact(), noise="stratified")
    for mixes in (False, True):
        with pytest.raises(NotImplementedError, match="'y' differs") if mixes else nullcontext():
            elbo.differentiable_loss(*(partial(program, mixes, which) for which in (True, False)))


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_only_noise_of_the_model_is_named(
    noisy: bool, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All models share a function's code.
    monkeypatch.setattr("catlog.core.noise.USES", WeakKeyDictionary())
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

    def guide() -> Tensor:
        return pyro.sample("x", dist.Bernoulli(0.5).expand([3]).to_event(1))

    def model() -> None:
        pyro.factor("y", guide().sum(-1) + bad)

    elbo = catlog.pyro.ELBO(catlog.IndeCateR(1))
    elbo.differentiable_loss(model, guide)
    bad = inf
    match = "f must return finite numbers"
    with pyro.validation_enabled(validate), pytest.raises(ValueError, match=match):
        elbo.differentiable_loss(model, guide)
