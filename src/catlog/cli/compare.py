"""``catlog compare`` and ``catlog advise``: a problem of the suite, or one's own ``module:function``, on the command line."""

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..diagnostics import advise, compare
from ..estimator import Estimator
from ..estimators import ESTIMATORS
from ..experiments.named_estimators import make_estimator
from ..experiments.ranges import AtLeastTwo, Checked, Count, Counted, Seed
from ..experiments.run_folder import refuse_run_file

Size = Literal["small", "large"]


@dataclass(frozen=True)
class Compare(Checked):
    """Measure estimators side by side: bias, variance, time, and variance x time."""

    problem: str
    """A problem of the suite (`catlog list` has them), or your own as module:function: a function that is called without
    arguments and returns (f, law, parameters), (f, q), or a Problem."""
    estimators: str = ""
    """Which, such as RLOO,IndeCateR(draws=latin),IndeCateR(4,variables=2); none: all that fit."""
    budget: Count | None = None
    """Equal evaluations: as many draws as need no more evaluations than this."""
    samples: Count | None = None
    """Equal samples: so many draws for every estimator."""
    size: Size = "small"
    """Of a problem of the suite."""
    repeats: AtLeastTwo = 200
    """Estimates per estimator."""
    rounds: Count = 15
    """Timed steps per estimator."""
    training: Counted = 200
    """Steps for which estimators with parameters of their own learn beforehand."""
    seed: Seed = 0
    """Of the draws."""
    csv: Path | None = None
    """Write the numbers there."""
    plot: Path | None = None
    """Draw a picture there."""

    def __call__(self) -> int:
        for path in (self.csv, self.plot):
            if path is not None:
                refuse_run_file(path)
        f, law, parameters, reference = found(self.problem, self.size)
        result = compare(
            f,
            law,
            parse(self.estimators) if self.estimators else None,
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
        if self.plot is not None:
            result.plot(self.plot)
        return 0


@dataclass(frozen=True)
class Advise(Checked):
    """Which estimator should I use? A short pilot on f and q finds the one with the lowest variance x time."""

    problem: str
    """As for `catlog compare`."""
    budget: Count | None = None
    """The most evaluations of f per step; none: as many as two draws of IndeCateR need, at least 64."""
    biased: bool = False
    """Allow biased estimators."""
    size: Size = "small"
    """Of a problem of the suite."""
    seed: Seed = 0
    """Of the pilot's draws."""

    def __call__(self) -> int:
        f, law, parameters, _ = found(self.problem, self.size)
        print(advise(f, law, parameters, budget=self.budget, biased=self.biased, seed=self.seed))
        return 0


def parse(text: str) -> list[str | Estimator]:
    """Estimators from their names and settings.

    >>> parse("RLOO, IndeCateR(4, draws=latin)")[1].draws
    'latin'
    """
    listed: list[str | Estimator] = []
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", text):
        name, _, inner = part.strip().rstrip(")").partition("(")
        if name not in ESTIMATORS:
            raise ValueError(
                f"--estimators: {name!r} is not known. Give one of {', '.join(ESTIMATORS)}."
            )
        options = [option.strip() for option in inner.split(",") if option.strip()]
        options = [option if "=" in option else f"samples={option}" for option in options]
        listed.append(make_estimator(name, None, tuple(options), {}) if options else name)
    return listed


def found(problem: str, size: Size) -> tuple[Any, Any, Any, Any]:
    """f, law, parameters and the reference gradient (None where there is none) of a problem by its name."""
    if ":" not in problem:
        made: Any = importlib.import_module("catlog.problems").make(problem, size)
    else:
        module, _, function = problem.partition(":")
        if "" not in sys.path:
            sys.path.insert(0, "")  # the folder at hand, as in `python -m`
        try:
            made = getattr(importlib.import_module(module), function)()
        except AttributeError as error:
            raise ValueError(
                f"--problem: {module} has no function {function!r} that can be called: {error}."
            ) from error
    if isinstance(made, tuple):
        if len(made) not in (2, 3):
            raise ValueError(
                f"--problem: {problem} must return (f, law, parameters) or (f, q), but it returned {len(made)} things."
            )
        return made[0], made[1], made[2] if len(made) == 3 else None, None
    if not all(hasattr(made, name) for name in ("f", "law", "parameters")):
        raise TypeError(
            f"--problem: {problem} must return (f, law, parameters) or a Problem, but it returned {type(made).__name__}."
        )
    return (
        made.f,
        made.law,
        made.parameters,
        made.reference() if hasattr(made, "reference") else None,
    )
