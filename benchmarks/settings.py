"""Estimators by name and options; an option can stand for a module that fits the distribution."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

import catlog
from catlog.estimators import ESTIMATORS
from catlog.distributions.factors import factors

Options = dict[str, Any]
NETWORK = "network"  # the value of an option that stands for a new network
MOVING_AVERAGE = "moving average"


def make_estimator(
    name: str, options: Options, q: Distribution, dtype: torch.dtype = torch.float32
) -> catlog.Estimator:
    """Return the estimator, with randomly initialised modules where the options name them."""
    torch.manual_seed(0)
    arguments = dict(options)
    if arguments.get("baseline") == MOVING_AVERAGE:
        arguments["baseline"] = catlog.estimators.MovingAverageBaseline()
    if arguments.get("network") == NETWORK:
        view = factors(q)
        inputs = 2 if name == "RODEO" else view.d * (1 if view.kind == "bits" else view.k)
        outputs = 2 if name == "RODEO" else 1
        flat = nn.Flatten(-2) if len(q.event_shape) == 2 and name == "RELAX" else nn.Identity()
        network = nn.Sequential(flat, nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))
        arguments["network"] = network.to(dtype)
    return ESTIMATORS[name](**arguments)


def near_budget(name: str, options: Options, q: Distribution, budget: int) -> Options | None:
    """Return the options with the number of samples whose cost is nearest the budget.

    A cost of more than 1.1 times the budget does not count; None where every number costs more.
    """
    if "samples" in options or "samples" not in inspect.signature(ESTIMATORS[name]).parameters:
        return options
    costs: dict[int, int] = {}
    for samples in range(1, budget + 1):
        try:
            costs[samples] = make_estimator(name, {"samples": samples, **options}, q).evaluations(q)
        except ValueError:  # too few or too many for this estimator
            continue
    allowed = [samples for samples, cost in costs.items() if cost <= 1.1 * budget]
    if not allowed:
        return None
    return {"samples": min(allowed, key=lambda samples: abs(costs[samples] - budget)), **options}


def options_text(options: Options) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())
