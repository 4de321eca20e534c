"""The neighbour table of the paper's DVAE step on a GPU: whole steps timed, kernels checked against float64, their parts timed.

    PYTHONPATH=$PWD/src python3 benchmarks/kernel_study.py            # about 75 s on an H200; CSV in $OUT where set

200 points (2 draws, batch 100), 200 bits, decoder 200-256-384-784: 40,200 rows, 32 GFLOP after the first layer. Steps are timed
on the host clock in blocks of 20; kernels by replays of CUDA graphs that hold 20 calls, variants interleaved, medians. A variant
that fails is reported and left out; what comes after --limit seconds is left out, too.
"""

import argparse
import csv
import functools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from math import log
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import softplus

import catlog
from catlog import kernels
from catlog import triton_kernels as tk
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear

BEGIN = time.perf_counter()
REAL = (2, 100, 200, 256, 384, 784)  # draws, batch, bits, widths
HALF = torch.float16
SETS, CALLS = 4, 20
LIMIT = 80.0
failures: list[str] = []

# Predicted microseconds, before the first run. Measured before it: cuBLAS GEMM2 + GEMM3 in float16 65, copies 4.3 TB/s,
# 770 TFLOP/s dense in 16 bits; kernel B 168 and its small launches 34; a launch in a graph 1.5 to 2.
PREDICTED = {
    # latency: 7 steps of 12 dependent tensor-core instructions, one round trip to memory before and after, one launch
    "E begin": 5,
    # 20 MB of changes written, 4.7 us at 4.3 TB/s, 3 us of instructions, the points' second layer beside it
    "E first": 9,
    # 8 GFLOP, 10 us at the full rate, and 51 MB in and out of L2
    "E second: GEMM": 22,
    # 31 MB read and 31 MB written, mostly in L2; 5 us of instructions; the points' logits beside it
    "E second: after the GEMM": 14,
    # the GEMM's traffic without the epilogue's; 128 x 64 tiles read shared memory 1.75 times as long as they multiply
    "E second: fused, 1": 27,
    # 128 x 128 tiles (1.25 times), but one block of 16 warps a multiprocessor: nothing to do while it waits
    "E second: fused, 2": 28,
    # 24 GFLOP, 31 us at the full rate, and 63 MB written
    "E last: GEMM": 43,
    # 63 MB read, half of it from L2; 10 us of instructions and 8.5 of exponentials beside it
    "E last: after the GEMM": 18,
    # 31 us at the full rate, times 1.25 by shared memory, softplus (10 us) hidden by the other block of the multiprocessor,
    # 8 waves for 7.2; kernel A with masks, cp.async and 12% more columns took 74
    "E last: fused, 1": 52,
    "E last: fused, 2": 54,  # the same, fewer and longer programs
    "E last: fused, 3": 58,  # less traffic (256 x 128), but one block a multiprocessor: softplus not hidden
    "E sum of the parts": 3,
    "table: E, GEMMs by the library": 113,
    "table: E, fused": 98,
    "table: E": 98,
    "table: B": 201,
    "neighbours, compiled: E": 108,
    "step: IndeCateR n=2, E": 325,
    "step: IndeCateR n=2, B": 418,
    "step: IndeCateR n=2, float32": 487,
    "step: RLOO-2": 198,
}


def clock() -> float:
    return time.perf_counter() - BEGIN


def attempt(name: str, action: Callable[[], object]) -> object:
    """The action's result, or None with the error noted, or None where the time is over."""
    if clock() > LIMIT:
        failures.append(f"{name}: no time left")
        return None
    try:
        return action()
    except Exception as error:
        failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        traceback.print_exc(limit=4, file=sys.stdout)
        torch.cuda.synchronize()
        return None


class Problem:
    """A decoder, targets and points, all random; and the operation's arguments."""

    def __init__(
        self, sizes: tuple[int, ...], seed: int, scale: float = 1.0, bias: bool = True, network: nn.Sequential | None = None
    ) -> None:
        n, batch, d, h1, h2, out = sizes
        torch.manual_seed(seed)
        self.network = network or nn.Sequential(
            nn.Linear(d, h1, bias), nn.ReLU(), nn.Linear(h1, h2, bias), nn.ReLU(), nn.Linear(h2, out, bias)
        )
        if network is None:
            with torch.no_grad():
                self.network[0].weight.mul_(scale)
                self.network[4].weight.div_(scale)
                if bias:
                    self.network[0].bias.mul_(scale)
                    self.network[2].bias.mul_(scale)
        self.network.cuda()
        self.targets = (torch.rand(batch, out) < 0.2).float().cuda()
        self.x = (torch.rand(n, batch, d) < 0.5).float().cuda()

    def arguments(self, slots: int | None = None) -> tuple[Tensor | None, ...]:
        first, second, last = (self.network[i].requires_grad_(False) for i in (0, 2, 4))
        layers = [each for layer in (first, second, last) for each in (layer.weight, layer.bias)]
        x = self.x.flatten(0, -2)
        which = None if slots is None else torch.rand(x.shape, device=x.device).argsort(-1)[:, :slots].contiguous()
        offset = self.targets.new_zeros(len(self.targets)) if last.bias is None else self.targets @ last.bias
        return (x, which, *layers, self.targets @ last.weight, offset)


def double(given: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [each if each is None or not each.is_floating_point() else each.double() for each in given]


def reference(given: tuple[Tensor | None, ...]) -> Tensor:
    """The formula in float64, a point at a time."""
    x, which, w1, b1, w2, b2, w3, b3, slope, offset = double(given)
    base, linear = nn.functional.linear(x, w1, b1), nn.functional.linear
    values = []
    for p in range(len(base)):
        bits = torch.arange(x.shape[1], device=x.device) if which is None else which[p]
        moved = torch.cat([base[p] + (1 - 2 * x[p, bits])[:, None] * w1.mT[bits], base[p : p + 1]]).relu()
        hidden = linear(moved, w2, b2).relu()
        b = p % len(slope)
        values.append(softplus(linear(hidden, w3, b3)).sum(-1) - hidden @ slope[b] - offset[b])
    return torch.stack(values)


def poison() -> None:
    """Fill the allocator's free memory with NaN, so that an output that is not written shows."""
    blocks = [torch.full((2**k,), float("nan"), device="cuda") for k in range(8, 26) for _ in range(2)]
    torch.cuda.synchronize()
    del blocks


def error(actual: Tensor, expected: Tensor) -> float:
    value = float((actual.double() - expected).norm() / expected.norm())
    return value if value == value else float("inf")


@contextmanager
def only(second: int | None, last: int | None) -> Iterator[None]:
    """With one configuration of E's second and last layer, which are then not tuned; None: as tuned."""
    lists, known = (tk.SECOND, tk.SUMS), dict(tk.chosen)
    if second is not None and last is not None:
        tk.SECOND, tk.SUMS = [lists[0][min(second, len(lists[0]) - 1)]], [lists[1][min(last, len(lists[1]) - 1)]]
        for key in known:
            if key[0] in ("second", "last"):
                del tk.chosen[key]
    try:
        yield
    finally:
        tk.SECOND, tk.SUMS = lists
        tk.chosen.update(known)


def layers(second: int | None, last: int | None, *given: Tensor | None) -> Tensor:
    with only(second, last):
        return tk.layer_by_layer(*given, HALF)


def on_chip(*given: Tensor | None) -> Tensor:
    return tk.on_chip(*given, HALF)


def check(cases: dict[str, tuple[Problem, int | None]], real: bool) -> dict[str, dict[str, tuple[float, float]]]:
    """Relative errors in norm: of the values, and of the differences to the point's own (which enter the gradient)."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for label, (problem, slots) in cases.items():
        given = problem.arguments(slots)
        expected = reference(given)
        changes = expected[:, :-1] - expected[:, -1:]
        tables = {"E, library": functools.partial(layers, 0, 0), "E, fused 1": functools.partial(layers, 1, 1)}
        if label == "DVAE":
            tables |= {f"E, fused {i}": functools.partial(layers, i, i) for i in range(2, len(tk.SUMS))}
        if real:
            tables |= {"B": on_chip}
        for name, table in tables.items():
            poison()
            values = attempt(f"check {name}, {label}", lambda t=table, g=given: t(*g))
            if isinstance(values, Tensor):
                errors = error(values, expected), error(values[:, :-1] - values[:, -1:], changes)
                found.setdefault(name, {})[label] = errors
                again = attempt(f"check {name}, {label}, again", lambda t=table, g=given: t(*g))
                if isinstance(again, Tensor) and not torch.equal(values, again):
                    failures.append(f"{name}, {label}: two calls differ by {float((values - again).abs().max()):.1e}")
        print(f"checked {label}: {clock():.0f} s", flush=True)
    return found


def gradients() -> dict[str, float]:
    """Relative error of IndeCateR's gradient for the logits, to float64, with f(x) itself in TF32 and in float32."""
    problem = Problem(REAL, seed=5)
    logits = torch.randn_like(problem.x[0])
    results: dict[str, float] = {}
    expected = torch.zeros(())
    cases = [("highest", "float64"), *((m, p) for m in ("high", "highest") for p in ("float32", "E", "B"))]
    for matmul, name in cases:
        torch.set_float32_matmul_precision(matmul)
        kernels.HALF = "on_chip" if name == "B" else "layer_by_layer"
        dtype = torch.float64 if name == "float64" else torch.float32
        network = deepcopy(problem.network).to("cuda", dtype)
        precision = "half" if name in ("E", "B") else "float32"
        f = FirstLayerLinear(network, BernoulliCrossEntropy(problem.targets.to(dtype)), precision=precision)
        theta = logits.to(dtype, copy=True).requires_grad_()  # a leaf of its own: gradients of a shared one add up
        q = Independent(Bernoulli(logits=theta, validate_args=False), 1)
        catlog.IndeCateR(2)(f, q, x=problem.x.to(dtype)).sum().backward()
        assert theta.grad is not None
        if name == "float64":
            expected = theta.grad
        else:
            results[f"{name}{', f(x) in TF32' if matmul == 'high' else ''}"] = error(theta.grad, expected)
    torch.set_float32_matmul_precision("high")
    kernels.HALF = "layer_by_layer"
    return results


def captured(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """A graph of CALLS calls, the given ones in turn."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for call in calls * 2:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()
    return graph


def time_all(graphs: dict[str, torch.cuda.CUDAGraph], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat in range(repeats + 2):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if repeat >= 2:
                times[name].append(start.elapsed_time(end) / CALLS)
    return times


def parts(given: tuple[Tensor | None, ...]) -> dict[str, list[Callable[[], object]]]:
    """E's parts, on one set of inputs: as in the chain, most of what they read is in L2."""
    run = tk.Layers(*given, HALF)
    run.begin()
    run.first()
    run.second_by_library()
    products = torch.mm(run.changes2, run.half3[:784].mT)
    calls: dict[str, Callable[[], object]] = {
        "E begin": run.begin,
        "E first": run.first,
        "E second: GEMM": lambda: torch.mm(run.changes1, run.half2.mT, out=run.changes2),
        "E second: after the GEMM": run.second_after_library,
        "E last: GEMM": lambda: torch.mm(run.changes2, run.half3[:784].mT, out=products),
        "E last: after the GEMM": lambda: run.last_after_library(products),
        "E sum of the parts": lambda: run.parts[:12].sum(0),
    }
    for name, configs, call in (("second", tk.SECOND, run.second_fused), ("last", tk.SUMS, run.last_fused)):
        calls |= {f"E {name}: fused, {i}": functools.partial(call, c) for i, c in enumerate(configs) if c}
    return {name: [call] for name, call in calls.items()}


def variants(problems: list[Problem]) -> dict[str, torch.cuda.CUDAGraph]:
    given = [problem.arguments() for problem in problems]
    calls = parts(given[0])
    tables: dict[str, Callable[..., object]] = {
        "E, GEMMs by the library": functools.partial(layers, 0, 0),
        "E, fused": functools.partial(layers, 1, 1),
        "E": functools.partial(layers, None, None),
        "B": on_chip,
        "E again": functools.partial(layers, None, None),
    }
    for name, table in tables.items():
        calls[f"table: {name}"] = [functools.partial(table, *g) for g in given]

    def neighbours(x: Tensor, targets: Tensor, network: nn.Sequential = problems[0].network) -> Tensor:
        return FirstLayerLinear(network, BernoulliCrossEntropy(targets), precision="half").neighbours(x)

    compiled = torch.compile(neighbours, fullgraph=True, dynamic=False)
    calls["neighbours, compiled: E"] = [functools.partial(compiled, p.x, p.targets) for p in problems]
    graphs = {}
    for name, some in calls.items():
        graph = attempt(name, functools.partial(captured, some))
        if isinstance(graph, torch.cuda.CUDAGraph):
            graphs[name] = graph
    captured.keep = calls  # type: ignore[attr-defined]  # the graphs read these
    print(f"captured: {clock():.0f} s", flush=True)
    return graphs


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Step:
    """The paper's DVAE step, compiled and captured with its optimiser; a precision makes the decoder a FirstLayerLinear."""

    def __init__(self, estimator: Callable[..., Tensor], precision: str | None) -> None:
        torch.manual_seed(0)
        self.encoder, self.decoder = mlp(784, 384, 256, 200).cuda(), mlp(200, 256, 384, 784).cuda()
        self.estimator, self.precision = estimator, precision
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.step = catlog.compiled_step(self.loss, torch.optim.Adam(parameters, 1e-4, fused=True, capturable=True))

    def loss(self, images: Tensor) -> Tensor:
        logits = self.encoder(images)
        q = Independent(Bernoulli(logits=logits, validate_args=False), 1)
        kl = (logits.sigmoid() * logits - softplus(logits) + log(2)).sum(-1)  # to a prior of fair bits

        def black_box(z: Tensor) -> Tensor:
            pixels = self.decoder(z)
            return (softplus(pixels) - pixels * images).sum(-1)

        f: Callable[[Tensor], Tensor] = black_box
        if self.precision is not None:
            f = FirstLayerLinear(self.decoder, BernoulliCrossEntropy(images), precision=self.precision)
        return (self.estimator(f, q) + kl).mean()


def steps() -> dict[str, list[float]]:
    """Whole training steps with IndeCateR n=2, by way of the table, and with RLOO-2 as the floor."""
    images = (torch.rand(100, 784, device="cuda") < 0.2).float()
    ways = {"IndeCateR n=2, E": "half", "RLOO-2": None, "IndeCateR n=2, float32": "float32", "IndeCateR n=2, B": "half"}
    made = {}
    for name, precision in ways.items():
        kernels.HALF = "on_chip" if name.endswith("B") else "layer_by_layer"
        step = Step(catlog.IndeCateR(2) if precision else catlog.RLOO(2), precision).step
        if attempt(f"step: {name}", lambda step=step: (step(images), torch.cuda.synchronize())) is not None:
            made[f"step: {name}"] = step
        print(f"made step: {name} ({step.mode}): {clock():.0f} s", flush=True)
    kernels.HALF = "layer_by_layer"
    times: dict[str, list[float]] = {name: [] for name in made}
    for repeat in range(26):
        for name, step in made.items():
            start = time.perf_counter()
            for _ in range(20):
                step(images)
            torch.cuda.synchronize()
            if repeat:
                times[name].append(50 * (time.perf_counter() - start))
    for name, some in times.items():
        print(f"{name:44}{statistics.median(some):8.4f} ms", flush=True)
    return times


def main() -> None:
    global LIMIT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--limit", type=float, default=LIMIT, help="start nothing more after so many seconds")
    args = parser.parse_args()
    LIMIT = args.limit
    if not torch.cuda.is_available():
        print("kernel_study: needs a GPU.")
        return
    torch.set_float32_matmul_precision("high")

    times: dict[str, list[float]] = attempt("steps", steps) or {}
    real = {f"x {s:g}": (Problem(REAL, seed=i, scale=s), None) for i, s in enumerate((1e5, 1e-5))}
    found = attempt("check", lambda: check({"DVAE": (Problem(REAL, seed=2), None), **real}, real=True)) or {}
    problems = [Problem(REAL, seed=10)]
    problems += [Problem(REAL, seed=11 + i, network=problems[0].network) for i in range(SETS - 1)]
    times |= time_all(attempt("variants", lambda: variants(problems)) or {}, args.repeats)
    gradient = attempt("gradients", gradients) or {}
    odd = {
        "odd": (Problem((3, 7, 13, 33, 67, 51), seed=3), None),
        "chosen": (Problem((1, 3, 300, 64, 130, 208), seed=4, bias=False), 150),
        "d=1": (Problem((2, 5, 1, 40, 130, 70), seed=5), None),
    }
    for name, errors in (attempt("check", lambda: check(odd, real=False)) or {}).items():
        found.setdefault(name, {}).update(errors)

    rows = [
        {
            "what": name,
            "ms": f"{statistics.median(some):.4f}",
            "min": f"{min(some):.4f}",
            "max": f"{max(some):.4f}",
            "predicted": f"{PREDICTED[name] / 1000:.3f}" if name in PREDICTED else "",
        }
        for name, some in times.items()
        if some
    ]
    folder = os.environ.get("OUT")
    if folder:
        with (Path(folder) / "kernel_study.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["what", "ms", "min", "max", "predicted"])
            writer.writeheader()
            writer.writerows(rows)
        with (Path(folder) / "kernel_study.txt").open("w") as file:
            for key, tried in tk.timings.items():
                file.writelines(f"{key} {config} {ms}\n" for config, ms in tried)
            file.write(f"{found}\n{gradient}\n{failures}\n")

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {tk.triton.__version__}")
    print("tuning, real sizes (ms):")
    for key, tried in tk.timings.items():
        if key[2] == (40200).bit_length():
            print(" ", *key)
            for config, ms in tried:
                best = "*" if tk.chosen.get(key) is config else " "
                text = f"{ms:.4f}" if isinstance(ms, float) else ms[:60]
                print(f"   {best} {text}  " + (" ".join(f"{k}={v}" for k, v in config.items()) or "library"))
    print("relative error to float64, values (differences to the point's own value):")
    for name, errors in found.items():
        print(f"  {name:14}" + "; ".join(f"{label} {value:.0e} ({change:.0e})" for label, (value, change) in errors.items()))
    print("IndeCateR's gradient to float64:", "; ".join(f"{name} {value:.1e}" for name, value in gradient.items()))
    for failure in failures:
        print("FAILED", failure)
    print(f"{'ms (median)':44}{'ms':>8}{'min':>8}{'max':>8}{'predicted':>11}")
    for row in rows:
        print(f"{row['what']:44}{row['ms']:>8}{row['min']:>8}{row['max']:>8}{row['predicted']:>11}")
    print(f"{clock():.0f} s in all")


if __name__ == "__main__":
    main()
