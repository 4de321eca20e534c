"""``catlog compare`` and ``catlog advise``, on a problem of the suite or on ``module:function``."""

import pkgutil
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from catlog import advise, compare, problems

from .run_folder import refuse_run_file
from .settings import AtLeastTwo, Checked, Count, Counted, NotNegative, did_you_mean

Size = Literal["small", "large"]


@dataclass(frozen=True)
class OnProblem(Checked):
    """The options that both commands take.

    The help keeps the line breaks of docstrings, so texts of several lines are arguments.
    """

    problem: Annotated[
        str,
        tyro.conf.arg(
            help="A problem of the suite (`catlog list problems` shows them), or your own as "
            "module:function. The function takes no arguments and returns (f, q), a Problem, or "
            "(f, make_q, parameters), where make_q(*parameters) is q."
        ),
    ]
    size: Size = "small"
    """The size of a problem of the suite."""
    seed: Counted = 0
    """The seed of the draws."""


@dataclass(frozen=True)
class Compare(OnProblem):
    """Measure estimators side by side: bias, variance, time, and variance x time."""

    estimators: str = ""
    """Estimators, such as RLOO,IndeCateR(sampling=latin),IndeCateR(4,variables=2); default: all."""
    budget: Count | None = None
    """Equal evaluations: give every estimator as many draws as this many evaluations of f allow."""
    samples: Count | None = None
    """Equal samples: this many draws for every estimator."""
    repeats: AtLeastTwo = 200
    """Estimates per estimator."""
    rounds: Count = 15
    """Timed steps per estimator."""
    training: Counted = 200
    """Steps for which estimators that have parameters learn beforehand."""
    csv: Path | None = None
    """Write the numbers to this CSV file."""
    plot: Path | None = None
    """Draw a figure to this file."""

    def __call__(self) -> int:
        for path in filter(None, (self.csv, self.plot)):
            refuse_run_file(path)
        f, q, parameters, reference = load_problem(self.problem, self.size)
        fields = ("samples", "budget", "repeats", "rounds", "training", "seed")
        settings: dict[str, Any] = {name: getattr(self, name) for name in fields}
        names = listed(self.estimators)
        result = compare(f, q, names, parameters, reference=reference, **settings)
        print(result)
        if self.csv is not None:
            result.to_csv(self.csv)
            print(f"Numbers: {self.csv}")
        if self.plot is not None:
            result.plot(self.plot)
            print(f"Figure: {self.plot}")
        return 0


@dataclass(frozen=True)
class Advise(OnProblem):
    """Find the estimator that trains fastest on f and q, in a short pilot."""

    budget: Annotated[
        Count | None,
        tyro.conf.arg(
            help="The most evaluations of f per step. Default: as many as two draws of IndeCateR "
            "need, at least 64, or all outcomes, up to 4096."
        ),
    ] = None
    biased: bool = False
    """Allow biased estimators, such as ReinMax."""
    step_seconds: NotNegative = 0.0
    """Seconds that a training step takes apart from the estimate and its gradients."""

    def __call__(self) -> int:
        f, q, parameters, _ = load_problem(self.problem, self.size)
        settings: dict[str, Any] = {"biased": self.biased, "seed": self.seed}
        settings |= {"budget": self.budget, "step": self.step_seconds}
        print(advise(f, q, parameters, **settings))
        return 0


def listed(estimators: str) -> list[str] | None:
    """Return the estimators of a list, apart at commas outside parentheses; None for none.

    >>> listed("RLOO, IndeCateR(4, sampling=latin),SumAndSample(3)")
    ['RLOO', 'IndeCateR(4, sampling=latin)', 'SumAndSample(3)']
    """
    return re.split(r",\s*(?![^(]*\))", estimators.strip()) if estimators.strip() else None


def load_problem(problem: str, size: Size) -> tuple[Any, Any, Any, Any]:
    """Return f, q (or what makes it), its parameters or None, and the reference or None."""
    if problem.find(":") > 0:
        loaded = _made_by_user(problem)
    elif problem in problems.PROBLEMS:
        loaded = problems.make(problem, size)
    else:
        advice = did_you_mean(problem, problems.PROBLEMS)
        raise ValueError(
            f"--problem: {problem!r} is not known.{advice} `catlog list problems` lists them. "
            "Give your own as module:function."
        )
    if isinstance(loaded, tuple) and len(loaded) in (2, 3):
        return loaded[0], loaded[1], loaded[2] if len(loaded) == 3 else None, None
    if not all(hasattr(loaded, name) for name in ("f", "distribution", "parameters")):
        raise TypeError(
            f"--problem: {problem} must return (f, q), (f, make_q, parameters) or a Problem, "
            f"but it returned {type(loaded).__name__}."
        )
    reference = loaded.reference() if hasattr(loaded, "reference") else None
    return loaded.f, loaded.distribution, loaded.parameters, reference


def _made_by_user(problem: str) -> Any:
    """Call module:function; the module may lie in the current folder, as with `python -m`."""
    sys.path[:0] = [""] * ("" not in sys.path)
    try:
        make_problem = pkgutil.resolve_name(problem)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"--problem: {error}. Give module:function, as in mine:problem."
        ) from error
    try:
        return make_problem()
    except Exception as error:  # a mistake in the user's code, whose traceback is needed
        raise RuntimeError(f"--problem: {problem} raised an error.") from error
