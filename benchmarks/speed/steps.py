"""Training steps of the paper's autoencoder and addition, from the batch to the update.

The models are those of `catlog run`. Every method is measured eager and compiled (on a GPU also
captured in a CUDA graph), except the paper's literal formula, which is only eager.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent
from torch.utils.flop_counter import FlopCounterMode

import catlog.functions.kernels  # noqa: F401 (registers the operation that is counted)
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from catlog_experiments import DVAE, Addition
from catlog_experiments.addition import AdditionTask
from catlog_experiments.dvae import DVAETask
from catlog_experiments.named_estimators import takes_one_hot

from ..peers import storchastic_step
from ..turns import spread
from .literal import literal_indecater
from .machine import multiplies
from .timing import Bench, Row


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: the name of the row.
        label: the name of the estimator in `catlog run`.
        settings: further settings of `catlog run`.
        literal: use the paper's literal formula.
        box: pass f as a black box.
        precision: the precision of the table.
        reported: the row is the step time of its label.
    """

    name: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    literal: bool = False
    box: bool = False
    precision: str | None = None
    reported: bool = True


LITERAL, LINEAR = "IndeCateR, literal formula", "IndeCateR, first-layer-linear"
BINARY = [
    Method(LITERAL, "IndeCateR", literal=True, box=True, reported=False),
    Method("IndeCateR, black-box f", "IndeCateR", box=True, reported=False),
    Method(LINEAR, "IndeCateR"),
    Method("IndeCateR, Latin draws", "IndeCateR-Latin"),
    Method("IndeCateR, Taylor, n=8, m=4", "IndeCateR-Taylor"),
    Method(
        "IndeCateR, Taylor, n=20, m=20",
        "IndeCateR-Taylor",
        {"samples": 20, "options": ("variables=20",)},
        reported=False,
    ),
    Method("RLOO-S", "RLOO-S"),
    Method("GS-S", "GS-S"),
    Method("RLOO-F", "RLOO-F"),
    Method("GS-F", "GS-F"),
    Method("SlopeCateR, n=8, m=6", "SlopeCateR"),
]
CATEGORICAL = [
    Method(label, label)
    for label in ("IndeCateR", "IndeCateR-D", "RLOO-S", "GS-S", "RLOO-F", "GS-F")
]
ADDITION = [Method(label, label) for label in ("IndeCateR", "IndeCateR-D", "RLOO-S", "RLOO-F")]


@dataclass(frozen=True)
class Call:
    """An estimator of E[f] as the autoencoder calls it, with fixed draws where they are given."""

    E: Callable[..., Tensor]
    x: Tensor | None = None
    target: str = "expectation"

    def __call__(
        self, f: Callable[[Tensor], Tensor], q: Distribution, x: Tensor | None = None
    ) -> Tensor:
        return self.E(f, q, x=self.x if x is None else x)


class Step(DVAETask):
    """The autoencoder's step, with the f and the estimator of a row."""

    def __init__(self, config: DVAE, method: Method) -> None:
        super().__init__(config)
        self.method = method

    def reconstruction(self, images: Tensor, *, relaxed: bool) -> Any:
        if self.method.precision:
            return FirstLayerLinear(
                self.decoder, BernoulliCrossEntropy(images), precision=self.method.precision
            )
        f = super().reconstruction(images, relaxed=relaxed)
        return (lambda z: f(z)) if self.method.box else f

    @property
    def estimator(self) -> Any:
        return Call(literal_indecater) if self.method.literal else self.E

    def loss(self, index: Tensor) -> Tensor:
        return self.bound(self.train[index], self.estimator, relaxed=takes_one_hot(self.E))

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the first batch in all parameters, from given draws."""
        images = self.train[self.training.index(0)]
        loss = self.bound(images, Call(self.estimator, x), relaxed=False).mean()
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients])


def made(bench: Bench, config: Any, method: Method, compiled: bool) -> Any:
    """Return the task of a row; all rows start from the same weights."""
    torch.manual_seed(0)
    settings = {
        "estimator": method.label,
        "device": bench.device,
        "compile": "yes" if compiled else "no",
    } | method.settings
    config = replace(config, **settings)
    return Step(config, method) if isinstance(config, DVAE) else AdditionTask(config)


def eager(task: Any, i: int = 0) -> None:
    """Make a plain training step, also on a GPU."""
    task.training.optimiser.zero_grad()
    task.loss(task.training.index(i % task.training.per_epoch)).mean().backward()
    task.training.optimiser.step()


def counter() -> FlopCounterMode:
    """Return a counter of products, which counts all products of the fused kernel, too."""

    def table(
        x: Any, which: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, *_: Any, **__: Any
    ) -> int:
        return int(
            2 * x[0] * ((x if which is None else which)[1] + 1) * (w2[0] * w2[1] + w3[0] * w3[1])
        )

    return FlopCounterMode(display=False, custom_mapping={torch.ops.catlog.bernoulli_table: table})


def gigaflop(task: Any) -> float:
    with counter() as flops:
        eager(task)
    return flops.get_total_flops() / 1e9


def evaluations(task: Any, method: Method) -> int:
    """Return the evaluations of f per estimate."""
    if method.literal:
        return 2 + 2 * 2 * int(task.config.variables)
    if isinstance(task, Step):
        q = task.distribution(task.encoder(task.train[:1]), relaxed=False)
    else:
        q = Independent(Categorical(logits=torch.zeros(task.config.digits, 10)), 1)
    return int(task.E.evaluations(q))


def measured(
    bench: Bench,
    problem: str,
    config: Any,
    methods: list[Method],
    peer_steps: Mapping[int, Callable[[], object]] | None = None,
) -> list[Row]:
    """Measure all methods and modes of a problem in turn, with storchastic's steps (by draws)."""
    calls: dict[str, Callable[[], object]] = {}
    rows: dict[str, Row] = {}
    for n, call in (peer_steps or {}).items():
        name = f"storchastic, score function, n={n}"
        calls[name] = call
        rows[name] = {"problem": problem, "method": name, "mode": "eager", "evaluations": n}
    for mode, method in product(bench.modes, methods):
        if mode != "eager" and method.literal:
            continue
        task = made(bench, config, method, mode != "eager")
        call = partial(eager, task) if mode == "eager" else partial(task.step, 1)
        if mode == "eager":
            call()  # allocates Adam's moments, which the peak does not include
        key = f"{method.name}/{mode}"
        calls[key], peak = call, bench.peak_mib(call)
        shown = mode if mode == "eager" else task.training.compiled.mode
        gflop = gigaflop(task) if mode == "eager" else rows[f"{method.name}/eager"]["gflop"]
        rows[key] = {
            "problem": problem,
            "method": method.name,
            "mode": shown,
            "evaluations": evaluations(task, method),
        }
        rows[key] |= {"gflop": gflop, "peak_mib": peak}
        if mode == bench.modes[-1] and method.reported:
            rows[key]["label"] = method.label
        print(f"  {problem}: {method.name}, {shown}", flush=True)
    times = bench.turns(calls, least=0.05 if bench.cuda else 0.0)
    for key, row in rows.items():
        row |= spread(times[key])
    reported = [row for row in rows.values() if "label" in row]
    bench.step_times.extend(
        {"problem": problem, "method": row["label"], "ms": row["ms"], "mode": row["mode"]}
        for row in reported
    )
    del calls
    gc.collect()
    return list(rows.values())


def finished(rows: list[Row], against: str) -> list[Row]:
    """Return the rows with `ratio`, the time of the method ``against`` over theirs."""
    names = ["problem", "method", "mode", "evaluations", "gflop", "ms", "ms_min", "ms_max"]
    names += ["ratio", "peak_mib", "gradient_error"]
    reference = {row["problem"]: row["ms"] for row in reversed(rows) if row["method"] == against}
    for row in rows:
        row["ratio"] = reference[row["problem"]] / row["ms"]
    return [{name: row.get(name) for name in names} for row in rows]


def dvae(bench: Bench) -> list[Row]:
    """Measure the paper's step: batch 100, 200 bits, Adam, n=2. `ratio`: literal / this."""
    config, methods = DVAE(test_samples=1, gradient_repeats=0), list(BINARY)
    if bench.quick:
        config, methods = replace(config, batch=4, variables=170), methods[:8]
    if bench.cuda:
        plain = Method(f"{LINEAR}, float32", "IndeCateR", precision="float32", reported=False)
        methods.insert(3, plain)
    rows = measured(bench, "dvae", config, methods, peers(bench))
    errors = gradient_errors(
        bench, config, [method for method in methods if method.label == "IndeCateR"]
    )
    for row in rows:
        row["gradient_error"] = errors.get(row["method"]) if row["mode"] == "eager" else None
    return finished(rows, LITERAL)


def gradient_errors(bench: Bench, config: DVAE, methods: list[Method]) -> dict[str, float]:
    """Return the relative distances of gradients from the literal formula's, on the same draws."""
    tasks = {method.name: made(bench, config, method, False) for method in methods}
    x = torch.bernoulli(torch.full((2, config.batch, config.variables), 0.5, device=bench.device))
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    expected = tasks[LITERAL].gradient(x)
    torch.set_float32_matmul_precision(allowed)
    return {
        name: float((task.gradient(x) - expected).norm() / expected.norm())
        for name, task in tasks.items()
    }


def peers(bench: Bench) -> dict[int, Callable[[], object]]:
    """Return storchastic's step with its score-function estimator by draws, if it is installed."""
    images = (torch.rand(100, 784, device=bench.device) < 0.2).float()
    steps = {n: storchastic_step(n, bench.device) for n in ([] if bench.quick else [2, 800])}
    return {n: partial(step, images) for n, step in steps.items() if step is not None}


def categorical(bench: Bench) -> list[Row]:
    """Measure 200 variables of 10 categories, IndeCateR n=1. `ratio`: eager IndeCateR / this."""
    config, methods = DVAE(categories=10, test_samples=1, gradient_repeats=0), CATEGORICAL
    if not bench.cuda:
        config = replace(config, batch=20)
    if bench.quick:
        config, methods = replace(config, batch=2, variables=10), methods[:4]
    return finished(measured(bench, "dvae, 10 categories", config, methods), "IndeCateR")


def addition(bench: Bench) -> list[Row]:
    """Measure the sum of digits, batch 10, IndeCateR n=10. `ratio`: eager IndeCateR / this."""
    rows = []
    for digits in (2,) if bench.quick else bench.digits:
        rows += measured(bench, f"addition, {digits} digits", Addition(digits=digits), ADDITION)
    return finished(rows, "IndeCateR")


def ceilings(bench: Bench) -> list[Row]:
    """Measure the machine: a large matrix product and a large copy."""
    n = 256 if bench.quick else 8192 if bench.cuda else 2048
    calls: dict[str, Callable[[], object]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        if not (bench.cuda or multiplies(str(dtype)[6:])):
            print(f"  product, {str(dtype)[6:]}: not available on this machine")
            continue
        a, b = torch.randn(2, n, n, device=bench.device).to(dtype)
        calls[f"product, {str(dtype)[6:]}"] = partial(torch.mm, a, b, out=torch.empty_like(a))
    source = torch.zeros(
        2**20 if bench.quick else 2**30 if bench.cuda else 2**26, device=bench.device
    )
    calls["copy"] = partial(torch.empty_like(source).copy_, source)
    amount = {name: (8 * source.numel() if name == "copy" else 2 * n**3) / 1e9 for name in calls}
    times = bench.turns(calls)
    rows = []
    for name, seconds in times.items():
        operands = "TF32" if bench.cuda and name == "product, float32" else None
        size, unit = (source.numel(), "GB/s") if name == "copy" else (n, "GFLOP/s")
        rate = amount[name] / min(seconds)
        row = {"what": name, "size": size, "operands": operands, **spread(seconds)}
        rows.append({**row, "rate": rate, "unit": unit})
    return rows
