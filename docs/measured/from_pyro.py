"""The tables of from_pyro.md, from results/quality/pyro_variance.csv and results/pyro/."""

from . import read, selected, short, table

TRAINED = {"mixture": 100, "autoencoder": 100, "chain": 100}
LABELLED = (("TraceEnum_ELBO, parallel", None), ("Exact()", "shared"), ("Exact()", "stratified"))
STEPS = ((0.001, 1000), (0.003, 1000), (0.003, 4000))


def variance() -> str:
    lines = []
    for row in read("quality/pyro_variance"):
        shown = TRAINED[row["problem"]] == row["steps"] and row["ratio"] != 1
        if shown and row["method"] != "Trace_ELBO":
            method = row["method"].removeprefix("catlog.pyro.")
            ratio = "0 (exact)" if row["ratio"] < 1e-10 else short(float(row["ratio"]))
            cells = (row["evaluations"], ratio, short(float(row["milliseconds"])))
            lines.append([row["problem"], f"`{method}`", *cells])
    return table(["model", "loss", "evaluations", "variance", "ms"], lines)


def bounds() -> str:
    """Return a line per loss with its bounds after each training, one per seed."""
    rows = selected(read("pyro/ss_vae"), section="training")
    lines = []
    for method, noise in LABELLED:
        name = f"ELBO({method})" if noise == "shared" else f'ELBO({method}, noise="{noise}")'
        cells = [
            ", ".join(
                f"{row['bound']:.1f}"
                for row in selected(rows, method=method, noise=noise, rate=rate, steps=steps)
            )
            for rate, steps in STEPS
        ]
        lines.append([f"`{name if noise else method}`", *cells])
    heads = [f"{steps} steps at {rate}" for rate, steps in STEPS]
    return table(["loss", *heads], lines)


def values() -> dict[str, object]:
    return {"variance": variance(), "bounds": bounds()}
