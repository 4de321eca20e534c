"""Value and gradients of catlog.pyro.ELBO are those of enumeration, in expectation."""

from functools import partial
from itertools import combinations
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from judging import EveryOutcome, assert_equal, assert_mean, assert_same, brute_force, gradients
from programs import INDEPENDENT, Program, autoencoder, chain, mixture
from pyro.infer import SVI, TraceEnum_ELBO
from torch import Tensor
from torch.distributions import AffineTransform

import catlog
import catlog.pyro
from catlog.testing.cases import normals

ENUMERATED = {"enumerate": "parallel"}
TRACE_ENUM = TraceEnum_ELBO(max_plate_nesting=1)


def enumerated_chain() -> tuple[Tensor, dict[str, Tensor]]:
    """Return the ELBO of the chain and its gradients, by Pyro."""
    return gradients(TRACE_ENUM, *chain(ENUMERATED, ENUMERATED))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_exact_is_brute_force(name: str) -> None:
    """Value and gradients, where plates are kept and where they are not."""
    model, guide = INDEPENDENT[name]()
    elbo = catlog.pyro.ELBO(catlog.Exact())
    assert_same(gradients(elbo, model, guide), brute_force(model, guide))


@pytest.mark.parametrize("estimator", [catlog.IndeCateR(1), catlog.RLOO(2)], ids=str)
@pytest.mark.parametrize("name", INDEPENDENT)
def test_expectation_over_all_draws_is_brute_force(name: str, estimator: catlog.Estimator) -> None:
    model, guide = INDEPENDENT[name]()
    if isinstance(estimator, catlog.RLOO) and name in ("loop", "grid"):
        pytest.skip("too many pairs of points")
    elbo = catlog.pyro.ELBO(EveryOutcome(estimator))
    assert_same(gradients(elbo, model, guide), brute_force(model, guide))


def test_mixture_is_trace_enum() -> None:
    wanted = gradients(TRACE_ENUM, *mixture(ENUMERATED))
    for estimator in (catlog.Exact(), EveryOutcome(catlog.IndeCateR(1))):
        assert_same(gradients(catlog.pyro.ELBO(), *mixture({"estimator": estimator})), wanted)


def test_subsampling_is_unbiased() -> None:
    """The mean over all minibatches of two is the gradient on all data."""
    model, guide = autoencoder()
    _, wanted = brute_force(model, guide)
    batches = [torch.tensor(pair) for pair in combinations(range(3), 2)]
    elbo = catlog.pyro.ELBO(EveryOutcome(catlog.IndeCateR(1)))
    results = [gradients(elbo, model, guide, batch)[1] for batch in batches]
    mean = {name: sum(result[name] for result in results) / len(batches) for name in wanted}
    assert_equal(mean, wanted)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (catlog.Exact(), catlog.Exact()),
        (EveryOutcome(catlog.RLOO(2)), catlog.Exact()),
        (catlog.Exact(), EveryOutcome(catlog.IndeCateR(1))),
        (EveryOutcome(catlog.RLOO(2)), EveryOutcome(catlog.IndeCateR(1))),
    ],
    ids=["one group", "RLOO outside", "IndeCateR inside", "RLOO outside, IndeCateR inside"],
)
def test_chain_with_an_estimator_per_site_is_trace_enum(
    first: catlog.Estimator, second: catlog.Estimator
) -> None:
    programs = chain({"estimator": first}, {"estimator": second})
    assert_same(gradients(catlog.pyro.ELBO(), *programs), enumerated_chain())


def test_equal_estimators_for_independent_variables_are_nested() -> None:
    """A site with its own estimator starts a group of its own, although the two are equal."""
    E = EveryOutcome(catlog.IndeCateR(1))
    programs = chain({}, {"estimator": E})
    assert_same(gradients(catlog.pyro.ELBO(E), *programs), enumerated_chain())


def test_chain_as_one_distribution_is_trace_enum() -> None:
    """The two sites are one ordered distribution, of which RLOO draws pairs of points."""
    elbo = catlog.pyro.ELBO(EveryOutcome(catlog.RLOO(2)))
    assert_same(gradients(elbo, *chain()), enumerated_chain())


def test_sites_marked_for_enumeration_stay_enumerated() -> None:
    """Without any noise: the guide's other site is enumerated as well, by the default estimator."""
    elbo = catlog.pyro.ELBO(EveryOutcome(catlog.IndeCateR(1)))
    assert_same(gradients(elbo, *chain(ENUMERATED, {})), enumerated_chain())


def replicated_chain(copies: int) -> tuple[Program, Program]:
    """The chain in many copies, each with its own parameters: one step has many gradients."""

    def model() -> None:
        with pyro.plate("copies", copies):
            a = pyro.sample("a", dist.Categorical(logits=normals(3, seed=7)))
            b = pyro.sample("b", dist.Categorical(logits=normals(3, 3, seed=8)[a]))
            pyro.sample("y", dist.Normal(1.0 * a * b - b, 1.0), obs=torch.tensor(0.4))

    def guide() -> None:
        start = pyro.param("start", normals(3, seed=9).repeat(copies, 1))
        transition = pyro.param("transition", normals(3, 3, seed=10).repeat(copies, 1, 1))
        with pyro.plate("copies", copies):
            a = pyro.sample("a", dist.Categorical(logits=start))
            pyro.sample("b", dist.Categorical(logits=transition[torch.arange(copies), a]))

    return model, guide


@pytest.mark.parametrize("estimator", [catlog.SCateR(1), catlog.RLOO(4)], ids=str)
def test_noisy_gradients_of_the_chain_pass_a_z_test(estimator: catlog.Estimator) -> None:
    """At 1e-6 for all parameters together; a bias of 0.2 in any would be found."""
    _, wanted = gradients(catlog.pyro.ELBO(catlog.Exact()), *replicated_chain(1))
    _, found = gradients(catlog.pyro.ELBO(estimator), *replicated_chain(20000))
    assert_mean(found, {name: gradient[0] for name, gradient in wanted.items()})


def continuous_after_discrete(copies: int) -> tuple[Program, Program]:
    """A bit, and a Normal variable given the bit, in the guide too; all terms are Gaussian."""

    def model() -> None:
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Bernoulli(0.3))
            z = pyro.sample("z", dist.Normal(2 * x, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(0.8))

    def guide() -> None:
        logit = pyro.param("logit", torch.full((copies,), 0.4))
        mean = pyro.param("mean", torch.tensor([-0.5, 1.5]).repeat(copies, 1))
        log_scale = pyro.param("log_scale", torch.tensor([0.2, -0.3]).repeat(copies, 1))
        rows = torch.arange(copies)
        with pyro.plate("copies", copies):
            x = pyro.sample("x", dist.Bernoulli(logits=logit)).long()
            pyro.sample("z", dist.Normal(mean[rows, x], log_scale[rows, x].exp()))

    return model, guide


def analytic() -> dict[str, Tensor]:
    """Return the gradients of the ELBO of ``continuous_after_discrete``, by closed forms."""
    logit = torch.tensor(0.4, requires_grad=True)
    mean = torch.tensor([-0.5, 1.5], requires_grad=True)
    log_scale = torch.tensor([0.2, -0.3], requires_grad=True)
    q = torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)])
    prior = torch.tensor([0.7, 0.3])
    variance = (2 * log_scale).exp()
    log_p = -((mean - torch.tensor([0.0, 2.0])) ** 2 + variance + (mean - 0.8) ** 2 + variance) / 2
    value = (q * (prior.log() - q.log() + log_p + log_scale)).sum()
    found = torch.autograd.grad(value, [logit, mean, log_scale])
    return dict(zip(["logit", "mean", "log_scale"], found, strict=True))


@pytest.mark.parametrize(
    "estimator", [catlog.Exact(), catlog.IndeCateR(1), catlog.RLOO(2)], ids=str
)
def test_continuous_sites_stay_reparameterised(estimator: catlog.Estimator) -> None:
    elbo = catlog.pyro.ELBO(estimator)
    _, found = gradients(elbo, *continuous_after_discrete(20000))
    assert_mean(found, analytic())


def test_rows_share_the_noise_of_continuous_sites() -> None:
    """With the same noise, the expectation over draws of x is the sum over x, exactly."""
    results = []
    for estimator in (catlog.Exact(), EveryOutcome(catlog.IndeCateR(1))):
        pyro.set_rng_seed(5)
        elbo = catlog.pyro.ELBO(estimator)
        results.append(gradients(elbo, *continuous_after_discrete(3))[1])
    assert_equal(results[1], results[0])


def normal_after_discrete(form: str) -> tuple[Program, Program]:
    """Two bits, and a pair of Normal variables given each bit, whose guide is written in a form."""
    seen = torch.tensor([True, False])

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
            forms = {
                "plain": plain,
                "masked": plain.mask(mask),
                "affine": dist.TransformedDistribution(standard, AffineTransform(loc, scale, 1)),
                "several variables": dist.MultivariateNormal(loc, scale_tril=scale.diag_embed()),
            }
            pyro.sample("z", forms[form])

    return model, guide


@pytest.mark.parametrize(
    ("form", "same"),
    [("masked", "masked by a handler"), ("affine", "plain"), ("several variables", "plain")],
)
def test_normal_sites_given_discrete_ones_in_other_forms(form: str, same: str) -> None:
    """The forms get the same noise, so value and gradients are equal."""
    results = []
    for written in (form, same):
        pyro.set_rng_seed(3)
        elbo = catlog.pyro.ELBO(catlog.Exact())
        results.append(gradients(elbo, *normal_after_discrete(written)))
    assert_same(*results)


def test_correlated_normal_sites_given_discrete_ones() -> None:
    """The mean of z zᵀ over 20000 copies is the covariance given x = 1, by a z-test."""
    factor = torch.tensor([[0.5, 0.0], [-0.7, 0.4]])

    def model() -> None:
        with pyro.plate("copies", 20000):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            weight = pyro.param("weight", torch.zeros(20000, 2, 2))
            pyro.factor("f", (weight * z[..., None] * z[..., None, :]).sum((-1, -2)) * x)

    def guide() -> None:
        with pyro.plate("copies", 20000):
            x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.5)))
            tril = factor * (1 + x[..., None, None])
            pyro.sample("z", dist.MultivariateNormal(torch.zeros(2), scale_tril=tril))

    _, found = gradients(catlog.pyro.ELBO(catlog.Exact()), model, guide)
    assert_mean(found, {"weight": 0.5 * 4 * factor @ factor.T})


def test_delta_sites_given_discrete_ones() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Bernoulli(0.3))
        z = pyro.sample("z", dist.Normal(2 * x, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(0.8))

    def guide() -> None:
        x = pyro.sample("x", dist.Bernoulli(logits=pyro.param("logit", torch.tensor(0.4))))
        location = pyro.param("location", torch.tensor([-0.5, 1.5]))
        pyro.sample("z", dist.Delta(location[x.long()]))

    elbo = catlog.pyro.ELBO(catlog.Exact())
    assert_same(gradients(elbo, model, guide), brute_force(model, guide))


@pytest.mark.parametrize("num_particles", [1, 3])
def test_loss_is_the_value(num_particles: int) -> None:
    model, guide = mixture()
    value, _ = brute_force(model, guide)
    elbo = catlog.pyro.ELBO(catlog.Exact(), num_particles=num_particles)
    assert elbo.loss(model, guide) == pytest.approx(-float(value))
    assert elbo.loss_and_grads(model, guide) == pytest.approx(-float(value))
    assert pyro.get_param_store().get_param("logits").grad is not None


def test_svi_finds_the_posterior_of_thirty_bits() -> None:
    """2^30 points cannot be enumerated. Each datum has its own likelihood, so the answer is known.

    A site outside the plate reads the sum of all bits at weight 0, so that the plate is not kept.
    """
    y = normals(30, seed=30)

    def model() -> None:
        with pyro.plate("bits", 30):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(2 * x - 1, 1.0), obs=y)
        pyro.factor("nothing", 0 * x.sum(-1, keepdim=True))

    def guide() -> None:
        with pyro.plate("bits", 30):
            pyro.sample("x", dist.Bernoulli(logits=pyro.param("logits", torch.zeros(30))))

    elbo = catlog.pyro.ELBO(catlog.IndeCateR(1))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo)
    for _ in range(150):
        svi.step()
    assert (pyro.param("logits").sigmoid() - (2 * y).sigmoid()).abs().max() < 0.02


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


def test_a_model_that_changes_is_looked_at_again() -> None:
    """The second step has one more site, which is outside the plate."""

    def model(is_longer: bool) -> None:
        with pyro.plate("bits", 2):
            x = pyro.sample("x", dist.Bernoulli(0.3))
        if is_longer:
            pyro.factor("product", x.sum(-1, keepdim=True).square())

    def guide(is_longer: bool) -> None:
        with pyro.plate("bits", 2):
            pyro.sample("x", dist.Bernoulli(logits=pyro.param("logits", normals(2, seed=32))))

    elbo = catlog.pyro.ELBO(EveryOutcome(catlog.IndeCateR(1)))
    for is_longer in (False, True, False):
        _, found = gradients(elbo, model, guide, is_longer)
        assert_equal(found, brute_force(model, guide, is_longer)[1])


def test_a_site_that_changes_what_it_depends_on_is_looked_at_again() -> None:
    """The same names at every step, but the factor leaves its plate, or reads the bits."""

    def model(form: str) -> None:
        with pyro.plate("bits", 2):
            x = pyro.sample("x", dist.Bernoulli(0.3))
            if form == "inside":
                pyro.factor("f", x.square() * 2)
        if form == "constant":
            pyro.factor("f", torch.tensor(0.7))
        elif form == "outside":
            pyro.factor("f", x.sum(-1, keepdim=True).square())

    def guide(form: str) -> None:
        with pyro.plate("bits", 2):
            pyro.sample("x", dist.Bernoulli(logits=pyro.param("logits", normals(2, seed=33))))

    elbo = catlog.pyro.ELBO(catlog.Exact())
    for form in ("constant", "inside", "outside", "constant", "outside", "inside"):
        _, found = gradients(elbo, model, guide, form)
        assert_equal(found, brute_force(model, guide, form)[1])


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


def test_guides_without_discrete_sites() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))

    def guide() -> None:
        pyro.sample("z", dist.Delta(pyro.param("location", torch.tensor(0.7))))

    _, found = gradients(catlog.pyro.ELBO(), model, guide)
    assert_equal(found, {"location": torch.tensor(-0.7)})


@pytest.mark.parametrize("is_in_model", [False, True])
def test_plates_without_a_size(is_in_model: bool) -> None:
    def model() -> None:
        with pyro.plate("data", None if is_in_model else 3):
            x = pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.3)))
            pyro.sample("y", dist.Normal(x, 1.0), obs=normals(3, seed=41))

    def guide() -> None:
        with pyro.plate("data"):
            pyro.sample("x", dist.Bernoulli(logits=pyro.param("logits", normals(3, seed=42))))

    for estimator in (catlog.Exact(), EveryOutcome(catlog.IndeCateR(1))):
        elbo = catlog.pyro.ELBO(estimator)
        assert_same(gradients(elbo, model, guide), brute_force(model, guide))


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


@pytest.mark.parametrize("name", INDEPENDENT)
def test_particles_in_a_plate(name: str) -> None:
    """Each particle is an estimate of its own, and the loss is their mean."""
    model, guide = INDEPENDENT[name]()
    elbo = catlog.pyro.ELBO(catlog.Exact(), num_particles=3, vectorize_particles=True)
    assert_same(gradients(elbo, model, guide), brute_force(model, guide))


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


def bits_of_a_law(form: str) -> tuple[Program, Program]:
    """Two bits, whose guide is written in a form."""
    seen = torch.tensor([True, False])

    def model() -> None:
        x = pyro.sample("x", dist.Bernoulli(torch.full((2,), 0.3)).mask(seen).to_event(1))
        pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor(1.2))

    def guide() -> None:
        angle = pyro.param("angle", normals(2, seed=43))
        laws = {
            "Bernoulli": dist.Bernoulli(angle.sin().square()).to_event(1),
            "masked": dist.Bernoulli(angle.sin().square()).mask(True).to_event(1),
            "masked event": dist.Bernoulli(angle.sin().square()).to_event(1).mask(True),
            "registered": Coin(angle).to_event(1),
        }
        pyro.sample("x", laws[form])

    return model, guide


@pytest.mark.parametrize("form", ["masked", "masked event", "registered"])
def test_bits_in_other_forms(form: str) -> None:
    catlog.register_distribution(Coin, lambda q: q.bernoulli)
    for estimator in (catlog.Exact(), EveryOutcome(catlog.IndeCateR(1))):
        elbo = catlog.pyro.ELBO(estimator)
        wanted = brute_force(*bits_of_a_law("Bernoulli"))
        assert_same(gradients(elbo, *bits_of_a_law(form)), wanted)


def test_masked_bits_are_those_of_the_handler() -> None:
    """An element that is masked is drawn, but its log-probability does not count."""
    mask = torch.tensor([True, False])

    def model() -> None:
        with pyro.plate("data", 2):
            x = pyro.sample("x", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor([0.2, 0.9]))

    def guide(by_handler: bool) -> None:
        law = dist.Bernoulli(logits=pyro.param("logits", normals(2, seed=44)))
        with pyro.plate("data", 2), pyro.poutine.mask(mask=mask if by_handler else True):
            pyro.sample("x", law if by_handler else law.mask(mask))

    results = [
        gradients(catlog.pyro.ELBO(catlog.Exact()), model, partial(guide, by_handler))
        for by_handler in (False, True)
    ]
    assert_same(*results)
