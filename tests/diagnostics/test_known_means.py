"""`compare` and `advise` on functions that know their mean."""

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent

import catlog
from catlog.functions import OfSum


class Bits(nn.Module):
    """The sum of bits, with a mean of one's own making."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def forward(self, x):
        return x.sum(-1)

    def expectation(self, q):
        return self.mean(q.base_dist.probs)


def bits(*shape):
    return Independent(Bernoulli(logits=torch.linspace(-1, 1, 4).expand(*shape, 4).clone()), 1)


def compare(f, q, **options):
    return catlog.compare(f, q, ["Exact", "RLOO"], repeats=4, rounds=1, progress=False, **options)


def test_a_right_mean_passes():
    """No evaluation of f is needed, so every budget allows it."""
    result = compare(Bits(lambda probs: probs.sum(-1)), bits(3), budget=10)
    assert result["Exact()"].evaluations == 0
    assert result["Exact()"].bias < 1e-6
    assert result.reference == "exact"


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (lambda probs: probs.sum(-1) + 0.01, "returns 2.01 at index (0,)"),
        (lambda probs: probs.sum(-1) * 1.01, "returns 2.02 at index (0,)"),
        (lambda probs: probs.sum(-1).detach(), "the derivative 0 at index"),
        (lambda probs: (2 * probs - probs.detach()).sum(-1), "the derivative 0.39"),
        (lambda probs: probs.sum(-1) * torch.nan, "must return finite numbers"),
        (lambda probs: probs, "must return a tensor of shape"),
    ],
)
def test_a_wrong_mean_is_found(mean, message):
    with pytest.raises(ValueError, match=r"f\.expectation") as error:
        compare(Bits(mean), bits(2))
    assert message in str(error.value)


def test_values_are_checked_after_a_compilation(monkeypatch):
    """The first torch.compile of a process switches torch's default off."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    with pytest.raises(ValueError, match="must return finite numbers"):
        compare(Bits(lambda probs: probs.sum(-1) * torch.nan), bits(2))


def test_advise_finds_the_mean():
    logits = torch.linspace(-1, 1, 400).view(40, 10)
    q = Independent(Categorical(logits=logits), 1)
    f = OfSum(lambda total: total == 200, 10)
    advice = catlog.advise(f, q)
    assert isinstance(advice.estimator, catlog.Exact)
    assert [trial.evaluations for trial in advice.trials if trial.name == "Exact()"] == [0]
    without = catlog.advise(lambda x: f(x), q)
    assert not isinstance(without.estimator, catlog.Exact)
