"""``make test-compile``: every setting on every distribution, in graphs that are checked; traced
with changing batches."""

from collections.abc import Iterator

import pytest
from torch import Tensor
from torch.testing import assert_close

import catlog
from catlog.testing.cases import normals
from catlog.testing.settings import one_of_each, select, supports
from support.compiling import (
    BATCHES,
    LAWS,
    assert_compiles,
    assert_compiles_on,
    both,
    checked_graphs,
    learns,
    widest,
)
from support.draws import slope_based
from support.structured_cases import STRUCTURED_CASES

pytestmark = [
    pytest.mark.usefixtures("two_kernels"),
    # torch's own, when it traces the autograd.Function of an estimator that learns
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def cases() -> Iterator[object]:
    for label, E in select().items():
        for law in LAWS:
            if supports(E, law):
                yield pytest.param(E, law, id=f"{label}-{law}")


@pytest.mark.parametrize(("E", "law"), list(cases()))
def test_compiled_equals_eager(E: catlog.Estimator, law: str) -> None:
    results = both(E, law, backend=checked_graphs, dynamic=False)
    assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("E", one_of_each())
def test_batches_and_numbers_of_variables_may_change(E: catlog.Estimator) -> None:
    """As torch.compile does by itself: the second batch size makes the size symbolic, and the third
    needs no compilation."""
    graphs: list[int] = []
    results = both(E, widest(E), [*BATCHES, (4, 2)], graphs, backend="eager")
    assert_close(*results, rtol=1e-12, atol=1e-12)
    assert graphs[:3] == [1, 2, 2]


@pytest.mark.parametrize("sampling", ["antithetic", "latin"])
@pytest.mark.parametrize("name", ["IndeCateR", "ReinMax", "DecoupledStraightThrough"])
def test_dependent_draws(name: str, sampling: str) -> None:
    E = catlog.estimators.ESTIMATORS[name](3, sampling=sampling)
    assert_close(*both(E, "bits", BATCHES, backend=checked_graphs), rtol=1e-12, atol=1e-12)


DEPENDENT = [
    *(E for E in select().values() if "structured" in E.supports and not learns(E)),
    catlog.SCateR(2, suffix="common"),
    catlog.SCateR(2, categories=1),
]


@pytest.mark.parametrize(
    ("name", "E"),
    [
        *(("network with a block", E) for E in DEPENDENT),
        ("chain", catlog.SCateR(2)),
        ("sequence, network(x, i)", catlog.SCateR(2, suffix="common")),
        ("sequence that ends, network(x, i)", catlog.SCateR(2)),
        *((name, catlog.SCateR(2)) for name in ("crf", "ranking", "subset")),
        *((name, catlog.RLOO(3)) for name in ("crf", "ranking", "subset", "multinomial")),
        ("mixture of numbers", catlog.RLOO(3)),
        ("subset", catlog.CritiCateR(4)),
    ],
    ids=str,
)
def test_structured_distributions(name: str, E: catlog.Estimator) -> None:
    assert_compiles_on(STRUCTURED_CASES[name], E)


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_layers_that_draw(E: catlog.Estimator, bits: bool) -> None:
    weight = normals(5, 4, seed=1)

    def loss(logits: Tensor) -> Tensor:
        return (catlog.sample(logits, E, bits=bits) * weight).sum(-1).sin().sum()

    assert_compiles(loss, normals(5, 4).requires_grad_(), dynamic=None)
