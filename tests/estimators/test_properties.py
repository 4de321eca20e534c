"""Properties that hold for all shapes, dtypes, cardinalities and draws, searched by hypothesis."""

from dataclasses import replace
from itertools import product
from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from catlog import RLOO, Exact, IndeCateR, Reinforce, StraightThrough
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Categoricals
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import seeded
from support.laws import bits, one_hots

search = settings(derandomize=True, deadline=None, max_examples=60, database=None)
seeds = st.integers(0, 2**32 - 1)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
dtypes = st.sampled_from([torch.float32, torch.float64])
cardinalities = st.lists(st.integers(1, 4), min_size=1, max_size=4)
counts = st.integers(1, 3)
problems = {"seed": seeds, "batch": batches, "sizes": cardinalities}
SAMPLINGS = ("independent", "antithetic", "latin")
TINY = {torch.float32: 1e-5, torch.float64: 1e-12}

LAWS = {
    "bits": lambda logits, sizes: bits(logits[..., 0]),
    "one-hot": lambda logits, sizes: one_hots(logits),
    "categoricals": Categoricals,
}
BLACK_BOX = [
    Reinforce(samples=3),
    RLOO(samples=3),
    *(IndeCateR(samples=3, sampling=sampling) for sampling in SAMPLINGS),
    IndeCateR(samples=2, per_variable=True),
    IndeCateR(samples=3, variables=1, control="none"),
]
ALL = [*BLACK_BOX, StraightThrough(samples=2), IndeCateR(samples=3, variables=1)]
CHUNKED = [Exact(), *(E for E in BLACK_BOX if isinstance(E, IndeCateR))]


def gradient(value, logits):
    return torch.autograd.grad(value.sum(), logits)[0]


def random_logits(seed, batch, sizes, dtype=torch.float64):
    """Return logits ``[*batch, d, k]`` of variables with these numbers of categories."""
    shape = (*batch, len(sizes), max(sizes))
    return torch.randn(shape, dtype=dtype, generator=seeded(seed)).requires_grad_()


def wave(weights, event):
    """Return a function that mixes all variables, with weights ``[*batch, features]``."""
    return lambda x: (x.flatten(-event) * weights).sum(-1).sin()


@search
@given(**problems, dtype=dtypes, kind=st.sampled_from(list(LAWS)), E=st.sampled_from(ALL))
def test_batch_equals_loop(seed, batch, sizes, dtype, kind, E):
    if E.differentiates_f and kind == "categoricals":
        kind = "one-hot"
    logits = random_logits(seed, batch, sizes, dtype)
    q = LAWS[kind](logits, sizes)
    event = len(q.event_shape)
    weights = torch.randn(*batch, q.event_shape.numel(), dtype=dtype, generator=seeded(seed))
    torch.manual_seed(seed)
    injected = draw_randomness(E, q)
    value = E(wave(weights, event), q, **injected)
    slope = gradient(value, logits)
    for element in product(*map(range, batch)):
        leaf = logits.detach()[element].requires_grad_()
        rows = (slice(None), *element)
        given = {"x": injected["x"][rows]}
        if "noise" in injected:
            given["noise"] = tuple(noise[rows] for noise in injected["noise"])
        alone = E(wave(weights[element], event), LAWS[kind](leaf, sizes), **given)
        assert_close(value[element], alone, rtol=0, atol=TINY[dtype])
        assert_close(slope[element], gradient(alone, leaf), rtol=0, atol=TINY[dtype])


@search
@given(**problems, chunk_size=st.integers(1, 60), whole=st.sampled_from(CHUNKED))
def test_chunked_equals_whole(seed, batch, sizes, chunk_size, whole):
    results, most = [], []
    for E in (whole, replace(whole, chunk_size=chunk_size)):
        logits = random_logits(seed, batch, sizes)
        weights = torch.randn(*batch, len(sizes), dtype=torch.float64, generator=seeded(seed))
        seen = []

        def f(x, seen=seen, weights=weights):
            seen.append(len(x))
            return wave(weights, 1)(x)

        value = E(f, Categoricals(logits, sizes), generator=seeded(seed))
        results.append((value.detach(), gradient(value, logits)))
        most.append(seen if isinstance(E, Exact) else seen[1:])
    assert_close(*results, rtol=0, atol=1e-12)
    assert sum(most[0]) == sum(most[1])
    assert all(rows <= max(1, chunk_size // prod(batch)) for rows in most[1])


@search
@given(
    **problems,
    dtype=dtypes,
    samples=counts,
    sampling=st.sampled_from(SAMPLINGS),
    per_variable=st.booleans(),
)
def test_indecater_equals_the_literal_formula(
    seed, batch, sizes, dtype, samples, sampling, per_variable
):
    """The sum over i and k of p_i(k) times the mean over draws of f(x with x_i = k)."""
    d = len(sizes)
    logits = random_logits(seed, batch, sizes, dtype)
    f = wave(torch.randn(*batch, d, dtype=dtype, generator=seeded(seed)), 1)
    q = Categoricals(logits, sizes)
    E = IndeCateR(samples=samples, sampling=sampling, per_variable=per_variable)
    value = E(f, q, generator=seeded(seed))
    groups = d if per_variable else 1
    x = Randomness(view(q), generator=seeded(seed)).points(samples, sampling, groups)
    literal = 0.0
    for i, size in enumerate(sizes):
        probs = logits[..., i, :size].softmax(-1)
        for k in range(size):
            point = x[i::d].clone() if per_variable else x.clone()
            point[..., i] = k
            literal = literal + probs[..., k] * f(point).mean(0)
    assert_close(value, literal / d, rtol=0, atol=TINY[dtype])
    assert_close(gradient(value, logits), gradient(literal, logits), rtol=0, atol=TINY[dtype])


@search
@given(**problems, dtype=dtypes, E=st.sampled_from([*BLACK_BOX, Exact()]))
def test_value_is_finite_and_within_the_range_of_f(seed, batch, sizes, dtype, E):
    values = torch.randn(prod(sizes), dtype=dtype, generator=seeded(seed))
    stride = torch.tensor([prod(sizes[i + 1 :]) for i in range(len(sizes))])
    logits = 3 * torch.randn(*batch, len(sizes), max(sizes), dtype=dtype, generator=seeded(seed))
    q = Categoricals(logits, sizes)
    value = E(lambda x: values[(x * stride).sum(-1)], q, generator=seeded(seed))
    assert value.shape == batch
    assert bool(value.isfinite().all())
    assert bool((value >= values.min() - TINY[dtype]).all())
    assert bool((value <= values.max() + TINY[dtype]).all())


@search
@given(**problems, constant=st.floats(-1e3, 1e3), E=st.sampled_from(BLACK_BOX[1:]))
def test_constant_f_has_no_gradient(seed, batch, sizes, constant, E):
    logits = random_logits(seed, batch, sizes)

    def f(x):
        return torch.full(x.shape[:-1], constant, dtype=torch.float64)

    value = E(f, Categoricals(logits, sizes), generator=seeded(seed))
    assert_close(value, torch.full_like(value, constant), rtol=1e-12, atol=0)
    rounding = 1e-10 if isinstance(E, RLOO) else 0
    assert_close(gradient(value, logits), torch.zeros_like(logits), rtol=0, atol=rounding)


@search
@given(
    seeds, batches, st.integers(1, 4), st.integers(2, 4), dtypes, st.sampled_from(SAMPLINGS), counts
)
def test_kinds_of_distribution_agree(seed, batch, d, k, dtype, sampling, samples):
    """One-hot and integer distributions with the same uniforms give the same estimate."""
    E = IndeCateR(samples=samples, sampling=sampling)
    logits = torch.randn(*batch, d, k, dtype=dtype, generator=seeded(seed)).requires_grad_()
    f = wave(torch.randn(*batch, d, dtype=dtype, generator=seeded(seed)), 1)
    index = E(f, Categoricals(logits, [k] * d), generator=seeded(seed))
    numbers = torch.arange(k, dtype=dtype)
    one_hot = E(lambda x: f(x @ numbers), one_hots(logits), generator=seeded(seed))
    assert_close(index, one_hot, rtol=0, atol=TINY[dtype])
    assert_close(gradient(index, logits), gradient(one_hot, logits), rtol=0, atol=TINY[dtype])
