"""The tables of from_pyro.md, from results/quality/pyro_variance.csv and results/pyro/."""

from statistics import median

from . import Row, distinct, grouped, read, selected, short, table

HEAD = ["model", "steps trained", "loss", "evaluations", "variance over TraceGraph_ELBO's", "ms"]


def values() -> dict[str, object]:
    return {"variance": variance(), "air": air(), "bounds": bounds(), "noise": noise()}


def variance() -> str:
    rows = read("quality/pyro_variance")
    lines = []
    for row in rows:
        method = f"`{row['method']}`".replace(", decaying average`", "`, decaying average")
        ratio = "0 (exact)" if row["ratio"] < 1e-10 else short(float(row["ratio"]))
        cells = [row["problem"], row["steps"], method, row["evaluations"], ratio]
        lines.append([*cells, short(float(row["milliseconds"]))])
    return table(HEAD, lines)


def air() -> str:
    """Return a line per loss: variance x time at several stages, and bounds at equal time."""
    rows = read("pyro/air")
    gradients = selected(rows, section="gradient")
    stages = distinct(gradients, "steps")
    trained = selected(rows, section="training")
    rates = sorted(distinct(trained, "rate"))
    lines = []
    for method, own in grouped(gradients, "method").items():
        cells = [short(float(row["presence"] * row["ms"] / 1000)) for row in own]
        cells.append(short(float(own[-1]["guide"] * own[-1]["ms"] / 1000)))
        for rate in rates:
            same = selected(trained, method=method, rate=rate)
            cells.append(", ".join(f"{row['bound']:.1f}" for row in same))
        lines.append([f"`{method}`", short(median(row["ms"] for row in own)), *cells])
    heads = [f"bits, {steps} steps" for steps in stages] + [f"guide, {stages[-1]} steps"]
    return table(["loss", "ms", *heads, *(f"bound, Adam at {rate}" for rate in rates)], lines)


def label(row: Row) -> str:
    """Return a loss of the autoencoder as it is called."""
    if not row["noise"]:
        return str(row["method"])
    noise = "" if row["noise"] == "shared" else f', noise="{row["noise"]}"'
    return f"`ELBO({row['method']}{noise})`"


def bounds() -> str:
    """Return a line per loss with its bounds after each training, one per seed."""
    rows = [row | {"label": label(row)} for row in read("pyro/ss_vae")]
    rows = selected(rows, section="training")
    trainings = sorted(grouped(rows, "rate", "steps"))
    lines = []
    for name, trained in grouped(rows, "label").items():
        cells = []
        for rate, steps in trainings:
            same = selected(trained, rate=rate, steps=steps)
            cells.append(", ".join(f"{row['bound']:.2f}" for row in same))
        lines.append([name, short(median(row["ms"] for row in trained)), *cells])
    heads = [f"{steps} steps of Adam at {rate}" for rate, steps in trainings]
    return table(["loss", "ms", *heads], lines)


def noise() -> str:
    """Return the variances of losses at two stages, in the networks of the label and the style."""
    rows = selected(read("pyro/ss_vae"), section="gradient")
    stages = distinct(rows, "steps")
    names = {"encoder_y": "label", "encoder_z": "style"}
    lines = []
    for same in grouped(rows, "method", "noise").values():
        cells = [short(float(row[name])) for row in same for name in names]
        lines.append([label(same[0]), *cells])
    heads = [f"{name}, {steps} steps" for steps in stages for name in names.values()]
    return table(["loss", *heads], lines)
