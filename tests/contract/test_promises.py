"""What the class attributes of an estimator promise, and what a call draws."""

from inspect import signature

import pytest

import catlog
from catlog.core.categories import Kind
from catlog.estimators import ESTIMATORS, MAPO
from catlog.testing.settings import tape


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
