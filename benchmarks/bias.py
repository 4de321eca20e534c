"""The bias of every estimator, as the test battery judges it.

    python -m benchmarks.bias             # minutes; writes results/quality/estimators.csv
    python -m benchmarks.bias --quick     # some seconds; writes only to a given --output

One row per setting and distribution of the battery (`catlog.testing`), with its cases, functions
and judge. `how` "enumeration": the largest absolute error of the estimator's expectation, a finite
sum over all outcomes of its sampler, over three functions. "z-test", where the noise is continuous
or the draws are not draws of q: the largest z-score of the mean over 20,000 estimates, with another
seed than the battery's. `unbiased` is the verdict from that number alone. VIMCO is compared with
its own target, the bound. The file's rows of networks are written by `python -m benchmarks.quality
networks`.
"""

from itertools import product
from math import log

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

import catlog
from catlog.estimators import ESTIMATORS
from catlog.core.evaluator import Function
from catlog.core.categories import Kind
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expectation, expected, outcomes
from catlog.testing.battery import few_outcomes, takes, z_limit, z_scores
from catlog.testing.settings import VARIANTS, continuous

from .command_line import opened, table_parser
from .settings import NETWORK, Options, make_estimator, options_text
from .tables import Row

LARGEST_ERROR = 1e-10
LIMIT = z_limit(3 * 7)  # three functions; a value and at most six derivatives
SEED = 20240601
# Settings that are judged besides those of the battery.
FURTHER: dict[str, list[Options]] = {
    "NVIL": [{"samples": 2, "network": NETWORK}],
    "RELAX": [{"samples": 2, "network": NETWORK}],
    "RODEO": [{"samples": 2, "alpha": 0.3, "beta": -0.4, "network": NETWORK}],
}


def bound_case(case: Case, rows: int) -> Case:
    """Return the joint distribution of ``rows`` independent draws as a case."""
    return Case(
        case.name,
        case.theta,
        lambda theta: Independent(case.distribution(theta.expand(rows, *theta.shape)), 1),
        outcomes(case, rows)[0].movedim(0, 1),
        case.features,
    )


def expectation_error(E: catlog.Estimator, case: Case) -> float:
    """Return the largest absolute error in expectation, of the value and of all gradients."""
    errors = []
    for f in FUNCTIONS.values():
        ours = expectation(E, case, f, PARAMETER)
        target, g = case, f
        if E.target == "bound":
            n = E.rows(case.distribution(case.theta))
            target = bound_case(case, n)
            g = lambda x, c, f=f, n=n: f(x, c).logsumexp(-1) - log(n)  # noqa: E731
        exact = expected(target, g, PARAMETER)
        errors += [(a - b).abs().max().item() for a, b in zip(ours, exact, strict=True)]
    return max(errors)


def judge(name: str, options: Options, case: Case) -> Row | None:
    """Return the row of one setting on one case; None where the setting does not apply."""
    E = make_estimator(name, options, case.distribution(case.theta), torch.float64)
    if not takes(E, case) or not few_outcomes(E, case):
        return None
    if continuous(E) and case.kind == Kind.INDEX:  # noise as for one-hot
        return None
    row: Row = {
        "estimator": name,
        "settings": options_text(options),
        "problem": f"tests: {case.name}",
    }
    if continuous(E):
        generator = torch.Generator().manual_seed(SEED)

        def reseeded(f: Function, q: Distribution, **_: object) -> Tensor:
            return E(f, q, generator=generator)

        z = max(z_scores(reseeded, case, f).max().item() for f in FUNCTIONS.values())
        is_unbiased = z < LIMIT
        row |= {"how": "z-test", "z": z}
    else:
        error = expectation_error(E, case)
        is_unbiased = error < LARGEST_ERROR
        row |= {"how": "enumeration", "error": error}
    return row | {"unbiased": "yes" if is_unbiased else "no"}


def judge_all(name: str, quick: bool) -> list[Row]:
    """Return the rows of all settings of one estimator."""
    settings = VARIANTS[name] + FURTHER.get(name, [])
    kinds = ["bits"] if quick else ["bits", "integers", "one-hot"]
    pairs = product(settings[:1] if quick else settings, kinds)
    rows = [judge(name, options, CASES[kind]) for options, kind in pairs]
    return [row for row in rows if row is not None]


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument(
        "--names",
        nargs="+",
        choices=list(ESTIMATORS),
        default=list(ESTIMATORS),
        help="judge these; other rows of the file stay",
    )
    args, table = opened(parser, "quality/estimators.csv", "estimator", "problem")
    for name in args.names:
        table.add(judge_all(name, args.quick), name)


if __name__ == "__main__":
    main()
