"""Inductor, the backend of torch.compile that users get, against eager mode: every estimator, three batch sizes in one function.

Inductor makes random numbers of its own; ``fallback_random`` has it take eager mode's, so that equal seeds give equal draws. On
a CPU, code is made without vector instructions, for which the C++ compiler takes much longer; ``make test-compile`` has them.
"""

from collections.abc import Iterator

import pytest
import torch

import catlog
from compiling import BATCHES, both, learns, why_not_inductor, widest
from variants import estimators, one_of_each

pytestmark = pytest.mark.filterwarnings("ignore")  # Inductor's own
needs_compiler = pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
OPTIONS = {"fallback_random": True, "compile_threads": 1}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read that an earlier session compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def check(E: catlog.Estimator, law: str, graphs: list[int], **options: object) -> None:
    """Three batch sizes: values and gradients, and how many graphs they took.

    Of estimators that learn only that they compile: test_learning_compiled.py has their gradients in expectation.
    """
    counted: list[int] = []
    compiled, eager = both(E, law, BATCHES, counted, **options)
    assert counted == graphs
    if learns(E):
        assert all(each.isfinite().all() for each in compiled)
    else:
        torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-9)


@needs_compiler
@pytest.mark.parametrize("E", one_of_each())
def test_inductor_equals_eager(E: catlog.Estimator) -> None:
    check(E, widest(E), [1, 1, 1], dynamic=True, options={**OPTIONS, "cpp.simdlen": 1})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dynamic", "graphs"), [(None, [1, 2, 2]), (True, [1, 1, 1])], ids=["None", "True"])
@pytest.mark.parametrize("E", estimators())
def test_inductor_on_a_gpu(E: catlog.Estimator, dynamic: bool | None, graphs: list[int]) -> None:
    check(E, widest(E), graphs, dynamic=dynamic, options=OPTIONS, device="cuda")
