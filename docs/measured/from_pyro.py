"""The table of from_pyro.md, from results/quality/pyro_variance.csv."""

from . import read, short, table

HEAD = ["model", "steps trained", "loss", "evaluations", "variance over TraceGraph_ELBO's", "ms"]


def values() -> dict[str, object]:
    rows = read("quality/pyro_variance")
    lines = [
        [
            row["problem"],
            row["steps"],
            f"`{row['method']}`".replace(", decaying average`", "`, decaying average"),
            row["evaluations"],
            "0 (exact)" if row["ratio"] < 1e-10 else short(float(row["ratio"])),
            short(float(row["milliseconds"])),
        ]
        for row in rows
    ]
    return {"variance": table(HEAD, lines)}
