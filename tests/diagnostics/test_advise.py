"""`catlog.advise`, with a clock that counts evaluations of f, which is the same on all machines."""

from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent

import catlog
from catlog import RLOO, Exact, IndeCateR, ReinMax, SlopeCateR, StraightThrough
from catlog.diagnostics import Trial, advise
from catlog.diagnostics.moments import Moments
from catlog.distributions import MarkovChain
from catlog.estimators import ARMS
from catlog.testing.cases import normals

Function = Callable[[Tensor], Tensor]
LEVEL = 1.3  # as the printed text says
LADDER = [RLOO(2**power) for power in range(1, 7)]


def bits(*shape: int) -> Independent:
    return Independent(Bernoulli(logits=normals(*shape).requires_grad_()), 1)


def numbers(d: int, k: int) -> Independent:
    return Independent(Categorical(logits=normals(d, k).requires_grad_()), 1)


class Counted:
    """f of vectors with a clock: a call takes 0.2 seconds, and 0.01 more for every point."""

    def __init__(self, f: Function, call: float = 0.2, point: float = 0.01) -> None:
        self.f, self.call, self.point, self.now = f, call, point, 0.0

    def __call__(self, x: Tensor) -> Tensor:
        self.now += self.call + self.point * x.shape[:-1].numel()
        return self.f(x)

    def clock(self) -> float:
        return self.now


def quadratic(d: int) -> Function:
    """Pairs only: f is linear in each bit."""
    weights = normals(d, d, seed=3).triu(1) / d
    return lambda x: ((x @ weights) * x).sum(-1)


def black_box(d: int) -> Function:
    f = quadratic(d)
    return lambda x: f(x).detach() + (x.sum(-1) > d / 2).double()


def ask(f: Function, *arguments: Any, **options: Any) -> catlog.Advice:
    """Return advice whose clock counts evaluations of f."""
    counted = f if isinstance(f, Counted) else Counted(f)
    return advise(counted, *arguments, clock=counted.clock, **{"seconds": 1e4, **options})


def by_name(advice: catlog.Advice) -> dict[str, Trial]:
    return {trial.name: trial for trial in advice.trials}


# The score


def test_times_are_the_least_of_all_steps() -> None:
    advice = ask(quadratic(6), bits(6), candidates=[RLOO(2), RLOO(8)])
    seconds = {name: trial.seconds for name, trial in by_name(advice).items()}
    assert seconds == pytest.approx({"RLOO(2)": 0.22, "RLOO(8)": 0.28})
    assert ask(quadratic(6), bits(6), step=5, candidates=["RLOO(2)"]).trials[0].seconds > 5.2


@pytest.mark.parametrize("penalty", [None, lambda q: -0.1 * q.entropy()])
def test_score_is_ten_squared_gradients_and_the_variance_by_the_seconds(penalty: Any) -> None:
    """By an exact gradient: one of the candidates enumerates. A penalty is a part of it."""
    f, q = quadratic(5), bits(5)
    loss = Exact()(f, q) + (0 if penalty is None else penalty(q))
    (exact,) = torch.autograd.grad(loss, q.base_dist.logits, retain_graph=True)
    trials = ask(f, q, penalty=penalty, candidates=[RLOO(2), RLOO(16), Exact()]).trials
    scores = [(10 * float(exact.square().sum()) + part.variance) * part.seconds for part in trials]
    relative = [score / min(scores) for score in scores]
    assert [trial.times_as_long for trial in trials] == pytest.approx(relative, rel=1e-6)


def test_precision_is_worth_its_time_only() -> None:
    """The longer the rest of a step takes, the more draws are worth their time."""
    short, long = (ask(quadratic(10), bits(10), step=step) for step in (0.0, 1000.0))
    assert min(trial.times_as_long for trial in short.trials) == 1.0
    few, many = (by_name(advice)["RLOO(64)"].times_as_long for advice in (long, short))
    assert few < many
    assert long.estimator.samples > short.estimator.samples


def test_loss_counts_the_noise_of_the_value_and_the_bias_that_it_makes() -> None:
    """Under -log E[f], draws that all score zero give no finite loss, so Exact wins. The squared
    value of few draws has a gradient of another length; its variance is small."""
    f, q = (lambda x: (x.prod(-1) == 12).double()), numbers(2, 7)
    options: dict[str, Any] = {"candidates": [RLOO(), Exact()], "step": 0.1}
    advice = ask(f, q, loss=lambda value: -value.log(), **options)
    assert isinstance(advice.estimator, Exact)
    assert advice.skipped["RLOO(2)"] == "its gradient is NaN or infinite"
    linear = ask(f, q, loss=lambda value: 3 * value, **options)
    assert len(linear.trials) == 2
    options = {"candidates": [RLOO(2), Exact()], "step": 1000.0}
    advice = ask(lambda x: 1 + x.sum(-1), bits(6), loss=lambda v: (v - 4).exp(), **options)
    assert by_name(advice)["RLOO(2)"].times_as_long > 2


# The answer


def test_the_choice_is_level_and_not_beaten_by_what_is_listed() -> None:
    for f, q in (
        (quadratic(20), bits(20)),
        (black_box(12), bits(12)),
        (lambda x: (x.sum(-1) == 7).double(), bits(20)),
        (lambda x: normals(12, 3, seed=1)[torch.arange(12), x].sum(-1), numbers(12, 3)),
    ):
        advice = ask(f, q)
        choice = by_name(advice)[repr(advice.estimator)]
        slower = [trial.times_as_long for trial in advice.trials if not trial.is_level]
        assert choice.is_level
        assert choice.times_as_long <= min(slower, default=inf)
        assert all(factor > LEVEL for factor in slower)


@pytest.mark.parametrize(("seed", "order"), [(0, 1), (1, -1)])
def test_of_close_numbers_of_draws_the_largest_is_taken(seed: int, order: int) -> None:
    """Where the rest of a step takes long, whatever the seed and the order of the candidates."""
    pair = [RLOO(32), RLOO(64)][::order]
    advice = ask(quadratic(8), bits(8), candidates=pair, seed=seed, step=1000.0)
    assert advice.estimator == RLOO(64)
    assert all(trial.is_level for trial in advice.trials)
    assert "RLOO(32)" in str(advice).split("\n")[0]


def test_name_is_stable_under_noise_of_the_clock() -> None:
    """Calls take up to 30 % longer, at random; the least of many steps is what counts."""
    names = set()
    for seed in range(5):
        noise, f = Random(seed), Counted(black_box(12), call=0.3)
        now = [0.0]

        def clock(f: Counted = f, noise: Random = noise, now: list[float] = now) -> float:
            now[0] += f.now * (1 + 0.3 * noise.random())
            f.now = 0.0
            return now[0]

        advice = advise(f, bits(12), clock=clock, seconds=1e4, candidates=[*LADDER, ARMS(4)])
        names.add(repr(advice.estimator))
    assert len(names) == 1


def test_explanation() -> None:
    advice = ask(black_box(12), bits(12))
    lines = str(advice).split("\n")
    assert lines[0].startswith(("Level, within the error of this pilot (", "Take RLOO("))
    assert f"Take {advice.estimator!r}" in lines[0]
    names = [part.split(" ")[0] for part in lines[1].split(": ", 1)[1].split(", ")]
    kinds = [name.startswith("RLOO") for name in names]
    assert kinds == sorted(kinds, reverse=True)  # other numbers of draws come first
    assert "Not tried: " in lines[-1]
    assert "Exact() (it needs 4096 evaluations, more than the budget of 64)" in lines[-1]
    refused = lines[-1].split("; ")[0]
    assert "SlopeCateR(2, every=4)" in refused
    assert "(f: its derivative in x is needed by this es" in refused


def test_biased_estimators_are_options_and_never_the_answer() -> None:
    f, q = quadratic(12), bits(12)
    assert "ReinMax" not in str(ask(f, q))
    allowed = str(ask(f, q, biased=True))
    assert "Biased, so not tried: ReinMax(1), " in allowed
    assert "for 1,000 steps each, and compare the losses" in allowed
    assert "ReinMax" not in str(ask(black_box(12), q, biased=True))  # it needs a derivative
    refused = ask(f, q, candidates=[RLOO(), StraightThrough()])
    assert refused.skipped["StraightThrough(1)"].startswith("it is biased, and no pilot")
    with pytest.raises(ValueError, match=r"ReinMax\(1\) \(it is biased, and no pilot can see"):
        ask(f, q, candidates=[ReinMax()])


# What is tried


def test_exact_is_tried_only_if_it_costs_no_more_than_a_step() -> None:
    pair = [RLOO(2), Exact()]
    for d, budget, is_tried in ((6, None, True), (7, None, False), (7, 128, True)):
        advice = ask(quadratic(d), bits(d), budget=budget, candidates=pair)
        assert ("Exact()" in by_name(advice)) is is_tried


def test_structured_distribution() -> None:
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(3, 3, requires_grad=True)]
    advice = ask(
        lambda x: (x[..., 1:] == x[..., :-1]).double().sum(-1),
        lambda a, b: MarkovChain(a, b, length=8),
        parameters,
    )
    assert {"SCateR(1)", "RAM(1)", "RLOO(64)"} <= by_name(advice).keys()
    assert all("structured" in trial.estimator.supports for trial in advice.trials)


def test_sparse_f_is_a_guess() -> None:
    """No pilot meets an event of probability 1e-9; of one of 1e-3 it sees some zeros only."""
    q = Independent(Bernoulli(logits=torch.zeros(30, requires_grad=True)), 1)
    advice = ask(lambda x: (x.sum(-1) == 30).double(), q)
    assert "saw hardly a gradient other than zero, so this is a guess" in str(advice)
    rare = Independent(Bernoulli(logits=torch.zeros(10, requires_grad=True)), 1)
    advice = ask(lambda x: (x.sum(-1) == 10).double(), rare, candidates=LADDER)
    assert advice.trials
    assert all(trial.variance > 0 for trial in advice.trials)


def test_a_candidate_may_be_given_twice() -> None:
    advice = ask(quadratic(8), bits(8), candidates={"first": RLOO(4), "second": RLOO(4)})
    assert by_name(advice)["first"].seconds == by_name(advice)["second"].seconds


def test_failing_candidates_are_skipped() -> None:
    class Broken(RLOO):
        def estimate(self, *arguments: Any) -> catlog.Estimate:
            raise RuntimeError("out of memory. Buy more")

    for order in ([RLOO(), Broken()], [Broken(), RLOO()]):
        advice = ask(quadratic(8), bits(8), candidates=order)
        assert advice.estimator == RLOO()
        assert advice.skipped == {"Broken(2)": "out of memory"}
    with pytest.raises(ValueError, match=r"no candidate could be used\. Broken\(2\) \(out of mem"):
        ask(quadratic(8), bits(8), candidates=[Broken()])


# Time


@pytest.mark.parametrize("whole", [None, 0.05])
@pytest.mark.parametrize("backward", [0, 20])
@pytest.mark.parametrize(("call", "point"), [(0.003, 0.001), (0.0, 0.01), (0.1, 0.02)])
def test_pilot_ends_in_time(
    call: float, point: float, backward: float, whole: float | None, monkeypatch: Any
) -> None:
    """After two seconds or thirty of the quickest steps, whichever is longer. To look at the clock
    takes a moment, to score an arm 0.01 seconds, and the backward pass of f may take far longer
    than f."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    f, q, moment = Counted(quadratic(12), call, point), bits(12), 1e-4

    def weighted(x: Tensor) -> Tensor:
        before, values = f.now, weight * f(x)
        seconds = backward * (f.now - before)
        if values.requires_grad:
            values.register_hook(lambda _: setattr(f, "now", f.now + seconds))
        return values

    def step(E: catlog.Estimator) -> None:
        assert whole is not None
        f.now += whole
        E(weighted, q).sum().backward(retain_graph=True)

    def clock() -> float:
        f.now += moment
        return f.now

    def error(moments: Moments, error: Any = Moments.error) -> float:
        f.now += 0.01
        return float(error.fget(moments))

    monkeypatch.setattr(Moments, "error", property(error))
    advice = advise(weighted, q, clock=clock, step=None if whole is None else step)
    least = min(trial.seconds for trial in advice.trials)
    assert f.now <= max(2.0, 30 * least) + 50 * moment


def test_time_is_limited_if_f_is_expensive() -> None:
    """f takes a second, and one more per point, and the pilot as long as 30 steps of two draws."""
    f = Counted(black_box(30), call=1.0, point=1.0)
    advice = ask(f, bits(30), budget=200, seconds=2.0)
    assert {"RLOO(2)", "ARMS(2)"} & by_name(advice).keys()
    assert advice.seconds <= 30 * by_name(advice)["RLOO(2)"].seconds
    assert advice.seconds == f.now
    assert advice.skipped["RLOO(64)"] == advice.skipped["IndeCateR(1)"]
    assert advice.skipped["RLOO(64)"] == "the pilot had no time for it"
    assert len(advice.trials) >= 2


def test_f_that_keeps_its_values_is_timed_at_unseen_points() -> None:
    """A cache makes the pilot's later rounds nearly free, but not training."""
    kept: dict[tuple[float, ...], float] = {}
    now = [0.0]

    def cached(x: Tensor) -> Tensor:
        now[0] += 0.0001
        rows = [tuple(row) for row in x.reshape(-1, 30).tolist()]
        for row in rows:
            if row not in kept:
                now[0] += 0.01
                kept[row] = sum(row) ** 2
        return torch.tensor([kept[row] for row in rows], dtype=torch.float64).view(x.shape[:-1])

    advice = advise(cached, bits(30), clock=lambda: now[0], candidates=[RLOO(2), RLOO(64)])
    assert "f keeps its values: an unseen point takes 10 ms longer" in str(advice)
    assert by_name(advice)["RLOO(2)"].seconds == pytest.approx(0.0201, rel=0.01)
    assert "f keeps" not in str(ask(quadratic(12), bits(12)))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_whole_step_is_timed_and_undone(error: type[BaseException] | None) -> None:
    """Also if it is interrupted."""
    images = normals(8, 5, seed=4)
    encoder = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6)).double()
    before = [parameter.detach().clone() for parameter in encoder.parameters()]
    optimiser = torch.optim.SGD(encoder.parameters(), lr=1.0)
    f, state, seen = Counted(quadratic(6)), torch.get_rng_state(), []

    def make_q() -> Independent:
        return Independent(Bernoulli(logits=encoder(images)), 1)

    def step(E: catlog.Estimator) -> None:
        f.now += 7.0 if seen else 1000.0  # the first call compiles
        seen.append(E)
        optimiser.zero_grad()
        E(f, make_q()).sum().backward()
        optimiser.step()
        if error is not None:
            raise error

    candidates = [RLOO(), IndeCateR(), SlopeCateR(1, every=4)]
    with pytest.raises(error) if error else nullcontext():
        advice = ask(f, make_q(), step=step, candidates=candidates, seconds=1000.0)
        assert all(7 < trial.seconds < 20 for trial in advice.trials)
    for parameter, old in zip(encoder.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert torch.equal(torch.get_rng_state(), state)
