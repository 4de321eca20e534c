"""The tables of scaling.md, and its arithmetic for more devices."""

from . import Row, distinct, measurements, read, table

COLUMNS = (
    "case", "processes", "evaluations", "ms", "ms_min", "ms_max", "speedup", "messages", "kib",
)  # fmt: skip
# Nominal speeds in MB/ms (GB/s) per GPU, and assumed latencies in ms per hop.
NVLINK, NETWORK = 450, 50
HOP_INSIDE, HOP_ACROSS = 0.003, 0.02


def section(rows: list[Row], name: str) -> str:
    return measurements(
        [{column: row.get(column) for column in COLUMNS} for row in rows if row["section"] == name]
    )


def expectations(rows: list[Row]) -> str:
    """Return what to expect of more devices: arithmetic with measured times and nominal links."""
    step_times = {row["method"]: row["ms"] for row in read("speed/speed_dvae_cuda")}
    step, fixed = step_times["IndeCateR, first-layer-linear"], step_times["RLOO-S"]
    training = next(row for row in rows if row["section"] == "training" and row["kib"])
    black_box = next(row for row in rows if row["section"] == "estimate" and row["kib"])
    mb = training["kib"] * 1024 / 1e6
    inside = 14 / 8 * mb / NVLINK + 14 * HOP_INSIDE  # every link of a ring of 8 carries 14 / 8
    across = 14 / 8 * mb / NETWORK + 14 * HOP_ACROSS
    divided = fixed + (step - fixed) / 8 + inside
    node, nodes = step / (step + inside), step / (step + inside + across)
    ring = f"2 * 7/8 * {mb:.2f} MB"
    points, kib = black_box["evaluations"], black_box["kib"]
    lines = [
        (
            "all-reduce of 8 GPUs in a node",
            f"{ring} / 450 GB/s + 14 * 0.003 ms",
            f"{inside:.3f} ms",
        ),
        (
            "the paper's batch, divided by 8",
            f"{fixed:.3f} + ({step:.3f} - {fixed:.3f}) / 8 + {inside:.3f} ms",
            f"{divided:.2f} ms, {step / divided:.1f} times as fast",
        ),
        (
            "8 times the paper's batch",
            f"{step:.3f} / ({step:.3f} + {inside:.3f})",
            f"{node:.0%} of 8 times",
        ),
        (
            "all-reduce of 8 such nodes, in addition",
            f"{ring} / 50 GB/s + 14 * 0.02 ms",
            f"{across:.2f} ms",
        ),
        (
            "64 times the paper's batch",
            f"{step:.3f} / ({step:.3f} + {inside:.3f} + {across:.3f})",
            f"{nodes:.0%} of 64 times",
        ),
        (
            "values of the estimate above",
            f"{points} evaluations * 20 batch elements * 4 bytes",
            f"{points * 80 / 1024:.1f} KiB, counted {kib:.1f}",
        ),
        ("values of 10^6 evaluations, many nodes", "4 MB / 50 GB/s", "0.08 ms"),
        (
            "10^6 evaluations of 1 ms on 8, on 64 GPUs",
            "1000 s / 8, 1000 s / 64",
            "125 s, 15.6 s",
        ),
    ]
    return table(("what", "arithmetic", "expected"), lines)


def values() -> dict[str, object]:
    rows = read("scaling/scaling")
    sections = {name: section(rows, name) for name in distinct(rows, "section")}
    return sections | {"expected": expectations(rows)}
