"""The view of every distribution of independent variables, draws from it, and its edges."""

from copy import deepcopy
from functools import partial
from itertools import product
from math import isfinite
from pickle import dumps, loads

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical
from torch.nn.functional import pad
from torch.testing import assert_close

import catlog
from catlog import Exact, IndeCateR
from catlog.core.evaluator import Evaluator
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Categoricals, MarkovChain
from catlog.estimators import VIMCO
from catlog.testing.cases import normals, seeded
from catlog.testing.enumeration import Case, expectation
from catlog.testing.settings import continuous, estimators, supports
from support.gradients import with_gradients

double = partial(torch.tensor, dtype=torch.float64)
TYPES = {"bits": Bernoulli, "index": Categorical, "one-hot": OneHotCategorical}


def _asked(q):
    """Return q after torch has computed and kept both forms of its parameter."""
    q.entropy()
    q.logits, q.probs  # noqa: B018
    return q


def _wider(q, *lead):
    return q.expand((*lead, *q.batch_shape))


# What is made of a distribution with a batch of (2, 2), and the shape of its event.
VARIANTS = {
    "alone": (lambda q: q, ()),
    "independent": (lambda q: Independent(q, 1), (2,)),
    "two dimensions": (lambda q: Independent(q, 2), (2, 2)),
    "nested": (lambda q: Independent(Independent(q, 1), 1), (2, 2)),
    "expanded outside": (lambda q: _wider(Independent(q, 2), 5), (2, 2)),
    "expanded inside": (lambda q: Independent(_wider(q, 5), 1), (2,)),
    "asked": (lambda q: Independent(_asked(q), 1), (2,)),
    "asked, expanded": (lambda q: _wider(_asked(q), 4), ()),
    "asked, expanded twice": (lambda q: _wider(_wider(_asked(q), 2), 3), ()),
    "expanded, asked, expanded": (lambda q: _wider(_asked(_wider(q, 4)), 2), ()),
    "asked, expanded, copied": (lambda q: deepcopy(_wider(_asked(q), 4)), ()),
    "asked, expanded, copied by pickle": (lambda q: loads(dumps(_wider(_asked(q), 4))), ()),
}
# Four variables; of the second ones, torch clamps the other form of the parameter.
PARAMETERS = {
    "bits": {
        "probs": ([0.2, 0.5, 0.9, 0.3], [0.0, 1.0, 0.3, 1e-10]),
        "logits": ([-0.7, 0.0, 1.3, 2.0], [-torch.inf, 200.0, 20.0, 0.3]),
    },
    "index": {
        "probs": (
            [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]],
            [[0.0, 1.0, 0.0], [0.0, 0.4, 0.6], [1e-10, 1 - 1e-10, 0.0], [0.2, 0.2, 0.6]],
        ),
        "logits": (
            [[0.3, -0.8, 1.1], [0.0, 2.0, -1.0], [-0.4, 0.5, 0.1], [1.0, 0.0, 0.0]],
            [[-torch.inf, 0.0, 0.0], [0.0, 30.0, -30.0], [0.0, -200.0, -16.0], [0.0, 1.0, 2.0]],
        ),
    },
}


def by_definition(parameter, kind, by):
    """Return log-probabilities of all categories."""
    if kind == "bits":
        if by == "logits":
            return torch.nn.functional.logsigmoid(torch.stack([-parameter, parameter], -1))
        return torch.stack([(-parameter).log1p(), parameter.log()], -1)
    if by == "logits":
        return parameter.log_softmax(-1)
    return (parameter / parameter.sum(-1, keepdim=True)).log()


@pytest.mark.parametrize(
    ("variant", "extreme", "dtype"),
    [
        *product(VARIANTS, (False, True), (torch.float32, torch.float64)),
        # In bfloat16, torch itself rounds the other form.
        *((name, False, torch.bfloat16) for name in VARIANTS if "asked" not in name),
    ],
)
@pytest.mark.parametrize("by", ["logits", "probs"])
@pytest.mark.parametrize("kind", TYPES)
def test_view_of_a_distribution(kind, by, extreme, variant, dtype, monkeypatch):
    """Its probabilities, points and gradients, whatever torch keeps beside the given parameter."""
    if dtype == torch.bfloat16:  # rounded, they do not add up to one
        monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    (change, event), name = VARIANTS[variant], "bits" if kind == "bits" else "index"
    parameter = torch.tensor(PARAMETERS[name][by][extreme], dtype=dtype)
    parameter = parameter.unflatten(0, (2, 2)).requires_grad_("copied" not in variant)
    k, at_least_float32 = 2 if kind == "bits" else 3, torch.promote_types(dtype, torch.float32)
    normalised = getattr(TYPES[kind](**{by: parameter.detach()}), by).to(at_least_float32)
    log_probs = by_definition(normalised, kind, by)
    q = change(TYPES[kind](**{by: parameter}))
    for _ in range(2):
        # No graph of what torch keeps is in the way of a second backward pass, if torch need not
        # normalise or clamp.
        if extreme or (kind, by) != ("bits", "logits"):
            q = change(TYPES[kind](**{by: parameter}))
        law, batch = view(q), q.batch_shape
        d = 2 ** len(event)
        assert (law.kind, law.d, law.k, law.cardinalities) == (kind, d, k, (k,) * d)
        assert law.event_shape == q.event_shape == event + (3,) * (kind == "one-hot")
        assert law.batch_shape == batch
        assert law.is_logits == (by == "logits") or "expanded" in variant
        assert law.probs.dtype == at_least_float32
        wanted = log_probs.expand(*batch, *event, k).reshape(*batch, d, k)
        assert_close(law.log_probs, wanted, rtol=2e-6, atol=2e-6)
        assert_close(law.probs, wanted.exp(), rtol=2e-6, atol=1e-12)
        assert torch.equal(law.possible.expand(wanted.shape), wanted.exp() > 0)
        x = q.sample((5,))
        index = law.index(x)
        assert index.shape == (5, *batch, d)
        drawn = Randomness(law, generator=seeded()).points(5)
        for points in (law.point(index), law.shaped(law.flat(x)), drawn):
            assert (points.shape, points.dtype) == (x.shape, x.dtype)
        assert torch.equal(law.point(index), x)
        assert torch.equal(law.shaped(law.flat(x)), x)
        chosen = wanted.expand(5, *wanted.shape).gather(-1, index.unsqueeze(-1)).sum((-1, -2))
        assert_close(law.log_prob(index), chosen, rtol=2e-6, atol=1e-5)
        if parameter.requires_grad and dtype == torch.float64:
            weight = torch.linspace(-1, 2, 4 * k, dtype=dtype).view(4, k)
            mean = (law.probs.reshape(-1, 4, k) * weight).sum((-1, -2)).mean()
            alone = (view(TYPES[kind](**{by: parameter})).probs.view(4, k) * weight).sum()
            slopes = [torch.autograd.grad(value, parameter)[0] for value in (mean, alone)]
            assert slopes[0].any()
            assert_close(*slopes)


def test_a_distribution_of_unknown_form_compiles():
    base = Bernoulli(probs=torch.tensor([0.0, 0.5, 1.0]))
    q = _wider(_asked(base), 2)
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    seen = torch.compile(lambda: view(q).log_probs, **options)().exp().view(2, 3, 2)
    assert torch.equal(seen, torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]).expand(2, 3, 2))


@pytest.mark.parametrize("kind", TYPES)
def test_comparisons_never_show_the_impossible(kind):
    """compare and advise rebuild q from the given form."""
    probs = double(PARAMETERS["bits" if kind == "bits" else "index"]["probs"][1]).requires_grad_()
    q = Independent(_wider(_asked(TYPES[kind](probs=probs)), 1), 1)
    law = view(q)

    def f(x):
        index = law.index(x)
        assert bool((law.log_prob(index) > -torch.inf).all())
        return (index.double() @ torch.arange(1.0, 5.0).double()).sin()

    for row in catlog.compare(f, q, [IndeCateR(2)], [probs], repeats=5).rows:
        assert isfinite(row.variance)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_categoricals_equal_separate_distributions(batch):
    logits = [normals(*batch, k, seed=k) for k in (3, 2, 1, 4)]
    separate = [Categorical(logits=row) for row in logits]
    padded = torch.stack([pad(row, (0, 4 - row.shape[-1]), value=7.0) for row in logits], -2)
    for q in (Categoricals(logits), Categoricals(padded, (3, 2, 1, 4))):
        assert (q.cardinalities, q.batch_shape, q.event_shape) == ((3, 2, 1, 4), batch, (4,))
        torch.manual_seed(0)
        x = q.sample((500,))
        assert (x.dtype, x.shape) == (torch.int64, (500, *batch, 4))
        assert bool((x < torch.tensor(q.cardinalities)).all())
        assert_close(q.log_prob(x), sum(row.log_prob(x[..., i]) for i, row in enumerate(separate)))
        assert_close(q.entropy(), sum(row.entropy() for row in separate))
        assert_close(q.probs.sum(-1), torch.ones_like(q.probs[..., 0]))
        wide = q.expand((5, *batch))
        assert (wide.batch_shape, wide.event_shape) == ((5, *batch), (4,))
        many = x.unsqueeze(1).expand(500, 5, *batch, 4)
        for log_prob in (wide.log_prob(many), view(wide).log_prob(many)):
            assert_close(log_prob, q.log_prob(many), rtol=0, atol=1e-12)
        for dtype in (torch.int64, torch.bfloat16, torch.float16):  # as float32 of the same numbers
            rows = [(8 * row).to(dtype) for row in logits]
            narrow, wide = Categoricals(rows), Categoricals([row.float() for row in rows])
            assert_close(narrow.log_prob(x), wide.log_prob(x))
            assert_close(view(narrow).probs, view(wide).probs)


def test_masked_categoricals():
    """The support, in draws and in log_prob; an entropy with a derivative; inside Independent."""
    rows = [0.0, 1.0, 2.0], [0.5, -0.5], [3.0], [0.0, -torch.inf, 1.0, 2.0]
    q = Categoricals([torch.tensor(row) for row in rows])
    torch.manual_seed(0)
    seen = set(map(tuple, q.sample((2000,)).tolist()))
    assert seen == set(product([0, 1, 2], [0, 1], [0], [0, 2, 3]))
    assert q.log_prob(torch.tensor([0, 0, 0, 1])) == -torch.inf
    with pytest.raises(ValueError, match="support"):
        Categoricals([torch.zeros(4)] * 4, validate_args=True).log_prob(torch.tensor([4, 0, 0, 0]))
    logits = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    q = Categoricals(logits, (4, 2, 1))
    assert_close(with_gradients(q.entropy(), logits), [double(8.0).log(), torch.zeros_like(logits)])
    logits = normals(5, 2, 2, 3).requires_grad_()
    q = Independent(Categoricals(logits, (3, 2)), 1)
    law = view(q)
    assert (law.batch_shape, law.event_shape, law.d) == ((5,), (2, 2), 4)
    assert law.cardinalities == (3, 2, 3, 2)
    slopes = [
        with_gradients(E(lambda x: x.double().sum((-1, -2)), q, generator=seeded()), logits)[1]
        for E in (Exact(), IndeCateR())
    ]
    assert_close(*slopes, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_masked_categories_are_never_drawn_at_the_ends(dtype):
    for mask in product([False, True], repeat=4):
        if not all(mask):
            logits = torch.linspace(-1, 1, 4, dtype=dtype)
            law = view(Categorical(logits=logits.masked_fill(torch.tensor(mask), -torch.inf)))
            cdf = law.probs[0].cumsum(-1)
            beside = cdf.nextafter(cdf * 0), cdf.nextafter(cdf * 2)
            u = torch.cat([torch.tensor([0.0, 1.0], dtype=dtype), cdf, *beside]).unsqueeze(-1)
            assert bool(law.possible[0, law.from_uniforms(u)].all())
    ends = torch.tensor([[0.0], [1.0]], dtype=dtype)
    for probs in (0.0, 1.0):
        law = view(Bernoulli(probs=torch.tensor(probs, dtype=dtype)))
        assert law.from_uniforms(ends).tolist() == [[probs], [probs]]


@pytest.mark.parametrize(
    "eighths",
    [(4, 4), (1, 7), (8, 0), (0, 8), (1, 0, 3, 4), (0, 0, 8), (2, 2, 2, 2), (8,), (0, 5, 0, 3, 0)],
)
def test_inverse_cdf_is_exact_on_a_grid(eighths):
    law = view(Categorical(probs=torch.tensor(eighths, dtype=torch.float64) / 8))
    u = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    for drawn in (law.from_uniforms(u.unsqueeze(-1)), Randomness(law).points(8, "latin")):
        assert drawn.flatten().bincount(minlength=len(eighths)).tolist() == list(eighths)


SLOPE = double([0.7, -0.4, 1.1, 0.3, -0.9, 0.5])
# A case, the probabilities of its points, and the parameters that get no gradient.
WITH_ZEROS = {
    "bits": (
        Case(
            "bits, two of them certain",
            double([0.0, 0.3, 1.0]),
            lambda t: Independent(Bernoulli(probs=t), 1),
            double([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            lambda x: torch.cat([x + 1, x.square()], -1),
        ),
        lambda t: torch.stack([1 - t[1], t[1]]),
        torch.tensor([True, False, True]),
    ),
    "one-hot": (
        Case(
            "one-hot, some impossible",
            double([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]]),  # unnormalised
            lambda t: Independent(OneHotCategorical(probs=t), 1),
            double([[[0, 1, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]]]),
            lambda x: x.flatten(-2),
        ),
        lambda t: t[0, 1:] / t[0, 1:].sum(),
        torch.tensor([[True, False, False], [True, True, True]]),
    ),
}


def curved(z, c):
    return (z @ c + 1).exp()


@pytest.mark.parametrize("name", WITH_ZEROS)
@pytest.mark.parametrize("E", estimators())
def test_a_category_of_probability_zero_gets_no_gradient(E, name):
    """Nor is it shown. Whatever the constant in f, the other gradients are right."""
    case, probabilities, certain = WITH_ZEROS[name]
    if not supports(E, name) or (getattr(E, "variables", None) or 0) > case.theta.shape[0]:
        pytest.skip("not for this law")
    theta = case.theta.expand(20, *case.theta.shape).clone().requires_grad_()
    E, q = deepcopy(E), case.distribution(theta)

    def f(x):
        if not E.differentiates_f:
            assert bool((view(q).log_prob(view(q).index(x)) > -torch.inf).all())
        return curved(case.features(x), SLOPE)

    E(f, q, generator=seeded()).sum().backward()
    assert theta.grad.isfinite().all()
    assert theta.grad[:, certain].abs().max() <= 1e-12
    if E.unbiased and not continuous(E) and not isinstance(E, VIMCO):
        leaves = case.theta.clone().requires_grad_(), SLOPE.clone().requires_grad_()
        value = (probabilities(leaves[0]) * curved(case.features(case.points), leaves[1])).sum()
        got = expectation(E, case, curved, SLOPE)
        assert_close(got, tuple(with_gradients(value, leaves)), rtol=0, atol=1e-12)


def every_law(batch, d, k):
    """Return per kind parameters and a distribution of d variables of k categories."""
    for kind in ("bits", "index", "one-hot", "mixed", "structured"):
        shape = (*batch, d) if kind == "bits" else (*batch, d, k)
        theta = torch.full(shape, 0.7, dtype=torch.float64, requires_grad=True)
        if kind == "mixed":
            yield kind, theta, Categoricals(theta, (k,) * d)
        elif kind == "structured":
            yield kind, theta, MarkovChain(theta[..., 0, :], theta.new_zeros(k, k), length=d)
        else:
            yield kind, theta, Independent(TYPES[kind](logits=theta), 1)


SHAPES = [
    ((0,), 3, 3), ((2, 0), 3, 3), ((), 1, 1), ((), 3, 1), ((2,), 1, 1), ((2,), 3, 1), ((5,), 1, 3)
]  # fmt: skip


@pytest.mark.parametrize("E", estimators())
def test_an_empty_batch_one_variable_or_one_category(E, monkeypatch):
    """Nothing is learned from an empty batch. With one category there is one point: f is exact
    there, and q has nothing to learn."""
    # torch's own check cannot do empty batches.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    for batch, d, k in SHAPES:
        for kind, theta, q in every_law(batch, d, k):
            if not supports(E, kind) or (getattr(E, "variables", None) or 0) > d:
                continue
            fresh, slope, learned, before = deepcopy(E), double(2.0).requires_grad_(), [], {}
            if isinstance(E, nn.Module):
                learned, before = [*fresh.parameters()], deepcopy(fresh.state_dict())

            def f(x, slope=slope, lead=1 + len(batch)):
                return slope * (x.double().flatten(lead) + 1).cumsum(-1).sum(-1).sin()

            value = fresh(f, q)
            gradients = torch.autograd.grad(
                value.sum(), [theta, slope, *learned], allow_unused=True, materialize_grads=True
            )
            assert value.shape == batch
            assert all(gradient.isfinite().all() for gradient in gradients)
            if value.numel() == 0:
                assert all(torch.equal(before[key], fresh.state_dict()[key]) for key in before)
                assert not any(gradient.any() for gradient in gradients)
            elif k == 1 and kind != "bits":
                shape = (1, *batch, d, 1)
                point = torch.ones(shape) if kind == "one-hot" else torch.zeros(shape[:-1])
                exact = f(point).detach()[0]
                assert_close(value.detach(), exact, rtol=0, atol=1e-12)
                assert gradients[0].abs().max() < 1e-12
                assert_close(gradients[1], exact.sum() / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("d", "size"), [(2, 4096), (200, 4096), (512, 2048), (20_000, 1024)])
def test_points_of_many_variables_are_evaluated_in_smaller_chunks(d, size):
    law = view(Independent(Bernoulli(logits=torch.zeros(16, d)), 1))
    assert Evaluator(torch.sum, law).parts(0) == []
    parts = Evaluator(torch.sum, law).parts(10_000)
    assert parts[-1].stop == 10_000
    assert max(part.stop - part.start for part in parts) <= size // 16
    assert len(parts) == -(-10_000 // (size // 16))


def test_distributions_print_their_shapes():
    chains = MarkovChain(torch.zeros(2, 2), torch.zeros(2, 2), length=3)
    shown = "Independent(MarkovChain(batch_shape=(2,), event_shape=(3,)), 1)"
    assert repr(Independent(chains, 1)) == shown
    rows = Categoricals(torch.zeros(2, 3), [2, 3])
    assert repr(rows) == "Categoricals(batch_shape=(), event_shape=(2,))"
