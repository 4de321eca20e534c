"""What the class attributes of an estimator promise and what a call draws; its repr is its short
label, of which the same estimator can be made again."""

import re
from inspect import signature

import pytest
import torch
from torch import nn

import catlog
from catlog.core.categories import Kind
from catlog.diagnostics.naming import parse_estimator
from catlog.estimators import ESTIMATORS, MAPO
from catlog.testing.settings import VARIANTS, tape


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_repr_shows_every_setting_and_makes_an_equal_estimator(name: str) -> None:
    """By `compare` and by Python. What an estimator learns is no setting."""
    cls = ESTIMATORS[name]
    defaults = {key: p.default for key, p in signature(cls).parameters.items()}
    assert repr(cls()) == f"{name}({defaults.get('samples', '')})"
    for options in [{}, *VARIANTS[name]]:
        E = cls(**options)
        values = {key: getattr(E, key, default) for key, default in defaults.items()}
        settings = {k: v for k, v in values.items() if not isinstance(v, nn.Parameter)}
        changed = [k for k, v in settings.items() if v != defaults[k] and k != "samples"]
        assert re.findall(r"(\w+)=", repr(E)) == changed
        for again in (parse_estimator(repr(E)), eval(repr(E), vars(catlog.estimators))):
            assert repr(again) == repr(E)
            assert all(getattr(again, key, defaults[key]) == settings[key] for key in settings)


def test_different_settings_have_different_reprs() -> None:
    assert repr(catlog.estimators.IMLE(step=1 / 3)) != repr(catlog.estimators.IMLE(step=0.333))
    assert repr(catlog.ReinMax(temperature=torch.ones((), device="meta"))) != repr(catlog.ReinMax())


class Weighted(catlog.StraightThrough):
    weights: torch.Tensor | None = None


LABELS = {  # Weighted stands for an estimator of a user
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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_attributes_are_of_their_type(name: str) -> None:
    E = ESTIMATORS[name]()
    assert E.target == ("bound" if name == "VIMCO" else "expectation")
    assert E.supports <= E.accepts <= set(Kind)
    assert {E.unbiased, E.differentiates_f} <= {True, False}
    assert "Reference: " in (type(E).__doc__ or "")
    assert (not E.many_outputs) == bool(E.why_one_output)
    assert list(signature(type(E)).parameters)[:1] in (["samples"], ["chunk_size"], ["limit"])
    assert (tape(E) == []) == (name == "Exact")


def test_settings_decide_what_is_drawn_and_whether_it_is_unbiased() -> None:
    for E, names in (
        (catlog.IndeCateR(2), ["points"]),
        (catlog.IndeCateR(2, variables=1), ["points", "variables"]),
    ):
        assert [(name, shape[0]) for name, shape in tape(E)] == [(name, 2) for name in names]
    assert [name for name, _ in tape(catlog.SCateR(2, variables=1))] == ["points", "variables"]
    for clip in (0.0, 0.1):
        assert MAPO(clip=clip).unbiased == catlog.Pathwise(MAPO(clip=clip)).unbiased == (clip == 0)
