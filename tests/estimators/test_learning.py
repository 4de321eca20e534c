"""Estimators that learn between calls: compiled, checkpointed, and after a call that went wrong."""

from collections.abc import Callable
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.utils.checkpoint import checkpoint

import catlog
from catlog.estimators.catlog_trick import kernel_critic as memory
from catlog.estimators.learning import frozen, write
from compiling import why_not_inductor

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*_prims_common.check:FutureWarning"
)  # torch's own, when it compiles

needs_compiler = pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
# Eager mode's random numbers; and no vector instructions, for which the C++ compiler takes much longer.
OPTIONS = {"fallback_random": True, "compile_threads": 1, "cpp.simdlen": 1}

LEARNERS: dict[str, Callable[[], catlog.Estimator]] = {
    "MemoryCateR": lambda: catlog.MemoryCateR(samples=3, size=16),
    "MovingAverageBaseline": lambda: catlog.Reinforce(
        samples=2, baseline=catlog.MovingAverageBaseline(decay=0.7)
    ),
    "MovingAverageBaseline in float64": lambda: catlog.Reinforce(
        samples=2, baseline=catlog.MovingAverageBaseline(decay=0.7).double()
    ),
    "SlopeCateR": lambda: catlog.SlopeCateR(samples=2, decay=0.7),
    "MAPO": lambda: catlog.MAPO(size=2, samples=2),
}
LOGITS = torch.tensor([0.3, -0.5, 0.8, -0.2], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    """Smooth, with interactions of all orders, and far from zero."""
    return 3 + (x @ x.new_tensor([1.0, 2.0, -1.0, 0.5])).exp()


def law(logits: Tensor) -> Independent:
    return Independent(Bernoulli(logits=logits, validate_args=False), 1)


def learned(E: catlog.Estimator) -> list[Tensor]:
    """The buffers of the estimator, or of its baseline."""
    return list((E if isinstance(E, nn.Module) else E.baseline).buffers())  # type: ignore[attr-defined]


def gradients(call: Callable[[Tensor], Tensor], calls: int, batch: int) -> Tensor:
    """Of so many calls in a row, [calls, batch, d]."""
    found = []
    for _ in range(calls):
        logits = LOGITS.expand(batch, -1).clone().requires_grad_()
        found.append(torch.autograd.grad(call(logits).sum(), logits)[0])
    return torch.stack(found)


def exact() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(catlog.Exact()(f, law(logits)), logits)[0]


@pytest.fixture
def one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel instead of nine for MemoryCateR: a ninth of the time to compile."""
    monkeypatch.setattr(memory, "WIDTHS", (2.0,))
    monkeypatch.setattr(memory, "SHARES", (1e-3,))


@needs_compiler
@pytest.mark.usefixtures("one_setting", "own_inductor_cache")
@pytest.mark.parametrize("name", LEARNERS)
def test_inductor_learns_as_eager_does_and_is_unbiased(name: str) -> None:
    """With the same random numbers, every call's gradient and all that is learned are those of eager mode; and the gradient is
    right on average, by a z-test at one in a million: batch elements are independent given what was learned before.

    The last line says that a relative bias of 10 % would be seen. Reading buffers that were overwritten made one of 67 %.
    """
    torch._dynamo.reset()
    batch, found = 2000, []
    with torch._inductor.config.patch(OPTIONS):
        for compiled in (False, True):
            E = LEARNERS[name]()

            def loss(logits: Tensor, E: catlog.Estimator = E) -> Tensor:
                return E(f, law(logits))

            torch.manual_seed(0)
            call = torch.compile(loss, fullgraph=True) if compiled else loss
            found.append([gradients(call, 12, batch), *learned(E)])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)
    assert all((each != 0).any() for each in found[0])  # something was learned
    estimates = found[1][0]
    error = estimates.mean((0, 1)) - exact()
    deviation = (estimates.var(1).sum(0) / batch).sqrt() / len(estimates)
    bound = NormalDist().inv_cdf(1 - 1e-6 / (2 * len(LOGITS)))
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
    E(f, law(LOGITS))
    (E if isinstance(E, nn.Module) else E.baseline).eval()  # type: ignore[attr-defined]
    before = [each.clone() for each in learned(E)]
    found = []
    for call in (E, lambda *given: checkpoint(E, *given, use_reentrant=False)):
        torch.manual_seed(0)
        logits = LOGITS.clone().requires_grad_()
        found.append(torch.autograd.grad(call(f, law(logits)), logits)[0])
    assert torch.equal(*found)
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
def test_one_wrong_call_harms_no_later_one(name: str, wrong: str) -> None:
    """As it does not under compile or with validate=False, where nobody looks at the numbers: what was learned stays finite."""
    E = LEARNERS[name]()
    object.__setattr__(E, "validate", False)
    x = torch.zeros(E.rows(law(LOGITS)), 4)
    x[1:] = torch.eye(4)[: len(x) - 1]
    for _ in range(2):
        E(WRONG[wrong], law(LOGITS.float()), x=x if name != "MAPO" else None)
        assert all(each.isfinite().all() for each in learned(E) if each.is_floating_point())
    found = gradients(lambda logits: E(f, law(logits)), 30, 500)
    error = found.mean((0, 1)) - exact()
    assert (error.abs() <= 6 * (found.var(1).sum(0) / 500).sqrt() / len(found)).all()


@pytest.mark.parametrize("wrong", ["NaN", "infinity", "infinite slope"])
def test_a_wrong_slope_or_value_is_named(wrong: str) -> None:
    E = catlog.SlopeCateR(samples=2)
    before = [each.clone() for each in E.buffers()]
    with pytest.raises(ValueError, match=r"f.* finite numbers, but"):
        E(WRONG[wrong], law(LOGITS.float()), x=torch.zeros(2, 4))
    assert all(torch.equal(*pair) for pair in zip(before, E.buffers(), strict=True))


def test_a_point_of_nan_is_not_remembered() -> None:
    """MAPO keeps the best points; NaN is not among them."""
    E = catlog.MAPO(size=1, samples=2, max_variables=3, validate=False)
    values = torch.tensor([torch.nan, 1.0, 2.0])
    E(lambda x: values[: len(x)], law(torch.zeros(3)), x=torch.eye(3)[:2])
    assert E.memory.tolist() == [[0, 1, 0]]


def test_tiny_slopes_leave_the_fit_finite() -> None:
    """Squares of slopes below float32's normal numbers: the product of both scales is infinite."""
    E = catlog.SlopeCateR(samples=2)
    for _ in range(3):
        E(lambda x: 1e-20 * f(x), law(LOGITS.float()))
    assert E.coefficients().isfinite().all()


@pytest.mark.parametrize("together", [False, True])
def test_nothing_that_is_not_finite_is_written(together: bool) -> None:
    kept = torch.zeros(2), torch.zeros(3, dtype=torch.int64)
    write(
        [(kept[0], torch.tensor([1.0, torch.nan])), (kept[1], torch.ones(3, dtype=torch.int64))],
        together,
    )
    assert [each.tolist() for each in kept] == (
        [[0.0, 0.0], [0, 0, 0]] if together else [[1.0, 0.0], [1, 1, 1]]
    )
    write(
        [(kept[0], torch.tensor([1.0, 2.0])), (kept[1], torch.ones(3, dtype=torch.int64))], together
    )
    assert [each.tolist() for each in kept] == [[1.0, 2.0], [1, 1, 1]]


@needs_compiler
@pytest.mark.usefixtures("own_inductor_cache")
def test_frozen_copies_survive_compiled_writes() -> None:
    """The smallest case of the pattern: what was read before a write is what the backward pass uses."""
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
