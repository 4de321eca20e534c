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
    row_ms = next(row["ms"] for row in rows if row["section"] == "overhead")
    points = black_box["evaluations"]
    mb = training["kib"] * 1024 / 1e6
    sent = f"2 * 7/8 * {mb:.2f} MB"  # every link of a ring of 8 carries this
    inside = 14 / 8 * mb / NVLINK + 14 * HOP_INSIDE
    across = 14 / 8 * mb / NETWORK + 14 * HOP_ACROSS
    divided = fixed + (step - fixed) / 8 + inside
    lines = [
        (
            "all-reduce of 8 GPUs in a node",
            f"{sent} / {NVLINK} GB/s + 14 * {HOP_INSIDE} ms",
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
            f"{step / (step + inside):.0%} of 8 times",
        ),
        (
            "all-reduce of 8 such nodes, in addition",
            f"{sent} / {NETWORK} GB/s + 14 * {HOP_ACROSS} ms",
            f"{across:.2f} ms",
        ),
        (
            "64 times the paper's batch",
            f"{step:.3f} / ({step:.3f} + {inside:.3f} + {across:.3f})",
            f"{step / (step + inside + across):.0%} of 64 times",
        ),
        (
            "values of the estimate above",
            f"{points} evaluations * 20 batch elements * 4 bytes",
            f"{points * 80 / 1024:.1f} KiB, counted {black_box['kib']:.1f}",
        ),
        (
            "values of 10^6 evaluations, many nodes",
            f"4 MB / {NETWORK} GB/s",
            f"{4 / NETWORK:.2f} ms",
        ),
        ("10^6 evaluations of 1 ms on 8, on 64 GPUs", "1000 s / 8, 1000 s / 64", "125 s, 15.6 s"),
        (
            "workers that one pool keeps busy, rows of 5 ms",
            f"5 ms / {row_ms:.2g} ms",
            f"{5 / row_ms:.0f}",
        ),
        ("and rows of 1 s", f"1000 ms / {row_ms:.2g} ms", f"about {round(1000 / row_ms, -3):.0f}"),
    ]
    return table(("what", "arithmetic", "expected"), lines)


def values() -> dict[str, object]:
    rows = read("scaling/scaling")
    names = distinct(rows, "section")
    return {name: section(rows, name) for name in names} | {"expectations": expectations(rows)}
