"""Which estimator, with which settings? A short pilot on f and q decides."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from torch import Tensor

from ..checks import check_count
from ..estimator import Estimator, Function
from .candidates import CANDIDATES, Candidate
from .explanation import explain
from .gradient_samples import Clock, DistributionLike, GradientSampler
from .pilot import Pilot
from .pilot_settings import DEFAULTS
from .race import choose, explore
from .sizing import joined_reasons
from .structure import Structure, probe
from .trials import Trial, ranked, shortlist


@dataclass(frozen=True)
class Advice:
    """The estimator to use, and why.

    Attributes:
        estimator: Ready to be used. If it learns, it starts from what the pilot found.
        explanation: A few lines, also given by ``print(advice)``.
        seconds: The time that the pilot took.
        step_seconds: The time of a step with this estimator: q, estimate and gradients.
        trials: What was measured of every candidate, best first.
        skipped: Why other candidates were not tried.
        structure: What was known about f and q beforehand.
    """

    estimator: Estimator
    explanation: str
    seconds: float
    step_seconds: float
    trials: tuple[Trial, ...] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)
    structure: Structure

    def __str__(self) -> str:
        return self.explanation


def advise(
    f: Function,
    q: DistributionLike,
    parameters: Sequence[Tensor] | None = None,
    *,
    budget: int | None = None,
    biased: bool = False,
    steps: float = 30,
    candidates: Sequence[Candidate] | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Advice:
    r"""Find the estimator with the lowest variance x time on f and q, in a short pilot.

    The cost of reaching a given precision is variance x time: twice the draws, or twice the steps,
    halve the one and double the other. The pilot measures both for every candidate that fits q, f
    and the budget. It begins with few repeats and makes more for those that may still win. After
    every round at most half of the candidates continue, and none that is surely worse than the
    best. The pilot ends when one remains, or when it has taken as long as ``steps`` training steps
    with the best so far. Repeats are one more batch dimension, so many of them take little longer
    than one if f is cheap.

    Args:
        f, q, parameters: As in :func:`catlog.compare`.
        budget: The most evaluations of f per step and batch element. A function with its own
            neighbour table (:mod:`catlog.functions`) counts as 1 + k evaluations per draw of
            IndeCateR. None: what IndeCateR needs for two draws, at least 64, and up to 4096 for
            :class:`Exact`.
        biased: Allow biased estimators, judged by mean squared error x time.
        steps: The pilot takes about as long as this many training steps; the default is under 5 %
            of a run of 1000. The first two candidates are tried in any case. The leader is
            measured again if few estimates may have flattered it.
        candidates: What to try, in this order; None: ``catlog.diagnostics.CANDIDATES``. To add
            yours, give ``[*CANDIDATES, Candidate(Mine())]``.
        seed: The seed of the pilot's draws.
        clock: A function that returns seconds.

    >>> import torch
    >>> from torch.distributions import Categorical, Independent
    >>> from catlog.functions import Additive
    >>> f = Additive(torch.arange(60.0).view(20, 3))
    >>> advice = advise(f, Independent(Categorical(logits=torch.zeros(20, 3)), 1))
    >>> E = advice.estimator
    >>> type(E).__name__, advice.trials[0].variance
    ('IndeCateR', 0.0)
    """
    if budget is not None:
        check_count("advise", "budget", budget)
    if not steps > 0:
        raise ValueError(f"advise: `steps` must be positive, but {steps} was given.")
    start = clock()
    task = GradientSampler(f, q, parameters)
    structure = probe(task, budget, clock)
    candidates = CANDIDATES if candidates is None else candidates
    trials, skipped = shortlist(task, structure, candidates, biased)
    pilot = Pilot(task, task.generator(seed), clock, start, steps)
    measured = explore(pilot, trials)
    skipped |= {trial.name: trial.skipped for trial in trials if trial.skipped is not None}
    if not measured:
        raise ValueError(f"advise: no candidate could be used. {joined_reasons(skipped)}.")
    best = choose(pilot, measured)
    order = [best, *(trial for trial in ranked(measured) if trial is not best)]
    seconds = clock() - start
    return Advice(
        estimator=best.estimator,
        explanation=explain(order, structure, seconds, DEFAULTS),
        seconds=seconds,
        step_seconds=median(best.times),
        trials=tuple(order),
        skipped=skipped,
        structure=structure,
    )
