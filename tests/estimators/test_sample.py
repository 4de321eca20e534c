"""`catlog.sample`: the gradient of E(f, q), draws, layers, errors.

tests/gpu/test_sample_cuda.py compares it with F.gumbel_softmax, on a CPU as well.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, OneHotCategorical
from torch.nn import functional as F

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, sample
from catlog.estimators import DARN, ESTIMATORS, GumbelRao
from catlog.testing import z_limit
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import VARIANTS
from support.compiling import assert_compiles

SLOPE_BASED = {
    f"{name}({options})": replace(ESTIMATORS[name](**options), samples=1)
    for name in ESTIMATORS
    if hasattr(ESTIMATORS[name], "points")
    for options in VARIANTS[name]
}


def slope_based(*kinds: str) -> list[object]:
    """Return the estimators for a kind of draw, with whether they draw bits."""
    return [
        pytest.param(E, kind == "bits", id=f"{name} {kind}")
        for name, E in SLOPE_BASED.items()
        for kind in kinds
        if kind in E.supports
    ]


def distribution(logits: Tensor, bits: bool) -> torch.distributions.Distribution:
    return Bernoulli(logits=logits) if bits else OneHotCategorical(logits=logits)


WEIGHT = normals(5, 4, seed=3)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda total: total,
    "sine": lambda total: total.sin(),
}


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_gradient_is_that_of_the_expectation(E: catlog.Estimator, bits: bool, f: str) -> None:
    """With the same draw and the same noise, for every estimator with a derivative of the draw."""
    leaf = normals(5, 4).requires_grad_()

    def value_of(y: Tensor) -> Tensor:  # one per distribution: per bit, or per row of categories
        return FUNCTIONS[f](y * WEIGHT if bits else (y * WEIGHT).sum(-1))

    q = distribution(leaf, bits)
    torch.manual_seed(7)
    injected = draw_randomness(E, q)
    (wanted,) = torch.autograd.grad(E(value_of, q, **injected).sum(), leaf)
    if "x" in injected:
        injected["x"] = injected["x"][0]
    y = sample(leaf, E, bits=bits, **injected)
    (got,) = torch.autograd.grad(value_of(y).sum(), leaf)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


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
    torch.testing.assert_close(got.movedim(dim, -1), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_draws_are_discrete_and_follow_the_generator(E: catlog.Estimator, bits: bool) -> None:
    E = replace(E, hard=True) if isinstance(E, GumbelSoftmax) else E
    logits = normals(5, 4)
    first, again, other = (sample(logits, E, bits=bits, generator=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    wide = logits.expand(50, 5, 4)
    assert not torch.equal(
        sample(wide, E, bits=bits, generator=seeded(0)),
        sample(wide, E, bits=bits, generator=seeded(1)),
    )
    assert first.shape == other.shape == logits.shape
    assert bool(((first == 0) | (first == 1)).all())
    if not bits:
        assert torch.equal(first.sum(-1), torch.ones(5).double())
    state = torch.get_rng_state()
    sample(logits, E, bits=bits, generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), state)
    with torch.inference_mode():
        assert torch.equal(sample(logits, E, bits=bits, generator=seeded(0)), first)
    with torch.no_grad():
        assert torch.equal(sample(logits, E, bits=bits, generator=seeded(0)), first)


@pytest.mark.parametrize("E", [GumbelSoftmax(hard=True, temperature=0.3), ReinMax()], ids=repr)
@pytest.mark.parametrize("bits", [False, True])
def test_draws_have_the_probabilities(E: catlog.Estimator, bits: bool) -> None:
    """A z-test with one false alarm in a million; it detects probabilities of half the logits."""
    n, logits = 40_000, normals(4)

    def score(logits_tested: Tensor) -> Tensor:
        p = logits_tested.sigmoid() if bits else logits_tested.softmax(-1)
        mean = sample(logits.expand(n, 4), E, bits=bits, generator=seeded()).mean(0)
        return ((mean - p).abs() / (p * (1 - p) / n).sqrt()).max()

    assert score(logits) < z_limit(4)
    assert score(logits / 2) > 3 * z_limit(4)


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_compiles_as_one_graph(E: catlog.Estimator, bits: bool) -> None:
    weight = normals(5, 4, seed=1)

    def loss(logits: Tensor) -> Tensor:
        return (sample(logits, E, bits=bits) * weight).sum(-1).sin().sum()

    assert_compiles(loss, normals(5, 4).requires_grad_(), dynamic=None)


class Network(nn.Module):
    """Two layers that draw: categories, then bits that depend on them."""

    def __init__(self, first: catlog.Estimator, second: catlog.Estimator) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.entry = nn.Linear(3, 6, dtype=torch.float64)
        self.middle = nn.Linear(6, 4, dtype=torch.float64)
        self.exit = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, images: Tensor, generator: torch.Generator) -> Tensor:
        logits = self.entry(images).unflatten(-1, (2, 3))
        codes = sample(logits, self.first, generator=generator).flatten(-2)
        bits = sample(self.middle(codes), self.second, bits=True, generator=generator)
        return self.exit(bits).squeeze(-1).square()


@pytest.mark.parametrize(
    ("first", "second"),
    [(ReinMax(), DARN()), (GumbelSoftmax(hard=True), StraightThrough())],
    ids=repr,
)
def test_several_layers_of_one_network_draw(
    first: catlog.Estimator, second: catlog.Estimator
) -> None:
    """Every parameter gets a gradient, and that of the first layer passes through the second."""
    torch.manual_seed(0)
    network = Network(first, second)
    images = normals(16, 3)
    network(images, seeded()).sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0
    with torch.inference_mode():
        assert network(images, seeded()).shape == (16,)


def test_narrow_numbers_and_masked_categories() -> None:
    masked = torch.tensor([0.3, -torch.inf, 0.5], requires_grad=True)
    for E in (GumbelSoftmax(hard=True), ReinMax(), GumbelRao(), StraightThrough()):
        half = sample(normals(50, 4).to(torch.bfloat16), E)
        assert half.dtype == torch.bfloat16
        assert bool((half.sum(-1) == 1).all())
        y = sample(masked.expand(200, 3), E)
        assert not bool(y[:, 1].any())
        (gradient,) = torch.autograd.grad((y * torch.tensor([1.0, 2.0, 3.0])).sum(), masked)
        assert bool(gradient.isfinite().all())
        assert gradient[1] == 0


@pytest.mark.parametrize(("E", "bits"), slope_based("bits", "one-hot"))
def test_logits_without_a_category_are_refused(E: catlog.Estimator, bits: bool) -> None:
    """Masked categories are not drawn."""
    logits = torch.zeros(4, 3)
    logits[2] = torch.nan
    with pytest.raises(ValueError, match=r"NaN"):
        sample(logits, E, bits=bits)
    logits[2] = -torch.inf
    if bits:
        assert not sample(logits, E, bits=True)[2].any()
        return
    with pytest.raises(ValueError, match=r"masked"):
        sample(logits, E)
    with pytest.raises(ValueError, match=r"masked"):
        sample(logits.mT, E, dim=0)
    with pytest.raises(ValueError, match=r"index \(2,\)"):
        sample(logits.mT, E, dim=-2)
    logits[2, 0] = 0.0
    assert sample(logits, E)[2, 0] == 1
    logits[2] = torch.nan
    sample(logits, E, validate_args=False)


@pytest.mark.usefixtures("unchecked")
def test_checks_outlive_torch_compile() -> None:
    """The first compilation of a process turns the checks of torch's distributions off."""
    nan = torch.full((2, 3), torch.nan)
    with pytest.raises(ValueError, match="no valid probabilities"):
        sample(nan)
    with pytest.raises(ValueError, match="no valid probabilities"):
        ReinMax()(lambda x: x.sum(-1), OneHotCategorical(logits=nan))
    with pytest.raises(ValueError, match="f must return finite numbers"):
        ReinMax()(lambda x: x.sum(-1) / 0, OneHotCategorical(logits=torch.zeros(2, 3)))
    q = OneHotCategorical(logits=torch.zeros(2, 3), validate_args=False)
    assert ReinMax()(lambda x: x.sum(-1) / 0, q).isinf().all()


def test_second_derivatives_are_refused() -> None:
    leaf = normals(3).requires_grad_()
    (slope,) = torch.autograd.grad(sample(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="not a second one"):
        slope.sum().backward()


@pytest.mark.parametrize(
    "E", [catlog.RLOO(4), catlog.IndeCateR(), catlog.estimators.IMLE(), catlog.Exact()], ids=repr
)
def test_estimators_that_need_f_are_refused(E: catlog.Estimator) -> None:
    with pytest.raises(TypeError, match=r"needs no f.*but .* was given.*call E\(f, q\) with q = "):
        sample(torch.zeros(3), E)


def test_wrong_arguments_are_named() -> None:
    logits = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"Give an instance, as in ReinMax\(\)"):
        sample(logits, ReinMax)
    with pytest.raises(ValueError, match=r"samples=1, but ReinMax\(4\).*logits\.expand\(4, "):
        sample(logits, ReinMax(4))
    with pytest.raises(TypeError, match=r"one-hot vectors, but DARN\(1\).*Pass bits=True"):
        sample(logits, DARN())
    with pytest.raises(TypeError, match=r"`logits` must be a tensor of floats, but torch\.int64"):
        sample(logits.long())
    with pytest.raises(TypeError, match="`logits` must be a tensor of floats, but list was given"):
        sample([0.0, 1.0])
    for dim in (2, -3, 0.5):
        with pytest.raises(ValueError, match=rf"`dim` must be a dimension.*but {dim} was given"):
            sample(logits, dim=dim)
    with pytest.raises(TypeError, match="`bits` must be True or False, but 1 was given"):
        sample(logits, bits=1)
    with pytest.raises(ValueError, match=r"`x` must be a draw in the shape .*\(2, 3\), but \(3,\)"):
        sample(logits, x=torch.zeros(3))
    with pytest.raises(ValueError, match="x must hold one-hot vectors"):
        sample(logits, x=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"noise: ReinMax used all but 1 .*else give `x` or"):
        sample(logits, noise=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="x: GumbelSoftmax cannot use it; give `noise` or"):
        sample(logits, GumbelSoftmax(), x=torch.zeros(2, 3))
    for E in (GumbelSoftmax(), ReinMax()):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None"):
            sample(logits, E, generator=3)
    with pytest.raises(ValueError, match="no valid probabilities"):
        sample(torch.full((2, 3), torch.nan))


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
    "Wav2Vec2": lambda function, logits: function(logits.float(), tau=2, hard=True),
    "x-transformers": lambda function, logits: partial(function, dim=-1, tau=0.7, hard=True)(
        logits.masked_fill(torch.ones(3, 5).triu(1).bool(), -3e38)
    ),
    "a temperature per row": lambda function, logits: function(logits, PER_ROW, hard=True),
    "a temperature of one number": lambda function, logits: function(logits, torch.tensor([0.3])),
    "a temperature of NumPy": lambda function, logits: function(logits, np.float32(0.3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_the_drop_in_is_torchs_function(call: str, dtype: torch.dtype) -> None:
    """Bit for bit, with the gradient and the random stream."""
    logits = normals(4, 3, 5).to(dtype)
    theirs, ours = (
        seeded_draw(partial(CALLS[call], function), logits)
        for function in (F.gumbel_softmax, catlog.gumbel_softmax)
    )
    for their_number, our_number in zip(theirs, ours, strict=True):
        assert torch.equal(their_number, our_number)
    assert ours[1].abs().max() > 1e-3


@pytest.mark.parametrize("E", [ReinMax(), StraightThrough(), GumbelRao(temperature=0.5)], ids=repr)
@pytest.mark.parametrize("call", CALLS)
def test_the_drop_in_with_an_estimator_is_its_draw(call: str, E: catlog.Estimator) -> None:
    def ours(logits: Tensor, *positional: object, dim: int = -1, **_: object) -> Tensor:
        return sample(logits, E, dim=positional[3] if len(positional) > 3 else dim)

    logits = normals(4, 3, 5).float()
    wanted = seeded_draw(partial(CALLS[call], ours), logits)
    got = seeded_draw(partial(CALLS[call], partial(catlog.gumbel_softmax, estimator=E)), logits)
    for expected, actual in zip(wanted, got, strict=True):
        assert torch.equal(expected, actual)
    assert bool(got[1].isfinite().all())
    assert got[1].abs().max() > 1e-3


def test_the_drop_in_can_take_the_place_of_torchs_function(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = normals(4, 3, 5)
    wanted = seeded_draw(lambda leaf: F.gumbel_softmax(leaf, 0.5, hard=True), logits)
    monkeypatch.setattr(F, "gumbel_softmax", catlog.gumbel_softmax)
    got = seeded_draw(lambda leaf: F.gumbel_softmax(leaf, 0.5, hard=True), logits)
    assert all(map(torch.equal, wanted, got))
    monkeypatch.setattr(F, "gumbel_softmax", partial(catlog.gumbel_softmax, estimator=ReinMax()))
    got = seeded_draw(lambda leaf: F.gumbel_softmax(leaf, 0.5), logits)
    assert all(map(torch.equal, seeded_draw(sample, logits), got))


def test_the_drop_in_compiles_as_one_graph() -> None:
    weight = normals(5, 4, seed=1)
    for E in (None, ReinMax()):
        draw = partial(catlog.gumbel_softmax, tau=0.5, hard=True, estimator=E)
        assert_compiles(
            lambda logits, draw=draw: (draw(logits) * weight).sum(-1).sin().sum(),
            normals(5, 4).requires_grad_(),
            dynamic=None,
        )


def test_eps_of_the_drop_in_is_deprecated_as_in_torch() -> None:
    with pytest.warns(UserWarning, match="`eps` parameter is deprecated and has no effect") as seen:
        catlog.gumbel_softmax(torch.zeros(3), eps=1e-6)
    assert seen[0].filename == __file__
    assert len(seen) == 1


def test_wrong_arguments_of_the_drop_in_are_named() -> None:
    logits = torch.zeros(2, 3)
    with pytest.raises(
        TypeError, match=r"gumbel_softmax: `logits` must be a tensor of floats, but"
    ):
        catlog.gumbel_softmax([0.0, 1.0])
    with pytest.raises(
        ValueError, match=r"gumbel_softmax: `dim` must be a dimension .*2 was given"
    ):
        catlog.gumbel_softmax(logits, dim=2)
    with pytest.raises(
        ValueError, match=r"gumbel_softmax: `tau` must be positive, but 0 was given"
    ):
        catlog.gumbel_softmax(logits, 0)
    with pytest.raises(
        TypeError, match="gumbel_softmax: `tau` must be a number, but 'a' was given"
    ):
        catlog.gumbel_softmax(logits, "a")
    for tau in (torch.ones(3, 1), torch.ones(4, 2, 3)):
        with pytest.raises(
            ValueError, match=r"gumbel_softmax: `tau` must .*\(2, 3\), but its shape"
        ):
            catlog.gumbel_softmax(logits, tau)
    with pytest.raises(TypeError, match=r"sample: .*Give an instance, as in ReinMax\(\)"):
        catlog.gumbel_softmax(logits, estimator=ReinMax)


REMEDY = (
    r"For F\.gumbel_softmax\(logits, tau, hard\) write catlog\.gumbel_softmax\(logits, tau, "
    r"hard\), or sample\(logits, GumbelSoftmax\(temperature=tau, hard=hard\)\)"
)


@pytest.mark.parametrize(
    ("positional", "named", "shown"),
    [
        ((), {"tau": 0.5, "hard": True}, "`tau` and `hard` was given"),
        ((), {"axis": 1}, r"arguments are logits, estimator, dim, .* but `axis` was given"),
        ((0.5,), {}, r"the number 0\.5 was given"),
        ((0.5, True), {}, "True without a name was given"),
    ],
)
def test_calls_like_those_of_gumbel_softmax_are_answered(
    positional: tuple[object, ...], named: dict[str, object], shown: str
) -> None:
    with pytest.raises(TypeError, match=rf"sample: .*{shown}\. {REMEDY}"):
        sample(torch.zeros(2, 3), *positional, **named)


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
def test_a_temperature_per_variable(kind: str) -> None:
    """That of one call per variable: in a layer, and in E(f, q) with it in the batch or event."""
    taus = [0.3, 1.0, 2.0]
    tau = torch.tensor(taus, dtype=torch.float64)
    is_bits = kind == "bits"
    shape = (2, 3) if is_bits else (2, 3, 4)
    tau = tau if is_bits else tau.unsqueeze(-1)
    leaf = normals(*shape).requires_grad_()
    target = normals(*shape, seed=1)
    u = torch.rand(1, *shape, dtype=torch.float64, generator=seeded())

    def f(x: Tensor, weight: Tensor = target) -> Tensor:  # one value per variable
        value = (x * weight).sin()
        return value if is_bits else value.sum(-1)

    def column(i: int) -> Tensor:
        logits, weight, noise = leaf[:, i], target[:, i], u[:, :, i].unsqueeze(2)
        E = GumbelSoftmax(temperature=taus[i])
        q = distribution(logits, is_bits)
        return E(lambda x: f(x, weight), q, noise=noise)

    expected = torch.stack([column(i) for i in range(3)], -1)
    E = GumbelSoftmax(temperature=tau)
    in_batch = E(f, distribution(leaf, is_bits), noise=u.unsqueeze(3))
    q = Independent(distribution(leaf, is_bits), 1)
    in_event = E(lambda x: f(x).sum(-1), q, noise=u)
    for value, wanted in ((in_batch, expected), (in_event, expected.sum(-1))):
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-14)
        gradients = [
            torch.autograd.grad(v.sum(), leaf, retain_graph=True)[0] for v in (value, wanted)
        ]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
    draws = sample(leaf, replace(E, hard=True), bits=is_bits)
    assert draws.shape == shape


@pytest.mark.parametrize("tau", [torch.tensor([0.5]), np.float32(0.5)], ids=["tensor", "NumPy"])
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in ESTIMATORS
        for setting in ESTIMATORS[name].__annotations__
        if setting.endswith("temperature") and hasattr(ESTIMATORS[name], "points")
    ],
)
def test_other_kinds_of_one_temperature(name: str, setting: str, tau: object) -> None:
    """Those of NumPy, and annealed buffers of shape [1]."""
    gradients, reprs = [], []
    for temperature in (0.5, tau):
        leaf = normals(5, 4).float().requires_grad_()
        E = ESTIMATORS[name](**{setting: temperature})
        reprs.append(repr(E))
        y = sample(leaf, E, generator=seeded())
        gradients += torch.autograd.grad((y * normals(5, 4, seed=1).float()).sum(), leaf)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)
    assert reprs[0] == reprs[1]


def test_temperatures_that_do_not_fit_are_named() -> None:
    logits = torch.zeros(4, 3)
    shape = re.escape("`temperature` must be a number or broadcast to the logits, (4, 3), but its")
    for tau in (torch.ones(3, 1), torch.ones(2, 4, 3)):
        with pytest.raises(ValueError, match=rf"GumbelSoftmax: {shape} shape is"):
            sample(logits, GumbelSoftmax(temperature=tau))
        with pytest.raises(ValueError, match=rf"GumbelSoftmax: {shape} shape is"):
            GumbelSoftmax(temperature=tau)(lambda x: x.sum(-1), OneHotCategorical(logits=logits))
    with pytest.raises(TypeError, match=r"ReinMax: .*shape \(4, 1\).*GumbelSoftmax takes"):
        ReinMax(temperature=torch.ones(4, 1))
    with pytest.raises(ValueError, match=r"`temperature` must be positive, but 0\.0 was given"):
        GumbelSoftmax(temperature=torch.tensor([[1.0], [0.0]]))
