"""Peak memory of IndeCateR with d = 4096 variables of k = 16 categories, against its chunk size.

    python benchmarks/memory.py               # about half a minute; writes results/memory_cpu.csv
    python benchmarks/memory.py --quick       # 256 variables of 4 categories; writes nothing

One value and its gradient (n = 1, d (k - 1) + 1 = 61,441 evaluations of a black-box f), each chunk size in a fresh process.
The baseline is the resident memory after the imports and a tiny problem; then the kernel's high-water mark (VmHWM) is reset
through /proc/self/clear_refs and read again after the gradient. Where the mark cannot be reset, "peak" is that of the whole
process, imports included, and "reset" is no in the table. Linux only.

Two settings of the C allocator. "default": glibc may keep freed blocks of up to 32 MiB on its heap, to use them again, so
chunks of up to about 1,024 evaluations (32 MiB of points) can hold more than is in use. "returning": a fixed threshold
(MALLOC_MMAP_THRESHOLD_) gives every freed block of 128 KiB or more back to the system, which shows what is in use.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog

ALLOCATORS: dict[str, dict[str, str]] = {"default": {}, "returning": {"MALLOC_MMAP_THRESHOLD_": str(2**17)}}


def resident(field: str) -> float:
    """MiB of this process: "VmRSS" now, "VmHWM" at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def reset_peak() -> bool:
    """Set the high-water mark back to what is resident now, where the kernel permits it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def gradient(d: int, k: int, chunk_size: int) -> Tensor:
    """The gradient of E[sin(s) + s² / d], s a random additive function: not additive, and f does not know its table."""
    generator = torch.Generator().manual_seed(0)
    costs = torch.randn(d, k, generator=generator)
    logits = torch.randn(d, k, generator=generator).requires_grad_()
    variable = torch.arange(d)

    def f(x: Tensor) -> Tensor:
        s = costs[variable, x].sum(-1)
        return s.sin() + s.square() / d

    E = catlog.IndeCateR(samples=1, chunk_size=chunk_size)
    E(f, Independent(Categorical(logits=logits), 1), generator=generator).backward()
    assert logits.grad is not None
    return logits.grad


def measure(d: int, k: int, chunk_size: int) -> dict[str, object]:
    """One row of the table, measured in this process."""
    gradient(16, 4, 8)
    baseline = resident("VmRSS")
    was_reset = reset_peak()
    start = time.perf_counter()
    norm = gradient(d, k, chunk_size).norm().item()
    seconds = time.perf_counter() - start
    peak = resident("VmHWM")
    return {
        "d": d,
        "k": k,
        "chunk_size": chunk_size,
        "baseline_mib": round(baseline, 1),
        "peak_mib": round(peak, 1),
        "above_baseline_mib": round(peak - baseline, 1),
        "seconds": round(seconds, 2),
        "gradient_norm": round(norm, 5),
        "reset": "yes" if was_reset else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=None)
    parser.add_argument("--k", type=int, default=None)
    parser.add_argument("--chunks", type=int, nargs="+", default=None, metavar="SIZE")
    parser.add_argument("--quick", action="store_true", help="a small problem and no file, for the tests")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--one", action="store_true", help="measure the first chunk size in this process and print JSON")
    args = parser.parse_args()
    d, k = args.d or (256 if args.quick else 4096), args.k or (4 if args.quick else 16)
    chunks = args.chunks or ([64, 128] if args.quick else [512, 1024, 2048, 4096])
    if args.one:
        print(json.dumps(measure(d, k, chunks[0])))
        return

    evaluations = d * (k - 1) + 1
    print(f"d = {d}, k = {k}, n = 1: {evaluations} evaluations; their points all at once: {evaluations * d * 8 / 2**20:.0f} MiB")
    print(f"{'allocator':12}{'chunk':>6}{'baseline':>10}{'peak':>8}{'above':>8} MiB{'over half':>11}{'seconds':>9}{'reset':>7}")
    rows: list[dict[str, object]] = []
    for allocator, settings in ALLOCATORS.items():
        above: dict[int, float] = {}
        for chunk_size in sorted(chunks):
            command = [sys.executable, __file__, "--one", "--d", str(d), "--k", str(k), "--chunks", str(chunk_size)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | settings)
            row = {"allocator": allocator} | json.loads(done.stdout)
            above[chunk_size] = row["above_baseline_mib"]
            half = above.get(chunk_size // 2)
            row["over_half_the_chunk"] = round(above[chunk_size] / half, 2) if half else ""
            rows.append(row)
            print(
                f"{allocator:12}{chunk_size:>6}{row['baseline_mib']:>10}{row['peak_mib']:>8}{row['above_baseline_mib']:>8}"
                f"{row['over_half_the_chunk']:>15}{row['seconds']:>9}{row['reset']:>7}",
                flush=True,
            )
    if not args.quick or args.output:
        output = args.output or Path(__file__).parent.parent / "results" / "memory_cpu.csv"
        with output.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        print(f"written to {output}")


if __name__ == "__main__":
    main()
