"""``make test-compile``: Inductor agrees with eager mode, for every estimator, also as it learns.

``fallback_random`` makes Inductor use eager mode's random numbers, so that equal seeds give equal
draws. But for ``test_every_setting``, the code for a CPU has no vector instructions, which take the
C++ compiler much longer.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import catlog
from catlog.compiled import compiled_update
from catlog.functions import FirstLayerLinear
from catlog.testing import z_limit
from catlog.testing.cases import seeded
from catlog.testing.settings import estimators, one_of_each, supports
from support.compiling import LAWS, check, why_not_inductor, widest
from support.laws import bits
from support.learners import LEARNERS, LOGITS, bias, f, gradients, law, learner

pytestmark = [
    pytest.mark.usefixtures("own_inductor_cache"),
    pytest.mark.filterwarnings("ignore"),  # raised by Inductor
]
DEVICES = {"cpu": why_not_inductor(), "cuda": "" if torch.cuda.is_available() else "needs a GPU"}
needs_compiler = pytest.mark.skipif(bool(DEVICES["cpu"]), reason=DEVICES["cpu"])
OPTIONS = {"fallback_random": True, "compile_threads": 1}


@needs_compiler
@pytest.mark.parametrize("E", one_of_each())
def test_inductor_equals_eager(E: catlog.Estimator) -> None:
    check(E, widest(E), [1, 1, 1], dynamic=True, options={**OPTIONS, "cpp.simdlen": 1})


@needs_compiler
def test_points_that_are_given() -> None:
    """Compiled draws differ from eager ones, so x is given."""
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    function = FirstLayerLinear(network, lambda out: out.squeeze(-1).exp())
    x = torch.bernoulli(torch.full((2, 5, 6), 0.5), generator=seeded())
    logits = torch.zeros(5, 6, requires_grad=True)

    def loss(logits: Tensor) -> Tensor:
        return catlog.IndeCateR(2)(function, bits(logits), x=x)

    eager, compiled = loss(logits), torch.compile(loss, fullgraph=True, dynamic=False)(logits)
    assert_close(compiled, eager)
    gradients = [
        torch.autograd.grad(step.sum(), [logits, *network.parameters()])
        for step in (compiled, eager)
    ]
    assert_close(*gradients)


@needs_compiler
def test_compiled_updates_do_not_use_up_the_recompilations() -> None:
    """Every update is compiled in one piece, and moves as the plain one does."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # names of torch 2.6, which later versions take as well
    with torch._dynamo.config.patch(cache_size_limit=2, fail_on_cache_limit_hit=True):
        for _ in range(4):
            moved = []
            for compiled in (False, True):
                torch.manual_seed(0)
                model = nn.Linear(4, 3).double()
                optimiser = torch.optim.Adam(model.parameters(), 1e-2)
                update = compiled_update(optimiser) if compiled else optimiser.step
                for _ in range(3):
                    optimiser.zero_grad()
                    model(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
                    update()
                moved.append(model.weight.detach())
            assert_close(*moved, rtol=1e-4, atol=1e-6)  # compiled, steps are counted in float32
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("dynamic", "graphs"), [(None, [1, 2, 2]), (True, [1, 1, 1])], ids=["None", "True"]
)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
@pytest.mark.parametrize("device", DEVICES)
def test_every_setting(
    device: str, E: catlog.Estimator, law: str, dynamic: bool | None, graphs: list[int]
) -> None:
    if DEVICES[device] or not supports(E, law) or (device == "cuda" and law != widest(E)):
        pytest.skip(DEVICES[device] or "not for this distribution")
    options = {"fallback_random": True} | ({"compile_threads": 1} if device == "cuda" else {})
    check(E, law, graphs, dynamic=dynamic, options=options, device=device)


@needs_compiler
@pytest.mark.usefixtures("two_kernels")
@pytest.mark.parametrize("name", LEARNERS)
def test_inductor_learns_as_eager_does_and_is_unbiased(name: str) -> None:
    """With the same random numbers, gradients and buffers are those of eager mode.

    The mean gradient passes a z-test. The last line says that a relative bias of 10 % would be
    detected. Reading buffers that were overwritten caused one of 67 %.
    """
    torch._dynamo.reset()
    results = []
    with torch._inductor.config.patch({**OPTIONS, "cpp.simdlen": 1}):
        for compiled in (False, True):
            E = LEARNERS[name]()

            def loss(logits: Tensor, E: catlog.Estimator = E) -> Tensor:
                return E(f, law(logits))

            torch.manual_seed(0)
            call = torch.compile(loss, fullgraph=True) if compiled else loss
            results.append([gradients(call, 12, 2000), *learner(E).buffers()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    error, deviation, exact = bias(results[1][0])
    bound = z_limit(len(LOGITS))
    assert (error.abs() <= bound * deviation).all()
    assert (0.1 * exact.norm() > 2 * bound * deviation).all()
