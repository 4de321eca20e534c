"""The table of from_pyro.md, from results/quality/pyro_variance.csv."""

from . import read, short, table

HEAD = ["model", "steps trained", "loss", "evaluations", "variance over TraceGraph_ELBO's", "ms"]


def values() -> dict[str, object]:
    rows = read("quality/pyro_variance")
    lines = []
    for row in rows:
        method = f"`{row['method']}`".replace(", decaying average`", "`, decaying average")
        ratio = "0 (exact)" if row["ratio"] < 1e-10 else short(float(row["ratio"]))
        cells = [row["problem"], row["steps"], method, row["evaluations"], ratio]
        lines.append([*cells, short(float(row["milliseconds"]))])
    return {"variance": table(HEAD, lines)}
