"""The repr of an estimator is its short label."""

from inspect import signature

import pytest
from torch import nn

import catlog
from catlog import ESTIMATORS

# What an estimator learns is no setting; whether it checks f's values does not change the estimate.
UNLISTED = {"alpha", "beta", "eta", "network", "baseline", "validate", "samples"}
CHANGED = {
    "draws": "antithetic",
    "suffix": "common",
    "tree": "stick",
    "control": "none",
    "order": 1,
    "last_time": 0.25,
    "control_weight": 0.25,
    "pairs": True,
}
EXCLUDED = {"IndeCateR": {"variables"}, "SCateR": {"categories"}, "REBAR": {"temperature"}}


def changed(default: bool | int | float | None) -> bool | int | float:
    """Return a setting other than its default."""
    if default is None:
        return 3
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else (default + 0.5) / 2


@pytest.mark.parametrize("name", ESTIMATORS)
def test_repr_of_the_defaults(name: str) -> None:
    E = ESTIMATORS[name]()
    assert repr(E) == f"{name}({getattr(E, 'samples', '')})"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_repr_shows_every_setting(name: str) -> None:
    parameters = signature(ESTIMATORS[name]).parameters
    settings = {
        key: CHANGED[key] if key in CHANGED else changed(parameters[key].default)
        for key in parameters.keys() - UNLISTED - EXCLUDED.get(name, set())
    }
    E = ESTIMATORS[name](**settings)
    text = repr(E)
    for key, value in settings.items():
        assert (f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}") in text
    assert len(text.split(", ")) == len(settings) + hasattr(E, "samples")


def test_repr_is_the_label_that_advise_prints() -> None:
    assert repr(catlog.SlopeCateR(4)) == "SlopeCateR(4)"
    assert repr(catlog.SlopeCateR(4, slope_entries=0)) == "SlopeCateR(4, slope_entries=0)"
    E = catlog.IndeCateR(9, draws="latin", variables=4)
    assert repr(E) == "IndeCateR(9, draws=latin, variables=4)"
    assert repr(catlog.MAPO(maximise=False)) == "MAPO(2, maximise=False)"
    assert repr(catlog.NVIL(2, network=nn.Linear(1, 1))) == "NVIL(2, network=Linear)"
    baseline = catlog.MovingAverageBaseline()
    assert repr(catlog.Reinforce(3, baseline)) == "Reinforce(3, baseline=MovingAverageBaseline)"
