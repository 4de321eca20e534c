"""Every estimator for dependent variables on every distribution of them, by exact enumeration.

All outcomes of the sampler are batch elements. Weighted by their probabilities and back-propagated
once, the estimates add up to their expectation. It is compared with a sum over the points, whose
probabilities come from the definition of the distribution: value, gradient in the parameters of q
and in a parameter of f, in float64 at 1e-12. f has a random value for every point, and none (NaN)
for a point that q cannot draw. Noise that cannot be listed, Gumbel's and that of a remainder of
categories, is judged by a z-test.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog.estimators import ESTIMATORS as ESTIMATOR_CLASSES
from catlog.estimators import LEG, MAPO, RAM
from catlog.testing import z_limit
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import select, tape
from support.samplers import Outcomes, count, outcomes
from support.structured_cases import ALL_CASES, STRUCTURED_CASES, StructuredCase, extreme

MANY_OUTCOMES, MOST_OUTCOMES = 20_000, 125_000  # more than many: if no setting has fewer
SWEEPS = {
    "SCateR": catlog.SCateR(1),
    "SCateR(suffix=common)": catlog.SCateR(1, suffix="common"),
    "SCateR(variables=1)": catlog.SCateR(1, variables=1),
    "SCateR(variables=1, suffix=common)": catlog.SCateR(1, variables=1, suffix="common"),
}
# Their noise cannot be listed.
NOISY = {
    "RAM": RAM(1),
    "SCateR(categories=1)": catlog.SCateR(1, categories=1),
    "SCateR(categories=1, suffix=common)": catlog.SCateR(1, categories=1, suffix="common"),
}
ESTIMATORS = SWEEPS | {
    label: E
    for label, E in select().items()
    if "structured" in E.supports and not isinstance(E, catlog.SCateR | RAM)
}
Moments = tuple[Tensor, Tensor, Tensor]  # a value, its gradients in theta and in f's parameter


def function(case: StructuredCase, c: Tensor) -> Callable[[Tensor], Tensor]:
    """Return f: c times a random number for every point of the case, NaN elsewhere."""
    flat = case.points[0].numel()
    base = int(case.points.max()) + 1
    place = base ** torch.arange(flat)
    table = torch.full((base**flat,), torch.nan, dtype=torch.float64)
    numbers = (case.points.reshape(len(case.points), flat).long() * place).sum(-1)
    table[numbers] = normals(len(case.points), seed=6) + 0.5
    lead = case.points.dim() - 1

    def f(x: Tensor) -> Tensor:
        assert x.dtype == case.points.dtype
        rows = x.reshape(*x.shape[: x.dim() - lead], flat).long()
        return c * table[(rows * place).sum(-1)]

    return f


def leaves(case: StructuredCase) -> tuple[Tensor, Tensor]:
    c = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    return case.theta.clone().requires_grad_(), c


def moments(value: Tensor, theta: Tensor, c: Tensor) -> Moments:
    options = {"allow_unused": True, "materialize_grads": True}
    in_theta, in_c = torch.autograd.grad(value, [theta, c], **options)
    return value.detach(), in_theta, in_c


def exact(E: catlog.Estimator, case: StructuredCase) -> Moments:
    """Return the sum over all points; for a bound, over all tuples of points."""
    theta, c = leaves(case)
    probs, f = case.probabilities(theta), function(case, c)
    if E.target == "expectation":
        return moments((probs * f(case.points)).sum(), theta, c)
    n = E.samples
    number = torch.cartesian_prod(*[torch.arange(len(probs))] * n).view(-1, n).T
    bound = f(case.points)[number].exp().mean(0).log()
    return moments((probs[number].prod(0) * bound).sum(), theta, c)


def expectation(E: catlog.Estimator, case: StructuredCase) -> Moments:
    """Return the sum over all outcomes of the sampler."""
    theta, c = leaves(case)
    f, q = function(case, c), case.distribution(theta)
    if not tape(E, q):
        return moments(E(f, q), theta, c)
    probs = case.probabilities(case.theta)
    every = outcomes(E, case.distribution(case.theta), case.points, probs)
    torch.testing.assert_close(every.weight.sum().item(), 1.0, rtol=0, atol=1e-12)
    E = prepared(E, every)
    value = E(f, q.expand([len(every.weight)]), **every.options)
    return moments((every.weight * value).sum(), theta, c)


def prepared(E: catlog.Estimator, every: Outcomes) -> catlog.Estimator:
    """Return a copy that does not learn, with the memory of the outcomes."""
    E = deepcopy(E)
    if isinstance(E, nn.Module):
        E.eval()
    if isinstance(E, MAPO):
        assert every.memory is not None
        E.memory[: len(every.memory), : every.memory.shape[-1]] = every.memory
    return E


@cache
def distribution_of(name: str) -> Distribution:
    case = STRUCTURED_CASES[name]
    return case.distribution(case.theta)


@cache
def outcomes_of(label: str, name: str) -> int:
    E, points = ESTIMATORS[label], len(STRUCTURED_CASES[name].points)
    return count(E, distribution_of(name), points) if tape(E, distribution_of(name)) else 1


def is_listed(label: str, case: str) -> bool:
    """Return whether the outcomes are few, or the fewest of all settings of this estimator."""
    own = outcomes_of(label, case)
    kind = type(ESTIMATORS[label])
    fewest = min(outcomes_of(other, case) for other, E in ESTIMATORS.items() if type(E) is kind)
    return own <= MANY_OUTCOMES or label in SWEEPS or fewest == own


def pairs(least: int, most: int) -> list[Any]:
    """Return estimators and cases with so many outcomes."""
    return [
        pytest.param(E, case, id=f"{case.name}-{label}")
        for case in STRUCTURED_CASES.values()
        for label, E in ESTIMATORS.items()
        if least <= outcomes_of(label, case.name) <= most and is_listed(label, case.name)
    ]


PAIRS, TOO_FEW_POINTS = pairs(1, MOST_OUTCOMES), pairs(0, 0)


@pytest.mark.parametrize(("E", "case"), PAIRS)
def test_gradients_are_unbiased(E: catlog.Estimator, case: StructuredCase) -> None:
    got, wanted = expectation(E, case), exact(E, case)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("E", "case"), TOO_FEW_POINTS)
def test_sets_of_all_points_are_exact(E: catlog.Estimator, case: StructuredCase) -> None:
    """Every call has the exact value and gradient, where no point is outside the set."""
    theta, c = leaves(case)
    value = deepcopy(E)(function(case, c), case.distribution(theta))
    torch.testing.assert_close(moments(value, theta, c), exact(E, case), rtol=0, atol=1e-12)


@pytest.mark.parametrize("E", [catlog.Exact(), catlog.RLOO(2), LEG(1)], ids=repr)
@pytest.mark.parametrize("name", [name for name in ALL_CASES if "different sizes" in name])
def test_extreme_logits(name: str, E: catlog.Estimator) -> None:
    """Of sequences whose likeliest points have nearly all the probability."""
    case = extreme(ALL_CASES[name])
    assert case.log_probs(case.theta).min() < -100
    torch.testing.assert_close(expectation(E, case), exact(E, case), rtol=1e-13, atol=1e-12)


def test_every_estimator_is_judged_on_every_distribution() -> None:
    """In one setting at least; SCateR with both suffixes and all variables."""
    names = {name for name, E in ESTIMATOR_CLASSES.items() if "structured" in E.supports}
    assert names == {type(E).__name__ for E in (ESTIMATORS | NOISY).values()}
    listed = [parameter.values for parameter in [*PAIRS, *TOO_FEW_POINTS]]
    judged = {(name, case.name) for E, case in listed for name in (type(E).__name__, repr(E))}
    names |= {repr(E) for E in SWEEPS.values() if E.variables is None}
    assert judged >= {(name, case) for name in names - {"RAM"} for case in STRUCTURED_CASES}


REPEATS = 20_000
Z_TESTED = [
    *(
        ("RAM", name)
        for name in (
            "subset", "masked ranking", "crf with a rule", "chain of three states",
            "chain with impossible steps", "network with a block", "network with a known node",
            "sequence of different sizes that ends, step", "mixture of numbers", "multinomial",
            "copies of short chain",
        )
    ),
    *product(NOISY, ["chain of five states"]),
]  # fmt: skip


@pytest.mark.parametrize(("label", "name"), Z_TESTED)
def test_unbiased_by_z_test(label: str, name: str) -> None:
    """The last assertion shows that it detects a gradient that is 10 % too long."""
    case = ALL_CASES[name]
    theta, c = leaves(replace(case, theta=case.theta.expand(REPEATS, *case.theta.shape)))
    value = NOISY[label](function(case, c), case.distribution(theta), generator=seeded())
    got = moments(value.sum(), theta, c)[1].flatten(1)
    noise = (got.std(0) / REPEATS**0.5).clamp(min=1e-12)
    wanted = exact(NOISY[label], case)[1].flatten()
    assert ((got.mean(0) - wanted) / noise).abs().max() < z_limit(len(wanted) * len(Z_TESTED))
    assert ((1.1 * got.mean(0) - wanted) / noise).abs().max() > z_limit(1)
