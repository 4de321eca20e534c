"""Value and gradients of catlog.pyro.ELBO are those of enumeration, in expectation."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import combinations
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import EveryOutcome, assert_equal, assert_same, brute_force, gradients
from programs import INDEPENDENT, Program, autoencoder, chain, mixture
from pyro.distributions.transforms import LowerCholeskyAffine
from pyro.infer import TraceEnum_ELBO
from torch import Tensor
from torch.distributions import AffineTransform

import catlog
import catlog.pyro
from catlog.testing.cases import normals

ENUMERATED = {"enumerate": "parallel"}
TRACE_ENUM = TraceEnum_ELBO(max_plate_nesting=1)


@pytest.mark.parametrize(
    "estimator",
    [catlog.Exact(), EveryOutcome(catlog.IndeCateR(1)), EveryOutcome(catlog.RLOO(2))],
    ids=["Exact", "IndeCateR", "RLOO"],
)
@pytest.mark.parametrize("name", INDEPENDENT)
def test_expectation_over_all_draws_is_brute_force(name: str, estimator: catlog.Estimator) -> None:
    """Value and gradients, where plates are kept and where they are not; by exact sums also of
    particles in a plate, of which each is an estimate of its own."""
    model, guide = INDEPENDENT[name]()
    if "RLOO" in str(estimator) and name in ("loop", "grid", "two_summed_plates"):
        pytest.skip("too many pairs of points")
    wanted = brute_force(model, guide)
    assert_same(gradients(catlog.pyro.ELBO(estimator), model, guide), wanted)
    if isinstance(estimator, catlog.Exact):
        elbo = catlog.pyro.ELBO(estimator, num_particles=3, vectorize_particles=True)
        assert_same(gradients(elbo, model, guide), wanted)


def test_subsampling_is_unbiased() -> None:
    """The mean over all minibatches of two is the gradient on all data."""
    model, guide = autoencoder()
    _, wanted = brute_force(model, guide)
    batches = [torch.tensor(pair) for pair in combinations(range(3), 2)]
    elbo = catlog.pyro.ELBO(EveryOutcome(catlog.IndeCateR(1)))
    results = [gradients(elbo, model, guide, batch)[1] for batch in batches]
    mean = {name: sum(result[name] for result in results) / len(batches) for name in wanted}
    assert_equal(mean, wanted)


RLOO, INDECATER = EveryOutcome(catlog.RLOO(2)), EveryOutcome(catlog.IndeCateR(1))


@pytest.mark.parametrize(
    ("default", "first", "second"),
    [
        (None, {"estimator": catlog.Exact()}, {"estimator": catlog.Exact()}),
        (None, {"estimator": RLOO}, {"estimator": catlog.Exact()}),
        (None, {"estimator": catlog.Exact()}, {"estimator": INDECATER}),
        (None, {"estimator": RLOO}, {"estimator": INDECATER}),
        (INDECATER, {}, {"estimator": INDECATER}),
        (RLOO, {}, {}),
        (INDECATER, ENUMERATED, {}),
    ],
    ids=[
        "one group", "RLOO outside", "IndeCateR inside", "RLOO outside, IndeCateR inside",
        "equal estimators for independent variables are nested", "one ordered distribution",
        "a marked site stays enumerated",
    ],
)  # fmt: skip
def test_chain_is_trace_enum(default: Any, first: dict[str, Any], second: dict[str, Any]) -> None:
    wanted = gradients(TRACE_ENUM, *chain(ENUMERATED, ENUMERATED))
    assert_same(gradients(catlog.pyro.ELBO(default), *chain(first, second)), wanted)


def normal_after_discrete(form: str) -> tuple[Program, Program]:
    """Two bits, and a pair of Normal variables given each bit, whose guide is written in a form."""
    seen = torch.tensor([True, False])
    factor = torch.tensor([[0.5, 0.0], [-0.7, 0.4]])

    def model() -> None:
        with pyro.plate("data", 2):
            x = pyro.sample("x", dist.Bernoulli(0.3))
            z = pyro.sample("z", dist.Normal(2 * x[..., None], torch.ones(2)).to_event(1))
            pyro.sample("y", dist.Normal(z[..., 0] * z[..., 1], 1.0), obs=normals(2, seed=34))

    def guide() -> None:
        logits = pyro.param("logits", normals(2, seed=35))
        mean = pyro.param("mean", normals(2, 2, seed=36))
        log_scale = pyro.param("log_scale", normals(2, 2, seed=37))
        with pyro.plate("data", 2):
            x = pyro.sample("x", dist.Bernoulli(logits=logits))
            loc, scale = mean[x.long()], log_scale[x.long()].exp()
            plain, mask = dist.Normal(loc, scale).to_event(1), seen | (x == 1)
            if form == "masked by a handler":
                with pyro.poutine.mask(mask=mask):
                    pyro.sample("z", plain)
                return
            standard = dist.Normal(torch.zeros(2), 1.0)
            correlated = [LowerCholeskyAffine(torch.zeros(2), factor), AffineTransform(loc, 1.0, 1)]
            forms = {
                "plain": plain,
                "masked": plain.mask(mask),
                "affine": dist.TransformedDistribution(standard, AffineTransform(loc, scale, 1)),
                "several variables": dist.MultivariateNormal(loc, scale_tril=factor),
                "correlated": dist.TransformedDistribution(standard, correlated),
            }
            pyro.sample("z", forms[form])

    return model, guide


@pytest.mark.parametrize(
    ("form", "same"),
    [
        ("masked", "masked by a handler"),
        ("affine", "plain"),
        ("several variables", "correlated"),
    ],
)
def test_normal_sites_given_discrete_ones_in_other_forms(form: str, same: str) -> None:
    """The forms get the same noise, so value and gradients are equal."""
    results = []
    for written in (form, same):
        pyro.set_rng_seed(3)
        elbo = catlog.pyro.ELBO(catlog.Exact())
        results.append(gradients(elbo, *normal_after_discrete(written)))
    assert_same(*results)


@pytest.mark.parametrize("num_particles", [1, 3])
def test_loss_is_the_value(num_particles: int) -> None:
    model, guide = mixture()
    value, _ = brute_force(model, guide)
    elbo = catlog.pyro.ELBO(catlog.Exact(), num_particles=num_particles)
    assert elbo.loss(model, guide) == pytest.approx(-float(value))
    assert elbo.loss_and_grads(model, guide) == pytest.approx(-float(value))
    assert pyro.get_param_store().get_param("z_logits").grad is not None


def test_the_last_minibatch_may_be_smaller() -> None:
    model, guide = autoencoder(data=3)
    elbo = catlog.pyro.ELBO(catlog.IndeCateR(2))
    for batch in ([0, 1], [2], [2, 0, 1]):
        assert elbo.loss(model, guide, torch.tensor(batch)) > 0


def test_random_subsamples_are_the_same_in_model_and_guide() -> None:
    """The guide's logits are exact posteriors, so the gradient is zero, whatever the minibatch."""
    y = normals(6, seed=31)

    def model() -> None:
        with pyro.plate("data", 6, subsample_size=2) as index:
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(2 * x - 1, 1.0), obs=y[index])

    def guide() -> None:
        logits = pyro.param("logits", 2 * y)
        with pyro.plate("data", 6, subsample_size=2) as index:
            pyro.sample("x", dist.Bernoulli(logits=logits[index]))

    _, found = gradients(catlog.pyro.ELBO(catlog.IndeCateR(1)), model, guide)
    torch.testing.assert_close(found["logits"], torch.zeros(6), rtol=0, atol=1e-12)


def test_guides_without_discrete_sites() -> None:
    def guide() -> None:
        pyro.sample("z", dist.Delta(pyro.param("location", torch.tensor(0.7))))

    _, found = gradients(catlog.pyro.ELBO(), lambda: pyro.sample("z", dist.Normal(0.0, 1.0)), guide)
    assert_equal(found, {"location": torch.tensor(-0.7)})


def newton_step(x: Tensor) -> Tensor:
    """One Newton step from 0 towards the minimum of exp(t) - (1 + x) t, by differentiation."""
    t = torch.zeros_like(x).requires_grad_()
    (slope,) = torch.autograd.grad((t.exp() - (1 + x) * t).sum(), t, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), t, create_graph=True)
    return t - slope / curvature


def test_programs_that_differentiate() -> None:
    """The guide's conditionals are also drawn, where an estimator turns gradients off."""

    def model() -> None:
        x = pyro.sample("x", dist.Bernoulli(0.3))
        w = pyro.sample("w", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(newton_step(x * w), 1.0), obs=torch.tensor(0.7))

    def guide() -> None:
        p = pyro.param("p", torch.tensor(0.3))
        x = pyro.sample("x", dist.Bernoulli(p * newton_step(torch.tensor(0.5))))
        pyro.sample("w", dist.Bernoulli(logits=p * newton_step(x)))

    for estimator in (catlog.Exact(), EveryOutcome(catlog.RLOO(2))):
        elbo = catlog.pyro.ELBO(estimator)
        assert_same(gradients(elbo, model, guide), brute_force(model, guide))
        assert elbo.loss(model, guide) == pytest.approx(-float(brute_force(model, guide)[0]))
    catlog.pyro.ELBO(catlog.SCateR(1)).loss_and_grads(model, guide)


def test_a_retained_graph_is_differentiated_twice() -> None:
    class Keeping(catlog.pyro.ELBO):
        def differentiable_loss(self, *args: Any) -> Tensor:
            self.kept = super().differentiable_loss(*args)
            return self.kept

    elbo = Keeping(catlog.Exact(), retain_graph=True)
    elbo.loss_and_grads(*mixture())
    elbo.kept.backward()


class Coin(dist.TorchDistribution):
    """A bit with a parameter of its own kind, which estimators do not know."""

    arg_constraints: dict[str, Any] = {}

    def __init__(self, angle: Tensor) -> None:
        self.bernoulli = dist.Bernoulli(angle.sin().square())
        super().__init__(angle.shape, validate_args=False)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        return self.bernoulli.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.bernoulli.log_prob(value)


MASK = torch.tensor([True, False])
# A form of two bits, and whether they are an event; else they are elements of a plate.
FORMS: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "masked": (lambda p: dist.Bernoulli(p).mask(True).to_event(1), True),
    "masked event": (lambda p: dist.Bernoulli(p).to_event(1).mask(True), True),
    "registered": (lambda p: Coin(p.sqrt().asin()).to_event(1), True),
    "masked elements": (lambda p: dist.Bernoulli(p).mask(MASK), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_bits_in_other_forms(form: str) -> None:
    """An element that is masked is drawn, but its log-probability does not count."""
    catlog.distributions.register_distribution(Coin, lambda q: q.bernoulli)
    made, is_event = FORMS[form]

    def plain(p: Tensor) -> Any:
        return dist.Bernoulli(p).to_event(int(is_event))

    def plate() -> Any:
        return nullcontext() if is_event else pyro.plate("data", 2)

    def model() -> None:
        with plate():
            x = pyro.sample("x", plain(torch.full((2,), 0.3)))
            location = x.sum(-1) if is_event else x
            pyro.sample("y", dist.Normal(location, 1.0), obs=torch.tensor(0.9))

    def guide(fn: Callable[[Tensor], Any], mask: Any) -> None:
        p = pyro.param("angle", normals(2, seed=43)).sin().square()
        with plate(), pyro.poutine.mask(mask=mask):
            pyro.sample("x", fn(p))

    for estimator in (catlog.Exact(), INDECATER):
        elbo = catlog.pyro.ELBO(estimator)
        wanted = gradients(elbo, model, partial(guide, plain, True if is_event else MASK))
        assert_same(gradients(elbo, model, partial(guide, made, True)), wanted)
