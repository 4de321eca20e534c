"""``make test-compile``: every setting on every distribution, in graphs that are checked; traced
with changing batches."""

from collections.abc import Iterator

import pytest
from torch.testing import assert_close

import catlog
from catlog.estimators import memorycater
from catlog.testing.settings import one_of_each, select, supports
from support.compiling import BATCHES, LAWS, both, checked_graphs, widest

# torch's own, when it traces the autograd.Function of an estimator that learns
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MemoryCateR choose from two kernels instead of nine, which takes a fourth of the time."""
    monkeypatch.setattr(memorycater, "WIDTHS", (2.0,))
    monkeypatch.setattr(memorycater, "SHARES", (1e-6, 1e-3))


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
