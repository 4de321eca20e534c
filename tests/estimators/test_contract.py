"""What the class attributes of an estimator promise."""

from inspect import signature

import pytest
import torch

import catlog
from catlog.estimators import ESTIMATORS
from catlog.core.estimator import ANY
from catlog.testing.cases import seeded
from support.laws import bits, one_hots


@pytest.mark.parametrize("name", ESTIMATORS)
def test_attributes_name_what_exists(name: str) -> None:
    E = ESTIMATORS[name]()
    assert E.target == ("bound" if name == "VIMCO" else "expectation")
    assert E.supports <= ANY
    call = E.forward if isinstance(E, torch.nn.Module) else E.__call__
    assert set(E.randomness) <= signature(call).parameters.keys()
    assert (E.randomness == ()) == (name == "Exact")


def test_randomness_follows_the_settings() -> None:
    assert catlog.IndeCateR(2).randomness == ("x",)
    assert catlog.IndeCateR(2, variables=1).randomness == ("x", "chosen")
    assert catlog.SCateR(2, variables=1).randomness == ("x", "chosen")


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_takes_its_noise(hard: bool) -> None:
    """The generator's noise, given by hand, gives the same value; wrong noise is refused."""
    logits = torch.randn(4, 3, 5)
    E = catlog.GumbelSoftmax(2, temperature=0.5, hard=hard)
    for q, shape in ((bits(logits[..., 0]), (2, 4, 3)), (one_hots(logits), (2, 4, 3, 5))):
        noise = torch.rand(shape, generator=seeded(1))
        given = E(lambda x: x.flatten(2).square().sum(-1), q, noise=noise)
        drawn = E(lambda x: x.flatten(2).square().sum(-1), q, generator=seeded(1))
        assert torch.equal(given, drawn)
        with pytest.raises(ValueError, match="noise"):
            E(lambda x: x.flatten(2).sum(-1), q, noise=noise[:1])
