"""`catlog.sample` and `catlog.gumbel_softmax`: the gradient of E(f, q), draws, layers.

On a GPU: tests/gpu/test_on_cuda.py.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, OneHotCategorical
from torch.nn import functional as F
from torch.testing import assert_close

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, gumbel_softmax, sample
from catlog.distributions import MarkovChain
from catlog.estimators import GumbelRao
from catlog.testing import z_limit
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals, seeded
from support.draws import distribution, slope_based
from support.gradients import assert_same


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_gradient_is_that_of_the_expectation(E: catlog.Estimator, bits: bool) -> None:
    """With the same draw and the same noise, for every estimator with a derivative of the draw."""
    leaf, weight = normals(5, 4).requires_grad_(), normals(5, 4, seed=3)

    def value_of(y: Tensor) -> Tensor:  # one per distribution: per bit, or per row of categories
        return (y * weight if bits else (y * weight).sum(-1)).sin()

    q = distribution(leaf, bits)
    torch.manual_seed(7)
    injected = draw_randomness(E, q)
    (wanted,) = torch.autograd.grad(E(value_of, q, **injected).sum(), leaf)
    if "x" in injected:
        injected["x"] = injected["x"][0]
    y = sample(leaf, E, bits=bits, **injected)
    (got,) = torch.autograd.grad(value_of(y).sum(), leaf)
    assert wanted.abs().max() > 1e-3
    assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, 2, -3])
def test_a_given_draw_has_its_categories_where_the_logits_have_them(dim: int) -> None:
    logits, E = normals(2, 4, 3), ReinMax()
    x = OneHotCategorical(logits=logits).sample()
    last, moved = logits.clone().requires_grad_(), logits.movedim(-1, dim).requires_grad_()
    y = sample(moved, E, dim=dim, x=x.movedim(-1, dim))
    assert torch.equal(y.movedim(dim, -1), x)
    weight = normals(2, 4, 3, seed=1)
    (wanted,) = torch.autograd.grad((sample(last, E, x=x) * weight).sum(), last)
    (got,) = torch.autograd.grad((y.movedim(dim, -1) * weight).sum(), moved)
    assert_close(got.movedim(dim, -1), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_draws_are_discrete_and_follow_the_generator(E: catlog.Estimator, bits: bool) -> None:
    E = replace(E, hard=True) if isinstance(E, GumbelSoftmax) else E
    logits = normals(50, 4)
    state = torch.get_rng_state()
    first, other = (sample(logits, E, bits=bits, generator=seeded(s)) for s in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, other)
    assert bool(((first == 0) | (first == 1)).all())
    if not bits:
        assert torch.equal(first.sum(-1), torch.ones(50).double())
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(sample(logits, E, bits=bits, generator=seeded(0)), first)


@pytest.mark.parametrize("bits", [False, True])
def test_draws_have_the_probabilities(bits: bool) -> None:
    """A z-test with one false alarm in a million; it detects probabilities of half the logits."""
    n, logits, E = 40_000, normals(4), GumbelSoftmax(hard=True, temperature=0.3)
    p = logits.sigmoid() if bits else logits.softmax(-1)
    for scale, fits in ((1.0, True), (0.5, False)):
        mean = sample(scale * logits.expand(n, 4), E, bits=bits, generator=seeded()).mean(0)
        score = ((mean - p).abs() / (p * (1 - p) / n).sqrt()).max()
        assert score < z_limit(4) if fits else score > 3 * z_limit(4)


FEW = [GumbelSoftmax(hard=True), ReinMax(), GumbelRao(), StraightThrough()]


@pytest.mark.parametrize("E", FEW, ids=repr)
def test_narrow_numbers_and_masked_categories(E: catlog.Estimator) -> None:
    half = sample(normals(50, 4).to(torch.bfloat16), E)
    assert half.dtype == torch.bfloat16
    assert bool((half.sum(-1) == 1).all())
    masked = torch.tensor([0.3, -torch.inf, 0.5], requires_grad=True)
    y = sample(masked.expand(200, 3), E)
    assert not bool(y[:, 1].any())
    (gradient,) = torch.autograd.grad((y * torch.tensor([1.0, 2.0, 3.0])).sum(), masked)
    assert bool(gradient.isfinite().all())
    assert gradient[1] == 0
    assert not sample(torch.full((3,), -torch.inf), E, bits=True).any()
    sample(masked * torch.nan, E, validate_args=False)


@pytest.mark.usefixtures("unchecked")
def test_checks_outlive_torch_compile() -> None:
    """The first compilation of a process turns the checks of torch's distributions off."""
    nan = torch.full((2, 3), torch.nan)
    with pytest.raises(ValueError, match="no valid probabilities"):
        sample(nan)
    with pytest.raises(ValueError, match="no valid probabilities"):
        ReinMax()(lambda x: x.sum(-1), OneHotCategorical(logits=nan))
    chain = MarkovChain(torch.zeros(2), torch.zeros(2, 2), length=3)
    for E, q in ((ReinMax(), OneHotCategorical(logits=torch.zeros(2, 3))), (catlog.RLOO(2), chain)):
        with pytest.raises(ValueError, match="f must return finite numbers"):
            E(lambda x: x.sum(-1) / 0 * 1.0, q)
    q = OneHotCategorical(logits=torch.zeros(2, 3), validate_args=False)
    assert ReinMax()(lambda x: x.sum(-1) / 0, q).isinf().all()


def test_second_derivatives_are_refused() -> None:
    leaf = normals(3).requires_grad_()
    (slope,) = torch.autograd.grad(sample(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="not a second one"):
        slope.sum().backward()


# Temperatures


@pytest.mark.parametrize("is_bits", [True, False])
def test_a_temperature_per_variable(is_bits: bool) -> None:
    """That of one call per variable; a layer takes it, too."""
    tau, shape = torch.tensor([0.3, 1.0, 2.0]).double(), (2, 3) if is_bits else (2, 3, 4)
    leaf, weight = normals(*shape).requires_grad_(), normals(*shape, seed=1)
    u = torch.rand(1, *shape, dtype=torch.float64, generator=seeded())

    def f(x: Tensor, weight: Tensor) -> Tensor:  # one value per variable
        value = (x * weight).sin()
        return value if is_bits else value.sum(-1)

    E = GumbelSoftmax(temperature=tau if is_bits else tau.unsqueeze(-1))
    q = Independent(distribution(leaf, is_bits), 1)
    together = E(lambda x: f(x, weight).sum(-1), q, noise=u)
    separate = [
        GumbelSoftmax(temperature=float(tau[i]))(
            lambda x, i=i: f(x, weight[:, i]),
            distribution(leaf[:, i], is_bits),
            noise=u[:, :, i].unsqueeze(2),
        )
        for i in range(3)
    ]
    assert_same(together, torch.stack(separate).sum(0), leaf, rtol=0, atol=1e-14)
    assert sample(leaf, replace(E, hard=True), bits=is_bits).shape == shape


# The drop-in for torch's function


def seeded_draw(draw: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, ...]:
    """Return a draw, its gradient, and the next number of the global generator."""
    leaf = logits.clone().requires_grad_()
    torch.manual_seed(3)
    y = draw(leaf)
    weight = normals(*logits.shape, seed=1).to(y.dtype)
    (gradient,) = torch.autograd.grad((y * weight).sum(), leaf)
    return y.detach(), gradient, torch.rand(())


PER_ROW = torch.tensor([0.2, 0.5, 1.0, 2.0]).view(4, 1, 1)
CALLS: dict[str, Callable[[Callable[..., Tensor], Tensor], Tensor]] = {
    "defaults": lambda function, logits: function(logits),
    "by position": lambda function, logits: function(logits, 0.5, True),
    "with five positions": lambda function, logits: function(logits, 0.5, False, 1e-10, 1),
    "DALLE-pytorch": lambda function, logits: function(logits, tau=0.9, dim=1, hard=False),
    "x-transformers": lambda function, logits: partial(function, dim=-1, tau=0.7, hard=True)(
        logits.masked_fill(torch.ones(3, 5).triu(1).bool(), -3e38)
    ),
    "a temperature per row": lambda function, logits: function(logits, PER_ROW, hard=True),
    "a temperature of NumPy": lambda function, logits: function(logits, np.float32(0.3)),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_drop_in_is_torchs_function(call: str) -> None:
    """Bit for bit, with the gradient and the random stream; or an estimator's draw."""

    def draw(E: catlog.Estimator, logits: Tensor, *position: object, dim: int = -1, **_: object):  # type: ignore[no-untyped-def]
        return sample(logits, E, dim=position[3] if len(position) > 3 else dim)

    pairs = [(F.gumbel_softmax, gumbel_softmax, dtype) for dtype in (torch.float32, torch.bfloat16)]
    pairs += [
        (partial(draw, E), partial(gumbel_softmax, estimator=E), torch.float32)
        for E in (ReinMax(), GumbelRao(temperature=0.5))
    ]
    for theirs, ours, dtype in pairs:
        logits = normals(4, 3, 5).to(dtype)
        got, wanted = (seeded_draw(partial(CALLS[call], draw), logits) for draw in (ours, theirs))
        assert all(map(torch.equal, got, wanted))
        assert got[1].abs().max() > 1e-3


def test_the_drop_in_can_take_the_place_of_torchs_function(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, call = normals(4, 3, 5), CALLS["by position"]
    wanted = seeded_draw(partial(call, F.gumbel_softmax), logits)
    monkeypatch.setattr(F, "gumbel_softmax", gumbel_softmax)
    assert all(map(torch.equal, seeded_draw(partial(call, F.gumbel_softmax), logits), wanted))


def test_eps_of_the_drop_in_is_deprecated_as_in_torch() -> None:
    with pytest.warns(UserWarning, match="`eps` parameter is deprecated and has no effect") as seen:
        gumbel_softmax(torch.zeros(3), eps=1e-6)
    assert [warning.filename for warning in seen] == [__file__]
