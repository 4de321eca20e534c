"""`catlog.advise`, with a clock that counts evaluations of f, which is the same on all machines."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from math import inf
from types import ModuleType

import pytest
import torch
from catlog.diagnostics.coefficient_fit import fit_coefficients
from catlog.diagnostics.gradient_samples import GradientSampler, Step
from catlog.diagnostics.other_draws import seconds_by_draws, sizes
from catlog.diagnostics.pilot import Pilot
from catlog.diagnostics.plain_draws import PlainDraws
from catlog.diagnostics.race import least_biased, with_cheap_draws
from catlog.diagnostics.reference_gradients import measure_penalty
from catlog.diagnostics.scoring import Scoring
from catlog.diagnostics.structure import probe
from catlog.diagnostics.user_step import UserStep
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical

import catlog
from catlog import RLOO, Exact, IndeCateR, Reinforce, SlopeCateR, StraightThrough
from catlog.diagnostics import CANDIDATES, Candidate, Trial, advise, pilot_settings
from catlog.distributions import MarkovChain
from catlog.estimators import DoubleCV
from catlog.functions import Additive
from catlog.testing.cases import normals


def bits(d: int) -> Independent:
    return Independent(Bernoulli(logits=normals(d).requires_grad_()), 1)


def numbers(d: int, k: int) -> Independent:
    return Independent(Categorical(logits=normals(d, k).requires_grad_()), 1)


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
    weights = normals(d, d, seed=3).triu(1) / d
    return lambda x: ((x @ weights) * x).sum(-1)


def additive(x: Tensor) -> Tensor:
    """Return the sum of separate costs of 12 variables of 3 categories."""
    return normals(12, 3, seed=1)[torch.arange(12), x].sum(-1)


def ask(f: Callable[[Tensor], Tensor], *arguments: object, **options: object) -> catlog.Advice:
    """Return advice whose clock counts evaluations of f."""
    counted = f if isinstance(f, Counted) else Counted(f)
    return advise(counted, *arguments, clock=counted.clock, **options)


def sampler(d: int = 6, **options: object) -> GradientSampler:
    """Return a task with a clock that stands still."""
    return GradientSampler(quadratic(d), bits(d), **{"clock": lambda: 0.0, **options})


def pilot_of(task: GradientSampler, budget: int = 60, step: Step | None = None) -> Pilot:
    return Pilot(task, probe(task, budget), task.generator(0), UserStep(step, task))


def test_additive_black_box() -> None:
    """IndeCateR has no variance with one draw, so more draws are not tried."""
    candidates = [IndeCateR(sampling="latin"), RLOO()]
    advice = ask(additive, numbers(12, 3), candidates=candidates, step=10.0)
    assert advice.estimator == IndeCateR(1, sampling="latin")
    assert advice.trials[0].variance == 0
    assert advice.structure.has_slope is False
    assert "Its gradient has no noise." in str(advice)
    assert "12 independent variables of 3 categories" in str(advice)
    assert not any("IndeCateR(2" in trial.name for trial in advice.trials)


def test_additive_with_its_own_table() -> None:
    """The table is cheap, so a budget far below its entries allows it, and it is exact."""
    f = CountedTable(Additive(normals(40, 3, seed=1)))
    candidates = [IndeCateR(sampling="latin"), RLOO()]
    options = {"budget": 20, "candidates": candidates, "step": 1.0}
    advice = ask(f, numbers(40, 3), **options)
    assert advice.estimator == IndeCateR(1, sampling="latin")
    assert advice.structure.has_own_table
    assert "has its own neighbour table" in str(advice)
    pairs = CountedTable(catlog.functions.Potts(normals(40, 40), normals(40, 3)))
    trials = ask(pairs, numbers(40, 3), **options).trials
    sized = next(trial for trial in trials if "Inde" in trial.name)
    assert sized.most_samples == 5  # a draw counts as 1 + k evaluations
    without_table = ask(Counted(f.f), numbers(40, 3), **options)
    reason = "it needs at least 81 evaluations, more than the budget of 20"
    assert without_table.skipped["IndeCateR(1, sampling='latin')"] == reason


def test_precision_is_worth_its_time_only() -> None:
    """The longer the rest of a step takes, the more evaluations are worth their time."""
    f = quadratic(10)
    quick = ask(f, bits(10))
    assert quick.trials[0].evaluations < 64
    slow = ask(f, bits(10), step=1000.0)
    assert slow.trials[0].evaluations > quick.trials[0].evaluations
    assert slow.step_seconds > 1000
    assert slow.trials[0].variance < quick.trials[0].variance
    budgeted = ask(f, bits(10), budget=100)
    assert "needs 1024 evaluations, more than the budget of 100" in budgeted.skipped["Exact()"]


def test_default_budget_is_never_exceeded() -> None:
    """Exact has the budget of all others, and the number is printed."""
    for d, budget in ((4, 64), (8, 256), (40, 82)):
        advice = ask(quadratic(d), bits(d), step=1000.0)
        assert advice.structure.budget == budget
        assert all(trial.evaluations <= budget for trial in advice.trials)
        assert f"within at most {budget} evaluations" in str(advice)


def test_differentiable_pairwise() -> None:
    """f is linear in each bit, so slopes give every difference."""
    advice = ask(quadratic(20), bits(20), budget=100)
    assert advice.estimator.differentiates_f
    assert advice.structure.is_relaxable
    assert "f is differentiable, also between categories" in str(advice)


class Attention(nn.Module):
    """Two glimpses of 16 places, chosen by a network, and a classifier of what is seen."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.policy = nn.Linear(16, 32).double()
            self.reader = nn.Linear(32, 10).double()
        self.images = torch.randn(32, 16, dtype=torch.float64, generator=generator)
        self.labels = torch.randint(10, (32,), generator=generator)

    def q(self) -> Independent:
        return Independent(Categorical(logits=self.policy(self.images).view(-1, 2, 16)), 1)

    def f(self, x: Tensor) -> Tensor:
        seen = torch.zeros(*x.shape[:-1], 16, dtype=torch.float64).scatter(-1, x, 1.0)
        scores = self.reader(torch.cat([seen, seen * self.images], -1))
        return -scores.log_softmax(-1)[..., torch.arange(32), self.labels]


def test_enumeration_does_not_beat_the_noise_of_the_minibatch() -> None:
    """Two glimpses of 16 places: Exact is free of noise, but the minibatch is not."""
    model = Attention()
    advice = ask(model.f, model.q())
    assert advice.structure.budget == 256
    assert not isinstance(advice.estimator, Exact)
    assert advice.trials[0].evaluations < 64
    assert advice.minibatch_variance > 0
    assert "times as large as that of the minibatch." in str(advice)


def test_minibatch_variance_is_that_of_the_gradients_of_its_elements() -> None:
    model = Attention()
    q = model.q()
    task = GradientSampler(model.f, q)
    assert task.shares_parameters
    values = Exact()(model.f, q)
    rows = []
    for value in values:
        gradients = torch.autograd.grad(value, list(model.policy.parameters()), retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in gradients]))
    expected = 32 * torch.stack(rows).var(0).sum().item()
    order = [tuple(parameter.shape) for parameter in task.parameters]
    assert sorted(order) == sorted(tuple(part.shape) for part in model.policy.parameters())
    assert task.minibatch_variance(Exact(), 32) == pytest.approx(expected, rel=1e-9)
    assert 0.3 < task.minibatch_variance(Exact(), 8) / expected < 3
    logits = normals(5, 3).requires_grad_()
    separate = GradientSampler(quadratic(3), Independent(Bernoulli(logits=logits), 1))
    assert not separate.shares_parameters  # every element has logits of its own


def test_penalty_is_a_part_of_the_gradient() -> None:
    """Signal and minibatch noise are those of E[f] plus the penalty, by enumeration."""
    model = Attention()
    q, parameters = model.q(), list(model.policy.parameters())
    task = GradientSampler(model.f, q, parameters, penalty=lambda q: -0.1 * q.entropy())
    rows = []
    for loss in Exact()(model.f, q) - 0.1 * q.entropy():
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in gradients]))
    minibatch = 32 * torch.stack(rows).var(0).sum().item()
    assert task.minibatch_variance(Exact(), 32) == pytest.approx(minibatch, rel=1e-9)
    pilot = pilot_of(task, 256)
    measure_penalty(pilot)
    trial = Trial(Exact(), 256, Candidate(Exact()))
    pilot.add(trial, task.gradients(Exact(), 2)[0])
    signal = torch.stack(rows).sum(0).square().sum().item()
    assert pilot.scoring.floor([trial]) == pytest.approx(10 * signal, rel=1e-9)


def test_noise_matters_more_where_a_penalty_cancels_the_gradient() -> None:
    model, candidates = Attention(), [RLOO()]
    alone = ask(model.f, model.q(), candidates=candidates)
    balanced = ask(
        model.f, model.q(), candidates=candidates, penalty=lambda q: -Exact()(model.f, q)
    )
    assert balanced.estimator.samples > alone.estimator.samples


def test_relaxations_win_if_bias_is_allowed() -> None:
    """A decoder of 20 one-hot variables of 10 categories, where SlopeCateR is as fast without bias
    and RLOO is not.
    """
    generator = torch.Generator().manual_seed(0)
    weights = normals(200, 30, seed=1) / 8
    images = torch.rand(16, 30, dtype=torch.float64, generator=generator)
    encoder = (normals(30, 200, seed=2) / 5).requires_grad_()
    f = Counted(lambda x: ((x.flatten(-2) @ weights).tanh() - images).square().sum(-1), dims=2)
    q = Independent(OneHotCategorical(logits=(images @ encoder).view(16, 20, 10)), 1)
    assert isinstance(ask(f, q, biased=True).estimator, SlopeCateR)
    relaxations = catlog.ReinMax | catlog.GumbelSoftmax | catlog.StraightThrough
    others = [entry for entry in CANDIDATES if isinstance(entry.estimator, RLOO | relaxations)]
    assert len(others) == 4
    relaxed = ask(f, q, biased=True, candidates=others)
    assert isinstance(relaxed.estimator, relaxations)
    assert "It is biased, by " in str(relaxed)
    assert ask(f, q, candidates=others).estimator.unbiased


def test_equal_logits_are_moved() -> None:
    """At logits 0, Latin draws of a quadratic f have no variance, but only until the first step."""
    f = Counted(quadratic(12))
    logits = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    candidates = [IndeCateR(sampling="latin"), RLOO()]
    for q in (Bernoulli(logits=logits), Bernoulli(probs=logits + 0.5)):
        advice = ask(f, Independent(q, 1), step=10.0, candidates=candidates)
        assert advice.structure.is_moved
        assert all(trial.variance > 0 for trial in advice.trials)
        assert "so the pilot added random numbers to the logits" in str(advice)
    chain = advise(
        lambda x: (x[..., 1:] == x[..., :-1]).double().sum(-1),
        lambda a, b: MarkovChain(a, b, length=4),
        [torch.zeros(3, requires_grad=True), torch.zeros(3, 3, requires_grad=True)],
        candidates=candidates[1:],
    )
    assert chain.structure.is_moved
    assert not ask(f, bits(12), candidates=candidates).structure.is_moved


def test_loss_counts_the_noise_of_the_value() -> None:
    """Under -log E[f], draws that all score zero give no finite loss, so Exact wins."""
    f = Counted(lambda x: (x.prod(-1) == 12).double())
    q, options = numbers(2, 7), {"candidates": [RLOO(), Exact()], "step": 0.1}
    advice = ask(f, q, loss=lambda value: -value.log(), **options)
    assert isinstance(advice.estimator, Exact)
    assert max(trial.variance for trial in advice.trials) == inf
    linear = ask(f, q, loss=lambda value: 3 * value, **options)
    assert all(trial.variance < inf for trial in linear.trials)


def test_whole_step_is_timed_and_undone() -> None:
    images = normals(8, 5, seed=4)
    encoder = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6)).double()
    before = [parameter.detach().clone() for parameter in encoder.parameters()]
    optimiser = torch.optim.SGD(encoder.parameters(), lr=1.0)
    f = Counted(quadratic(6))

    def make_q() -> Independent:
        return Independent(Bernoulli(logits=encoder(images)), 1)

    seen = []

    def step(E: catlog.Estimator) -> None:
        seen.append(E)
        optimiser.zero_grad()
        E(f, make_q()).sum().backward()
        optimiser.step()
        f.now += 7.0

    candidates = [RLOO(), IndeCateR()]
    advice = ask(f, make_q(), step=step, candidates=candidates)
    assert len(seen) >= 4
    assert advice.step_seconds > 7
    for parameter, value in zip(encoder.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None


def test_plain_draws_are_evaluated_once() -> None:
    """RLOO and BBVI use the same independent draws, so f is not evaluated for each of them."""
    f = Counted(quadratic(12))
    candidates = [RLOO(), catlog.estimators.BBVI()]
    advice = ask(f, bits(12), budget=4, candidates=candidates)
    used = [trial.replayed for trial in advice.trials]
    assert min(used) >= 8
    assert f.points <= max(used) + 20  # the probe, and the look at f's gradient
    for trial in advice.trials:  # the time of the evaluations counts for both
        assert trial.seconds == pytest.approx(0.2 + 0.01 * trial.samples)


def test_subsets_of_shared_draws_are_estimates() -> None:
    """Six draws are three estimates of RLOO(2), each with two of the draws."""
    logits = normals(3, 5).requires_grad_()
    f, q = quadratic(5), Independent(Bernoulli(logits=logits), 1)
    task = GradientSampler(f, q)
    draws = PlainDraws(task, 3, task.generator(0))
    draws.extend(2)
    assert draws.count == 6
    x, fx = draws.subsets(2, 0, 10)
    assert x.shape == (2, 3, 3, 5)
    rows = task.replayed_gradients(RLOO(2), x, fx)
    for row, points in zip(rows, x.unbind(1), strict=True):
        (gradient,) = torch.autograd.grad(RLOO(2)(f, q, x=points).sum(), logits)
        assert torch.allclose(row, gradient.flatten(), rtol=1e-12, atol=0)
    assert len({tuple(points.flatten().tolist()) for points in x.unbind(1)}) == 3
    later = draws.subsets(2, 4, 10)[0]
    assert torch.equal(later[:, 0], x[:, 2])


def test_numbers_of_draws() -> None:
    """Powers of two and the most that the budget allows; the variance is inverse to the draws."""
    task = sampler()
    pilot = pilot_of(task)
    trial = Trial(RLOO(4), 4, Candidate(RLOO()), most_samples=60)
    assert sizes(pilot, trial) == [2, 4, 8, 16, 32, 60]
    trial.add(normals(20, 6))
    more = trial.resized(16, task, seconds=3.0)
    assert more.variance == pytest.approx(trial.variance / 4)
    assert more.seconds == 3.0
    line = seconds_by_draws((2, 1.0), (8, 4.0))
    assert [line(samples) for samples in (1, 4, 16)] == [0.5, 2.0, 8.0]
    assert seconds_by_draws((2, 1.0), (8, 1.6))(32) == pytest.approx(4.0)
    assert seconds_by_draws((2, 1.0), (8, 0.9), 0.1)(32) == pytest.approx(4.0)
    # A line through noisy times may fall below zero.
    assert seconds_by_draws((4, 1.0), (16, 5.0))(1) == 0.125


def test_some_entries_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot_settings, "SELECTED_ENTRIES", 50)
    logits = torch.zeros(40, 100, requires_grad=True)
    task = GradientSampler(quadratic(100), Independent(Bernoulli(logits=logits.double()), 1))
    pilot = pilot_of(task)
    trial = Trial(RLOO(4), 4, Candidate(RLOO()))
    rows = torch.tensor([[3.0], [1.0]]) * torch.ones(4000)
    pilot.add(trial, rows)
    assert len(trial.moments.mean) == 50
    assert trial.variance == pytest.approx(8000)  # of all 4000 entries, each with variance 2


def test_first_call_of_the_step_may_compile() -> None:
    """The time of its first call with an estimator is neither its step time nor the pilot's."""
    f, seen = Counted(quadratic(6)), set[str]()

    def step(E: catlog.Estimator) -> None:
        f.now += 1.0 if repr(E) in seen else 1000.0
        seen.add(repr(E))

    candidates = [RLOO(), catlog.estimators.ARMS(), IndeCateR()]
    advice = ask(f, bits(6), step=step, candidates=candidates)
    assert len({id(trial.candidate) for trial in advice.trials}) == 3
    assert advice.step_seconds < 2
    assert advice.seconds > 1000


@pytest.mark.parametrize("is_first", [True, False])
def test_compiled_steps_decide(is_first: bool) -> None:
    """IndeCateR is slow in the pilot, but its compiled step is as short as that of RLOO."""
    f, compiled = Counted(quadratic(12)), set[str]()

    def step(E: catlog.Estimator) -> None:
        f.now += 1e-3 * (1 + 0.05 * E.samples) if repr(E) in compiled else 1000.0
        compiled.add(repr(E))

    class Slow(IndeCateR):
        def __call__(self, *arguments: object, **options: object) -> Tensor:
            f.now += 20.0
            return super().__call__(*arguments, **options)

    candidates = [RLOO(), Slow(sampling="latin")][:: 1 if is_first else -1]
    options = {"budget": 64, "seconds": 500, "candidates": candidates}
    advice = ask(f, bits(12), step=step, **options)
    assert isinstance(advice.estimator, Slow)
    assert advice.step_seconds < 2e-3
    assert advice.trials[0].is_whole
    assert len(compiled) < 10  # not every number of draws is compiled


@pytest.mark.parametrize("further_seconds", [0.01, 0.0], ids=["expensive f", "cheap f"])
def test_plain_draws_take_their_time_also_beside_a_compiled_step(further_seconds: float) -> None:
    """The ratio of the user's step to the pilot's is applied once, to the whole."""
    f = Counted(quadratic(6))
    pilot = pilot_of(GradientSampler(f, bits(6), clock=f.clock))
    pilot.structure = replace(pilot.structure, further_seconds=further_seconds)
    pilot.user_step.ratio = 0.5
    pilot.plain.extend(1)
    trial = Trial(RLOO(4), 4, Candidate(RLOO()))
    assert pilot.plain_seconds(trial) == pytest.approx(0.2 + 0.01 * 4)
    pilot.run_steps(trial, 1)
    assert trial.seconds == pytest.approx(0.5 * (0.2 + 0.01 * 4))


def test_a_cold_start_is_not_taken_for_the_time_of_a_step() -> None:
    """IndeCateR has no noise here, but its first call takes a hundred times as long as others."""
    costs, now, calls = normals(6, 3, seed=1), [0.0], [0]

    def f(x: Tensor) -> Tensor:
        now[0] += 1e-3
        return costs[torch.arange(6), x].sum(-1)

    class Cold(IndeCateR):
        def __call__(self, *arguments: object, **options: object) -> Tensor:
            calls[0] += 1
            now[0] += 0.1 if calls[0] == 1 else 0.0
            return super().__call__(*arguments, **options)

    candidates = [RLOO(), catlog.estimators.ARSM(), Cold()]
    options = {"budget": 13, "step": 0.02, "candidates": candidates}
    advice = advise(f, numbers(6, 3), clock=lambda: now[0], **options)
    assert advice.estimator == Cold(1)


SELDOM = [SlopeCateR(), SlopeCateR(every=4)]


def saturated(x: Tensor) -> Tensor:
    """Return what slopes predict badly: in each bit, a sigmoid far from its middle."""
    return (3 * x @ normals(12)).tanh().square()


@pytest.mark.parametrize(("function", "every"), [(quadratic(12), 4), (saturated, 1)])
def test_seldom_corrections_are_for_good_predictions(
    function: Callable[[Tensor], Tensor], every: int
) -> None:
    assert any(getattr(entry.estimator, "every", 1) == 4 for entry in CANDIDATES)
    advice = ask(function, bits(12), budget=32, candidates=SELDOM)
    assert advice.estimator.every == every
    assert advice.estimator.corrects is None
    for trial in advice.trials:  # the time is the mean over calls with and without corrections
        E = trial.estimator
        if trial.times:
            points = E.samples + E.turns(2) / E.every
            assert trial.seconds == pytest.approx(0.2 + 0.01 * points)


@pytest.mark.parametrize("repeats", [1, 40])
def test_estimates_of_two_kinds_have_both_in_a_pilot(repeats: int) -> None:
    """In single steps and in batches, a quarter of the weight is that of corrected calls."""
    task = GradientSampler(quadratic(6), bits(6))
    E = SlopeCateR(2, every=4, decay=1.0)
    pilot = pilot_of(task)
    trial = Trial(E, 3, Candidate(E))
    calls: list[tuple[bool | None, int]] = []

    def estimate(E: SlopeCateR, repeats: int, *_: object) -> tuple[Tensor, None]:
        calls.append((E.corrects, repeats))
        return torch.full((repeats, 6), 8.0 if E.corrects else 0.0), None

    task.gradients = estimate  # type: ignore[method-assign]
    task._estimate = lambda E, _: (task.q.base_dist.logits * estimate(E, 1)[0]).sum()
    for _ in range(2):
        if repeats == 1:
            pilot.run_steps(trial, 1)
        else:
            pilot.run_batched(trial, repeats)
    assert calls == [(True, repeats), (False, repeats)] * 2
    assert trial.moments.mean.tolist() == [2.0] * 6
    assert trial.variance == 6 * (64 / 4 - 4)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_seldom_corrections_in_a_step_of_the_user(is_compiled: bool) -> None:
    """The coin is the estimator's own: a graph that is captured here would keep what is set."""
    f = Counted(quadratic(12))

    def step(E: catlog.Estimator) -> None:
        assert getattr(E, "corrects", None) is None
        f.now += 0.01 if is_compiled else 3.0

    candidates = [RLOO(), *SELDOM]
    advice = ask(f, bits(12), budget=8, candidates=candidates, step=step)
    names = [trial.name for trial in advice.trials]
    if is_compiled:
        assert "cannot see which of its calls correct" in advice.skipped["SlopeCateR(3, every=4)"]
        assert not any("every" in name for name in names)
    else:
        assert isinstance(advice.estimator, SlopeCateR)
        seldom = next(trial for trial in advice.trials if "every" in trial.name)
        assert not seldom.is_whole
        assert seldom.seconds > 3.0 - 0.3  # with the rest of the user's step


@pytest.mark.parametrize(
    ("seconds", "noise", "draws"),
    [
        ((1.0, 1.2, 1.4), 0.01, 4),
        ((1.0, 1.1, 1.2), 0.01, 8),
        ((1.0, 1.3, 1.5), 3.0, 2),  # level in score, not in time
    ],
)
def test_draws_that_are_nearly_free(seconds: tuple[float, ...], noise: float, draws: int) -> None:
    """Of numbers of draws that are level in score and time, the largest is taken."""
    times = dict(zip((2, 4, 8), seconds, strict=True))
    now = [0.0]

    def step(E: catlog.Estimator) -> None:
        now[0] += times[E.samples]

    pilot = pilot_of(sampler(clock=lambda: now[0]), step=step)
    candidate, trials = Candidate(RLOO()), pilot.trials
    for samples in times:
        E = RLOO(samples)
        trial = Trial(E, samples, candidate, times=[1.0])
        numbers = normals(64, 6)
        trial.add(1 + noise * (numbers - numbers.mean(0)) / samples**0.5)
        trials.append(trial)
    pilot.user_step.use(trials[0])
    scores = pilot.scoring.scores(trials)
    assert scores["RLOO(4)"] < 1.25 * scores["RLOO(2)"]
    assert with_cheap_draws(pilot, trials[0]).samples == draws


def test_steps_in_a_row_share_their_time() -> None:
    now = [0.0]

    def step(E: catlog.Estimator) -> None:
        now[0] += 3.0

    task = sampler(clock=lambda: now[0])
    assert task.step_seconds(RLOO(2), step, 10) == 3.0
    assert now[0] == 30.0


@pytest.mark.parametrize(("seconds", "name"), [(1.1, "RLOO(2)"), (1.5, "StraightThrough(1)")])
def test_level_candidates_are_decided_by_bias(seconds: float, name: str) -> None:
    """A biased estimator must be clearly faster, not just a little."""
    task = sampler()
    pilot = pilot_of(task)
    noise = normals(64, 6) / 8
    trials = pilot.trials
    for E, shift, time in ((catlog.StraightThrough(), 0.08, 1.0), (RLOO(2), 0.0, seconds)):
        trial = Trial(E, E.evaluations(task.q), Candidate(E), times=[time])
        trial.add(1 + shift + noise - noise.mean(0))
        trials.append(trial)
    scores = pilot.scoring.scores(trials)
    assert scores["StraightThrough(1)"] < scores["RLOO(2)"]
    assert least_biased(pilot, trials).name == name


def test_memory_needs_a_fixed_function() -> None:
    f = quadratic(12)
    without = ask(f, bits(12))
    assert "fixed=True" in without.skipped["MemoryCateR(16)"]
    fixed = ask(f, bits(12), fixed=True, steps=200)
    names = [trial.name for trial in fixed.trials] + list(fixed.skipped)
    assert any(name.startswith("MemoryCateR") for name in names)
    assert "fixed=True" not in str(fixed.skipped)


def test_sparse_black_box() -> None:
    """For an indicator of a sum, draws are better than tables."""
    f = Counted(lambda x: (x.argmax(-1).sum(-1) == 14).double(), dims=2)
    q = Independent(OneHotCategorical(logits=torch.zeros(3, 10, requires_grad=True)), 1)
    advice = ask(f, q, budget=64)
    assert isinstance(advice.estimator, RLOO | catlog.CritiCateR)
    assert not any(trial.estimator.differentiates_f for trial in advice.trials)
    assert advice.skipped["DoubleCV(2)"] == "f has no derivative in x"


def test_gradients_of_zero_are_not_taken_for_exact() -> None:
    """No pilot meets an event of probability 1e-9: the advice says that it is a guess."""
    q = Independent(Bernoulli(logits=torch.zeros(30, requires_grad=True)), 1)
    advice = ask(lambda x: (x.sum(-1) == 30).double(), q, budget=64)
    assert "saw no gradient other than zero, so this is a guess" in str(advice)
    assert "no noise" not in str(advice)


def test_equal_estimates_are_not_taken_for_exact() -> None:
    """Latin draws of few bits have few outcomes: the first two estimates are equal by chance."""
    rest = [entry for entry in CANDIDATES if not isinstance(entry.estimator, SlopeCateR)]
    advice = ask(quadratic(10), bits(10), budget=64, candidates=rest, step=10.0)
    assert advice.trials[0].variance > 0
    assert advice.trials[0].moments.count > 2


@dataclass(frozen=True)
class Broken(RLOO):
    """An estimator that fails when it is called."""

    def __call__(self, *arguments: object, **options: object) -> Tensor:
        raise RuntimeError("out of memory")


def test_failing_candidates_are_skipped() -> None:
    """Also those that are tried after one without variance."""
    candidates = [IndeCateR(sampling="latin"), Broken()]
    for order in (candidates, candidates[::-1]):
        advice = ask(additive, numbers(12, 3), candidates=order)
        assert advice.estimator == IndeCateR(1, sampling="latin")
        assert advice.skipped == {"Broken(4)": "out of memory"}


def test_failing_steps_are_skipped() -> None:
    """A step of the user that fails with one estimator leaves the others in the race."""
    f = Counted(quadratic(8))

    def step(E: catlog.Estimator) -> None:
        if isinstance(E, catlog.estimators.ARMS):
            raise RuntimeError("cannot be captured")
        E(f, bits(8)).sum().backward()

    candidates = [RLOO(), catlog.estimators.ARMS()]
    advice = ask(f, bits(8), step=step, candidates=candidates)
    assert isinstance(advice.estimator, RLOO)
    assert "cannot be captured" in advice.skipped.values()
    with pytest.raises(ValueError, match=r"no candidate could be used\. ARMS\(2\): cannot be cap"):
        ask(f, bits(8), budget=2, step=step, candidates=candidates[1:])


def test_names_and_modules_do_not_clash() -> None:
    assert isinstance(catlog.diagnostics, ModuleType)
    assert catlog.diagnostics.advise is catlog.advise
    text = str(signature(catlog.advise))
    assert text.startswith("(f: 'Function', q: 'DistributionLike', parameters: ")
    assert len(text) < 500


def test_structured_distribution() -> None:
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(3, 3, requires_grad=True)]
    advice = ask(
        lambda x: (x[..., 1:] == x[..., :-1]).double().prod(-1),
        lambda a, b: MarkovChain(a, b, length=8),
        parameters,
        budget=50,
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
    advice = ask(counted, bits(20), budget=budget)
    assert all(trial.evaluations <= budget for trial in advice.trials)
    assert advice.estimator.evaluations(bits(20)) <= budget
    assert advice.seconds == counted.now
    assert advice.seconds < 50 * advice.step_seconds
    scores = Scoring().scores(advice.trials)
    assert scores[advice.trials[0].name] <= 1.5 * min(scores.values())


def test_time_is_limited_if_f_is_expensive() -> None:
    """The pilot ends in time, with candidates left untried, but the first two are tried."""
    f = quadratic(30)
    advice = ask(f, bits(30), budget=200, steps=8, seconds=0)
    assert 2 <= len({id(trial.candidate) for trial in advice.trials}) < 6
    assert advice.seconds < 23 * advice.step_seconds  # untried candidates cost nothing
    assert "the pilot had no time for it" in advice.skipped.values()
    more = ask(f, bits(30), budget=200, steps=1000)
    assert len(more.trials) > len(advice.trials)


def test_contenders_get_more_repeats() -> None:
    candidates = [RLOO(), catlog.estimators.ARMS(), catlog.estimators.BBVI(), Reinforce(baseline=100.0)]
    advice = ask(quadratic(8), bits(8), budget=32, steps=1000, candidates=candidates)
    timed = Counter[str]()
    for trial in advice.trials:
        timed[type(trial.estimator).__name__] += len(trial.times)
    assert timed["Reinforce"] == 0  # far behind: judged from the draws that all share
    assert max(timed.values()) > 4


def test_same_seed_gives_the_same_advice() -> None:
    results = []
    for _ in range(2):
        advice = ask(quadratic(12), bits(12), budget=50, seed=3)
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
    reason = unbiased.skipped["StraightThrough(1, sampling='latin')"]
    assert reason == "it is biased; biased=True allows it"
    candidates = [RLOO(), StraightThrough()]
    options = {"budget": 64, "biased": True}
    allowed = ask(wavy, bits(12), candidates=candidates, **options)
    by_name = {type(trial.estimator).__name__: trial for trial in allowed.trials}
    assert by_name["StraightThrough"].variance < by_name["RLOO"].variance
    assert isinstance(allowed.estimator, RLOO)
    linear = quadratic(12)  # in each bit, so straight-through is unbiased
    assert not ask(linear, bits(12), steps=300, candidates=candidates, **options).estimator.unbiased
    alone = ask(linear, bits(12), candidates=candidates[1:], **options)
    assert set(Scoring().squared_errors(alone.trials).values()) == {inf}  # there is no reference


@pytest.mark.parametrize("has_loss", [False, True], ids=["mean", "loss"])
@pytest.mark.parametrize("order", [1, -1])
def test_biased_estimators_are_judged_without_an_unbiased_one(order: int, has_loss: bool) -> None:
    """f is quadratic in each bit: ReinMax is exact in expectation, StraightThrough is not."""
    weights = 1 + torch.arange(12.0, dtype=torch.float64)

    def curved(x: Tensor) -> Tensor:
        return 100 + ((x - 1.5).square() * weights).sum(-1)

    candidates = [catlog.ReinMax(), StraightThrough()][::order]
    options = {"loss": lambda value: value.log()} if has_loss else {}
    logits = torch.full((12,), 2.0, dtype=torch.float64, requires_grad=True)
    q = Independent(Bernoulli(logits=logits), 1)
    advice = ask(curved, q, budget=8, biased=True, candidates=candidates, **options)
    assert isinstance(advice.estimator, catlog.ReinMax)
    assert "It is biased, by " in advice.explanation
    assert "over 1000 times" not in advice.explanation


def test_candidates_of_the_user() -> None:
    mine = IndeCateR(sampling="antithetic", variables=2)
    options = {"budget": 60, "step": 1000.0}
    advice = ask(quadratic(20), bits(20), candidates=[RLOO(), mine], **options)
    assert advice.estimator == IndeCateR(20, sampling="antithetic", variables=2)
    never = Candidate(mine, when=lambda structure: structure.d > 20)
    second = ask(quadratic(20), bits(20), candidates=[RLOO(), never], **options)
    assert second.estimator == RLOO(60)
    assert second.skipped == {"IndeCateR(1, sampling='antithetic', variables=2)": never.otherwise}


def test_fitted_coefficient_has_the_least_variance() -> None:
    """The fit from two calls with the same draws is the minimum over a grid with those draws."""
    task, E = sampler(), DoubleCV(8)
    trial = Trial(E, 8, Candidate(E, coefficients=("alpha",)))
    pilot = pilot_of(task)
    fit_coefficients(pilot, trial, 64)
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


def test_coefficient_of_few_draws_is_not_judged_by_them() -> None:
    """A coefficient that is fitted to two estimates makes them equal."""
    task, E = sampler(), DoubleCV(8)
    trial = Trial(E, 8, Candidate(E, coefficients=("alpha",)))
    pilot = pilot_of(task)
    fit_coefficients(pilot, trial, 2)
    same_draws = task.gradients(E, 2, task.generator(0))[0].double()
    assert trial.moments.count == 2
    assert not torch.allclose(trial.moments.mean, same_draws.mean(0))


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
        return (x @ normals(10)).square()

    structure = probe(GradientSampler(picky, bits(10)), 64)
    assert structure.has_slope
    assert not structure.is_relaxable
    advice = ask(picky, bits(10), budget=64)
    assert not any(isinstance(trial.estimator, catlog.estimators.MuProp) for trial in advice.trials)
    steps = probe(GradientSampler(lambda x: (x.round() @ normals(10)).square(), bits(10)), 64)
    assert not steps.has_slope  # a derivative that is zero everywhere does not count


def test_explanation() -> None:
    advice = ask(quadratic(20), bits(20), budget=100)
    lines = str(advice).split("\n")
    assert lines[0].startswith(f"{advice.estimator}: {advice.trials[0].evaluations} evaluations of")
    assert lines[0].endswith(" per step.")
    assert lines[1].startswith("The noise of its gradient is ")
    assert lines[2].startswith("q: 20 independent bits.")
    assert lines[3].startswith("Expected training time, relative to it: ")
    assert "within the budget of 100 evaluations" in lines[4]
    assert lines[4].endswith(" steps.")


def test_errors() -> None:
    with pytest.raises(ValueError, match="`budget` must be at least 1, but 0 was given"):
        advise(quadratic(4), bits(4), budget=0)
    with pytest.raises(ValueError, match="`steps` must be positive"):
        advise(quadratic(4), bits(4), steps=0)
    with pytest.raises(ValueError, match="`step` must be a callable or seconds of at least 0"):
        advise(quadratic(4), bits(4), step=-1.0)
    shared = Independent(Bernoulli(logits=normals(3, 4).requires_grad_()), 1)
    with pytest.raises(
        ValueError, match=r"of shape \(3,\), but it returned \(\)\. Sum over the var"
    ):
        advise(quadratic(4), shared, penalty=lambda q: q.entropy().sum())
    with pytest.raises(
        ValueError,
        match=r"no candidate fits q, f and the budget of 1 evaluations\. Exact\(\): it needs 16",
    ):
        advise(quadratic(4), bits(4), budget=1, candidates=[Exact(), RLOO()])
    for loss, returned in ((lambda value: value.mean(), r"\(\)"), (lambda value: 1.0, r"1\.0")):
        with pytest.raises(ValueError, match=f"loss: .* it returned {returned}. Leave out the sum"):
            advise(quadratic(4), shared, loss=loss)
    with pytest.raises(ValueError, match="candidates: at least one is needed, but none was given"):
        advise(quadratic(4), bits(4), candidates=[])
    with pytest.raises(ValueError, match=r"^f must return one value per point"):
        advise(lambda x: x, bits(4), candidates=[RLOO()])


@pytest.mark.parametrize("ask", ["advise", "compare"])
def test_estimators_that_learn_are_moved_to_where_q_is(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they would fail otherwise, and be left out."""
    moves: list[torch.device] = []

    def to(E: nn.Module, device: torch.device) -> nn.Module:
        moves.append(device)
        return E

    monkeypatch.setattr(SlopeCateR, "to", to)
    q = bits(4)
    if ask == "advise":
        advise(quadratic(4), q)
    else:
        catlog.compare(quadratic(4), q, [SlopeCateR(2)], repeats=2)
    assert set(moves) == {q.base_dist.logits.device}
