"""Estimators make no tensor that is much larger than the points that f gets, and few of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Poisson

from catlog import Estimator, Exact, IndeCateR, SCateR
from catlog.distributions import MarkovChain
from catlog.estimators import ARSM, LEG, RAM, CountDifferences, DisARMTree
from catlog.testing.cases import normals
from support.laws import integers, one_hots
from support.operations import Operations


def chain(length: int) -> Distribution:
    return MarkovChain(torch.zeros(2), torch.zeros(2, 2, requires_grad=True), length=length)


def operations(E: Estimator, q: Distribution) -> Operations:
    with Operations() as made:
        E(lambda x: x.float().mean(-1), q).sum().backward(retain_graph=True)
    return made


def categories(*shape: int) -> Distribution:
    """Return variables with logits of this shape, ``[*batch, d, k]``."""
    return integers(torch.zeros(shape, requires_grad=True), validate_args=False)


@pytest.mark.parametrize(
    ("E", "q", "numbers"),
    [
        (Exact(chunk_size=1000), categories(50, 10, 2), 50 * 2**10),  # the probabilities
        (IndeCateR(250), categories(10, 50, 40), 2**22),  # tables of a part of the draws
        (SCateR(chunk_size=10), categories(300, 2), 10 * 300),
        (SCateR(variables=200, chunk_size=10), categories(300, 2), 10 * 300),
        (RAM(chunk_size=10), categories(300, 2), 10 * 300),
        (LEG(chunk_size=8), categories(64, 2), 8 * 64),
        (LEG(chunk_size=8), chain(64), 8 * 64),
        (DisARMTree(), categories(2, 300), 4 * 2 * 300),
        (DisARMTree(tree="stick"), categories(2, 300), 4 * 2 * 300),
        (ARSM(), categories(20, 150), 20 * 4096),  # not d k^2: swaps are evaluated in chunks
    ],
    ids=repr,
)
def test_no_tensor_is_larger_than_stated(E: Estimator, q: Distribution, numbers: int) -> None:
    assert operations(E, q).largest_bytes <= 8 * numbers


COUNTS = Independent(Poisson(torch.ones(8, requires_grad=True)), 1)


@pytest.mark.parametrize(
    ("few", "many", "factor"),
    [
        *(
            (*((E(samples=n, chunk_size=4), q) for n in (32, 128)), 4)
            for E, q in ((LEG, categories(8, 2)), (SCateR, categories(8, 2)))
        ),
        (*((CountDifferences(n, chunk_size=4), COUNTS) for n in (32, 128)), 4),
        # The points of twice as many variables are four times as many numbers.
        (*((SCateR(chunk_size=4), chain(length)) for length in (32, 64)), 4.2),
    ],
)
def test_memory_and_time_grow_as_the_points_do(
    few: tuple[Estimator, Distribution], many: tuple[Estimator, Distribution], factor: float
) -> None:
    assert operations(*many).bytes <= factor * operations(*few).bytes


@pytest.mark.parametrize("chunk_size", [1, 4, 7, 30])
@pytest.mark.parametrize(
    "E",
    [Exact(), IndeCateR(3), IndeCateR(2, per_variable=True), IndeCateR(3, variables=2)],
    ids=repr,
)
def test_chunks_have_the_stated_number_of_rows(E: Estimator, chunk_size: int) -> None:
    rows: list[list[int]] = []
    for chunked in (E, replace(E, chunk_size=chunk_size)):
        rows.append([])

        def f(x: Tensor) -> Tensor:
            rows[-1].append(len(x))
            return x.sum((-1, -2)).sin()

        chunked(f, one_hots(normals(2, 3, 3)))
    if not isinstance(E, Exact):
        assert rows[0].pop(0) == rows[1].pop(0)  # the draws
    assert sum(rows[0]) == sum(rows[1])
    assert max(rows[1]) <= max(1, chunk_size // 2)
