"""Every estimator on every problem of `catlog.problems` at equal evaluations of f.

    python -m benchmarks.suite                        # hours; results/quality/suite.csv
    python -m benchmarks.suite --problems xor --sizes small

`catlog.compare` measures, and describes the columns. Every estimator may spend as many evaluations
as IndeCateR needs for two draws. f is a black box, except for IndeCateR-Table, which uses the table
of a function that has one. `norm` is that of the reference gradient, `reference` its origin. Slow
estimators get fewer repeats and training steps. What the file holds is not repeated.
"""

from dataclasses import fields
from itertools import product
from typing import Any

import torch

import catlog
from catlog import problems
from catlog.diagnostics import Row as Measured
from catlog.estimators import ESTIMATORS

from .measuring import Args, Page, Row, Rows, Table

page = Page(__doc__, problems=list(problems.PROBLEMS), sizes=["large"])
COLUMNS = [column.name for column in fields(Measured) if column.repr and column.name != "name"]
EXCLUDED = ("Exact", "VIMCO")  # the first is the reference, the second has another target
FAST, SLOW = (200, 15, 100), (20, 3, 5)  # repeats, rounds, steps of training


def entries(problem: problems.Problem, d: int) -> dict[str, tuple[catlog.Estimator, Any]]:
    """Return the registry and settings that differ much from the defaults, each with its f."""
    options: dict[str, dict[str, Any]] = {
        "MAPO": {"max_variables": max(64, d)},
        "MemoryCateR": {"max_variables": max(64, d)},
        "GumbelSoftmax": {"temperature": 0.5},
        "GumbelRao": {"temperature": 0.5},
    }
    chosen = {name: E for name, E in ESTIMATORS.items() if name not in EXCLUDED}
    named = {name: E(**options.get(name, {})) for name, E in chosen.items()}
    named["GumbelSoftmax-Hard"] = catlog.GumbelSoftmax(temperature=0.5, hard=True)
    named["IndeCateR-Latin"] = catlog.IndeCateR(sampling="latin")
    named["IndeCateR-Taylor"] = catlog.IndeCateR(sampling="latin", variables=max(1, d // 10))
    listed = {name: (E, problem.f) for name, E in named.items()}
    if problem.structured is not None:
        listed["IndeCateR-Table"] = catlog.IndeCateR(sampling="latin"), problem.structured
    return listed


def measured(problem: problems.Problem, name: str, E: Any, f: Any, budget: int, quick: bool) -> Row:
    """Return the row of an estimator on a problem, with the reason where it cannot be used."""
    reference = problem.reference()
    row: Row = {"problem": problem.name, "size": problem.size, "seed": problem.seed}
    row |= {"estimator": name, "budget": budget, "reference": reference.how}
    row["norm"] = torch.cat([part.flatten() for part in reference.gradient]).norm().item()
    if E.differentiates_f and not problem.relaxable:
        return row | {"skipped": "f has no derivative in x"}
    for repeats, rounds, training in [SLOW] if quick else [SLOW, FAST]:
        comparison = catlog.compare(
            f, problem.distribution, {name: E}, problem.parameters, budget=budget, repeats=repeats,
            rounds=rounds, training=training, reference=reference, seed=1000, progress=False,
        )  # fmt: skip
        if not comparison.rows:
            return row | {"skipped": comparison.skipped[name]}
        (found,) = comparison.rows
        if found.seconds * FAST[0] > 30:
            break
    cells = {column: getattr(found, column) for column in COLUMNS}
    known = {key: cell for key, cell in cells.items() if cell == cell}  # no NaN
    settings = None if isinstance(E, torch.nn.Module) else repr(found.estimator)
    return row | known | {"settings": settings}


@page.section("quality/suite.csv", "problem", "size", "seed", "estimator", digits=6)
def suite(args: Args, table: Table) -> Rows:
    names, sizes = (["xor"], ["small"]) if args.quick else (args.problems, args.sizes)
    for name, size in product(names, sizes):
        problem = problems.make(name, size, 0)
        support = catlog.IndeCateR(2).evaluations(problem.q())
        d = problem.q().event_shape[0]
        for label, (E, f) in entries(problem, d).items():
            if (name, size, 0, label) not in table:
                try:
                    yield [measured(problem, label, E, f, support, args.quick)]
                except ValueError as error:
                    yield [
                        {"problem": name, "size": size, "seed": 0, "estimator": label}
                        | {"skipped": str(error).split(f"{label}: ")[-1]}
                    ]


if __name__ == "__main__":
    page.run()
