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
from catlog.estimators import ESTIMATORS, CountDifferences, MovingAverageBaseline
from catlog.functions import (
    Additive,
    BernoulliCrossEntropy,
    FirstLayerLinear,
    OfSum,
    Pairwise,
    Potts,
)
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
INJECTABLE = [E for E in ALL if "points" in dict(tape(E))]
SETS = ("UnorderedSet", "SumAndSample", "MAPO")
each_estimator = pytest.mark.parametrize("E", ALL, ids=repr)
each_injectable = pytest.mark.parametrize("E", INJECTABLE, ids=repr)
each_relaxing = pytest.mark.parametrize("E", [E for E in ALL if E.differentiates_f], ids=repr)
each_class = pytest.mark.parametrize("cls", [*ESTIMATORS.values(), CountDifferences])


@pytest.fixture
def q():
    return bits(torch.zeros(2, 3))


def total(x):
    return x.sum(-1)


def clean(x):
    return (x * 2 - 0.3).square().flatten(2).sum(-1)


def rows(E, q):
    """Return the number of points that a call draws."""
    return dict(tape(E, q))["points"][0]


def kinds(E):
    """Return the kinds of distribution that E takes."""
    return [kind for kind in KINDS if supports(E, kind)]


def check(error, message, call, mistakes):
    """Check that each mistake raises the error; {0} in its message stands for the mistake."""
    for mistake in mistakes:
        with pytest.raises(error, match=message(mistake) if callable(message) else message):
            call(mistake)


def of_type(text):
    """Return a function that puts the type of a mistake into the text."""
    return lambda mistake: text.replace("TYPE", type(mistake).__name__)


# What f returns, and what the error says of it.
WRONG_VALUES = {
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
WRONG_TYPES = {
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
WRONG_GENERATORS = (0, "seed", torch.zeros(()), [torch.Generator()], torch.Generator, True)
NO_GENERATOR = of_type(r"generator must be a torch\.Generator or None, but TYPE was given")
# What is not a tensor, not a number, not a flag: for arguments that want one of these.
NO_TENSORS = [[[0.0, 1.0]], 1.0, "x", (), {}, object(), True]


@each_estimator
def test_mistakes_in_a_call_are_named(E, q):
    for error, wrong in ((ValueError, WRONG_VALUES), (TypeError, WRONG_TYPES)):
        for message, f in wrong.items():
            check(error, message, lambda f: E(f, q), [f])
    no_function = of_type("f must be a function of points, but TYPE was given")
    check(TypeError, no_function, lambda f: E(f, q), [None, 1.0, "f", torch.zeros(3)])
    check(TypeError, NO_GENERATOR, lambda wrong: E(total, q, generator=wrong), WRONG_GENERATORS)
    unchecked = bits(torch.zeros(2, 3), validate_args=False)
    assert bool(E(lambda x: total(x) * torch.nan, unchecked).isnan().all())


@each_estimator
def test_wrong_distributions_are_named(E, q):
    law = Bernoulli(logits=torch.zeros(2, 3))
    none = of_type("q: a distribution of categorical .*but TYPE was given")
    check(
        TypeError, none, lambda q: E(total, q), [None, 0.5, "q", torch.zeros(3), Bernoulli, [law]]
    )
    other = "q: a distribution of categorical variables is needed.*Normal.* was given.*Supported"
    normals = [Normal(0.0, 1.0), Independent(Normal(torch.zeros(3), 1.0), 1)]
    check(TypeError, other, lambda q: E(total, q), normals)
    order = r"q: a distribution is needed, but function was given.*Write E\(f, q\): the function"
    check(TypeError, order, lambda f: E(q, f), [total])
    one = r"\(\d+, 2, 3\).*returned \(\d+, 2\).*last 1 batch dimension of q.*Independent\(q, 1\)\."
    check(ValueError, one, lambda f: E(f, law), [total])
    two = r"last 2 batch dimensions of q.*Independent\(q, 2\)\."
    check(ValueError, two, lambda f: E(f, law), [lambda x: x.sum((-1, -2))])


@each_injectable
def test_wrong_points_are_named(E, q):
    def use(x):
        return E(total, q, x=x)

    needed = r"x must have shape \[.*, \*batch, \*event\] = \[n.*, 2, 3\], but"
    for shape in ((3,), (2, 3), (0, 2, 3), (6, 3, 2), (6, 1, 2, 3)):
        given = rf"{needed} \({', '.join(map(str, shape))},?\) was given"
        check(ValueError, given, use, [torch.zeros(shape)])
    tensor = of_type(r"x must be a tensor of shape \[n.*, 2, 3\], but TYPE was given")
    check(TypeError, tensor, use, NO_TENSORS)
    x = torch.zeros(rows(E, q), 2, 3)
    check(ValueError, "x must be on cpu, where q is, but it is on meta", use, [x.to("meta")])
    check(TypeError, NO_GENERATOR, lambda g: E(total, q, x=x, generator=g), WRONG_GENERATORS)


NOT_ONE_HOT = [(0, 0, 0), (1, 1, 0), (0.5, 0.5, 0), (2, 0, 0), (1, torch.nan, 0), (1, 1, -1)]


@pytest.mark.parametrize("E", [E for E in INJECTABLE if supports(E, "one-hot")], ids=repr)
def test_points_that_are_not_one_hot_are_named(E):
    q = KINDS["one-hot"](torch.zeros(2, 3, 3))

    def use(row):
        x = torch.eye(3).expand(rows(E, q), 2, 3, 3).clone()
        x[0, 1, 2] = torch.tensor(row)
        E(clean, q, x=x)

    message = "x must hold one-hot vectors, a single 1 among zeros, but others were given"
    check(ValueError, message, use, NOT_ONE_HOT)


@pytest.mark.parametrize("E", [E for E in INJECTABLE if supports(E, "index")], ids=repr)
def test_points_that_are_not_whole_are_named(E):
    """Floats are refused by their type, so where q is not checked, too."""
    q, loose = (KINDS["index"](torch.zeros(2, 3, 3), validate_args=flag) for flag in (True, False))
    x = torch.zeros(rows(E, q), 2, 3)
    for wrong in (x + 0.7, x, x.bool(), x.to(torch.complex64)):
        message = rf"x must hold points of torch\.int64, as q\.sample\(\) gives .*but {wrong.dtype}"
        check(TypeError, message, lambda x: E(total, loose, x=x), [wrong])
    outside = [x.long() - 1, x.long() + 3]
    check(ValueError, "x holds a point that q cannot draw", lambda x: E(total, q, x=x), outside)
    if type(E).__name__ not in SETS:
        E(lambda x: total(x).float(), q, x=x.to(torch.int32))


@pytest.mark.parametrize("E", [E for E in ALL if supports(E, "bits")], ids=repr)
def test_wrong_noise_is_named(E):
    """Every tensor that a call takes besides points, in its place; the others are valid."""
    q = bits(torch.zeros(3))
    taken = [(name, shape) for name, shape in tape(E, q) if name != "points"]
    valid = [
        torch.arange(chosen_per_draw(E)).expand(shape)
        if name == "variables"
        else torch.linspace(0.1, 0.9, prod(shape)).view(shape)
        for name, shape in taken
    ]
    takes_points = E in INJECTABLE and type(E).__name__ not in SETS  # those take either
    options = {"x": torch.eye(3)[: rows(E, q)]} if takes_points else {}

    def use(noise):
        return E(total, q, **options, noise=noise)

    if valid:
        others = (u.double() if u.is_floating_point() else u.int() for u in valid)
        assert use(tuple(valid)).isfinite()
        assert use(tuple(others)).isfinite()
    with pytest.raises(ValueError, match=r"noise: \w+ used all but 1 of the given tensors"):
        use((*valid, torch.zeros(1)))
    for place, noise in enumerate(valid):
        of_floats = noise.is_floating_point()

        def put(wrong, place=place):
            use((*valid[:place], wrong, *valid[place + 1 :]))

        shape = re.escape(str(tuple(noise.shape)))
        comes = rf"noise: a tensor of shape {shape} comes next, number {place + 1}, but"
        check(ValueError, comes, put, [*NO_TENSORS, noise[..., :0], noise.unsqueeze(0)])
        name = "uniforms" if of_floats else "numbers of variables, integers"
        other = noise.long() if of_floats else noise.float()
        for wrong in (other, noise.bool(), noise.to(torch.complex64)):
            message = rf"noise: {name} of shape {shape}.* come next, but {wrong.dtype} was given"
            check(TypeError, message, put, [wrong])
        elsewhere = "noise must be on cpu, where q is, but it is on meta"
        check(ValueError, elsewhere, put, [noise.to("meta")])
        outside = [noise - 1, noise + 3, *[noise * torch.nan] * of_floats]
        check(ValueError, r"noise.* must h.*, but others were given", put, outside)
        if not of_floats:
            different = "each draw must have 2 different numbers"
            check(ValueError, different, put, [torch.ones_like(noise)])


@each_estimator
def test_parameters_that_became_nan(E):
    """As by a step of an optimiser, after torch has looked at them."""
    message = r"q: \w+ has no valid probabilities at index \(1, 2\).*NaN.*Check what computes them"
    for kind in kinds(E):
        q = KINDS[kind](torch.zeros(2, 3, 2))
        q.base_dist.logits[1, 2] = torch.nan
        with pytest.raises(ValueError, match=message):
            E(total, q)
    if supports(E, "mixed"):  # torch refuses this for its own distributions
        logits = torch.zeros(2, 3, 2)
        logits[1, 2] = -torch.inf
        reason = r"no valid probabilities at index \(1, 2\).*every category is masked"
        with pytest.raises(
            ValueError, match=f"{reason}.*leave each variable at least one category"
        ):
            E(total, Categoricals(logits, (2, 2, 2)))


def scribbling(x):
    value = (x.mul_(2) - 0.3).square().flatten(2).sum(-1)
    x.zero_()
    return value


def into_one_buffer(x, buffer=torch.empty(2**12)):
    value = clean(x).detach()
    return buffer[: value.numel()].view(value.shape).copy_(value)


def of_bools(x):
    return clean(x) > 1


@each_estimator
def test_functions_that_are_as_good_as_others(E):
    """That write into their input, write all results into the same memory, or return bools."""
    same = [(scribbling, clean)]
    if not E.differentiates_f:
        same += [(into_one_buffer, clean), (of_bools, lambda x: of_bools(x).float())]
    for kind in kinds(E):
        for pair in same:
            results = []
            for f in pair:
                logits = torch.linspace(-1, 1, 18).view(2, 3, 3).requires_grad_()
                value = deepcopy(E)(f, KINDS[kind](logits), generator=seeded())
                results.append((value.detach(), *torch.autograd.grad(value.sum(), logits)))
            torch.testing.assert_close(*results, rtol=0, atol=0)


class Scribbling(Additive):
    def neighbours(self, x, variables=None):
        table = super().neighbours(x, variables)
        x.zero_()
        return table


@pytest.mark.parametrize("E", [E for E in INJECTABLE if type(E).__name__ not in SETS], ids=repr)
def test_injected_x_is_unchanged(E, q):
    x = torch.tensor([0.0, 1.0, 1.0]).expand(rows(E, q), 2, 3)
    functions = [scribbling]
    if isinstance(E, IndeCateR):
        functions.append(Scribbling(torch.arange(6.0).view(3, 2)))
    for f in functions:
        given = x.clone()
        E(f, q, x=given)
        assert torch.equal(given, x)


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


def test_wrong_types_of_functions_are_named():
    match = r"(?s)`network` must be an nn.Sequential that starts with nn.Linear, but .* was given"
    for network in (nn.Linear(2, 1), nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Linear(2, 1))):
        with pytest.raises(TypeError, match=match):
            FirstLayerLinear(network)
    message = r"BernoulliCrossEntropy: `logits` must be floats, but torch\.int64 was given"
    with pytest.raises(TypeError, match=message):
        BernoulliCrossEntropy(torch.tensor([1, 0]))(torch.zeros(3, 2, dtype=torch.int64))


@each_relaxing
def test_integers_with_a_relaxing_estimator(E):
    message = rf"{type(E).__name__}.* but .*Categorical.* draws integers\. Use OneHotCategorical"
    for law in (integers(torch.zeros(2, 3)), Categoricals([torch.zeros(2)] * 2)):
        if supports(E, "one-hot"):
            with pytest.raises(TypeError, match=message):
                E(total, law)


FLAT = [
    lambda x: x.detach().flatten(2).sum(-1),
    lambda x: (x.flatten(2).sum(-1) > 1).to(x.dtype),
    lambda x: x.flatten(2).sum(-1) > 1,
    lambda x: x.round().flatten(2).sum(-1),
    lambda x: x.flatten(2).sum(-1) // 2,
    lambda x: torch.ones(x.shape[:2]),
    lambda x, a=torch.ones((), requires_grad=True): a * x.detach().flatten(2).sum(-1),
]


@each_relaxing
def test_f_without_a_derivative(E):
    """The gradient in q would be 0, or that of another function, without a word."""
    match = r"f: its derivative in x is needed.*does not depend differentiably on x.*black-box"
    for kind in kinds(E):
        for f in FLAT:
            logits = torch.zeros(2, 3, 2, requires_grad=True)
            with pytest.raises(ValueError, match=match):
                E(f, KINDS[kind](logits))
            with torch.no_grad():  # nothing is asked of the derivative here
                assert E(f, KINDS[kind](logits)).shape == (2,)


@each_relaxing
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


# Wrong settings, and what the error says behind "OWNER: `argument` must be ": of every check one,
# and every remedy. The other settings are below.
WRONG_SETTINGS = {
    **{
        f"{owner}(samples=1)": "at least 2, but 1 was given.*[Uu]se"
        for owner in ("RLOO", "ARMS", "CARMS", "BBVI", "DoubleCV", "RODEO")
    },
    "UnorderedSet(samples=11)": r"between 2 and 10, but 11 was given.*use RLOO",
    "CountDifferences(samples=0)": "at least 1",
    "IndeCateR(sampling='sobol')": "one of 'independent', 'antithetic', 'latin', but 'sobol'",
    "IndeCateR(control=None)": "one of 'taylor', 'none', but None was given",
    "DisARMTree(tree='heap')": "one of 'balanced', 'stick', but 'heap' was given",
    "GumbelSoftmax(temperature=torch.tensor(-1.0))": r"positive, but -1\.0 was given",
    "GumbelSoftmax(temperature=torch.nan)": "finite, but nan was given",
    "REBAR(temperature=1e-300)": "at least 1e-30, but 1e-300 was given",
    "GappedStraightThrough(gap=-1)": "at least 0, but -1",
    "DirectOptimisation(epsilon=1e-300)": "a number other than 0, but 1e-300",
    "DARN(order=3)": "between 1 and 2, but 3 was given",
    "ReDGE(last_time=1.5)": r"in \(0, 1\], but 1\.5",
    "MAPO(clip=1.0)": r"in \[0, 1\), but 1\.0 was given",
    "MovingAverageBaseline(decay=1)": r"in \[0, 1\), but 1 was given",
    "Exact(chunk_size=2.0)": r"an int of at least 1, but 2\.0 was given",
    "Reinforce(baseline='mean')": "a number or a callable, but 'mean' was given",
}


@pytest.mark.parametrize("call", WRONG_SETTINGS)
def test_wrong_settings_are_named(call):
    owner, name, _ = re.split(r"[(=]", call, maxsplit=2)
    of_type = "an int" in WRONG_SETTINGS[call] or "callable" in WRONG_SETTINGS[call]
    message = rf"{owner}: `{name}` must be {WRONG_SETTINGS[call]}"
    with pytest.raises(TypeError if of_type else ValueError, match=message):
        eval(call, {"torch": torch, **vars(catlog.estimators)})


NUMBERS = [1.5, -1, 0, True, torch.nan, torch.inf, -torch.inf, 1j]
TENSORS = [torch.tensor(2), torch.tensor(0.5), torch.tensor(-0.5), torch.zeros(3)]
GARBAGE = [None, "2", b"2", *NUMBERS, [2], (), {}, object(), *TENSORS, nn.Identity()]


@pytest.mark.parametrize("cls", [*ESTIMATORS.values(), MovingAverageBaseline])
def test_every_setting_works_or_is_refused(cls):
    """Every argument of every constructor works, or is refused by name."""

    def use(logits, **setting):
        E = cls(**setting)
        if isinstance(E, MovingAverageBaseline):
            return E(torch.ones(2)) + 0 * logits.sum()
        return E(lambda x: x.sum(-1), bits(logits)).sum()

    refused = 0
    for name in signature(cls).parameters:
        by_name = rf"{cls.__name__}: `{name}` must|{cls.__name__}: q has 8 points, more than"
        for argument in GARBAGE:
            logits = torch.zeros(2, 3, requires_grad=True)
            try:
                value = use(logits, **{name: argument})
            except (TypeError, ValueError) as error:
                refused += 1
                if re.match(by_name, str(error)) is None:
                    raise AssertionError(f"{name}={argument!r}") from error
            else:
                value.backward()
                assert bool(value.isfinite()), f"{name}={argument!r}"
                assert bool(logits.grad.isfinite().all()), f"{name}={argument!r}"
    assert refused > len(GARBAGE) / 2


@each_class
def test_wrong_uses_of_a_class_are_named(cls, q):
    """A class instead of an instance, settings that it lacks, and wrong numbers of samples."""
    name, arguments = cls.__name__, list(signature(cls).parameters)
    assert signature(cls.__init__).parameters.keys() - {"self"} == set(arguments)
    instance = rf"{name}: `\w+` must .*function total.*Make an instance first: E = {name}\(\)"
    listed = rf"{name}: the arguments are {', '.join(arguments)}, but"
    first = rf"{listed} `x` was given\. Make an instance.*E\(f, q, x=\.\.\.\)"
    for message, positional, named in (
        (instance, (total, q), {}),
        (instance, (total, q), {"x": torch.zeros(1, 2, 3)}),
        (first, (), {"x": torch.zeros(1, 2, 3)}),
        (rf"{listed} `nonsense` was given\.$", (), {"nonsense": 2}),
        (rf"{name}: .*but 1 without a name was given", [1] * (len(", ".join(arguments)) + 1), {}),
    ):
        with pytest.raises(TypeError, match=message):
            cls(*positional, **named)
    if "samples" in arguments and name != "RLOO":
        start = f"{name}: `samples` must be"
        for count in (0, -1):
            with pytest.raises(ValueError, match=f"{start} at least [12], but {count} was given"):
                cls(samples=count)
        for count in (1.5, True, "2"):
            message = f"{start} an int of at least [12], but {count!r} was given"
            with pytest.raises(TypeError, match=message):
                cls(samples=count)


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


def test_wrong_results_of_a_baseline(q):
    def use(result):
        return Reinforce(3, baseline=lambda fx: result)(total, q)

    message = "Reinforce: `baseline` must return a number or a tensor of floats, but it returned"
    check(TypeError, message, use, [None, "b", [0.0], True, torch.zeros(2).long()])
    message = r"`baseline` must return a shape that broadcasts to \(3, 2\) \(\[n, \*batch\]\), but"
    check(ValueError, message, use, map(torch.zeros, [(3,), (2, 2), (1, 3, 2), (0,)]))
    for result in (1, 0.5, *map(torch.zeros, [(), (2,), (1, 2), (3, 1), (3, 2)])):
        assert use(result).shape == (2,)


def test_wrong_contexts_are_named(q):
    E = catlog.estimators.NVIL(network=nn.Linear(4, 1))
    context = torch.zeros(2, 4)

    def use(context):
        E(total, q, context=context)

    use(context)
    tensor = of_type("context must be a tensor of shape .*, but TYPE was given")
    check(TypeError, tensor, use, NO_TENSORS)
    floats = r"context must hold floats, but torch\.int64 was given"
    check(TypeError, floats, use, [context.long()])
    shape = r"context must have shape \[\*batch, features\] with batch \(2,\), but "
    check(ValueError, shape, use, map(torch.zeros, [(), (4,), (3, 4), (1, 2, 4)]))
    check(ValueError, "context must be on cpu", use, [context.to("meta")])


KEPT = ["SlopeCateR", "MemoryCateR", "MAPO", "NVIL", "REBAR", "RODEO", "DoubleCV"]


def test_other_devices_are_named():
    """The "meta" device stands for a GPU."""
    q = bits(torch.zeros(3, 4, device="meta", requires_grad=True), validate_args=False)
    learning = [(ESTIMATORS[name](), name, "E") for name in KEPT]
    baseline = Reinforce(2, baseline=MovingAverageBaseline())
    for E, owner, variable in [*learning, (baseline, "MovingAverageBaseline", "baseline")]:
        keeps = rf"{owner} keeps what it learns on cpu, but q is on meta"
        with pytest.raises(ValueError, match=rf"{keeps}.*{variable}\.to\('meta'\)"):
            E(total, q)
    message = r"generator must be on cuda:0, where q is, but it is on cpu\. Make it with"
    with pytest.raises(ValueError, match=message):
        check_generator(torch.Generator(), torch.device("cuda:0"))


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


def test_integers_that_torch_cannot_hold(q):
    for number in (10**30, -(10**30), 10**5000):
        for call in (
            lambda n: GumbelSoftmax(temperature=n),
            lambda n: RLOO(n),
            lambda n: IndeCateR(chunk_size=n),
            lambda n: RLOO(2)(total, q, outputs=n),
            lambda n: catlog.gumbel_softmax(torch.zeros(3), n),
        ):
            with pytest.raises(ValueError, match=r"must .*about -?10\^\d+"):
                call(number)
    with pytest.raises(ValueError, match=r"E: `a` must be finite, but about 10\^400 was"):
        check_number("E", "a", 10**400)
