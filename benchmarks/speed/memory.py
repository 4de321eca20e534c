"""Peak memory of IndeCateR for several chunk sizes: one value and its gradient, n = 1, black-box f.

On a CPU, every size runs in a new process (Linux only). The baseline is the resident memory after
the imports and a tiny problem. Then the kernel's high-water mark (VmHWM) is reset through
/proc/self/clear_refs, and read again after the gradient. Where it cannot be reset, the peak is that
of the whole process, imports included, and "reset" is no. There are two settings of the C
allocator. "default": glibc may keep freed blocks of up to 32 MiB on its heap, so the peak can
exceed the memory in use. "returning": a fixed threshold (MALLOC_MMAP_THRESHOLD_) returns every
freed block of 128 KiB or more, so the peak is the memory in use. On a GPU, the peak is that of
PyTorch's allocations.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog

from ..turns import seconds_in_turns
from .timing import Bench, Row

ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "returning": {"MALLOC_MMAP_THRESHOLD_": str(2**17)},
}
SIZES = [(4096, 16, 512), (4096, 16, 1024), (4096, 16, 2048), (4096, 16, 4096), (20000, 2, 1024)]
QUICK = [(256, 4, 64), (256, 4, 128)]


def resident(field: str) -> float:
    """Return MiB of this process: "VmRSS" is the present memory, "VmHWM" the peak."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def reset_peak() -> bool:
    """Reset the high-water mark to the resident memory; return whether the kernel permits it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def gradient(d: int, k: int, chunk_size: int, device: str = "cpu") -> Tensor:
    """Return the gradient of E[sin(s) + s² / d], where s is a random additive function."""
    generator = torch.Generator().manual_seed(0)
    costs = torch.randn(d, k, generator=generator).to(device)
    logits = torch.randn(d, k, generator=generator).to(device).requires_grad_()
    variable = torch.arange(d, device=device)

    def f(x: Tensor) -> Tensor:
        s = costs[variable, x].sum(-1)
        return s.sin() + s.square() / d

    catlog.IndeCateR(samples=1, chunk_size=chunk_size)(
        f, Independent(Categorical(logits=logits), 1)
    ).backward()
    assert logits.grad is not None
    return logits.grad


def here(d: int, k: int, chunk_size: int) -> Row:
    """Return one row of the table, measured in this process."""
    gradient(16, 4, 8)
    baseline, was_reset = resident("VmRSS"), reset_peak()
    start = time.perf_counter()
    gradient(d, k, chunk_size)
    row = {
        "seconds": time.perf_counter() - start,
        "peak_mib": resident("VmHWM"),
        "reset": "yes" if was_reset else "no",
    }
    return row | {"baseline_mib": baseline, "above_mib": row["peak_mib"] - baseline}


def memory(bench: Bench) -> list[Row]:
    """Return the rows; `points_mib` is the memory of all points at once, which chunks avoid."""
    rows = []
    for d, k, chunk_size in QUICK if bench.quick else SIZES:
        evaluations = d * (k - 1) + 1
        size = {"D": d, "K": k, "evaluations": evaluations}
        size |= {"points_mib": evaluations * d * 8 / 2**20, "chunk_size": chunk_size}
        if bench.cuda:
            call = partial(gradient, d, k, chunk_size, bench.device)
            (seconds,) = seconds_in_turns({"gradient": call}, 1)["gradient"]
            rows.append({**size, "above_mib": bench.peak_mib(call), "seconds": seconds})
            continue
        for allocator, settings in ALLOCATORS.items():
            command = [sys.executable, "-m", "benchmarks.speed.memory"]
            command += map(str, (d, k, chunk_size))
            environment, folder = os.environ | settings, Path(__file__).parents[2]
            output = subprocess.check_output(command, text=True, env=environment, cwd=folder)
            rows.append({**size, "allocator": allocator} | json.loads(output))
        print(f"  memory: D = {d}, K = {k}, chunks of {chunk_size}", flush=True)
    return rows


if __name__ == "__main__":
    print(json.dumps(here(*map(int, sys.argv[1:]))))
