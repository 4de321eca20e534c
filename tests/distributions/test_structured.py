"""Structured distributions: settings and variances of estimators, narrow types, checks of networks.

test_checklist.py judges the distributions and test_every_estimator.py every estimator on them, both
by enumeration.
"""

import re
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Bernoulli, Independent
from torch.testing import assert_close

import catlog
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    Categoricals,
    LinearChainCRF,
    MarkovChain,
    Node,
    Ordered,
    PlackettLuce,
    Prompted,
    Subset,
)
from catlog.estimators import LEG, RAM
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import estimators
from support.gradients import assert_same, with_gradients
from support.samplers import cells, combine, independent_draws, interventions
from support.structured_cases import STRUCTURED_CASES, StructuredCase, choices


def case_of(theta: Tensor, distribution: Callable[[Tensor], Ordered]) -> StructuredCase:
    """Return a case of any parameters, its points listed by the distribution itself."""
    points = distribution(theta).enumerate_support()
    return StructuredCase(
        "", theta, distribution, points, lambda theta: distribution(theta).log_prob(points)
    )


def chain(theta: Tensor) -> Ordered:
    return MarkovChain(theta[:2], theta[2:].view(2, 2), length=3)


TABLE = normals(4, 4, 4, 4, seed=1)


def function(table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return f with a random value for every point."""

    def f(x: Tensor) -> Tensor:
        x = x.long()  # counts are floats
        index = [x[..., i] if i < x.shape[-1] else torch.zeros_like(x[..., 0]) for i in range(4)]
        return table[tuple(index)]

    return f


def exact(case: StructuredCase, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    theta = case.theta.clone().requires_grad_()
    value = (case.probabilities(theta) * f(case.points)).sum()
    return value.detach(), torch.autograd.grad(value, theta)[0]


def close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    assert_close(got, wanted, rtol=0, atol=1e-12)


def test_scater_with_top_categories_and_a_remainder_is_unbiased() -> None:
    """Five categories: the likeliest other one always, one of the remaining three at random."""
    theta = torch.cat([normals(5), normals(25, seed=3)])
    case = case_of(theta, lambda t: MarkovChain(t[:5], t[5:].view(1, 5, 5)))
    f = function(normals(5, 5, 1, 1, seed=4))
    E = catlog.SCateR(1, categories=1, suffix="common")
    by_variable = cells(case.distribution(theta))
    # The remainder's draw is a step function, too; its breakpoints are ratios of probabilities at
    # every prefix and own value.
    probs = case.distribution(theta).log_conditionals(case.points).exp()
    edges: list[Tensor] = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for category in range(5):
        rest = probs.clone()
        rest[..., category] = 0
        rest = rest.scatter(-1, rest.argmax(-1, keepdim=True), 0.0)
        edges.append((rest.cumsum(-1) / rest.sum(-1, keepdim=True)).clamp(max=1).flatten())
    edge = torch.cat(edges).sort().values
    edge = edge[torch.cat([torch.ones(1, dtype=torch.bool), edge.diff() > 1e-12])]
    remainder = ((edge[1:] + edge[:-1]) / 2, edge[1:] - edge[:-1])
    total = None
    for i in range(2):  # one variable's remainder at a time: the estimate is a sum over variables
        u, weight = combine([*by_variable, remainder])
        noise = torch.full((2, 1, len(u), 2), 0.5, dtype=torch.float64)
        noise[0, 0] = u[:, :2]
        noise[1, 0, :, i] = u[:, 2]
        t = theta.clone().requires_grad_()
        value = (weight * E(f, case.distribution(t).expand([len(u)]), noise=noise)).sum()
        (gradient,) = torch.autograd.grad(value, t)
        part = torch.zeros_like(gradient)
        part[:5] = gradient[:5] if i == 0 else 0
        part[5:] = gradient[5:] if i == 1 else 0
        total = part if total is None else total + part
    assert_close(total, exact(case, f)[1], rtol=0, atol=1e-12)


def test_criticater_is_unbiased_by_its_other_route() -> None:
    """More draws than categories in all: the regressions are solved by category."""
    case, f = STRUCTURED_CASES["short chain"], function(TABLE)
    draws = independent_draws(case.points, case.probabilities(case.theta), 5)
    for folds in (2, 5):
        theta = case.theta.clone().requires_grad_()
        q = case.distribution(theta).expand([len(draws.weight)])
        E = catlog.CritiCateR(5, folds=folds, ridge=0.5)
        total = (draws.weight * E(f, q, **draws.options)).sum()
        close((total.detach(), torch.autograd.grad(total, theta)[0]), exact(case, f))


@pytest.mark.parametrize(
    "E",
    [
        catlog.SCateR(3),
        catlog.SCateR(3, suffix="common"),
        catlog.SCateR(3, variables=2),
        LEG(3),
    ],
    ids=repr,
)
def test_the_same_as_indecater_for_independent_variables(E: catlog.Estimator) -> None:
    theta = normals(4, 5).requires_grad_()
    q = Independent(Bernoulli(logits=theta), 1)
    options = {"x": q.sample((3,))}
    variables = getattr(E, "variables", None)
    if variables is not None:
        options["noise"] = torch.rand(3, 4, 5).argsort(-1)[..., :variables]

    def f(z: Tensor) -> Tensor:
        return (z @ torch.arange(1.0, 6.0, dtype=z.dtype)).sin()

    indecater = catlog.IndeCateR(3, variables=variables, control="none")
    assert_same(E(f, q, **options), indecater(f, q, **options), theta, rtol=0, atol=1e-12)


def test_ram_is_scater_with_common_gumbels() -> None:
    case = STRUCTURED_CASES["recurrent, network(x, i)"]
    q = case.distribution(case.theta)
    estimators = RAM(4), catlog.SCateR(4, suffix="gumbel")
    assert torch.equal(*(E(function(TABLE), q, generator=seeded()) for E in estimators))


def variance(E: catlog.Estimator, case: StructuredCase, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the exact variance over draws, per parameter."""
    q = case.distribution(case.theta)
    if isinstance(E, catlog.SCateR):
        every = interventions(E, q)
        weight, options = every.weight, every.options
    else:
        weight, options = case.probabilities(case.theta), {"x": case.points.unsqueeze(0)}
    theta = case.theta.clone().requires_grad_()
    values = E(f, case.distribution(theta).expand([len(weight)]), **options)
    rows = torch.stack([with_gradients(value, theta)[1] for value in values])
    mean = (weight[:, None] * rows).sum(0)
    return (weight[:, None] * (rows - mean).square()).sum(0)


@pytest.mark.parametrize("seed", range(3))
def test_variance_at_most_reinforce_for_parameters_of_one_factor(seed: int) -> None:
    """The paper's corollary: a chain with a separate table per step, and the DAG with a block."""
    separate = case_of(normals(10), lambda t: MarkovChain(t[:2], t[2:].view(2, 2, 2)))
    f = function(normals(4, 4, 4, 4, seed=10 + seed))
    scater, reinforce = (variance(E, separate, f) for E in (catlog.SCateR(1), catlog.Reinforce(1)))
    assert (scater <= reinforce + 1e-12).all()
    assert scater.sum() < 0.9 * reinforce.sum()


def test_the_corollary_fails_for_shared_parameters() -> None:
    """Two independent bits on one logit, f = XOR: REINFORCE has no variance, SCateR has."""

    def law(theta: Tensor) -> Ordered:
        logits = torch.stack([torch.zeros_like(theta[0]), theta[0]])
        return BayesianNetwork({"a": Node([], logits), "b": Node(["a"], logits.expand(2, 2))})

    case = case_of(zeros(1, dtype=torch.float64), law)

    def xor(x: Tensor) -> Tensor:
        return (x[..., 0] != x[..., 1]).double()

    assert variance(catlog.Reinforce(1), case, xor) < 1e-20
    expected = torch.tensor([0.125], dtype=torch.float64)
    assert_close(variance(catlog.SCateR(1, suffix="common"), case, xor), expected)


def test_conditional_calls_and_evaluations_as_promised() -> None:
    """Rows: the base and every move of an earlier variable; f once per row."""
    calls: list[int] = []
    evaluated = 0
    sizes = [3, 2, 4]

    def network(x: Tensor, i: int) -> Tensor:
        calls.append(len(x))
        return zeros(*x.shape[:-1], sizes[i])

    def f(x: Tensor) -> Tensor:
        nonlocal evaluated
        evaluated += len(x)
        return x.sum(-1).float()

    # Without the calls that look for a network's mistakes.
    q, E = Autoregressive(network, sizes, validate_args=False), catlog.SCateR(5)
    E(f, q)
    assert evaluated == E.evaluations(q) == 5 * (1 + 2 + 1 + 3)
    assert calls[:3] == [5 * 1, 5 * (1 + 2), 5 * (1 + 2 + 1)]  # the sweep
    assert calls[3:] == [5, 5, 5]  # the differentiable pass at the base draws


def test_only_descendants_are_drawn_again() -> None:
    rows: dict[str, int] = {}

    def counted(name: str, k: int) -> Callable[[Tensor], Tensor]:
        def network(parents: Tensor) -> Tensor:
            rows.setdefault(name, len(parents))  # the sweep comes first
            return zeros(*parents.shape[:-1], k)

        return network

    q = BayesianNetwork(
        {
            "a": Node([], counted("a", 3), cardinality=3),
            "b": Node([], counted("b", 4), cardinality=4),
            "c": Node(["b"], counted("c", 2), cardinality=2),
        }
    )
    catlog.SCateR(1)(lambda x: x.sum(-1).float(), q)
    assert rows == {"a": 1, "b": 1, "c": 1 + 3}  # c for the base and three other values of b


def test_fixed_nodes_get_no_interventions() -> None:
    """A known environment between learned choices: half the evaluations."""
    theta = STRUCTURED_CASES["network with a known node"].theta
    assert catlog.SCateR(1).evaluations(choices(theta)) == 3
    assert catlog.SCateR(1).evaluations(choices(theta, fixed=False)) == 5


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


class Contexts:
    """A recurrent network that holds 32 contexts."""

    def start(self, lead: torch.Size) -> Tensor:
        return zeros(32, 3).expand(*lead, 3)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        return state, state


BAD = {
    "cycle, a -> b -> a": lambda: BayesianNetwork(
        {"a": Node(["b"], zeros(2, 2)), "b": Node(["a"], zeros(2, 2))}
    ),
    "parent 'z' of node 'a'": lambda: BayesianNetwork({"a": Node(["z"], zeros(2, 2))}),
    r"node 'b' must have shape \(3, 2\).*\(2, 2\) was given": lambda: BayesianNetwork(
        {"a": Node([], zeros(3)), "b": Node(["a"], zeros(2, 2))}
    ),
    "'a' is a network; give its `cardinality`": lambda: BayesianNetwork(
        {"a": Node([], lambda x: x)}
    ),
    r"`transition` must have shape .*\(2, 2\) was given": lambda: MarkovChain(
        zeros(3), zeros(2, 2), length=4
    ),
    r"`transition` must have shape \[3, 3\], \[4, 3, 3\] or \[4, 2, 3, 3\].*"
    r"\(2, 3, 3\) was given": lambda: MarkovChain(zeros(4, 3), zeros(2, 3, 3), length=3),
    r"`emission` must have shape \[\*batch, 3, o\].*\(2, 3, 5\) was given": lambda: MarkovChain(
        zeros(4, 3), zeros(3, 3), length=3, emission=zeros(2, 3, 5)
    ),
    r"`initial` must have shape \[\*batch, k\]": lambda: MarkovChain(
        zeros(()), zeros(2, 2), length=2
    ),
    "`length` is needed": lambda: MarkovChain(zeros(2), zeros(2, 2)),
    r"conditional of variable 0 must return logits of shape \(1, 1, 3\), "
    r"but it returned \(1, 1, 5\)": Autoregressive(
        lambda x, i: zeros(*x.shape[:-1], 5), [3, 3]
    ).sample,
    "q: start of the network failed .* dimensions .*= \\(2,\\).* `batch_shape=`.* error was "
    "RuntimeError: .*32": lambda: Autoregressive(Contexts(), [3, 3]).sample((2,)),
    "q: start of the network failed .* `batch_shape=`": Autoregressive(Contexts(), [3, 3]).check,
    r"must return logits of shape \(1, 1, 3\), but it returned \(32, 1, 3\)\. .*`batch_shape="
    "": Autoregressive(lambda x, i: zeros(32, 3) + x[..., :1], [3, 3]).sample,
    r"network\(x, i\) of the network failed .* `batch_shape=`": lambda: Autoregressive(
        lambda x, i: zeros(32, 3) + x[..., :1], [3, 3]
    ).sample((2,)),
    "conditional of variable 0 has no valid probabilities": lambda: Autoregressive(
        lambda x, i: torch.full((*x.shape[:-1], 3), torch.nan), [3, 3]
    ).sample(),
    r"all_logits must return shape \(1, 2, 3\)": lambda: Autoregressive(
        type("Net", (), {"all_logits": lambda self, x: zeros(*x.shape, 2)})(), [3, 3]
    ).log_prob(torch.tensor([0, 1])),
    r"q cannot draw: \[1, 0\]": lambda: catlog.SCateR(1)(
        lambda x: x.sum(-1).float(),
        MarkovChain(torch.tensor([0.0, -torch.inf]), zeros(2, 2), length=2),
        x=torch.tensor([[1, 0]]),
    ),
    r"Use an estimator whose `supports` names \"structured\"": lambda: catlog.IndeCateR(1)(
        lambda x: x.sum(-1).float(), chain(zeros(6))
    ),
    r"MarkovChain: `initial` must be a tensor \[\*batch, k\], but list was given": lambda: (
        MarkovChain([0.0, 0.0], zeros(2, 2), length=2)
    ),
    "MarkovChain: `transition` must be a tensor .* list was given": lambda: MarkovChain(
        zeros(2), [[0.0]], length=2
    ),
    "MarkovChain: `emission` must be a tensor .* list was given": lambda: MarkovChain(
        zeros(2), zeros(2, 2), length=2, emission=[0.0]
    ),
    r"MarkovChain: `initial` must have shape \[\*batch, k\] with k of at least 1.*\(0,\)": lambda: (
        MarkovChain(zeros(0), zeros(0, 0), length=2)
    ),
    "LinearChainCRF: `unary` must be a tensor .* list was given": lambda: LinearChainCRF(
        [[0.0]], zeros(2, 2)
    ),
    "LinearChainCRF: `pairwise` must be a tensor .* list was given": lambda: LinearChainCRF(
        zeros(2, 2), [[0.0]]
    ),
    "BayesianNetwork: `nodes` must be a dict .* but list was given": lambda: BayesianNetwork(
        [Node([], zeros(2))]
    ),
    "BayesianNetwork: `nodes` must be a dict .* but Tensor was given": lambda: BayesianNetwork(
        {"a": zeros(2)}
    ),
    r"node 'wet': `parents` must be a list of names.* Pass \['rain'\]": lambda: BayesianNetwork(
        {"rain": Node([], zeros(2)), "wet": Node("rain", zeros(2, 2))}
    ),
    "node 'a': `size` must be at least 1, but 0": lambda: BayesianNetwork(
        {"a": Node([], zeros(2), size=0)}
    ),
    "node 'a': `cardinality` must be at least 1, but 0": lambda: BayesianNetwork(
        {"a": Node([], lambda x: x, cardinality=0)}
    ),
    r"node 'a': `logits` must have the categories in their last dimension.*"
    r"\(\) was given": lambda: BayesianNetwork({"a": Node([], zeros(()))}),
    "node 'a': `logits` must be a tensor or a network, but NoneType was given": lambda: (
        BayesianNetwork({"a": Node([], None)})
    ),
    r"`batch_shape` must be a tuple of sizes, but 3 was given\. Pass \(3,\)": lambda: (
        BayesianNetwork({"a": Node([], zeros(3, 2))}, 3)
    ),
    r"Autoregressive: `batch_shape` must be a tuple of sizes, but 3 was given": lambda: (
        Autoregressive(lambda x, i: x, [2], 3)
    ),
    "node 'a': `cardinality` must be that of its table, 2, but it is 3": lambda: BayesianNetwork(
        {"a": Node([], zeros(2), cardinality=3)}
    ),
    r"Categoricals: `cardinalities` must be a list of ints.* but \[2.5, 2\]": lambda: Categoricals(
        zeros(2, 3), [2.5, 2]
    ),
    "Categoricals: `cardinalities` must be a list of ints.* but 2 was given": lambda: Categoricals(
        zeros(2, 3), 2
    ),
    r"`cardinalities` must be a list of ints.* but 3 was given.*\[k\] \* d": lambda: Autoregressive(
        lambda x, i: x, 3
    ),
    "Autoregressive: `network` must be a function .* but NoneType was given": lambda: (
        Autoregressive(None, [3, 3])
    ),
    "`temperature` must be positive": lambda: Autoregressive(
        lambda x, i: x, [3], temperature=torch.tensor(torch.inf)
    ),
    r"MarkovChain: `batch_shape` must be one that \(3,\) expands to, but it is \(4,\)": lambda: (
        MarkovChain(zeros(3, 2), zeros(2, 2), length=2).expand((4,))
    ),
    r"Subset: `batch_shape` must be one that \(3,\) expands to, but it is \(\)": lambda: Subset(
        zeros(3, 2), 1
    ).expand(()),
    "Categoricals: `logits` must be a list of tensors.* but str was given": lambda: Categoricals(
        "abc"
    ),
    r"Categoricals: `logits` must be a tensor \[\*batch, k_i\] .* but list was given": lambda: (
        Categoricals([[0.0, 1.0]])
    ),
    r"k_i of at least 1, but \[\(0,\), \(3,\)\] were given": lambda: Categoricals(
        [zeros(0), zeros(3)]
    ),
    r"Prompted: `prompts` must be a tensor \[\*batch, p\] of tokens, but list was given": lambda: (
        Prompted(lambda *arguments: None, [[1]])
    ),
    r"noise: a tensor of shape \(4, 1, 3\) comes next": lambda: catlog.SCateR(1)(
        lambda x: x.sum(-1).float(), chain(zeros(6)), noise=zeros(2, 3)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        BAD[message]()


def test_a_device_is_a_name_and_cardinalities_come_from_an_iterator() -> None:
    def network(x: Tensor, i: int = 0) -> Tensor:
        return zeros(*x.shape[:-1], 2)

    for q in (
        Autoregressive(network, iter([2, 2]), device="cpu"),
        BayesianNetwork({"a": Node([], network, cardinality=2, size=1)}, device="cpu"),
    ):
        assert q.device == torch.device("cpu")
        catlog.RLOO(2)(lambda x: x.float().sum(-1), q, generator=seeded())
    assert Autoregressive(network, iter([2, 2])).event_shape == (2,)


class _Tables(torch.nn.Module):
    """1,000 categories at each of two places, without a product, which not every CPU can do."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x: Tensor, i: int) -> Tensor:
        logits = self.logits[i].expand(*x.shape[:-1], self.logits.shape[-1])
        return logits if i == 0 else logits * (1 + x[..., :1] % 2)


def narrow_laws(theta: Tensor) -> dict[str, tuple[Tensor, Ordered]]:
    """Return by name the parameter and a distribution of two variables with logits ``theta``."""
    k = theta.shape[-1]
    leaves = [theta.clone().requires_grad_() for _ in range(2)]
    network = _Tables(theta.clone())
    chain = MarkovChain(leaves[0][0], leaves[0][1].expand(k, k), length=2)
    nodes = {"a": Node([], leaves[1][0]), "b": Node(["a"], leaves[1][1].expand(k, k))}
    return {
        "MarkovChain": (leaves[0], chain),
        "BayesianNetwork": (leaves[1], BayesianNetwork(nodes)),
        "Autoregressive": (network.logits, Autoregressive(network, [k, k])),
    }


NARROW = [
    *(E for E in estimators() if "structured" in E.values[0].supports),
    pytest.param(catlog.SCateR(2, suffix="common"), id="SCateR common"),
    pytest.param(catlog.SCateR(2, suffix="gumbel"), id="SCateR gumbel"),
    pytest.param(catlog.SCateR(2, categories=1), id="SCateR categories"),
    pytest.param(catlog.SCateR(2, variables=1, suffix="common"), id="SCateR variables common"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
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
    theta = normals(2, 5).to(dtype)
    for name in narrow_laws(theta):
        results = []
        for number_type in (dtype, torch.float32):
            leaf, q = narrow_laws(theta.to(number_type))[name]
            generator = seeded()
            value = deepcopy(E)(
                lambda x: (x * torch.tensor([1.0, 3.0])).sum(-1).sin(), q, generator=generator
            )
            results.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
        (value, gradient), (wide, exact) = results
        assert value.dtype == torch.float32
        # A network's own arithmetic is in the narrow type; tables are not.
        is_network = name == "Autoregressive"
        rounding = (4 if is_network else 1) * torch.finfo(dtype).eps
        of_value = rounding if is_network else 1e-6
        assert_close(value, wide, rtol=of_value, atol=of_value)
        atol = rounding * exact.abs().max().item() + 1e-7
        assert_close(gradient.float(), exact, rtol=rounding, atol=atol)
    assert made <= {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_one_of_1000_categories_is_drawn_in_narrow_types(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniforms at the middles of 1,000 cells draw every category of both variables once."""
    cells = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000

    def grid(shape: tuple[int, ...], dtype: torch.dtype, **options: object) -> Tensor:
        return cells.to(dtype).view(-1, 1).expand(shape).clone()

    theta = zeros(2, 1000, dtype=dtype)
    for name, (_, q) in narrow_laws(theta).items():
        cdf = q.log_conditionals(zeros(1, 2, dtype=torch.int64)).exp().cumsum(-1)
        assert [len(values.unique()) for values in cdf[0]] == [1000, 1000], name
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", grid)
            drawn = [q.sample((1000,))]
            catlog.RLOO(1000)(lambda x: (drawn.append(x), x[..., 0].float())[1], q)  # noqa: B023
        for x in drawn:
            assert x.shape == (1000, 2)
            assert all(len(x[:, i].unique()) == 1000 for i in range(2)), name


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


@pytest.mark.parametrize(
    "E", [catlog.RLOO(2), catlog.Reinforce(1), LEG(1), catlog.Exact()], ids=str
)
def test_the_entropy_bonus_of_the_docstring(E: catlog.Estimator) -> None:
    """E(-log q, detached) has the entropy's gradient; the mean of -log q over draws has none."""
    for name in ("chain", "recurrent, step", "network with a block"):
        case = STRUCTURED_CASES[name]
        theta = case.theta.clone().requires_grad_()
        entropy = case.distribution(theta).entropy()
        (wanted,) = torch.autograd.grad(entropy, theta)
        q, probs = case.distribution(theta), case.probabilities(case.theta)
        if isinstance(E, catlog.Exact):
            total = E(lambda x: -q.log_prob(x).detach(), q)  # noqa: B023
        else:
            draws = independent_draws(case.points, probs, E.samples)
            wide = q.expand([len(draws.weight)])
            value = E(lambda x, q=wide: -q.log_prob(x).detach(), wide, **draws.options)
            total = (draws.weight * value).sum()
        close((total.detach(), torch.autograd.grad(total, theta)[0]), (entropy.detach(), wanted))
        (none,) = torch.autograd.grad((probs * -q.log_prob(case.points)).sum(), theta)
        assert none.abs().max() < 1e-12 < wanted.abs().max()


class Letters(torch.nn.Module):
    """A sequence model by a masked matrix: row i of the logits depends on x before i, if sound."""

    def __init__(self, seen: str = "earlier", stepped: str = "right", dropout: float = 0.0) -> None:
        super().__init__()
        d, k = 5, 3
        self.weight = torch.nn.Parameter(normals(d, k, d, k, seed=3))
        mask = torch.ones(d, d).tril({"earlier": -1, "own": 0, "all": d}[seen])
        self.register_buffer("mask", mask.double().view(d, 1, d, 1))
        self.stepped, self.drop = stepped, torch.nn.Dropout(dropout)

    def all_logits(self, x: Tensor) -> Tensor:
        letters = torch.nn.functional.one_hot(x, 3).double()
        return self.drop(torch.einsum("...jl,ikjl->...ik", letters, self.weight * self.mask))

    def start(self, lead: torch.Size) -> Tensor:
        return zeros(*lead, 5, 3, dtype=torch.float64)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is not None:
            letter = torch.nn.functional.one_hot(previous, 3).double()
            weight = (self.weight * self.mask)[:, :, i - 1]
            state = state + torch.einsum("...l,ikl->...ik", letter, weight)
        row = state[..., i, :] if self.stepped == "right" else state[..., i, :] * 0.9
        return row, state


BROKEN = {
    "no mask": (lambda: Letters("all"), "change when .* A causal mask is missing"),
    "mask shifted by one": (lambda: Letters("own"), "change when .* shifted by one"),
    "another step": (
        lambda: Letters(stepped="wrong"),
        "step and all_logits of the network disagree on variable 1",
    ),
    "dropout": (lambda: Letters(dropout=0.5), r"two rows that hold the same point.*eval\(\)"),
    "a look ahead": (
        lambda: lambda x, i: torch.stack([x[..., -1] * 1.0, x[..., 0] * 0.3, x[..., 1] * 0.0], -1),
        "logits of variable 0 change when variables 0 to 4 change",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(
    "use",
    [
        lambda q: q.log_prob(q.sample()),
        lambda q: catlog.RLOO(2)(lambda x: x.double().sum(-1), q),
        lambda q: catlog.SCateR(1)(lambda x: x.double().sum(-1), q.expand([2])),
    ],
    ids=["log_prob", "RLOO", "SCateR"],
)
def test_networks_that_are_not_autoregressive_raise_an_error(
    name: str, use: Callable[[Ordered], Tensor]
) -> None:
    make, message = BROKEN[name]
    Autoregressive._uses.clear()
    # torch.compile switches the default off.
    q = Autoregressive(make(), [3] * 5, validate_args=True)
    with pytest.raises(ValueError, match=message):
        use(q)


def test_sound_networks_pass() -> None:
    """Every form, contexts, one variable or category, dropout in eval mode, masked letters."""
    Autoregressive._uses.clear()
    for network in (Letters(), Letters(dropout=0.5).eval()):
        q = Autoregressive(network, [3] * 5, validate_args=True)
        for _ in range(3):
            assert q.expand([4]).log_prob(q.sample((2, 4))).shape == (2, 4)
    context = normals(4, 3)

    def network(x: Tensor, i: int) -> Tensor:
        count = torch.nn.functional.one_hot(x[..., :i], 3).sum(-2)
        return (context - count).masked_fill(count > 1, -torch.inf)  # no letter a third time

    q = Autoregressive(network, [3] * 6, (4,), dtype=torch.float64, validate_args=True)
    assert q.log_prob(q.sample((7,))).isfinite().all()
    for sizes in ([1], [1, 1], [3], [2, 1, 3]):
        q = Autoregressive(
            lambda x, i, sizes=sizes: zeros(*x.shape[:-1], sizes[i]), sizes, validate_args=True
        )
        assert q.log_prob(q.sample()).shape == ()


def test_a_network_that_learns_to_look_ahead_is_caught_later() -> None:
    """Its last layer begins at zero, so that nothing shows at first."""
    network = Letters("all")
    weight = network.weight.data.clone()
    network.weight.data.zero_()
    q = Autoregressive(network, [3] * 5, validate_args=True)
    for _ in range(7):
        q.log_prob(zeros(5, dtype=torch.int64))
    network.weight.data.copy_(weight)
    with pytest.raises(ValueError, match="causal mask"):
        q.log_prob(zeros(5, dtype=torch.int64))


def test_the_check_is_skipped_where_python_may_not_look() -> None:
    """Without validation and inside transforms; and repeats are rare."""
    broken = Letters("all")
    x = zeros(5, dtype=torch.int64)
    q = Autoregressive(broken, [3] * 5, validate_args=False)
    q.log_prob(x)
    catlog.RLOO(2)(lambda x: x.double().sum(-1), q)
    q = Autoregressive(broken, [3] * 5, validate_args=True)

    def log_prob(weight: dict[str, Tensor]) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(broken, weight):
            return q.log_prob(x)

    torch.func.grad(log_prob)({"weight": broken.weight.detach()})
    sound, calls = Letters(), 0
    counted = sound.all_logits

    def all_logits(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return counted(x)

    sound.all_logits = all_logits  # type: ignore[method-assign]
    for _ in range(100):  # of these, 1, 2, 3, 4, 8, 16, 32 and 64
        Autoregressive(sound, [3] * 5, validate_args=True).log_prob(x)
    assert calls == 108


def test_networks_are_always_called_with_rows() -> None:
    """The Policy of docs/policies.md needs a leading dimension, as documented."""
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(next(block for block in blocks if "class Policy" in block), names)
    q = names["q"]
    assert isinstance(q, Autoregressive)
    assert q.log_prob(q.sample()).shape == ()
    assert q.log_prob(q.sample((2, 3))).shape == (2, 3)
    f = lambda x: (x == 3).float().mean(-1)  # noqa: E731
    assert len(catlog.compare(f, q, [catlog.RLOO(4), catlog.SCateR(1)], repeats=4).rows) == 2
    catlog.advise(f, q, budget=50)
    leads: set[int] = set()

    def network(x: Tensor, i: int) -> Tensor:
        leads.add(x.dim())
        return zeros(*x.shape[:-1], 2)

    q = Autoregressive(network, [2, 2], (3,))
    q.log_prob(q.sample())
    q.log_prob(zeros(2, dtype=torch.int64))
    q.entropy()
    node = Node([], lambda parents: network(parents, 0), cardinality=2)
    BayesianNetwork({"a": node}, (3,)).log_prob(zeros(1, dtype=torch.int64))
    assert leads == {3}


@pytest.mark.parametrize("E", NARROW)
def test_fixed_nodes_alone(E: catlog.Estimator) -> None:
    """q has nothing to learn; value and gradient of f itself are right."""
    q = BayesianNetwork(
        {"a": Node([], normals(2), fixed=True), "b": Node(["a"], normals(2, 3, seed=1), fixed=True)}
    )
    slope = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    value = deepcopy(E)(lambda x: slope * (2 + 0 * x.sum(-1)), q)
    assert_close(value.detach(), torch.tensor(3.0, dtype=torch.float64))
    assert_close(torch.autograd.grad(value, slope)[0], torch.tensor(2.0, dtype=torch.float64))
    if isinstance(E, catlog.SCateR | RAM) and getattr(E, "variables", None) is None:
        seen: list[Tensor] = []
        value = E(lambda x: (seen.append(x), x.double().sum(-1))[1], q)
        assert E.evaluations(q) == sum(map(len, seen)) == E.samples
        assert value == seen[0].double().sum(-1).mean()


def test_a_table_for_all_batch_elements() -> None:
    """Batched initial, one transition and one emission: as if both were expanded."""
    initial, transition, emission = normals(4, 3), normals(3, 3, seed=1), normals(3, 2, seed=2)
    q = MarkovChain(initial, transition, length=3, emission=emission)
    wide = MarkovChain(
        initial, transition.expand(4, 3, 3), length=3, emission=emission.expand(4, 3, 2)
    )
    x = q.sample((6,))
    assert x.shape == (6, 4, 6)
    assert torch.equal(q.log_prob(x), wide.log_prob(x))
    assert_close(q.entropy(), wide.entropy())
    assert_close(q.entropy(), Ordered.entropy(q))
    for E in (catlog.SCateR(2), catlog.RLOO(2)):
        values = [E(lambda x: x.double().sum(-1), law, generator=seeded()) for law in (q, wide)]
        assert torch.equal(*values)
    assert MarkovChain(normals(2, 4, 3), transition, length=2).sample().shape == (2, 4, 2)


@pytest.mark.parametrize("E", NARROW)
def test_impossible_categories_are_not_shown_and_get_no_gradient(E: catlog.Estimator) -> None:
    """Parameters that hold -inf: a certain start, some impossible steps and one certain step."""
    no = -torch.inf
    start = torch.tensor([no, 0.4, no], dtype=torch.float64, requires_grad=True)
    rows = [[0.0, no, 1.0], [0.3, no, 0.2], [no, no, 0.7]]
    step = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    q = MarkovChain(start, step, length=3)
    points = torch.cartesian_prod(*[torch.arange(3)] * 3)
    possible = set(map(tuple, points[q.log_prob(points) > no].tolist()))
    assert 1 < len(possible) < 27
    table = normals(3, 3, 3, seed=5)

    def f(x: Tensor) -> Tensor:
        assert all(tuple(point) in possible for point in x.flatten(0, -2).tolist())
        return table[tuple(x.unbind(-1))] + 10

    for seed in range(5):
        value = deepcopy(E)(f, q, generator=seeded(seed))
        gradients = torch.autograd.grad(value, [start, step])
        for leaf, gradient in zip((start, step), gradients, strict=True):
            assert gradient.isfinite().all()
            certain = (leaf == no) | ((leaf > no).sum(-1, keepdim=True) == 1)
            assert gradient[certain].abs().max() < 1e-12
    if isinstance(E, catlog.Exact):
        finite = [
            torch.where(leaf > no, leaf, -800.0).detach().requires_grad_() for leaf in (start, step)
        ]
        wide = MarkovChain(*finite, length=3)
        expected = torch.autograd.grad(
            (wide.log_prob(points).exp() * (table[tuple(points.unbind(-1))] + 10)).sum(), finite
        )
        close(torch.autograd.grad(E(f, q), [start, step]), expected)


def test_float32_of_a_long_chain() -> None:
    """Rounding errors of the steps do not add up: a few units of 6e-8 per term remain."""
    initial, transition = normals(5), normals(5, 5, seed=1)
    exact = MarkovChain(initial, transition, length=8000)
    q = MarkovChain(initial.float(), transition.float(), length=8000)
    assert_close(q.entropy().double(), exact.entropy(), rtol=5e-6, atol=0)
    assert_close(q.marginals().double(), exact.marginals(), rtol=0, atol=1e-6)


MAPPED: dict[str, Callable[[Tensor], Ordered]] = {
    "chain": chain,
    "network": lambda theta: BayesianNetwork(
        {
            "a": Node([], theta[:2]),
            "b": Node(["a"], theta[2:].view(2, 1, 2).expand(2, 2, 2), size=2),
        }
    ),
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

    def value(theta: Tensor) -> Tensor:
        return E(lambda x: x.double().cos().sum(-1), MAPPED[name](theta))

    gradient = torch.func.grad(value)

    rows = []
    for theta in thetas:
        torch.manual_seed(0)
        rows.append(gradient(theta))
    torch.manual_seed(0)
    mapped = torch.func.vmap(gradient, randomness="same")(thetas)
    assert_close(mapped, torch.stack(rows), rtol=1e-12, atol=1e-12)
    different = torch.func.vmap(gradient, randomness="different")(thetas[:1].expand(20, 6))
    assert len(different.unique(dim=0)) > 1


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_of_samples(name: str) -> None:
    sample = torch.func.vmap(lambda theta: MAPPED[name](theta).sample((3,)), randomness="different")
    x = sample(normals(4, 6))
    assert x.shape[:2] == (4, 3)
    for theta, points in zip(normals(4, 6), x, strict=True):
        assert MAPPED[name](theta).log_prob(points).isfinite().all()
