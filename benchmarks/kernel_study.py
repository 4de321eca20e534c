"""The neighbour table of the paper's DVAE step on a GPU: every kernel checked against float64, then timed.

    PYTHONPATH=$PWD/src python3 benchmarks/kernel_study.py            # about 90 s on an H200; CSV in $OUT where set

200 points (2 draws, batch 100), 200 bits, decoder 200-256-384-784: 40,200 rows, 32 GFLOP after the first layer. Times are
medians of replays of CUDA graphs that hold 20 calls on four sets of inputs in turn, variants interleaved. A variant that
fails is reported and left out.
"""

import argparse
import csv
import functools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
from catlog import kernels
from catlog import triton_kernels as tk
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear

BEGIN = time.perf_counter()
REAL = (2, 100, 200, 256, 384, 784)  # draws, batch, bits, widths
CHECKED = {"DVAE": REAL, "odd": (3, 7, 13, 33, 67, 51), "d=1": (2, 5, 1, 40, 130, 70), "small tiles": (1, 3, 300, 64, 64, 128)}
SETS, CALLS = 4, 20
failures: list[str] = []


def attempt(name: str, action: Callable[[], object]) -> object:
    """The action's result, or None with the error noted."""
    try:
        return action()
    except Exception as error:
        failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        traceback.print_exc(limit=4, file=sys.stdout)
        torch.cuda.synchronize()
        return None


class Problem:
    """A decoder, targets and points, all random; and the operation's arguments."""

    def __init__(self, sizes: tuple[int, ...], seed: int, scale: float = 1.0, network: nn.Sequential | None = None) -> None:
        n, batch, d, h1, h2, out = sizes
        torch.manual_seed(seed)
        self.network = network or nn.Sequential(nn.Linear(d, h1), nn.ReLU(), nn.Linear(h1, h2), nn.ReLU(), nn.Linear(h2, out))
        if network is None:
            with torch.no_grad():
                self.network[0].weight.mul_(scale)
                self.network[0].bias.mul_(scale)
                self.network[2].bias.mul_(scale)
                self.network[4].weight.div_(scale)
        self.network.cuda()
        self.targets = (torch.rand(batch, out) < 0.2).float().cuda()
        self.x = (torch.rand(n, batch, d) < 0.5).float().cuda()

    def f(self, precision: str) -> FirstLayerLinear:
        return FirstLayerLinear(self.network, BernoulliCrossEntropy(self.targets), precision=precision)

    def arguments(self) -> tuple[Tensor | None, ...]:
        first, second, last = (self.network[i].requires_grad_(False) for i in (0, 2, 4))
        layers = [each for layer in (first, second, last) for each in (layer.weight, layer.bias)]
        return (self.x.flatten(0, -2), None, *layers, self.targets @ last.weight, self.targets @ last.bias)


def double(given: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [each if each is None or not each.is_floating_point() else each.double() for each in given]


def reference(given: tuple[Tensor | None, ...]) -> Tensor:
    """The formula in float64, a few points at a time."""
    x, _, w1, b1, w2, b2, w3, b3, slope, offset = double(given)
    base, linear = nn.functional.linear(x, w1, b1), nn.functional.linear
    values = []
    for p in range(len(base)):
        moved = torch.cat([base[p] + (1 - 2 * x[p])[:, None] * w1.mT, base[p : p + 1]]).relu()
        hidden = linear(moved, w2, b2).relu()
        b = p % len(slope)
        values.append(nn.functional.softplus(linear(hidden, w3, b3)).sum(-1) - hidden @ slope[b] - offset[b])
    return torch.stack(values)


def poison() -> None:
    """Fill the allocator's free memory with NaN, so that an output that is not written shows."""
    blocks = [torch.full((2**k,), float("nan"), device="cuda") for k in range(8, 26) for _ in range(2)]
    torch.cuda.synchronize()
    del blocks


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


TABLES: dict[str, Callable[..., Tensor]] = {
    "C tf32 (D + A)": lambda *a: tk.through_memory(*a, None),
    "C bf16 (D + A)": lambda *a: tk.through_memory(*a, torch.bfloat16),
    "B half": lambda *a: tk.on_chip(*a, torch.float16),
    "B bf16": lambda *a: tk.on_chip(*a, torch.bfloat16),
}


def with_configs(index: int, action: Callable[[], Tensor]) -> Tensor:
    """The action with only the index-th (or last) configuration of every kernel, which is then not tuned."""
    lists = {name: getattr(tk, name) for name in ("REST", "HIDDEN", "LAST")}
    try:
        for name, configs in lists.items():
            setattr(tk, name, [configs[min(index, len(configs) - 1)]])
        return action()
    finally:
        for name, configs in lists.items():
            setattr(tk, name, configs)


def check() -> dict[str, dict[str, float]]:
    """Relative errors in norm: of the values, and of the differences to the point's own (which enter the gradient).

    All configurations at the real sizes (the worst is kept), the first one elsewhere.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in TABLES}
    cases = [(k, v, 1.0) for k, v in CHECKED.items()] + [("x 1e5", REAL, 1e5), ("x 1e-5", REAL, 1e-5)]
    for seed, (label, sizes, scale) in enumerate(cases):
        given = Problem(sizes, seed=seed, scale=scale).arguments()
        expected = reference(given)
        changes = expected[:, :-1] - expected[:, -1:]
        hidden = torch.randn(1001, sizes[4], device="cuda").relu()
        exact = nn.functional.softplus(nn.functional.linear(*double((hidden, given[6], given[7])))).sum(-1)
        for name, table in TABLES.items():
            several = range(max(len(tk.REST), len(tk.HIDDEN), len(tk.LAST)) if label == "DVAE" and "bf16" not in name else 1)
            for index in several:
                poison()
                values = attempt(f"{name}, {label}, {index}", lambda i=index, t=table, g=given: with_configs(i, lambda: t(*g)))
                if isinstance(values, Tensor):
                    errors = found[name]
                    errors[label] = max(errors.get(label, 0.0), nan_is_bad(error(values, expected)))
                    errors[label + " differences"] = max(
                        errors.get(label + " differences", 0.0),
                        nan_is_bad(error(values[:, :-1] - values[:, -1:], changes)),
                    )
        poison()
        values = attempt(f"A, {label}", lambda h=hidden, g=given: with_configs(0, lambda: kernels.softplus_sum(h, g[6], g[7])))
        if isinstance(values, Tensor):
            found.setdefault("A tf32", {})[label] = nan_is_bad(error(values, exact))
        print(f"checked {label}: {time.perf_counter() - BEGIN:.0f} s", flush=True)
    return found


def nan_is_bad(value: float) -> float:
    return value if value == value else float("inf")


def gradients() -> dict[str, float]:
    """Relative error of IndeCateR's gradient for the logits, to float64, with f(x) itself in TF32 and in float32."""
    problem = Problem(REAL, seed=5)
    logits = torch.randn(100, 200, device="cuda")
    results: dict[str, float] = {}
    expected = torch.zeros(())
    cases = [("highest", "float64"), *((m, p) for m in ("high", "highest") for p in ("float32", *kernels.PRECISIONS))]
    for matmul, name in cases:
        torch.set_float32_matmul_precision(matmul)
        dtype = torch.float64 if name == "float64" else torch.float32
        network = nn.Sequential(nn.Linear(200, 256), nn.ReLU(), nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 784))
        network.load_state_dict(problem.network.state_dict())
        network.to("cuda", dtype)
        precision = "float32" if name == "float64" else name
        f = FirstLayerLinear(network, BernoulliCrossEntropy(problem.targets.to(dtype)), precision=precision)
        theta = logits.to(dtype).requires_grad_()
        q = Independent(Bernoulli(logits=theta, validate_args=False), 1)
        catlog.IndeCateR(2)(f, q, x=problem.x.to(dtype)).sum().backward()
        assert theta.grad is not None
        if name == "float64":
            expected = theta.grad
        else:
            results[f"{name}{', f(x) in TF32' if matmul == 'high' else ''}"] = error(theta.grad, expected)
    torch.set_float32_matmul_precision("high")
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


def bf16_as_half(*given: Tensor | None) -> Tensor:
    for key, config in list(tk.chosen.items()):
        if key[:2] == ("on_chip", torch.float16):
            tk.chosen.setdefault(("on_chip", torch.bfloat16, *key[2:]), config)
    return TABLES["B bf16"](*given)


def variants() -> dict[str, torch.cuda.CUDAGraph]:
    problems = [Problem(REAL, seed=10)]
    problems += [Problem(REAL, seed=11 + i, network=problems[0].network) for i in range(SETS - 1)]
    given = [problem.arguments() for problem in problems]
    hidden = [torch.randn(40200, 384, device="cuda").relu() for _ in range(SETS)]
    first = [torch.randn(40200, 256, device="cuda").relu() for _ in range(SETS)]
    w2, w3 = given[0][4], given[0][6]
    out2, out3 = torch.empty(40200, 384, device="cuda"), torch.empty(40200, 784, device="cuda")

    def halves(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [each.to(dtype) for each in tensors]

    def each(call: Callable[..., object], *lists: list[object]) -> list[Callable[[], object]]:
        return [functools.partial(call, *items) for items in zip(*lists, strict=True)]

    calls: dict[str, list[Callable[[], object]]] = {
        "GEMM2 + GEMM3 alone, cuBLAS TF32": each(
            lambda a, b: (torch.mm(a, w2.mT, out=out2), torch.mm(b, w3.mT, out=out3)), first, hidden
        )
    }
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        v2, v3, o2, o3 = halves([w2, w3, out2, out3], dtype)
        calls[f"GEMM2 + GEMM3 alone, cuBLAS {name}"] = each(
            lambda a, b, v2=v2, v3=v3, o2=o2, o3=o3: (torch.mm(a, v2.mT, out=o2), torch.mm(b, v3.mT, out=o3)),
            halves(first, dtype), halves(hidden, dtype),
        )  # fmt: skip
    calls["last layer: GEMM3 alone, cuBLAS TF32"] = each(lambda b: torch.mm(b, w3.mT, out=out3), hidden)
    calls["last layer: A tf32"] = each(lambda h: tk.last_layer(h, w3, given[0][7]), hidden)
    calls["last layer: A bf16"] = each(
        lambda h, w=w3.bfloat16(): tk.last_layer(h, w, given[0][7]), halves(hidden, torch.bfloat16)
    )
    bases = [(tk.linear(g[0], g[2], g[3]), g[2].mT.contiguous(), *g[:2], *g[4:6], g[8]) for g in given]
    calls["second layer: D tf32"] = [functools.partial(tk.hidden, *each) for each in bases]
    calls["the points alone: 3 layers in float32"] = [
        functools.partial(
            lambda x, w1, b1, w2, b2, w3, b3: tk.linear(tk.linear(tk.linear(x, w1, b1), w2, b2, True), w3, b3, True),
            g[0], *g[2:8],
        )
        for g in given
    ]  # fmt: skip
    for name, table in TABLES.items():
        calls[f"table: {name}"] = [functools.partial(table, *g) for g in given]
        if name == "B bf16":  # as tuned for half, to save compilations
            calls[f"table: {name}"] = [functools.partial(bf16_as_half, *g) for g in given]
    calls["table: B half again"] = calls["table: B half"]
    for precision in ("float32", "tf32", "half"):
        functions = [problem.f(precision) for problem in problems]

        def neighbours(x: Tensor, targets: Tensor, f: FirstLayerLinear = functions[0]) -> Tensor:
            return FirstLayerLinear(f.network, BernoulliCrossEntropy(targets), precision=f.precision).neighbours(x)

        compiled = torch.compile(neighbours, fullgraph=True, dynamic=False)
        name = "Inductor (as now)" if precision == "float32" else precision
        calls[f"neighbours, compiled: {name}"] = [functools.partial(compiled, p.x, p.targets) for p in problems]
    graphs = {}
    for name, some in calls.items():
        begin = time.perf_counter()
        graph = attempt(name, functools.partial(captured, some))
        if isinstance(graph, torch.cuda.CUDAGraph):
            graphs[name] = graph
        print(f"captured {name}: {time.perf_counter() - begin:.1f} s", flush=True)
    captured.keep = (calls, given, hidden, first, problems)  # type: ignore[attr-defined]  # the graphs read these
    return graphs


def steps(limit: float) -> dict[str, float]:
    """Whole training steps of dvae_step.py, IndeCateR n=2, by precision, while there is time."""
    sys.path.insert(0, str(Path(__file__).parent))
    import dvae_step

    torch.set_float32_matmul_precision("high")
    images = (torch.rand(100, 784, device="cuda") < 0.2).float()
    made = {}
    for precision in ("half", "float32", "tf32", None):
        if time.perf_counter() - BEGIN > limit:
            print(f"no time left for the step with {precision}")
            continue

        def make(network: nn.Sequential, head: nn.Module, precision: str = precision or "float32") -> FirstLayerLinear:
            return FirstLayerLinear(network, head, precision=precision)

        dvae_step.FirstLayerLinear = make
        name = f"step: IndeCateR n=2, {precision}" if precision else "step: RLOO-2"
        step = dvae_step.Step(catlog.IndeCateR(2) if precision else catlog.RLOO(2), precision is not None, "cuda")
        if attempt(name, lambda step=step: (step(images), torch.cuda.synchronize())) is not None:
            made[name] = step
    times: dict[str, list[float]] = {name: [] for name in made}
    for repeat in range(16):
        for name, step in made.items():
            start = time.perf_counter()
            for _ in range(20):
                step(images)
            torch.cuda.synchronize()
            if repeat:
                times[name].append(50 * (time.perf_counter() - start))
    return {name: statistics.median(some) for name, some in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--step-limit", type=float, default=80.0, help="start no further whole step after so many seconds")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("kernel_study: needs a GPU.")
        return
    torch.set_float32_matmul_precision("high")
    torch.set_grad_enabled(True)

    found = attempt("check", check) or {}
    print(f"checked after {time.perf_counter() - BEGIN:.0f} s", flush=True)
    gradient = attempt("gradients", gradients) or {}
    graphs = attempt("variants", variants) or {}
    times = time_all(graphs, args.repeats)
    print(f"timed after {time.perf_counter() - BEGIN:.0f} s", flush=True)
    whole = attempt("steps", lambda: steps(args.step_limit)) or {}

    rows = [
        {"what": name, "ms": f"{statistics.median(t):.4f}", "min": f"{min(t):.4f}", "max": f"{max(t):.4f}"}
        for name, t in times.items()
    ] + [{"what": name, "ms": f"{ms:.4f}", "min": "", "max": ""} for name, ms in whole.items()]
    folder = os.environ.get("OUT")
    if folder:
        with (Path(folder) / "kernel_study.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["what", "ms", "min", "max"])
            writer.writeheader()
            writer.writerows(rows)
        with (Path(folder) / "kernel_study.txt").open("w") as file:
            for key, tried in tk.timings.items():
                file.writelines(f"{key} {config} {ms}\n" for config, ms in tried)
            file.write(f"{found}\n{gradient}\n{failures}\n")

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {tk.triton.__version__}")
    print("tuning, real sizes (ms, eager launches):")
    for key, tried in tk.timings.items():
        if key[-1] in (384, 784) and key[2] == (40200).bit_length():
            print(" ", *key)
            for config, ms in tried:
                best = "*" if tk.chosen.get(key) is config else " "
                text = f"{ms:.4f}" if isinstance(ms, float) else ms[:60]
                print(f"   {best} {text}  " + " ".join(f"{k}={v}" for k, v in config.items()))
    print("relative error to float64, values (differences to the point's own value):")
    for name, errors in found.items():
        parts = [
            f"{label} {value:.0e}" + (f" ({errors[label + ' differences']:.0e})" if label + " differences" in errors else "")
            for label, value in errors.items()
            if not label.endswith("differences")
        ]
        print(f"  {name:16}" + "; ".join(parts))
    print("IndeCateR's gradient to float64:", "; ".join(f"{name} {value:.1e}" for name, value in gradient.items()))
    for failure in failures:
        print("FAILED", failure)
    print(f"{'ms (median of ' + str(args.repeats) + ')':44}{'ms':>8}{'min':>8}{'max':>8}")
    for row in rows:
        print(f"{row['what']:44}{row['ms']:>8}{row['min']:>8}{row['max']:>8}")
    print(f"{time.perf_counter() - BEGIN:.0f} s in all")


if __name__ == "__main__":
    main()
