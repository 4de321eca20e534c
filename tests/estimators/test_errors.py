"""Every mistake raises an error that names the argument, its value and the remedy."""

import re
from copy import deepcopy
from inspect import signature
from math import prod

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

import catlog
from catlog import RLOO, Exact, GumbelSoftmax, IndeCateR, Reinforce
from catlog.core.checks import check_generator, check_number
from catlog.distributions import Categoricals
from catlog.estimators import ESTIMATORS, MovingAverageBaseline
from catlog.functions import Additive, FirstLayerLinear, OfSum, Pairwise, Potts
from catlog.testing.cases import seeded
from catlog.testing.settings import chosen_per_draw, supports, tape
from support.laws import KINDS, bits, integers

ALL = [
    *(cls() for cls in ESTIMATORS.values()),
    IndeCateR(samples=3, per_variable=True),
    IndeCateR(samples=3, sampling="latin"),
    IndeCateR(samples=3, variables=2),
    IndeCateR(samples=3, variables=2, control="none"),
    GumbelSoftmax(samples=3, hard=True),
]
RELAXING = [E for E in ALL if E.differentiates_f and supports(E, "one-hot")]
BLACK_BOX = [E for E in ALL if not E.differentiates_f]
INJECTABLE = [E for E in ALL if "points" in dict(tape(E))]
SETS = ("UnorderedSet", "SumAndSample", "MAPO")
each_estimator = pytest.mark.parametrize("E", ALL, ids=repr)
accepted = pytest.mark.parametrize(
    ("E", "kind"), [(E, kind) for kind in KINDS for E in ALL if supports(E, kind)], ids=repr
)


@pytest.fixture
def q():
    return bits(torch.zeros(2, 3))


def total(x):
    return x.sum(-1)


def rows(E, q):
    """Return the number of points that a call draws."""
    return dict(tape(E, q))["points"][0]


def unchecked(*shape):
    """Return bits whose values of f are not checked."""
    return bits(torch.zeros(shape), validate_args=False)


# What f returns, and what the error says of it.
WRONG_SHAPES = {
    r"f must return one value per point: it was given x of shape \(\d+, 2, 3\) and must return "
    r"shape \(\d+, 2\).*but it returned \(\)\. Reduce the event dimensions \(3,\)": torch.sum,
    "f must return its values on cpu, the device of its input, but they are on meta": (
        lambda x: total(x).to("meta")
    ),
    **{
        rf"f must return finite numbers, but \d+ of \d+ are .* the first \({value}\) at index "
        r"\(0, 0\).*validate_args=False": lambda x, value=value: 0 * total(x) + value
        for value in (torch.nan, torch.inf, -torch.inf)
    },
}
WRONG_KINDS = {
    r"f must return a tensor of shape \(\d+, 2\), but it returned float\. If these are the values, "
    r"wrap them: torch\.as_tensor\(values, dtype=torch\.float32, device='cpu'\)\.": lambda x: 1.0,
    r"f must return a tensor of shape \(\d+, 2\), but it returned ndarray\. .*wrap them": (
        lambda x: total(x).detach().numpy()
    ),
    r"f: its value must be a dense tensor, but its layout is torch\.sparse_coo\..*`to_dense": (
        lambda x: total(x).to_sparse()
    ),
    r"f must return floats or bools, but it returned torch\.int64: end it with `\.float\(\)`": (
        lambda x: total(x).long()
    ),
}


@each_estimator
@pytest.mark.parametrize(
    ("error", "message", "f"),
    [
        *((ValueError, *entry) for entry in WRONG_SHAPES.items()),
        *((TypeError, *entry) for entry in WRONG_KINDS.items()),
    ],
)
def test_wrong_results_of_f_are_named(E, q, error, message, f):
    with pytest.raises(error, match=message):
        E(f, q)


@each_estimator
def test_independent_is_missing(E):
    q = Bernoulli(logits=torch.zeros(2, 3))
    one = r"\(\d+, 2, 3\).*returned \(\d+, 2\).*last 1 batch dimension of q.*Independent\(q, 1\)\."
    with pytest.raises(ValueError, match=one):
        E(total, q)
    with pytest.raises(ValueError, match=r"last 2 batch dimensions of q.*Independent\(q, 2\)\."):
        E(lambda x: x.sum((-1, -2)), q)


@pytest.mark.parametrize(
    "E", [Exact(), IndeCateR(), IndeCateR(per_variable=True), IndeCateR(variables=3)], ids=repr
)
def test_f_returns_nan_at_a_neighbour_only(E, q):
    x = None if isinstance(E, Exact) else torch.ones(rows(E, q), 2, 3)
    with pytest.raises(ValueError, match=r"f must return finite numbers.*nan.*validate_args=False"):
        E(lambda x: torch.where(total(x) == 2, torch.nan, total(x)), q, x=x)


def with_table(table):
    f = Additive(torch.zeros(3, 2))
    f.neighbours = lambda x: table
    return f


# A call with three bits in a batch of two, and what the error says of it.
WRONG_CALLS = {
    r"f\.neighbours must return finite numbers, but 6 of 12.*validate_args=False": lambda q: (
        IndeCateR()(with_table(torch.full((1, 2, 3, 2), torch.nan)), q)
    ),
    r"f\.neighbours must return a table of shape \(1, 2, 3, 2\) .*but it returned shape "
    r"\(2, 3, 2\)": lambda q: IndeCateR()(with_table(torch.zeros(2, 3, 2)), q),
    r"f\.neighbours must return a table of shape \(1, 2, 3, 2\) .*but it returned list": lambda q: (
        IndeCateR()(with_table([0.0]), q)
    ),
    r"f: its derivative in x is needed.*Use a black-box estimator": lambda q: IndeCateR(
        variables=1
    )(lambda x: total(x.detach()), q),
    r"RLOO: `x.shape\[0\]` must be at least 2, but 1 was given.*use Reinforce": lambda q: RLOO()(
        total, q, x=torch.ones(1, 2, 3)
    ),
    r"q: a distribution needs at least one variable.*event shape \(0,\)": lambda q: IndeCateR()(
        total, bits(torch.zeros(2, 0))
    ),
    r"`variables` must be between 1 and 3, but 4 was given\. q has 3 variables": lambda q: (
        IndeCateR(variables=4)(total, q)
    ),
    "`variables` and `per_variable` exclude each other": lambda q: IndeCateR(
        variables=1, per_variable=True
    ),
    r"noise: a tensor of shape \(1, 2, 2\) comes next, number 1, but \(1, 2, 3\) was given": (
        lambda q: IndeCateR(variables=2)(
            total, q, x=torch.zeros(1, 2, 3), noise=torch.zeros(1, 2, 3).long()
        )
    ),
    "noise: Exact used all but 1 of the given tensors": lambda q: Exact()(
        total, q, noise=torch.zeros(2)
    ),
    r"x must have shape \[n \* 3, .*but \(4, 2, 3\) was given": lambda q: IndeCateR(
        per_variable=True
    )(total, q, x=torch.zeros(4, 2, 3)),
    "x: Exact cannot use it, as it draws nothing": lambda q: Exact()(
        total, q, x=torch.zeros(8, 2, 3)
    ),
    "x: GumbelSoftmax cannot use it; give `noise` or a `generator` instead": lambda q: (
        GumbelSoftmax()(total, q, x=torch.zeros(1, 2, 3))
    ),
    r"Exact: q has 8 points, more than `limit` = 7\. Use IndeCateR or RLOO, raise the limit": (
        lambda q: Exact(limit=7)(total, q)
    ),
    "`cardinalities` is needed with one padded tensor": lambda q: Categoricals(torch.zeros(3, 2)),
    **{
        re.escape(f"`cardinalities` {sizes} does not fit logits of shape (3, 2): one number"): (
            lambda q, sizes=sizes: Categoricals(torch.zeros(3, 2), sizes)
        )
        for sizes in ((2, 2), (2, 2, 3), (2, 2, 0))
    },
    "Categoricals: give a non-empty list of logits, or one padded tensor and `cardinalities`": (
        lambda q: Categoricals([])
    ),
    "give a non-empty list of logits, or one padded tensor and `cardinalities`": lambda q: (
        Categoricals([torch.zeros(2)], (2,))
    ),
    r"Pairwise: `couplings` must have shape \[d, k, d, k\], but \(3, 2, 2, 3\) was given": (
        lambda q: Pairwise(torch.zeros(3, 2, 2, 3))
    ),
    r"Potts: `couplings` must have shape \[d, d\] and `fields` \[d, k\], but \(2, 2\) and "
    r"\(3, 2\)": lambda q: Potts(torch.zeros(2, 2), torch.zeros(3, 2)),
    "OfSum: `categories` must be at least 1, but 0 was given": lambda q: OfSum(
        torch.sin, categories=0
    ),
    "FirstLayerLinear: `chunk_size` must be at least 1, but 0 was given": lambda q: (
        FirstLayerLinear(nn.Sequential(nn.Linear(2, 1)), chunk_size=0)
    ),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_calls_are_named(q, message):
    with pytest.raises(ValueError, match=message):
        WRONG_CALLS[message](q)


@pytest.mark.parametrize(
    "network", [nn.Linear(2, 1), nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Linear(2, 1))]
)
def test_networks_without_a_linear_first_layer_are_refused(network):
    match = r"(?s)`network` must be an nn.Sequential that starts with nn.Linear, but .* was given"
    with pytest.raises(TypeError, match=match):
        FirstLayerLinear(network)


@pytest.mark.parametrize(
    "E", [cls for name, cls in ESTIMATORS.items() if name not in ("Exact", "RLOO")]
)
def test_samples_below_one(E):
    start = f"{E.__name__}: `samples` must be"
    for argument in (0, -1):
        with pytest.raises(ValueError, match=f"{start} at least [12], but {argument} was given"):
            E(samples=argument)
    for argument in (1.5, True, "2"):
        message = f"{start} an int of at least [12], but {argument!r} was given"
        with pytest.raises(TypeError, match=message):
            E(samples=argument)


@each_estimator
@pytest.mark.parametrize("law", [Normal(0.0, 1.0), Independent(Normal(torch.zeros(3), 1.0), 1)])
def test_unsupported_distribution(E, law):
    start = "q: a distribution of categorical variables is needed"
    with pytest.raises(TypeError, match=f"{start}.*Normal.* was given.*Supported are Bernoulli"):
        E(total, law)


@pytest.mark.parametrize("E", RELAXING, ids=repr)
@pytest.mark.parametrize("law", [integers(torch.zeros(2, 3)), Categoricals([torch.zeros(2)] * 2)])
def test_integers_with_a_relaxing_estimator(E, law):
    message = rf"{type(E).__name__}.* but .*Categorical.* draws integers\. Use OneHotCategorical"
    with pytest.raises(TypeError, match=message):
        E(total, law)


@accepted
def test_parameters_that_became_nan(E, kind):
    """As by a step of an optimiser, after torch has looked at them."""
    q = KINDS[kind](torch.zeros(2, 3, 2))
    q.base_dist.logits[1, 2] = torch.nan
    message = r"q: \w+ has no valid probabilities at index \(1, 2\).*NaN.*Check what computes them"
    with pytest.raises(ValueError, match=message):
        E(total, q)


@pytest.mark.parametrize("E", [E for E in ALL if supports(E, "mixed")], ids=repr)
def test_all_categories_masked(E):
    """torch refuses this for its own distributions."""
    logits = torch.zeros(2, 3, 2)
    logits[1, 2] = -torch.inf
    reason = r"no valid probabilities at index \(1, 2\).*every category is masked"
    with pytest.raises(ValueError, match=f"{reason}.*leave each variable at least one category"):
        E(total, Categoricals(logits, (2, 2, 2)))


# Class, argument, wrong value, and what the error says of it.
WRONG_VALUES = [
    *(
        (owner, "samples", 1, "must be at least 2, but 1 was given.*use Reinforce")
        for owner in ("RLOO", "ARMS", "CARMS")
    ),
    *(
        (owner, "samples", 1, "must be at least 2, but 1 was given.*[Uu]se")
        for owner in ("BBVI", "DoubleCV", "RODEO")
    ),
    ("MemoryCateR", "samples", 1, "must be at least 2"),
    ("UnorderedSet", "samples", 11, r"must be between 2 and 10, but 11 was given.*use RLOO"),
    ("CountDifferences", "samples", 0, "must be at least 1"),
    ("IndeCateR", "variables", 0, "must be at least 1, but 0 was given"),
    ("IndeCateR", "chunk_size", 0, "must be at least 1, but 0 was given"),
    ("Exact", "chunk_size", 0, "must be at least 1, but 0 was given"),
    ("Exact", "limit", 0, "must be at least 1, but 0 was given"),
    (
        "IndeCateR",
        "sampling",
        "sobol",
        "must be one of 'independent', 'antithetic', 'latin', but 'sobol'",
    ),
    ("IndeCateR", "control", None, "must be one of 'taylor', 'none', but None was given"),
    ("DisARMTree", "tree", "heap", "must be one of 'balanced', 'stick', but 'heap' was given"),
    ("GumbelSoftmax", "temperature", 0.0, r"must be positive, but 0\.0 was given"),
    ("GumbelSoftmax", "temperature", -1.0, r"must be positive, but -1\.0 was given"),
    ("GumbelSoftmax", "temperature", torch.tensor(-1.0), r"must be positive, but -1\.0 was given"),
    ("GumbelSoftmax", "temperature", torch.nan, "must be finite, but nan was given"),
    ("GumbelSoftmax", "temperature", torch.inf, "must be finite, but inf was given"),
    *(
        (owner, "temperature", -1.0, r"must be positive, but -1\.0 was given")
        for owner in ("GumbelRao", "ReinMax", "ReinMaxRao", "ReinMaxCV", "GappedStraightThrough")
    ),
    ("DecoupledStraightThrough", "forward_temperature", -1.0, r"must be positive, but -1\.0 was"),
    ("DecoupledStraightThrough", "backward_temperature", -1.0, r"must be positive, but -1\.0 was"),
    ("REBAR", "temperature", 0.0, r"must be positive, but 0\.0 was given"),
    ("RELAX", "temperature", 0.0, r"must be positive, but 0\.0 was given"),
    ("IMLE", "step", -1.0, r"must be positive, but -1\.0 was given"),
    ("GappedStraightThrough", "gap", -1, "must be at least 0, but -1"),
    ("GumbelRao", "noise_samples", 0, "must be at least 1, but 0 was given"),
    ("ReinMaxRao", "noise_samples", 0, "must be at least 1, but 0 was given"),
    *(
        (owner, "temperature", 1e-300, "must be at least 1e-30, but 1e-300 was given")
        for owner in ("GumbelSoftmax", "GumbelRao", "ReinMax", "REBAR", "RELAX")
    ),
    ("DirectOptimisation", "epsilon", 1e-300, "must be a number other than 0, but 1e-300"),
    ("DirectOptimisation", "epsilon", 0.0, r"must be a number other than 0, but 0\.0 was given"),
    ("DARN", "order", 3, "must be between 1 and 2, but 3 was given"),
    ("ReDGE", "steps", 0, "must be at least 1, but 0 was given"),
    ("ReDGE", "last_time", 0.0, r"must be in \(0, 1\], but 0\.0"),
    ("ReDGE", "last_time", 1.5, r"must be in \(0, 1\], but 1\.5"),
    ("MinimumVarianceStraightThrough", "bias_weight", -1, "must be at least 0, but -1 was given"),
    ("SumAndSample", "top", 0, "must be at least 1, but 0 was given"),
    ("MAPO", "size", 0, "must be at least 1, but 0 was given"),
    ("MAPO", "clip", 1.0, r"must be in \[0, 1\), but 1\.0 was given"),
    ("SlopeCateR", "corrections", 0, "must be"),
    ("SlopeCateR", "decay", 1.5, "must be in"),
    ("MovingAverageBaseline", "decay", 1, r"must be in \[0, 1\), but 1 was given"),
]
WRONG_TYPES = [
    ("IndeCateR", "variables", 0.5, r"must be an int of at least 1, but 0\.5 was given"),
    ("IndeCateR", "chunk_size", 2.0, r"must be an int of at least 1, but 2\.0 was given"),
    ("Exact", "chunk_size", 2.0, r"must be an int of at least 1, but 2\.0 was given"),
    ("Reinforce", "baseline", "mean", "must be a number or a callable, but 'mean' was given"),
]


@pytest.mark.parametrize(
    ("error", "owner", "name", "value", "message"),
    [
        *((ValueError, *entry) for entry in WRONG_VALUES),
        *((TypeError, *entry) for entry in WRONG_TYPES),
    ],
)
def test_wrong_settings_are_named(error, owner, name, value, message):
    with pytest.raises(error, match=rf"{owner}: `{name}` {message}"):
        getattr(catlog.estimators, owner)(**{name: value})


@pytest.mark.parametrize("E", INJECTABLE, ids=repr)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 2, 3), (6, 3, 2), (6, 1, 2, 3)])
def test_wrong_shape_of_x(E, q, shape):
    needed = r"x must have shape \[.*, \*batch, \*event\] = \[n.*, 2, 3\]"
    given = rf"but \({', '.join(map(str, shape))},?\) was given"
    with pytest.raises(ValueError, match=f"{needed}, {given}"):
        E(total, q, x=torch.zeros(shape))


def test_wrong_results_of_a_baseline(q):
    def use(result):
        return Reinforce(3, baseline=lambda fx: result)(total, q)

    message = "Reinforce: `baseline` must return a number or a tensor of floats, but it returned"
    for result in (None, "b", [0.0], True, torch.zeros(2).long()):
        with pytest.raises(TypeError, match=message):
            use(result)
    message = r"`baseline` must return a shape that broadcasts to \(3, 2\) \(\[n, \*batch\]\), but"
    for shape in ((3,), (2, 2), (1, 3, 2), (0,)):
        with pytest.raises(ValueError, match=message):
            use(torch.zeros(shape))
    for result in (1, 0.5, *map(torch.zeros, [(), (2,), (1, 2), (3, 1), (3, 2)])):
        assert use(result).shape == (2,)


@pytest.mark.parametrize("E", BLACK_BOX, ids=repr)
def test_bool_valued_f_is_accepted(E):
    logits = [
        torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_() for _ in range(2)
    ]
    both = [lambda x: total(x) == 2, lambda x: (total(x) == 2).double()]
    for f, leaf in zip(both, logits, strict=True):
        deepcopy(E)(f, bits(leaf), generator=seeded()).sum().backward()
    torch.testing.assert_close(logits[0].grad, logits[1].grad, rtol=0, atol=0)


def clean(x):
    return (x * 2 - 0.3).square().flatten(2).sum(-1)


def scribbling(x):
    value = (x.mul_(2) - 0.3).square().flatten(2).sum(-1)
    x.zero_()
    return value


def into_one_buffer(x, buffer=torch.empty(2**12)):
    value = clean(x).detach()
    return buffer[: value.numel()].view(value.shape).copy_(value)


@accepted
def test_f_that_writes_in_place(E, kind):
    """Into its input, or all results into the same memory."""

    def estimate(f):
        logits = torch.linspace(-1, 1, 18).view(2, 3, 3).requires_grad_()
        value = deepcopy(E)(f, KINDS[kind](logits), generator=seeded())
        return value.detach(), *torch.autograd.grad(value.sum(), logits)

    for f in [scribbling] if E.differentiates_f else [scribbling, into_one_buffer]:
        torch.testing.assert_close(estimate(f), estimate(clean), rtol=0, atol=0)


@pytest.mark.parametrize("E", [E for E in INJECTABLE if type(E).__name__ not in SETS], ids=repr)
def test_injected_x_is_unchanged(E):
    q = KINDS["one-hot" if supports(E, "one-hot") else "bits"](torch.zeros(2, 3, 3))
    point = torch.eye(3) if supports(E, "one-hot") else torch.tensor([0.0, 1.0, 1.0])
    x = point.expand(rows(E, q), 2, *point.shape).clone()
    E(scribbling, q, x=x)
    assert torch.equal(x, point.expand_as(x))


@pytest.mark.parametrize(
    "E", [IndeCateR(), IndeCateR(per_variable=True), IndeCateR(variables=2)], ids=repr
)
def test_own_table_that_changes_its_input_in_place(E, q):
    class Scribbling(Additive):
        def neighbours(self, x, variables=None):
            table = super().neighbours(x, variables)
            x.zero_()
            return table

    x = torch.ones(rows(E, q), 2, 3)
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


@each_estimator
def test_unchecked_distributions_let_nan_through(E):
    assert bool(E(lambda x: total(x) * torch.nan, unchecked(2, 3)).isnan().all())


# What is not a tensor, not a number, not a flag: for arguments that want one of these.
NO_TENSORS = [[[0.0, 1.0]], 1.0, "x", (), {}, object(), True]


def check_no_tensors_are_refused(name, use, shape=".*"):
    for argument in NO_TENSORS:
        given = type(argument).__name__
        message = f"{name} must be a tensor of shape {shape}, but {given} was given"
        with pytest.raises(TypeError, match=message):
            use(argument)


@pytest.mark.parametrize("E", INJECTABLE, ids=repr)
def test_x_is_no_tensor(E, q):
    check_no_tensors_are_refused("x", lambda x: E(total, q, x=x), r"\[n.*, 2, 3\]")


NOT_ONE_HOT = [(0, 0, 0), (1, 1, 0), (0.5, 0.5, 0), (2, 0, 0), (1, torch.nan, 0), (1, 1, -1)]


@pytest.mark.parametrize("E", [E for E in INJECTABLE if supports(E, "one-hot")], ids=repr)
@pytest.mark.parametrize("row", NOT_ONE_HOT)
def test_x_is_not_one_hot(E, row):
    q = KINDS["one-hot"](torch.zeros(2, 3, 3))
    x = torch.eye(3).expand(rows(E, q), 2, 3, 3).clone()
    x[0, 1, 2] = torch.tensor(row)
    message = "x must hold one-hot vectors, a single 1 among zeros, but others were given"
    with pytest.raises(ValueError, match=message):
        E(clean, q, x=x)


@pytest.mark.parametrize("E", [E for E in INJECTABLE if supports(E, "index")], ids=repr)
def test_x_is_not_whole(E):
    """Floats are refused by their type, so where q is not checked, too."""
    q, loose = (KINDS["index"](torch.zeros(2, 3, 3), validate_args=flag) for flag in (True, False))
    x = torch.zeros(rows(E, q), 2, 3)
    message = r"x must hold points of torch\.int64, as q\.sample\(\) gives .*but"
    for argument in (x + 0.7, x, x.bool(), x.to(torch.complex64)):
        with pytest.raises(TypeError, match=f"{message} {argument.dtype}"):
            E(total, loose, x=argument)
    for argument in (x.long() - 1, x.long() + 3):
        with pytest.raises(ValueError, match="x holds a point that q cannot draw"):
            E(total, q, x=argument)
    if type(E).__name__ not in SETS:
        E(lambda x: total(x).float(), q, x=x.to(torch.int32))


@pytest.mark.parametrize("E", INJECTABLE, ids=repr)
def test_x_on_another_device(E, q):
    with pytest.raises(ValueError, match="x must be on cpu, where q is, but it is on meta"):
        E(total, q, x=torch.zeros(rows(E, q), 2, 3, device="meta"))


@each_estimator
def test_bad_generator(E, q):
    message = r"generator must be a torch\.Generator or None"
    for generator in (0, "seed", torch.zeros(()), [torch.Generator()], torch.Generator, True):
        with pytest.raises(TypeError, match=f"{message}, but {type(generator).__name__} was"):
            E(total, q, generator=generator)
        if E in INJECTABLE:
            with pytest.raises(TypeError, match=message):
                E(total, q, x=torch.zeros(rows(E, q), 2, 3), generator=generator)


def test_a_generator_on_another_device():
    message = r"generator must be on cuda:0, where q is, but it is on cpu\. Make it with"
    with pytest.raises(ValueError, match=message):
        check_generator(torch.Generator(), torch.device("cuda:0"))


@each_estimator
def test_f_cannot_be_called(E, q):
    for f in (None, 1.0, "f", torch.zeros(3)):
        message = f"f must be a function of points, but {type(f).__name__} was given"
        with pytest.raises(TypeError, match=message):
            E(f, q)


@each_estimator
def test_q_is_no_distribution(E):
    law = Bernoulli(logits=torch.zeros(3))
    for q in (None, 0.5, "Bernoulli", torch.zeros(3), Bernoulli, [law]):
        message = f"q: a distribution of categorical .*but {type(q).__name__} was given"
        with pytest.raises(TypeError, match=message):
            E(total, q)


@pytest.mark.parametrize("E", [E for E in ALL if supports(E, "bits")], ids=repr)
def test_bad_noise(E):
    """Every tensor that a call takes besides points, in its place; the others are valid."""
    q = bits(torch.zeros(3))
    taken = [(name, shape) for name, shape in tape(E, q) if name != "points"]
    valid = [
        torch.arange(chosen_per_draw(E)).expand(shape)
        if name == "variables"
        else torch.linspace(0.1, 0.9, prod(shape)).view(shape)
        for name, shape in taken
    ]
    options = {"x": torch.eye(3)[: rows(E, q)]} if E in INJECTABLE else {}
    if type(E).__name__ in SETS:
        options = {}  # they take either

    def use(noise):
        return E(total, q, **options, noise=noise)

    if valid:
        assert use(tuple(valid)).isfinite()
        assert use(
            tuple(u.double() if u.is_floating_point() else u.int() for u in valid)
        ).isfinite()
    with pytest.raises(ValueError, match=r"noise: \w+ used all but 1 of the given tensors"):
        use((*valid, torch.zeros(1)))
    for place, noise in enumerate(valid):
        of_floats = noise.is_floating_point()

        def given(wrong, place=place):
            return (*valid[:place], wrong, *valid[place + 1 :])

        shape = re.escape(str(tuple(noise.shape)))
        message = rf"noise: a tensor of shape {shape} comes next, number {place + 1}, but"
        for wrong in (*NO_TENSORS, noise[..., :0], noise.unsqueeze(0)):
            with pytest.raises(ValueError, match=message):
                use(given(wrong))
        types = (noise.long(), noise.bool(), noise.to(torch.complex64))
        message = rf"noise: (uniforms|numbers of variables, integers) of shape {shape}.* come next"
        for wrong in types if of_floats else (noise.float(), *types[1:]):
            with pytest.raises(TypeError, match=f"{message}, but {wrong.dtype} was given"):
                use(given(wrong))
        with pytest.raises(ValueError, match="noise must be on cpu, where q is, but it is on meta"):
            use(given(noise.to("meta")))
        outside = (
            (noise - 1, noise + 1.5, noise * torch.nan) if of_floats else (noise - 1, noise + 3)
        )
        for wrong in outside:
            with pytest.raises(ValueError, match=r"noise.* must h.*, but others were given"):
                use(given(wrong))
        if not of_floats:
            with pytest.raises(ValueError, match="each draw must have 2 different numbers"):
                use(given(torch.ones_like(noise)))


def test_bad_context(q):
    E = catlog.estimators.NVIL(network=nn.Linear(4, 1))
    E(total, q, context=torch.zeros(2, 4))
    check_no_tensors_are_refused("context", lambda context: E(total, q, context=context))
    with pytest.raises(TypeError, match=r"context must hold floats, but torch\.int64 was given"):
        E(total, q, context=torch.zeros(2, 4).long())
    message = r"context must have shape \[\*batch, features\] with batch \(2,\), but "
    for shape in ((), (4,), (3, 4), (1, 2, 4)):
        with pytest.raises(ValueError, match=message):
            E(total, q, context=torch.zeros(shape))
    with pytest.raises(ValueError, match="context must be on cpu"):
        E(total, q, context=torch.zeros(2, 4, device="meta"))


NUMBERS = [1.5, -1, 0, True, torch.nan, torch.inf, -torch.inf, 1j]
TENSORS = [torch.tensor(2), torch.tensor(0.5), torch.tensor(-0.5), torch.zeros(3)]
GARBAGE = [None, "2", b"2", *NUMBERS, [2], (), {}, object(), *TENSORS, nn.Identity()]


@pytest.mark.parametrize(
    "cls", [*ESTIMATORS.values(), MovingAverageBaseline], ids=lambda cls: cls.__name__
)
def test_every_setting_works_or_is_refused(cls):
    """Every argument of every constructor works, or is refused by name."""

    def use(logits, **setting):
        E = cls(**setting)
        if isinstance(E, MovingAverageBaseline):
            return E(torch.ones(2)) + 0 * logits.sum()
        return E(lambda x: x.sum(-1), bits(logits)).sum()

    refused = 0
    for name in signature(cls).parameters:
        for argument in GARBAGE:
            logits = torch.zeros(2, 3, requires_grad=True)
            try:
                value = use(logits, **{name: argument})
            except (TypeError, ValueError) as error:
                refused += 1
                message = str(error)
                by_name = re.match(
                    rf"{cls.__name__}: `{name}` must|{cls.__name__}: q has 8 "
                    rf"points, more than",
                    message,
                )
                if by_name is None:
                    raise AssertionError(f"{name}={argument!r}") from error
            else:
                value.backward()
                assert bool(value.isfinite()), f"{name}={argument!r}"
                assert bool(logits.grad.isfinite().all()), f"{name}={argument!r}"
    assert refused > len(GARBAGE) / 2
    with pytest.raises(ValueError, match=r"E: `a` must be finite, but about 10\^400 was"):
        check_number("E", "a", 10**400)


FLAT = {
    "detached": lambda x: x.detach().flatten(2).sum(-1),
    "compared": lambda x: (x.flatten(2).sum(-1) > 1).to(x.dtype),
    "a bool": lambda x: x.flatten(2).sum(-1) > 1,
    "rounded": lambda x: x.round().flatten(2).sum(-1),
    "divided": lambda x: x.flatten(2).sum(-1) // 2,
    "constant": lambda x: torch.ones(x.shape[:2]),
    "of its own parameter": lambda x, a=torch.ones((), requires_grad=True): (
        a * x.detach().flatten(2).sum(-1)
    ),
}


@pytest.mark.parametrize("f", FLAT.values(), ids=list(FLAT))
@pytest.mark.parametrize("E", [E for E in ALL if E.differentiates_f], ids=repr)
def test_f_without_a_derivative(E, f):
    """The gradient in q would be 0, or that of another function, without a word."""
    for kind in KINDS:
        if not supports(E, kind):
            continue
        logits = torch.zeros(2, 3, 2, requires_grad=True)
        with pytest.raises(
            ValueError,
            match=r"f: its derivative in x is needed.*does not depend differentiably on "
            r"x.*black-box",
        ):
            E(f, KINDS[kind](logits))
        with torch.no_grad():  # nothing is asked of the derivative here
            assert E(f, KINDS[kind](logits)).shape == (2,)


@pytest.mark.parametrize("E", [E for E in ALL if E.differentiates_f], ids=repr)
def test_f_with_a_derivative_of_zero(E):
    """A slope that happens to be 0 is one; so is one that only a part of f has."""
    for f in (
        lambda x: 0 * x.sum(-1) + 1,
        lambda x: (x.detach() + x).square().sum(-1) + x.round().sum(-1),
        lambda x: x.mul_(2).sum(-1),
    ):
        logits = torch.zeros(2, 3, requires_grad=True)
        E(f, bits(logits)).sum().backward()
        assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize(
    "name", ["StraightThrough", "GumbelSoftmax", "GumbelRao", "ReinMax", "DARN"]
)
def test_f_without_a_derivative_where_none_is_wanted(name, q):
    assert ESTIMATORS[name]()(lambda x: (total(x) > 1).float(), q).shape == (2,)


KEPT = ["SlopeCateR", "MemoryCateR", "MAPO", "NVIL", "REBAR", "RODEO", "DoubleCV"]


@pytest.mark.parametrize(
    ("E", "owner", "variable"),
    [
        *((ESTIMATORS[name](), name, "E") for name in KEPT),
        (Reinforce(2, baseline=MovingAverageBaseline()), "MovingAverageBaseline", "baseline"),
    ],
    ids=repr,
)
def test_what_is_learned_must_be_where_q_is(E, owner, variable):
    """The "meta" device stands for a GPU."""
    q = bits(torch.zeros(3, 4, device="meta", requires_grad=True), validate_args=False)
    message = rf"{owner} keeps what it learns on cpu, but q is on meta.*{variable}\.to\('meta'\)"
    with pytest.raises(ValueError, match=message):
        E(total, q)


@each_estimator
def test_f_and_q_in_the_wrong_order(E, q):
    message = r"q: a distribution is needed, but function was given.*Write E\(f, q\): the function"
    with pytest.raises(TypeError, match=message):
        E(q, total)


@pytest.mark.parametrize("cls", [*ESTIMATORS.values(), catlog.estimators.CountDifferences])
def test_a_class_is_called_instead_of_an_instance(cls, q):
    name = cls.__name__
    instance = rf"{name}: `\w+` must .*function total.*Make an instance first: E = {name}\(\)"
    with pytest.raises(TypeError, match=instance):
        cls(total, q)
    message = (
        rf"{name}: the arguments are .*but `x` was given\. Make an instance.*E\(f, q, x=\.\.\.\)"
    )
    with pytest.raises(TypeError, match=message):
        cls(x=torch.zeros(1, 2, 3))
    with pytest.raises(TypeError, match=instance):
        cls(total, q, x=torch.zeros(1, 2, 3))


@pytest.mark.parametrize("cls", [*ESTIMATORS.values(), catlog.estimators.CountDifferences])
def test_settings_that_a_constructor_lacks_are_named(cls):
    names = ", ".join(signature(cls).parameters)
    message = rf"{cls.__name__}: the arguments are {names}, but `nonsense` was given\.$"
    with pytest.raises(TypeError, match=message):
        cls(nonsense=2)
    with pytest.raises(TypeError, match=rf"{cls.__name__}: .*but 1 without a name was given"):
        cls(*[1] * (len(names) + 1))
    assert signature(cls.__init__).parameters.keys() - {"self"} == signature(cls).parameters.keys()


def test_old_names_give_the_new_one():
    """Of the first edition."""
    with pytest.raises(TypeError, match=r"but `draws` was given.*`draws` is called `sampling`"):
        IndeCateR(2, **{"draws": "latin"})
    with pytest.raises(TypeError, match=r"`validate` was given.*Give `validate_args=False` to q"):
        RLOO(2, validate=False)
    for name in ("chosen", "start"):
        message = rf"a call takes f, q, x, noise, .*but `{name}` was.*is part of `noise`"
        with pytest.raises(TypeError, match=message):
            catlog.SlopeCateR(2)(total, bits(torch.zeros(3)), **{name: torch.zeros(2)})
    for name in ("ARMS", "MarkovChain", "advantages"):
        with pytest.raises(AttributeError, match=rf"It is catlog\.\w+\.{name}"):
            getattr(catlog, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        catlog.nonsense  # noqa: B018


def test_where_a_setting_belongs():
    where = r"`sampling` is a setting of .*StraightThrough.* The others need independent draws"
    with pytest.raises(TypeError, match=rf"RLOO: the arguments are samples, but .*{where}"):
        RLOO(4, sampling="latin")
    with pytest.raises(TypeError, match=r"GumbelSoftmax: .* tau is called `temperature`"):
        GumbelSoftmax(tau=0.5)
    for name in ("GumbelSoftmax", "ReinMax", "GumbelRao"):
        message = rf"{name}: `samples` must .*For a temperature write {name}\(temperature=0\.5\)"
        with pytest.raises(TypeError, match=message):
            ESTIMATORS[name](0.5)


@pytest.mark.parametrize("E", [E for E in ALL if supports(E, "bits")], ids=repr)
def test_errors_of_f_say_what_x_was(E):
    """As when float64 draws meet a float32 network."""
    network = nn.Linear(3, 1)
    q = bits(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="dtype") as error:
        E(lambda x: network(x).squeeze(-1), q)
    (note,) = error.value.__notes__
    pattern = (
        r"f was called with x of shape \(\d+, 2, 3\) \(\[n, \*batch, \*event\]\) and dtype "
        r"torch\.float64 on cpu, as q draws it\. If f needs another dtype, convert x in f, or"
    )
    assert re.match(pattern, note)


def test_notes_on_other_errors_of_f(q):
    with pytest.raises(KeyError) as error:
        RLOO(3)(lambda x: {}["a"], q)
    (note,) = error.value.__notes__
    assert note.startswith("f was called with x of shape (3, 2, 3)")
    assert note.endswith("as q draws it.")


@pytest.mark.parametrize("number", [10**30, -(10**30), 10**5000], ids=["30", "-30", "5000"])
def test_integers_that_torch_cannot_hold(q, number):
    for call in (
        lambda: GumbelSoftmax(temperature=number),
        lambda: RLOO(number),
        lambda: IndeCateR(chunk_size=number),
        lambda: RLOO(2)(total, q, outputs=number),
        lambda: catlog.gumbel_softmax(torch.zeros(3), number),
    ):
        with pytest.raises(ValueError, match=r"must .*about -?10\^\d+"):
            call()


def test_integers_in_a_cross_entropy():
    head = catlog.functions.BernoulliCrossEntropy(torch.tensor([1, 0]))
    message = r"BernoulliCrossEntropy: `logits` must be floats, but torch\.int64 was given"
    with pytest.raises(TypeError, match=message):
        head(torch.zeros(3, 2, dtype=torch.int64))
