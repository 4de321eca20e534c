"""Every mistake raises an error that names the argument, its value and the remedy.

Most are in wrong_calls.txt.
"""

import builtins
import re
from functools import partial
from inspect import signature
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import catlog
from catlog import GumbelSoftmax, IndeCateR, Reinforce
from catlog.core import checks
from catlog.diagnostics import naming
from catlog.distributions import Categoricals
from catlog.estimators import ESTIMATORS, CountDifferences, MovingAverageBaseline
from catlog.testing import settings
from catlog.testing.settings import chosen_per_draw, supports, tape
from support import laws, wrong_calls
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


def total(x):
    return x.sum(-1).float()


def clean(x):
    return (x * 2 - 0.3).square().flatten(2).sum(-1).float()


def flat(x):
    return total(x.detach())


def some_nan(x):
    return torch.where(total(x) == 2, torch.nan, total(x))


def with_table(table):
    f = catlog.functions.Additive(torch.zeros(3, 2))
    f.neighbours = lambda x: table
    return f


def with_mean(mean):
    f = nn.Identity()
    f.expectation = lambda q: mean
    return f


def of_xz(x, z):
    return x.sum(-1)


LOOSE = integers(torch.zeros(2, 3, 3), validate_args=False)
ONES, Z, P = torch.ones(1, 2, 3), torch.zeros(2, 3), Normal(torch.zeros(2), 1.0)
ROWS = torch.zeros(4, 3)
SGD = torch.optim.SGD([ONES.clone().requires_grad_()], 0.1)
NAMES = {}  # that calls in tables use
for module in (
    settings,
    torch.distributions,
    catlog,
    catlog.functions,
    catlog.distributions,
    catlog.estimators,
    checks,
    naming,
    catlog.diagnostics,
    catlog.language_models,
    catlog.problems,
    laws,
    wrong_calls,
):
    NAMES |= vars(module)


def tables():
    """Return calls and their errors, by the head of their section."""
    found, call = {}, ""
    for line in Path(__file__).with_name("wrong_calls.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("=="):
            section = found[line.strip("= ").split(";")[0]] = {}
        elif line.startswith("    "):
            section[call] = f"{section.get(call, '')} {line.strip()}".strip()
        elif not line.startswith("#"):
            call = line
    return found


TABLES = tables()


def check(table, **names):
    """Check that every call raises its error, which begins with the name of its class."""
    names = {**NAMES, **globals(), "q": bits(torch.zeros(2, 3)), **names}
    for call, text in table.items():
        kind, message = text.split(": ", 1)
        with pytest.raises(getattr(builtins, kind)) as caught:
            eval(call, names)
        shown = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert re.search(message, shown), f"{call}: {shown}"


def kinds(E):
    """Return the kinds of distribution that E takes."""
    return [kind for kind in KINDS if supports(E, kind)]


@each_estimator
def test_mistakes_in_a_call_are_named(E):
    check(TABLES["of every estimator E"], E=E)
    unchecked = bits(torch.zeros(2, 3), validate_args=False)
    assert bool(E(lambda x: total(x) * torch.nan, unchecked).isnan().all())


@each_injectable
def test_wrong_points_are_named(E):
    for kind in kinds(E):
        q = KINDS[kind](torch.zeros(2, 3, 3))
        rows, dtype = dict(tape(E, q))["points"][0], torch.int64 if kind == "index" else None
        x = torch.zeros(rows, 2, *q.event_shape, dtype=dtype)
        check(TABLES[f"of points, where q draws {kind}"], E=E, X=x, q=q)
        if kind == "index" and type(E).__name__ not in SETS:
            E(clean, q, x=x.to(torch.int32))


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
    options = {"x": torch.eye(3)[: dict(tape(E, q))["points"][0]]} if takes_points else {}
    use = partial(E, total, q, **options)
    if valid:
        others = (u.double() if u.is_floating_point() else u.int() for u in valid)
        assert use(noise=tuple(valid)).isfinite()
        assert use(noise=tuple(others)).isfinite()
    surplus = r"ValueError: noise: \w+ used all but 1 of the given tensors"
    check({"use(noise=(*valid, torch.zeros(1)))": surplus}, use=use, valid=valid)
    for place, noise in enumerate(valid):

        def put(wrong, i=place):
            use(noise=(*valid[:i], wrong, *valid[i + 1 :]))

        table = TABLES["of noise, uniforms" if noise.is_floating_point() else "of noise, variables"]
        words = {"SHAPE": re.escape(str(tuple(noise.shape))), "NUMBER": str(place + 1)}
        for word, value in words.items():
            table = {call: text.replace(word, value) for call, text in table.items()}
        check(table, put=put, noise=noise)


@each_estimator
def test_parameters_without_a_distribution_are_named(E):
    """As by a step of an optimiser, after torch has looked at them."""
    place = r"no valid probabilities at index \(1, 2\)"
    for kind in kinds(E):
        q = KINDS[kind](torch.zeros(2, 3, 2))
        q.base_dist.logits[1, 2] = torch.nan
        check({"E(total, q)": rf"ValueError: q: \w+ has {place}.*NaN.*Check what"}, E=E, q=q)
    if supports(E, "mixed"):  # torch refuses this for its own distributions
        logits = torch.zeros(2, 3, 2)
        logits[1, 2] = -torch.inf
        remedy = "every category is masked.*leave each variable at least one category"
        check(
            {"E(total, q)": f"ValueError: {place}.*{remedy}"}, E=E, q=Categoricals(logits, [2] * 3)
        )


FLAT = [
    lambda x: x.detach().flatten(2).sum(-1),
    lambda x: (x.flatten(2).sum(-1) > 1).to(x.dtype),
    lambda x: x.flatten(2).sum(-1) > 1,
    lambda x: x.round().flatten(2).sum(-1),
    lambda x: torch.ones(x.shape[:2]),
    lambda x, a=torch.ones((), requires_grad=True): a * x.detach().flatten(2).sum(-1),
]
SLOPED = [  # a slope that happens to be 0 is one; so is one that only a part of f has
    lambda x: 0 * x.flatten(2).sum(-1) + 1,
    lambda x: (x.detach() + x).square().flatten(2).sum(-1) + x.round().flatten(2).sum(-1),
    lambda x: x.mul_(2).flatten(2).sum(-1),
]


@each_relaxing
def test_what_relaxing_estimators_need(E):
    """A derivative of f: the gradient would be 0, or that of another function, without a word."""
    needed = r"ValueError: f: its derivative in x is needed.*does not depend diff.*black-box"
    for kind in kinds(E):
        logits = torch.zeros(2, 3, 2, requires_grad=True)
        q = KINDS[kind](logits)
        check({f"E(FLAT[{number}], q)": needed for number in range(len(FLAT))}, E=E, q=q)
        with torch.no_grad():  # nothing is asked of the derivative here
            assert all(E(f, q).shape == (2,) for f in FLAT)
        for f in SLOPED:
            E(f, KINDS[kind](logits)).sum().backward()
        assert bool(logits.grad.isfinite().all())
    name = rf"TypeError: {type(E).__name__}.* but .*Categorical.* draws integers\. Use OneHotCateg"
    laws = ("integers(torch.zeros(2, 3))", "Categoricals([torch.zeros(2)] * 2)")
    check({f"E(total, {law})": name for law in laws if supports(E, "one-hot")}, E=E)


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


# Constructors


NUMBERS = [1.5, np.float32(0.5), -1, 0, True, torch.nan, torch.inf, -torch.inf, 1j]
TENSORS = [torch.tensor(number) for number in (2, 0.5, -0.5, [0.5], [0.0, 0.0, 0.0])]
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
def test_wrong_uses_of_a_class_are_named(cls):
    """A class instead of an instance, and settings that it lacks."""
    name, arguments = cls.__name__, list(signature(cls).parameters)
    assert signature(cls.__init__).parameters.keys() - {"self"} == set(arguments)
    instance = rf"TypeError: {name}: `\w+` must .*function total.*an instance first: E = {name}\(\)"
    listed = rf"TypeError: {name}: the arguments are {', '.join(arguments)}, but"
    surplus = [1] * (len(arguments) + 1)
    check(
        {
            "cls(total, q)": instance,
            "cls(total, q, x=ONES)": instance,
            "cls(x=ONES)": rf"{listed} `x` was given\. Make an instance.*E\(f, q, x=\.\.\.\)",
            "cls(nonsense=2)": rf"{listed} `nonsense` was given\.$",
            "cls(*surplus)": rf"TypeError: {name}: .*but 1 without a name was given",
        },
        cls=cls,
        surplus=surplus,
    )


KEPT = ["SlopeCateR", "MemoryCateR", "MAPO", "NVIL", "REBAR", "RODEO", "DoubleCV"]


def test_other_devices_are_named():
    """The "meta" device stands for a GPU."""
    q = bits(torch.zeros(3, 4, device="meta", requires_grad=True), validate_args=False)
    learning = [(ESTIMATORS[name](), name, "E") for name in KEPT]
    baseline = Reinforce(2, baseline=MovingAverageBaseline())
    for E, owner, variable in [*learning, (baseline, "MovingAverageBaseline", "baseline")]:
        keeps = rf"ValueError: {owner} keeps what it learns on cpu, but q is on meta"
        check({"E(total, q)": rf"{keeps}.*{variable}\.to\('meta'\)"}, E=E, q=q)


WRONG_TENSORS = {
    "list": ([[0.0, 1.0]], "must be a tensor.* list was given"),
    "sparse": (torch.eye(2).to_sparse(), r"must be a dense tensor.*`to_dense\(\)`"),
    "elsewhere": (torch.eye(2).to("meta"), "must be on cpu, where .* is, but it is on meta"),
}
OF_TENSORS = next(head for head in TABLES if head.startswith("of a tensor T"))


@pytest.mark.parametrize("call", TABLES[OF_TENSORS])
def test_a_wrong_tensor_is_named(call):
    kinds, owner = TABLES[OF_TENSORS][call].split(": ", 1)
    for kind in kinds.split(", "):
        wrong, message = WRONG_TENSORS[kind]
        with pytest.raises((TypeError, ValueError), match=f"^{owner} {message}"):
            eval(call, NAMES | globals() | {"T": wrong})


SINGLE = {
    call: {call: error}
    for head, table in TABLES.items()
    if not head.startswith(("of every estimator", "of points", "of noise", OF_TENSORS))
    for call, error in table.items()
}


@pytest.mark.parametrize("call", SINGLE)
def test_wrong_calls_are_named(call):
    asked = catlog.Session(catlog.RLOO(2), bits(torch.zeros(2, 3)))
    asked.ask()
    check(SINGLE[call], asked=asked)
