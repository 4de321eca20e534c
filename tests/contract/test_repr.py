"""The repr of an estimator is its short label, of which the same estimator can be made again."""

from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn

import catlog
from catlog.diagnostics.naming import parse_estimator
from catlog.estimators import ESTIMATORS
from catlog.testing.settings import VARIANTS

# What an estimator learns is no setting.
LEARNED = {"alpha", "beta", "eta", "network", "baseline"}
CHANGED = {
    "sampling": "antithetic",
    "suffix": "common",
    "tree": "stick",
    "control": "none",
    "order": 1,
    "last_time": 0.25,
    "control_weight": 0.25,
    "pairs": True,
}
EXCLUDED = {"IndeCateR": {"variables"}, "SCateR": {"categories"}, "REBAR": {"temperature"}}


def changed(name: str, default: Any) -> Any:
    """Return a setting other than its default."""
    if name in CHANGED or default is None:
        return CHANGED.get(name, 3)
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else (default + 0.5) / 3


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_repr_shows_every_setting_and_makes_an_equal_estimator(name: str) -> None:
    """By `compare` and by Python."""
    cls, learned = ESTIMATORS[name], LEARNED | ({"temperature"} if name == "REBAR" else set())
    parameters = {key: p.default for key, p in signature(cls).parameters.items()}
    unlisted = learned | EXCLUDED.get(name, set()) | {"samples"}
    settings = {
        key: changed(key, default) for key, default in parameters.items() if key not in unlisted
    }
    text = repr(cls(**settings))
    assert all(f"{key}={value!r}" in text for key, value in settings.items())
    assert len(text.split(", ")) == len(settings) + ("samples" in parameters)
    assert repr(cls()) == f"{name}({parameters.get('samples', '')})"
    for options in [{}, settings, *VARIANTS[name]]:
        E = cls(**options)
        for again in (parse_estimator(repr(E)), eval(repr(E), vars(catlog.estimators))):
            assert repr(again) == repr(E)
            assert all(
                getattr(again, key) == getattr(E, key) for key in parameters.keys() - learned
            )


def test_different_settings_have_different_reprs() -> None:
    assert repr(catlog.estimators.IMLE(step=1 / 3)) != repr(catlog.estimators.IMLE(step=0.333))
    assert repr(catlog.ReinMax(temperature=torch.ones((), device="meta"))) != repr(catlog.ReinMax())


class Weighted(catlog.StraightThrough):
    weights: torch.Tensor | None = None


LABELS = {  # Weighted stands for an estimator of a user
    "SlopeCateR(4)": catlog.SlopeCateR(4),
    "SlopeCateR(4, slope_entries=0)": catlog.SlopeCateR(4, slope_entries=0),
    "IndeCateR(9, sampling='latin', variables=4)": catlog.IndeCateR(
        9, sampling="latin", variables=4
    ),
    "MAPO(2, maximise=False)": catlog.estimators.MAPO(maximise=False),
    "NVIL(2, network=Linear)": catlog.estimators.NVIL(2, network=nn.Linear(1, 1)),
    "Reinforce(3, baseline=MovingAverageBaseline)": catlog.Reinforce(
        3, baseline=catlog.estimators.MovingAverageBaseline()
    ),
    "Reinforce(2, baseline=mean)": catlog.Reinforce(2, baseline=torch.mean),
    "ReinMax(1, temperature=0.3)": catlog.ReinMax(temperature=torch.tensor(0.3)),
    "ReinMax(1)": catlog.ReinMax(temperature=torch.tensor(1.0)),
    "GappedStraightThrough(1, gap=None)": catlog.estimators.GappedStraightThrough(gap=None),
    "Weighted(2)": Weighted(2),
    "Weighted(2, weights=tensor)": Weighted(2, weights=torch.ones(3)),
}


def test_repr_is_the_label_that_advise_prints() -> None:
    assert {label: repr(E) for label, E in LABELS.items()} == {label: label for label in LABELS}
