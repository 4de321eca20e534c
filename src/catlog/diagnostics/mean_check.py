"""Compare the mean that a function knows with its values at all points."""

import torch
from torch import Tensor

from ..estimators import Exact
from ..evaluation.own_table import rounding
from ..sampling.draw import draw
from .gradient_samples import GradientSampler
from .gradients import gradients_in

MOST_POINTS = 2**12


def check_mean(task: GradientSampler, limit: int = MOST_POINTS) -> None:
    """Raise ValueError if ``f.expectation`` or its gradient does not agree with f.

    Nothing is compared if q has many points, or if f does not know its mean.
    """
    if not task.knows_mean or task.points > min(limit, MOST_POINTS):
        return
    f, E = task.f, Exact(limit=task.points)
    q = task.make_q(*task.parameters)
    known, summed = E(f, q), E(lambda x: f(x), q)
    with torch.no_grad():
        size = E(lambda x: f(x).to(task.view.real).abs(), q)
        x = draw(task.view, 1, generator=task.generator(0))
        tolerance = rounding(f, x, summed)
    _raise_if_different(known, summed, tolerance * size, task, "returns {} for batch element {}")
    for number, parameter in enumerate(task.parameters):
        known_slope = gradients_in(known, [parameter], retain=True)[0]
        slope = gradients_in(summed, [parameter], retain=True)[0]
        bound = (tolerance * (slope.abs().max() + size.sum())).expand(slope.shape)
        text = f"has the derivative {{}} in element {{}} of parameter {number}"
        _raise_if_different(known_slope, slope, bound, task, text)


def _raise_if_different(
    known: Tensor, summed: Tensor, bound: Tensor, task: GradientSampler, text: str
) -> None:
    known, summed = known.detach(), summed.detach()
    is_wrong = ~((known - summed).abs() <= bound)
    if bool(is_wrong.any()):
        first = tuple(is_wrong.nonzero()[0].tolist())
        raise ValueError(
            "f.expectation does not agree with f: it "
            f"{text.format(f'{float(known[first]):.6g}', first)}, but the sum over all "
            f"{task.points} points gives {float(summed[first]):.6g}. Correct `expectation`, or use "
            "`lambda x: f(x)`, which has none."
        )
