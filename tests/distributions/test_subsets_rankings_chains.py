"""Subset, PlackettLuce and LinearChainCRF: cost, float32, and weights of any size.

test_checklist.py compares them with brute force, and test_every_estimator.py judges the estimators
on them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from math import fsum
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Distribution, Independent
from torch.nn.functional import one_hot
from torch.testing import assert_close

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import LinearChainCRF, MarkovChain, Ordered, PlackettLuce, Subset
from catlog.distributions import gumbel_top_k as top_k
from catlog.testing.cases import normals, seeded
from support.chi_square import p_value, tally
from support.gradients import with_gradients
from support.operations import Operations
from support.structured_cases import close, every

FALSE_ALARMS = 1e-6  # of one chi-square test
DRAWS = 100_000
NO = -torch.inf


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("outputs", [0, 1])
def test_an_estimator_draws_a_ranking_at_once(copies: bool, outputs: int) -> None:
    """By one sort of the items, not item by item; given a generator, from it alone."""
    q: Distribution = PlackettLuce(normals(3, 200))
    law = view(Independent(q, 1) if copies else q, outputs=outputs)
    before = torch.get_rng_state()
    with Operations() as operations:
        x = Randomness(law, generator=seeded()).points(4)
    assert operations.count < 50
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, Randomness(law, generator=seeded()).points(4))
    assert len(x.flatten(0, -2).unique(dim=0)) == 12


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


def long_chain(table: Tensor) -> MarkovChain:
    return MarkovChain(table[0], table[1:], length=8000)


def given_evidence(table: Tensor) -> LinearChainCRF:
    return LinearChainCRF(table[3:], table[:3])


# Log-likelihoods of whole images are large; the differences between states are small.
CHAINS: dict[str, tuple[Callable[[Tensor], Ordered], Tensor, float, float]] = {
    "long": (long_chain, normals(6, 5), 5e-6, 1e-6),
    **{
        f"evidence {size}": (
            given_evidence, torch.cat([normals(3, 3), size + normals(200, 3)]), 1e-5, 3e-6
        )
        for size in (0.0, -1e3, 1e4)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_float32_of_long_chains(name: str) -> None:
    """Rounding errors of the steps do not add up: a few units of 6e-8 per term remain."""
    make, theta, of_entropy, of_marginals = CHAINS[name]
    theta = theta.float()
    q, exact = make(theta), make(theta.double())
    assert_close(q.entropy().double(), exact.entropy(), rtol=of_entropy, atol=0)
    probabilities = [q.marginals()]
    if isinstance(q, LinearChainCRF):
        x = exact.sample((20,))
        assert_close(q.log_prob(x).double(), exact.log_prob(x), rtol=3e-6, atol=0)
        assert_close(q.log_partition.double(), exact.log_partition, rtol=1e-5, atol=0)
        theta.requires_grad_()
        probabilities.append(with_gradients(make(theta).log_partition, theta)[1][3:])
    for got in probabilities:
        assert_close(got.double(), exact.marginals(), rtol=0, atol=of_marginals)


# Weights of any size


LOWEST = torch.finfo(torch.float32).min
SCALE_OF_ROUNDING = {torch.float32: 4e-6, torch.float64: 4e-14}


class Wide(NamedTuple):
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


def exact_log_softmax(terms: Iterable[Sequence[float]]) -> Tensor:
    """Return the log-probabilities of points, given each one's log-weights to add up.

    The sums are exact, so 1e30 + 1 - 1e30 is 1.
    """
    rows = list(terms)
    largest = [-term for term in max(rows, key=fsum)]
    sums = [fsum([*row, *largest]) for row in rows]
    return torch.tensor(sums, dtype=torch.float64).log_softmax(0)


def wide(
    theta: Tensor, make: Callable[[Tensor], Ordered], points: Tensor, terms: Tensor, uses: Tensor
) -> Wide:
    """Return points whose log-weights are sums of ``terms``; ``uses`` says of which of theta."""
    log_probs = exact_log_softmax(terms.tolist())
    mean = (log_probs.exp() @ uses.flatten(1)).view(uses.shape[1:])
    return Wide(theta, make, points, log_probs, uses - mean)


def wide_subset(logits: Sequence[float], k: int) -> Wide:
    points = every(*[2] * len(logits))
    points = points[points.sum(-1) == k]
    theta = torch.tensor(logits, dtype=torch.float64)
    terms = theta.float().double().where(points == 1, 0.0)
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
    return Wide(
        theta, lambda theta: PlackettLuce(theta, k), torch.tensor(points), log_probs, derivatives
    )


def wide_chain(unary: Tensor, pairwise: Tensor) -> Wide:
    points = every(2, 2, 2)
    unary, pairwise = unary.float().double(), pairwise.float().double()
    of_states = unary[torch.arange(3), points]
    of_pairs = pairwise[torch.arange(2), points[:, :-1], points[:, 1:]]

    def make(unary: Tensor) -> Ordered:
        return LinearChainCRF(unary, pairwise.to(unary.dtype))

    terms = torch.cat([of_states, of_pairs], -1)
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
    q, points, atol = case.make(theta), case.points, SCALE_OF_ROUNDING[dtype]
    # What is true, to first order in a change of theta.
    leaf = case.theta.clone().requires_grad_()
    change = (leaf - case.theta).nan_to_num()
    log_probs = case.log_probs + (case.scores * change).flatten(1).sum(-1)
    probs = log_probs.exp()
    log_probs, got = (rows.masked_fill(probs == 0, 0.0) for rows in (log_probs, q.log_prob(points)))
    values, indicators = normals(len(points)), one_hot(points, max(q.cardinalities)).double()
    weights, mean = normals(*indicators.shape[1:]), probs @ values

    def f(x: Tensor) -> Tensor:
        return (x.unsqueeze(-2) == points).all(-1).double() @ values

    for value, wanted in (
        (q.entropy(), -probs @ log_probs),
        (q.log_prob(points).exp() @ values.to(dtype), mean),
        (got @ (probs.detach() * values).to(dtype), log_probs @ (probs.detach() * values)),
        (catlog.Exact()(f, q), mean),
        ((q.marginals() * weights).sum(), (probs @ indicators.flatten(1)) @ weights.flatten()),
    ):
        value, slope = with_gradients(value, theta)
        wanted, exact = with_gradients(wanted, leaf)
        assert_close(value.double(), wanted, rtol=atol, atol=atol)
        assert_close(slope.double(), exact, rtol=4 * atol, atol=atol)
    probs = probs.detach()
    conditionals = q.log_conditionals(points).gather(-1, points.unsqueeze(-1)).sum((-1, -2))
    for prob in (q.log_prob(points), conditionals):
        assert_close(prob.detach().exp().double(), probs, rtol=atol, atol=atol)
    marginals = (probs @ indicators.flatten(1)).view(weights.shape)
    assert_close(q.marginals().detach().double(), marginals, rtol=0, atol=atol)
    torch.manual_seed(0)
    assert p_value(tally(q.sample((DRAWS,)), points), probs) > FALSE_ALARMS
    if isinstance(q, PlackettLuce):
        assert p_value(tally(top_k(theta.expand(DRAWS, -1), q.k), points), probs) > FALSE_ALARMS
