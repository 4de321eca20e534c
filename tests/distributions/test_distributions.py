"""The view of every distribution, and draws from it."""

from copy import deepcopy
from functools import partial
from itertools import product
from math import isfinite
from pickle import dumps, loads

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical
from torch.nn.functional import one_hot, pad
from torch.testing import assert_close

import catlog
from catlog import Exact, IndeCateR
from catlog.core.evaluator import Evaluator
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Categoricals, MarkovChain
from catlog.estimators import VIMCO, MovingAverageBaseline
from catlog.testing.cases import normals, seeded
from catlog.testing.enumeration import Case, expectation
from catlog.testing.settings import continuous, estimators, supports
from support.gradients import with_gradients
from support.laws import bits

double = partial(torch.tensor, dtype=torch.float64)
SAMPLING = ("independent", "antithetic", "latin")
TYPES = {"bits": Bernoulli, "index": Categorical, "one-hot": OneHotCategorical}


def draws(law, n, sampling="independent", groups=1, seed=0):
    return Randomness(law, generator=seeded(seed)).points(n, sampling, groups)


def base_law(kind, by, shape, dtype=torch.float64):
    logits = normals(*shape, *([] if kind == "bits" else [3]))
    probs = logits.sigmoid() if kind == "bits" else logits.softmax(-1)
    return TYPES[kind](**{by: (logits if by == "logits" else probs).to(dtype)})


def as_one_hot(x, kind):
    """Return points of bits or of variables with three categories as one-hot vectors."""
    if kind == "bits":
        return torch.stack([1 - x, x], -1)
    return x if kind == "one-hot" else one_hot(x, 3).double()


def check_view(q, law, wide):
    """Check that the view of q holds the probabilities of ``wide`` and writes points as q does."""
    probs = torch.stack([1 - wide.probs, wide.probs], -1) if law.kind == "bits" else wide.probs
    assert_close(law.probs, probs.reshape(law.probs.shape))
    assert_close(law.log_probs.exp(), law.probs, rtol=0, atol=1e-6)
    torch.manual_seed(0)
    x = q.sample((5,))
    index, flat = law.index(x), law.flat(x)
    assert index.shape == (5, *q.batch_shape, law.d)
    for points in (law.point(index), law.shaped(flat)):
        assert points.dtype == x.dtype
        assert torch.equal(points, x)
    drawn = draws(law, 5)
    assert (drawn.shape, drawn.dtype) == (x.shape, x.dtype)
    log_prob = wide.log_prob(x.to(wide.probs)).reshape(5, *q.batch_shape, law.d).sum(-1)
    assert_close(law.log_prob(index), log_prob, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dims", [0, 1, 2])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("by", ["logits", "probs"])
@pytest.mark.parametrize("kind", TYPES)
def test_view_of_a_distribution(kind, by, batch, dims, dtype, monkeypatch):
    if dtype == torch.bfloat16:  # rounded, they do not add up to one
        monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    base = base_law(kind, by, batch + (3, 2)[:dims], dtype)
    at_least_float32 = torch.promote_types(dtype, torch.float32)
    q = Independent(base, dims)
    law = view(q)
    assert (law.kind, law.d, law.k) == (kind, [1, 3, 6][dims], 2 if kind == "bits" else 3)
    assert (law.batch_shape, law.event_shape) == (q.batch_shape, q.event_shape)
    assert law.cardinalities == (law.k,) * law.d
    assert law.probs.dtype == at_least_float32
    wide = TYPES[kind](**{by: getattr(base, by).to(at_least_float32)})
    check_view(q, law, wide)
    if dims == 0:
        assert torch.equal(view(base).probs, law.probs)


@pytest.mark.parametrize("by", ["logits", "probs"])
@pytest.mark.parametrize("kind", TYPES)
def test_nested_and_expanded_distributions(kind, by):
    base = base_law(kind, by, (4, 3, 2))
    for q in (
        Independent(Independent(base, 1), 1),
        Independent(base, 2).expand((5, 4)),
        Independent(base.expand((5, 4, 3, 2)), 2),
    ):
        law = view(q)
        assert (law.batch_shape, law.event_shape, law.d) == (q.batch_shape, q.event_shape, 6)
        check_view(q, law, base.expand((*q.batch_shape, 3, 2)))


@pytest.mark.parametrize("by", ["logits", "probs"])
@pytest.mark.parametrize("kind", TYPES)
def test_view_follows_the_given_parameter(kind, by):
    """The gradient reaches the given form, although torch caches the other one beside it."""
    parameter = getattr(base_law(kind, by, (3,)), by).clone().requires_grad_()
    base = TYPES[kind](**{by: parameter})
    for _ in range(2):
        law = view(Independent(base, 1))
        assert law.is_logits == (by == "logits")
        assert with_gradients(law.log_probs[..., 0], parameter)[1].any()
        assert base.probs is not None
        assert base.logits is not None


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
    for drawn in (law.from_uniforms(u.unsqueeze(-1)), draws(law, 8, "latin")):
        assert drawn.flatten().bincount(minlength=len(eighths)).tolist() == list(eighths)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_groups_are_independent(sampling):
    law = view(Independent(Bernoulli(probs=torch.full((4, 6), 0.5)), 1))
    x = draws(law, 2, sampling, groups=6).unflatten(0, (2, 6))
    assert x.shape == (2, 6, 4, 6)
    if sampling != "independent":
        assert bool((x.sum(0) == 1).all())
    assert bool((x[0] != x[0, :1]).any())


def one_hot_pair(x):
    return one_hot(x, 3).flatten(-2).double()


SOME_CERTAIN = double([0.0, 0.3, 1.0])
SOME_IMPOSSIBLE = double([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])  # unnormalised
WITH_ZEROS = {
    case.name: case
    for case in [
        Case(
            "bits, two of them certain",
            SOME_CERTAIN,
            lambda t: Independent(Bernoulli(probs=t), 1),
            double([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            lambda x: torch.cat([x + 1, x.square()], -1),
        ),
        Case(
            "integers, some impossible",
            SOME_IMPOSSIBLE,
            lambda t: Independent(Categorical(probs=t), 1),
            torch.tensor([[1, 0], [2, 0]]),
            one_hot_pair,
        ),
        Case(
            "one-hot, some impossible",
            SOME_IMPOSSIBLE,
            lambda t: Independent(OneHotCategorical(probs=t), 1),
            torch.eye(3, dtype=torch.float64)[torch.tensor([[1, 0], [2, 0]])],
            lambda x: x.flatten(-2),
        ),
    ]
}
SLOPE = double([0.7, -0.4, 1.1, 0.3, -0.9, 0.5])


def curved(z, c):
    return (z @ c + 1).exp()


def by_the_convention(case):
    """Return E[f] and its gradients, where what is impossible (bits: certain) is a constant."""
    theta, c = case.theta.clone().requires_grad_(), SLOPE.clone().requires_grad_()
    bits = case.kind == "bits"
    held = torch.where((theta == 0) | (theta == 1) if bits else theta == 0, theta.detach(), theta)
    p = torch.stack([1 - held, held], -1) if bits else held / held.sum(-1, keepdim=True)
    index = case.points.argmax(-1) if case.kind == "one-hot" else case.points.long()
    weight = p.expand(len(index), *p.shape).gather(-1, index.unsqueeze(-1)).squeeze(-1).prod(-1)
    value = (weight * curved(case.features(case.points), c)).sum()
    return value.detach(), *torch.autograd.grad(value, [theta, c])


@pytest.mark.parametrize("case", WITH_ZEROS.values(), ids=WITH_ZEROS.keys())
@pytest.mark.parametrize("E", estimators())
def test_a_category_of_probability_zero_gets_no_gradient(E, case):
    """Nor is it shown. Whatever the constant in f, the other gradients are right."""
    if not supports(E, case.kind) or (getattr(E, "variables", None) or 0) > case.theta.shape[0]:
        pytest.skip("not for this law")
    theta = case.theta.expand(20, *case.theta.shape).clone().requires_grad_()
    E, q = deepcopy(E), case.distribution(theta)

    def f(x):
        if not E.differentiates_f:
            assert bool((view(q).log_prob(view(q).index(x)) > -torch.inf).all())
        return curved(case.features(x), SLOPE)

    E(f, q, generator=seeded()).sum().backward()
    alone = theta == 1 if case.kind == "bits" else (theta > 0).sum(-1, keepdim=True) == 1
    certain = (theta == 0) | alone
    assert theta.grad.isfinite().all()
    assert theta.grad[certain].abs().max() <= 1e-12
    if E.unbiased and not continuous(E) and not isinstance(E, VIMCO):
        got = expectation(E, case, curved, SLOPE)
        assert_close(got, by_the_convention(case), rtol=0, atol=1e-12)


def _asked(q):
    for _ in range(2):
        q = q.expand((2, *q.batch_shape))
    return q


def expanded(q):
    q.entropy()
    return q.expand((4, *q.batch_shape))


CHANGES = {
    "entropy, expand": expanded,
    "logits and probs, expand twice": lambda q: (q.logits, q.probs, _asked(q))[2],
    "expand, entropy, expand": lambda q: _asked(
        (wide := q.expand((4, *q.batch_shape)), wide.entropy())[0]
    ),
    "entropy, expand, deepcopy": lambda q: deepcopy(expanded(q)),
    "entropy, expand, pickle": lambda q: loads(dumps(expanded(q))),
}
EXTREME = {
    "bits": {"probs": [0.0, 1.0, 0.3, 1e-10], "logits": [-torch.inf, 200.0, 20.0, 0.3]},
    "index": {
        "probs": [[0.0, 1.0, 0.0], [0.0, 0.4, 0.6], [1e-10, 1 - 1e-10, 0.0], [0.2, 0.2, 0.6]],
        "logits": [
            [-torch.inf, 0.0, 0.0],
            [0.0, 30.0, -30.0],
            [0.0, -200.0, -16.0],
            [0.0, 1.0, 2.0],
        ],
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("by", ["probs", "logits"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("kind", TYPES)
def test_the_view_survives_torch_caches_and_expand(kind, change, by, dtype):
    """Extreme probabilities, for which torch clamps the other form of the parameter."""
    parameter = torch.tensor(EXTREME["bits" if kind == "bits" else "index"][by], dtype=dtype)
    untouched = view(TYPES[kind](**{by: parameter}))
    seen = view(change(TYPES[kind](**{by: parameter})))
    for got, expected in ((seen.probs, untouched.probs), (seen.log_probs, untouched.log_probs)):
        expected = expected.reshape(4, -1)  # one row per variable
        assert_close(
            got.reshape(-1, *expected.shape),
            expected.expand(got.numel() // expected.numel(), *expected.shape),
        )
    assert torch.equal(
        seen.possible.reshape(-1, *expected.shape)[0], untouched.possible.reshape(expected.shape)
    )


@pytest.mark.parametrize("by", ["probs", "logits"])
@pytest.mark.parametrize("kind", TYPES)
def test_the_gradient_survives_entropy_and_expand(kind, by):
    parameter = double(EXTREME["bits" if kind == "bits" else "index"][by]).requires_grad_()
    slope = torch.linspace(-1, 2, 8 if kind == "bits" else 12, dtype=torch.float64).view(4, -1)

    def f(x):
        return (as_one_hot(x, kind) * slope).sum((-1, -2)).exp()

    gradients = []
    for change in (lambda q: q, lambda q: (q.entropy(), q.expand((1, *q.batch_shape)))[1]):
        law = Independent(change(TYPES[kind](**{by: parameter})), 1)
        x = view(law).point(view(law).probs.argmax(-1)).unsqueeze(0)
        values = Exact()(f, law), catlog.Reinforce(1)(f, law, x=x)
        gradients += [with_gradients(value, parameter)[1] for value in values]
    assert gradients[0].abs().max() > 0.1
    for plain, changed in zip(gradients[:2], gradients[2:], strict=True):
        assert_close(changed, plain, rtol=1e-12, atol=1e-12)


def test_a_distribution_of_unknown_form_works_twice_and_compiles():
    """No graph of torch's cache is in the way of a second backward pass."""
    logits = torch.zeros(3, requires_grad=True)
    base = Bernoulli(logits=logits)
    base.entropy()
    q = Independent(base.expand((2, 3)), 1)
    for _ in range(2):
        Exact()(lambda x: x.sum(-1), q).sum().backward()
    assert_close(logits.grad, torch.ones(3))

    base = Bernoulli(probs=torch.tensor([0.0, 0.5, 1.0]))
    base.entropy()
    q = base.expand((2, 3))
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    compiled = torch.compile(lambda: view(q).log_probs, **options)
    seen = compiled().exp().view(2, 3, 2)
    assert torch.equal(seen, torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]).expand(2, 3, 2))


@pytest.mark.parametrize("kind", TYPES)
def test_comparisons_never_show_the_impossible(kind):
    """compare and advise rebuild q from the given form."""
    probs = double(EXTREME["bits" if kind == "bits" else "index"]["probs"]).requires_grad_()
    base = TYPES[kind](probs=probs)
    base.entropy()
    q = Independent(base.expand((1, 4)), 1)
    possible = (torch.stack([1 - probs, probs], -1) if kind == "bits" else probs) > 0

    def f(x):
        mass = as_one_hot(x, kind)
        assert not bool((mass.bool() & ~possible).any())
        return mass.flatten(-2).cumsum(-1).sin().sum(-1)

    for row in catlog.compare(f, q, [IndeCateR(2)], [probs], repeats=5).rows:
        assert isfinite(row.variance)


def every_law(batch, d, k, dtype=torch.float32):
    """Return per kind parameters and a distribution of d variables of k categories."""
    for kind in ("bits", "index", "one-hot", "mixed", "structured"):
        shape = (*batch, d) if kind == "bits" else (*batch, d, k)
        theta = torch.full(shape, 0.7, dtype=dtype, requires_grad=True)
        if kind == "mixed":
            yield kind, theta, Categoricals(theta, (k,) * d)
        elif kind == "structured":
            step = torch.zeros(*batch, k, k, dtype=dtype)
            yield kind, theta, MarkovChain(theta[..., 0, :], step, length=d)
        else:
            yield kind, theta, Independent(TYPES[kind](logits=theta), 1)


@pytest.mark.parametrize("E", estimators())
def test_an_empty_batch(E, monkeypatch):
    """The result is empty, a backward pass works, and nothing is learned."""
    # torch's own check cannot do empty batches.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    E = deepcopy(E)
    before = deepcopy(E.state_dict()) if isinstance(E, nn.Module) else {}
    for batch in ((0,), (2, 0)):
        for kind, theta, q in every_law(batch, 3, 3):
            if not supports(E, kind):
                continue
            value = E(lambda x, lead=1 + len(batch): x.float().flatten(lead).sum(-1).sin(), q)
            assert value.shape == batch
            value.sum().backward()
            assert theta.grad.shape == theta.shape
    if isinstance(E, nn.Module):
        assert all(torch.equal(before[name], now) for name, now in E.state_dict().items())
        gradients = [parameter.grad for parameter in E.parameters()]
        assert not any(gradient is not None and gradient.any() for gradient in gradients)


def test_a_moving_average_of_nothing_stays():
    baseline = MovingAverageBaseline(decay=0.5)
    baseline(torch.full((2,), 3.0))
    theta = torch.zeros(0, 3, requires_grad=True)
    catlog.Reinforce(2, baseline=baseline)(lambda x: x.sum(-1), bits(theta)).sum().backward()
    assert baseline(torch.zeros(1)) == 3.0


@pytest.mark.parametrize(("d", "size"), [(2, 4096), (200, 4096), (512, 2048), (20_000, 1024)])
def test_points_of_many_variables_are_evaluated_in_smaller_chunks(d, size):
    law = view(Independent(Bernoulli(logits=torch.zeros(16, d)), 1))
    assert Evaluator(torch.sum, law).parts(0) == []
    parts = Evaluator(torch.sum, law).parts(10_000)
    assert parts[-1].stop == 10_000
    assert max(part.stop - part.start for part in parts) <= size // 16
    assert len(parts) == -(-10_000 // (size // 16))


@pytest.mark.parametrize("E", estimators())
def test_one_variable_or_one_category(E):
    """With one category there is one point: f is exact there, and q has nothing to learn."""
    for batch, d, k in [((), 1, 1), ((), 3, 1), ((2,), 1, 1), ((2,), 3, 1), ((5,), 1, 3)]:
        for kind, theta, q in every_law(batch, d, k, torch.float64):
            if not supports(E, kind) or (getattr(E, "variables", None) or 0) > d:
                continue
            slope = double(2.0).requires_grad_()

            def f(x, slope=slope, lead=1 + len(batch)):
                return slope * (x.double().flatten(lead) + 1).cumsum(-1).sum(-1).sin()

            value = deepcopy(E)(f, q)
            gradients = torch.autograd.grad(
                value.sum(), [theta, slope], allow_unused=True, materialize_grads=True
            )
            assert value.shape == batch
            assert all(gradient.isfinite().all() for gradient in gradients)
            if k == 1 and kind != "bits":
                shape = (1, *batch, d, 1)
                point = torch.ones(shape) if kind == "one-hot" else torch.zeros(shape[:-1])
                exact = f(point).detach()[0]
                assert_close(value.detach(), exact, rtol=0, atol=1e-12)
                assert gradients[0].abs().max() < 1e-12
                assert_close(gradients[1], exact.sum() / 2, rtol=0, atol=1e-12)


def test_distributions_print_their_shapes():
    chains = MarkovChain(torch.zeros(2, 2), torch.zeros(2, 2), length=3)
    assert repr(Categoricals(torch.zeros(2, 3), [2, 3])) == (
        "Categoricals(batch_shape=(), event_shape=(2,))"
    )
    assert repr(Independent(chains, 1)) == (
        "Independent(MarkovChain(batch_shape=(2,), event_shape=(3,)), 1)"
    )
