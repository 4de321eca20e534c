"""Subset, PlackettLuce and LinearChainCRF beside brute force.

The brute force lists all points with Python's itertools and adds up their weights; it shares no
code with the distributions. tests/distributions/test_structured.py, tests/estimators/sets and
tests/estimators/test_compile.py judge the estimators on them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import catlog
from catlog.distributions import Ordered, gumbel_top_k
from catlog.distributions.bit_counts import SuffixCounts, flow
from catlog.distributions.bit_counts import marginals as marginals_of_bits
from catlog.testing import z_limit
from catlog.testing.settings import estimators

FALSE_ALARMS = 1e-6  # of one chi-square test
DRAWS = 100_000


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def subset_weights(theta: Tensor, k: int, mask: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return all subsets of the items outside ``mask``, and their log-weights."""
    points = [
        x
        for x in product((0, 1), repeat=theta.shape[-1])
        if sum(x) == k and not any(x[i] for i in mask)
    ]
    table = torch.tensor(points)
    return table, (theta.masked_fill(theta == -torch.inf, 0.0) * table).sum(-1)


def ranking_weights(theta: Tensor, k: int, mask: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return all rankings of the items outside ``mask``, and their log-probabilities."""
    items = [i for i in range(theta.shape[-1]) if i not in mask]
    points = list(permutations(items, k))
    weights = []
    for point in points:
        rest = list(items)
        total = theta.new_zeros(())
        for item in point:
            total = total + theta[item] - theta[rest].logsumexp(0)
            rest.remove(item)
        weights.append(total)
    return torch.tensor(points), torch.stack(weights)


def path_weights(unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """Return all paths of positive weight, and their log-weights."""
    length, k = unary.shape
    points, weights = [], []
    for path in product(range(k), repeat=length):
        weight = sum(unary[t, z] for t, z in enumerate(path))
        for t in range(1, length):
            table = pairwise if pairwise.dim() == 2 else pairwise[t - 1]
            weight = weight + table[path[t - 1], path[t]]
        if weight > -torch.inf:
            points.append(path)
            weights.append(weight)
    return torch.tensor(points), torch.stack(weights)


@dataclass(frozen=True)
class Case:
    """A distribution and its brute force: points and log-weights, from the same parameters."""

    name: str
    theta: Tensor
    distribution: Callable[[Tensor], Ordered]
    weights: Callable[[Tensor], tuple[Tensor, Tensor]]


def crf(theta: Tensor) -> tuple[Tensor, Tensor]:
    return theta[:9].view(3, 3), theta[9:].view(3, 3)


def crf_by_step(theta: Tensor) -> tuple[Tensor, Tensor]:
    return theta[:6].view(3, 2), theta[6:].view(2, 2, 2)


def crf_of_one(theta: Tensor) -> tuple[Tensor, Tensor]:
    return theta[:3].view(1, 3), theta[3:].view(3, 3)


def crf_with_rules(theta: Tensor) -> tuple[Tensor, Tensor]:
    """State 0 never follows state 2, state 1 is impossible at the end, state 2 has no future."""
    unary, pairwise = crf(theta)
    forbidden = torch.zeros(3, 3, dtype=torch.bool)
    forbidden[2, 0] = forbidden[2, 2] = True
    ruled_out = torch.zeros(3, 3, dtype=torch.bool)
    ruled_out[2, 1] = True
    return unary.masked_fill(ruled_out, -torch.inf), pairwise.masked_fill(forbidden, -torch.inf)


def crf_cases(name: str, size: int, parts: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Case]:
    return [
        Case(
            f"crf {name}{label}",
            scale * normals(size).clamp(-1, 1),
            lambda t: catlog.LinearChainCRF(*parts(t)),
            lambda t: path_weights(*parts(t)),
        )
        for scale, label in ((1.0, ""), (80.0, ", extreme"))
    ]


def item_cases(k: int, d: int) -> list[Case]:
    """Return subsets and rankings of k of d items; those with a mask lack item 1."""
    mask = torch.arange(d) != 1
    makers = {"subset": (lambda t: catlog.Subset(t, k), lambda t: subset_weights(t, k))}
    if k > 0:
        makers["ranking"] = (
            lambda t: catlog.PlackettLuce(t, k),
            lambda t: ranking_weights(t, k),
        )
    if 0 < k < d:
        makers["masked subset"] = (
            lambda t: catlog.Subset(t, k, mask),
            lambda t: subset_weights(t, k, (1,)),
        )
        makers["masked ranking"] = (
            lambda t: catlog.PlackettLuce(t, k, mask),
            lambda t: ranking_weights(t, k, (1,)),
        )
        makers["subset with a logit of -inf"] = (
            lambda t: catlog.Subset(t.masked_fill(~mask, -torch.inf), k),
            lambda t: subset_weights(t, k, (1,)),
        )
    return [
        Case(f"{name}, {k} of {d}{label}", scale * normals(d).clamp(-1, 1), *functions)
        for scale, label in ((1.0, ""), (80.0, ", extreme"))
        for name, functions in makers.items()
    ]


CASES = {
    case.name: case
    for case in [
        *(
            case
            for k, d in ((0, 4), (1, 4), (2, 5), (4, 4), (1, 1), (0, 1), (3, 4))
            for case in item_cases(k, d)
        ),
        *crf_cases("of three steps", 18, crf),
        *crf_cases("with a table per step", 14, crf_by_step),
        *crf_cases("of one step", 12, crf_of_one),
        *crf_cases("with rules", 18, crf_with_rules),
    ]
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def one_hot_mean(points: Tensor, probs: Tensor, size: int) -> Tensor:
    return (torch.nn.functional.one_hot(points, size) * probs[:, None, None]).sum(0)


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=atol)


@each_case
def test_log_prob_is_that_of_brute_force(case: Case) -> None:
    """Over the whole grid of points: those that brute force does not list have probability zero."""
    q = case.distribution(case.theta)
    points, weights = case.weights(case.theta)
    log_probs = weights.log_softmax(0)
    close(q.log_prob(points), log_probs)
    close(Ordered.log_prob_of_rows(q, points), log_probs)
    grid = torch.tensor(list(product(*(range(size) for size in q.cardinalities))))
    everywhere = q.log_prob(grid)
    assert not everywhere.isnan().any()
    assert int((everywhere > -torch.inf).sum()) == len(points)
    close(everywhere.exp().sum(), torch.ones((), dtype=torch.float64))
    close(Ordered.log_prob_of_rows(q, grid).exp(), everywhere.exp())
    listed = q.enumerate_support()
    assert len(listed) == q.points
    close(q.log_prob(listed).exp().sum(), torch.ones((), dtype=torch.float64))


@each_case
def test_entropy_and_marginals_are_those_of_brute_force(case: Case) -> None:
    """With their gradients, and the gradient of a log-probability."""
    weighted = normals(40, seed=3)
    results = []
    for brute in (False, True):
        theta = case.theta.clone().requires_grad_()
        q = case.distribution(theta)
        if brute:
            points, weights = case.weights(theta)
            log_probs = weights.log_softmax(0)
            entropy = -(log_probs.exp() * log_probs).sum()
            marginals = one_hot_mean(points, log_probs.exp(), max(q.cardinalities))
        else:
            points, _ = case.weights(case.theta)
            log_probs = q.log_prob(points)
            entropy, marginals = q.entropy(), q.marginals()
        total = (marginals.flatten() * weighted[: marginals.numel()]).sum()
        numbers = [entropy, marginals, log_probs]
        gradients = [
            torch.autograd.grad(value, theta, retain_graph=True)[0]
            for value in (entropy, total, log_probs[0])
        ]
        results.append([*numbers, *gradients])
    for got, wanted in zip(*results, strict=True):
        close(got.detach(), wanted.detach())


def p_value(counts: Tensor, probs: Tensor) -> float:
    """Return the p-value of Pearson's chi-square test; rare points are one class."""
    is_rare = probs * counts.sum() < 10
    counts = torch.cat([counts[~is_rare], counts[is_rare].sum(0, keepdim=True)])
    expected = torch.cat([probs[~is_rare], probs[is_rare].sum(0, keepdim=True)]) * counts.sum()
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) < 2:
        return 1.0
    statistic = ((counts - expected).square() / expected).sum()
    half = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2))


def tally(x: Tensor, points: Tensor) -> Tensor:
    """Return how often every point was drawn; points that are not listed raise an error."""
    counts = torch.stack([(x == point).all(-1).sum() for point in points]).double()
    assert counts.sum() == len(x), "an impossible point was drawn"
    return counts


MODERATE = {name: case for name, case in CASES.items() if "extreme" not in name}


@pytest.mark.parametrize("name", MODERATE)
def test_samples_by_chi_square(name: str) -> None:
    """Three ways to draw: ``sample``, an estimator's uniforms, and the base class's sweep."""
    case = MODERATE[name]
    q = case.distribution(case.theta)
    points, weights = case.weights(case.theta)
    torch.manual_seed(0)
    u = torch.rand(DRAWS, len(q.cardinalities), dtype=torch.float64)
    for x in (q.sample((DRAWS,)), q.from_uniforms(u), Ordered.from_uniforms(q, u)):
        assert p_value(tally(x, points), weights.softmax(0)) > FALSE_ALARMS
    torch.testing.assert_close(q.from_uniforms(u), Ordered.from_uniforms(q, u))


def test_the_chi_square_test_tells_gumbel_top_k_from_a_subset() -> None:
    """Its power: the two distributions differ by a few percent."""
    case = CASES["subset, 2 of 5"]
    points, weights = case.weights(case.theta)
    torch.manual_seed(0)
    ranking = catlog.PlackettLuce(case.theta, 2)
    x = ranking.bits(gumbel_top_k(case.theta.expand(DRAWS, 5), 2))
    assert p_value(tally(x, points), weights.softmax(0)) < FALSE_ALARMS
    # As sets of a Plackett-Luce ranking they are right.
    ordered, probs = ranking_weights(case.theta, 2)
    bits = ranking.bits(ordered)
    sets = torch.stack([probs.exp()[(bits == point).all(-1)].sum() for point in points])
    assert p_value(tally(x, points), sets) > FALSE_ALARMS


def test_gumbel_top_k_of_three_items() -> None:
    """The numbers of its docstring: 5/6 in a Gumbel top-2, 4/5 in a subset of two."""
    weights = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    q = catlog.PlackettLuce(weights.log(), 2)
    points = q.enumerate_support()
    included = (q.log_prob(points).exp() * (points == 0).any(-1)).sum()
    close(included, torch.tensor(5 / 6, dtype=torch.float64))
    close(catlog.Subset(weights.log(), 2).mean[0], torch.tensor(4 / 5, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    draws = gumbel_top_k(weights.log().expand(DRAWS, 3), 2, generator)
    count = (draws == 0).any(-1).double().sum()
    assert abs(count - DRAWS * 5 / 6) < z_limit(1) * (DRAWS * 5 / 36) ** 0.5
    assert abs(count - DRAWS * 4 / 5) > 2 * z_limit(1) * (DRAWS * 5 / 36) ** 0.5


# Planted bugs


def test_a_wrong_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shift of the count after a one."""

    def no_shift(on: Tensor, off: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return flow(on, off, torch.cat([counts[:1], counts[1:].roll(1, 1)]), start)

    monkeypatch.setattr("catlog.distributions.subset.marginals", no_shift)
    with pytest.raises(AssertionError):
        test_entropy_and_marginals_are_those_of_brute_force(CASES["subset, 2 of 5"])


@pytest.mark.parametrize("name", ["masked subset, 2 of 5", "masked ranking, 2 of 5"])
def test_a_forgotten_mask_is_caught(name: str) -> None:
    case = CASES[name]
    forgetful = catlog.Subset if "subset" in name else catlog.PlackettLuce
    bug = Case(name, case.theta, lambda t: forgetful(t, 2), case.weights)
    with pytest.raises(AssertionError):
        test_log_prob_is_that_of_brute_force(bug)


def test_repeated_items_are_caught() -> None:
    class WithReplacement(catlog.PlackettLuce):
        def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
            return self.scores.unsqueeze(-2).log_softmax(-1).expand(*x.shape, -1)

    case = CASES["ranking, 2 of 5"]
    bug = Case("", case.theta, lambda t: WithReplacement(t, 2), case.weights)
    with pytest.raises(AssertionError):
        test_log_prob_is_that_of_brute_force(bug)


def test_a_message_without_evidence_is_caught() -> None:
    """The chain's own transitions, as if later evidence did not matter."""
    case = CASES["crf of three steps"]

    def prior(theta: Tensor) -> Ordered:
        unary, pairwise = crf(theta)
        return catlog.MarkovChain(unary[0], pairwise + unary[1:, None, :])

    with pytest.raises(AssertionError):
        test_log_prob_is_that_of_brute_force(Case("", case.theta, prior, case.weights))


# Estimators


WITH_DRAWS = [
    parameter
    for parameter in estimators(target="expectation")
    if "structured" in parameter.values[0].supports
    and parameter.values[0].randomness == ("x",)
    and not getattr(parameter.values[0], "draws_are_dependent", False)
    and type(parameter.values[0]).__name__ not in ("SCateR", "RAM", "MAPO")
]
SMALL = ["masked subset, 2 of 5", "ranking, 1 of 4", "crf of one step", "subset, 1 of 4"]


@pytest.mark.parametrize("E", WITH_DRAWS)
@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_unbiased(E: catlog.Estimator, name: str) -> None:
    """Every estimator of the registry that draws independent points, by all its outcomes.

    Those with other randomness are enumerated in test_structured.py and in tests/estimators/sets.
    """
    case = CASES[name]
    points, weights = case.weights(case.theta)
    values = normals(6**5, seed=5)
    place = 6 ** torch.arange(points.shape[-1])

    def f(x: Tensor) -> Tensor:
        return values[(x * place).sum(-1)]

    theta = case.theta.clone().requires_grad_()
    exact = (case.weights(theta)[1].softmax(0) * f(points)).sum()
    (wanted,) = torch.autograd.grad(exact, theta)
    rows = E.rows(case.distribution(case.theta))
    choice = torch.tensor(list(product(range(len(points)), repeat=rows))).T
    probs = weights.softmax(0)[choice].prod(0)
    if isinstance(E, torch.nn.Module):
        E.eval()
    total = (probs * E(f, case.distribution(theta).expand([len(probs)]), x=points[choice])).sum()
    close(total.detach(), exact.detach())
    close(torch.autograd.grad(total, theta)[0], wanted)


def test_estimators_that_the_registry_has_are_all_judged() -> None:
    names = {type(parameter.values[0]).__name__ for parameter in WITH_DRAWS}
    elsewhere = {"Exact", "SCateR", "RAM", "MAPO", "UnorderedSet", "SumAndSample", "VIMCO"}
    structured = {name for name, cls in catlog.ESTIMATORS.items() if "structured" in cls.supports}
    assert structured == names | elsewhere


@pytest.mark.parametrize("name", ["subset, 2 of 5", "ranking, 2 of 5", "crf with rules"])
def test_exact_enumerates_the_support_alone(name: str) -> None:
    case = CASES[name]
    seen = 0

    def f(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        return x.double().sum(-1).sin()

    q = case.distribution(case.theta)
    value = catlog.Exact()(f, q)
    assert seen == catlog.Exact().evaluations(q) == q.points
    points, weights = case.weights(case.theta)
    close(value, (weights.softmax(0) * f(points)).sum())


def test_vimco_is_unbiased() -> None:
    """The bound of two draws, whose gradient is that of a sum over all pairs of points."""
    for name in SMALL:
        case = CASES[name]
        theta = case.theta.clone().requires_grad_()
        points, weights = case.weights(theta)
        choice = torch.tensor(list(product(range(len(points)), repeat=2))).T
        probs = weights.softmax(0)[choice].prod(0)
        q = case.distribution(theta).expand([choice.shape[1]])

        def log_weight(x: Tensor) -> Tensor:
            return (x.double() * normals(x.shape[-1], seed=2)).sum(-1).sin()

        bound = log_weight(points[choice]).exp().mean(0).log()
        got = (probs.detach() * catlog.VIMCO(2)(log_weight, q, x=points[choice])).sum()
        exact = (probs * bound).sum()
        close(got.detach(), exact.detach())
        gradients = [torch.autograd.grad(value, theta)[0] for value in (got, exact)]
        close(*gradients)


# SIMPLE


def simple_mean(theta: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return SIMPLE's value and gradient, averaged over all subsets of two of five items."""
    theta = theta.clone().requires_grad_()
    points, weights = subset_weights(theta.detach(), 2)
    q = catlog.Subset(theta, 2).expand([len(points)])
    total = (weights.softmax(0) * catlog.SIMPLE()(f, q, x=points.unsqueeze(0))).sum()
    return total.detach(), torch.autograd.grad(total, theta)[0]


def exact_mean(theta: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    theta = theta.clone().requires_grad_()
    points, weights = subset_weights(theta, 2)
    total = (weights.softmax(0) * f(points.double())).sum()
    return total.detach(), torch.autograd.grad(total, theta)[0]


def test_simple_differentiates_through_the_exact_marginals() -> None:
    """Its gradient is the mean slope times the derivative of brute force's marginals."""
    theta = normals(5).requires_grad_()
    points, weights = subset_weights(theta, 2)
    probs = weights.softmax(0)

    def f(x: Tensor) -> Tensor:
        return (x @ normals(5, seed=1)).sin()

    bits = points.double().requires_grad_()
    slopes = torch.autograd.grad(f(bits).sum(), bits)[0]
    marginals = (probs.unsqueeze(-1) * points).sum(0)
    wanted = torch.autograd.grad(marginals, theta, (probs.detach().unsqueeze(-1) * slopes).sum(0))[
        0
    ]
    close(simple_mean(theta.detach(), f)[1], wanted)


def test_simple_is_exact_for_linear_f_and_biased_otherwise() -> None:
    theta = normals(5)
    weights = normals(5, seed=1)
    for x in subset_weights(theta, 2)[0]:  # every draw has the exact gradient
        leaf = theta.clone().requires_grad_()
        value = catlog.SIMPLE()(lambda x: x @ weights, catlog.Subset(leaf, 2), x=x.unsqueeze(0))
        close(torch.autograd.grad(value, leaf)[0], exact_mean(theta, lambda x: x @ weights)[1])

    def f(x: Tensor) -> Tensor:
        return (3 * x @ weights).sin()

    (value, gradient), (exact_value, exact_gradient) = simple_mean(theta, f), exact_mean(theta, f)
    close(value, exact_value)
    assert (gradient - exact_gradient).norm() > 0.05 * exact_gradient.norm()


def test_simple_on_independent_bits_is_straight_through() -> None:
    theta = normals(4, 3).requires_grad_()
    q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=theta), 1)
    x = q.sample((2,))
    results = []
    for E in (catlog.SIMPLE(2), catlog.StraightThrough(2)):
        value = E(lambda x: x.sum(-1).square(), q, x=x)
        results.append((value.detach(), torch.autograd.grad(value.sum(), theta)[0]))
    torch.testing.assert_close(*results)


def test_simple_with_outputs_and_batches() -> None:
    logits = normals(2, 5).requires_grad_()
    q = catlog.Subset(logits, torch.tensor([1, 3]))
    x = q.sample((4,))

    def f(x: Tensor) -> Tensor:
        return torch.stack([x.sum(-1).sin(), x[..., 0] * x[..., 1]], -1)

    together = catlog.SIMPLE(4)(f, q, x=x, outputs=1)
    separate = [catlog.SIMPLE(4)(lambda x, i=i: f(x)[..., i], q, x=x) for i in range(2)]
    close(together, torch.stack(separate, -1))
    for i in range(2):
        gradients = [
            torch.autograd.grad(value.sum(), logits, retain_graph=True)[0]
            for value in (together[..., i], separate[i])
        ]
        close(*gradients)


# Batches


def test_k_and_mask_per_batch_element() -> None:
    """A batch equals a loop: log-probability, marginals, entropy and the gradient of each."""
    logits = normals(2, 3, 6).requires_grad_()
    k = torch.tensor([[0, 1, 2], [6, 3, 4]])
    mask = torch.ones(2, 3, 6, dtype=torch.bool)
    mask[0, 1, 4:] = mask[1, 2, 0] = False
    q = catlog.Subset(logits, k, mask)
    x = q.sample((5,))
    assert torch.equal(x.sum(-1), k.expand(5, 2, 3))
    assert not x.bool().logical_and(~mask).any()
    for b in product(range(2), range(3)):
        alone = catlog.Subset(logits[b], int(k[b]), mask[b])
        pairs = [
            (q.log_prob(x)[(slice(None), *b)], alone.log_prob(x[(slice(None), *b)])),
            (q.mean[b], alone.mean),
            (q.marginals()[b], alone.marginals()),
            (q.entropy()[b], alone.entropy()),
        ]
        for got, wanted in pairs:
            close(got, wanted)
            weight = normals(wanted.numel(), seed=1).view_as(wanted)
            gradients = [
                torch.autograd.grad((weight * value).sum(), logits, retain_graph=True)[0]
                for value in (got, wanted)
            ]
            close(*gradients)


@each_case
def test_expand(case: Case) -> None:
    q = case.distribution(case.theta)
    wide = q.expand([3, 2])
    size = len(q.cardinalities)
    torch.manual_seed(0)
    x = wide.sample((4,))
    assert x.shape == (4, 3, 2, size)
    close(wide.log_prob(x), q.log_prob(x.reshape(-1, size)).view(4, 3, 2))
    close(wide.entropy(), q.entropy().expand(3, 2))
    close(wide.marginals(), q.marginals().expand(3, 2, *q.marginals().shape))
    assert catlog.SCateR(2)(lambda x: x.double().sum(-1), wide).shape == (3, 2)
    u = torch.rand(4, 3, 2, size, dtype=torch.float64)
    assert torch.equal(wide.from_uniforms(u), Ordered.from_uniforms(wide, u))


@pytest.mark.parametrize("k", [1, 3, 6])
def test_rankings_have_the_product_of_their_conditionals(k: int) -> None:
    """In one pass over the items, with the same gradients; padding and repeats are impossible."""
    scores = normals(5, 6).requires_grad_()
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[1, 2] = k == 6  # with a masked item at most five can be ranked
    q = catlog.PlackettLuce(scores, k, mask)
    x = q.sample((40,))
    if k > 1:
        x[0, 0, 1] = x[0, 0, 0]
    if k < 6:
        x[1, 1, 0] = 2
    log_probs = q.log_prob_of_rows(x)
    wanted = Ordered.log_prob_of_rows(q, x)
    assert int(log_probs.isneginf().sum()) == (k > 1) + (k < 6)
    torch.testing.assert_close(log_probs, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.where(log_probs.isneginf(), 0.0, normals(40, 5, seed=1))
    gradients = [
        torch.autograd.grad((weight * value.clamp(min=-1e9)).sum(), scores, retain_graph=True)[0]
        for value in (log_probs, wanted)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_long_rankings_need_no_table() -> None:
    """The conditionals of one ranking of d items are d^2 numbers."""
    q = catlog.PlackettLuce(torch.linspace(-3, 3, 50).requires_grad_())
    x, largest = q.sample((20,)), 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple) else [result]:
                largest = max(largest, value.numel() if isinstance(value, Tensor) else 0)
            return result

    with Watch():
        q.log_prob(x).sum().backward()
    assert largest <= 20 * 51


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("name", ["Subset", "PlackettLuce", "LinearChainCRF"])
def test_an_empty_batch(name: str, batch: tuple[int, ...]) -> None:
    theta = torch.zeros(*batch, 3, 3, requires_grad=True)
    q = {
        "Subset": lambda: catlog.Subset(theta[..., 0, :], 2),
        "PlackettLuce": lambda: catlog.PlackettLuce(theta[..., 0, :], 2),
        "LinearChainCRF": lambda: catlog.LinearChainCRF(theta, theta),
    }[name]()
    assert q.sample((4,)).shape[:-1] == (4, *batch)
    for E in (catlog.Exact(), catlog.RLOO(2), catlog.SCateR(1), catlog.LEG(1)):
        value = E(lambda x: x.float().sum(-1), q)
        assert value.shape == batch
        value.sum().backward(retain_graph=True)


def test_shapes_broadcast() -> None:
    q = catlog.Subset(torch.zeros(5), torch.tensor([[1], [2]]), torch.ones(3, 5, dtype=torch.bool))
    assert q.batch_shape == (2, 3)
    assert q.mean.shape == (2, 3, 5)
    ranking = catlog.PlackettLuce(torch.zeros(5), 2, torch.ones(3, 5, dtype=torch.bool))
    assert ranking.sample((7,)).shape == (7, 3, 2)
    chains = catlog.LinearChainCRF(torch.zeros(3, 4, 2), torch.zeros(2, 2))
    assert chains.marginals().shape == (3, 4, 2)
    assert chains.log_partition.shape == (3,)


def test_a_point_with_other_numbers_than_bits_is_impossible() -> None:
    q = catlog.Subset(torch.zeros(3), 2, validate_args=False)
    assert q.log_prob(torch.tensor([[2, 0, 0], [3, -1, 0]])).tolist() == [-torch.inf] * 2


# The hidden Markov model


def test_the_posterior_of_a_hidden_markov_model() -> None:
    """Evidence as unary weights: the joint, enumerated, given the observations."""
    initial, transition, emission = normals(2), normals(2, 2, seed=1), normals(2, 3, seed=2)
    observed = torch.tensor([2, 0, 1, 1])
    joint = catlog.MarkovChain(initial, transition, length=4, emission=emission)
    paths = torch.tensor(list(product(range(2), repeat=4)))
    log_joint = joint.log_prob(torch.cat([paths, observed.expand(16, 4)], -1))
    unary = emission.log_softmax(-1)[:, observed].T.clone()
    unary[0] += initial.log_softmax(-1)
    posterior = catlog.LinearChainCRF(unary, transition.log_softmax(-1))
    close(posterior.log_prob(paths), log_joint.log_softmax(0))
    close(posterior.log_partition, log_joint.logsumexp(0))


def test_marginals_of_a_chain_with_observations() -> None:
    q = catlog.MarkovChain(
        normals(2, 2), normals(2, 2, seed=1), length=3, emission=normals(2, 3, seed=2)
    )
    close(q.marginals(), Ordered.marginals(q))


# Numbers


def test_derivatives_of_the_table() -> None:
    on, off = -normals(4, 2).abs(), -normals(4, 2, seed=1).abs()
    on.requires_grad_()
    off.requires_grad_()

    start = torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.float64)

    def counts(on: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        table, first = SuffixCounts.apply(on, off, 3)
        return table.masked_fill(table < -1e29, 0.0), first

    def mean(logits: Tensor) -> Tensor:
        on, off = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
        return torch.stack(marginals_of_bits(on, off, SuffixCounts.apply(on, off, 3)[0], start))

    for function, inputs in ((counts, (on, off)), (mean, (normals(4, 2).requires_grad_(),))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("k", [1, 10, 100, 199])
def test_float32_of_many_items(k: int, scale: float) -> None:
    """Ten rows of 200 logits: marginals to 2e-5, and no gradient is lost."""
    logits = scale * normals(10, 200)
    results = []
    for dtype in (torch.float32, torch.float64):
        theta = logits.to(dtype).requires_grad_()
        q = catlog.Subset(theta, k)
        (gradient,) = torch.autograd.grad((q.mean * torch.arange(200)).sum(), theta)
        results.append((q.mean.double(), q.entropy().double(), gradient.double()))
    (mean, entropy, gradient), exact = results
    assert (mean - exact[0]).abs().max() < 2e-5
    torch.testing.assert_close(entropy, exact[1], rtol=1e-4, atol=1e-4)
    assert (gradient - exact[2]).norm() < 1e-4 * exact[2].norm()
    close(exact[0].sum(-1), torch.full((10,), float(k), dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types_compute_in_float32(dtype: torch.dtype) -> None:
    theta = normals(9).to(dtype)
    for q, wide in (
        (catlog.Subset(theta, 3), catlog.Subset(theta.float(), 3)),
        (catlog.PlackettLuce(theta, 3), catlog.PlackettLuce(theta.float(), 3)),
        (
            catlog.LinearChainCRF(theta.view(3, 3), theta.view(3, 3)),
            catlog.LinearChainCRF(theta.view(3, 3).float(), theta.view(3, 3).float()),
        ),
    ):
        assert q.entropy().dtype == torch.float32
        torch.testing.assert_close(q.entropy(), wide.entropy(), rtol=0, atol=0)


def test_second_derivatives() -> None:
    """RLOO's are unbiased, so they need those of the table."""
    theta = normals(4).requires_grad_()
    values = normals(16, seed=1)
    place = 2 ** torch.arange(4)
    points, _ = subset_weights(theta.detach(), 2)

    def exact(theta: Tensor) -> Tensor:
        return (subset_weights(theta, 2)[1].softmax(0) * values[(points * place).sum(-1)]).sum()

    def enumerated(theta: Tensor) -> Tensor:
        choice = torch.tensor(list(product(range(6), repeat=2))).T
        weight = subset_weights(theta.detach(), 2)[1].softmax(0)[choice].prod(0)
        q = catlog.Subset(theta, 2).expand([36])
        estimates = catlog.RLOO(2)(lambda x: values[(x * place).sum(-1)], q, x=points[choice])
        return (weight * estimates).sum()

    hessians = [
        torch.autograd.functional.hessian(function, theta) for function in (enumerated, exact)
    ]
    close(hessians[0], hessians[1])


def test_in_torch_func() -> None:
    """Per-example gradients by vmap equal a loop."""
    logits = normals(3, 5)

    def total(theta: Tensor) -> Tensor:
        q = catlog.Subset(theta, 2, validate_args=False)
        return (q.mean * torch.arange(5)).sum() + q.log_prob(torch.tensor([1, 0, 1, 0, 0]))

    mapped = torch.func.vmap(torch.func.grad(total))(logits)
    close(mapped, torch.stack([torch.func.grad(total)(row) for row in logits]))


# Bad input


NAN = torch.tensor([0.0, torch.nan, 1.0])
BAD = {
    "k above d": (lambda: catlog.Subset(torch.zeros(3), 4), r"`k` must be between 0 and .* d = 3"),
    "negative k": (lambda: catlog.Subset(torch.zeros(3), -1), r"`k` must be between 0 .* -1 was"),
    "k per element above d": (
        lambda: catlog.Subset(torch.zeros(2, 3), torch.tensor([1, 4])),
        r"can be chosen, 3 at batch index \(1,\), but 4 was given",
    ),
    "negative k per element": (
        lambda: catlog.Subset(torch.zeros(2, 3), torch.tensor([1, -2])),
        r"at batch index \(1,\), but -2 was given",
    ),
    "k above the items that are not masked": (
        lambda: catlog.Subset(torch.zeros(3), 2, torch.tensor([True, False, False])),
        r"can be chosen, 1, but 2 was given",
    ),
    "k above the finite logits": (
        lambda: catlog.Subset(torch.tensor([0.0, -torch.inf]), 2),
        r"can be chosen, 1, but 2 was given",
    ),
    "k of floats": (lambda: catlog.Subset(torch.zeros(3), torch.tensor(1.0)), "integers"),
    "k of bools": (lambda: catlog.Subset(torch.zeros(3), True), "`k` must be an int"),
    "k of another batch": (
        lambda: catlog.Subset(torch.zeros(3, 5), torch.tensor([1, 2])),
        r"broadcast, but they are `logits` \(3,\), `k` \(2,\)",
    ),
    "NaN logits": (
        lambda: catlog.Subset(NAN, 1),
        r"`logits` must be finite .* nan at index \(1,\)",
    ),
    "infinite logits": (lambda: catlog.Subset(torch.tensor([torch.inf]), 1), "inf at index"),
    "integer logits": (lambda: catlog.Subset(torch.zeros(3).long(), 1), "tensor of floats"),
    "no items": (lambda: catlog.Subset(torch.zeros(0), 0), r"d of at least 1"),
    "mask of floats": (lambda: catlog.Subset(torch.zeros(3), 1, torch.ones(3)), "tensor of bools"),
    "mask of another size": (
        lambda: catlog.Subset(torch.zeros(3), 1, torch.ones(2, dtype=torch.bool)),
        r"`mask` must have shape \[\*batch, 3\].*\(2,\) was given",
    ),
    "ranking of more items": (lambda: catlog.PlackettLuce(torch.zeros(3), 4), "`k` must be"),
    "ranking of none": (lambda: catlog.PlackettLuce(torch.zeros(3), 0), "`k` must be between 1"),
    "ranking of a negative number": (
        lambda: catlog.PlackettLuce(torch.zeros(3), -1),
        "`k` must be between 1",
    ),
    "NaN scores": (lambda: catlog.PlackettLuce(NAN), r"`scores` must be finite .* nan at"),
    "ranking of masked items": (
        lambda: catlog.PlackettLuce(torch.zeros(3), mask=torch.tensor([True, True, False])),
        r"can be chosen, 2, but 3 was given",
    ),
    "impossible evidence": (
        lambda: catlog.LinearChainCRF(
            torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
            torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
        ),
        "every sequence has weight zero. The evidence is impossible",
    ),
    "impossible evidence in a batch": (
        lambda: catlog.LinearChainCRF(
            torch.stack([torch.zeros(2, 2), torch.full((2, 2), -torch.inf)]), torch.zeros(2, 2)
        ),
        r"weight zero at batch index \(1,\)",
    ),
    "NaN evidence": (
        lambda: catlog.LinearChainCRF(torch.full((2, 2), torch.nan), torch.zeros(2, 2)),
        "`unary` must be finite or -inf",
    ),
    "pairwise of another size": (
        lambda: catlog.LinearChainCRF(torch.zeros(4, 3), torch.zeros(2, 3, 3)),
        r"`pairwise` must have shape \[3, 3\].*\(2, 3, 3\) was given",
    ),
    "unary without steps": (
        lambda: catlog.LinearChainCRF(torch.zeros(3), torch.zeros(3, 3)),
        r"`unary` must have shape",
    ),
    "a point of another size": (
        lambda: catlog.RLOO(2)(
            lambda x: x.sum(-1).float(),
            catlog.Subset(torch.zeros(3), 1),
            x=torch.tensor([[1, 0, 0], [1, 1, 0]]),
        ),
        r"q cannot draw: \[1, 1, 0\]",
    ),
    "SIMPLE of a chain": (
        lambda: catlog.SIMPLE()(
            lambda x: x.sum(-1), catlog.LinearChainCRF(torch.zeros(3, 2), torch.zeros(2, 2))
        ),
        "LinearChainCRF",
    ),
    "SIMPLE of a table": (
        lambda: catlog.SIMPLE()(
            lambda x: torch.arange(3.0)[x.long().argmax(-1)],
            catlog.Subset(torch.zeros(3, requires_grad=True), 1),
        ),
        "differentiable|derivative",
    ),
    "too many points": (lambda: catlog.Exact()(len, catlog.Subset(torch.zeros(60), 30)), "points"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    action, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        action()
