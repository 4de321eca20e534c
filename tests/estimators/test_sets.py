"""Sets of draws: without replacement (UnorderedSet), summed out (SumAndSample), remembered (MAPO).

All samples are enumerated, with the probabilities that these samplers give them.
"""

from copy import deepcopy
from dataclasses import replace
from itertools import permutations, product

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent
from torch.testing import assert_close

import catlog
from catlog import Exact
from catlog.core.view import view
from catlog.distributions import Node, Ordered
from catlog.estimators import MAPO, SumAndSample, UnorderedSet
from catlog.estimators.sets import prefix_tree
from catlog.estimators.sets.likely_and_rest import (
    beam_search,
    sample_outside,
)
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expected
from catlog.testing.cases import FeatureFunction, grid, normals, seeded
from support import samplers
from support.gradients import assert_same
from support.structured_cases import STRUCTURED_CASES, subset


def blocks(theta: Tensor) -> Distribution:
    """Return a network with a block of two variables and its parent, which is listed after it."""
    leaves, root = theta[..., :12].unflatten(-1, (3, 2, 2)), theta[..., 12:]
    nodes = {"leaves": Node(["root"], leaves, size=2), "root": Node([], root)}
    return catlog.distributions.BayesianNetwork(nodes, theta.shape[:-1])


def squares(x: Tensor) -> Tensor:
    return torch.cat([x.double(), x.double().square()], -1)


STRUCTURED = [  # with the seeds of their parameters
    (STRUCTURED_CASES["chain"], 0),
    (STRUCTURED_CASES["sequence of different sizes, step"], 0),
    (STRUCTURED_CASES["sequence of different sizes that ends, step"], 0),
    (STRUCTURED_CASES["ranking"], 0),
    (STRUCTURED_CASES["crf"], 1),
    (subset("subset", 3, 2), 0),
]
ALL_CASES = CASES | {
    "integer blocks": Case("integer blocks", normals(15), blocks, grid(2, 2, 3), squares)
}
for structured, seed in STRUCTURED:
    name, theta = f"integer {structured.name}", normals(len(structured.theta), seed=seed)
    ALL_CASES[name] = Case(name, theta, structured.distribution, structured.points, squares)
each_case = pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())


def expectation(
    E: catlog.Estimator,
    case: Case,
    f: FeatureFunction,
    x: Tensor,
    weight: Tensor,
    **options: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted mean of value and gradients over outcomes x [rows, outcomes, *event]."""
    theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
    q = case.distribution(theta.expand(x.shape[1], *theta.shape))
    total = (weight * E(lambda x: f(case.features(x), c), q, x=x, **options)).sum()
    return total.detach(), *torch.autograd.grad(total, [theta, c])


def assert_unbiased(E: catlog.Estimator, case: Case, x: Tensor, weight: Tensor) -> None:
    assert_close(weight.sum(), torch.ones_like(weight.sum()), rtol=0, atol=1e-12)
    for f in FUNCTIONS.values():
        got, exact = expectation(deepcopy(E), case, f, x, weight), expected(case, f, PARAMETER)
        assert_close(got, exact, rtol=0, atol=1e-11)


def assert_exact(E: catlog.Estimator, case: Case, atol: float) -> None:
    """Check that one call has the value and the gradients of Exact."""
    theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
    value, exact = (
        estimator(lambda x: FUNCTIONS["sine"](case.features(x), c), case.distribution(theta))
        for estimator in (E, Exact())
    )
    assert_same(value, exact, [theta, c], rtol=0, atol=atol)


def without_replacement(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    """Return every ordered sample of different points, and its probability."""
    every = samplers.without_replacement(case.points, case.probabilities(case.theta), rows)
    return every.options["x"], every.weight


def outside(case: Case, members: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return every sample of ``rows`` draws from outside the members, and its probability."""
    q, probs = case.distribution(case.theta), case.probabilities(case.theta)
    every = samplers.outside(q, members, case.points, probs, rows)
    return every.options["x"], every.weight


def drawing_order(q: Distribution) -> list[int]:
    """Return the variables in the order in which they are drawn."""
    variables = range(view(q).d)
    return [i for block in getattr(q, "blocks", [variables]) for i in block]


def cell(q: Distribution, index: Tensor, p: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """Return the least and the largest uniforms that draw a point of all, with these masses."""
    low, high = torch.zeros(2, index.shape[1], dtype=p.dtype)
    agree = torch.ones(len(p), dtype=torch.bool)
    for i in drawing_order(q):
        is_same = index[:, i] == index[row, i]
        low[i] = p[agree & (index[:, i] < index[row, i])].sum() / p[agree].sum()
        high[i] = low[i] + p[agree & is_same].sum() / p[agree].sum()
        agree = agree & is_same
    return low, high


# Unordered sets


@each_case
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_unordered_set_is_unbiased(case: Case, rows: int) -> None:
    if rows > len(case.points):
        pytest.skip("fewer points")
    assert_unbiased(UnorderedSet(rows), case, *without_replacement(case, rows))


@pytest.mark.parametrize(
    "name", ["bits", "masked", "mixed cardinalities", "one-hot", "integer chain"]
)
def test_unordered_set_of_the_support_is_exact(name: str) -> None:
    """Also where the set is larger than the support."""
    case = ALL_CASES[name]
    assert_exact(UnorderedSet(min(10, len(case.points) + 2)), case, atol=1e-10)


# Draws from outside a set


@each_case
@pytest.mark.parametrize("few", [0, 8])
def test_draws_from_outside_a_set(case: Case, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The uniforms that give a point are a product of intervals, without the members."""
    monkeypatch.setattr(prefix_tree, "FEW", few)  # members, that is; more are drawn in steps
    q = case.distribution(case.theta)
    law = view(q)
    index, p = law.index(case.points), case.probabilities(case.theta)
    members = torch.randperm(len(p), generator=seeded())[: len(p) // 2]
    p = p.index_fill(0, members, 0.0)
    for row in (p > 0).nonzero().flatten().tolist():
        low, high = cell(q, index, p, row)
        for t in (1e-6, 0.5, 1 - 1e-6):
            u = (low + t * (high - low)).unsqueeze(0)
            drawn, is_inside = sample_outside(law, index[members], u)
            assert not bool(is_inside.any())
            assert drawn.tolist() == [index[row].tolist()]
    # Where every point is a member, a possible point is drawn all the same.
    u = torch.rand(100, law.d, dtype=torch.float64, generator=seeded())
    drawn, is_inside = sample_outside(law, index, u)
    assert bool(is_inside.all())
    assert bool((drawn.unsqueeze(1) == index).all(-1).any(1).all())


# Little probability outside the set, in float32

# Not by probabilities, whose log_prob torch clamps.
SHARP = [case for case in ALL_CASES.values() if "by probs" not in case.name]
sharp = pytest.mark.parametrize("case", SHARP, ids=[case.name for case in SHARP])


def sharpened(case: Case) -> tuple[Case, Tensor]:
    """Return the case with logits that leave less than 5e-8 beside the likeliest point."""
    for scale in (5.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0):
        changed = replace(case, theta=(scale * case.theta).float().double())
        p = changed.probabilities(changed.theta)
        if p.sort().values[:-1].sum() < 5e-8:
            return changed, p
    raise AssertionError(case.name)


def masses(p: Tensor, taken: list[int]) -> Tensor:
    """Return p without the taken points, normalised by the sum of the others."""
    return (
        p.index_fill(0, torch.tensor(taken, dtype=torch.int64), 0.0)
        / p[[i for i in range(len(p)) if i not in taken]].sum()
    )


def error_in_float32(E: catlog.Estimator, case: Case, x: Tensor, weight: Tensor) -> float:
    """Return the relative error of the mean gradient; f is 0 at the likeliest point."""
    f = FUNCTIONS["sine"]
    best = f(case.features(case.points), PARAMETER)[case.probabilities(case.theta).argmax()]
    exact = expected(case, lambda x, c: f(x, c) - best, PARAMETER)[1]
    theta = case.theta.float().requires_grad_()
    q = case.distribution(theta.expand(x.shape[1], *theta.shape))

    def rounded(x: Tensor) -> Tensor:
        return f(case.features(x.double() if x.is_floating_point() else x), PARAMETER).float()

    value = E(rounded, q, x=x.float() if x.is_floating_point() else x)
    (gradient,) = torch.autograd.grad((weight.float() * value).sum(), theta)
    return float((gradient.double() - exact).norm() / exact.norm())


@sharp
@pytest.mark.parametrize(("size", "samples"), [(1, 1), (1, 2), (2, 2)])
def test_sum_and_sample_with_little_probability_outside(
    case: Case, size: int, samples: int
) -> None:
    case, p = sharpened(case)
    best = p.argsort(descending=True)[:size].tolist()
    choice = torch.tensor(
        list(product([i for i in range(len(p)) if i not in best], repeat=samples))
    ).T
    x, weight = case.points[choice], masses(p, best)[choice].prod(0)
    memory = MAPO(samples, size=size, max_variables=4).eval()
    law = view(case.distribution(case.theta))
    memory.memory[:, : law.d] = law.index(case.points)[best]
    for E in (SumAndSample(samples, top=size), memory):
        assert error_in_float32(E, case, x, weight) < 1e-4


@sharp
@pytest.mark.parametrize("rows", [2, 3])
def test_unordered_set_with_little_probability_outside(case: Case, rows: int) -> None:
    case, p = sharpened(case)
    orders = torch.tensor(list(permutations(range(len(p)), rows))).T
    weight = torch.ones(orders.shape[1], dtype=torch.float64)
    for column, order in enumerate(orders.T.tolist()):
        for i, drawn in enumerate(order):
            weight[column] *= masses(p, order[:i])[drawn]
    assert error_in_float32(UnorderedSet(rows), case, case.points[orders], weight) < 1e-4


@sharp
def test_draws_with_little_probability_outside(case: Case) -> None:
    """The middle of a point's cell of uniforms, without the likeliest point, draws it."""
    case, p = sharpened(case)
    q = case.distribution(case.theta.float())
    law = view(q)
    index, best = law.index(case.points), int(p.argmax())
    rest = p.index_fill(0, torch.tensor([best]), 0.0)
    for row in (rest > 1e-4 * rest.sum()).nonzero().flatten().tolist():
        low, high = cell(q, index, rest, row)
        u = ((low + high) / 2).float().unsqueeze(0)
        drawn, _ = sample_outside(law, index[best : best + 1], u)
        assert drawn.tolist() == [index[row].tolist()]


@each_case
def test_likeliest_points(case: Case) -> None:
    q = case.distribution(torch.stack([case.theta, case.theta.flip(-1)]))
    law = view(q)
    p = q.log_prob(case.points.unsqueeze(1).expand(-1, 2, *case.points.shape[1:])).exp()
    for count in (1, 2, 3, 12):
        points, possible = beam_search(law, count)
        probs = torch.where(possible, law.log_prob(points).exp(), 0.0)
        if not isinstance(q, Ordered) or count == 12:
            best = p.sort(0, descending=True).values[:count]
            assert_close(probs[: len(best)], best)
            assert not bool(probs[len(best) :].any())
        for b in range(2):
            kept = points[possible[:, b], b]
            assert len(kept.unique(dim=0)) == len(kept)


# Sum and sample


@each_case
@pytest.mark.parametrize(("top", "samples"), [(1, 1), (2, 1), (3, 2), (1, 3)])
def test_sum_and_sample_is_unbiased(case: Case, top: int, samples: int) -> None:
    if top >= len(case.points):
        pytest.skip("fewer points")
    members, _ = beam_search(view(case.distribution(case.theta)), top)
    assert_unbiased(SumAndSample(samples, top=top), case, *outside(case, members[:top], samples))


@each_case
def test_sum_over_all_points_is_exact(case: Case) -> None:
    assert_exact(SumAndSample(top=50), case, atol=1e-12)


# MAPO


@each_case
@pytest.mark.parametrize("samples", [1, 2])
def test_mapo_is_unbiased_while_its_memory_changes(case: Case, samples: int) -> None:
    E = MAPO(size=3, samples=samples, max_variables=4).double()
    for step in range(3):
        fits = (E.memory >= 0).any(-1)
        assert bool(fits.any()) == (step > 0)
        members = E.memory[fits][:, : view(case.distribution(case.theta)).d]
        if len(members) < len(case.points):
            assert_unbiased(E, case, *outside(case, members, samples))
        E(
            lambda x: FUNCTIONS["sine"](case.features(x), PARAMETER),
            case.distribution(case.theta),
            generator=seeded(step),
        )


def test_mapo_remembers_the_best() -> None:
    def f(x: Tensor) -> Tensor:
        return x @ torch.tensor([1.0, 2.0, 4.0])

    q = Independent(Bernoulli(logits=torch.zeros(6, 3)), 1)
    bits = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]]).float()
    for maximise, wanted in ((True, [[1, 0, 1], [0, 0, 1]]), (False, [[0, 0, 0], [1, 0, 0]])):
        E = MAPO(size=2, maximise=maximise, max_variables=3)
        E(f, q, x=torch.stack([bits, bits.flip(0)]))  # every point in two batch elements
        assert E.memory.tolist() == wanted
        copy = MAPO(size=2, maximise=maximise, max_variables=3)
        copy.load_state_dict(E.state_dict())
        assert copy.memory.tolist() == wanted
        E.eval()
        E(lambda x: -f(x), q)
        assert E.memory.tolist() == wanted
        E.train()
        E(
            lambda x: -f(x),
            q,
            x=torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]).unsqueeze(1).expand(2, 6, 3),
        )
        assert E.memory.tolist() == ([[0, 1, 0], [0, 0, 1]] if maximise else [[0, 1, 1], [0, 1, 0]])
    with pytest.raises(
        ValueError,
        match=r"MAPO: `max_variables` must be at least 3, but 2 was given\. q has 3 variables",
    ):
        MAPO(max_variables=2)(f, q)


def test_mapo_ignores_points_that_do_not_fit() -> None:
    """Points of another shape, or impossible ones, are not summed and never shown to f."""
    E = MAPO(size=4, max_variables=3)
    E(lambda x: x.sum(-1), Independent(Bernoulli(logits=torch.zeros(9, 3)), 1))
    before = E.memory.clone()
    assert bool((before >= 0).all())
    case = CASES["masked"]
    assert_unbiased(E.eval(), case, *outside(case, torch.zeros(0, 2, dtype=torch.long), 1))
    # The second and third are masked.
    E.memory.copy_(torch.tensor([[0, 1, -1], [2, 1, -1], [0, 0, -1], [1, 2, -1]]))

    def f(x: Tensor) -> Tensor:
        assert bool(view(case.distribution(case.theta)).log_prob(x).isfinite().all())
        return x.sum(-1).double()

    E(f, case.distribution(case.theta))
    assert_unbiased(E, case, *outside(case, torch.tensor([[0, 1], [1, 2]]), 1))


def test_mapo_compiles() -> None:
    theta = normals(6).requires_grad_()
    results = []
    for compile in (False, True):
        E = MAPO(size=2, samples=2, max_variables=3)

        def loss(theta: Tensor, E: MAPO = E) -> Tensor:
            q = STRUCTURED_CASES["chain"].distribution(theta)
            return E(lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1).sin().double(), q)

        call = (
            torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
            if compile
            else loss
        )
        torch.manual_seed(0)
        values = [call(theta) for _ in range(3)]
        results.append(
            [
                *(value.detach() for value in values),
                torch.autograd.grad(sum(values), theta)[0],
                E.memory,
            ]
        )
    assert_close(*results, rtol=1e-12, atol=1e-12)


def test_wrong_arguments_are_named() -> None:
    q = Independent(Bernoulli(logits=torch.tensor([2.0, 2.0])), 1)
    with pytest.raises(
        ValueError,
        match=r"x must hold different points, but the point at index \(1,\) is a repetition\. Give",
    ):
        UnorderedSet()(lambda x: x.sum(-1), q, x=torch.ones(2, 2))
    with pytest.raises(
        ValueError,
        match=r"x must hold points that are not summed already, but \[1, 1\] at index \(0,\) is",
    ):
        SumAndSample()(lambda x: x.sum(-1), q, x=torch.ones(1, 2))
