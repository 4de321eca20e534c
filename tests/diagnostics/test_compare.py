"""`catlog.compare`: numbers against enumeration, modes, and what is left out."""

import re
from dataclasses import replace
from functools import partial
from itertools import count, product
from math import log, sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog import RLOO, Exact, IndeCateR, Reinforce, SlopeCateR, StraightThrough
from catlog.core.factors import Bits
from catlog.diagnostics import Comparison, Row, compare
from catlog.diagnostics.arms import Arm, within_budget
from catlog.diagnostics.comparing import COLUMNS, NORMAL
from catlog.diagnostics.moments import Moments
from catlog.estimators import ESTIMATORS, DoubleCV, GappedStraightThrough
from catlog.functions import Additive, OfSum
from catlog.testing import CASES, FUNCTIONS
from support.laws import bits, integers, one_hots

ONE = torch.ones(6, dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


quick = partial(compare, rounds=1, progress=False)


def f(x: Tensor) -> Tensor:
    return (x @ WEIGHTS + 3 * x[..., 0] * x[..., 1]).sin() + x[..., 2]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, requires_grad=True)


# With logits of 0 all outcomes of a sampler are equally likely, and as many repeats hold each once.

DRAWS = 2
OUTCOMES = (
    torch.tensor(list(product([0.0, 1.0], repeat=3 * DRAWS)), dtype=torch.float64)
    .view(-1, DRAWS, 3)
    .movedim(1, 0)
)


class EachOnce(catlog.Estimator[Bits]):
    """RLOO whose calls draw every outcome in turn: the repeats together are each once."""

    calls: Any
    samples: int = DRAWS
    unbiased, reference = True, "here"

    def estimate(self, f: catlog.Evaluator, q: Bits, draw: catlog.Randomness) -> catlog.Estimate:
        row = next(self.calls) % OUTCOMES.shape[1]
        draw.uniform(1)  # it is random
        value = RLOO(DRAWS)(f.f, q.distribution, x=OUTCOMES[:, row])
        return catlog.Estimate(value, value)

    def evaluations(self, q: Distribution) -> int:
        return DRAWS


def rloo_by_hand() -> Tensor:
    """Return (f1 - f2) (x1 - x2) / 2, the gradient in the logits: [outcomes, 3]."""
    values = f(OUTCOMES)
    return (values[0] - values[1]).unsqueeze(-1) * (OUTCOMES[0] - OUTCOMES[1]) / 2


@pytest.mark.parametrize("shared", [False, True])
def test_variance_is_that_over_all_outcomes(shared: bool) -> None:
    """Per logit, and after the chain rule through one shared parameter."""
    factors = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    theta = zeros(2) if shared else zeros(3)
    law = (lambda t: bits(t @ factors)) if shared else bits
    (row,) = quick(f, law, {"RLOO": EachOnce(count())}, [theta], repeats=64).rows
    by_hand = rloo_by_hand()
    in_parameters = by_hand @ factors.T if shared else by_hand
    assert row.repeats == 64
    torch.testing.assert_close(row.variances, in_parameters.var(0), rtol=1e-12, atol=0)
    assert row.variance == pytest.approx(in_parameters.var(0).sum().item(), rel=1e-12)
    snr = in_parameters.mean(0).norm().item() / sqrt(row.variance)
    assert row.snr == pytest.approx(snr, rel=1e-9)
    spread = (in_parameters - in_parameters.mean(0)).square().sum(-1)
    error = NORMAL * spread.std().item() / 8 / row.variance
    assert log(row.variance_high / row.variance) == pytest.approx(error, rel=1e-9)
    assert row.largest_z < 1e-9  # the mean over all outcomes is the exact gradient


def test_bias_is_the_distance_from_the_exact_gradient() -> None:
    """StraightThrough is biased: its expectation is the mean slope of f times p (1 - p)."""
    result = quick(f, bits, [StraightThrough(8)], [zeros(3)], repeats=2000)
    leaf = OUTCOMES[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    gap = (slope.mean(0) / 4 - rloo_by_hand().mean(0)).norm().item()
    (row,) = result.rows
    assert row.bias_error == pytest.approx(sqrt(row.variance / 2000), rel=1e-9)
    assert row.bias == pytest.approx(gap, abs=5 * row.bias_error)
    assert gap > 10 * row.bias_error
    assert not row.unbiased
    assert result.reference == "exact"


def test_no_variance_is_zero_not_rounding() -> None:
    q = integers(torch.randn(5, 3))
    estimators = [IndeCateR(3), Exact()]
    result = compare(Additive(torch.rand(5, 3)), q, estimators, rounds=2, progress=False)
    assert [row.variance for row in result.rows] == [0.0, 0.0]
    assert [row.merit_high for row in result.rows] == [0.0, 0.0]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients_of_every_distribution(case: Any) -> None:
    """Those of Exact, in the parameters behind the logits, are the reference."""
    half = (case.theta / 2).clone().requires_grad_()
    result = quick(
        lambda x: FUNCTIONS["sine"](case.features(x), ONE),
        lambda t: case.distribution(2 * t),
        [Exact(), RLOO(4)],
        [half],
        repeats=50,
    )
    assert result["Exact()"].bias < 1e-12
    assert result["Exact()"].variance == 0
    assert result["Exact()"].repeats == 2
    assert result["RLOO(4)"].largest_z < 5.5


def test_parameters_are_found_and_left_alone() -> None:
    encoder, data = nn.Linear(4, 3).double(), torch.randn(5, 4, dtype=torch.float64)
    decoder, E = nn.Linear(3, 1).double(), DoubleCV(4)
    q = bits(encoder(data) + encoder(-data / 2))  # each parameter is reached twice
    (row,) = quick(lambda z: decoder(z).squeeze(-1), q, [E], training=5, repeats=10).rows
    assert row.variances.shape == (15,)  # weights and bias
    assert row.trained == 5
    assert row.estimator.alpha != 0
    assert E.alpha == 0
    modules = encoder, decoder, E, row.estimator
    leaves = [leaf for module in modules for leaf in module.parameters()]
    assert all(leaf.grad is None for leaf in leaves)


def test_learning_lowers_the_variance() -> None:
    """With parameters, and with a memory."""
    average = catlog.estimators.MovingAverageBaseline(decay=0.9)
    pairs: Any = [
        (DoubleCV(4), RLOO(4), lambda x: x @ WEIGHTS),  # exact with alpha = 1
        (Reinforce(4, baseline=average), Reinforce(4), lambda x: 100 + f(x)),
    ]
    for learner, plain, g in pairs:
        result = quick(g, bits(zeros(3)), {"plain": plain, "learner": learner})
        assert result["learner"].trained == 200
        assert result["learner"].variance < 0.01 * result["plain"].variance
        assert result["learner"].estimator is not learner


def test_estimates_that_are_not_finite_are_left_out() -> None:
    """A row of NaN would spoil the order of the others."""

    class Overflowing(RLOO):
        def estimate(self, *arguments: Any) -> catlog.Estimate:
            value, surrogate, _ = super().estimate(*arguments)
            return catlog.Estimate(value, surrogate * torch.inf)

    result = quick(f, bits(zeros(3)), {"a": Overflowing(), "b": RLOO()}, repeats=4)
    assert [row.name for row in result.rows] == ["b"]
    assert result.skipped == {"a": "its gradient is NaN or infinite"}


# Modes


@pytest.mark.parametrize("budget", [7, 40])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_budget_is_used_and_not_exceeded(name: str, budget: int) -> None:
    E = ESTIMATORS[name]()
    q = bits(torch.zeros(4)) if "bits" in E.supports else one_hots(torch.zeros(4, 2))
    if name in ("Exact", "MAPO") and budget == 7:  # 16 points; 4 remembered ones and 2 draws
        assert within_budget(E, 4, lambda E: E.evaluations(q)).evaluations(q) > 4
        return
    sized = within_budget(E, budget, lambda E: E.evaluations(q))
    assert sized.evaluations(q) <= budget
    if name == "UnorderedSet" and budget == 40:
        assert sized.samples == 10  # it takes no more
    elif hasattr(E, "samples"):
        assert replace(sized, samples=sized.samples + 1).evaluations(q) > budget


def test_modes() -> None:
    chosen = [RLOO(3), IndeCateR(3), Exact()]
    unchanged = quick(f, bits(zeros(3)), chosen, repeats=4)
    evaluations = {row.name: row.evaluations for row in unchanged.rows}
    assert evaluations == {"RLOO(3)": 3, "IndeCateR(3)": 12, "Exact()": 8}
    budget = quick(f, bits(zeros(3)), ["RLOO", "IndeCateR", "Exact"], budget=7, repeats=4)
    assert {row.name: row.evaluations for row in budget.rows} == {"RLOO(7)": 7, "IndeCateR(1)": 4}
    assert budget.skipped == {"Exact()": "it needs 8 evaluations, more than the budget of 7"}
    assert "Equal evaluations: at most 7" in str(budget)


class Counted:
    """f with a clock that counts its evaluations."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.now += x.shape[:-1].numel()
        return f(x)

    def clock(self) -> float:
        return self.now


def test_times_come_from_the_clock() -> None:
    estimators, counted = [RLOO(6), IndeCateR(2), Reinforce(3)], Counted()
    result = compare(counted, bits(zeros(3)), estimators, progress=False, clock=counted.clock)
    for row in result.rows:
        assert row.seconds == row.evaluations
        assert row.merit == row.variance * row.evaluations
        # These times do not vary.
        assert row.merit_high / row.merit == pytest.approx(row.variance_high / row.variance)
    assert list(result.rows) == sorted(result.rows, key=lambda row: row.merit)
    assert result.best is result.rows[0]


# Functions that know their means


def test_a_known_mean_is_checked_and_needs_no_evaluation() -> None:
    """So every budget allows it. A wrong mean is found."""
    f, q = Additive(torch.rand(5, 3)), integers(torch.randn(5, 3))
    result = quick(f, q, ["Exact", "RLOO"], budget=10, repeats=4)
    assert result["Exact()"].evaluations == 0
    assert result["Exact()"].bias < 1e-6
    assert result.reference == "exact"
    f.expectation = lambda q: f(q.sample())  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"f\.expectation does not agree with f"):
        quick(f, q, ["Exact"])


def test_advise_finds_the_mean() -> None:
    q = integers(torch.linspace(-1, 1, 400).view(40, 10))
    f = OfSum(lambda total: total == 200, 10)
    advice = catlog.advise(f, q)
    assert isinstance(advice.estimator, Exact)
    assert [trial.evaluations for trial in advice.trials if trial.name == "Exact()"] == [0]
    assert not isinstance(catlog.advise(lambda x: f(x), q).estimator, Exact)


# Estimators whose calls are of two kinds


def test_moments_of_two_kinds_are_those_of_the_mixture() -> None:
    """Without bias: on average over all pairs of rows, each with a number of both kinds."""
    shares, first, second = (0.25, 0.75), (1.0, 5.0, 0.5), (2.0, 2.5, -1.0)
    numbers = torch.tensor([first, second, second, second], dtype=torch.float64)
    rows = torch.tensor(list(product(first, second)), dtype=torch.float64)
    means, mean_variances, variances = [], [], []
    for pair in product(rows, repeat=2):
        moments = Moments(shares)
        for row in pair:
            moments.add(row.view(1, 2, 1))
        means.append(moments.mean)
        mean_variances.append(moments.mean_variances)
        variances.append(moments.variances)
    everything = torch.cat(means)
    assert everything.mean().item() == pytest.approx(numbers.mean().item(), rel=1e-12)
    spread = everything.var(correction=0).item()
    assert torch.cat(mean_variances).mean().item() == pytest.approx(spread, rel=1e-12)
    variance = numbers.var(correction=0).item()
    assert torch.cat(variances).mean().item() == pytest.approx(variance, rel=1e-12)


def test_seldom_corrections_are_measured_in_proportion() -> None:
    """By the clock, and without bias; of calls of one kind alone, z is above 20."""
    theta, counted = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64), Counted()
    E = SlopeCateR(2, every=4, decay=1.0)
    options = {"repeats": 1000, "training": 0, "clock": counted.clock}
    (row,) = quick(counted, bits(theta), [E], **options).rows
    assert row.seconds == 2 + 2 / 4  # two draws, and two corrections in a quarter of the calls
    assert row.largest_z < 5.5
    assert row.estimator.corrects is None
    E.corrects = False
    assert quick(f, bits(theta), {"one kind": E}, **options).rows[0].largest_z > 20


# What is left out, and the reference


def test_reasons_for_leaving_out() -> None:
    def total(x: Tensor) -> Tensor:
        return x.double().sum(-1)

    numbers = integers(torch.zeros(2, 3))
    result = quick(total, numbers, ["RLOO", "ARM", "DoubleCV", "VIMCO"], repeats=4)
    assert [row.name for row in result.rows] == ["RLOO(2)"]
    given = "but Independent(Categorical, 1)"
    relaxed = "q: it needs points that can be relaxed to real vectors"
    use = "Use OneHotCategorical (with the same logits) and let f read one-hot vectors"
    assert result.skipped == {
        "ARM(1)": f"q: it is for binary variables (Bernoulli), {given} was given. Use ARSM",
        "DoubleCV(2)": f"{relaxed}, {given} draws integers. {use}",
        "VIMCO(2)": "it differentiates a bound, not E[f]",
    }
    assert "VIMCO(2) (it differentiates a bound, not E[f])." in " ".join(str(result).split())
    message = r"no estimator could be used\. ARM\(1\) \(q: it is for binary variables"
    with pytest.raises(ValueError, match=message):
        quick(total, numbers, [catlog.estimators.ARM()], repeats=4)


def test_pooled_reference_excludes_the_estimator_itself() -> None:
    options = {"repeats": 300, "limit": 1}
    alone = quick(f, bits(zeros(3)), [RLOO(4)], **options)
    assert alone.rows[0].bias != alone.rows[0].bias  # nothing to compare with
    assert "No bias, for want of another unbiased estimator" in str(alone)
    result = quick(f, bits(zeros(3)), [RLOO(4), IndeCateR(4), StraightThrough(8)], **options)
    assert result.reference == "pooled"
    assert "Bias against the other unbiased estimators" in str(result)
    assert result["StraightThrough(8)"].largest_z > 8
    assert result["RLOO(4)"].largest_z < 5.5
    variance = (result["RLOO(4)"].variance + result["IndeCateR(4)"].variance) / 300
    assert result["RLOO(4)"].bias_error == pytest.approx(sqrt(variance), rel=1e-9)


def test_given_reference() -> None:
    theta = zeros(3)
    (exact,) = torch.autograd.grad(Exact()(f, bits(theta)), theta)

    def against(reference: object) -> Row:
        return quick(f, bits(zeros(3)), [RLOO(4)], reference=reference, repeats=300).rows[0]

    assert against(exact).largest_z < 5.5
    assert against([exact + 1]).bias == pytest.approx(sqrt(3), rel=0.1)
    known = SimpleNamespace(gradient=(exact,), error=(torch.ones(3, dtype=torch.float64),))
    assert against(known).bias_error == pytest.approx(sqrt(3), rel=0.01)
    for wrong_shape in (torch.zeros(2), 3.0, [1.0]):
        with pytest.raises(ValueError, match=r"one tensor per parameter, of shapes \[\(3,\)\]"):
            against(wrong_shape)


# The table


def example() -> Comparison:
    """Return a comparison with a long name, a biased estimator and a long reason."""
    names = {"RLOO(100)": True, "IndeCateR(9, sampling='latin', variables=4)": True, "GS(2)": False}
    numbers = (100, 200, 0, 0.00123, 0.123, 0.1, 0.2, 0.0345, 0.0123, 0.00234, 2.0)
    rows = tuple(
        Row(name, unbiased, 3, *numbers, 2e-4, 1.23e-4, 3e-4, RLOO(3), torch.zeros(1))
        for name, unbiased in names.items()
    )
    return Comparison(rows, {"ARSM": "it is not for " + "many " * 20 + "reasons"}, "pooled", "Mode")


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_table_fits_the_width_and_keeps_the_columns_that_decide(width: int) -> None:
    """It is wider where the names and these columns need more."""
    lines = example().table(width).split("\n")
    assert max(map(len, lines[5:])) <= width
    assert len(lines[0]) <= max(width, 75)
    assert {"variance x s", "bias ± noise"} <= {*re.split(" {2,}", lines[0].strip())}
    for line, name in zip(lines[1:4], ("RLOO", "IndeCateR", "GS"), strict=True):
        assert line.startswith(name)
        assert "0.0002" in line
    notes = " ".join(" ".join(lines[4:]).split())
    named = re.findall(r"lack of space: ([^.]*)\.", notes)
    shown = re.split(" {2,}", lines[0].strip())
    assert sorted([*shown, *(named[0].split(", ") if named else [])]) == sorted(COLUMNS)


def test_rows_by_name_and_the_best_which_is_unbiased() -> None:
    result = example()
    assert result["GS(2)"] is result.rows[2]
    with pytest.raises(KeyError, match="'Nonsense' is not among the rows"):
        result["Nonsense"]
    biased = replace(result.rows[2], merit=1e-9)
    assert replace(result, rows=(biased, *result.rows[:2])).best == result.rows[0]


def test_estimators_may_be_given_as_they_are_printed() -> None:
    texts = ["RLOO(4)", "IndeCateR( 1, sampling=latin, variables=2 )", "SlopeCateR(2)"]
    names = {"RLOO(4)", "IndeCateR(1, sampling='latin', variables=2)", "SlopeCateR(2)"}
    for chosen in ([*texts, texts[-1]], (text for text in texts), [*names]):
        result = quick(f, bits(zeros(3)), chosen, repeats=2, training=1)
        assert {row.name for row in result.rows} == names
    named = quick(f, bits(zeros(3)), {"mine": "RLOO(4)"}, repeats=2)
    assert named["mine"].samples == 4


def test_estimators_with_one_label_are_not_measured_as_one() -> None:
    """Their labels leave out what the baseline computes and what DoubleCV learns."""
    q, few = bits(torch.zeros(2, requires_grad=True)), {"repeats": 2, "training": 1}
    for pair in (
        [Reinforce(2, baseline=baseline) for baseline in (lambda fx: 0.0, lambda fx: 1.0)],
        [DoubleCV(2, alpha=alpha) for alpha in (0.1, 0.5)],
        ["SlopeCateR(2)", SlopeCateR(2)],
    ):
        with pytest.raises(ValueError, match=r"two different ones have the label .* in a dict"):
            quick(lambda x: x.sum(-1), q, pair, **few)
    gaps = [GappedStraightThrough(2, gap=gap) for gap in (None, 1.0, 1 / 3, 0.333)]
    assert len(quick(lambda x: x.sum(-1), q, gaps, **few).rows) == 4
    assert len(quick(lambda x: x.sum(-1), q, [RLOO(2), RLOO(2)], **few).rows) == 1


def test_what_an_arm_learns_is_its_own_on_its_device() -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("meta")

    E = Reinforce(2, baseline=catlog.estimators.MovingAverageBaseline())
    assert Arm(E, Elsewhere()).E.baseline.mean.is_meta
    assert not E.baseline.mean.is_meta
