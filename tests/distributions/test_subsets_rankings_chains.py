"""Subset, PlackettLuce and LinearChainCRF: what they have beyond other distributions.

test_checklist.py compares them with brute force, and test_every_estimator.py judges the estimators
on them.
"""

from collections.abc import Callable
from itertools import permutations, product

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Bernoulli, Distribution, Independent, Poisson

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import (
    Autoregressive,
    Categoricals,
    LinearChainCRF,
    MarkovChain,
    PlackettLuce,
    Subset,
    gumbel_top_k,
    truncated,
)
from catlog.distributions.bit_counts import SuffixCounts
from catlog.distributions.bit_counts import marginals as marginals_of_bits
from catlog.estimators import LEG, SIMPLE, CountDifferences
from catlog.testing import z_limit
from catlog.testing.cases import normals
from support.chi_square import p_value, tally
from support.exact_weights import exact_log_softmax
from support.gradients import assert_same
from support.operations import Operations
from support.samplers import independent_draws
from support.structured_cases import ALL_CASES

FALSE_ALARMS = 1e-6  # of one chi-square test
DRAWS = 100_000
TWO_OF_FIVE = ALL_CASES["subset, 2 of 5"]


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=atol)


def test_the_chi_square_test_tells_gumbel_top_k_from_a_subset() -> None:
    """Its power: the two distributions differ by a few percent."""
    theta, points = TWO_OF_FIVE.theta, TWO_OF_FIVE.points
    torch.manual_seed(0)
    ranking = PlackettLuce(theta, 2)
    x = ranking.bits(gumbel_top_k(theta.expand(DRAWS, 5), 2))
    assert p_value(tally(x, points), TWO_OF_FIVE.probabilities(theta)) < FALSE_ALARMS
    # As sets of a Plackett-Luce ranking they are right.
    rankings = ALL_CASES["ranking, 2 of 5"]
    bits, probs = ranking.bits(rankings.points), rankings.probabilities(theta)
    sets = torch.stack([probs[(bits == point).all(-1)].sum() for point in points])
    assert p_value(tally(x, points), sets) > FALSE_ALARMS


def test_gumbel_top_k_of_three_items() -> None:
    """The numbers of its docstring: 5/6 in a Gumbel top-2, 4/5 in a subset of two."""
    weights = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    q = PlackettLuce(weights.log(), 2)
    points = q.enumerate_support()
    included = (q.log_prob(points).exp() * (points == 0).any(-1)).sum()
    close(included, torch.tensor(5 / 6, dtype=torch.float64))
    close(Subset(weights.log(), 2).mean[0], torch.tensor(4 / 5, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    draws = gumbel_top_k(weights.log().expand(DRAWS, 3), 2, generator)
    count = (draws == 0).any(-1).double().sum()
    assert abs(count - DRAWS * 5 / 6) < z_limit(1) * (DRAWS * 5 / 36) ** 0.5
    assert abs(count - DRAWS * 4 / 5) > 2 * z_limit(1) * (DRAWS * 5 / 36) ** 0.5


# Estimators


@pytest.mark.parametrize("name", ["subset, 2 of 5", "ranking, 2 of 5", "crf with rules"])
def test_exact_enumerates_the_support_alone(name: str) -> None:
    case = ALL_CASES[name]
    seen = 0

    def f(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        return x.double().sum(-1).sin()

    q = case.distribution(case.theta)
    value = catlog.Exact()(f, q)
    assert seen == catlog.Exact().evaluations(q) == q.points
    close(value, (case.probabilities(case.theta) * f(case.points)).sum())


# SIMPLE


def simple_mean(theta: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return SIMPLE's value and gradient, averaged over all subsets of two of five items."""
    theta = theta.clone().requires_grad_()
    points, probs = TWO_OF_FIVE.points, TWO_OF_FIVE.probabilities(theta.detach())
    q = Subset(theta, 2).expand([len(points)])
    total = (probs * SIMPLE()(f, q, x=points.unsqueeze(0))).sum()
    return total.detach(), torch.autograd.grad(total, theta)[0]


def exact_mean(theta: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    theta = theta.clone().requires_grad_()
    total = (TWO_OF_FIVE.probabilities(theta) * f(TWO_OF_FIVE.points.double())).sum()
    return total.detach(), torch.autograd.grad(total, theta)[0]


def test_simple_differentiates_through_the_exact_marginals() -> None:
    """Its gradient is the mean slope times the derivative of brute force's marginals."""
    theta = normals(5).requires_grad_()
    points, probs = TWO_OF_FIVE.points, TWO_OF_FIVE.probabilities(theta)

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
    for x in TWO_OF_FIVE.points:  # every draw has the exact gradient
        leaf = theta.clone().requires_grad_()
        value = SIMPLE()(lambda x: x @ weights, Subset(leaf, 2), x=x.unsqueeze(0))
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
    simple, straight_through = (
        E(lambda x: x.sum(-1).square(), q, x=x) for E in (SIMPLE(2), catlog.StraightThrough(2))
    )
    assert_same(simple, straight_through, theta)


def test_simple_with_outputs_and_batches() -> None:
    logits = normals(2, 5).requires_grad_()
    q = Subset(logits, torch.tensor([1, 3]))
    x = q.sample((4,))

    def f(x: Tensor) -> Tensor:
        return torch.stack([x.sum(-1).sin(), x[..., 0] * x[..., 1]], -1)

    together = SIMPLE(4)(f, q, x=x, outputs=1)
    separate = [SIMPLE(4)(lambda x, i=i: f(x)[..., i], q, x=x) for i in range(2)]
    for i in range(2):
        assert_same(together[..., i], separate[i], logits, rtol=1e-13, atol=1e-12)


# Batches


def test_k_and_mask_per_batch_element() -> None:
    """A batch equals a loop: log-probability, marginals, entropy and the gradient of each."""
    logits = normals(2, 3, 6).requires_grad_()
    k = torch.tensor([[0, 1, 2], [6, 3, 4]])
    mask = torch.ones(2, 3, 6, dtype=torch.bool)
    mask[0, 1, 4:] = mask[1, 2, 0] = False
    q = Subset(logits, k, mask)
    x = q.sample((5,))
    assert torch.equal(x.sum(-1), k.expand(5, 2, 3))
    assert not x.bool().logical_and(~mask).any()
    for b in product(range(2), range(3)):
        alone = Subset(logits[b], int(k[b]), mask[b])
        pairs = [
            (q.log_prob(x)[(slice(None), *b)], alone.log_prob(x[(slice(None), *b)])),
            (q.mean[b], alone.mean),
            (q.marginals()[b], alone.marginals()),
            (q.entropy()[b], alone.entropy()),
        ]
        for got, wanted in pairs:
            close(got, wanted)
            weight = normals(wanted.numel(), seed=1).view_as(wanted)
            assert_same(weight * got, weight * wanted, logits, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_a_common_offset_of_scores_does_not_matter(offset: float) -> None:
    """Neither in log-probabilities nor in draws, as far as float32 can write the scores."""
    scores = torch.tensor([[64.0, 8.0, 0.0, -torch.inf], [16.0, 24.0, 0.0, 8.0]]) + offset
    q = PlackettLuce(scores, k=2)
    exact = PlackettLuce(scores.double(), k=2)
    points = q.enumerate_support()
    wanted = exact.log_prob(points)
    torch.testing.assert_close(q.log_prob(points).double(), wanted, rtol=1e-6, atol=1e-6)
    equal = PlackettLuce(torch.full((4,), offset), k=2)
    points = equal.enumerate_support()
    assert equal.log_prob(points).exp().tolist() == pytest.approx([1 / 12] * 12)
    torch.manual_seed(0)
    counts = tally(equal.sample((DRAWS,)), points)
    assert p_value(counts, torch.full((12,), 1 / 12).double()) > FALSE_ALARMS


def test_wide_scores_keep_the_order_of_the_small_ones() -> None:
    """The large one is no offset: it is subtracted from no other."""
    scores = torch.tensor([1e6, 0.25, 0.5, -0.25])
    points = torch.tensor([[0, 1, 2, 3], [0, 3, 1, 2]])
    got = PlackettLuce(scores).log_prob(points)
    wanted = PlackettLuce(scores.double()).log_prob(points)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("outputs", [0, 1])
def test_an_estimator_draws_a_ranking_at_once(copies: bool, outputs: int) -> None:
    """By one sort of the items, not item by item; given a generator, from it alone."""
    q: Distribution = PlackettLuce(normals(3, 200))
    if copies:
        q = Independent(q, 1)
    law = view(q, outputs=outputs)
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


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("name", ["Subset", "PlackettLuce", "LinearChainCRF"])
def test_an_empty_batch(name: str, batch: tuple[int, ...]) -> None:
    theta = zeros(*batch, 3, 3, requires_grad=True)
    q = {
        "Subset": lambda: Subset(theta[..., 0, :], 2),
        "PlackettLuce": lambda: PlackettLuce(theta[..., 0, :], 2),
        "LinearChainCRF": lambda: LinearChainCRF(theta, theta),
    }[name]()
    assert q.log_prob(q.sample((4,))).shape == (4, *batch)
    assert q.entropy().shape == q.marginals().shape[:-2] == batch
    for E in (catlog.Exact(), catlog.RLOO(2), catlog.SCateR(1), LEG(1)):
        value = E(lambda x: x.float().sum(-1), q)
        assert value.shape == batch
        value.sum().backward(retain_graph=True)


def test_shapes_broadcast() -> None:
    q = Subset(zeros(5), torch.tensor([[1], [2]]), torch.ones(3, 5, dtype=torch.bool))
    assert q.batch_shape == (2, 3)
    assert q.mean.shape == (2, 3, 5)
    ranking = PlackettLuce(zeros(5), 2, torch.ones(3, 5, dtype=torch.bool))
    assert ranking.sample((7,)).shape == (7, 3, 2)
    chains = LinearChainCRF(zeros(3, 4, 2), zeros(2, 2))
    assert chains.marginals().shape == (3, 4, 2)
    assert chains.log_partition.shape == (3,)


def test_a_point_with_other_numbers_than_bits_is_impossible() -> None:
    q = Subset(zeros(3), 2, validate_args=False)
    assert q.log_prob(torch.tensor([[2, 0, 0], [3, -1, 0]])).tolist() == [-torch.inf] * 2


# The hidden Markov model


def test_the_posterior_of_a_hidden_markov_model() -> None:
    """Evidence as unary weights: the joint, enumerated, given the observations."""
    initial, transition, emission = normals(2), normals(2, 2, seed=1), normals(2, 3, seed=2)
    observed = torch.tensor([2, 0, 1, 1])
    joint = MarkovChain(initial, transition, length=4, emission=emission)
    paths = torch.tensor(list(product(range(2), repeat=4)))
    log_joint = joint.log_prob(torch.cat([paths, observed.expand(16, 4)], -1))
    unary = emission.log_softmax(-1)[:, observed].T.clone()
    unary[0] += initial.log_softmax(-1)
    posterior = LinearChainCRF(unary, transition.log_softmax(-1))
    close(posterior.log_prob(paths), log_joint.log_softmax(0))
    close(posterior.log_partition, log_joint.logsumexp(0))


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
        q = Subset(theta, k)
        (gradient,) = torch.autograd.grad((q.mean * torch.arange(200)).sum(), theta)
        results.append((q.mean.double(), q.entropy().double(), gradient.double()))
    (mean, entropy, gradient), exact = results
    assert (mean - exact[0]).abs().max() < 2e-5
    torch.testing.assert_close(entropy, exact[1], rtol=1e-4, atol=1e-4)
    assert (gradient - exact[2]).norm() < 1e-4 * exact[2].norm()
    close(exact[0].sum(-1), torch.full((10,), float(k), dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("evidence", [0.0, -1e3, 1e4])
def test_float32_of_a_long_chain_with_heavy_evidence(evidence: float) -> None:
    """Log-likelihoods of whole images are large; the differences between states are small."""
    unary = (normals(200, 3) + evidence).float().requires_grad_()
    pairwise = normals(3, 3, seed=1).float()
    q = LinearChainCRF(unary, pairwise)
    exact = LinearChainCRF(unary.detach().double(), pairwise.double())
    (gradient,) = torch.autograd.grad(q.log_partition, unary)
    marginals = exact.marginals()
    for probabilities in (q.marginals(), gradient):
        torch.testing.assert_close(probabilities.double(), marginals, rtol=0, atol=3e-6)
    torch.testing.assert_close(q.entropy().double(), exact.entropy(), rtol=1e-5, atol=0)
    torch.testing.assert_close(q.log_partition.double(), exact.log_partition, rtol=1e-5, atol=0)
    x = exact.sample((20,))
    torch.testing.assert_close(q.log_prob(x).double(), exact.log_prob(x), rtol=3e-6, atol=0)


def test_an_expanded_chain_has_the_logarithm_of_its_sum() -> None:
    q = LinearChainCRF(normals(3, 4, 2), normals(2, 2))
    expanded = q.expand((5, 3))
    close(expanded.log_partition, q.log_partition.expand(5, 3))
    assert expanded.sample().shape == (5, 3, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types_compute_in_float32(dtype: torch.dtype) -> None:
    theta = normals(9).to(dtype)
    for q, wide in (
        (Subset(theta, 3), Subset(theta.float(), 3)),
        (PlackettLuce(theta, 3), PlackettLuce(theta.float(), 3)),
        (
            LinearChainCRF(theta.view(3, 3), theta.view(3, 3)),
            LinearChainCRF(theta.view(3, 3).float(), theta.view(3, 3).float()),
        ),
    ):
        assert q.entropy().dtype == torch.float32
        torch.testing.assert_close(q.entropy(), wide.entropy(), rtol=0, atol=0)


def test_second_derivatives() -> None:
    """RLOO's are unbiased, so they need those of the table."""
    case = ALL_CASES["subset"]
    values = normals(16, seed=1)

    def f(x: Tensor) -> Tensor:
        return values[(x * 2 ** torch.arange(4)).sum(-1)]

    def exact(theta: Tensor) -> Tensor:
        return (case.probabilities(theta) * f(case.points)).sum()

    def enumerated(theta: Tensor) -> Tensor:
        draws = independent_draws(case.points, case.probabilities(theta.detach()), 2)
        q = case.distribution(theta).expand([len(draws.weight)])
        return (draws.weight * catlog.RLOO(2)(f, q, **draws.options)).sum()

    hessians = [
        torch.autograd.functional.hessian(function, case.theta) for function in (enumerated, exact)
    ]
    close(hessians[0], hessians[1])


def test_in_torch_func() -> None:
    """Per-example gradients by vmap equal a loop."""
    logits = normals(3, 5)

    def total(theta: Tensor) -> Tensor:
        q = Subset(theta, 2, validate_args=False)
        return (q.mean * torch.arange(5)).sum() + q.log_prob(torch.tensor([1, 0, 1, 0, 0]))

    mapped = torch.func.vmap(torch.func.grad(total))(logits)
    close(mapped, torch.stack([torch.func.grad(total)(row) for row in logits]))


# Masks written as large numbers


LOWEST = torch.finfo(torch.float32).min
# Logits and k. The last ones have as few likely items as can be, or are large without a mask.
WIDE_LOGITS = {
    f"{k} of {logits}": (logits, k)
    for logits, k in [
        *(
            ([0.0, 1.0, mask, 2.0], k)
            for mask in (LOWEST, -1e30, -1e15, -1e9, -1e6)
            for k in (1, 2)
        ),
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
        ([-torch.inf, 1.0, 2.0, -torch.inf], 1),
        ([1.0, 2.0, -torch.inf], 1),
        ([0.5, -1.0, 2.0, 1.0, -torch.inf, -torch.inf], 3),
    ]
}
SCALE_OF_ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WIDE_LOGITS)
def test_a_subset_with_a_mask_of_large_numbers(name: str, dtype: torch.dtype) -> None:
    """Probabilities, marginals, entropy, all gradients and draws are right, for every mask."""
    logits, k = WIDE_LOGITS[name]
    theta = torch.tensor(logits, dtype=dtype, requires_grad=True)
    points = torch.tensor([x for x in product([0, 1], repeat=len(logits)) if sum(x) == k])
    chosen = theta.detach().expand(len(points), -1).where(points == 1, 0.0)
    log_probs = exact_log_probs(chosen)
    probs = log_probs.exp()
    mean = probs @ points.double()
    q = Subset(theta, k)
    atol = 4 * SCALE_OF_ROUNDING[dtype]

    def check(got: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(got.detach().double(), wanted, rtol=4 * atol, atol=atol)

    def check_gradient(value: Tensor, of_points: Tensor) -> None:
        """The derivative of the mean of numbers of points is their covariance with the bits."""
        (gradient,) = torch.autograd.grad(value, theta, retain_graph=True)
        check(gradient, (probs * (of_points - probs @ of_points)) @ points.double())

    check(q.log_prob(points).exp(), probs)
    check(q.log_conditionals(points).gather(-1, points.unsqueeze(-1)).sum((-1, -2)).exp(), probs)
    check(q.mean, mean)
    check(q.marginals()[..., 0], 1 - mean)
    surprise = -log_probs.masked_fill(probs == 0, 0.0)
    check(q.entropy(), probs @ surprise)
    check_gradient(q.entropy(), surprise)
    values, weights = normals(len(points)), normals(len(logits))
    check_gradient(q.mean @ weights.to(dtype), points.double() @ weights)
    check_gradient(q.log_prob(points).exp() @ values.to(dtype), values)
    check_gradient(catlog.Exact()(lambda x: tabulated(x, points, values), q), values)
    torch.manual_seed(0)
    assert p_value(tally(q.sample((DRAWS,)), points), probs) > FALSE_ALARMS


WIDE_SCORES = {
    f"{k} of {scores}": (scores, k)
    for scores, k in [
        ([0.0, 1.0, -1e30, -1e30], 4),  # masked items come last, in any order
        ([2.0, LOWEST, 1.0, LOWEST, LOWEST], 3),
        ([LOWEST, LOWEST, LOWEST], 3),
        ([1e30, 1e30, -1e30, 0.5, 0.0], 3),
        ([1e30, 1001.0, 1.0, -1.0, 1.0], 5),
        ([-LOWEST, LOWEST, 0.0, 1.0], 4),
        ([1e6, 1e6 + 1, -1e6, -1e6 + 1, 0.25], 2),
        ([1e6 + 0.5, 1e6, 1e6 + 2, -1e30], 2),
        ([-torch.inf, 1e9, 1e9, -1e9], 3),
    ]
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WIDE_SCORES)
def test_rankings_with_scores_of_large_numbers(name: str, dtype: torch.dtype) -> None:
    """Probabilities, entropy, gradients and draws are right, beside scores of any size."""
    scores, k = WIDE_SCORES[name]
    theta = torch.tensor(scores, dtype=dtype, requires_grad=True)
    items = [i for i, score in enumerate(scores) if score > -torch.inf]
    points = torch.tensor(list(permutations(items, k)))
    log_probs = torch.zeros(len(points), dtype=torch.float64)
    derivatives = torch.zeros(len(points), len(scores), dtype=torch.float64)
    for row, point in enumerate(points.tolist()):
        left = theta.tolist()
        for item in point:
            log_prob = exact_log_softmax([score] for score in left)
            log_probs[row] += log_prob[item]
            derivatives[row] -= log_prob.exp()
            derivatives[row, item] += 1
            left[item] = -torch.inf
    probs = log_probs.exp()
    q = PlackettLuce(theta, k)
    got = q.log_prob(points)
    atol = 4 * SCALE_OF_ROUNDING[dtype]
    values = normals(len(points))
    surprise = -log_probs.masked_fill(probs == 0, 0.0)
    for value, wanted, gradient in (
        (got.exp() @ values.to(dtype), probs @ values, probs * values),
        (q.entropy(), probs @ surprise, probs * surprise),
        (
            got.masked_fill(probs == 0, 0.0) @ (probs * values).to(dtype),
            probs @ (values * -surprise),
            probs * values,
        ),
    ):
        torch.testing.assert_close(value.detach().double(), wanted, rtol=atol, atol=atol)
        derivative = torch.autograd.grad(value, theta, retain_graph=True)[0].double()
        torch.testing.assert_close(derivative, gradient @ derivatives, rtol=4 * atol, atol=atol)
    torch.manual_seed(0)
    for x in (q.sample((DRAWS,)), gumbel_top_k(theta.expand(DRAWS, -1), k)):
        assert p_value(tally(x, points), probs) > FALSE_ALARMS


def wide_chains() -> dict[str, tuple[Tensor, Tensor]]:
    """Return unary and pairwise weights, large everywhere or where they mask something."""
    unary, pairwise = normals(3, 2), normals(2, 2, 2, seed=1)
    chains = {}
    for size in (1e6, -1e6, 1e30, -1e30, -LOWEST, LOWEST):
        large = torch.full((), size)
        masked_state, masked_step, masked_pair = unary.clone(), unary.clone(), pairwise.clone()
        masked_state[1, 0] = masked_step[1] = masked_pair[0, 0, 1] = large
        chains |= {
            f"unary {size}": (unary + large, pairwise),
            f"pairwise {size}": (unary, pairwise + large),
            f"both {size}": (unary + large, pairwise + large),
            f"unary {size}, pairwise {-size}": (unary + large, pairwise - large),
            f"a state {size}": (masked_state, pairwise),
            f"a step {size}": (masked_step, pairwise),
            f"a pair {size}": (unary, masked_pair),
        }
    return chains


WIDE_CHAINS = wide_chains()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WIDE_CHAINS)
def test_a_chain_with_weights_of_large_numbers(name: str, dtype: torch.dtype) -> None:
    """Probabilities, marginals, entropy and gradients are right, beside weights of any size."""
    unary, pairwise = (weights.to(dtype) for weights in WIDE_CHAINS[name])
    unary.requires_grad_()
    points = torch.tensor(list(product(range(2), repeat=3)))
    of_states = unary.detach()[torch.arange(3), points]
    of_pairs = pairwise[torch.arange(2), points[:, :-1], points[:, 1:]]
    log_probs = exact_log_probs(torch.cat([of_states, of_pairs], -1))
    probs, surprise, values = log_probs.exp(), -log_probs, normals(8)
    surprise = surprise.masked_fill(probs == 0, 0.0)
    states = torch.nn.functional.one_hot(points, 2).double().flatten(1)
    q = LinearChainCRF(unary, pairwise)
    got, atol = q.log_prob(points), 4 * SCALE_OF_ROUNDING[dtype]
    marginals = (probs @ states).view(3, 2)
    torch.testing.assert_close(q.marginals().detach().double(), marginals, rtol=0, atol=atol)
    for value, of_points in ((got.exp() @ values.to(dtype), values), (q.entropy(), surprise)):
        mean = probs @ of_points
        torch.testing.assert_close(value.detach().double(), mean, rtol=atol, atol=atol)
        derivative = torch.autograd.grad(value, unary, retain_graph=True)[0].double()
        wanted = (probs * (of_points - mean)) @ states
        torch.testing.assert_close(derivative, wanted.view(3, 2), rtol=atol, atol=4 * atol)


def tabulated(x: Tensor, points: Tensor, values: Tensor) -> Tensor:
    """Return the values of these points, from a table."""
    is_point = (x.unsqueeze(-2) == points).all(-1)
    return (is_point.double() @ values).to(torch.float64)


def exact_log_probs(weights: Tensor) -> Tensor:
    """Return log-probabilities of points, given the log-weights ``[points, terms]`` to add up."""
    return exact_log_softmax(weights.tolist())


# Bad input


NAN = torch.tensor([0.0, torch.nan, 1.0])
BAD = {
    "`k` must be between 0 and .* d = 3": lambda: Subset(zeros(3), 4),
    "`k` must be between 0 .* -1 was": lambda: Subset(zeros(3), -1),
    r"can be chosen, 3 at batch index \(1,\), but 4 was given": lambda: Subset(
        zeros(2, 3), torch.tensor([1, 4])
    ),
    r"at batch index \(1,\), but -2 was given": lambda: Subset(zeros(2, 3), torch.tensor([1, -2])),
    "items that can be chosen, 1, but 2 was given": lambda: Subset(
        zeros(3), 2, torch.tensor([True, False, False])
    ),
    "can be chosen, 1, but 2 was given": lambda: Subset(torch.tensor([0.0, -torch.inf]), 2),
    "integers": lambda: Subset(zeros(3), torch.tensor(1.0)),
    "`k` must be an int": lambda: Subset(zeros(3), True),
    r"broadcast, but they are `logits` \(3,\), `k` \(2,\)": lambda: Subset(
        zeros(3, 5), torch.tensor([1, 2])
    ),
    r"`logits` must be finite .* nan at index \(1,\)": lambda: Subset(NAN, 1),
    "inf at index": lambda: Subset(torch.tensor([torch.inf]), 1),
    "tensor of floats": lambda: Subset(zeros(3).long(), 1),
    "d of at least 1": lambda: Subset(zeros(0), 0),
    "tensor of bools": lambda: Subset(zeros(3), 1, torch.ones(3)),
    r"`mask` must have shape \[\*batch, 3\].*\(2,\) was given": lambda: Subset(
        zeros(3), 1, torch.ones(2, dtype=torch.bool)
    ),
    "`k` must be": lambda: PlackettLuce(zeros(3), 4),
    "`k` must be between 1": lambda: PlackettLuce(zeros(3), 0),
    "`k` must be between 1 .* -1 was": lambda: PlackettLuce(zeros(3), -1),
    "`scores` must be finite .* nan at": lambda: PlackettLuce(NAN),
    "can be chosen, 2, but 3 was given": lambda: PlackettLuce(
        zeros(3), mask=torch.tensor([True, True, False])
    ),
    "every sequence has weight zero. The evidence is impossible": lambda: LinearChainCRF(
        torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
        torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
    ),
    r"weight zero at batch index \(1,\)": lambda: LinearChainCRF(
        torch.stack([zeros(2, 2), torch.full((2, 2), -torch.inf)]), zeros(2, 2)
    ),
    "`unary` must be finite or -inf": lambda: LinearChainCRF(
        torch.full((2, 2), torch.nan), zeros(2, 2)
    ),
    r"`pairwise` must have shape \[3, 3\].*\(2, 3, 3\) was given": lambda: LinearChainCRF(
        zeros(4, 3), zeros(2, 3, 3)
    ),
    "`unary` must have shape": lambda: LinearChainCRF(zeros(3), zeros(3, 3)),
    r"q cannot draw: \[1, 1, 0\]": lambda: catlog.RLOO(2)(
        lambda x: x.sum(-1).float(),
        Subset(zeros(3), 1),
        x=torch.tensor([[1, 0, 0], [1, 1, 0]]),
    ),
    "gumbel_top_k: `k` must be between 1 and 3, but 5": lambda: gumbel_top_k(zeros(3), 5),
    r"gumbel_top_k: `scores` must have shape \[\*batch, d\].*\(\) was": lambda: gumbel_top_k(
        zeros(()), 1
    ),
    "generator must be a torch.Generator or None": lambda: gumbel_top_k(zeros(3), 1, 3),
    "Categoricals: `logits` must be on cpu, where the first is": lambda: Categoricals(
        [zeros(2), zeros(2, device="meta")]
    ),
    "Categoricals: `logits` must be floats, but torch.complex64": lambda: Categoricals(
        [zeros(2, dtype=torch.complex64)]
    ),
    "gumbel_top_k: `scores` must be finite .* nan at": lambda: gumbel_top_k(NAN, 1),
    "gumbel_top_k: .* can be chosen, 1, but 2 was": lambda: gumbel_top_k(
        torch.tensor([0.0, -torch.inf]), 2
    ),
    "LinearChainCRF": lambda: SIMPLE()(
        lambda x: x.sum(-1), LinearChainCRF(zeros(3, 2), zeros(2, 2))
    ),
    "differentiable|derivative": lambda: SIMPLE()(
        lambda x: torch.arange(3.0)[x.long().argmax(-1)],
        Subset(zeros(3, requires_grad=True), 1),
    ),
    "Subset: `validate_args` must be True, False .* Tensor was given. .* `mask`": lambda: Subset(
        zeros(3), 1, validate_args=torch.ones(3, dtype=torch.bool)
    ),
    "PlackettLuce: `validate_args` must be .* Tensor was given. .* `mask`": lambda: PlackettLuce(
        zeros(3), 1, validate_args=torch.ones(3, dtype=torch.bool)
    ),
    r"lower by 1e\+09 than the best of its step.* Do masks contradict": lambda: LinearChainCRF(
        torch.tensor([[0.0, -1e9], [-1e9, 0.0]]), torch.tensor([[0.0, -1e9], [0.0, 0.0]])
    ),
    "LinearChainCRF: `validate_args` must be True, False or None": lambda: LinearChainCRF(
        zeros(2, 2), zeros(2, 2), validate_args=zeros(2)
    ),
    "Categoricals: `validate_args` must be": lambda: Categoricals(
        [zeros(2)], validate_args=zeros(2)
    ),
    "Subset: `mask` must be on cpu, where `logits` is, but it is on meta": lambda: Subset(
        zeros(3), 1, torch.ones(3, dtype=torch.bool, device="meta")
    ),
    "Subset: `k` must be on cpu": lambda: Subset(
        zeros(3), torch.ones((), dtype=torch.int64, device="meta")
    ),
    "`pairwise` must be on cpu, where `unary` is": lambda: LinearChainCRF(
        zeros(2, 2), zeros(2, 2, device="meta")
    ),
    "Subset: `value` must be on cpu, where q is": lambda: Subset(zeros(2), 1).log_prob(
        torch.ones(2, dtype=torch.int64, device="meta")
    ),
    "Subset: `value` must be a tensor .* list was": lambda: Subset(zeros(2), 1).log_prob([0, 1]),
    "points": lambda: catlog.Exact()(len, Subset(zeros(60), 30)),
}


INDICES = torch.tensor([[1, 0], [0, 1]])
SPARSE: dict[str, Callable[[Tensor], object]] = {
    "Subset: `logits`": lambda s: Subset(s, 1),
    "Subset: `mask`": lambda s: Subset(zeros(2, 2), 1, s.bool()),
    "Subset: `k`": lambda s: Subset(zeros(2, 2, 2), s.long()),
    "PlackettLuce: `scores`": lambda s: PlackettLuce(s),
    "gumbel_top_k: `scores`": lambda s: gumbel_top_k(s, 1),
    "LinearChainCRF: `unary`": lambda s: LinearChainCRF(s, zeros(2, 2)),
    "MarkovChain: `transition`": lambda s: MarkovChain(zeros(2), s, 2),
    "Categoricals: `logits`": lambda s: Categoricals([s]),
    "Subset: `value`": lambda s: Subset(zeros(2), 1).log_prob(s.long()),
    "q: the logits of variable 0": lambda s: Autoregressive(
        lambda x, i: s, [2], validate_args=False
    ).sample((2,)),
    "q: the parameter of Bernoulli": lambda s: catlog.RLOO(2)(
        lambda x: x, Bernoulli(logits=s, validate_args=False)
    ),
    "q: the parameter of Poisson": lambda s: CountDifferences(1)(
        lambda x: x, Poisson(s, validate_args=False)
    ),
    "x": lambda s: catlog.RLOO(2)(lambda x: x, Bernoulli(zeros(2)), x=s),
    "f: its value": lambda s: catlog.RLOO(2)(lambda x: s, Bernoulli(zeros(2))),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a dense tensor.*`to_dense\(\)`"):
        SPARSE[name](torch.sparse_coo_tensor(INDICES, torch.ones(2), (2, 2), check_invariants=True))


def test_the_meta_device_has_shapes_only() -> None:
    """Log-probabilities and draws have shapes there; values are not looked at."""
    q = PlackettLuce(zeros(3, device="meta"), 2)
    assert q.entropy().shape == ()
    assert q.log_prob(q.sample((5,))).shape == (5,)
    with pytest.raises(ValueError, match=r"truncated: `categories` must be given .* meta"):
        truncated(Poisson(torch.ones(2, device="meta"), validate_args=False))


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        BAD[message]()
