"""What can be known about f and q before any estimate is made."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.categories import Kind
from ..core.evaluator import Function
from ..core.factors import Factors
from ..diagnostics import pilot_settings as settings
from ..estimator import RELAXABLE
from ..estimators.relaxations.relaxation import to_point
from ..evaluation.evaluate import value_and_slope
from ..sampling.draw import draw
from .gradient_samples import GradientSampler


@dataclass(frozen=True)
class Structure:
    """What is known about f and q before any estimate.

    Attributes:
        kind: The kind of distribution, as estimators name it.
        cardinalities: The number of categories of every variable.
        batch: The number of distributions in the batch.
        has_own_table: f computes its neighbours itself (:mod:`catlog.functions`).
        has_slope: f has a derivative in x at points of the distribution.
        is_relaxable: f also has a finite derivative between the categories.
        budget: Evaluations of f per step.
        has_budget: Whether the user gave the budget.
        evaluation_seconds: The time of one call of f at one point, per batch element.
        further_seconds: The time of a further point in the same call, for the whole batch.
        is_fixed: The user says that f never changes between steps.
        is_moved: All categories were about equally likely, so the pilot added noise to the logits.
        knows_mean: f knows its mean under q (``f.expectation``), so that Exact needs no evaluation.
    """

    kind: Kind
    cardinalities: tuple[int, ...]
    batch: int
    has_own_table: bool
    has_slope: bool
    is_relaxable: bool
    budget: int
    has_budget: bool
    evaluation_seconds: float
    further_seconds: float = 0.0
    is_fixed: bool = False
    is_moved: bool = False
    knows_mean: bool = False

    @property
    def d(self) -> int:
        """The number of variables."""
        return len(self.cardinalities)


def probe(task: GradientSampler, budget: int | None) -> Structure:
    """Evaluate f at a few points and return what they show about f and q."""
    law, generator = task.view, task.generator(0)
    x = draw(law, 2, generator=generator)

    @torch.no_grad()
    def call_seconds(points: Tensor) -> float:
        return task.timed(lambda: task.f(points.clone()))[0]

    call_seconds(x[:1])  # to warm up
    once = call_seconds(x[:1])
    further = 1 if once > settings.SLOW_EVALUATION else 7
    more = call_seconds(draw(law, 1 + further, generator=generator))
    has_slope = is_relaxable = False
    if isinstance(law, Factors) and law.kind in RELAXABLE:
        has_slope = _is_differentiable(task.f, x, law)
        mean = to_point(law, law.probs.detach()).to(law.dtype).unsqueeze(0)
        between = torch.cat([mean, (mean + x) / 2])
        is_relaxable = has_slope and _is_differentiable(task.f, between, law)
    two_draws_of_indecater = 2 * (1 + sum(law.cardinalities) - law.d)
    default_budget = max(settings.LEAST_BUDGET, two_draws_of_indecater)
    if task.points <= settings.EXACT_POINTS:
        default_budget = max(default_budget, task.points)
    return Structure(
        kind=task.kind,
        cardinalities=law.cardinalities,
        batch=law.batch_size,
        has_own_table=hasattr(task.f, "neighbours"),
        has_slope=has_slope,
        is_relaxable=is_relaxable,
        budget=default_budget if budget is None else budget,
        has_budget=budget is not None,
        evaluation_seconds=once / max(1, law.batch_size),
        further_seconds=max(0.0, more - once) / further,
        knows_mean=task.knows_mean,
    )


def _is_differentiable(f: Function, x: Tensor, law: Factors) -> bool:
    """Return whether f has a finite derivative at x that is not zero everywhere."""
    try:
        fx, slope = value_and_slope(f, x, law)
    except Exception:  # f may raise anything where it was not written for such points
        return False
    return bool(fx.isfinite().all() and slope.isfinite().all() and (slope != 0).any())
