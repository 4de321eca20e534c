"""The settings with which every estimator of the registry is judged."""

import sys
from collections.abc import Mapping
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog.core.categories import Kind
from catlog.core.estimator import Estimator
from catlog.core.evaluator import Evaluator
from catlog.core.factors import IndependentFactors
from catlog.core.randomness import Randomness, Sampling
from catlog.core.view import view
from catlog.estimators import ESTIMATORS

from .cases import CASES, Case

# Estimators whose gradient of a constant f is noise; for all others it is exactly zero.
NOISY_ON_CONSTANTS = {"Reinforce", "NVIL", "RELAX"}

NOISY: dict[tuple[type, str], bool] = {}  # by class and settings: asked often while collecting

# Names of classes, and the settings in which each of them is judged. An estimator that is not here
# is judged without arguments.
TABLE = """
Exact: | chunk_size=2
Reinforce: samples=1 | samples=2, baseline=0.7
RLOO BBVI ARMS VIMCO UnorderedSet: samples=2 | samples=3
NVIL MuProp ARM DisARM ARSM StraightThrough: samples=1 | samples=2
REBAR: samples=1 | samples=2, temperature=0.2
RELAX: samples=4
DoubleCV: samples=2, alpha=0.7 | samples=3, alpha=-0.4
RODEO: samples=2, alpha=-0.6, beta=0.4 | samples=3, alpha=0.3, beta=-0.2
IndeCateR: samples=1 | samples=2, chunk_size=3 | samples=1, per_variable=True
IndeCateR: samples=2, per_variable=True, chunk_size=1 | samples=2, variables=1
IndeCateR: samples=1, variables=2, chunk_size=2 | samples=2, variables=2, control='none'
SCateR: samples=1 | samples=2, chunk_size=3 | samples=1, variables=1
CritiCateR: samples=2 | samples=3, folds=3 | samples=3, folds=2, ridge=0.1
SlopeCateR: samples=2 | samples=2, corrections=1 | samples=1, corrections=3
SlopeCateR: samples=2, corrections=3, pairs=True
MemoryCateR: samples=2 | samples=3, size=5
LEG: samples=1 | samples=2, chunk_size=3
RAM SIMPLE: samples=1
CARMS: samples=2 | samples=4
DisARMTree: samples=1 | samples=2, tree='stick'
SumAndSample: top=2 | top=1, samples=3
MAPO: size=2 | size=3, samples=3, maximise=False
GumbelSoftmax: samples=2 | samples=2, hard=True, temperature=0.5
GumbelRao: samples=2 | samples=1, noise_samples=3, temperature=0.5
ReinMax: samples=1 | samples=2, temperature=1.3
ReinMaxRao: samples=2 | samples=1, noise_samples=3, temperature=1.5
ReinMaxCV: samples=2 | samples=1, noise_samples=3, temperature=0.5, control_weight=1.0
GappedStraightThrough: samples=1 | samples=2, gap=None, temperature=0.7
DecoupledStraightThrough: samples=2 | samples=1, forward_temperature=0.7, backward_temperature=1.5
MinimumVarianceStraightThrough: samples=1 | samples=2, bias_weight=1.0
ReDGE: samples=2 | samples=1, steps=2, last_time=0.9
DARN: samples=1 | samples=2, order=1
IMLE: samples=2 | samples=3, step=2.0
DirectOptimisation: samples=2 | samples=3, epsilon=-2.0, chunk_size=2
"""


def settings_in(table: str, **values: object) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of every class in such a table; ``values`` are names that it uses."""
    found: dict[str, list[dict[str, Any]]] = {}
    for names, settings in (line.split(":") for line in table.strip().split("\n")):
        for name in names.split():
            found.setdefault(name, []).extend(
                eval(f"dict({x})", dict(values)) for x in settings.split("|")
            )
    return found


VARIANTS = settings_in(TABLE)


def select(**wanted: object) -> dict[str, Estimator[Any]]:
    """Return every estimator, in every setting, whose attributes have the values ``wanted``.

    ``continuous`` may be asked for, too (see :func:`continuous`).
    """
    selected = {}
    for name, cls in ESTIMATORS.items():
        for options in VARIANTS.get(name, [{}]):
            E = cls(**options)
            derived = {"continuous": continuous(E)}
            if all(derived.get(key, getattr(E, key, None)) == wanted[key] for key in wanted):
                listing = ", ".join(f"{key}={value}" for key, value in options.items())
                selected[f"{name}({listing})"] = E
    return selected


def labelled(cases: Mapping[str, tuple[object, ...]]) -> list[object]:
    """Return cases as parameters for pytest, under their names."""
    import pytest  # needed only where tests are collected

    return [pytest.param(*values, id=label) for label, values in cases.items()]


def estimators(**wanted: object) -> list[object]:
    """Return :func:`select`'s estimators as parameters for pytest."""
    return labelled({label: (E,) for label, E in select(**wanted).items()})


def one_of_each() -> list[object]:
    """Return every estimator in the first of its settings, as parameters for pytest."""
    return labelled({n: (cls(**VARIANTS.get(n, [{}])[0]),) for n, cls in ESTIMATORS.items()})


def continuous(E: Estimator[Any]) -> bool:
    """Return whether the outcomes of E's sampler cannot be enumerated as draws of q.

    Uniforms besides points are continuous noise, except those by which SlopeCateR selects. Points
    of several calls cannot be given as one ``x``.
    """
    key = type(E), repr(E)
    if key not in NOISY:
        drawn = [name for name, _ in tape(E)]
        has_noise = "uniform" in drawn and not hasattr(E, "turns")
        NOISY[key] = has_noise or drawn.count("points") > 1
    return NOISY[key]


class Coupling(NamedTuple):
    """How the points of a call depend on each other.

    Attributes:
        n: the number of points that depend on each other.
        sampling: "antithetic" or "latin".
        groups: the number of independent groups of n points.
        steps: the numbers ``[d, k - 1]`` at which a uniform draws another category.
    """

    n: int
    sampling: Sampling
    groups: int
    steps: Tensor

    @property
    def rows(self) -> int:
        """The number of uniforms of a variable: a pair shares one."""
        return (self.n + 1) // 2 if self.sampling == "antithetic" else self.n


class Record(Randomness):
    """Randomness that also keeps how its points depend on each other; None: not at all."""

    coupling: Coupling | None = None

    def points(
        self,
        n: int,
        sampling: Sampling = "independent",
        groups: int = 1,
        probs: Tensor | None = None,
    ) -> Tensor:
        if sampling != "independent" and isinstance(self.q, IndependentFactors):
            steps = (self.q.probs if probs is None else probs).detach().cumsum(-1)[..., :-1]
            self.coupling = Coupling(n, sampling, groups, steps)
        return super().points(n, sampling, groups, probs)


def recorded(E: Estimator[Any], q: Distribution) -> Record:
    """Return the randomness of a call of E."""
    factors = view(q, 0, E.accepts, type(E).__name__)
    draw = Record(factors, generator=torch.Generator())

    def f(x: Tensor) -> Tensor:
        lead = x.shape[: 1 + len(q.batch_shape)]
        return (x.to(factors.real) * 0).reshape(*lead, prod(q.event_shape)).sum(-1)

    deepcopy(E).estimate(Evaluator(f, factors), factors, draw)
    return draw


def tape(E: Estimator[Any], q: Distribution | None = None) -> list[tuple[str, tuple[int, ...]]]:
    """Return what a call of E draws, by name and shape; without q, from its :func:`home`."""
    return recorded(E, home(E).distribution(home(E).theta) if q is None else q).taken


def home(E: Estimator[Any]) -> Case:
    """Return a case that E takes: of three categories where it can."""
    return CASES["one-hot" if supports(E, "one-hot") else "bits"]


def chosen_per_draw(E: Estimator[Any]) -> int:
    """Return how many variables E sums out in each draw; 0 where it does not choose them."""
    return getattr(E, "variables", None) or 0


def supports(E: Estimator[Any], kind: str) -> bool:
    """Return whether E takes distributions of this kind ("bits", "index", "one-hot", "mixed")."""
    return kind in E.supports and not (E.differentiates_f and kind in (Kind.INDEX, Kind.MIXED))


def load_estimator(location: str) -> type[Estimator[Any]]:
    """Return the class that FILE.py:CLASS names."""
    file, _, name = location.rpartition(":")
    if not Path(file).is_file():
        raise ValueError(
            f"--catlog-estimator: it must be FILE.py:CLASS, but {location!r} names no file."
        )
    spec = spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"--catlog-estimator: {file} has no {name!r}.")
    cls: type[Estimator[Any]] = getattr(module, name)
    return cls


def judge_only(cls: type[Estimator[Any]], *, noisy_on_constants: bool = False) -> None:
    """Put ``cls`` in place of all estimators of the registry."""
    try:
        E = cls()
    except TypeError as error:
        raise ValueError(
            f"--catlog-estimator: {cls.__name__}() must work without arguments, but: {error}."
        ) from error
    if not isinstance(E, Estimator):
        raise ValueError(
            f"--catlog-estimator: {cls.__name__} must derive from catlog.Estimator, whose "
            "docstring is the contract."
        )
    ESTIMATORS.clear()
    ESTIMATORS[cls.__name__] = cls
    setattr(catlog.estimators, cls.__name__, cls)
    if noisy_on_constants:
        NOISY_ON_CONSTANTS.add(cls.__name__)
