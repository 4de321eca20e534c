"""Estimators that learn between calls: compiled, checkpointed, and after wrong values."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent
from torch.utils.checkpoint import checkpoint

import catlog
from catlog.core.learning import frozen, write
from catlog.estimators import memorycater
from catlog.testing import z_limit
from support.compiling import why_not_inductor
from support.laws import bits

# torch raises them when it compiles.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*_prims_common.check:FutureWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
)

needs_compiler = pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
# Eager mode's random numbers, and no vector instructions, which take the C++ compiler much longer.
OPTIONS = {"fallback_random": True, "compile_threads": 1, "cpp.simdlen": 1}

LEARNERS: dict[str, Callable[[], catlog.Estimator]] = {
    "MemoryCateR": lambda: catlog.estimators.MemoryCateR(samples=3, size=16),
    "MovingAverageBaseline": lambda: catlog.Reinforce(
        samples=2, baseline=catlog.estimators.MovingAverageBaseline(decay=0.7)
    ),
    "MovingAverageBaseline in float64": lambda: catlog.Reinforce(
        samples=2, baseline=catlog.estimators.MovingAverageBaseline(decay=0.7).double()
    ),
    "SlopeCateR": lambda: catlog.SlopeCateR(samples=2, decay=0.7),
    "MAPO": lambda: catlog.estimators.MAPO(size=2, samples=2),
}
LOGITS = torch.tensor([0.3, -0.5, 0.8, -0.2], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    """Smooth, with interactions of all orders, and far from zero."""
    return 3 + (x @ x.new_tensor([1.0, 2.0, -1.0, 0.5])).exp()


def law(logits: Tensor) -> Independent:
    return bits(logits, validate_args=False)


def learned(E: catlog.Estimator) -> list[Tensor]:
    """Return the buffers of the estimator, or of its baseline."""
    module = E if isinstance(E, nn.Module) else E.baseline
    return list(module.buffers())


def gradients(call: Callable[[Tensor], Tensor], calls: int, batch: int) -> Tensor:
    """Return the gradients of successive calls, [calls, batch, d]."""
    slopes = []
    for _ in range(calls):
        logits = LOGITS.expand(batch, -1).clone().requires_grad_()
        slopes.append(torch.autograd.grad(call(logits).sum(), logits)[0])
    return torch.stack(slopes)


def exact() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(catlog.Exact()(f, law(logits)), logits)[0]


@pytest.fixture
def one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give MemoryCateR one kernel instead of nine, which compiles in a ninth of the time."""
    monkeypatch.setattr(memorycater, "WIDTHS", (2.0,))
    monkeypatch.setattr(memorycater, "SHARES", (1e-3,))


@needs_compiler
@pytest.mark.usefixtures("one_setting", "own_inductor_cache")
@pytest.mark.parametrize("name", LEARNERS)
def test_inductor_learns_as_eager_does_and_is_unbiased(name: str) -> None:
    """With the same random numbers, gradients and buffers are those of eager mode.

    The mean gradient passes a z-test: batch elements are independent given what was learned before.
    The last line says that a relative bias of 10 % would be detected. Reading buffers that were
    overwritten caused one of 67 %.
    """
    torch._dynamo.reset()
    batch, results = 2000, []
    with torch._inductor.config.patch(OPTIONS):
        for compiled in (False, True):
            E = LEARNERS[name]()

            def loss(logits: Tensor, E: catlog.Estimator = E) -> Tensor:
                return E(f, law(logits))

            torch.manual_seed(0)
            call = torch.compile(loss, fullgraph=True) if compiled else loss
            results.append([gradients(call, 12, batch), *learned(E)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert all((result != 0).any() for result in results[0])  # something was learned
    estimates = results[1][0]
    error = estimates.mean((0, 1)) - exact()
    deviation = (estimates.var(1).sum(0) / batch).sqrt() / len(estimates)
    bound = z_limit(len(LOGITS))
    assert (error.abs() <= bound * deviation).all()
    assert (0.1 * exact().norm() > 2 * bound * deviation).all()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_checkpoint_is_refused_while_it_learns(name: str, reentrant: bool) -> None:
    E, logits = LEARNERS[name](), LOGITS.clone().requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"learns from every call.*around the network inside f.*eval\(\)"
    ):
        checkpoint(lambda logits: E(f, law(logits)), logits, use_reentrant=reentrant).backward()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_checkpoint_is_right_once_it_is_frozen(name: str) -> None:
    E = LEARNERS[name]()
    E(f, law(LOGITS.clone().requires_grad_())).backward()
    (E if isinstance(E, nn.Module) else E.baseline).eval()
    before = [buffer.clone() for buffer in learned(E)]
    slopes = []
    for call in (E, lambda *arguments: checkpoint(E, *arguments, use_reentrant=False)):
        torch.manual_seed(0)
        logits = LOGITS.clone().requires_grad_()
        slopes.append(torch.autograd.grad(call(f, law(logits)), logits)[0])
    assert torch.equal(*slopes)
    assert all(torch.equal(*pair) for pair in zip(before, learned(E), strict=True))


def root(x: Tensor) -> Tensor:
    """Finite everywhere, with an infinite slope at zero."""
    return x.sum(-1).sqrt()


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda x: f(x) * torch.nan,
    "infinity": lambda x: f(x) / (x.sum(-1) - x.sum(-1)),
    "1e25": lambda x: 1e25 * f(x),
    "infinite slope": root,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", LEARNERS)
def test_a_wrong_value_does_not_harm_later_calls(name: str, wrong: str) -> None:
    """Without checks of values, buffers stay finite and later estimates unbiased."""
    E = LEARNERS[name]()
    x = torch.zeros(E.samples, 4)
    x[1:] = torch.eye(4)[: len(x) - 1]
    for _ in range(2):
        logits = LOGITS.float().requires_grad_()
        E(WRONG[wrong], law(logits), x=x if name != "MAPO" else None).backward()
        floats = [buffer for buffer in learned(E) if buffer.is_floating_point()]
        assert all(buffer.isfinite().all() for buffer in floats)
    slopes = gradients(lambda logits: E(f, law(logits)), 30, 500)
    error = slopes.mean((0, 1)) - exact()
    deviation = (slopes.var(1).sum(0) / 500).sqrt() / len(slopes)
    assert (error.abs() <= 6 * deviation).all()


@pytest.mark.parametrize("wrong", ["NaN", "infinity", "infinite slope"])
def test_a_wrong_slope_or_value_is_named(wrong: str) -> None:
    E = catlog.SlopeCateR(samples=2)
    before = [buffer.clone() for buffer in E.buffers()]
    with pytest.raises(ValueError, match=r"f.* finite numbers, but"):
        E(WRONG[wrong], bits(LOGITS.float().requires_grad_()), x=torch.zeros(2, 4)).backward()
    assert all(torch.equal(*pair) for pair in zip(before, E.buffers(), strict=True))


def test_a_point_of_nan_is_not_remembered() -> None:
    """MAPO remembers the best points, and NaN is not one of them."""
    E = catlog.estimators.MAPO(size=1, samples=2, max_variables=3)
    values = torch.tensor([torch.nan, 1.0, 2.0])
    E(lambda x: values[: len(x)], law(torch.zeros(3)), x=torch.eye(3)[:2])
    assert E.memory.tolist() == [[0, 1, 0]]


def test_tiny_slopes_leave_the_fit_finite() -> None:
    """Their squares are below the normal numbers of float32."""
    E = catlog.SlopeCateR(samples=2)
    for _ in range(3):
        E(lambda x: 1e-20 * f(x), law(LOGITS.float().requires_grad_())).backward()
    assert E.coefficients().isfinite().all()


@pytest.mark.parametrize("together", [False, True])
def test_only_finite_numbers_are_written(together: bool) -> None:
    floats, whole = torch.zeros(2), torch.zeros(3, dtype=torch.int64)
    write([(floats, torch.tensor([1.0, torch.nan])), (whole, torch.ones_like(whole))], together)
    assert floats.tolist() == [0.0 if together else 1.0, 0.0]
    assert whole.tolist() == [0 if together else 1] * 3
    write([(floats, torch.tensor([1.0, 2.0])), (whole, torch.ones_like(whole))], together)
    assert floats.tolist() == [1.0, 2.0]
    assert whole.tolist() == [1, 1, 1]


@needs_compiler
@pytest.mark.usefixtures("own_inductor_cache")
def test_frozen_copies_survive_compiled_writes() -> None:
    """The backward pass uses the values that were read before the write."""
    torch._dynamo.reset()
    module = nn.Module()
    module.register_buffer("kept", torch.full((4,), 2.0))

    @torch.compile(fullgraph=True)
    def loss(theta: Tensor) -> Tensor:
        (kept,) = frozen(module, module.kept)
        value = (theta.exp() * kept.sin()).sum()
        write([(module.kept, module.kept + 1)])
        return value

    theta = torch.zeros(4, requires_grad=True)
    loss(theta).backward()
    torch.testing.assert_close(theta.grad, torch.full((4,), 2.0).sin())
    assert module.kept.tolist() == [3.0] * 4
