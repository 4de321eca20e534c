"""SlopeCateR: unbiased in any state, exact where slopes are, robust where they mislead."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from math import ceil

import pytest
import torch
from torch import Tensor, nn

import catlog
from catlog import SlopeCateR
from catlog.compiled import CompiledStep
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expectation, expected
from catlog.testing.cases import seeded
from support.enumerated import MASKED_ONE_HOT
from support.laws import bits, one_hots


def gradients(E: SlopeCateR, f: Callable[[Tensor], Tensor], logits: Tensor, repeats: int) -> Tensor:
    copies = logits.expand(repeats, *logits.shape).clone().requires_grad_()
    E(f, bits(copies), generator=seeded()).sum().backward()
    assert copies.grad is not None
    return copies.grad


@pytest.mark.parametrize(
    "case", [CASES["bits"], CASES["one-hot"], MASKED_ONE_HOT], ids=lambda case: case.name
)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_unbiased_in_any_state(case: Case, pairs: bool, every: int) -> None:
    for seed, f in enumerate(FUNCTIONS.values()):
        generator = seeded(seed)
        E = SlopeCateR(2, corrections=1 + seed, pairs=pairs, every=every)
        root = torch.randn(2, 2, generator=generator)
        E.gram.copy_(root @ root.T)
        E.excess.copy_(3 * torch.randn(2, generator=generator))
        E.size2.copy_(torch.rand(1024, generator=generator) * 4)
        E.spread2.copy_(torch.rand(1024, generator=generator))
        assert (E.coefficients() - 1).abs().min() > 0.1
        exact = expected(case, f, PARAMETER)
        E.corrects = False
        without = expectation(deepcopy(E), case, f, PARAMETER)  # a copy: E learns from every call
        E.corrects = True
        got = expectation(E, case, f, PARAMETER)
        if every > 1:
            got = tuple(a / every + b * (1 - 1 / every) for a, b in zip(got, without, strict=True))
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("k", [2, 5])
def test_a_call_without_corrections_evaluates_and_learns_nothing_more(k: int) -> None:
    E, rows = SlopeCateR(3, corrections=2, every=4), []
    logits = torch.randn(7, 3, k, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x[..., 0].sum(-1).sin()

    before = {name: buffer.clone() for name, buffer in E.named_buffers()}
    for E.corrects in (False, True):
        q = one_hots(logits)
        E(f, q).sum().backward()
        learned = [not torch.equal(before[name], buffer) for name, buffer in E.named_buffers()]
        assert any(learned) == E.corrects
    changes = 2 if E.uses_pairs(k) else 2 * (k - 1)
    assert rows == [3, 3 + changes]
    assert E.evaluations(q) == 3 + ceil(changes / 4)


@pytest.mark.parametrize(("uniform", "corrects"), [(0.0, True), (0.2499, True), (0.25, False)])
def test_the_coin_has_probability_one_over_every(uniform: float, corrects: bool) -> None:
    rows = []

    def f(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x.sum(-1)

    coin, start = torch.tensor(uniform), torch.rand(1)
    q = bits(torch.zeros(3))
    SlopeCateR(2, every=4)(f, q, noise=(coin, start) if corrects else coin)
    assert rows == [2 + 2 * corrects]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_compiled_and_mapped_calls_always_correct() -> None:
    often, seldom = SlopeCateR(2).eval(), SlopeCateR(2, every=1000).eval()
    x, start = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]), torch.tensor([0.3])

    def value(E: SlopeCateR, logits: Tensor) -> Tensor:
        return E(lambda x: x.sum(-1).exp(), bits(logits), x=x, noise=start)

    logits = torch.randn(3, requires_grad=True)
    (wanted,) = torch.autograd.grad(value(often, logits), logits)
    compiled = torch.compile(value, backend="eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(seldom, logits), logits)
    torch.testing.assert_close(got, wanted)
    mapped = torch.func.grad(partial(value, seldom))(logits.detach())
    torch.testing.assert_close(mapped, wanted)


@pytest.mark.parametrize(("kind", "factor"), [("bits", 1.0), ("one-hot", 2.0)])
@pytest.mark.parametrize("places", [0, 3, 1024])
def test_sizes_of_slopes_are_learned(kind: str, factor: float, places: int) -> None:
    """All slopes of w . x are known; variables that share an entry get the root mean square."""
    w = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5])
    logits = torch.zeros(7, 5, requires_grad=True)  # all variables have the same probabilities
    q = bits(logits) if kind == "bits" else one_hots(torch.stack([logits, logits], -1))
    E = SlopeCateR(4, slope_entries=places)
    for _ in range(3):
        E(
            (lambda x: x @ w)
            if kind == "bits"
            else (lambda x: (x * torch.stack([-w, w], -1)).sum((-1, -2))),
            q,
        ).sum().backward(retain_graph=True)  # q's graph serves all calls
    alone = w.abs() * factor / 2**0.5
    shared = torch.stack(
        [(alone[0] ** 2 + alone[3] ** 2) / 2, (alone[1] ** 2 + alone[4] ** 2) / 2, alone[2] ** 2]
    ).sqrt()
    expected = {0: torch.ones(5), 3: shared.repeat(2)[:5], 1024: alone}[places]
    torch.testing.assert_close(E.sizes(5), expected)


def test_coefficients_are_those_of_least_squares() -> None:
    """One bit per distribution: the regression over both of its values is written out."""
    logits = torch.linspace(-1.5, 2.0, 8, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    width = torch.linspace(0.5, 4.0, 8, dtype=torch.float64)
    E = SlopeCateR(1, corrections=1, decay=0.0).double()  # the fit is that of the last call
    E(lambda x: (width * x[..., 0]).sin(), bits(logits)).sum().backward()
    p = logits.detach().squeeze(-1).sigmoid()
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    slope, variance = width * (width * x).cos(), p * (1 - p)
    features = torch.stack([variance * slope, (0.5 - p) * (x - p) * slope], -1)
    chance = torch.stack([1 - p, p])
    weighted = (chance.sqrt().unsqueeze(-1) * features).flatten(0, 1)
    target = (chance.sqrt() * (variance * width.sin())).flatten()
    ridge = (0.01 * weighted.square().sum(0)).sqrt()  # pulls both coefficients towards 1
    weighted, target = torch.cat([weighted, ridge.diag()]), torch.cat([target, ridge])
    expected = torch.linalg.lstsq(weighted, target.unsqueeze(-1)).solution.squeeze(-1)
    torch.testing.assert_close(E.coefficients(), expected, rtol=0, atol=1e-10)
    assert (expected - 1).abs().min() > 0.1


def test_coefficients_of_slopes_are_learned() -> None:
    """alpha falls to 0 where slopes mislead, beta where f is linear; both are frozen in eval()."""
    logits = torch.tensor([0.4, -0.3, 1.2, -2.0, 0.1])
    weight = torch.tensor([1.0, -0.7, 0.4, 1.3, 0.6])

    def trained(f: Callable[[Tensor], Tensor]) -> SlopeCateR:
        E = SlopeCateR(6)
        for _ in range(40):
            gradients(E, f, logits, 50)
        return E

    product = trained(lambda x: (1 - weight * x).prod(-1))
    assert abs(product.coefficients()[0] - 1) < 0.1
    assert abs(product.coefficients()[1]) < 0.1

    def misleading(x: Tensor) -> Tensor:
        """Slopes at 0 and 1 are ten times the effect of a bit, with the wrong sign."""
        return (x @ weight).square() - 11 / (2 * torch.pi) * (2 * torch.pi * x).sin() @ weight

    E = trained(misleading)
    assert E.coefficients()[0].abs() < 0.4
    naive = SlopeCateR(6, decay=1.0)
    ours = gradients(deepcopy(E).eval(), misleading, logits, 400).var(0).sum()
    assert ours < 0.3 * gradients(naive, misleading, logits, 400).var(0).sum()
    before = deepcopy(E.state_dict())
    gradients(E.eval(), misleading, logits, 2)
    assert all(torch.equal(value, before[key]) for key, value in E.state_dict().items())


@pytest.mark.parametrize("corrects", ["no", 1, 0.0, torch.tensor(True)], ids=str)
def test_the_decision_is_true_false_or_none(corrects: object) -> None:
    E = SlopeCateR(2, every=4)
    with pytest.raises(TypeError, match="SlopeCateR: `corrects` must be True or False"):
        E.corrects = corrects
    with pytest.raises(TypeError, match="`corrects`"), E.deciding(corrects):
        pass
    assert E.corrects is None


# `compiled_step` tosses the coin of an estimator that corrects in some calls only. Captured steps:
# tests/gpu/test_captured_steps.py, on a CPU as well.

X = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
START = torch.tensor([0.3])


def step_of(E: SlopeCateR, **options: object) -> tuple[nn.Parameter, CompiledStep]:
    theta = nn.Parameter(torch.tensor([0.5, -1.0, 0.2]))

    def loss(scale: Tensor) -> Tensor:
        q = bits(theta, validate_args=False)
        return E(lambda z: (scale * z.sum(-1)).exp(), q, x=X, noise=START if E.corrects else None)

    return theta, catlog.compiled_step(loss, torch.optim.SGD([theta], 0.1), **options)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_a_compiled_step_corrects_as_the_coin_says(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: compile(f, backend="aot_eager", fullgraph=True)
    )
    E, eager = SlopeCateR(2, every=4), SlopeCateR(2, every=4)
    theta, step = step_of(E, compile=True, estimator=E)
    expected, plain = step_of(eager)
    coins = [True, False, False, True, False]
    tosses = iter(coins)
    monkeypatch.setattr(E, "toss", lambda: next(tosses))
    for eager.corrects in coins:
        torch.testing.assert_close(step(torch.ones(())), plain(torch.ones(())))
        torch.testing.assert_close(theta, expected)
        assert E.corrects is None  # as before, so calls outside the step toss by themselves
    assert (step.mode, plain.mode) == ("compiled", "eager")
    assert next(tosses, None) is None  # one toss per step
    torch.testing.assert_close(dict(E.named_buffers()), dict(eager.named_buffers()))


def test_a_decision_replaces_the_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    E, often = SlopeCateR(2, every=4), SlopeCateR(2)
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("nobody asked for a coin"))
    _, step = step_of(E, estimator=E)
    for E.corrects in (True, False):
        assert step._decide() is E.corrects
    for estimator in (often, catlog.RLOO(2)):
        assert step_of(often, estimator=estimator)[1]._decide() is None


def test_eager_steps_leave_the_coin_to_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    E = SlopeCateR(2, every=4)
    _, step = step_of(E, estimator=E)
    tosses, coin = [], catlog.Randomness.coin
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("the step tosses no coin"))
    monkeypatch.setattr(catlog.Randomness, "coin", lambda draw: tosses.append(coin(draw)) or 0.9)
    step(torch.ones(()))
    assert len(tosses) == 1
