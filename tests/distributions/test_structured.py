"""Structured distributions: settings and variances of estimators, cost, narrow types, vmap.

test_checklist.py judges the distributions and test_every_estimator.py every estimator on them, both
by enumeration.
"""

import tracemalloc
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import pad
from torch.testing import assert_close

import catlog
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    LinearChainCRF,
    MarkovChain,
    Node,
    Ordered,
    PlackettLuce,
    Subset,
)
from catlog.estimators import BBVI, LEG, RAM
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import estimators
from support.gradients import assert_same, with_gradients
from support.samplers import cells, combine, independent_draws, interventions
from support.structured_cases import STRUCTURED_CASES, StructuredCase, choices, close, every

NO = -torch.inf


def case_of(theta: Tensor, distribution: Callable[[Tensor], Ordered]) -> StructuredCase:
    """Return a case of any parameters, its points listed by the distribution itself."""
    points = distribution(theta).enumerate_support()
    return StructuredCase(
        "", theta, distribution, points, lambda theta: distribution(theta).log_prob(points)
    )


def function(table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return f with a random value for every point."""
    return lambda x: table[tuple(pad(x, (0, table.dim() - x.shape[-1])).unbind(-1))]


TABLE = function(normals(4, 4, 4, 4, seed=1))


def exact(case: StructuredCase, f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    theta = case.theta.clone().requires_grad_()
    return with_gradients((case.probabilities(theta) * f(case.points)).sum(), theta)


def test_scater_with_top_categories_and_a_remainder_is_unbiased() -> None:
    """Five categories: the likeliest other one always, one of the remaining three at random."""
    theta = normals(30)
    case = case_of(theta, lambda t: MarkovChain(t[:5], t[5:].view(1, 5, 5)))
    f, E = function(normals(5, 5, seed=4)), catlog.SCateR(1, categories=1, suffix="common")
    # The remainder's draw is a step function, too; its breakpoints are ratios of probabilities at
    # every prefix and own value.
    probs = case.distribution(theta).log_conditionals(case.points).exp()
    edges: list[Tensor] = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for category in range(5):
        rest = probs.index_fill(-1, torch.tensor([category]), 0.0)
        rest = rest.scatter(-1, rest.argmax(-1, keepdim=True), 0.0)
        edges.append((rest.cumsum(-1) / rest.sum(-1, keepdim=True)).clamp(max=1).flatten())
    edge = torch.cat(edges).sort().values
    edge = edge[torch.cat([torch.ones(1, dtype=torch.bool), edge.diff() > 1e-12])]
    remainder = ((edge[1:] + edge[:-1]) / 2, edge[1:] - edge[:-1])
    u, weight = combine([*cells(case.distribution(theta)), remainder])
    parts = []
    for i in range(2):  # one variable's remainder at a time: the estimate is a sum over variables
        noise = torch.full((2, 1, len(u), 2), 0.5, dtype=torch.float64)
        noise[0, 0] = u[:, :2]
        noise[1, 0, :, i] = u[:, 2]
        t = theta.clone().requires_grad_()
        value = (weight * E(f, case.distribution(t).expand([len(u)]), noise=noise)).sum()
        parts.append(torch.autograd.grad(value, t)[0])
    close(torch.cat([parts[0][:5], parts[1][5:]]), exact(case, f)[1])


@pytest.mark.parametrize("folds", [2, 5])
def test_criticater_is_unbiased_by_its_other_route(folds: int) -> None:
    """More draws than categories in all: the regressions are solved by category."""
    case, theta = STRUCTURED_CASES["short chain"], STRUCTURED_CASES["short chain"].theta.clone()
    draws = independent_draws(case.points, case.probabilities(theta), 5)
    q = case.distribution(theta.requires_grad_()).expand([len(draws.weight)])
    value = catlog.CritiCateR(5, folds=folds, ridge=0.5)(TABLE, q, **draws.options)
    close(with_gradients((draws.weight * value).sum(), theta), exact(case, TABLE))


INDEPENDENT = [
    catlog.SCateR(3), catlog.SCateR(3, suffix="common"), catlog.SCateR(3, variables=2), LEG(3)
]  # fmt: skip


@pytest.mark.parametrize("E", INDEPENDENT, ids=repr)
def test_the_same_as_indecater_for_independent_variables(E: catlog.Estimator) -> None:
    theta = normals(4, 5).requires_grad_()
    q, variables = Independent(Bernoulli(logits=theta), 1), getattr(E, "variables", None)
    options = {"x": q.sample((3,))}
    if variables is not None:
        options["noise"] = torch.rand(3, 4, 5).argsort(-1)[..., :variables]
    indecater = catlog.IndeCateR(3, variables=variables, control="none")
    values = [E(lambda z: (z @ normals(5)).sin(), q, **options) for E in (E, indecater)]
    assert_same(*values, theta, rtol=0, atol=1e-12)


def test_ram_is_scater_with_common_gumbels() -> None:
    case = STRUCTURED_CASES["recurrent, network(x, i)"]
    q = case.distribution(case.theta)
    estimators = RAM(4), catlog.SCateR(4, suffix="gumbel")
    assert torch.equal(*(E(TABLE, q, generator=seeded()) for E in estimators))


def variance(E: catlog.Estimator, case: StructuredCase, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the exact variance over draws, per parameter."""
    weight, options = case.probabilities(case.theta), {"x": case.points.unsqueeze(0)}
    if isinstance(E, catlog.SCateR):
        outcomes = interventions(E, case.distribution(case.theta))
        weight, options = outcomes.weight, outcomes.options
    theta = case.theta.clone().requires_grad_()
    values = E(f, case.distribution(theta).expand([len(weight)]), **options)
    rows = torch.stack([with_gradients(value, theta)[1] for value in values])
    mean = (weight[:, None] * rows).sum(0)
    return (weight[:, None] * (rows - mean).square()).sum(0)


def test_variance_at_most_reinforce_for_parameters_of_one_factor() -> None:
    """The paper's corollary: a chain with a separate table per step, and the DAG with a block."""
    separate = case_of(normals(10), lambda t: MarkovChain(t[:2], t[2:].view(2, 2, 2)))
    f = function(normals(4, 4, 4, seed=10))
    scater, reinforce = (variance(E, separate, f) for E in (catlog.SCateR(1), catlog.Reinforce(1)))
    assert (scater <= reinforce + 1e-12).all()
    assert scater.sum() < 0.9 * reinforce.sum()


def test_the_corollary_fails_for_shared_parameters() -> None:
    """Two independent bits on one logit, f = XOR: REINFORCE has no variance, SCateR has."""

    def law(theta: Tensor) -> Ordered:
        logits = torch.stack([torch.zeros_like(theta[0]), theta[0]])
        return BayesianNetwork({"a": Node([], logits), "b": Node(["a"], logits.expand(2, 2))})

    case = case_of(zeros(1, dtype=torch.float64), law)
    xor = function(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    assert variance(catlog.Reinforce(1), case, xor) < 1e-20
    close(variance(catlog.SCateR(1, suffix="common"), case, xor), torch.tensor([0.125]).double())


def counting(k: int, rows: list[int]) -> Callable[..., Tensor]:
    """Return a network of k categories that notes its numbers of rows."""
    return lambda x, *i: (rows.append(len(x)), zeros(*x.shape[:-1], k))[1]


def total(x: Tensor) -> Tensor:
    return x.sum(-1).float()


def test_conditional_calls_and_evaluations_as_promised() -> None:
    """Rows: the base and every move of an earlier variable; f once per row."""
    calls: list[int] = []
    networks = [counting(k, calls) for k in (3, 2, 4)]
    # Without the calls that look for a network's mistakes.
    q = Autoregressive(lambda x, i: networks[i](x), [3, 2, 4], validate_args=False)
    E, evaluated = catlog.SCateR(5), []
    E(lambda x: (evaluated.append(len(x)), total(x))[1], q)
    assert sum(evaluated) == E.evaluations(q) == 5 * (1 + 2 + 1 + 3)
    assert calls[:3] == [5 * 1, 5 * (1 + 2), 5 * (1 + 2 + 1)]  # the sweep
    assert calls[3:6] == [5, 5, 5]  # the differentiable pass at the base draws


def test_only_descendants_are_drawn_again() -> None:
    rows: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    sizes, parents = {"a": 3, "b": 4, "c": 2}, {"a": [], "b": [], "c": ["b"]}
    nodes = {n: Node(parents[n], counting(sizes[n], rows[n]), cardinality=sizes[n]) for n in rows}
    catlog.SCateR(1)(total, BayesianNetwork(nodes))  # whose sweep comes first
    assert [rows[name][0] for name in "abc"] == [1, 1, 1 + 3]  # c for three other values of b


@pytest.mark.parametrize("E", [catlog.RLOO(4), catlog.CritiCateR(4), BBVI(4)], ids=repr)
@pytest.mark.parametrize("outputs", [0, 1])
def test_draws_are_scored_in_the_pass_that_makes_them(E: catlog.Estimator, outputs: int) -> None:
    """The network runs once for all draws, also if f reads log q; numbers are as at given draws."""
    if outputs and not E.many_outputs:
        pytest.skip("takes no outputs")
    theta, slope = normals(5, 3, 2).requires_grad_(), normals(3, 2, seed=1).requires_grad_()
    rows: list[int] = []
    points: list[Tensor] = []

    def network(parents: Tensor) -> Tensor:
        rows.append(len(parents))
        return (parents.double() @ slope).unsqueeze(-1) * normals(2, seed=2)

    nodes = {
        "b": Node(["a"], network, cardinality=2, size=2),
        "a": Node([], theta, size=3),
    }
    q = BayesianNetwork(nodes, (5,))

    def f(x: Tensor) -> Tensor:
        points.append(x.clone())
        value = x.double().sum(-1).sin() - q.log_prob(x).detach()
        return torch.stack([value, value.square()], -1) if outputs else value

    value = E(f, q, outputs=outputs, generator=seeded())
    assert rows == [4]
    assert_same(value, E(f, q, outputs=outputs, x=points[0]), [theta, slope])

    def writing(x: Tensor) -> Tensor:
        with torch.no_grad():
            log_prob = q.log_prob(x)
            assert not log_prob.requires_grad
            log_prob += 1
        close(q.log_prob(x), q.log_prob(x.clone()))
        x[..., 0] = 1 - x[..., 0]
        close(q.log_prob(x), q.log_prob(x.clone()))
        return total(x)

    catlog.RLOO(2)(writing, q)
    kept: list[Tensor] = []
    catlog.RLOO(2)(lambda x: (kept.append(x), total(x))[1], q)
    theta.data[0, 0, 0] += 1  # as an optimiser does
    close(q.log_prob(kept[0]), q.log_prob(kept[0].clone()))


def test_fixed_nodes_get_no_interventions() -> None:
    """A known environment between learned choices: half the evaluations."""
    theta = STRUCTURED_CASES["network with a known node"].theta
    assert catlog.SCateR(1).evaluations(BayesianNetwork(choices(theta))) == 3
    assert catlog.SCateR(1).evaluations(BayesianNetwork(choices(theta, fixed=False))) == 5


@pytest.mark.parametrize("name", ["chain", "emitting chain", "autoregressive"])
def test_long_sequences_are_made_in_little_memory(name: str) -> None:
    """Sets of all earlier variables would hold d^2 / 2 numbers, 128 MB here."""
    d, table = 2000, zeros(2, 2)
    tracemalloc.start()
    if name == "autoregressive":
        Autoregressive(lambda x, i: zeros(*x.shape[:-1], 2), (2,) * d)
    else:
        MarkovChain(table[0], table, length=d, emission=table if "emitting" in name else None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_device_is_a_name_and_cardinalities_come_from_an_iterator() -> None:
    node = Node([], counting(2, []), cardinality=2)
    for q in (
        Autoregressive(counting(2, []), iter([2, 2]), device="cpu"),
        BayesianNetwork({"a": node}, device="cpu"),
    ):
        assert q.device == torch.device("cpu")
        catlog.RLOO(2)(total, q, generator=seeded())
    assert Autoregressive(counting(2, []), iter([2, 2])).event_shape == (2,)


class Tables(torch.nn.Module):
    """Categories at each of two places, without a product, which not every CPU can do."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x: Tensor, i: int) -> Tensor:
        logits = self.logits[i].expand(*x.shape[:-1], self.logits.shape[-1])
        return logits if i == 0 else logits * (1 + x[..., :1] % 2)


def narrow_laws(theta: Tensor) -> dict[str, tuple[Tensor, Ordered]]:
    """Return by name the parameter and a distribution of two variables with logits ``theta``."""
    k, network = theta.shape[-1], Tables(theta.clone())
    first, second = (theta.clone().requires_grad_() for _ in range(2))
    nodes = {"a": Node([], second[0]), "b": Node(["a"], second[1].expand(k, k))}
    return {
        "MarkovChain": (first, MarkovChain(first[0], first[1].expand(k, k), length=2)),
        "BayesianNetwork": (second, BayesianNetwork(nodes)),
        "Autoregressive": (network.logits, Autoregressive(network, [k, k])),
    }


NARROW = [
    *(E for E in estimators() if "structured" in E.values[0].supports),
    pytest.param(catlog.SCateR(2, suffix="common"), id="SCateR common"),
    pytest.param(catlog.SCateR(2, suffix="gumbel"), id="SCateR gumbel"),
    pytest.param(catlog.SCateR(2, categories=1), id="SCateR categories"),
    pytest.param(catlog.SCateR(2, variables=1, suffix="common"), id="SCateR variables common"),
]
of_16_bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@of_16_bits
@pytest.mark.parametrize("E", NARROW)
def test_narrow_types_give_what_float32_gives(
    E: catlog.Estimator, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same draws, value and gradient, up to that dtype's rounding."""
    made: set[torch.dtype] = set()
    rand = torch.rand

    def spy(*arguments: object, **options: object) -> Tensor:
        uniforms = rand(*arguments, **options)
        made.add(uniforms.dtype)
        return uniforms

    monkeypatch.setattr(torch, "rand", spy)
    weights, theta = torch.tensor([1.0, 3.0]), normals(2, 5).to(dtype)
    for name in narrow_laws(theta):
        results = []
        for leaf, q in (narrow_laws(theta)[name], narrow_laws(theta.float())[name]):
            value = deepcopy(E)(lambda x: (x * weights).sum(-1).sin(), q, generator=seeded())
            results.append(with_gradients(value, leaf))
        (value, gradient), (wide, wanted) = results
        assert value.dtype == torch.float32
        # A network's own arithmetic is in the narrow type; tables are not.
        is_network = name == "Autoregressive"
        rounding = (4 if is_network else 1) * torch.finfo(dtype).eps
        of_value = rounding if is_network else 1e-6
        assert_close(value, wide, rtol=of_value, atol=of_value)
        atol = rounding * wanted.abs().max().item() + 1e-7
        assert_close(gradient.float(), wanted, rtol=rounding, atol=atol)
    assert made <= {torch.float32}


@of_16_bits
def test_every_one_of_1000_categories_is_drawn_in_narrow_types(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniforms at the middles of 1,000 cells draw every category of both variables once."""
    middles = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000

    def grid(shape: tuple[int, ...], dtype: torch.dtype, **options: object) -> Tensor:
        return middles.to(dtype).view(-1, 1).expand(shape).clone()

    for name, (_, q) in narrow_laws(zeros(2, 1000, dtype=dtype)).items():
        cdf = q.log_conditionals(zeros(1, 2, dtype=torch.int64)).exp().cumsum(-1)
        assert [len(values.unique()) for values in cdf[0]] == [1000, 1000], name
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", grid)
            drawn = [q.sample((1000,))]
            catlog.RLOO(1000)(lambda x: (drawn.append(x), total(x))[1], q)  # noqa: B023
        for x in drawn:
            assert [len(column.unique()) for column in x.T] == [1000, 1000], name


def test_entropies_in_narrow_types_and_under_autocast() -> None:
    """In float32, without a matrix product (a bfloat16 one dies on some CPUs)."""
    initial, transition = normals(3).float(), normals(3, 3).float()
    wide = MarkovChain(initial, transition, length=3, emission=transition).entropy()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = MarkovChain(initial, transition, length=3, emission=transition)
        assert torch.equal(q.entropy(), wide)
    initial, transition = initial.bfloat16(), transition.bfloat16()
    wide = MarkovChain(initial.float(), transition.float(), length=3).entropy()
    assert torch.equal(MarkovChain(initial, transition, length=3).entropy(), wide)


ENTROPIES = [catlog.RLOO(2), catlog.Reinforce(1), LEG(1), catlog.Exact()]


@pytest.mark.parametrize("E", ENTROPIES, ids=repr)
@pytest.mark.parametrize("name", ["chain", "recurrent, step", "network with a block"])
def test_the_entropy_bonus_of_the_docstring(name: str, E: catlog.Estimator) -> None:
    """E(-log q, detached) has the entropy's gradient; the mean of -log q over draws has none."""
    case = STRUCTURED_CASES[name]
    theta, probs = case.theta.clone().requires_grad_(), case.probabilities(case.theta)
    q = case.distribution(theta)
    wanted = with_gradients(q.entropy(), theta)
    wide, weight, options = q, torch.ones(()), {}
    if not isinstance(E, catlog.Exact):
        draws = independent_draws(case.points, probs, E.samples)
        wide, weight, options = q.expand([len(draws.weight)]), draws.weight, draws.options
    value = (weight * E(lambda x: -wide.log_prob(x).detach(), wide, **options)).sum()
    close(with_gradients(value, theta), wanted)
    none = with_gradients((probs * -q.log_prob(case.points)).sum(), theta)[1]
    assert none.abs().max() < 1e-12 < wanted[1].abs().max()


@pytest.mark.parametrize("E", NARROW)
def test_fixed_nodes_alone(E: catlog.Estimator) -> None:
    """q has nothing to learn; value and gradient of f itself are right."""
    root, leaf = Node([], normals(2), fixed=True), Node(["a"], normals(2, 3, seed=1), fixed=True)
    q = BayesianNetwork({"a": root, "b": leaf})
    slope = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    value = deepcopy(E)(lambda x: slope * (2 + 0 * x.sum(-1)), q)
    close(with_gradients(value, slope), [torch.tensor(3.0).double(), torch.tensor(2.0).double()])
    if isinstance(E, catlog.SCateR | RAM) and getattr(E, "variables", None) is None:
        seen: list[Tensor] = []
        value = E(lambda x: (seen.append(x), x.double().sum(-1))[1], q)
        assert E.evaluations(q) == sum(map(len, seen)) == E.samples
        assert value == seen[0].double().sum(-1).mean()


def test_a_table_for_all_batch_elements() -> None:
    """Batched initial, one transition and one emission: as if both were expanded."""
    initial, transition, emission = normals(4, 3), normals(3, 3, seed=1), normals(3, 2, seed=2)
    q = MarkovChain(initial, transition, length=3, emission=emission)
    wide = MarkovChain(initial, transition.expand(4, 3, 3), 3, emission.expand(4, 3, 2))
    x = q.sample((6,))
    assert x.shape == (6, 4, 6)
    close(q.log_prob(x), wide.log_prob(x))
    close((q.entropy(), wide.entropy()), (Ordered.entropy(q), Ordered.entropy(q)))
    for E in (catlog.SCateR(2), catlog.RLOO(2)):
        close(*(E(lambda x: x.double().sum(-1), law, generator=seeded()) for law in (q, wide)))
    assert MarkovChain(normals(2, 4, 3), transition, length=2).sample().shape == (2, 4, 2)


@pytest.mark.parametrize("E", NARROW)
def test_impossible_categories_are_not_shown_and_get_no_gradient(E: catlog.Estimator) -> None:
    """Parameters that hold -inf: a certain start, some impossible steps and one certain step."""
    rows = [NO, 0.4, NO], [[0.0, NO, 1.0], [0.3, NO, 0.2], [NO, NO, 0.7]]
    leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]
    q, points = MarkovChain(*leaves, length=3), every(3, 3, 3)
    is_possible = q.log_prob(points).view(3, 3, 3) > NO
    assert 1 < is_possible.sum() < 27
    values = normals(3, 3, 3, seed=5) + 10
    f = function(values.where(is_possible, torch.nan))
    for seed in range(5):
        value = deepcopy(E)(f, q, generator=seeded(seed))
        for leaf, gradient in zip(leaves, with_gradients(value, leaves)[1:], strict=True):
            assert gradient.isfinite().all()
            certain = (leaf == NO) | ((leaf > NO).sum(-1, keepdim=True) == 1)
            assert gradient[certain].abs().max() < 1e-12
    if isinstance(E, catlog.Exact):
        finite = [leaf.detach().clamp(min=-800.0).requires_grad_() for leaf in leaves]
        wanted = (MarkovChain(*finite, length=3).log_prob(points).exp() * values.flatten()).sum()
        close(with_gradients(E(f, q), leaves), with_gradients(wanted, finite))


def test_float32_of_a_long_chain() -> None:
    """Rounding errors of the steps do not add up: a few units of 6e-8 per term remain."""
    initial, transition = normals(5), normals(5, 5, seed=1)
    exact = MarkovChain(initial, transition, length=8000)
    q = MarkovChain(initial.float(), transition.float(), length=8000)
    assert_close(q.entropy().double(), exact.entropy(), rtol=5e-6, atol=0)
    assert_close(q.marginals().double(), exact.marginals(), rtol=0, atol=1e-6)


def pair(theta: Tensor) -> Ordered:
    leaf = Node(["a"], theta[2:].view(2, 1, 2).expand(2, 2, 2), size=2)
    return BayesianNetwork({"a": Node([], theta[:2]), "b": leaf})


MAPPED: dict[str, Callable[[Tensor], Ordered]] = {
    "chain": lambda theta: MarkovChain(theta[:2], theta[2:].view(2, 2), length=3),
    "network": pair,
    "evidence": lambda theta: LinearChainCRF(theta.view(3, 2), theta[:4].view(2, 2)),
    "subset": lambda theta: Subset(theta, 2),
    "ranking": lambda theta: PlackettLuce(theta, 2),
    "sequence": lambda theta: Autoregressive(
        lambda x, i: theta[:3] + theta[3:] * x[..., :i].sum(-1, keepdim=True), [3, 3, 3], end=1
    ),
}


@pytest.mark.parametrize("E", [catlog.RLOO(3), catlog.CritiCateR(3), LEG(1)], ids=repr)
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_of_draws_equals_a_loop(name: str, E: catlog.Estimator) -> None:
    thetas = normals(4, 6)

    def f(x: Tensor) -> Tensor:
        return (x * torch.arange(1.0, 1 + x.shape[-1])).sum(-1).sin()

    gradient = torch.func.grad(lambda theta: E(f, MAPPED[name](theta)))
    rows = []
    for theta in thetas:
        torch.manual_seed(0)
        rows.append(gradient(theta))
    torch.manual_seed(0)
    mapped = torch.func.vmap(gradient, randomness="same")(thetas)
    assert_close(mapped, torch.stack(rows), rtol=1e-12, atol=1e-12)
    different = torch.func.vmap(gradient, randomness="different")(thetas[:1].expand(20, 6))
    assert len(different.unique(dim=0)) > 1
    sample = torch.func.vmap(lambda theta: MAPPED[name](theta).sample((3,)), randomness="different")
    for theta, points in zip(thetas, sample(thetas), strict=True):
        assert MAPPED[name](theta).log_prob(points).isfinite().all()
