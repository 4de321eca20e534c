"""What `catlog.advise` picks."""

from typing import Any

import torch

import catlog
from catlog import Estimator
from catlog.core.settings import label

from ..tables import Row
from .races import started


def pick(f: Any, q: Any, *, biased: bool, **options: Any) -> Row:
    """Return what `catlog.advise` picks with these options."""
    advice = catlog.advise(f, q, biased=biased, **options)
    return {
        "biased": biased,
        "pick": label(advice.estimator),
        "draws": getattr(advice.estimator, "samples", None),
        "pilot_seconds": advice.seconds,
    }


def pick_of_race(race: str, seed: int, biased: bool) -> Row:
    """Return the pick at the start of a race. Another copy of the model makes the timed steps."""
    torch.set_num_threads(1)
    stand_in = started(race, "RLOO(2)", seed)

    def step(E: Estimator) -> None:
        stand_in.use(E)
        stand_in.step(0)

    f, q = started(race, "RLOO(2)", seed).problem()
    return pick(f, q, biased=biased, seed=seed, step=step)
