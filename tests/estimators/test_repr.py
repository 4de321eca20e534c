"""The repr of an estimator is its short label, of which the same estimator can be made again."""

from dataclasses import dataclass
from inspect import signature

import pytest
import torch
from torch import nn

import catlog
from catlog import ESTIMATORS
from catlog.estimator import Estimator
from catlog.testing.settings import VARIANTS

# What an estimator learns is no setting; whether it checks f's values does not change the estimate.
LEARNED = {"alpha", "beta", "eta", "network", "baseline"}
UNLISTED = LEARNED | {"validate", "samples"}
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
    samples = str(getattr(E, "samples", ""))
    named = f"samples={samples}" if name in ("MAPO", "SumAndSample") else samples
    assert repr(E) == f"{name}({named})"


def every_setting(name: str) -> dict[str, object]:
    """Return a value other than the default for all settings that the label has."""
    parameters = signature(ESTIMATORS[name]).parameters
    return {
        key: CHANGED[key] if key in CHANGED else changed(parameters[key].default)
        for key in parameters
        if key not in UNLISTED | EXCLUDED.get(name, set())
    }


@pytest.mark.parametrize("name", ESTIMATORS)
def test_repr_shows_every_setting(name: str) -> None:
    settings = every_setting(name)
    E = ESTIMATORS[name](**settings)
    text = repr(E)
    assert all(f"{key}={value}" in text for key, value in settings.items())
    assert len(text.split(", ")) == len(settings) + hasattr(E, "samples")


def settings_of(E: Estimator, excluded: set[str]) -> dict[str, object]:
    return {key: getattr(E, key) for key in signature(type(E)).parameters if key not in excluded}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_can_be_made_of_its_repr(name: str) -> None:
    """Once the words of the label are names of strings."""
    learned = LEARNED | ({"temperature"} if name == "REBAR" else set())
    numbers = dict.fromkeys(("temperature", "gap", "clip", "step", "epsilon", "ridge"), 1 / 3)
    parameters = signature(ESTIMATORS[name]).parameters
    thirds = {key: third for key, third in numbers.items() if key in parameters.keys() - learned}
    variants = [{}, every_setting(name), thirds, {"validate": False}, *VARIANTS.get(name, [])]
    words = {word: word for word in CHANGED.values() if isinstance(word, str)}
    for options in variants:
        E = ESTIMATORS[name](**options)
        again = eval(repr(E), vars(catlog) | words)
        assert settings_of(again, learned) == settings_of(E, learned)
        assert repr(again) == repr(E)


def test_different_settings_have_different_reprs() -> None:
    assert repr(catlog.IMLE(step=1 / 3)) != repr(catlog.IMLE(step=0.333))
    assert repr(catlog.ReinMax(temperature=torch.ones((), device="meta"))) != repr(catlog.ReinMax())


@dataclass(frozen=True, repr=False)
class Weighted(catlog.StraightThrough):
    weights: torch.Tensor | None = None


LABELS = {  # Weighted stands for an estimator of a user
    "SlopeCateR(4)": catlog.SlopeCateR(4),
    "SlopeCateR(4, slope_entries=0)": catlog.SlopeCateR(4, slope_entries=0),
    "IndeCateR(9, draws=latin, variables=4)": catlog.IndeCateR(9, draws="latin", variables=4),
    "MAPO(samples=2, maximise=False)": catlog.MAPO(maximise=False),
    "NVIL(2, network=Linear)": catlog.NVIL(2, network=nn.Linear(1, 1)),
    "Reinforce(3, baseline=MovingAverageBaseline)": catlog.Reinforce(
        3, catlog.MovingAverageBaseline()
    ),
    "Reinforce(2, baseline=mean)": catlog.Reinforce(2, baseline=torch.mean),
    "ReinMax(1, temperature=0.3)": catlog.ReinMax(temperature=torch.tensor(0.3)),
    "ReinMax(1)": catlog.ReinMax(temperature=torch.tensor(1.0)),
    "GappedStraightThrough(1, gap=None)": catlog.GappedStraightThrough(gap=None),
    "Weighted(2)": Weighted(2),
    "Weighted(2, weights=tensor)": Weighted(2, weights=torch.ones(3)),
}


@pytest.mark.parametrize("label", LABELS)
def test_repr_is_the_label_that_advise_prints(label: str) -> None:
    assert repr(LABELS[label]) == label
