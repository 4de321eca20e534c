"""How long does a training step take, in JAX and in torch?

    PYTHONPATH=jax/src:src python jax/benchmarks/step_times.py                 # one CPU core
    PYTHONPATH=jax/src:src python jax/benchmarks/step_times.py --device cuda --seconds 180

An autoencoder of 200 bits (784-384-256-200-256-384-784) with its negated ELBO, batch 100, Adam
included. Both libraries run in one process and take turns: a round is some steps of each.
Times are medians over rounds: CPU seconds on a CPU, wall-clock time on a GPU. Matrix products
have the same precision in both. The rows of a method are written as
soon as they are measured.

- jax, scan: steps in one `lax.scan`, 10 on a CPU and 50 on a GPU.
- jax, call: a compiled step per Python call.
- torch, eager; torch, compiled: the loss by torch.compile; torch, captured: `catlog.compiled_step`
  on a GPU, compiled and replayed as a CUDA graph.
"""

import argparse
import csv
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

METHODS = (
    "SlopeCateR(8)",
    "ReinMax(8, sampling='latin')",
    "RLOO(14)",
    "IndeCateR(2)",
    "GumbelSoftmax(8, hard=True)",
)
SIZES, QUICK_SIZES = (784, 384, 256, 200), (784, 16, 10)  # of the encoder; the decoder's turned
BATCH, RATE = 100, 1e-4
IN_SCAN = {"cpu": 10, "cuda": 50}
OUT = Path(__file__).parents[2] / "results" / "speed" / "jax_step_times.csv"
MODES = {
    "cpu": ("jax, scan", "jax, call", "torch, eager", "torch, compiled"),
    "cuda": ("jax, scan", "jax, call", "torch, eager", "torch, captured"),
}


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--modes", nargs="+", help="such as 'jax, scan'")
    parser.add_argument("--precision", nargs="+", choices=["highest", "tf32"], default=["highest"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="per round, of those that are called")
    parser.add_argument("--seconds", type=float, help="after which no contender is begun")
    parser.add_argument("--quick", action="store_true", help="small networks and few rounds")
    parser.add_argument("--append", action="store_true", help="add rows to those of --out")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.end = time.monotonic() + (args.seconds or float("inf"))
    args.sizes = QUICK_SIZES if args.quick else SIZES
    args.rounds = 2 if args.quick else args.rounds
    args.modes = args.modes or MODES[args.device]
    args.steps = args.steps or (4 if args.device == "cpu" else 200)
    return args


# JAX: a step of (parameters, what the estimator has learned, moments), with Adam written out.


def jax_steps(
    method: str, precision: str, in_scan: int, sizes: tuple[int, ...]
) -> Callable[[int], None]:
    """Return a function that makes a number of steps and waits for them."""
    import jax
    import jax.numpy as jnp

    import catlog_jax

    E = eval(method, dict(vars(catlog_jax)))
    learns = isinstance(E, catlog_jax.SlopeCateR)  # as the torch library does by itself

    def layers(key: Any, sizes: tuple[int, ...]) -> Any:
        keys = jax.random.split(key, len(sizes))
        return [
            (jax.random.uniform(k, (a, b), minval=-(a**-0.5), maxval=a**-0.5), jnp.zeros(b))
            for k, a, b in zip(keys, sizes, sizes[1:], strict=False)
        ]

    def mlp(params: Any, x: Any) -> Any:
        for weight, bias in params[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        return x @ params[-1][0] + params[-1][1]

    def loss(params: Any, learned: Any, key: Any, data: Any) -> Any:
        encoder, decoder = params
        options = {"state": learned} if learns else {}
        logits = mlp(encoder, data)

        def f(x: Any, datum: Any) -> Any:
            z = mlp(decoder, x)
            return (jax.nn.softplus(z) - datum * z).sum()

        p = jax.nn.sigmoid(logits)
        entropy = (jax.nn.softplus(logits) - p * logits).sum(-1)
        divergence = sizes[-1] * jnp.log(2.0) - entropy
        q = catlog_jax.Bernoulli(logits)
        return (E.batch(key, f, q, data, **options) + divergence).mean()

    def step(state: Any, key: Any, data: Any) -> Any:
        params, learned, first, second, count = state
        value, (gradient, seen) = jax.value_and_grad(loss, (0, 1))(params, learned, key, data)
        learned = E.update(learned, seen) if learns else learned
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        params = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7), params, first, second
        )
        return (params, learned, first, second, count), value

    @partial(jax.jit, donate_argnums=0)
    def one(state: Any, key: Any, data: Any) -> Any:
        return step(state, key, data)

    @partial(jax.jit, donate_argnums=0)
    def many(state: Any, key: Any, data: Any) -> Any:
        keys = jax.random.split(key, in_scan)
        return jax.lax.scan(lambda state, key: step(state, key, data), state, keys)

    keys = jax.random.split(jax.random.key(0), 3)
    params = layers(keys[0], sizes), layers(keys[1], sizes[::-1])
    zeros = partial(jax.tree.map, jnp.zeros_like, params)
    learned = E.init(sizes[-1]) if learns else ()
    state = (params, learned, zeros(), zeros(), jnp.zeros(()))
    data = (jax.random.uniform(keys[2], (BATCH, 784)) > 0.7).astype(jnp.float32)
    number = 0

    def run(steps: int) -> None:
        nonlocal state, number
        with jax.default_matmul_precision("highest" if precision == "highest" else "tensorfloat32"):
            for _ in range(max(1, steps // in_scan) if in_scan else steps):
                number += 1
                make = many if in_scan else one
                state, value = make(state, jax.random.key(number), data)
        jax.block_until_ready(value)

    return run


# torch


def torch_steps(
    method: str, precision: str, mode: str, device: str, sizes: tuple[int, ...]
) -> Callable[[int], None]:
    """Return a function that makes a number of steps and waits for them."""
    import catlog
    import torch
    from torch import Tensor, nn
    from torch.distributions import Bernoulli, Independent

    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    torch.manual_seed(0)
    E = eval(method, dict(vars(catlog.estimators)))
    if isinstance(E, nn.Module):  # it learns
        E.to(device)

    def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1]).to(device)

    encoder, decoder = mlp(sizes), mlp(sizes[::-1])
    parameters = [*encoder.parameters(), *decoder.parameters()]
    captured = mode == "torch, captured"
    optimiser = torch.optim.Adam(parameters, RATE, eps=1e-7, capturable=captured)
    data = (torch.rand(BATCH, 784) > 0.7).float().to(device)

    def loss(data: Tensor) -> Tensor:
        logits = encoder(data)
        q = Independent(Bernoulli(logits=logits, validate_args=False), 1, validate_args=False)

        def f(x: Tensor) -> Tensor:
            z = decoder(x)
            return (nn.functional.softplus(z) - data * z).sum(-1)

        entropy = (nn.functional.softplus(logits) - logits.sigmoid() * logits).sum(-1)
        divergence = sizes[-1] * 0.6931471805599453 - entropy
        return (E(f, q) + divergence).mean()

    if captured:
        step: Any = catlog.compiled_step(loss, optimiser, compile=True, estimator=E)
    else:
        value_of = torch.compile(loss) if mode == "torch, compiled" else loss

        def step(data: Tensor) -> Tensor:
            optimiser.zero_grad()
            value = value_of(data)
            value.backward()
            optimiser.step()
            return value

    def run(steps: int) -> None:
        for _ in range(steps):
            value = step(data)
        float(value.detach())

    return run


def measured(args: argparse.Namespace, method: str, precision: str) -> list[dict[str, Any]]:
    """Return a row per contender."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    contenders, first, times = {}, {}, {}
    for mode in args.modes:
        start = time.perf_counter()
        if time.monotonic() > args.end:
            print(f"{method}, {mode}: no time is left", file=sys.stderr, flush=True)
            continue
        try:
            if mode.startswith("jax"):
                in_scan = IN_SCAN[args.device] if mode == "jax, scan" else 0
                run = jax_steps(method, precision, in_scan, args.sizes)
            else:
                run = torch_steps(method, precision, mode, args.device, args.sizes)
            run(1)
            run(2)
        except Exception as error:  # one that does not run here should not end the others
            print(f"{method}, {mode}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        contenders[mode], times[mode] = run, []
        first[mode] = time.perf_counter() - start
    for _ in range(args.rounds):
        for mode, run in contenders.items():
            in_scan = IN_SCAN[args.device]
            steps = max(in_scan, args.steps) if mode == "jax, scan" else args.steps
            start = clock()
            run(steps)
            times[mode].append(1e3 * (clock() - start) / steps)
    return [
        {
            "method": method,
            "mode": mode,
            "precision": precision,
            "ms": f"{median(times[mode]):.4g}",
            "least": f"{min(times[mode]):.4g}",
            "most": f"{max(times[mode]):.4g}",
            "first_calls_s": f"{first[mode]:.3g}",
        }
        for mode in contenders
    ]


def main() -> None:
    args = settings()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["JAX_PLATFORMS"] = args.device
    if args.device == "cpu":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ["XLA_FLAGS"] = (
            "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        )
    import jax
    import torch

    if args.device == "cpu":
        torch.set_num_threads(1)
    device = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else platform.processor() or platform.machine()
    )
    versions = {"device": device, "jax": jax.__version__, "torch": torch.__version__}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a" if args.append else "w", newline="") as file:
        writer: Any = None
        for precision in args.precision:
            for method in args.methods:
                for row in measured(args, method, precision):
                    row |= versions
                    writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
                    if file.tell() == 0:
                        writer.writeheader()
                    writer.writerow(row)
                    file.flush()
                    print(row, flush=True)


if __name__ == "__main__":
    main()
