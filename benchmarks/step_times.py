"""The time of one training step of the paper's experiments, for every method, in one interleaved run.

    python benchmarks/step_times.py                   # two CPU cores: results/step_times_cpu.csv
    python benchmarks/step_times.py --device cuda     # compiled and captured in a CUDA graph: results/step_times_cuda.csv

The steps are those of `catlog run`: batch from the data, forward, estimate, backward, update; the same treatment for all.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from catlog.experiments import DVAE, Addition, records

BINARY = ["IndeCateR", "IndeCateR-Latin", "IndeCateR-Taylor", "RLOO-S", "GS-S", "RLOO-F", "GS-F"]
CATEGORICAL = ["IndeCateR", "IndeCateR-D", "RLOO-S", "RLOO-F", "GS-F"]
ADDITION = ["IndeCateR", "IndeCateR-D", "RLOO-S", "RLOO-F"]


def problems(quick: bool) -> dict[str, tuple[Any, list[str]]]:
    small = {"test_samples": 1, "gradient_repeats": 0}
    chosen: dict[str, tuple[Any, list[str]]] = {
        "dvae": (DVAE(**small), BINARY[:5] if quick else BINARY),
        "addition, 16 digits": (Addition(digits=16), ADDITION),
    }
    if not quick:
        chosen["dvae, 10 categories"] = (DVAE(categories=10, **small), CATEGORICAL)
        chosen |= {f"addition, {digits} digits": (Addition(digits=digits), ADDITION) for digits in (4, 8, 32)}
    return chosen


def timed(task: Any, start: int, calls: int) -> float:
    """Milliseconds per step."""
    synchronise()
    began = time.perf_counter()
    for i in range(start, start + calls):
        task.step(i)
    synchronise()
    return 1000 * (time.perf_counter() - began) / calls


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--calls", type=int, default=None, help="steps per measurement")
    parser.add_argument("--quick", action="store_true", help="fewer methods and sizes, for the tests")
    parser.add_argument("--only", default="", help="problems whose name starts with this")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    calls = args.calls or (50 if args.device == "cuda" else 1)

    rows = []
    for name, (config, methods) in problems(args.quick).items():
        if not name.startswith(args.only):
            continue
        tasks = {}
        for method in methods:
            torch.manual_seed(0)
            tasks[method] = replace(config, estimator=method, device=args.device).task()
        times: dict[str, list[float]] = {method: [] for method in methods}
        for repeat in range(1 + args.repeats):
            for method, task in tasks.items():
                spent = timed(task, repeat * calls, calls)
                if repeat > 0:  # the first round compiles and warms up
                    times[method].append(spent)
        own = statistics.median(times["IndeCateR"])
        for method in methods:
            ms = statistics.median(times[method])
            mode = tasks[method].training.compiled.mode
            row = {"problem": name, "method": method, "ms": ms, "ms_min": min(times[method]), "ms_max": max(times[method])}
            rows.append({**row, "over_indecater": ms / own, "mode": mode})
            print(f"{name:22} {method:18} {ms:9.3f} ms  {ms / own:6.2f} x IndeCateR  ({mode})", flush=True)
        del tasks
    output = args.output or Path(__file__).parent.parent / "results" / f"step_times_{args.device}.csv"
    if not args.quick or args.output:
        records.write(rows, output, digits=4)
        print(f"written to {output}")


if __name__ == "__main__":
    main()
