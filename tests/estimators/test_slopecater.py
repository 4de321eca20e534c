"""SlopeCateR: unbiased in any state, exact where slopes are, robust where they mislead."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from math import ceil

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog import SlopeCateR
from catlog.estimators.slopecater import (
    systematic_sample,
)
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expectation, expected
from catlog.testing.cases import seeded
from support.laws import bits, one_hots
from support.more_cases import MASKED_ONE_HOT


def gradients(E: SlopeCateR, f: Callable[[Tensor], Tensor], logits: Tensor, repeats: int) -> Tensor:
    copies = logits.expand(repeats, *logits.shape).clone().requires_grad_()
    E(f, bits(copies), generator=seeded()).sum().backward()
    assert copies.grad is not None
    return copies.grad


@pytest.mark.parametrize(
    "case", [CASES["bits"], CASES["one-hot"], MASKED_ONE_HOT], ids=lambda case: case.name
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_unbiased_in_any_state(case: Case, seed: int, pairs: bool, every: int) -> None:
    generator = seeded(seed)
    E = SlopeCateR(2, corrections=1 + seed, pairs=pairs, every=every)
    root = torch.randn(2, 2, generator=generator)
    E.gram.copy_(root @ root.T)
    E.excess.copy_(3 * torch.randn(2, generator=generator))
    E.size2.copy_(torch.rand(1024, generator=generator) * 4)
    E.spread2.copy_(torch.rand(1024, generator=generator))
    assert (E.coefficients() - 1).abs().min() > 0.1
    for f in FUNCTIONS.values():
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


def test_systematic_sampling_has_the_expected_counts() -> None:
    """Integrated over its uniform; every count is within one of its expectation."""
    rates = torch.tensor([0.3, 1.9, 0.05, 0.75], dtype=torch.float64)
    ends = torch.cat([torch.zeros(1), rates.cumsum(-1) % 1, torch.ones(1)]).double().sort().values
    middles, lengths = (ends[1:] + ends[:-1]) / 2, ends.diff()
    cumulative = rates.cumsum(-1).repeat(len(middles), 1)
    chosen = systematic_sample(cumulative, 3, middles.unsqueeze(0))
    counts = torch.nn.functional.one_hot(chosen, 4).sum(0).double()
    torch.testing.assert_close(lengths @ counts, rates, rtol=1e-14, atol=1e-14)
    assert ((counts - rates).abs() < 1).all()


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


@pytest.mark.parametrize("kind", ["bits", "one-hot", "pairs"])
def test_corrections_of_quadratic_functions_are_zero(kind: str) -> None:
    """With alpha = beta = 1 the prediction is exact for f quadratic in each variable."""
    shape = (5,) if kind == "bits" else (3, 4)
    generator = seeded()
    a = torch.randn(*shape, *shape, dtype=torch.float64, generator=generator)
    logits = torch.randn(shape, dtype=torch.float64, generator=generator).expand(20, *shape)

    def q(logits: Tensor) -> Distribution:
        return bits(logits) if kind == "bits" else one_hots(logits)

    def f(x: Tensor) -> Tensor:
        flat = x.flatten(-len(shape))
        return ((flat @ a.reshape(flat.shape[-1], -1)) * flat).sum(-1)

    def gradient(E: catlog.Estimator) -> Tensor:
        leaf = logits.clone().requires_grad_()
        E(f, q(leaf), x=x).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    x = q(logits).sample((4,))
    for corrections in (1, 7):
        got = gradient(SlopeCateR(4, corrections=corrections, pairs=kind == "pairs"))
        torch.testing.assert_close(got, gradient(catlog.ReinMax(4)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("k", "samples", "pairs", "evaluations"),
    [(10, 1, None, 2), (10, 8, None, 14), (4, 8, None, 14), (4, 8, True, 14), (10, 1, False, 10)],
)
def test_evaluations_with_many_categories(
    k: int, samples: int, pairs: bool | None, evaluations: int
) -> None:
    E, rows = SlopeCateR(samples, pairs=pairs), []

    def f(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x[..., 0].sum(-1)

    q = one_hots(torch.zeros(5, k, requires_grad=True))
    E(f, q).backward()
    assert sum(rows) == E.evaluations(q) == evaluations


def test_a_certain_variable_has_no_other_category() -> None:
    """Its pair is the drawn category twice; it changes nothing, and the value counts it once."""
    logits = torch.tensor([[0.0, 200.0, -torch.inf], [0.3, -0.2, 1.0]], dtype=torch.float64)
    leaf = logits.expand(50, 2, 3).clone().requires_grad_()
    q = one_hots(leaf)
    value = SlopeCateR(1, corrections=4, pairs=True)(lambda x: x[..., 0, 1] * 3, q)
    torch.testing.assert_close(value, torch.full((50,), 3.0, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e-12


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


def test_state_is_saved() -> None:
    E, copy = SlopeCateR(4), SlopeCateR(4)
    f = lambda x: x.sum(-1).square().sin()  # noqa: E731
    for _ in range(3):
        gradients(E, f, torch.zeros(3), 5)
    copy.load_state_dict(E.state_dict())
    torch.testing.assert_close(
        gradients(E, f, torch.zeros(3), 5), gradients(copy, f, torch.zeros(3), 5), rtol=0, atol=0
    )


@pytest.mark.parametrize("corrects", ["no", 1, 0.0, torch.tensor(True)], ids=str)
def test_the_decision_is_true_false_or_none(corrects: object) -> None:
    E = SlopeCateR(2, every=4)
    with pytest.raises(TypeError, match="SlopeCateR: `corrects` must be True or False"):
        E.corrects = corrects
    with pytest.raises(TypeError, match="`corrects`"), E.deciding(corrects):
        pass
    assert E.corrects is None


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="its derivative in x is needed"):
        SlopeCateR(2)(lambda x: (x > 0.5).float().sum(-1), bits(torch.zeros(3, requires_grad=True)))
