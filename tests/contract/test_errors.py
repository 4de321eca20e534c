"""Every mistake raises an error that names the argument, its value and the remedy."""

import re
from inspect import signature
from math import prod

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

import catlog
from catlog import GumbelSoftmax, IndeCateR, Reinforce
from catlog.core import checks
from catlog.distributions import Categoricals
from catlog.estimators import ESTIMATORS, CountDifferences, MovingAverageBaseline
from catlog.testing.settings import chosen_per_draw, supports, tape
from support.laws import KINDS, bits, integers

ALL = [
    *(cls() for cls in ESTIMATORS.values()),
    IndeCateR(samples=3, per_variable=True),
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


def check(error, call, table):
    """Check that all mistakes behind a message raise it; TYPE in it is the type of the mistake."""
    for message, mistakes in table.items():
        for mistake in mistakes:
            with pytest.raises(error, match=message.replace("TYPE", type(mistake).__name__)):
                call(mistake)


# What f returns, and what the error says of it.
FUNCTIONS_OF_WRONG_VALUE = {
    r"f must return one value per point: it was given x of shape \(\d+, 2, 3\) and must return "
    r"shape \(\d+, 2\).*but it returned \(\)\. Reduce the event dimensions \(3,\)": [torch.sum],
    "f must return its values on cpu, the device of its input, but they are on meta": [
        lambda x: total(x).to("meta")
    ],
    **{
        rf"f must return finite numbers, but \d+ of \d+ are .* the first \({value}\) at index "
        r"\(0, 0\).*validate_args=False": [lambda x, value=value: 0 * total(x) + value]
        for value in (torch.nan, torch.inf, -torch.inf)
    },
}
FUNCTIONS_OF_WRONG_TYPE = {
    r"f must return a tensor of shape \(\d+, 2\), but it returned float\. If these are the "
    r"values, wrap them: torch\.as_tensor\(values, dtype=torch\.float32, device='cpu'\)\.": [
        lambda x: 1.0
    ],
    r"f must return a tensor of shape \(\d+, 2\), but it returned ndarray\. .*wrap them": [
        lambda x: total(x).detach().numpy()
    ],
    r"f: its value must be a dense tensor, but its layout is torch\.sparse_coo\..*`to_dense": [
        lambda x: total(x).to_sparse()
    ],
    r"f must return floats or bools, but it returned torch\.int64: end it with `\.float\(\)`": [
        lambda x: total(x).long()
    ],
    "f must be a function of points, but TYPE was given": [None, 1.0, "f", torch.zeros(3)],
}
WRONG_GENERATORS = {
    r"generator must be a torch\.Generator or None, but TYPE was given": [
        0, "seed", torch.zeros(()), [torch.Generator()], torch.Generator, True
    ]
}  # fmt: skip
WRONG_DISTRIBUTIONS = {
    "q: a distribution of categorical .*but TYPE was given": [
        None, 0.5, "q", torch.zeros(3), Bernoulli, [Bernoulli(logits=torch.zeros(2, 3))]
    ],
    "q: a distribution of categorical variables is needed.*Normal.* was given.*Supported": [
        Normal(0.0, 1.0), Independent(Normal(torch.zeros(3), 1.0), 1)
    ],
}  # fmt: skip
OF_SEPARATE_VARIABLES = {  # functions of a distribution that treats variables as a batch
    r"\(\d+, 2, 3\).*returned \(\d+, 2\).*last 1 batch dimension of q.*Independent\(q, 1\)\.": [
        total
    ],
    r"last 2 batch dimensions of q.*Independent\(q, 2\)\.": [lambda x: x.sum((-1, -2))],
}
# What is not a tensor, not a number, not a flag: for arguments that want one of these.
NO_TENSORS = [[[0.0, 1.0]], 1.0, "x", (), {}, object(), True]


@each_estimator
def test_mistakes_in_a_call_are_named(E, q):
    check(ValueError, lambda f: E(f, q), FUNCTIONS_OF_WRONG_VALUE)
    check(TypeError, lambda f: E(f, q), FUNCTIONS_OF_WRONG_TYPE)
    check(TypeError, lambda wrong: E(total, q, generator=wrong), WRONG_GENERATORS)
    check(TypeError, lambda q: E(total, q), WRONG_DISTRIBUTIONS)
    separate = Bernoulli(logits=torch.zeros(2, 3))
    check(ValueError, lambda f: E(f, separate), OF_SEPARATE_VARIABLES)
    order = r"q: a distribution is needed, but function was given.*Write E\(f, q\): the function"
    check(TypeError, lambda f: E(q, f), {order: [total]})
    unchecked = bits(torch.zeros(2, 3), validate_args=False)
    assert bool(E(lambda x: total(x) * torch.nan, unchecked).isnan().all())


NOT_ONE_HOT = [(0, 0, 0), (1, 1, 0), (0.5, 0.5, 0), (2, 0, 0), (1, torch.nan, 0), (1, 1, -1)]


@each_injectable
def test_wrong_points_are_named(E, q):
    def use(x, q=q):
        return E(lambda x: x.flatten(2).sum(-1).float(), q, x=x)

    needed = r"x must have shape \[.*, \*batch, \*event\] = \[n.*, 2, 3\], but"
    shapes = [(3,), (2, 3), (0, 2, 3), (6, 3, 2), (6, 1, 2, 3)]
    for shape in shapes:
        given = rf"{needed} {re.escape(str(shape))} was"
        check(ValueError, use, {given: [torch.zeros(shape)]})
    check(
        TypeError,
        use,
        {r"x must be a tensor of shape \[n.*, 2, 3\], but TYPE was given": NO_TENSORS},
    )
    x = torch.zeros(rows(E, q), 2, 3)
    check(ValueError, use, {"x must be on cpu, where q is, but it is on meta": [x.to("meta")]})
    check(TypeError, lambda g: E(total, q, x=x, generator=g), WRONG_GENERATORS)
    impossible = bits(torch.tensor([[0.0, 0.0, -torch.inf]]).expand(2, 3))
    zero = {"x holds a point that q cannot draw.*probability zero": [x + 1]}
    check(ValueError, lambda x: use(x, impossible), zero)
    if supports(E, "one-hot"):
        one_hot = KINDS["one-hot"](torch.zeros(2, 3, 3))
        points = torch.eye(3).expand(rows(E, one_hot), 2, 3, 3).repeat(len(NOT_ONE_HOT), 1, 1, 1, 1)
        points[:, 0, 1, 2] = torch.tensor(NOT_ONE_HOT)
        message = "x must hold one-hot vectors, a single 1 among zeros, but others were given"
        check(ValueError, lambda x: use(x, one_hot), {message: points})
    if supports(E, "index"):  # floats are refused by their type, so where q is not checked, too
        checked, loose = (
            KINDS["index"](torch.zeros(2, 3, 3), validate_args=flag) for flag in (True, False)
        )
        whole = r"x must hold points of torch\.int64, as q\.sample\(\) gives .*but"
        wrong = [x + 0.7, x, x.bool(), x.to(torch.complex64)]
        check(TypeError, lambda x: use(x, loose), {f"{whole} {x.dtype}": [x] for x in wrong})
        outside = {"x holds a point that q cannot draw": [x.long() - 1, x.long() + 3]}
        check(ValueError, lambda x: use(x, checked), outside)
        if type(E).__name__ not in SETS:
            use(x.to(torch.int32), checked)


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
    surplus = {r"noise: \w+ used all but 1 of the given tensors": [(*valid, torch.zeros(1))]}
    check(ValueError, use, surplus)
    for place, noise in enumerate(valid):
        of_floats = noise.is_floating_point()
        shape = re.escape(str(tuple(noise.shape)))
        name = "uniforms" if of_floats else "numbers of variables, integers"
        other = noise.long() if of_floats else noise.float()
        wrong_types = {
            rf"noise: {name} of shape {shape}.* come next, but {wrong.dtype} was given": [wrong]
            for wrong in (other, noise.bool(), noise.to(torch.complex64))
        }
        wrong_values = {
            rf"noise: a tensor of shape {shape} comes next, number {place + 1}, but": [
                *NO_TENSORS, noise[..., :0], noise.unsqueeze(0)
            ],
            "noise must be on cpu, where q is, but it is on meta": [noise.to("meta")],
            r"noise.* must h.*, but others were given": [
                noise - 1, noise + 3, *[noise * torch.nan] * of_floats
            ],
            "each draw must have 2 different numbers": [torch.ones_like(noise)] * (not of_floats),
        }  # fmt: skip

        def put(wrong, i=place):
            use((*valid[:i], wrong, *valid[i + 1 :]))

        check(TypeError, put, wrong_types)
        check(ValueError, put, wrong_values)


@each_estimator
def test_parameters_that_became_nan(E):
    """As by a step of an optimiser, after torch has looked at them."""
    message = r"q: \w+ has no valid probabilities at index \(1, 2\).*NaN.*Check what computes them"
    for kind in kinds(E):
        q = KINDS[kind](torch.zeros(2, 3, 2))
        q.base_dist.logits[1, 2] = torch.nan
        check(ValueError, lambda q: E(total, q), {message: [q]})
    if supports(E, "mixed"):  # torch refuses this for its own distributions
        logits = torch.zeros(2, 3, 2)
        logits[1, 2] = -torch.inf
        reason = r"no valid probabilities at index \(1, 2\).*every category is masked"
        remedy = "leave each variable at least one category"
        q = Categoricals(logits, (2, 2, 2))
        check(ValueError, lambda q: E(total, q), {f"{reason}.*{remedy}": [q]})


def with_table(table):
    f = catlog.functions.Additive(torch.zeros(3, 2))
    f.neighbours = lambda x: table
    return f


def some_nan(x):
    return torch.where(total(x) == 2, torch.nan, total(x))


def flat(x):
    return total(x.detach())


ONES = torch.ones(1, 2, 3)
# A call, and the beginning of its error; q has three bits in a batch of two.
WRONG_VALUES = {
    "IndeCateR()(with_table(torch.full((1, 2, 3, 2), torch.nan)), q)": (
        r"f\.neighbours must return finite numbers, but 6 of 12.*validate_args=False"
    ),
    "IndeCateR()(with_table(torch.zeros(2, 3, 2)), q)": (
        r"f\.neighbours must return a table of shape \(1, 2, 3, 2\) .* returned shape \(2, 3, 2\)"
    ),
    "IndeCateR()(with_table([0.0]), q)": (
        r"f\.neighbours must return a table of shape \(1, 2, 3, 2\) .*but it returned list"
    ),
    "IndeCateR(1, variables=1)(flat, q)": "f: its derivative in x is needed.*Use a black-box",
    "RLOO()(total, q, x=ONES)": r"RLOO: `x.shape\[0\]` must be at least 2, but 1 .*use Reinforce",
    "RLOO()(total, bits(torch.zeros(2, 0)))": r"q: .* at least one variable.*event shape \(0,\)",
    "IndeCateR(1, variables=4)(total, q)": "`variables` must be between 1 and 3, but 4.*has 3",
    "IndeCateR(1, variables=1, per_variable=True)": "`variables` and `per_variable` exclude each",
    "IndeCateR(1, variables=2)(total, q, x=ONES, noise=ONES.long())": (
        r"noise: a tensor of shape \(1, 2, 2\) comes next, number 1, but \(1, 2, 3\) was given"
    ),
    "IndeCateR(per_variable=True)(total, q, x=torch.zeros(4, 2, 3))": (
        r"x must have shape \[n \* 3, .*but \(4, 2, 3\) was given"
    ),
    "Exact()(total, q, x=ONES)": "x: Exact cannot use it, as it draws nothing",
    "GumbelSoftmax()(total, q, x=ONES)": "x: .* cannot use it; give `noise` or a `generator`",
    "Exact(limit=7)(total, q)": "q has 8 points, more than `limit` = 7.*IndeCateR or RLOO, raise",
    "Pairwise(torch.zeros(3, 2, 2, 3))": r"must have shape \[d, k, d, k\], but \(3, 2, 2, 3\) was",
    "OfSum(torch.sin, categories=0)": "OfSum: `categories` must be at least 1, but 0 was given",
    "FirstLayerLinear(nn.Sequential(nn.Linear(2, 1)), chunk_size=0)": "`chunk_size` must be at lea",
    "check_generator(torch.Generator(), torch.device('cuda:0'))": (
        r"generator must be on cuda:0, where q is, but it is on cpu\. Make it with"
    ),
    "check_number('E', 'a', 10**400)": r"E: `a` must be finite, but about 10\^400 was",
    **dict.fromkeys(
        [f"{E}(some_nan, q)" for E in ("Exact()", "IndeCateR(9)", "IndeCateR(9, variables=3)")],
        r"f must return finite numbers.*nan.*validate_args=False",
    ),
    **dict.fromkeys(
        [
            "GumbelSoftmax(temperature=10**30)", "RLOO(-10**30)", "RLOO(10**5000)",
            "IndeCateR(chunk_size=10**30)", "RLOO(2)(total, q, outputs=10**30)",
            "catlog.gumbel_softmax(torch.zeros(3), 10**30)",
        ],
        r"must .*about -?10\^\d+",
    ),
}  # fmt: skip
WRONG_TYPES = {
    "BernoulliCrossEntropy(torch.tensor([1, 0]))(torch.zeros(3, 2).long())": (
        r"BernoulliCrossEntropy: `logits` must be floats, but torch\.int64 was given"
    ),
    "RLOO(4, sampling='latin')": (
        "RLOO: the arguments are samples, but .*`sampling` is a setting of .*StraightThrough.* The "
        "others need independent draws"
    ),
    "GumbelSoftmax(tau=0.5)": "GumbelSoftmax: .* tau is called `temperature`",
    **{
        f"{name}(0.5)": rf"{name}: `samples` must .*For a temperature write {name}\(temperature="
        for name in ("GumbelSoftmax", "ReinMax", "GumbelRao")
    },
    **dict.fromkeys(
        [f"FirstLayerLinear({network})" for network in ("nn.Linear(2, 1)", "nn.Sequential()")],
        "`network` must be an nn.Sequential that starts with nn.Linear, but .* was given",
    ),
}


@pytest.mark.parametrize("call", [*WRONG_VALUES, *WRONG_TYPES])
def test_wrong_calls_are_named(q, call):
    names = {**globals(), "q": q}
    for module in (checks, catlog.functions, catlog.estimators):
        names |= vars(module)
    error, table = (ValueError, WRONG_VALUES) if call in WRONG_VALUES else (TypeError, WRONG_TYPES)
    check(error, lambda call: eval(call, names), {table[call]: [call]})


@each_relaxing
def test_integers_with_a_relaxing_estimator(E):
    message = rf"{type(E).__name__}.* but .*Categorical.* draws integers\. Use OneHotCategorical"
    if supports(E, "one-hot"):
        laws = [integers(torch.zeros(2, 3)), Categoricals([torch.zeros(2)] * 2)]
        check(TypeError, lambda law: E(total, law), {message: laws})


FLAT = [
    lambda x: x.detach().flatten(2).sum(-1),
    lambda x: (x.flatten(2).sum(-1) > 1).to(x.dtype),
    lambda x: x.flatten(2).sum(-1) > 1,
    lambda x: x.round().flatten(2).sum(-1),
    lambda x: x.flatten(2).sum(-1) // 2,
    lambda x: torch.ones(x.shape[:2]),
    lambda x, a=torch.ones((), requires_grad=True): a * x.detach().flatten(2).sum(-1),
]
SLOPED = [  # a slope that happens to be 0 is one; so is one that only a part of f has
    lambda x: 0 * x.flatten(2).sum(-1) + 1,
    lambda x: (x.detach() + x).square().flatten(2).sum(-1) + x.round().flatten(2).sum(-1),
    lambda x: x.mul_(2).flatten(2).sum(-1),
]


@each_relaxing
def test_f_without_a_derivative(E):
    """The gradient in q would be 0, or that of another function, without a word."""
    match = r"f: its derivative in x is needed.*does not depend differentiably on x.*black-box"
    for kind in kinds(E):
        logits = torch.zeros(2, 3, 2, requires_grad=True)
        check(ValueError, lambda f: E(f, KINDS[kind](logits)), {match: FLAT})  # noqa: B023
        with torch.no_grad():  # nothing is asked of the derivative here
            assert all(E(f, KINDS[kind](logits)).shape == (2,) for f in FLAT)
        for f in SLOPED:
            E(f, KINDS[kind](logits)).sum().backward()
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


def test_wrong_results_of_a_baseline(q):
    def use(result):
        return Reinforce(3, baseline=lambda fx: result)(total, q)

    types = "Reinforce: `baseline` must return a number or a tensor of floats, but it returned"
    check(TypeError, use, {types: [None, "b", [0.0], True, torch.zeros(2).long()]})
    shapes = r"`baseline` must return a shape that broadcasts to \(3, 2\) \(\[n, \*batch\]\), but"
    check(ValueError, use, {shapes: map(torch.zeros, [(3,), (2, 2), (1, 3, 2), (0,)])})
    for result in (1, 0.5, *map(torch.zeros, [(), (2,), (1, 2), (3, 1), (3, 2)])):
        assert use(result).shape == (2,)


def test_wrong_contexts_are_named(q):
    E, context = catlog.estimators.NVIL(network=nn.Linear(4, 1)), torch.zeros(2, 4)

    def use(context):
        E(total, q, context=context)

    use(context)
    tensor = "context must be a tensor of shape .*, but TYPE was given"
    floats = r"context must hold floats, but torch\.int64 was given"
    check(TypeError, use, {tensor: NO_TENSORS, floats: [context.long()]})
    shapes = r"context must have shape \[\*batch, features\] with batch \(2,\), but "
    check(ValueError, use, {shapes: map(torch.zeros, [(), (4,), (3, 4), (1, 2, 4)])})
    check(ValueError, use, {"context must be on cpu": [context.to("meta")]})


KEPT = ["SlopeCateR", "MemoryCateR", "MAPO", "NVIL", "REBAR", "RODEO", "DoubleCV"]


def test_other_devices_are_named():
    """The "meta" device stands for a GPU."""
    q = bits(torch.zeros(3, 4, device="meta", requires_grad=True), validate_args=False)
    learning = [(ESTIMATORS[name](), name, "E") for name in KEPT]
    baseline = Reinforce(2, baseline=MovingAverageBaseline())
    for E, owner, variable in [*learning, (baseline, "MovingAverageBaseline", "baseline")]:
        keeps = rf"{owner} keeps what it learns on cpu, but q is on meta"
        check(ValueError, lambda q, E=E: E(total, q), {rf"{keeps}.*{variable}\.to\('meta'\)": [q]})


@pytest.mark.parametrize("E", [E for E in ALL if supports(E, "bits")], ids=repr)
def test_errors_of_f_say_what_x_was(E):
    """As when float64 draws meet a float32 network; an error of another kind has no advice."""
    network = nn.Linear(3, 1)
    q = bits(torch.zeros(2, 3, dtype=torch.float64))
    start = (
        r"f was called with x of shape \(\d+, 2, 3\) \(\[n, \*batch, \*event\]\) and dtype "
        r"torch\.float64 on cpu, as q draws it\."
    )
    advice = r" If f needs another dtype, convert x in f, or"
    for f, pattern in ((lambda x: network(x).squeeze(-1), advice), (lambda x: {}["a"], "$")):
        with pytest.raises((RuntimeError, KeyError)) as error:
            E(f, q)
        assert re.match(start + pattern, *error.value.__notes__)
