"""What catlog.pyro.ELBO refuses, with the name of the site and a way out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from programs import chain, mixture

import catlog
import catlog.pyro

P = torch.tensor([0.4, 0.6])


def refused(
    model: Callable[[], None],
    guide: Callable[[], None],
    *words: str,
    error: type[Exception] = NotImplementedError,
    estimator: catlog.Estimator = catlog.Exact(),
) -> None:
    """Check that the pair is refused by a message with these words."""
    with pytest.raises(error) as raised:
        catlog.pyro.ELBO(estimator).differentiable_loss(model, guide)
    for word in ("catlog.pyro.ELBO", *words):
        assert word in str(raised.value)


def bit(name: str = "x", **infer: Any) -> Any:
    logit = pyro.param(f"{name}_logit", torch.tensor(0.3))
    return pyro.sample(name, dist.Bernoulli(logits=logit), infer=infer)


def test_discrete_sites_of_other_distributions() -> None:
    def program() -> None:
        pyro.sample("count", dist.Poisson(torch.tensor(2.0)))

    refused(program, program, "'count'", "Poisson", "Categorical", "TraceGraph_ELBO")


def test_control_flow_in_the_guide() -> None:
    def model() -> None:
        bit("x")
        bit("w")

    def guide() -> None:
        x = bit("x")
        pyro.sample("w", dist.Bernoulli(0.3 if x else 0.6))

    refused(model, guide, "guide cannot be vectorised", "after its site 'x'", "torch.where")


def test_control_flow_in_the_model() -> None:
    def model() -> None:
        x = bit("x")
        pyro.factor("f", torch.tensor(1.0 if x.item() else 0.0))

    refused(model, bit, "model cannot be vectorised", "after its site 'x'", "torch.where")


def test_rows_that_are_mixed() -> None:
    """Without the comparison with runs of their own, the gradient would be silently wrong."""

    def model() -> None:
        pyro.factor("f", 3 * bit("x").sum())

    refused(model, bit, "model cannot be vectorised", "'f'", "x.sum(-1)", "from the right")


def test_dimensions_counted_from_the_left() -> None:
    def guide() -> None:
        with pyro.plate("data", 3):
            pyro.sample("x", dist.Bernoulli(P).to_event(1))

    def model() -> None:
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Bernoulli(P).to_event(1))
            pyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=torch.zeros(3))

    refused(model, guide, "model cannot be vectorised", "x[..., 0]")


def test_a_sum_over_a_plate_without_its_dimension() -> None:
    def guide() -> None:
        with pyro.plate("data", 3):
            bit("x")

    def model() -> None:
        with pyro.plate("data", 3):
            x = bit("x")
        pyro.factor("f", x.sum(-1))

    refused(model, guide, "'f'", "keepdim=True")


def test_rows_that_move_to_another_dimension() -> None:
    """The table's rows add a dimension between rows and plates."""

    def guide() -> None:
        with pyro.plate("images", 2, dim=-1):
            bit("z")

    def model() -> None:
        with pyro.plate("images", 2, dim=-1):
            z = bit("z").long()
            with pyro.plate("pixels", 2, dim=-2):
                loc = torch.eye(2)[z].movedim(-1, -2)
                pyro.sample("y", dist.Normal(loc, 1.0), obs=torch.zeros(2, 2))

    refused(model, guide, "'y'", "dimension -3", "Vindex")


def test_rows_that_move_to_the_dimension_of_other_rows() -> None:
    """Two groups: the rows of the first stand where those of the second belong."""

    def guide() -> None:
        bit("g", estimator=catlog.Exact())
        with pyro.plate("data", 2):
            bit("x", estimator=catlog.RLOO(2))

    def model() -> None:
        g = bit("g")
        pyro.factor("f", g.unsqueeze(-2) if g.dim() > 0 else g)
        with pyro.plate("data", 2):
            bit("x")

    refused(model, guide, "'f'", "another dimension")


def test_dependent_sites_with_an_estimator_for_independent_ones() -> None:
    words = "'b' depends on ['a']", "catlog.SCateR(2)", "infer="
    refused(*chain(), *words, error=TypeError, estimator=catlog.IndeCateR(2))


def test_enumeration_in_the_model_only() -> None:
    def model() -> None:
        bit("x")
        pyro.sample("z", dist.Categorical(P), infer={"enumerate": "parallel"})

    refused(model, bit, "'z'", "enumeration", "add it there", "pyro.factor", "TraceEnum_ELBO")


def test_ways_out_of_enumeration_in_the_model_only() -> None:
    """Enumerated in the guide too, or summed out in a factor: the bound is that of Pyro."""
    p = torch.tensor([0.4, 0.6])
    mean = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    observed = torch.tensor(0.7)

    def enumerated() -> None:
        x = bit("x").long()
        z = pyro.sample("z", dist.Categorical(p), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(mean[x, z], 1.0), obs=observed)

    def guide() -> None:
        x = bit("x", enumerate="parallel").long()
        # The posterior of z, so that both bounds are equal.
        log_joint = p.log() + dist.Normal(mean[x], 1.0).log_prob(observed)
        pyro.sample("z", dist.Categorical(logits=log_joint), infer={"enumerate": "parallel"})

    def summed_out() -> None:
        x = bit("x").long()
        log_joint = p.log() + dist.Normal(mean[x], 1.0).log_prob(observed)
        pyro.factor("y", log_joint.logsumexp(-1))

    def enumerated_bit() -> None:
        bit("x", enumerate="parallel")

    wanted = pyro.infer.TraceEnum_ELBO(max_plate_nesting=0).loss(enumerated, enumerated_bit)
    for model, q in ((enumerated, guide), (summed_out, bit)):
        loss = catlog.pyro.ELBO(catlog.Exact()).differentiable_loss(model, q)
        assert abs(loss.item() - wanted) < 1e-12


def test_more_categories_in_the_guide_than_in_the_model() -> None:
    def model() -> None:
        pyro.sample("x", dist.Categorical(torch.ones(3)))

    def guide() -> None:
        pyro.sample("x", dist.Categorical(torch.ones(4)))

    words = "site 'x' has 4 categories in the guide, but 3", "same number"
    refused(model, guide, *words, error=ValueError)


def test_batches_without_a_plate() -> None:
    """The error is Pyro's own."""

    def program() -> None:
        pyro.sample("x", dist.Bernoulli(P))

    with pytest.raises(ValueError, match=r'(?s)at site "x".*pyro\.plate.*\.to_event'):
        catlog.pyro.ELBO().differentiable_loss(program, program)


def test_latent_sites_that_the_guide_does_not_have() -> None:
    def model() -> None:
        bit("x")
        pyro.sample("z", dist.Normal(0.0, 1.0))

    refused(model, bit, "'z'", "Add it to the guide", error=ValueError)


def test_enumeration_by_samples() -> None:
    programs = mixture({"enumerate": "parallel", "num_samples": 4})
    refused(*programs, "'z'", "num_samples", "catlog.RLOO(8)")


def test_continuous_sites_given_discrete_ones_without_inverse_cdf() -> None:
    def program() -> None:
        x = bit("x")
        pyro.sample("z", dist.Gamma(1.0 + x, 1.0))

    refused(program, program, "'z'", "Gamma", "Normal")


def test_guides_that_are_handlers() -> None:
    handler = pyro.poutine.messenger.Messenger()
    refused(bit, handler, "`guide`", "TraceGraph_ELBO")


@pytest.mark.parametrize("value", ["RLOO", 3, catlog.RLOO])
def test_what_is_no_estimator(value: object) -> None:
    with pytest.raises(TypeError, match=r"catlog.pyro.ELBO: `estimator` must be an estimator"):
        catlog.pyro.ELBO(value)
    model, guide = mixture({"estimator": value})
    refused(model, guide, "site 'z'", error=TypeError)


@pytest.mark.parametrize("estimator", [catlog.GumbelSoftmax(), catlog.VIMCO(2)], ids=str)
def test_estimators_of_something_else(estimator: catlog.Estimator) -> None:
    with pytest.raises(ValueError, match=r"must be unbiased.*Use IndeCateR, SCateR or RLOO"):
        catlog.pyro.ELBO(estimator)


@pytest.mark.parametrize("estimator", [catlog.MuProp(2), catlog.REBAR(2)], ids=str)
def test_estimators_that_evaluate_f_between_the_categories(estimator: catlog.Estimator) -> None:
    name = type(estimator).__name__
    refused(bit, bit, name, "['x']", "in their support", "IndeCateR", estimator=estimator)


def test_estimators_of_continuous_sites() -> None:
    def program() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0), infer={"estimator": catlog.RLOO(2)})

    refused(program, program, "'z'", "Normal", "reparameterised", error=TypeError)


def test_more_plates_than_announced() -> None:
    def program() -> None:
        with pyro.plate("rows", 2, dim=-2):
            bit("x")

    elbo = catlog.pyro.ELBO(max_plate_nesting=1)
    with pytest.raises(ValueError, match=r"site 'x' has a plate at dimension -2.*nesting=2"):
        elbo.loss(program, program)


def test_particles_are_counted() -> None:
    with pytest.raises(ValueError, match=r"`num_particles` must be at least 1"):
        catlog.pyro.ELBO(num_particles=0)


def test_sites_that_come_and_go() -> None:
    """Whether the model has the site "f" changes from run to run."""
    runs = iter(range(1000))

    def model() -> None:
        x = bit("x")
        if next(runs) % 3 == 0:
            pyro.factor("f", x)

    refused(model, bit, "the model's site 'f' comes and goes", "torch.where")


def test_sites_that_depend_on_all_values_at_once() -> None:
    """The condition reads all rows, so the run with rows has other sites."""

    def model() -> None:
        x = bit("x")
        if (x == 1).all():
            pyro.factor("f", x)

    refused(model, bit, "the model's site 'f' comes and goes", "torch.where")


def refused_by_pyro(model: Callable[[], None], guide: Callable[[], None], message: str) -> None:
    """Check that the error is that of Pyro's own losses."""
    for elbo in (catlog.pyro.ELBO(catlog.SCateR(1)), pyro.infer.Trace_ELBO()):
        with pytest.raises(ValueError, match=message):
            elbo.differentiable_loss(model, guide)


def test_shapes_that_disagree() -> None:
    """Four bits in the model, two in the guide."""

    def model() -> None:
        pyro.sample("x", dist.Bernoulli(0.5 * torch.ones(1, 2)).to_event(2))

    def guide() -> None:
        pyro.sample("x", dist.Bernoulli(pyro.param("p", 0.3 * torch.ones(2, 1))).to_event(2))

    refused_by_pyro(model, guide, "shapes disagree at site 'x'")


def test_event_dimensions_that_disagree() -> None:
    def model() -> None:
        with pyro.plate("data", 2):
            pyro.sample("x", dist.Bernoulli(P))

    def guide() -> None:
        pyro.sample("x", dist.Bernoulli(P).to_event(1))

    refused_by_pyro(model, guide, "event_dims disagree at site 'x'")


def test_warnings_are_those_of_pyro() -> None:
    """A site, and a plate, that the guide has and the model lacks."""

    def guide_with_site() -> None:
        bit()
        pyro.sample("extra", dist.Normal(0.0, 1.0))

    def guide_with_plate() -> None:
        for _ in pyro.plate("data", 1):
            bit()

    for guide, message in (
        (guide_with_site, "Found non-auxiliary vars in guide but not model"),
        (guide_with_plate, "Found plate statements in guide but not model"),
    ):
        for elbo in (catlog.pyro.ELBO(catlog.SCateR(1)), pyro.infer.Trace_ELBO()):
            with pytest.warns(UserWarning, match=message):
                elbo.differentiable_loss(bit, guide)
        with pyro.validation_enabled(False):
            catlog.pyro.ELBO(catlog.SCateR(1)).differentiable_loss(bit, guide)


def test_auxiliary_sites_of_the_guide() -> None:
    def guide() -> None:
        bit()
        pyro.sample("extra", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})

    catlog.pyro.ELBO(catlog.SCateR(1)).differentiable_loss(bit, guide)


def test_baselines_are_ignored_with_a_warning() -> None:
    def guide() -> None:
        bit(baseline={"use_decaying_avg_baseline": True})

    with pytest.warns(UserWarning, match=r"infer\['baseline'\] of site 'x' is ignored"):
        catlog.pyro.ELBO().differentiable_loss(bit, guide)


@pytest.mark.parametrize("has_rsample", [False, None])
def test_factors_in_the_guide_that_are_not_reparameterised(has_rsample: bool | None) -> None:
    def guide() -> None:
        x = bit()
        pyro.factor("f", 0.3 * x, has_rsample=has_rsample)

    with pyro.validation_enabled(has_rsample is False):
        refused(bit, guide, "pyro.factor('f', ...)", "has_rsample=True", str(has_rsample))


def test_plates_without_a_size_that_have_two() -> None:
    def program() -> None:
        with pyro.plate("data"):
            pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.3)))
            pyro.sample("w", dist.Bernoulli(0.3))

    refused(program, program, "plate 'data'", "3", "'w'", "pyro.plate('data', 3)", error=ValueError)


@pytest.mark.parametrize("which", ["guide", "model"])
def test_the_line_that_cannot_have_rows(which: str) -> None:
    """The innermost line of the user's program, here in a function that the program calls."""

    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.zeros(1)], 0)  # the line

    def program(fails: bool) -> None:
        x = pyro.sample("x", dist.Bernoulli(torch.full((2,), 0.3)).to_event(1))
        pyro.sample("w", dist.Bernoulli(logits=joined(x)[2] if fails else torch.tensor(0.3)))

    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("  # the line"))
    model, guide = (partial(program, which == name) for name in ("model", "guide"))
    words = f"{which} cannot be vectorised", f"after its site 'x' ({__file__}, line {line})"
    refused(model, guide, *words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("strict_enumeration_warning", "enumerated where they are marked"),
        ("ignore_jit_warnings", "nothing is traced"),
        ("jit_options", "nothing is traced"),
        ("max_iarange_nesting", "`max_plate_nesting`"),
        ("tail_adaptive_beta", "TraceTailAdaptive_ELBO"),
        ("particles", "no argument `particles`"),
    ],
)
def test_arguments_of_other_losses(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"catlog.pyro.ELBO: .*{words}"):
        catlog.pyro.ELBO(**{name: 1})


def test_registered_conversions_with_other_values() -> None:
    class Sign(dist.TorchDistribution):
        """Values -1 and 1."""

        arg_constraints: dict[str, Any] = {}

        def sample(self, sample_shape: Any = torch.Size()) -> torch.Tensor:
            return torch.tensor(1.0).expand(sample_shape)

        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            return torch.where(value == 1, 0.3, 0.7).log()

    def program() -> None:
        pyro.sample("x", Sign(validate_args=False))

    catlog.register_distribution(Sign, lambda q: dist.Bernoulli(torch.tensor(0.7)))
    refused(program, program, "'x'", "Sign", "register_distribution", error=ValueError)
