"""What the battery measures: where an estimator applies, its z-scores, its injected randomness."""

from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from catlog.core.estimator import Estimator
from catlog.core.randomness import seeded_from
from catlog.core.view import view

from .cases import CASES, PARAMETER, Case, FeatureFunction, seeded
from .enumeration import count, expected
from .settings import chosen_per_draw, labelled, recorded, supports, tape

FALSE_ALARMS = 1e-6  # probability that a z-test rejects an unbiased estimator
MOST_OUTCOMES = 300_000  # of a sampler that is enumerated


def z_limit(numbers: int) -> float:
    """Return the limit that one of ``numbers`` z-scores exceeds with probability ``FALSE_ALARMS``.

    At most that, by the union bound; two-sided, normal.

    >>> round(z_limit(1), 2)
    4.89
    """
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * numbers))


def takes(E: Estimator[Any], case: Case) -> bool:
    """Return whether E takes the distribution of the case."""
    d = view(case.distribution(case.theta)).d
    return supports(E, case.kind) and chosen_per_draw(E) <= d


def pairs(selected: Mapping[str, Estimator[Any]], names: Iterable[str] = CASES) -> list[object]:
    """Return each estimator with each of the cases that it takes, as parameters for pytest."""
    every = ((label, E, CASES[name]) for label, E in selected.items() for name in names)
    return labelled({f"{n}-{case.name}": (E, case) for n, E, case in every if takes(E, case)})


def few_outcomes(E: Estimator[Any], case: Case) -> bool:
    """Return whether E's sampler has few enough outcomes to enumerate them."""
    record = recorded(E, case.distribution(case.theta))
    if record.coupling is not None:
        return count(record.coupling) <= MOST_OUTCOMES
    rows = dict(record.taken).get("points", (0,))[0]
    return len(case.points) ** min(rows, 12) <= MOST_OUTCOMES


def z_scores(
    E: Callable[..., Tensor], case: Case, f: FeatureFunction, repeats: int = 20_000
) -> Tensor:
    """Return how many standard errors the mean of many estimates lies from the exact result.

    One score per number: the value, then the gradient in theta.
    """
    return scores(*estimates(E, case, f, repeats), case, f)


def estimates(
    E: Callable[..., Tensor], case: Case, f: FeatureFunction, repeats: int = 20_000
) -> tuple[Tensor, Tensor]:
    """Return many independent estimates of the value and of the gradient in theta."""
    theta = case.theta.expand(repeats, *case.theta.shape).clone().requires_grad_()
    q, generator = case.distribution(theta), seeded()
    value = E(lambda x: f(case.features(x), PARAMETER), q, generator=generator)
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return value.detach(), gradient


def scores(value: Tensor, gradient: Tensor, case: Case, f: FeatureFunction) -> Tensor:
    """Return the z-scores of these estimates, as :func:`z_scores` does."""
    exact_value, exact_gradient, _ = expected(case, f, PARAMETER)
    result = []
    for rows, exact in ((value, exact_value), (gradient, exact_gradient)):
        rounding = 1e-12  # allowed where the estimate does not vary
        error = ((rows.mean(0) - exact).abs() - rounding).clamp(min=0)
        standard_error = (rows.std(0) / len(rows) ** 0.5).clamp(min=1e-300)
        result.append((error / standard_error).flatten())
    return torch.cat(result)


def draw_randomness(E: Estimator[Any], q: Distribution) -> dict[str, Any]:
    """Draw what a call of E draws, as arguments that inject it, so that two calls can share it; the
    same every time."""
    noise = []
    injected: dict[str, Any] = {}
    with seeded_from(seeded()):
        for name, shape in tape(E, q):
            if name == "points":
                injected["x"] = q.sample((shape[0],))
            elif name == "variables":
                order = torch.rand(*shape[:-1], view(q).d).argsort(-1)
                noise.append(order[..., : shape[-1]])
            else:
                noise.append(torch.rand(shape, dtype=view(q).real))
    return injected | ({"noise": tuple(noise)} if noise else {})
