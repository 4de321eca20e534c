"""The tables of scaling.md, and its arithmetic for more devices."""

from . import Row, distinct, measurements, read

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


def expectations(rows: list[Row]) -> dict[str, float]:
    """Return what to expect of more devices: arithmetic with measured times and nominal links."""
    step_times = {row["method"]: row["ms"] for row in read("speed/speed_dvae_cuda")}
    step, fixed = step_times["IndeCateR, first-layer-linear"], step_times["RLOO-S"]
    training = next(row for row in rows if row["section"] == "training" and row["kib"])
    black_box = next(row for row in rows if row["section"] == "estimate" and row["kib"])
    mb = training["kib"] * 1024 / 1e6
    inside = 14 / 8 * mb / NVLINK + 14 * HOP_INSIDE  # every link of a ring of 8 carries 14 / 8
    across = 14 / 8 * mb / NETWORK + 14 * HOP_ACROSS
    return {
        "step": step,
        "fixed": fixed,
        "mb": mb,
        "inside": inside,
        "across": across,
        "divided": fixed + (step - fixed) / 8 + inside,
        "points": black_box["evaluations"],
        "kib": black_box["kib"],
    }


def values() -> dict[str, object]:
    rows = read("scaling/scaling")
    return {name: section(rows, name) for name in distinct(rows, "section")} | expectations(rows)
