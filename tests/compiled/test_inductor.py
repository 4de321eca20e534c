"""``make test-compile``: Inductor agrees with eager mode, for every estimator.

``fallback_random`` makes Inductor use eager mode's random numbers, so that equal seeds give equal
draws. On a CPU, the code has no vector instructions, which take the C++ compiler much longer;
test_every_setting.py has them.
"""

import pytest
import torch

import catlog
from catlog.testing.settings import estimators, one_of_each
from support.compiling import check, why_not_inductor, widest

pytestmark = [
    pytest.mark.usefixtures("own_inductor_cache"),
    pytest.mark.filterwarnings("ignore"),  # raised by Inductor
]
needs_compiler = pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
OPTIONS = {"fallback_random": True, "compile_threads": 1}


@needs_compiler
@pytest.mark.parametrize("E", one_of_each())
def test_inductor_equals_eager(E: catlog.Estimator) -> None:
    check(E, widest(E), [1, 1, 1], dynamic=True, options={**OPTIONS, "cpp.simdlen": 1})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("dynamic", "graphs"), [(None, [1, 2, 2]), (True, [1, 1, 1])], ids=["None", "True"]
)
@pytest.mark.parametrize("E", estimators())
def test_inductor_on_a_gpu(E: catlog.Estimator, dynamic: bool | None, graphs: list[int]) -> None:
    check(E, widest(E), graphs, dynamic=dynamic, options=OPTIONS, device="cuda")
