"""The tables of from_gumbel_softmax.md."""

from statistics import geometric_mean, mean

from . import Row, grouped, read, selected, table

# One more, the quantiser, has the same error with all of them.
MODELS = ("codebook", "codebook, KL", "signals", "two levels", "attention", "router")
RACED = (
    "StraightThrough(1)",
    "GumbelSoftmax(1, hard=True)",
    "GumbelSoftmax(1)",
    "ReinMax(1)",
    "ReinMax, entropy bonus",
    "MinimumVarianceStraightThrough(1)",
)
MEASURED = (
    "F.gumbel_softmax, tau = 0.1",
    "F.gumbel_softmax, tau = 0.5",
    "F.gumbel_softmax, tau = 1.0",
    "StraightThrough(1)",
    "ReinMax(1)",
    "MinimumVarianceStraightThrough(1)",
)


def shown(name: str) -> str:
    return f"`{name}`" if name.endswith(")") else name


def race(rows: list[Row]) -> str:
    """Return a table of the race of sampling layers, the safest estimators first."""
    best = {
        key: min(row["quality"] for row in runs)
        for key, runs in grouped(rows, "model", "seed").items()
    }
    step = {
        (row["model"], row["seed"]): row["ms"]
        for row in selected(rows, estimator="StraightThrough(1)")
    }
    lines = []
    for name, runs in grouped(rows, "estimator").items():
        ratios = [row["quality"] / best[row["model"], row["seed"]] for row in runs]
        times = [row["ms"] / step[row["model"], row["seed"]] for row in runs]
        cells = [f"{mean(row['quality'] for row in runs if row['model'] == m):.3g}" for m in MODELS]
        codes = mean(row["codes"] for row in runs if row["model"] == "codebook")
        cells[0] += f" ({codes:.0f})"
        ends = (geometric_mean(ratios), max(ratios), geometric_mean(times))
        if name in RACED:
            lines.append((ends[0], [shown(name), *cells, *(f"{end:.2f}" for end in ends[1:])]))
    head = ("", *MODELS, "worst", "time")
    return table(head, [line for _, line in sorted(lines)])


def temperatures(rows: list[Row]) -> str:
    """Return bias and variance early and late in training, and bounds after it."""
    gradient, training = (selected(rows, section=name) for name in ("gradient", "training"))
    lines = []
    for name in MEASURED:
        early, late = selected(gradient, estimator=name)
        cells = [f"{100 * row['bias']:.0f} % / {row['variance']:.2g}" for row in (early, late)]
        bound = mean(row["bound"] for row in selected(training, estimator=name))
        lines.append([shown(name), *cells, f"{bound:.1f}"])
    return table(("", "step 100: bias / variance", "step 2000", "bound"), lines)


def overhead(rows: list[Row]) -> str:
    """Return the largest time of GumbelSoftmax relative to F.gumbel_softmax, in per cent more."""
    largest = max(row["ratio"] for row in rows if row["method"] == "GumbelSoftmax")
    return f"{100 * (largest - 1):.0f}"


def values() -> dict[str, object]:
    return {
        "temperatures": temperatures(read("quality/temperatures")),
        "race": race(read("quality/sampling_layers")),
        "overhead": overhead(read("speed/sample_cpu")),
    }
