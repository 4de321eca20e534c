"""``catlog compare`` and ``catlog advise``, on a problem of the suite or on ``module:function``."""

import importlib
import re
import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from catlog import problems
from catlog.core.estimator import Estimator
from catlog.diagnostics import advise, compare
from catlog.estimators import ESTIMATORS

from ..named_estimators import make_estimator
from ..ranges import (
    AtLeastTwo,
    Checked,
    Count,
    Counted,
    NotNegative,
    Seed,
    did_you_mean,
)
from ..run_folder import refuse_run_file

Size = Literal["small", "large"]


@dataclass(frozen=True)
class Compare(Checked):
    """Measure estimators side by side: bias, variance, time, and variance x time."""

    # The help keeps the line breaks of docstrings, so texts of several lines are arguments.
    problem: Annotated[
        str,
        tyro.conf.arg(
            help="A problem of the suite (`catlog list problems` shows them), or your own as "
            "module:function. The function takes no arguments and returns (f, q), a Problem, or "
            "(f, make_q, parameters), where make_q(*parameters) is q."
        ),
    ]
    estimators: str = ""
    """Estimators, such as RLOO,IndeCateR(draws=latin),IndeCateR(4,variables=2); default: all."""
    budget: Count | None = None
    """Equal evaluations: give every estimator as many draws as this many evaluations of f allow."""
    samples: Count | None = None
    """Equal samples: this many draws for every estimator."""
    size: Size = "small"
    """The size of a problem of the suite."""
    repeats: AtLeastTwo = 200
    """Estimates per estimator."""
    rounds: Count = 15
    """Timed steps per estimator."""
    training: Counted = 200
    """Steps for which estimators that have parameters learn beforehand."""
    seed: Seed = 0
    """The seed of the draws."""
    csv: Path | None = None
    """Write the numbers to this CSV file."""
    plot: Path | None = None
    """Draw a figure to this file."""

    def __call__(self) -> int:
        for path in (self.csv, self.plot):
            if path is not None:
                refuse_run_file(path)
        f, q, parameters, reference = load_problem(self.problem, self.size)
        result = compare(
            f,
            q,
            parse_estimators(self.estimators) if self.estimators else None,
            parameters,
            samples=self.samples,
            budget=self.budget,
            repeats=self.repeats,
            rounds=self.rounds,
            training=self.training,
            reference=reference,
            seed=self.seed,
        )
        print(result)
        if self.csv is not None:
            result.to_csv(self.csv)
            print(f"Numbers: {self.csv}")
        if self.plot is not None:
            result.plot(self.plot)
            print(f"Figure: {self.plot}")
        return 0


@dataclass(frozen=True)
class Advise(Checked):
    """Find the estimator that trains fastest on f and q, in a short pilot."""

    problem: str
    """As for `catlog compare`."""
    budget: Annotated[
        Count | None,
        tyro.conf.arg(
            help="The most evaluations of f per step. Default: as many as two draws of IndeCateR "
            "need, at least 64."
        ),
    ] = None
    biased: bool = False
    """Also show biased estimators, such as ReinMax, which are not ranked."""
    step_seconds: NotNegative = 0.0
    """Seconds that a training step takes apart from the estimate and its gradients."""
    size: Size = "small"
    """The size of a problem of the suite."""
    seed: Seed = 0
    """The seed of the pilot's draws."""

    def __call__(self) -> int:
        f, q, parameters, _ = load_problem(self.problem, self.size)
        advice = advise(
            f,
            q,
            parameters,
            budget=self.budget,
            biased=self.biased,
            step=self.step_seconds,
            seed=self.seed,
        )
        print(advice)
        return 0


def parse_estimators(text: str) -> list[str | Estimator]:
    """Return estimators from their names and settings, which are written as their reprs write them.

    As in Python, a setting without a name belongs to the first argument of the class.

    >>> parse_estimators("RLOO, IndeCateR(4, draws=latin), SumAndSample(3)")
    ['RLOO', IndeCateR(4, sampling='latin'), SumAndSample(samples=1, top=3)]
    """
    estimators: list[str | Estimator] = []
    for part in re.split(r",(?![^(]*\))", text):  # at the commas outside parentheses
        if not part.strip():
            continue
        entry = re.fullmatch(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*", part)
        if entry is None:
            raise ValueError(
                f"--estimators: {part.strip()!r} must be a name, with settings in parentheses or "
                "without, as in IndeCateR(4, draws=latin). Put a comma after each estimator."
            )
        name, inner = entry.groups("")
        if name not in ESTIMATORS:
            advice = did_you_mean(name, ESTIMATORS) or f" Give one of {', '.join(ESTIMATORS)}."
            raise ValueError(f"--estimators: {name!r} is not known.{advice}")
        options = _options(name, inner)
        estimators.append(make_estimator(name, None, options, {}) if options else name)
    return estimators


def _options(name: str, text: str) -> tuple[str, ...]:
    """Return settings, separated by commas, as name=value; raise if one is given twice."""
    settings: dict[str, str] = {}
    for position, setting in enumerate(part for part in text.split(",") if part.strip()):
        key, equals, value = setting.partition("=")
        if not equals and position:
            raise ValueError(
                f"--estimators: {setting.strip()!r} in {name}({text}) must have the form "
                "name=value. Only the first setting may do without its name."
            )
        if not equals:
            key, value = next(iter(signature(ESTIMATORS[name]).parameters)), key
        if key.strip() in settings:
            raise ValueError(
                f"--estimators: {name}({text}) must have each setting once, but {key.strip()} is "
                "given twice."
            )
        settings[key.strip()] = value.strip()
    return tuple(f"{key}={value}" for key, value in settings.items())


def load_problem(problem: str, size: Size) -> tuple[Any, Any, Any, Any]:
    """Return f, q (or what makes it), its parameters or None, and the reference or None."""
    is_own = problem.find(":") > 0
    if not is_own and problem not in problems.PROBLEMS:
        advice = did_you_mean(problem, problems.PROBLEMS)
        raise ValueError(
            f"--problem: {problem!r} is not known.{advice} `catlog list problems` lists them. "
            "Give your own as module:function."
        )
    loaded = _call(*problem.split(":", 1)) if is_own else problems.make(problem, size)
    if isinstance(loaded, tuple):
        if len(loaded) not in (2, 3):
            raise ValueError(
                f"--problem: {problem} must return (f, q) or (f, make_q, parameters), "
                f"but it returned {len(loaded)} values."
            )
        return loaded[0], loaded[1], loaded[2] if len(loaded) == 3 else None, None
    if not all(hasattr(loaded, name) for name in ("f", "distribution", "parameters")):
        raise TypeError(
            f"--problem: {problem} must return (f, q), (f, make_q, parameters) or a Problem, "
            f"but it returned {type(loaded).__name__}."
        )
    reference = loaded.reference() if hasattr(loaded, "reference") else None
    return loaded.f, loaded.distribution, loaded.parameters, reference


def _call(module: str, function: str) -> Any:
    """Call a function of a module that may lie in the current folder, as with `python -m`."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function, None)
        if callable(make):
            return make()
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(
            f"--problem: there is no module {module!r}, neither in this folder nor installed."
        ) from error
    except Exception as error:  # a mistake in the user's code, whose traceback is needed
        raise RuntimeError(f"--problem: {module}:{function} raised an error.") from error
    raise ValueError(f"--problem: {module} has no function {function!r}.")
