"""What catlog.pyro.ELBO refuses, with the name of the site and a way out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from programs import Program, chain, mixture
from pyro.infer import Trace_ELBO

import catlog
import catlog.pyro
from catlog.estimators import VIMCO, MuProp

Programs = tuple[Program, Program]  # a model and a guide
P = torch.tensor([0.4, 0.6], dtype=torch.float64)
# What is refused: programs, words of the message, and what else `refused` takes.
REFUSALS: dict[str, tuple[Callable[[], Programs], tuple[str, ...], dict[str, Any]]] = {}


def refuses(*words: str, **options: Any) -> Callable[[Any], Any]:
    """Register a function that returns programs which must be refused with these words."""

    def register(programs: Callable[[], Programs]) -> Callable[[], Programs]:
        REFUSALS[programs.__name__] = (programs, words, options)
        return programs

    return register


def refused(
    model: Program,
    guide: Program,
    *words: str,
    error: type[Exception] | tuple[type[Exception], ...] = NotImplementedError,
    estimator: catlog.Estimator = catlog.Exact(),
) -> pytest.ExceptionInfo[Exception]:
    """Check that the pair is refused by a message with these words, and return the error."""
    with pytest.raises(error) as raised:
        catlog.pyro.ELBO(estimator).differentiable_loss(model, guide)
    shown = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    for word in ("catlog.pyro.ELBO", *words):
        assert word in shown
    return raised


def bit(name: str = "x", **infer: Any) -> Any:
    logit = pyro.param(f"{name}_logit", torch.tensor(0.3))
    return pyro.sample(name, dist.Bernoulli(logits=logit), infer=infer)


def site(fn: Any, name: str = "x", **infer: Any) -> Program:
    """Return a program with one site."""
    return lambda: pyro.sample(name, fn, infer=infer)


def bits_in_a_plate(size: int = 3) -> Any:
    with pyro.plate("data", size):
        return bit()


@refuses("guide cannot be vectorised", "torch.where", error=RuntimeError)
def control_flow_in_the_guide() -> Programs:
    def guide() -> None:
        pyro.sample("w", dist.Bernoulli(0.3 if bit() else 0.6))

    return lambda: (bit(), bit("w")), guide


@refuses("model cannot be vectorised", "torch.where", error=RuntimeError)
def control_flow_in_the_model() -> Programs:
    return lambda: pyro.factor("f", torch.tensor(1.0 if bit().item() else 0.0)), bit


@refuses("model cannot be vectorised", "'f'", "x.sum(-1)", "from the right")
def rows_that_are_mixed() -> Programs:
    """Without the comparison with runs of their own, the gradient would be silently wrong."""
    return lambda: pyro.factor("f", 3 * bit().sum()), bit


@refuses("model cannot be vectorised", "x[..., 0]", error=(RuntimeError, ValueError))
def dimensions_counted_from_the_left() -> Programs:
    def program(is_model: bool) -> None:
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Bernoulli(P).to_event(1))
            if is_model:
                pyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=torch.zeros(3))

    return partial(program, True), partial(program, False)


@refuses("'f'", "keepdim=True")
def a_sum_over_a_plate_without_its_dimension() -> Programs:
    return lambda: pyro.factor("f", bits_in_a_plate().sum(-1)), bits_in_a_plate


@refuses("'y'", "another dimension", "Vindex")
def rows_that_move_to_another_dimension() -> Programs:
    """The table's rows add a dimension between rows and plates."""

    def model() -> None:
        with pyro.plate("data", 3, dim=-1):
            z = bit().long()
            with pyro.plate("pixels", 2, dim=-2):
                loc = torch.eye(2)[z].movedim(-1, -2)
                pyro.sample("y", dist.Normal(loc, 1.0), obs=torch.zeros(2, 3))

    return model, bits_in_a_plate


@refuses("'f'", "another dimension")
def rows_that_move_to_the_dimension_of_other_rows() -> Programs:
    """Two groups: the rows of the first stand where those of the second belong."""

    def program(is_model: bool) -> None:
        g = bit("g", estimator=catlog.Exact())
        if is_model:
            pyro.factor("f", g.unsqueeze(-2) if g.dim() > 0 else g)
        with pyro.plate("data", 2):
            bit(estimator=catlog.RLOO(2))

    return partial(program, True), partial(program, False)


@refuses("the model's site 'f' comes and goes", "torch.where")
def sites_that_come_and_go() -> Programs:
    """Whether the model has the site "f" changes from run to run."""
    runs = iter(range(1000))
    return lambda: pyro.factor("f", bit()) if next(runs) % 3 == 0 else bit(), bit


@refuses("the model's site 'f' comes and goes", "torch.where")
def sites_that_depend_on_all_values_at_once() -> Programs:
    """The condition reads all rows, so the run with rows has other sites."""
    return lambda: pyro.factor("f", x) if ((x := bit()) == 1).all() else None, bit


class Sign(dist.TorchDistribution):
    """Values -1 and 1."""

    arg_constraints: dict[str, Any] = {}

    def sample(self, sample_shape: Any = torch.Size()) -> torch.Tensor:
        return torch.tensor(1.0).expand(sample_shape)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return torch.where(value == 1, 0.3, 0.7).log()


@refuses("'x'", "Sign", "register_distribution", error=ValueError)
def registered_conversions_with_other_values() -> Programs:
    catlog.distributions.register_distribution(Sign, lambda q: dist.Bernoulli(torch.tensor(0.7)))
    return (site(Sign(validate_args=False)),) * 2


def refuses_pair(name: str, model: Program, guide: Any, *words: str, **options: Any) -> None:
    """Register a model and a guide, None where it is the model."""
    REFUSALS[name] = (lambda: (model, guide or model), words, options)


refuses_pair(
    "other distributions", site(dist.Poisson(torch.tensor(2.0)), "count"), None,
    "'count'", "Poisson", "Categorical", "TraceGraph_ELBO",
)  # fmt: skip
refuses_pair(
    "dependent sites with an estimator for independent ones", *chain(),
    "'b' depends on ['a']", "catlog.SCateR(2)", "infer=",
    error=TypeError, estimator=catlog.IndeCateR(2),
)  # fmt: skip
refuses_pair(
    "enumeration in the model only",
    lambda: (bit(), site(dist.Categorical(P), "z", enumerate="parallel")()), bit,
    "'z'", "enumeration", "Add it to the guide", "pyro.factor", "TraceEnum_ELBO",
)  # fmt: skip
refuses_pair(
    "sites that the guide does not have", lambda: (bit(), site(dist.Normal(0.0, 1.0), "z")()), bit,
    "'z'", "Add it to the guide", error=ValueError,
)  # fmt: skip
refuses_pair(
    "enumeration by samples", *mixture({"enumerate": "parallel", "num_samples": 4}),
    "'z'", "num_samples", "catlog.RLOO(8)",
)  # fmt: skip
refuses_pair(
    "sites given discrete ones without inverse CDF",
    lambda: pyro.sample("z", dist.Gamma(1.0 + bit(), 1.0)), None, "'z'", "Gamma", "Normal",
)  # fmt: skip
refuses_pair(
    "guides that are handlers", bit, pyro.poutine.messenger.Messenger(),
    "`guide`", "TraceGraph_ELBO",
)  # fmt: skip
for between in (MuProp(2), catlog.REBAR(2)):
    words = (type(between).__name__, "['x']", "in their support", "IndeCateR")
    refuses_pair(f"between the categories, {words[0]}", bit, bit, *words, estimator=between)
refuses_pair(
    "estimators of continuous sites",
    site(dist.Normal(0.0, 1.0), "z", estimator=catlog.RLOO(2)), None,
    "'z'", "Normal", "reparameterised", error=TypeError,
)  # fmt: skip
for has_rsample in (False, None):
    refuses_pair(
        f"factors in the guide with has_rsample={has_rsample}", bit,
        lambda form=has_rsample: pyro.factor("f", 0.3 * bit(), has_rsample=form),
        "pyro.factor('f', ...)", "has_rsample=True", str(has_rsample),
    )  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_name_and_with_a_way_out(name: str) -> None:
    programs, words, options = REFUSALS[name]
    refused(*programs(), *words, **options)


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
    error = refused(model, guide, f"{which} cannot be vectorised", error=RuntimeError)
    assert (Path(__file__), line) in [(e.path, e.lineno + 1) for e in error.traceback]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "RLOO"}, TypeError, "`estimator` must be an estimator"),
        ({"estimator": catlog.RLOO}, TypeError, "`estimator` must be an estimator"),
        ({"estimator": catlog.GumbelSoftmax()}, ValueError, "must be unbiased.*Use IndeCateR,"),
        ({"estimator": VIMCO(2)}, ValueError, "must be unbiased.*another bound"),
        ({"num_particles": 0}, ValueError, "`num_particles` must be at least 1"),
        ({"noise": "own"}, ValueError, "`noise` must be one of 'shared', 'stratified', but"),
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"catlog.pyro.ELBO: .*{message}"):
        catlog.pyro.ELBO(**options)
    if error is TypeError:
        refused(*mixture(options), "site 'z'", error=error)


def bernoulli(*shape: int, event: int = 0) -> Any:
    return dist.Bernoulli(torch.full(shape, 0.4)).to_event(event)


def in_plate(dim: int = -1) -> None:
    with pyro.plate("data", 2, dim=dim):
        pyro.sample("x", bernoulli(2, *[1] * (-1 - dim)))


@pytest.mark.parametrize(
    ("model", "guide", "message"),
    [
        (site(bernoulli(1, 2, event=2)), site(bernoulli(2, 1, event=2)), "shapes disagree at"),
        (partial(in_plate, -2), partial(in_plate, -2), r'(?s)site "x".*max_plate_nesting .*2'),
    ],
    ids=["shapes", "plates"],
)
def test_errors_are_those_of_pyro(model: Program, guide: Program, message: str) -> None:
    for loss in (catlog.pyro.ELBO, Trace_ELBO):
        with pytest.raises(ValueError, match=message):
            loss(max_plate_nesting=1).differentiable_loss(model, guide)


def test_extra_sites_are_named_as_by_pyro_and_baselines_ignored_with_a_warning() -> None:
    extra = site(dist.Normal(0.0, 1.0), "extra")
    for elbo in (catlog.pyro.ELBO(catlog.SCateR(1)), Trace_ELBO()):
        with pytest.warns(UserWarning, match="Found non-auxiliary vars"):
            elbo.differentiable_loss(bit, lambda: (bit(), extra()))
    extra = site(dist.Normal(0.0, 1.0), "extra", is_auxiliary=True)
    catlog.pyro.ELBO(catlog.SCateR(1)).differentiable_loss(bit, lambda: (bit(), extra()))
    guide = partial(bit, baseline={"use_decaying_avg_baseline": True})
    with pytest.warns(UserWarning, match=r"infer\['baseline'\] of site 'x' is ignored"):
        catlog.pyro.ELBO().differentiable_loss(bit, guide)
