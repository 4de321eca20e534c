"""The bias of every estimator as the test battery judges it, and two random networks.

    python -m benchmarks.estimators                  # results/quality/estimators.csv
    python -m benchmarks.estimators --only bias --names RLOO

"bias": a row per setting and distribution of the battery (`catlog.testing`), with its cases,
functions and judge. `how` "enumeration": the largest absolute error of the expectation, a finite
sum over all outcomes of the sampler, over three functions. "z-test", where the noise is continuous
or the draws are not draws of q: the largest z-score of the mean over 20,000 estimates, with another
seed than the battery's. `unbiased` is the verdict from that number alone. VIMCO is compared with
its own target, the bound.

"networks": variance, bias and time at about 40 evaluations. f is a random network with one hidden
layer, q has random logits: 20 bits, or 8 one-hot variables of 5 categories. `variance` is relative
to the squared norm of the exact gradient, `bias` (corrected for noise) and `bias_noise` to the
norm; `ms` is the time per estimate for a batch of 200, `merit` is variance x evaluations.
"""

from math import log
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

import catlog
from catlog.estimators import ESTIMATORS
from catlog.testing import (
    CASES,
    FUNCTIONS,
    PARAMETER,
    Case,
    battery,
    expectation,
    expected,
    outcomes,
    z_limit,
    z_scores,
)
from catlog.testing.settings import VARIANTS, continuous

from .measuring import Args, Page, Row, Rows, Table, moments

page = Page(__doc__, names=list(ESTIMATORS))
KEY = ("estimator", "settings", "problem")
LARGEST_ERROR = 1e-10
LIMIT = z_limit(3 * 7)  # three functions; a value and at most six derivatives
SEED = 20240601
BUDGET, BATCH, HIDDEN = 40, 200, 32
MOVING_AVERAGE = "moving average"
# Settings that are measured on networks in place of the defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Reinforce": [{}, {"baseline": MOVING_AVERAGE}],
    "IndeCateR": [
        {}, {"sampling": "latin"}, {"variables": 1}, {"variables": 4, "sampling": "latin"}
    ],
    "SumAndSample": [{"top": BUDGET // 2}],
    "MAPO": [{"size": BUDGET // 2}],
    "GumbelSoftmax": [{"temperature": 0.5}, {"temperature": 0.5, "hard": True}],
    "GumbelRao": [{"temperature": 0.5}],
    "DARN": [{"order": 1}, {"order": 2}],
}  # fmt: skip


def text_of(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


def bound_case(case: Case, rows: int) -> Case:
    """Return the joint distribution of ``rows`` independent draws as a case."""
    return Case(
        case.name,
        case.theta,
        lambda theta: Independent(case.distribution(theta.expand(rows, *theta.shape)), 1),
        outcomes(case, rows)[0].movedim(0, 1),
        case.features,
    )


def expectation_error(E: Any, case: Case) -> float:
    """Return the largest absolute error in expectation, of the value and of all gradients."""
    errors = []
    for f in FUNCTIONS.values():
        ours = expectation(E, case, f, PARAMETER)
        target, g = case, f
        if E.target == "bound":
            n = E.samples
            target = bound_case(case, n)
            g = lambda x, c, f=f, n=n: f(x, c).logsumexp(-1) - log(n)  # noqa: E731
        exact = expected(target, g, PARAMETER)
        errors += [(a - b).abs().max().item() for a, b in zip(ours, exact, strict=True)]
    return max(errors)


def judged(name: str, options: dict[str, Any], kind: str) -> Row | None:
    """Return the row of one setting on one case; None where the setting does not apply."""
    torch.manual_seed(0)
    E, case = ESTIMATORS[name](**options), CASES[kind]
    if isinstance(E, torch.nn.Module):
        E = E.double()
    if not battery.takes(E, case) or not battery.few_outcomes(E, case):
        return None
    if continuous(E) and kind == "integers":  # noise as for one-hot
        return None
    row: Row = {"estimator": name, "settings": text_of(options), "problem": f"tests: {case.name}"}
    if continuous(E):
        generator = torch.Generator().manual_seed(SEED)

        def reseeded(f: Any, q: Distribution, **_: object) -> Tensor:
            return E(f, q, generator=generator)

        z = max(z_scores(reseeded, case, f).max().item() for f in FUNCTIONS.values())
        return row | {"how": "z-test", "z": z, "unbiased": "yes" if z < LIMIT else "no"}
    error = expectation_error(E, case)
    verdict = "yes" if error < LARGEST_ERROR else "no"
    return row | {"how": "enumeration", "error": error, "unbiased": verdict}


@page.section("quality/estimators.csv", *KEY)
def bias(args: Args, table: Table) -> Rows:
    for name in args.names:
        kinds = ["bits"] if args.quick else ["bits", "integers", "one-hot"]
        settings = VARIANTS[name][: 1 if args.quick else None]
        rows = [judged(name, options, kind) for options in settings for kind in kinds]
        yield [row for row in rows if row is not None]


def network(shape: tuple[int, ...]) -> tuple[Any, Any, Tensor, Tensor]:
    """Return a random network, the law of its variables, their logits and the exact gradient."""
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(logits.numel(), HIDDEN, generator=generator) * 2 / shape[0] ** 0.5
    shift, last = torch.randn(2, HIDDEN, generator=generator)

    def f(x: Tensor, flat: int = len(shape)) -> Tensor:
        w, b, v = (weight.to(x.dtype) for weight in (first, shift, last / HIDDEN**0.5))
        return (x.flatten(-flat) @ w + b).tanh() @ v + 1

    def law(y: Tensor) -> Distribution:
        base = Bernoulli if len(shape) == 1 else OneHotCategorical
        return Independent(base(logits=y, validate_args=False), 1)

    wide = logits.double().requires_grad_()
    catlog.Exact(chunk_size=2**15)(f, law(wide)).backward()
    assert wide.grad is not None
    return f, law, logits.requires_grad_(), wide.grad


def entrants(name: str) -> dict[str, catlog.Estimator]:
    """Return the settings of an estimator that are measured, by their text."""
    listed = {}
    for options in SETTINGS.get(name, [{}]):
        made = dict(options)
        if made.get("baseline") == MOVING_AVERAGE:
            made["baseline"] = catlog.estimators.MovingAverageBaseline()
        torch.manual_seed(0)
        listed[text_of(options)] = ESTIMATORS[name](**made)
    return listed


@page.section("quality/estimators.csv", *KEY)
def networks(args: Args, table: Table) -> Rows:
    big, small = {"20 bits": (20,), "8 one-hot variables of 5": (8, 5)}, {"4 bits": (4,)}
    repeats, rounds, training = (20, 1, 3) if args.quick else (10_000, 50, 200)
    for problem, shape in (small if args.quick else big).items():
        f, law, logits, exact = network(shape)
        square, rows = float(exact.square().sum()), []
        for name in args.names:
            for settings, E in entrants(name).items():
                key: Row = {"estimator": name, "settings": settings, "problem": problem}
                if E.target != "expectation":
                    E = ESTIMATORS[name](BUDGET)
                    found = moments(E, f, law, [logits], repeats)
                    relative = found.variance / float(found.mean.square().sum())
                    rows.append(key | {"evaluations": BUDGET, "variance": relative})
                    continue
                batch = logits.detach().expand(1 if args.quick else BATCH, *shape).clone()
                timed = catlog.compare(
                    f, law, {name: E}, [batch.requires_grad_()], repeats=2, rounds=rounds,
                    training=training, budget=None if name == "Exact" else BUDGET, progress=False,
                    reference=exact.expand_as(batch),
                )  # fmt: skip
                measured = catlog.compare(
                    f, law, {name: timed.rows[0].estimator}, [logits], rounds=1, training=training,
                    repeats=repeats, reference=exact, progress=False,
                ).rows[0] if timed.rows else None  # fmt: skip
                if measured is None:  # no setting of it is below the budget
                    continue
                row = key | {"evaluations": measured.evaluations}
                row |= {"variance": measured.variance / square, "bias": measured.bias / square**0.5}
                row |= {"bias_noise": measured.bias_error / square**0.5, "z": measured.largest_z}
                row["ms"] = 1000 * timed.rows[0].seconds / len(batch)
                row["merit"] = row["variance"] * row["evaluations"]
                row |= {"trained": measured.trained, "repeats": measured.repeats}
                rows.append(row)
        yield rows


if __name__ == "__main__":
    page.run()
