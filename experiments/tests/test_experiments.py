"""What each experiment computes: exact gradients, bounds, published mistakes, learning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Independent, OneHotCategorical

import catlog
from catlog_experiments import DVAE, Addition, Gradients, Optimisation, execute
from catlog_experiments.dvae import DVAETask
from catlog_experiments.protocol import latent
from catlog_experiments.run_folder import Folder

TINY = DVAE(epochs=1, variables=4, batch=100, learning_rate=1e-3)


def trains(config: DVAE) -> bool:
    """Return whether ten steps lower the bound of images that are not trained on."""
    torch.manual_seed(0)
    task = config.task()
    assert isinstance(task, DVAETask)
    before = task.mean_bound(task.test[:200], 1)
    for i in range(10):
        task.step(i)
    return task.mean_bound(task.test[:200], 1) < before - 50


@pytest.mark.parametrize("name", ["IndeCateR", "RLOO-F"])
def test_unbiased_estimators_optimise(name: str, tmp_path: Path) -> None:
    execute(Optimisation(estimator=name, iterations=30, every=30), tmp_path)
    first, last = Folder(tmp_path).rows()
    assert first["value"] == pytest.approx(0.25, abs=3e-4)
    assert last["value"] > 0.2504


@pytest.mark.parametrize("function", ["additive", "pairwise"])
@pytest.mark.parametrize("name", ["IndeCateR", "GS"])
def test_exact_gradient_of_the_synthetic_problems_is_right(name: str, function: str) -> None:
    """The multilinear shortcut agrees with enumeration."""
    task = Gradients(variables=3, categories=4, function=function, estimator=name).task()
    logits = task.logits.double().requires_grad_()
    task.f.double()
    cls = OneHotCategorical if name == "GS" else Categorical
    value = catlog.Exact()(task.f, Independent(cls(logits=logits), 1))
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient, task.exact, rtol=1e-6, atol=1e-6)


def test_bias_and_variance_of_two_estimates() -> None:
    """Of zero and twice the exact gradient, whose mean is right by chance."""
    task = Gradients(repeats=2, together=1).task()
    task.g, task.g2 = 2 * task.exact, (2 * task.exact).square()
    metrics = task.measure(2)
    assert metrics["relative_bias"] == pytest.approx(0, abs=1e-12)
    assert metrics["relative_variance"] == pytest.approx(2)
    assert metrics["relative_bias2"] == pytest.approx(-1)  # less the variance of the mean


def test_published_update_moves_all_by_the_first() -> None:
    task = Optimisation(variables=20, update="published").task()
    before = task.logits.detach().clone()
    task.step(0)
    moved = task.logits.detach() - before
    torch.testing.assert_close(moved, moved[:1].expand_as(moved))


@pytest.mark.parametrize(
    ("config", "variables"),
    [(Optimisation(), 200), (DVAE(), 200), (DVAE(categories=10), 200), (Addition(digits=16), 16)],
)
def test_rloo_f_has_a_draw_for_every_evaluation_of_indecater(config: Any, variables: int) -> None:
    """The fair comparison of the paper, which counts variables x categories for a draw."""
    categories = getattr(config, "categories", 10 if isinstance(config, Addition) else 2)
    methods = config.methods
    assert methods["RLOO-F"].samples == methods["IndeCateR"].samples * variables * categories


@pytest.mark.parametrize("name", [name for name in catlog.estimators.ESTIMATORS if name != "Exact"])
def test_any_estimator_trains_by_name(name: str) -> None:
    optimisation = Optimisation(iterations=4, variables=4, every=4, estimator=name)
    if name == "VIMCO":
        with pytest.raises(ValueError, match="log-weights"):
            optimisation.task()
    else:
        assert trains(replace(TINY, estimator=name))
        optimisation.task().step(0)


@pytest.mark.parametrize("name", ["IndeCateR", "IndeCateR-D", "GS-S"])
def test_a_categorical_dvae_trains(name: str) -> None:
    assert trains(replace(TINY, variables=5, categories=4, estimator=name))


@pytest.mark.parametrize("categories", [2, 5])
def test_divergence_agrees_with_torch(categories: int) -> None:
    task = DVAE(variables=3, categories=categories, test_samples=1).task()
    logits = torch.randn(7, 3 if categories == 2 else 15)
    q, prior = (
        latent(task.config, parameter, one_hot=False)
        for parameter in (logits, torch.zeros_like(logits))
    )
    expected = torch.distributions.kl_divergence(q.base_dist, prior.base_dist).sum(-1)
    torch.testing.assert_close(task.divergence(logits), expected)


def test_the_gradient_is_clipped() -> None:
    def norm(clip: float | None) -> float:
        torch.manual_seed(0)
        task = Addition(digits=2, device="cpu", compile="no", clip=clip).task()
        task.step(0)
        return float(torch.stack([p.grad.norm() for p in task.model.parameters()]).norm())

    assert norm(None) > 0.1
    assert norm(0.1) == pytest.approx(0.1, rel=1e-4)
