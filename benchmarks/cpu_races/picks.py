"""What `catlog.advise` picks, in this version of catlog or in an earlier one."""

import time
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

import catlog
from catlog import Estimator
from catlog.estimator import label

from ..tables import Row
from .racers import Racer
from .races import started

Step = Callable[[Estimator], object]
Penalty = Callable[[Any], torch.Tensor]


def pick(
    f: Any,
    q: Any,
    *,
    biased: bool,
    seed: int,
    step: Step | None = None,
    penalty: Penalty | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Row:
    """Return what `catlog.advise` picks with its default settings.

    The training step and the penalty are passed to versions that take them.
    """
    settings: dict[str, Any] = {"biased": biased, "seed": seed, "clock": clock}
    known = signature(catlog.advise).parameters
    optional = {"step": step, "penalty": penalty}
    settings |= {name: value for name, value in optional.items() if name in known}
    advice = catlog.advise(f, q, **settings)
    return {
        "biased": biased,
        "pick": label(advice.estimator),
        "draws": getattr(advice.estimator, "samples", None),
        "pilot_seconds": advice.seconds,
    }


def pick_of_race(race: str, seed: int, biased: bool, has_table: bool = True) -> Row:
    """Return the pick at the start of a race. Another copy of the model makes the timed steps.

    Without ``has_table``, f is a plain function: the pilot does not see that f has its own table of
    single-variable changes.
    """
    torch.set_num_threads(1)
    plain = Racer("RLOO", 2)
    stand_in = started(race, plain, seed)

    def step(E: Estimator) -> None:
        stand_in.use(E)
        stand_in.step(0)

    f, q = started(race, plain, seed).problem()
    if not has_table:
        return pick(lambda x: f(x), q, biased=biased, seed=seed, step=step)
    return pick(f, q, biased=biased, seed=seed, step=step)
