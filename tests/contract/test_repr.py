"""The repr of an estimator is its short label, of which the same estimator can be made again."""

from inspect import signature

import pytest
import torch
from torch import nn

import catlog
from catlog.core.estimator import Estimator
from catlog.estimators import ESTIMATORS
from catlog.estimators.parsing import parse_estimator
from catlog.testing.settings import VARIANTS

# What an estimator learns is no setting.
LEARNED = {"alpha", "beta", "eta", "network", "baseline"}
UNLISTED = LEARNED | {"samples"}
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


def changed(default: bool | int | float | None) -> bool | int | float:
    """Return a setting other than its default."""
    if default is None:
        return 3
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else (default + 0.5) / 2


def every_setting(name: str) -> dict[str, object]:
    """Return a value other than the default for all settings that the label has."""
    parameters = signature(ESTIMATORS[name]).parameters
    return {
        key: CHANGED[key] if key in CHANGED else changed(parameters[key].default)
        for key in parameters
        if key not in UNLISTED | EXCLUDED.get(name, set())
    }


def settings_of(E: Estimator, excluded: set[str]) -> dict[str, object]:
    return {key: getattr(E, key) for key in signature(type(E)).parameters if key not in excluded}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_repr_shows_every_setting_and_makes_an_equal_estimator(name: str) -> None:
    """By `compare` and by Python."""
    E, settings = ESTIMATORS[name](), every_setting(name)
    assert repr(E) == f"{name}({getattr(E, 'samples', '')})"
    text = repr(ESTIMATORS[name](**settings))
    assert all(f"{key}={value!r}" in text for key, value in settings.items())
    assert len(text.split(", ")) == len(settings) + hasattr(E, "samples")
    learned = LEARNED | ({"temperature"} if name == "REBAR" else set())
    thirds = {
        key: 1 / 3
        for key in ("temperature", "gap", "clip", "step", "epsilon", "ridge")
        if key in signature(ESTIMATORS[name]).parameters.keys() - learned
    }
    for options in [{}, settings, thirds, *VARIANTS[name]]:
        E = ESTIMATORS[name](**options)
        for again in (parse_estimator(repr(E)), eval(repr(E), vars(catlog.estimators))):
            assert settings_of(again, learned) == settings_of(E, learned)
            assert repr(again) == repr(E)


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


WRONG_TEXTS = {
    "RLO(4)": r"'RLO' is not known\. Did you mean RLOO",
    "x": r"'x' is not known\. Give one of Exact, ",
    "": r"'' must be a name, with settings in parentheses or without, as in IndeCateR\(4, ",
    "RLOO(4": r"'RLOO\(4' must be a name",
    **dict.fromkeys(("RLOO(2 + x)", "RLOO(*[2])", "a.RLOO(2)", "RLOO(2), RLOO(3)"), "must be a n"),
}


@pytest.mark.parametrize("text", WRONG_TEXTS)
def test_text_that_is_no_estimator_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"estimators: .*{WRONG_TEXTS[text]}"):
        parse_estimator(text)


def test_wrong_settings_in_text_are_named() -> None:
    with pytest.raises(TypeError, match="RLOO: the arguments are samples, but `sampling`"):
        parse_estimator("RLOO(2, sampling=latin)")
    with pytest.raises(ValueError, match="RLOO: `samples` must be at least 2"):
        parse_estimator("RLOO(1)")
