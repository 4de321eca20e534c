"""`catlog.advise`, with a clock that counts evaluations of f, which is the same on all machines."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import inf
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical

import catlog
from catlog import (
    RLOO,
    DoubleCV,
    Exact,
    IndeCateR,
    MarkovChain,
    Reinforce,
    SlopeCateR,
    StraightThrough,
)
from catlog.diagnostics import CANDIDATES, Candidate, Trial, advise
from catlog.diagnostics.gradient_samples import GradientSampler
from catlog.diagnostics.pilot import Pilot
from catlog.diagnostics.structure import probe
from catlog.functions import Additive


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bits(d: int) -> Independent:
    return Independent(Bernoulli(logits=randn(d).requires_grad_()), 1)


def numbers(d: int, k: int) -> Independent:
    return Independent(Categorical(logits=randn(d, k).requires_grad_()), 1)


class Counted:
    """f with a clock: a call takes 0.2 seconds, and 0.01 more for every point."""

    def __init__(self, f: Callable[[Tensor], Tensor], dims: int = 1) -> None:
        self.f = f
        self.dims = dims
        self.now = 0.0
        self.points = 0

    def __call__(self, x: Tensor) -> Tensor:
        points = x.shape[: x.dim() - self.dims].numel()
        self.points += points
        self.now += 0.2 + 0.01 * points
        return self.f(x)

    def clock(self) -> float:
        return self.now


class CountedTable(Counted):
    def neighbours(self, *arguments: Tensor) -> Tensor:
        self.now += 0.2 + 0.02 * len(arguments[0])
        return self.f.neighbours(*arguments)


def quadratic(d: int) -> Callable[[Tensor], Tensor]:
    """Pairs only: f is linear in each bit."""
    weights = randn(d, d, seed=3).triu(1) / d
    return lambda x: ((x @ weights) * x).sum(-1)


def test_additive_black_box() -> None:
    """IndeCateR has no variance with one draw, so more draws are of no use."""
    costs = randn(12, 3, seed=1)
    f = Counted(lambda x: costs[torch.arange(12), x].sum(-1))
    advice = advise(f, numbers(12, 3), clock=f.clock)
    assert advice.estimator == IndeCateR(1, draws="latin")
    assert advice.trials[0].variance == 0
    assert advice.structure.has_slope is False
    assert "no variance at all" in str(advice)
    assert "12 independent variables of 3 categories" in str(advice)


def test_additive_with_its_own_table() -> None:
    """The table is cheap, so a budget far below its entries allows it, and it is exact."""
    f = CountedTable(Additive(randn(40, 3, seed=1)))
    advice = advise(f, numbers(40, 3), budget=20, clock=f.clock)
    assert advice.estimator == IndeCateR(1, draws="latin")
    assert advice.structure.has_own_table
    assert "has its own neighbour table" in str(advice)
    pairs = CountedTable(catlog.functions.Potts(randn(40, 40), randn(40, 3)))
    sized = next(
        trial
        for trial in advise(pairs, numbers(40, 3), budget=20, clock=pairs.clock).trials
        if "Inde" in trial.name
    )
    assert sized.estimator == IndeCateR(5, draws="latin")  # a draw counts as 1 + k evaluations
    black_box = Counted(f.f)
    without_table = advise(black_box, numbers(40, 3), budget=20, clock=black_box.clock)
    assert not any(
        isinstance(trial.estimator, IndeCateR) and trial.estimator.variables is None
        for trial in without_table.trials
    )
    assert (
        without_table.skipped["IndeCateR(1, draws=latin)"]
        == "it needs at least 81 evaluations, more than the budget of 20"
    )


def test_few_points_are_enumerated() -> None:
    f = Counted(quadratic(10))
    assert isinstance(advise(f, bits(10), clock=f.clock).estimator, Exact)
    budgeted = advise(f, bits(10), budget=100, clock=f.clock)
    assert "needs 1024 evaluations, more than the budget of 100" in budgeted.skipped["Exact()"]


def test_differentiable_pairwise() -> None:
    """f is linear in each bit, so slopes give every difference. With m = 1 there are most draws."""
    f = Counted(quadratic(20))
    advice = advise(f, bits(20), budget=100, clock=f.clock)
    assert {trial.name for trial in advice.trials[:2]} == {
        "SlopeCateR(60)",
        "IndeCateR(50, draws=latin, variables=1)",
    }
    rest = [entry for entry in CANDIDATES if not isinstance(entry.estimator, SlopeCateR)]
    second = advise(f, bits(20), budget=100, candidates=rest, clock=f.clock)
    assert second.estimator == IndeCateR(50, draws="latin", variables=1)
    assert advice.structure.is_relaxable
    assert "f is differentiable, also between categories" in str(advice)


def test_sparse_black_box() -> None:
    """For an indicator of a sum, draws are better than tables."""
    f = Counted(lambda x: (x.argmax(-1).sum(-1) == 14).double(), dims=2)
    q = Independent(OneHotCategorical(logits=torch.zeros(3, 10, requires_grad=True)), 1)
    advice = advise(f, q, budget=64, clock=f.clock)
    assert isinstance(advice.estimator, RLOO | catlog.CritiCateR)
    assert not any(trial.estimator.differentiates_f for trial in advice.trials)
    assert advice.skipped["DoubleCV(2)"] == "f has no derivative in x"


def test_gradients_of_zero_are_not_taken_for_exact() -> None:
    """No pilot meets an event of probability 1e-9: the advice says that it is a guess."""
    q = Independent(Bernoulli(logits=torch.zeros(30, requires_grad=True)), 1)
    f = Counted(lambda x: (x.sum(-1) == 30).double())
    advice = advise(f, q, budget=64, clock=f.clock)
    assert "saw no gradient other than zero, so this is a guess" in str(advice)
    assert "no variance" not in str(advice)


def test_equal_estimates_are_not_taken_for_exact() -> None:
    """Latin draws of few bits have few outcomes: the first two estimates are equal by chance."""
    f = Counted(quadratic(10))
    rest = [entry for entry in CANDIDATES if not isinstance(entry.estimator, SlopeCateR)]
    advice = advise(f, bits(10), budget=64, candidates=rest, clock=f.clock)
    assert advice.trials[0].variance > 0
    assert any(
        trial.moments.count > 2
        for trial in advice.trials
        if trial.estimator == IndeCateR(12, draws="latin", variables=4)
    )


@dataclass(frozen=True)
class Broken(RLOO):
    """An estimator that fails when it is called."""

    def __call__(self, *arguments: object, **options: object) -> Tensor:
        raise RuntimeError("out of memory")


def test_failing_candidates_are_skipped() -> None:
    """Also those that are tried after one without variance."""
    costs = randn(12, 3, seed=1)
    f = Counted(lambda x: costs[torch.arange(12), x].sum(-1))
    candidates = [Candidate(IndeCateR(draws="latin")), Candidate(Broken())]
    for order in (candidates, candidates[::-1]):
        advice = advise(f, numbers(12, 3), candidates=order, clock=f.clock)
        assert advice.estimator == IndeCateR(1, draws="latin")
        assert advice.skipped == {"Broken(64)": "out of memory"}


def test_names_and_modules_do_not_clash() -> None:
    assert isinstance(catlog.diagnostics, ModuleType)
    assert catlog.diagnostics.advise is catlog.advise
    assert len(str(signature(catlog.advise))) < 1000


def test_structured_distribution() -> None:
    f = Counted(lambda x: (x[..., 1:] == x[..., :-1]).double().prod(-1))
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(3, 3, requires_grad=True)]
    advice = advise(
        f, lambda a, b: MarkovChain(a, b, length=8), parameters, budget=50, clock=f.clock
    )
    assert all("structured" in trial.estimator.supports for trial in advice.trials)
    assert advice.trials[0].evaluations <= 50
    assert "8 dependent variables of 3 categories" in str(advice)


@pytest.mark.parametrize("budget", [5, 64, 300])
@pytest.mark.parametrize(
    "f", [quadratic(20), lambda x: (x.sum(-1) == 7).double()], ids=["smooth", "black box"]
)
def test_within_budget_and_time(f: Callable[[Tensor], Tensor], budget: int) -> None:
    counted = Counted(f)
    advice = advise(counted, bits(20), budget=budget, clock=counted.clock)
    assert all(trial.evaluations <= budget for trial in advice.trials)
    assert advice.estimator.evaluations(bits(20)) <= budget
    assert advice.seconds == counted.now
    assert advice.seconds < 50 * advice.step_seconds
    merits = [trial.variance * trial.seconds for trial in advice.trials]
    assert merits[0] <= 1.5 * min(merits)


def test_time_is_limited_if_f_is_expensive() -> None:
    """The pilot ends in time, with candidates left untried, but the first two are tried."""
    f = Counted(quadratic(30))
    advice = advise(f, bits(30), budget=200, steps=8, clock=f.clock)
    assert 2 <= len(advice.trials) < 6
    assert advice.seconds < 23 * advice.step_seconds  # untried candidates cost nothing
    assert advice.skipped["CritiCateR(200)"] == "the pilot had no time for it"
    more = advise(f, bits(30), budget=200, steps=1000, clock=f.clock)
    assert len(more.trials) > len(advice.trials)


def test_contenders_get_more_repeats() -> None:
    f = Counted(quadratic(8))
    candidates = [
        Candidate(RLOO()),
        Candidate(catlog.ARMS()),
        Candidate(catlog.BBVI()),
        Candidate(Reinforce(baseline=100.0)),
    ]
    advice = advise(f, bits(8), budget=32, steps=1000, candidates=candidates, clock=f.clock)
    repeats = {type(trial.estimator).__name__: trial.moments.count for trial in advice.trials}
    assert repeats["Reinforce"] == min(repeats.values())  # far behind: not measured again
    assert max(repeats.values()) > 4 * repeats["Reinforce"]


def test_same_seed_gives_the_same_advice() -> None:
    results = []
    for _ in range(2):
        f = Counted(quadratic(12))
        advice = advise(f, bits(12), budget=50, seed=3, clock=f.clock)
        results.append([(trial.name, trial.variance, trial.seconds) for trial in advice.trials])
    assert results[0] == results[1]


def test_biased_estimators_need_permission() -> None:
    """f's slope says nothing about its values; by variance alone, StraightThrough would win."""

    def wavy(x: Tensor) -> Tensor:
        return (x @ (1 + torch.arange(12.0, dtype=torch.float64)) / 12) + (
            2 * torch.pi * x
        ).sin().sum(-1)

    unbiased = advise(wavy, bits(12), budget=64)
    assert all(trial.estimator.unbiased for trial in unbiased.trials)
    assert unbiased.skipped["StraightThrough(1)"] == "it is biased; biased=True allows it"
    f = Counted(wavy)
    candidates = [Candidate(RLOO()), Candidate(StraightThrough())]
    allowed = advise(f, bits(12), budget=64, biased=True, candidates=candidates, clock=f.clock)
    by_name = {type(trial.estimator).__name__: trial for trial in allowed.trials}
    assert by_name["StraightThrough"].variance < by_name["RLOO"].variance
    assert allowed.estimator == RLOO(64)
    f = Counted(quadratic(12))  # linear in each bit: straight-through is unbiased
    assert not advise(
        f, bits(12), budget=64, biased=True, candidates=candidates, clock=f.clock
    ).estimator.unbiased
    alone = advise(f, bits(12), budget=64, biased=True, candidates=candidates[1:], clock=f.clock)
    assert alone.trials[0].squared_error(None) == inf  # there is no reference


def test_candidates_of_the_user() -> None:
    f = Counted(quadratic(20))
    mine = Candidate(IndeCateR(draws="antithetic", variables=2))
    advice = advise(f, bits(20), budget=60, candidates=[Candidate(RLOO()), mine], clock=f.clock)
    assert advice.estimator == IndeCateR(20, draws="antithetic", variables=2)
    never = Candidate(
        IndeCateR(draws="antithetic", variables=2), when=lambda structure: structure.d > 20
    )
    assert advise(
        f, bits(20), budget=60, candidates=[Candidate(RLOO()), never], clock=f.clock
    ).estimator == RLOO(60)


def test_fitted_coefficient_has_the_least_variance() -> None:
    """The fit from two calls with the same draws is the minimum over a grid with those draws."""
    q = bits(6)
    task = GradientSampler(quadratic(6), q)
    E = DoubleCV(8)
    trial = Trial("DoubleCV(8)", E, 8, Candidate(E, coefficients=("alpha",)))
    pilot = Pilot(task, task.generator(0), lambda: 0.0, 0.0, 50)
    pilot.fit_coefficients(trial, 64)
    assert trial.variance == pytest.approx(
        task.gradients(E, 64, task.generator(0))[0].var(0).sum().item(), rel=1e-9
    )
    fitted = E.alpha.item()

    def variance(alpha: float) -> float:
        with torch.no_grad():
            E.alpha.fill_(alpha)
        return task.gradients(E, 64, task.generator(0))[0].var(0).sum().item()

    assert 0.2 < fitted < 2
    lowest = variance(fitted)
    assert all(lowest < variance(fitted + step) for step in (-0.1, -0.01, 0.01, 0.1))


def test_prototypes_and_arguments_are_left_alone() -> None:
    q, before = bits(8), repr(CANDIDATES)
    state = torch.random.get_rng_state()
    advice = advise(quadratic(8), q, budget=32)
    assert repr(CANDIDATES) == before
    assert next(c.estimator for c in CANDIDATES if isinstance(c.estimator, DoubleCV)).alpha == 0
    assert q.base_dist.logits.grad is None
    assert torch.equal(state, torch.random.get_rng_state())
    value = advice.estimator(quadratic(8), q)
    value.backward()
    assert q.base_dist.logits.grad.isfinite().all()


def test_f_that_rejects_relaxed_points() -> None:
    def picky(x: Tensor) -> Tensor:
        if not bool(((x == 0) | (x == 1)).all()):
            raise RuntimeError("only bits")
        return (x @ randn(10)).square()

    structure = probe(GradientSampler(picky, bits(10)), 64, lambda: 0.0)
    assert structure.has_slope
    assert not structure.is_relaxable
    f = Counted(picky)
    advice = advise(f, bits(10), budget=64, clock=f.clock)
    assert not any(isinstance(trial.estimator, catlog.MuProp) for trial in advice.trials)
    steps = probe(
        GradientSampler(lambda x: (x.round() @ randn(10)).square(), bits(10)), 64, lambda: 0.0
    )
    assert not steps.has_slope  # a derivative that is zero everywhere does not count


def test_explanation() -> None:
    f = Counted(quadratic(20))
    lines = str(advise(f, bits(20), budget=100, clock=f.clock)).split("\n")
    assert lines[0].startswith(
        (
            "SlopeCateR(60): 100 evaluations, ",
            "IndeCateR(50, draws=latin, variables=1): 100 evaluations, ",
        )
    )
    assert lines[2].startswith("Next in variance x time: ")
    assert "within the budget of 100 evaluations" in lines[3]
    assert lines[3].endswith(" steps.")


def test_errors() -> None:
    with pytest.raises(ValueError, match="`budget` must be at least 1, but 0 was given"):
        advise(quadratic(4), bits(4), budget=0)
    with pytest.raises(ValueError, match="`steps` must be positive"):
        advise(quadratic(4), bits(4), steps=0)
    with pytest.raises(
        ValueError,
        match=r"no candidate fits q, f and the budget of 1 evaluations\. Exact\(\): it needs 16",
    ):
        advise(quadratic(4), bits(4), budget=1, candidates=[Candidate(Exact()), Candidate(RLOO())])
    with pytest.raises(
        ValueError,
        match=r"no candidate could be used\. RLOO\(64\): f must return one value per point",
    ):
        advise(lambda x: x, bits(4), candidates=[Candidate(RLOO())])
