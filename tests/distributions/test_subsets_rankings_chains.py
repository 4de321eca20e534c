"""Subset, PlackettLuce and LinearChainCRF: what they have beyond other distributions.

test_checklist.py compares them with brute force, and test_every_estimator.py judges the estimators
on them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Distribution, Independent
from torch.nn.functional import logsigmoid, one_hot
from torch.testing import assert_close

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import LinearChainCRF, MarkovChain, Ordered, PlackettLuce, Subset
from catlog.distributions import gumbel_top_k as top_k
from catlog.distributions.bit_counts import SuffixCounts
from catlog.distributions.bit_counts import marginals as marginals_of_bits
from catlog.estimators import LEG, SIMPLE
from catlog.testing import z_limit
from catlog.testing.cases import normals
from support.chi_square import p_value, tally
from support.exact_weights import exact_log_softmax
from support.gradients import assert_same, with_gradients
from support.operations import Operations
from support.samplers import independent_draws
from support.structured_cases import ALL_CASES, close, every

FALSE_ALARMS = 1e-6  # of one chi-square test
DRAWS = 100_000
TWO_OF_FIVE = ALL_CASES["subset, 2 of 5"]
NO = -torch.inf


def test_the_chi_square_test_tells_gumbel_top_k_from_a_subset() -> None:
    """Its power: the two distributions differ by a few percent."""
    theta, points = TWO_OF_FIVE.theta, TWO_OF_FIVE.points
    torch.manual_seed(0)
    ranking = PlackettLuce(theta, 2)
    x = ranking.bits(top_k(theta.expand(DRAWS, 5), 2))
    assert p_value(tally(x, points), TWO_OF_FIVE.probabilities(theta)) < FALSE_ALARMS
    # As sets of a Plackett-Luce ranking they are right.
    rankings = ALL_CASES["ranking, 2 of 5"]
    bits, probs = ranking.bits(rankings.points), rankings.probabilities(theta)
    sets = torch.stack([probs[(bits == point).all(-1)].sum() for point in points])
    assert p_value(tally(x, points), sets) > FALSE_ALARMS


def test_gumbel_top_k_of_three_items() -> None:
    """The numbers of its docstring: 5/6 in a Gumbel top-2, 4/5 in a subset of two."""
    scores = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64).log()
    close(Subset(scores, 2).mean[0], torch.tensor(4 / 5, dtype=torch.float64))
    draws = top_k(scores.expand(DRAWS, 3), 2, torch.Generator().manual_seed(0))
    count = (draws == 0).any(-1).double().sum()
    assert abs(count - DRAWS * 5 / 6) < z_limit(1) * (DRAWS * 5 / 36) ** 0.5
    assert abs(count - DRAWS * 4 / 5) > 2 * z_limit(1) * (DRAWS * 5 / 36) ** 0.5


@pytest.mark.parametrize("name", ["subset, 2 of 5", "ranking, 2 of 5", "crf with rules"])
def test_exact_enumerates_the_support_alone(name: str) -> None:
    q, seen = ALL_CASES[name].distribution(ALL_CASES[name].theta), []
    catlog.Exact()(lambda x: (seen.append(len(x)), x.double().sum(-1))[1], q)
    assert sum(seen) == catlog.Exact().evaluations(q) == q.points


def test_simple_differentiates_through_the_exact_marginals() -> None:
    """Its gradient is the mean slope times the derivative of brute force's marginals."""
    theta = normals(5).requires_grad_()
    points, probs = TWO_OF_FIVE.points, TWO_OF_FIVE.probabilities(theta)
    q, weights = Subset(theta, 2).expand([len(points)]), normals(5, seed=1)
    marginals = (probs.unsqueeze(-1) * points).sum(0)
    for f, slopes, is_linear in (
        (lambda x: x @ weights, weights.expand(10, 5), True),
        (
            lambda x: (3 * x @ weights).sin(),
            3 * (3 * points.double() @ weights).cos()[:, None] * weights,
            0,
        ),
    ):
        values = SIMPLE()(f, q, x=points.unsqueeze(0))
        value, gradient = with_gradients(probs.detach() * values, theta)
        slope = (probs.detach().unsqueeze(-1) * slopes).sum(0)
        exact = with_gradients(probs * f(points.double()), theta)
        close(value.sum(), exact[0].sum())
        close(gradient, with_gradients(marginals @ slope, theta)[1])
        if is_linear:  # every draw has the exact gradient
            rows = [with_gradients(row, theta)[1] for row in values]
            close(torch.stack(rows), exact[1].expand(10, 5))
        else:
            assert (gradient - exact[1]).norm() > 0.05 * exact[1].norm()


def test_simple_with_outputs_and_batches() -> None:
    logits = normals(2, 5).requires_grad_()
    q = Subset(logits, torch.tensor([1, 3]))
    x = q.sample((4,))

    def f(x: Tensor) -> Tensor:
        return torch.stack([x.sum(-1).sin(), x[..., 0] * x[..., 1]], -1)

    together = SIMPLE(4)(f, q, x=x, outputs=1)
    for i in range(2):
        alone = SIMPLE(4)(lambda x, i=i: f(x)[..., i], q, x=x)
        assert_same(together[..., i], alone, logits, rtol=1e-13, atol=1e-12)


def test_k_and_mask_per_batch_element() -> None:
    """A batch equals a loop: log-probability, marginals, entropy and the gradient of each."""
    logits, k = normals(2, 3, 6).requires_grad_(), torch.tensor([[0, 1, 2], [6, 3, 4]])
    mask = torch.ones(2, 3, 6, dtype=torch.bool)
    mask[0, 1, 4:] = mask[1, 2, 0] = False
    q = Subset(logits, k, mask)
    x = q.sample((5,))
    assert torch.equal(x.sum(-1), k.expand(5, 2, 3))
    assert not x.bool().logical_and(~mask).any()
    for b in product(range(2), range(3)):
        alone, points = Subset(logits[b], int(k[b]), mask[b]), x[(slice(None), *b)]
        for got, wanted in (
            (q.log_prob(x)[(slice(None), *b)], alone.log_prob(points)),
            (q.mean[b], alone.mean),
            (q.marginals()[b], alone.marginals()),
            (q.entropy()[b], alone.entropy()),
        ):
            weight = normals(wanted.numel(), seed=1).view_as(wanted)
            assert_same(weight * got, weight * wanted, logits, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_a_common_offset_of_scores_does_not_matter(offset: float) -> None:
    """As far as float32 can write the scores; equal scores are drawn alike."""
    scores = torch.tensor([[64.0, 8.0, 0.0, NO], [16.0, 24.0, 0.0, 8.0]]) + offset
    q, points = PlackettLuce(scores, k=2), PlackettLuce(scores, k=2).enumerate_support()
    wanted = PlackettLuce(scores.double(), k=2).log_prob(points)
    assert_close(q.log_prob(points).double(), wanted, rtol=1e-6, atol=1e-6)
    equal = PlackettLuce(torch.full((4,), offset), k=2)
    points, twelfth = equal.enumerate_support(), torch.full((12,), 1 / 12)
    assert_close(equal.log_prob(points).exp(), twelfth, rtol=1e-6, atol=0)
    torch.manual_seed(0)
    assert p_value(tally(equal.sample((DRAWS,)), points), twelfth.double()) > FALSE_ALARMS


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("outputs", [0, 1])
def test_an_estimator_draws_a_ranking_at_once(copies: bool, outputs: int) -> None:
    """By one sort of the items, not item by item; given a generator, from it alone."""
    q: Distribution = PlackettLuce(normals(3, 200))
    law = view(Independent(q, 1) if copies else q, outputs=outputs)
    before = torch.get_rng_state()
    with Operations() as operations:
        x = Randomness(law, generator=torch.Generator().manual_seed(0)).points(4)
    assert operations.count < 50
    assert torch.equal(torch.get_rng_state(), before)
    assert x.shape == (4, *law.batch_shape, *law.event_shape)
    assert torch.equal(x.sort(-1).values, torch.arange(200).expand(x.shape))
    again = Randomness(law, generator=torch.Generator().manual_seed(0)).points(4)
    assert torch.equal(x, again)
    assert len(x.flatten(0, -2).unique(dim=0)) == 12


def test_long_rankings_need_no_table() -> None:
    """The conditionals of one ranking of d items are d^2 numbers."""
    q = PlackettLuce(torch.linspace(-3, 3, 50).requires_grad_())
    x = q.sample((20,))
    with Operations() as operations:
        q.log_prob(x).sum().backward()
    assert operations.largest <= 20 * 51


MAKE: dict[str, Callable[[Tensor], Ordered]] = {  # from theta [*batch, 3, 3]
    "Subset": lambda theta: Subset(theta[..., 0, :], 2),
    "PlackettLuce": lambda theta: PlackettLuce(theta[..., 0, :], 2),
    "LinearChainCRF": lambda theta: LinearChainCRF(theta, theta),
}


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("name", MAKE)
def test_an_empty_batch(name: str, batch: tuple[int, ...]) -> None:
    q = MAKE[name](zeros(*batch, 3, 3, requires_grad=True))
    assert q.log_prob(q.sample((4,))).shape == (4, *batch)
    assert q.entropy().shape == q.marginals().shape[:-2] == batch
    for E in (catlog.Exact(), catlog.RLOO(2), catlog.SCateR(1), LEG(1)):
        value = E(lambda x: x.float().sum(-1), q)
        assert value.shape == batch
        value.sum().backward(retain_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MAKE)
def test_narrow_types_compute_in_float32(name: str, dtype: torch.dtype) -> None:
    theta = normals(3, 3).to(dtype)
    assert_close(MAKE[name](theta).entropy(), MAKE[name](theta.float()).entropy(), rtol=0, atol=0)


def test_shapes_broadcast() -> None:
    q = Subset(zeros(5), torch.tensor([[1], [2]]), torch.ones(3, 5, dtype=torch.bool))
    assert q.batch_shape == (2, 3)
    assert q.mean.shape == (2, 3, 5)
    ranking = PlackettLuce(zeros(5), 2, torch.ones(3, 5, dtype=torch.bool))
    assert ranking.sample((7,)).shape == (7, 3, 2)
    meta = PlackettLuce(zeros(3, device="meta"), 2)  # has shapes only; no value is looked at
    assert meta.entropy().shape == ()
    assert meta.log_prob(meta.sample((5,))).shape == (5,)
    chains = LinearChainCRF(normals(3, 4, 2), normals(2, 2))
    assert chains.marginals().shape == (3, 4, 2)
    wide = chains.expand((5, 3))
    assert torch.equal(wide.log_partition, chains.log_partition.expand(5, 3))
    assert wide.sample().shape == (5, 3, 4)


def test_a_point_with_other_numbers_than_bits_is_impossible() -> None:
    q = Subset(zeros(3), 2, validate_args=False)
    assert q.log_prob(torch.tensor([[2, 0, 0], [3, -1, 0]])).tolist() == [NO] * 2


def test_the_posterior_of_a_hidden_markov_model() -> None:
    """Evidence as unary weights: the joint, enumerated, given the observations."""
    initial, transition, emission = normals(2), normals(2, 2, seed=1), normals(2, 3, seed=2)
    observed, paths = torch.tensor([2, 0, 1, 1]), every(2, 2, 2, 2)
    joint = MarkovChain(initial, transition, length=4, emission=emission)
    log_joint = joint.log_prob(torch.cat([paths, observed.expand(16, 4)], -1))
    unary = emission.log_softmax(-1)[:, observed].T.clone()
    unary[0] += initial.log_softmax(-1)
    posterior = LinearChainCRF(unary, transition.log_softmax(-1))
    close(posterior.log_prob(paths), log_joint.log_softmax(0))
    close(posterior.log_partition, log_joint.logsumexp(0))


# Derivatives


def test_derivatives_of_the_table() -> None:
    on, off = (-normals(4, 2, seed=seed).abs() for seed in range(2))
    start = torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.float64)

    def counts(on: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        table, first = SuffixCounts.apply(on, off, 3)
        return table.masked_fill(table < -1e29, 0.0), first

    def mean(logits: Tensor) -> Tensor:
        on, off = logsigmoid(logits), logsigmoid(-logits)
        return torch.stack(marginals_of_bits(on, off, SuffixCounts.apply(on, off, 3)[0], start))

    for function, inputs in ((counts, (on, off)), (mean, (normals(4, 2),))):
        leaves = [tensor.requires_grad_() for tensor in inputs]
        assert torch.autograd.gradcheck(function, leaves)
        assert torch.autograd.gradgradcheck(function, leaves)


def test_second_derivatives() -> None:
    """RLOO's are unbiased, so they need those of the table."""
    case, values = ALL_CASES["subset"], normals(16, seed=1)

    def f(x: Tensor) -> Tensor:
        return values[(x * 2 ** torch.arange(4)).sum(-1)]

    def enumerated(theta: Tensor) -> Tensor:
        draws = independent_draws(case.points, case.probabilities(theta.detach()), 2)
        q = case.distribution(theta).expand([len(draws.weight)])
        return (draws.weight * catlog.RLOO(2)(f, q, **draws.options)).sum()

    def exact(theta: Tensor) -> Tensor:
        return (case.probabilities(theta) * f(case.points)).sum()

    close(*(torch.autograd.functional.hessian(value, case.theta) for value in (enumerated, exact)))


def test_vmap_of_gradients_equals_a_loop() -> None:
    def total(theta: Tensor) -> Tensor:
        q = Subset(theta, 2, validate_args=False)
        return (q.mean * torch.arange(5)).sum() + q.log_prob(torch.tensor([1, 0, 1, 0, 0]))

    gradient, logits = torch.func.grad(total), normals(3, 5)
    close(torch.func.vmap(gradient)(logits), torch.stack([gradient(row) for row in logits]))


# Numbers


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("k", [1, 10, 100, 199])
def test_float32_of_many_items(k: int, scale: float) -> None:
    """Ten rows of 200 logits: marginals to 2e-5, and no gradient is lost."""
    results = []
    for dtype in (torch.float32, torch.float64):
        theta = (scale * normals(10, 200)).to(dtype).requires_grad_()
        q = Subset(theta, k)
        gradient = with_gradients(q.mean * torch.arange(200), theta)[1]
        results.append([value.double() for value in (q.mean, q.entropy(), gradient)])
    (mean, entropy, gradient), exact = results
    assert (mean - exact[0]).abs().max() < 2e-5
    assert_close(entropy, exact[1], rtol=1e-4, atol=1e-4)
    assert (gradient - exact[2]).norm() < 1e-4 * exact[2].norm()
    close(exact[0].sum(-1), torch.full((10,), float(k), dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("evidence", [0.0, -1e3, 1e4])
def test_float32_of_a_long_chain_with_heavy_evidence(evidence: float) -> None:
    """Log-likelihoods of whole images are large; the differences between states are small."""
    unary = (normals(200, 3) + evidence).float().requires_grad_()
    pairwise = normals(3, 3, seed=1).float()
    q, exact = LinearChainCRF(unary, pairwise), LinearChainCRF(unary.double(), pairwise.double())
    for probabilities in (q.marginals(), with_gradients(q.log_partition, unary)[1]):
        assert_close(probabilities.double(), exact.marginals(), rtol=0, atol=3e-6)
    x = exact.sample((20,))
    for got, wanted, rtol in (
        (q.entropy(), exact.entropy(), 1e-5),
        (q.log_partition, exact.log_partition, 1e-5),
        (q.log_prob(x), exact.log_prob(x), 3e-6),
    ):
        assert_close(got.double(), wanted, rtol=rtol, atol=0)


# Weights of any size


LOWEST = torch.finfo(torch.float32).min
SCALE_OF_ROUNDING = {torch.float32: 4e-6, torch.float64: 4e-14}


@dataclass(frozen=True)
class Wide:
    """A distribution with large weights, and what is exactly true of it.

    Attributes:
        theta: the weights.
        make: makes the distribution from them.
        points: all possible points.
        log_probs: of the points.
        scores: the derivatives of these in theta ``[points, *theta]``.
    """

    theta: Tensor
    make: Callable[[Tensor], Ordered]
    points: Tensor
    log_probs: Tensor
    scores: Tensor


def wide(
    theta: Tensor, make: Callable[[Tensor], Ordered], points: Tensor, terms: Iterable, uses: Tensor
) -> Wide:
    """Return points whose log-weights are sums of ``terms``; ``uses`` says of which of theta."""
    log_probs = exact_log_softmax(terms)
    mean = (log_probs.exp() @ uses.flatten(1)).view(uses.shape[1:])
    return Wide(theta, make, points, log_probs, uses - mean)


def wide_subset(logits: Sequence[float], k: int) -> Wide:
    points = torch.tensor([x for x in product([0, 1], repeat=len(logits)) if sum(x) == k])
    theta = torch.tensor(logits, dtype=torch.float64)
    terms = theta.float().double().where(points == 1, 0.0).tolist()
    return wide(theta, lambda theta: Subset(theta, k), points, terms, points.double())


def wide_ranking(scores: Sequence[float], k: int) -> Wide:
    theta = torch.tensor(scores, dtype=torch.float64)
    points = list(permutations([i for i, score in enumerate(scores) if score > NO], k))
    log_probs = torch.zeros(len(points), dtype=torch.float64)
    derivatives = torch.zeros(len(points), len(scores), dtype=torch.float64)
    for row, point in enumerate(points):
        rest = theta.float().tolist()
        for item in point:
            log_prob = exact_log_softmax([score] for score in rest)
            log_probs[row] += log_prob[item]
            derivatives[row] -= log_prob.exp()
            derivatives[row, item] += 1
            rest[item] = NO
    make = lambda theta: PlackettLuce(theta, k)  # noqa: E731
    return Wide(theta, make, torch.tensor(points), log_probs, derivatives)


def wide_chain(unary: Tensor, pairwise: Tensor) -> Wide:
    points = every(2, 2, 2)
    unary, pairwise = unary.float().double(), pairwise.float().double()
    of_states = unary[torch.arange(3), points]
    of_pairs = pairwise[torch.arange(2), points[:, :-1], points[:, 1:]]
    terms = torch.cat([of_states, of_pairs], -1).tolist()
    make = lambda unary: LinearChainCRF(unary, pairwise.to(unary.dtype))  # noqa: E731
    return wide(unary, make, points, terms, one_hot(points, 2).double())


# The last ones have as few likely items as can be, or are large without a mask.
MASKS = [([0.0, 1.0, mask, 2.0], k) for mask in (LOWEST, -1e30, -1e15, -1e9, -1e6) for k in (1, 2)]
SUBSETS = [
    *MASKS,
    ([1.0, 2.0, LOWEST], 1),
    ([LOWEST, LOWEST, 1.0, 0.5, LOWEST, -1.0], 2),
    ([-1e30, 1.0, 2.0, -1e30, -1e30], 2),
    ([-1e6, 1.0, 2.0, 0.0, -1e6, -1e6], 2),
    ([1e30, 0.0, 1.0, -1e30, 2.0], 2),
    ([1e30, 1e30, 1e30, 0.0], 2),
    ([1e9 + 64, 1e9, 1e9, -1e9, -1e9], 2),
    ([LOWEST, LOWEST, LOWEST], 1),
    ([LOWEST, 0.0, -LOWEST, -LOWEST, 1.0], 3),
    ([LOWEST, 3.0, 1.0], 0),
    ([LOWEST, 3.0, 1.0], 2),
    ([LOWEST, 3.0, 1.0], 3),
    ([1e6, -1e6, 1e6 + 0.5, -1e6 + 0.5, 1e6 - 1.0, 0.25], 2),
    ([-1e30, 1e6, -1e6, 0.0, 2e6 + 1.0, 2e6], 1),
    ([NO, 1.0, 2.0, NO], 1),
    ([1.0, 2.0, NO], 1),
    ([0.5, -1.0, 2.0, 1.0, NO, NO], 3),
]
RANKINGS = [
    ([0.0, 1.0, -1e30, -1e30], 4),  # masked items come last, in any order
    ([2.0, LOWEST, 1.0, LOWEST, LOWEST], 3),
    ([LOWEST, LOWEST, LOWEST], 3),
    ([1e30, 1e30, -1e30, 0.5, 0.0], 3),
    ([1e30, 1001.0, 1.0, -1.0, 1.0], 5),
    ([-LOWEST, LOWEST, 0.0, 1.0], 4),
    ([1e6, 1e6 + 1, -1e6, -1e6 + 1, 0.25], 2),
    ([1e6 + 0.5, 1e6, 1e6 + 2, -1e30], 2),
    ([1e6, 0.25, 0.5, -0.25], 4),
    ([NO, 1e9, 1e9, -1e9], 3),
]


def chains() -> dict[str, tuple[Tensor, Tensor]]:
    """Return unary and pairwise weights, large everywhere or where they mask something."""
    unary, pairwise = normals(3, 2), normals(2, 2, 2, seed=1)
    named = {}
    for size in (1e6, -1e6, 1e30, -1e30, -LOWEST, LOWEST):
        large = torch.full((), size)
        masked_state, masked_step, masked_pair = unary.clone(), unary.clone(), pairwise.clone()
        masked_state[1, 0] = masked_step[1] = masked_pair[0, 0, 1] = large
        named |= {
            f"unary {size}": (unary + large, pairwise),
            f"pairwise {size}": (unary, pairwise + large),
            f"both {size}": (unary + large, pairwise + large),
            f"unary {size}, pairwise {-size}": (unary + large, pairwise - large),
            f"a state {size}": (masked_state, pairwise),
            f"a step {size}": (masked_step, pairwise),
            f"a pair {size}": (unary, masked_pair),
        }
    return named


WIDE = {
    **{f"subset, {k} of {logits}": wide_subset(logits, k) for logits, k in SUBSETS},
    **{f"ranking, {k} of {scores}": wide_ranking(scores, k) for scores, k in RANKINGS},
    **{f"chain, {name}": wide_chain(*weights) for name, weights in chains().items()},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_weights_of_large_numbers(name: str, dtype: torch.dtype) -> None:
    """Probabilities, marginals, entropy, all gradients and draws are right, whatever their size."""
    case = WIDE[name]
    theta = case.theta.to(dtype).requires_grad_()
    q, points, probs = case.make(theta), case.points, case.log_probs.exp()
    atol = SCALE_OF_ROUNDING[dtype]
    surprise = -case.log_probs.masked_fill(probs == 0, 0.0)
    values = normals(len(points))
    indicators = one_hot(points, max(q.cardinalities)).double()
    weights = normals(*indicators.shape[1:])

    def check(value: Tensor, of_points: Tensor, slope: Tensor | None = None) -> None:
        """Check the mean of numbers of points, and its derivative, their covariance with scores;
        of numbers that depend on theta, ``slope`` in log q."""
        assert_close(value.detach().double(), probs @ of_points, rtol=atol, atol=atol)
        gradient = with_gradients(value, theta)[1].double()
        wanted = (probs * (of_points if slope is None else slope)) @ case.scores.flatten(1)
        assert_close(gradient.flatten(), wanted, rtol=4 * atol, atol=atol)

    got = q.log_prob(points)
    check(q.entropy(), surprise)
    check(got.exp() @ values.to(dtype), values)
    finite = got.masked_fill(probs == 0, 0.0)
    check(finite @ (probs * values).to(dtype), -values * surprise, values)
    check(
        catlog.Exact()(lambda x: (x.unsqueeze(-2) == points).all(-1).double() @ values, q), values
    )
    check((q.marginals() * weights).sum(), (indicators * weights).sum((-1, -2)))
    conditionals = q.log_conditionals(points).gather(-1, points.unsqueeze(-1)).sum((-1, -2))
    for prob in (got, conditionals):
        assert_close(prob.detach().exp().double(), probs, rtol=atol, atol=atol)
    marginals = (probs @ indicators.flatten(1)).view(weights.shape)
    assert_close(q.marginals().detach().double(), marginals, rtol=0, atol=atol)
    torch.manual_seed(0)
    assert p_value(tally(q.sample((DRAWS,)), points), probs) > FALSE_ALARMS
    if isinstance(q, PlackettLuce):
        assert p_value(tally(top_k(theta.expand(DRAWS, -1), q.k), points), probs) > FALSE_ALARMS
