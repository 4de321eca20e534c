"""A part with a known mean as control variate: unbiased in any state, and less noisy."""

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli

import catlog
from catlog import RLOO, CritiCateR, IndeCateR, Reinforce
from catlog.estimators import DoubleCV
from catlog.functions import Additive, Known, OfSum, Pairwise
from catlog.testing import CASES
from catlog.testing.cases import normals
from catlog.testing.enumeration import all_outcomes
from support.laws import bits


class Rest(nn.Module):
    """A pairwise energy, and more, with a parameter."""

    def __init__(self, energy):
        super().__init__()
        self.energy = energy
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x):
        energy = self.energy(x)
        return self.scale * energy + (3 * energy).sin()


def parts(case):
    d, k, one_hot = {"bits": (3, 2, False), "integers": (2, 3, False), "one-hot": (2, 3, True)}[
        case.name
    ]
    costs = nn.Parameter(normals(d, k))
    return {
        "additive": Additive(costs, one_hot),
        "pairwise": Pairwise(normals(d, k, d, k, seed=1), normals(d, k, seed=2), one_hot),
        "sum": OfSum(lambda s: s.double().square(), k, one_hot=one_hot),
    }


STATES = {
    "new": lambda known: None,
    "coefficient -3": lambda known: (known.product.fill_(-6.0), known.square.fill_(2.0)),
}


def known_function(case, part_name):
    part = parts(case)[part_name]
    return Known(Rest(parts(case)["pairwise"]), part)


def expected(known, case):
    """Return E[f] and its gradients in theta and in the parameter of f."""
    theta = case.theta.clone().requires_grad_()
    value = (case.probabilities(theta) * known.f(case.points)).sum()
    return value.detach(), *torch.autograd.grad(value, [theta, known.f.scale])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("part_name", ["additive", "pairwise", "sum"])
@pytest.mark.parametrize("case_name", ["bits", "integers", "one-hot"])
@pytest.mark.parametrize(
    "E", [Reinforce(1), RLOO(2), IndeCateR(1), CritiCateR(2), DoubleCV(2)], ids=repr
)
def test_unbiased_in_any_state(E, case_name, part_name, state):
    """The mean over all outcomes; what a call learns counts from the next call on."""
    case = CASES[case_name]
    if case.kind not in E.supports or (E.differentiates_f and part_name == "sum"):
        pytest.skip("not for this distribution")
    known = known_function(case, part_name)
    STATES[state](known)
    exact = expected(known, case)
    injected, weight = all_outcomes(E, case)
    theta = case.theta.clone().requires_grad_()
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    value = (weight * E(known.under(q), q, **injected)).sum()
    leaves = [theta, known.f.scale, *known.part.parameters()]
    got = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close((value.detach(), *got[:2]), exact, rtol=0, atol=1e-11)
    for costs in got[2:]:  # f does not depend on the part, so neither does its mean
        torch.testing.assert_close(costs, torch.zeros_like(costs), rtol=0, atol=1e-11)


def test_the_coefficient_is_that_of_regression_and_is_saved():
    part, q = Additive(normals(5, 2)), bits(normals(4, 5))
    known, copy = (Known(lambda x: 3 * part(x) + 1, part, coefficient=0.0) for _ in range(2))
    known.eval()
    RLOO(6)(known.under(q), q)
    assert known.coefficient.item() == 0  # a frozen module does not learn
    known.train()
    RLOO(6)(known.under(q), q)
    copy.load_state_dict(known.state_dict())
    assert copy.coefficient.item() == pytest.approx(3)


def test_indicators_and_many_outputs():
    logits = normals(3, 4).requires_grad_()
    q = bits(logits)

    class Two(nn.Module):
        def forward(self, x):
            return x[..., :2]

        def expectation(self, q):
            return q.base_dist.probs[..., :2]

    known = Known(lambda x: x[..., :2] > 0, Two())
    value = RLOO(3)(known.under(q, outputs=1), q, outputs=1)
    torch.testing.assert_close(value, logits.sigmoid()[..., :2])


def test_compiled_estimates_equal_eager_ones():
    part = Pairwise(normals(4, 2, 4, 2))
    known = Known(lambda x: part(x).sin(), part)
    logits = normals(2, 4).requires_grad_()

    def estimate(logits, x):
        q = bits(logits, validate_args=False)
        return RLOO(3)(known.under(q), q, x=x)

    x = Bernoulli(logits=logits.detach()).sample((3,))
    values = []
    for function in (estimate, torch.compile(estimate, fullgraph=True, backend="aot_eager")):
        known.product.zero_(), known.square.zero_()
        first, second = function(logits, x), function(logits, x)
        gradient = torch.autograd.grad((first + second).sum(), logits)[0]
        values.append((first, second, gradient, known.coefficient))
    torch.testing.assert_close(*values)


def test_compare_and_advise_subtract_the_part():
    """A part that is f itself leaves no variance."""
    part, q = Additive(normals(3, 2)), bits(normals(3, seed=1).requires_grad_())
    plain, known = (
        catlog.compare(f, q, [RLOO(2)], repeats=20, rounds=1, progress=False).rows[0]
        for f in (lambda x: part(x), Known(part, part))
    )
    assert plain.variance > 1e-3
    assert known.variance < 1e-25 * plain.variance
    assert known.bias < 1e-12
    assert catlog.advise(Known(lambda x: part(x) + x.prod(-1), part), q, seconds=0.5).trials
