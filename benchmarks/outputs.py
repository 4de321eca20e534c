"""Memory and time of an expectation per output, beside the same work written by hand.

    python -m benchmarks.outputs                    # writes results/speed/outputs_cpu.csv
    python -m benchmarks.outputs --device cuda

The function is the sum of two numbers of 100 digits: 200 variables of 10 categories, 101 outputs.
"By hand" draws the points, reads the table of `DigitsOfSum` and differentiates the sum of
probabilities times means, for this one problem. Both sides run in turn; medians. Memory is the peak
beside what the process held before (CPU: of the resident set, looked at twice per millisecond).
"""

import multiprocessing
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog
from catlog.functions import DigitsOfSum

from .command_line import table_parser
from .tables import RESULTS, Row, Table, show
from .turns import seconds_in_turns


def problem(device: str, places: int, batch: int) -> tuple[DigitsOfSum, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 10, (batch, places + 1), generator=generator)
    logits = torch.randn(batch, 2 * places, 10, generator=generator)
    f = DigitsOfSum(target).to(device)
    return f, logits.to(device).requires_grad_()


def by_library(E: catlog.Estimator) -> Callable[[DigitsOfSum, Tensor], Tensor]:
    def loss(f: DigitsOfSum, logits: Tensor) -> Tensor:
        q = Independent(Categorical(logits=logits, validate_args=False), 1)
        return -(E(f, q, outputs=1) + 1e-3).log().sum()

    return loss


def by_hand(samples: int) -> Callable[[DigitsOfSum, Tensor], Tensor]:
    """IndeCateR for this problem alone."""

    def loss(f: DigitsOfSum, logits: Tensor) -> Tensor:
        probs = logits.softmax(-1)
        with torch.no_grad():
            u = torch.rand((samples, *probs.shape[:-1], 1), device=logits.device)
            x = (u >= probs.cumsum(-1)[..., :-1]).sum(-1)
            mean = f.neighbours(x).to(probs.dtype).mean(0)  # [batch, d, k, outputs]
            places = f.touches.to(probs.dtype) / 2
            value = torch.einsum("bdk,bdko,do->bo", probs, mean, places)
        surrogate = torch.einsum("bdk,bdko->bo", probs, mean)
        estimate = value + surrogate - surrogate.detach()
        return -(estimate + 1e-3).log().sum()

    return loss


def peak_mib(args: tuple[str, int, int, int, bool]) -> float:
    """Return the peak of memory of three steps beside what was held before, in a new process."""
    device, places, batch, samples, is_library = args
    torch.set_num_threads(1)
    loss = by_library(catlog.IndeCateR(samples)) if is_library else by_hand(samples)
    loss(*problem(device, 2, batch)).backward()  # loads what torch loads once
    f, logits = problem(device, places, batch)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            loss(f, logits).backward()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = resident_bytes()
    peak, is_done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.0005):
            peak = max(peak, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        loss(f, logits).backward()
    is_done.set()
    watcher.join()
    return (peak - before) / 2**20


def resident_bytes() -> int:
    """Return the memory that the process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    f, logits = problem(args.device, args.places, args.batch)
    f.table_checked = True  # type: ignore[assignment]
    sides = {
        "by hand": by_hand(args.samples),
        "IndeCateR": by_library(catlog.IndeCateR(args.samples, validate=False)),
    }
    steps = {name: lambda loss=loss: loss(f, logits).backward() for name, loss in sides.items()}
    times = seconds_in_turns(steps, args.repeats, warm_up=3)
    spawn = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    for name in sides:
        with spawn.Pool(1) as pool:
            size = (args.device, args.places, args.batch, args.samples, name == "IndeCateR")
            (peak,) = pool.map(peak_mib, [size])
        row = {"method": name, "variables": 2 * args.places, "outputs": args.places + 1}
        row |= {"samples": args.samples, "batch": args.batch, "ms": 1000 * median(times[name])}
        ratio = median(times[name]) / median(times["by hand"])
        rows.append({**row, "ratio": ratio, "peak_mib": peak})
    path = args.output or RESULTS / "speed" / f"outputs_{args.device}.csv"
    Table(path, ("method",), digits=4).add(rows)
    show("an expectation per output", rows)


if __name__ == "__main__":
    main()
