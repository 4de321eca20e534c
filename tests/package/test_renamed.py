"""Old names raise an error that says the new one."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog

Q = Independent(Bernoulli(logits=torch.zeros(3)), 1)


def f(x: Tensor) -> Tensor:
    return x.sum(-1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ARMS", "estimators.ARMS"),
        ("ESTIMATORS", "estimators.ESTIMATORS"),
        ("CountDifferences", "estimators.CountDifferences"),
        ("MarkovChain", "distributions.MarkovChain"),
        ("register_distribution", "distributions.register_distribution"),
        ("CausalLM", "language_models.CausalLM"),
        ("advantages", "language_models.advantages"),
    ],
)
def test_names(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{old}'\. It is catlog\.{new}$"):
        getattr(catlog, old)


@pytest.mark.parametrize(
    ("name", "new"), [("draws", "called `sampling`"), ("validate", "`validate_args=False` to q")]
)
def test_settings(name: str, new: str) -> None:
    with pytest.raises(TypeError, match=rf"^IndeCateR: .* `{name}` was given\. .*{new}"):
        catlog.IndeCateR(1, **{name: False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("chosen", "part of `noise`"),
        ("start", "part of `noise`"),
        ("validate", "`validate_args=False` to q"),
    ],
)
def test_arguments_of_calls(name: str, new: str) -> None:
    with pytest.raises(TypeError, match=rf"^RLOO: a call takes f, q, .* `{name}` .*{new}"):
        catlog.RLOO(2)(f, Q, **{name: None})


def test_other_arguments_of_a_call_are_listed() -> None:
    with pytest.raises(TypeError, match=r"^NVIL: .* generator, context, but `temper` was given\.$"):
        catlog.estimators.NVIL(2)(f, Q, temper=1)
