"""Every mistake is answered by an error that names the argument, what was given and what to do."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, Normal, OneHotCategorical

from catlog import ESTIMATORS, RLOO, Categoricals, Exact, GumbelSoftmax, IndeCateR, MovingAverage, Reinforce
from catlog.functions import Additive, FirstLayerLinear, OfSum, Pairwise, Potts
from variants import continuous, supports

ALL = [
    *(each() for each in ESTIMATORS.values()),
    IndeCateR(samples=3, fresh=True),
    IndeCateR(samples=3, draws="latin"),
    IndeCateR(samples=3, variables=2),
    IndeCateR(samples=3, variables=2, control="none"),
    GumbelSoftmax(samples=3, hard=True),
]
RELAXING = [E for E in ALL if E.differentiates_f and supports(E, "one-hot")]
BLACK_BOX = [E for E in ALL if not E.differentiates_f]
INJECTABLE = [E for E in ALL if not isinstance(E, Exact) and not continuous(E)]
every = pytest.mark.parametrize("E", ALL, ids=repr)
KINDS = {
    "bits": lambda logits: Independent(Bernoulli(logits=logits[..., 0]), 1),
    "index": lambda logits: Independent(Categorical(logits=logits), 1),
    "one-hot": lambda logits: Independent(OneHotCategorical(logits=logits), 1),
}
accepted = pytest.mark.parametrize(("E", "kind"), [(E, kind) for kind in KINDS for E in ALL if supports(E, kind)], ids=repr)


@pytest.fixture
def q():
    return Independent(Bernoulli(logits=torch.zeros(2, 3)), 1)


def seeded():
    return torch.Generator().manual_seed(0)


def total(x):
    return x.sum(-1)


@every
def test_f_returns_a_wrong_shape(E, q):
    given = r"f must return one value per point: it was given x of shape \(\d+, 2, 3\)"
    match = given + r" and must return shape \(\d+, 2\).*but it returned \(\)\. Reduce the event dimensions \(3,\)"
    with pytest.raises(ValueError, match=match):
        E(lambda x: x.sum(), q)


@every
def test_independent_is_missing(E):
    with pytest.raises(
        ValueError, match=r"\(\d+, 2, 3\).*returned \(\d+, 2\).*last 1 batch dimension of q.*Independent\(q, 1\)\."
    ):
        E(total, Bernoulli(logits=torch.zeros(2, 3)))
    with pytest.raises(ValueError, match=r"last 2 batch dimensions of q.*Independent\(q, 2\)\."):
        E(lambda x: x.sum((-1, -2)), Bernoulli(logits=torch.zeros(2, 3)))


@every
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_f_returns_nan_or_inf(E, q, value):
    match = rf"f must return finite numbers, but \d+ of \d+ are .* the first \({value}\) at index \(0, 0\).*validate=False"
    with pytest.raises(ValueError, match=match):
        E(lambda x: 0 * total(x) + value, q)


@pytest.mark.parametrize("E", [Exact(), IndeCateR(), IndeCateR(fresh=True), IndeCateR(variables=3)], ids=repr)
def test_f_returns_nan_at_a_neighbour_only(E, q):
    x = None if isinstance(E, Exact) else torch.ones(E.rows(q), 2, 3)
    with pytest.raises(ValueError, match=r"f must return finite numbers.*nan.*validate=False"):
        E(lambda x: torch.where(total(x) == 2, torch.nan, total(x)), q, x=x)


def test_own_table_holds_nan(q):
    f = Additive(torch.zeros(3, 2))
    f.neighbours = lambda x: torch.full((1, 2, 3, 2), torch.nan)
    with pytest.raises(ValueError, match=r"f\.neighbours must return finite numbers, but 6 of 12.*validate=False"):
        IndeCateR()(f, q)


@every
def test_f_returns_no_tensor(E, q):
    with pytest.raises(TypeError, match=r"f must return a tensor of shape \(\d+, 2\), but it returned float\."):
        E(lambda x: 1.0, q)


@every
def test_f_returns_integers(E, q):
    match = r"f must return floats or bools, but it returned torch\.int64: end it with `\.float\(\)`"
    with pytest.raises(TypeError, match=match):
        E(lambda x: total(x).long(), q)


@every
def test_f_returns_a_tensor_on_another_device(E, q):
    with pytest.raises(ValueError, match="f must return its values on cpu, where its input lies, but they lie on meta"):
        E(lambda x: total(x).to("meta"), q)


@pytest.mark.parametrize("E", [each for name, each in ESTIMATORS.items() if name not in ("Exact", "RLOO")])
def test_samples_below_one(E):
    for given in (0, -1):
        with pytest.raises(ValueError, match=f"{E.__name__}: `samples` must be at least [12], but {given} was given"):
            E(samples=given)
    for given in (1.5, True, "2"):
        with pytest.raises(TypeError, match=f"{E.__name__}: `samples` must be an int of at least [12], but {given!r} was given"):
            E(samples=given)


def test_rloo_with_one_sample(q):
    with pytest.raises(ValueError, match=r"RLOO: `samples` must be at least 2, but 1 was given.*use Reinforce"):
        RLOO(samples=1)
    with pytest.raises(ValueError, match=r"RLOO: `x.shape\[0\]` must be at least 2, but 1 was given.*use Reinforce"):
        RLOO()(total, q, x=torch.ones(1, 2, 3))


@every
@pytest.mark.parametrize(("law", "name"), [(Normal(0.0, 1.0), "Normal"), (Independent(Normal(torch.zeros(3), 1.0), 1), "Normal")])
def test_unsupported_law(E, law, name):
    match = rf"q: a law of independent categorical variables.*{name}.* was given.*Supported are Bernoulli"
    with pytest.raises(TypeError, match=match):
        E(total, law)


def test_law_without_variables():
    with pytest.raises(ValueError, match=r"q: a law needs at least one variable.*event shape \(0,\)"):
        IndeCateR()(total, Independent(Bernoulli(logits=torch.zeros(2, 0)), 1))


@pytest.mark.parametrize("E", RELAXING, ids=repr)
@pytest.mark.parametrize("law", [Independent(Categorical(logits=torch.zeros(2, 3)), 1), Categoricals([torch.zeros(2)] * 2)])
def test_integer_law_with_a_relaxing_estimator(E, law):
    with pytest.raises(TypeError, match=rf"{type(E).__name__}.* but .*Categorical.* draws integers\. Use OneHotCategorical"):
        E(total, law)


@accepted
def test_nan_logits(E, kind, monkeypatch):
    logits = torch.zeros(2, 3, 2)
    logits[1, 2] = torch.nan
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    with pytest.raises(ValueError, match=r"q: Independent\(.*, 1\) has no valid probabilities at index \(1, 2\).*NaN.*Check"):
        E(total, KINDS[kind](logits))


@pytest.mark.parametrize("E", BLACK_BOX, ids=repr)
def test_all_categories_masked(E):
    logits = torch.zeros(2, 3, 2)
    logits[1, 2] = -torch.inf
    match = r"no valid probabilities at index \(1, 2\).*every category is masked.*leave each variable at least one category"
    for law in (Categorical(logits=logits, validate_args=False), Categoricals(logits, (2, 2, 2))):
        with pytest.raises(ValueError, match=match):
            E(total, law)


def test_variables_out_of_range(q):
    with pytest.raises(ValueError, match="IndeCateR: `variables` must be at least 1, but 0 was given"):
        IndeCateR(variables=0)
    with pytest.raises(TypeError, match=r"IndeCateR: `variables` must be an int of at least 1, but 0\.5 was given"):
        IndeCateR(variables=0.5)
    with pytest.raises(ValueError, match=r"`variables` must be between 1 and 3, but 4 was given\. q has 3 variables"):
        IndeCateR(variables=4)(total, q)
    with pytest.raises(ValueError, match="`variables` and `fresh` exclude each other"):
        IndeCateR(variables=1, fresh=True)
    with pytest.raises(ValueError, match=r"chosen must have shape \(1, 2, 2\) .*but \(1, 2, 3\) was given"):
        IndeCateR(variables=2)(total, q, chosen=torch.zeros(1, 2, 3, dtype=torch.long))


@pytest.mark.parametrize("E", [IndeCateR, Exact])
def test_chunk_size_out_of_range(E):
    with pytest.raises(ValueError, match=f"{E.__name__}: `chunk_size` must be at least 1, but 0 was given"):
        E(chunk_size=0)
    with pytest.raises(TypeError, match=rf"{E.__name__}: `chunk_size` must be an int of at least 1, but 2\.0 was given"):
        E(chunk_size=2.0)


def test_unknown_choices():
    with pytest.raises(ValueError, match="`draws` must be one of 'independent', 'antithetic', 'latin', but 'sobol' was given"):
        IndeCateR(draws="sobol")
    with pytest.raises(ValueError, match="`control` must be one of 'taylor', 'none', but None was given"):
        IndeCateR(control=None)


@pytest.mark.parametrize("E", INJECTABLE, ids=repr)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 2, 3), (6, 3, 2), (6, 1, 2, 3)])
def test_wrong_shape_of_x(E, q, shape):
    match = rf"x must have shape \[.*, \*batch, \*event\] = \[n.*, 2, 3\], but \({', '.join(map(str, shape))},?\) was given"
    with pytest.raises(ValueError, match=match):
        E(total, q, x=torch.zeros(shape))


def test_x_not_a_multiple_of_the_variables(q):
    with pytest.raises(ValueError, match=r"x must have shape \[n \* 3, .*but \(4, 2, 3\) was given"):
        IndeCateR(fresh=True)(total, q, x=torch.zeros(4, 2, 3))


def test_x_where_none_is_taken(q):
    with pytest.raises(ValueError, match="x: Exact visits every point"):
        Exact()(total, q, x=torch.zeros(8, 2, 3))
    with pytest.raises(ValueError, match=r"x: GumbelSoftmax draws relaxed points.*give a `generator` instead"):
        GumbelSoftmax()(total, q, x=torch.zeros(1, 2, 3))


@pytest.mark.parametrize(("table", "given"), [(torch.zeros(2, 3, 2), r"shape \(2, 3, 2\)"), ([0.0], "list")])
def test_wrong_table_of_f(q, table, given):
    f = Additive(torch.zeros(3, 2))
    f.neighbours = lambda x: table
    with pytest.raises(ValueError, match=rf"f\.neighbours must return a table of shape \(1, 2, 3, 2\) .*but it returned {given}"):
        IndeCateR()(f, q)


def test_exact_above_its_limit(q):
    match = r"Exact: q has 8 points, more than `limit` = 7\. Use IndeCateR or RLOO, or raise the limit"
    with pytest.raises(ValueError, match=match):
        Exact(limit=7)(total, q)
    with pytest.raises(ValueError, match="Exact: `limit` must be at least 1, but 0 was given"):
        Exact(limit=0)


def test_bad_temperature():
    for given, needed in ((0.0, "positive"), (-1.0, "positive"), (torch.nan, "finite"), (torch.inf, "finite")):
        with pytest.raises(ValueError, match=f"GumbelSoftmax: `temperature` must be {needed}, but {given} was given"):
            GumbelSoftmax(temperature=given)
    with pytest.raises(ValueError, match=r"GumbelSoftmax: `temperature` must be positive, but -1\.0 was given"):
        GumbelSoftmax(temperature=torch.tensor(-1.0))


def test_bad_baseline():
    with pytest.raises(TypeError, match="Reinforce: `baseline` must be a number or a callable, but 'mean' was given"):
        Reinforce(baseline="mean")
    with pytest.raises(ValueError, match=r"MovingAverage: `decay` must be in \[0, 1\), but 1 was given"):
        MovingAverage(decay=1)


def test_taylor_needs_a_derivative(q):
    with pytest.raises(ValueError, match=r"f: its derivative in x is needed.*Use a black-box estimator"):
        IndeCateR(variables=1)(lambda x: total(x.detach()), q)


@pytest.mark.parametrize("E", BLACK_BOX, ids=repr)
def test_bool_valued_f_is_accepted(E):
    logits = [torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_() for _ in range(2)]
    both = [lambda x: total(x) == 2, lambda x: (total(x) == 2).double()]
    for f, each in zip(both, logits, strict=True):
        deepcopy(E)(f, Independent(Bernoulli(logits=each), 1), generator=seeded()).sum().backward()
    torch.testing.assert_close(logits[0].grad, logits[1].grad, rtol=0, atol=0)


def clean(x):
    return (x * 2 - 0.3).square().flatten(2).sum(-1)


def scribbling(x):
    value = (x.mul_(2) - 0.3).square().flatten(2).sum(-1)
    x.zero_()
    return value


@accepted
def test_f_that_changes_its_input_in_place(E, kind):
    logits = [torch.linspace(-1, 1, 18).view(2, 3, 3).requires_grad_() for _ in range(2)]
    values = [deepcopy(E)(f, KINDS[kind](each), generator=seeded()) for f, each in zip([clean, scribbling], logits, strict=True)]
    for value in values:
        value.sum().backward()
    torch.testing.assert_close(*values, rtol=0, atol=0)
    torch.testing.assert_close(logits[0].grad, logits[1].grad, rtol=0, atol=0)


@pytest.mark.parametrize("E", INJECTABLE, ids=repr)
def test_injected_x_is_unchanged(E):
    q = KINDS["one-hot" if supports(E, "one-hot") else "bits"](torch.zeros(2, 3, 3))
    given = torch.eye(3) if supports(E, "one-hot") else torch.tensor([0.0, 1.0, 1.0])
    x = given.expand(E.rows(q), 2, *given.shape).clone()
    E(scribbling, q, x=x)
    assert torch.equal(x, given.expand_as(x))


@pytest.mark.parametrize("E", [IndeCateR(), IndeCateR(fresh=True), IndeCateR(variables=2)], ids=repr)
def test_own_table_that_changes_its_input_in_place(E, q):
    class Scribbling(Additive):
        def neighbours(self, x, variables=None):
            table = super().neighbours(x, variables)
            x.zero_()
            return table

    x = torch.ones(E.rows(q), 2, 3)
    E(Scribbling(torch.arange(6.0).view(3, 2)), q, x=x)
    assert bool(x.all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@accepted
def test_extreme_logits_give_finite_gradients(E, kind, dtype):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4]], dtype=dtype)
    logits = torch.stack([logits, -logits]).requires_grad_()
    value = E(clean, KINDS[kind](logits), generator=seeded())
    value.sum().backward()
    assert bool(value.isfinite().all())
    assert bool(logits.grad.isfinite().all())


@every
def test_validate_false_lets_nan_through(E, q):
    if isinstance(E, nn.Module):
        E = deepcopy(E)
        E.validate = False
    else:
        E = replace(E, validate=False)
    assert bool(E(lambda x: total(x) * torch.nan, q).isnan().all())


def test_categoricals():
    with pytest.raises(ValueError, match="`cardinalities` is needed with one padded tensor"):
        Categoricals(torch.zeros(3, 2))
    for given in ((2, 2), (2, 2, 3), (2, 2, 0)):
        match = rf"`cardinalities` \({', '.join(map(str, given))}\) does not fit logits of shape \(3, 2\): one number"
        with pytest.raises(ValueError, match=match):
            Categoricals(torch.zeros(3, 2), given)
    for arguments in (([],), ([torch.zeros(2)], (2,))):
        with pytest.raises(ValueError, match="give a non-empty list of logits, or one padded tensor and `cardinalities`"):
            Categoricals(*arguments)


def test_functions():
    with pytest.raises(ValueError, match=r"Pairwise: `couplings` must have shape \[d, k, d, k\], but \(3, 2, 2, 3\) was given"):
        Pairwise(torch.zeros(3, 2, 2, 3))
    match = r"Potts: `couplings` must have shape \[d, d\] and `fields` \[d, k\], but \(2, 2\) and \(3, 2\)"
    with pytest.raises(ValueError, match=match):
        Potts(torch.zeros(2, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="OfSum: `categories` must be at least 1, but 0 was given"):
        OfSum(torch.sin, categories=0)
    for network in (nn.Linear(2, 1), nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Linear(2, 1))):
        match = r"(?s)`network` must be an nn.Sequential that starts with nn.Linear, but .* was given"
        with pytest.raises(TypeError, match=match):
            FirstLayerLinear(network)
    with pytest.raises(ValueError, match="FirstLayerLinear: `chunk_size` must be at least 1, but 0 was given"):
        FirstLayerLinear(nn.Sequential(nn.Linear(2, 1)), chunk_size=0)
