"""Sets of draws: without replacement (UnorderedSet), summed out (SumAndSample), remembered (MAPO).

That they are unbiased, by enumeration, is in tests/distributions/test_every_estimator.py.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.testing import assert_close

from catlog import Exact
from catlog.core.view import view
from catlog.estimators import MAPO, SumAndSample, UnorderedSet
from catlog.testing import CASES, Case
from catlog.testing.cases import grid, normals, seeded
from support.gradients import assert_same
from support.laws import bits
from support.structured_cases import STRUCTURED_CASES, StructuredCase

AnyCase = Case | StructuredCase
UNCERTAIN = [0, 7, 45, 49]


def mostly_certain(logits: Tensor) -> Distribution:
    """Return fifty bits, nearly all of them certain: more than one integer holds."""
    certain = logits.new_full((*logits.shape[:-1], 50), 40.0)
    return bits(certain.index_copy(-1, torch.tensor(UNCERTAIN), logits))


INDEPENDENT = CASES | {
    "nine bits": Case(
        "nine bits", normals(9), bits, grid(*[2] * 9).double(), lambda x: x[..., :6] + x[..., 3:]
    ),
    "fifty bits": Case(
        "fifty bits",
        normals(4),
        mostly_certain,
        torch.ones(16, 50)
        .double()
        .index_copy(-1, torch.tensor(UNCERTAIN), grid(2, 2, 2, 2).double()),
        lambda x: x[..., :6] - x[..., 44:],
    ),
}
DEPENDENT = ("chain", "sequence of different sizes that ends, step", "ranking", "crf", "subset")
ALL_CASES = INDEPENDENT | {name: STRUCTURED_CASES[name] for name in DEPENDENT}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sets_of_all_points_are_exact(case: Case) -> None:
    """Also where the set is larger than the support."""
    for E in (UnorderedSet(min(10, len(case.points) + 2)), SumAndSample(top=50)):
        theta, f = case.theta.clone().requires_grad_(), case.function("sine")
        value, exact = (estimator(f, case.distribution(theta)) for estimator in (E, Exact()))
        assert_same(value, exact, theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("case", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_the_likeliest_points_are_summed(case: Case, count: int) -> None:
    q = case.distribution(torch.stack([case.theta, case.theta.flip(-1)]))
    seen: list[Tensor] = []
    SumAndSample(top=count)(lambda x: seen.append(x) or case.function("sine")(x), q)
    p = q.log_prob(case.points.unsqueeze(1).expand(-1, 2, *case.points.shape[1:])).exp()
    best = p.sort(0, descending=True).values[:count]
    assert_close(q.log_prob(seen[0][: len(best)]).exp(), best)


# Draws from outside a set: the uniforms that give a point are a product of intervals.


def cell(q: Distribution, index: Tensor, p: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """Return the least and the largest uniforms that draw a point of all, with these masses."""
    low, high = torch.zeros(2, index.shape[1], dtype=p.dtype)
    agree = torch.ones(len(p), dtype=torch.bool)
    for i in (i for block in view(q).ordered.blocks for i in block):
        is_same = index[:, i] == index[row, i]
        low[i] = p[agree & (index[:, i] < index[row, i])].sum() / p[agree].sum()
        high[i] = low[i] + p[agree & is_same].sum() / p[agree].sum()
        agree = agree & is_same
    return low, high


def drawn(E: MAPO, case: AnyCase, theta: Tensor, members: Tensor, u: Tensor) -> Tensor:
    """Return the points [outcomes, *event] that E draws beside members, from u [outcomes, d]."""
    q = case.distribution(theta.expand(len(u), *theta.shape))
    law, seen = view(q), []
    E.memory[: len(members), : law.d] = law.index(members)
    real = law.real
    E(lambda x: seen.append(x) or 0 * x.flatten(2).sum(-1).to(real), q, noise=u.unsqueeze(0))
    return seen[0][-1].to(case.points.dtype)


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
@pytest.mark.parametrize("size", [10, 300])
def test_draws_from_outside_a_set(case: AnyCase, size: int) -> None:
    if case.name == "one integer":
        return  # its points have no dimension to flatten
    q, p = case.distribution(case.theta), case.probabilities(case.theta)
    index = view(q).index(case.points)
    members = torch.randperm(len(p), generator=seeded())[: min(size, len(p) // 2)]
    rest = p.index_fill(0, members, 0.0)
    rows, uniforms = [], []
    for row in (rest > 0).nonzero().flatten().tolist():
        low, high = cell(q, index, rest, row)
        for t in (1e-6, 0.5, 1 - 1e-6):
            rows.append(row)
            uniforms.append(low + t * (high - low))
    E = MAPO(1, size=size, max_variables=50).eval()
    got = drawn(E, case, case.theta, case.points[members], torch.stack(uniforms))
    assert torch.equal(got, case.points[rows])
    if len(p) <= size and case.name != "fifty bits":  # which have more points than these
        # Where every point is a member, a possible point is drawn all the same.
        u = torch.rand(100, index.shape[1], dtype=torch.float64, generator=seeded())
        got = drawn(E, case, case.theta, case.points, u)
        assert bool((got.unsqueeze(1) == case.points).flatten(2).all(-1).any(1).all())


# Little probability outside the set, in float32; not by probabilities, whose log_prob torch clamps.

SHARP = [case for name, case in CASES.items() if "by probs" not in name]
each_sharp_case = pytest.mark.parametrize("case", SHARP, ids=[case.name for case in SHARP])


def sharpened(case: Case) -> Case:
    """Return the case with logits that leave less than 5e-8 beside the likeliest point."""
    for scale in (5.0, 10.0, 20.0, 40.0, 60.0, 80.0):
        changed = replace(case, theta=(scale * case.theta).float().double())
        p = changed.probabilities(changed.theta)
        if p.sort().values[:-1].sum() < 5e-8:
            return changed
    raise AssertionError(case.name)


def normalised(case: Case, taken: Tensor) -> Tensor:
    """Return probabilities without the taken points, divided by the sum of the others."""
    p = case.probabilities(case.theta)
    kept = torch.tensor([i not in taken.tolist() for i in range(len(p))])
    return torch.where(kept, p, 0.0) / p[kept].sum()


@each_sharp_case
def test_little_probability_outside(case: Case) -> None:
    """The relative error of the mean gradient; f is 0 at the likeliest point."""
    case = sharpened(case)
    best = case.probabilities(case.theta).argsort(descending=True)[:2]
    of_f = case.function("sine")
    level = of_f(case.points[best[:1]])
    leaf = case.theta.clone().requires_grad_()
    mean = (case.probabilities(leaf) * (of_f(case.points) - level)).sum()
    (exact,) = torch.autograd.grad(mean, leaf)
    pairs = torch.cartesian_prod(*[torch.arange(len(case.points))] * 2).T
    mass = normalised(case, best)
    later = torch.stack([normalised(case, first.view(1)) for first in torch.arange(len(mass))])
    memory = MAPO(2, size=2, max_variables=4).eval()
    law = view(case.distribution(case.theta))
    memory.memory[:, : law.d] = law.index(case.points)[best]
    of_set = normalised(case, best[:0])[pairs[0]] * later[pairs[0], pairs[1]]
    weights: list[tuple[Any, Tensor]] = [
        (SumAndSample(2, top=2), mass[pairs].prod(0)),
        (memory, mass[pairs].prod(0)),
        (UnorderedSet(2), of_set),
    ]
    for E, weight in weights:
        x, weight = case.points[pairs[:, weight > 0]], weight[weight > 0].float()
        theta = case.theta.float().requires_grad_()
        q = case.distribution(theta.expand(x.shape[1], *theta.shape))
        narrow = x.float() if x.is_floating_point() else x
        value = E(lambda x: of_f(x.to(case.points.dtype)).float(), q, x=narrow)
        (gradient,) = torch.autograd.grad((weight * value).sum(), theta)
        assert (gradient.double() - exact).norm() < 1e-4 * exact.norm()


@each_sharp_case
def test_draws_with_little_probability_outside(case: Case) -> None:
    """The middle of a point's cell of uniforms, without the likeliest point, draws it."""
    if case.name == "one integer":
        return
    case = sharpened(case)
    q, best = case.distribution(case.theta), case.probabilities(case.theta).argmax().view(1)
    rest = normalised(case, best)
    rows = (rest > 1e-4).nonzero().flatten().tolist()
    ends = [cell(q, view(q).index(case.points), rest, row) for row in rows]
    u = torch.stack([(low + high) / 2 for low, high in ends]).float()
    E = MAPO(1, size=1, max_variables=4).eval()
    got = drawn(E, case, case.theta.float(), case.points[best], u)
    assert torch.equal(got, case.points[rows])


# MAPO's memory


@pytest.mark.parametrize("maximise", [True, False])
def test_mapo_remembers_the_best(maximise: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return x @ torch.tensor([1.0, 2.0, 4.0])

    q = bits(torch.zeros(6, 3))
    six = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]]).float()
    wanted = [[1, 0, 1], [0, 0, 1]] if maximise else [[0, 0, 0], [1, 0, 0]]
    E = MAPO(size=2, maximise=maximise, max_variables=3)
    E(f, q, x=torch.stack([six, six.flip(0)]))  # every point in two batch elements
    assert E.memory.tolist() == wanted
    E.eval()(lambda x: -f(x), q)
    assert E.memory.tolist() == wanted
    x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]).unsqueeze(1).expand(2, 6, 3)
    E.train()(lambda x: -f(x), q, x=x)
    assert E.memory.tolist() == ([[0, 1, 0], [0, 0, 1]] if maximise else [[0, 1, 1], [0, 1, 0]])


def test_mapo_ignores_points_that_do_not_fit() -> None:
    """Points of another shape, or impossible ones, are not summed and never shown to f."""
    E = MAPO(size=5, max_variables=3)
    E(lambda x: x.sum(-1), bits(torch.zeros(9, 3)))
    assert bool((E.memory >= 0).all())
    case = CASES["masked"]
    # The second and third are masked. One possible point is left to draw, so the sum is exact.
    memory = torch.tensor([[0, 1, -1], [2, 1, -1], [0, 0, -1], [1, 2, -1], [0, 2, -1]])

    def f(x: Tensor) -> Tensor:
        assert bool(case.distribution(case.theta).log_prob(x).isfinite().all())
        return case.function("sine")(x)

    theta = case.theta.clone().requires_grad_()
    q = case.distribution(theta)
    E.eval()(f, q)
    E.memory.copy_(memory)
    assert_same(E(f, q), Exact()(f, q), theta, rtol=0, atol=1e-12)
