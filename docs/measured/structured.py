"""The pictures and tables of structured.md.

Variance relative to RLOO's is from results/quality/structured_variance.csv, everything about
subsets from results/subset, the table of counts from results/quality/counts.csv, and that of coins
from results/quality/coin_sequences.csv.
"""

from math import log
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm

from . import Row, distinct, exponent, keyed, pivot, read, selected, short, table

LIMIT = 10  # the ends of the colour scale are 1 / LIMIT and LIMIT


def picture(path: Path) -> None:
    rows = read("quality/structured_variance")
    columns = list(
        dict.fromkeys((row["problem"], row["budget"], row["evaluations"]) for row in rows)
    )
    names = [name for name in distinct(rows, "method") if name != "RLOO"]
    cells = keyed(rows, "method", "problem", "budget")
    ratios = [
        [cells[name, problem, budget]["relative_to_rloo"] for problem, budget, _ in columns]
        for name in names
    ]
    figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
    image = axes.imshow(ratios, cmap="RdBu_r", norm=LogNorm(1 / LIMIT, LIMIT), aspect="auto")
    for i, name in enumerate(names):
        for j, (problem, budget, _) in enumerate(columns):
            row = cells[name, problem, budget]
            ratio, digits = row["relative_to_rloo"], 0 if row["high_95"] >= 10 else 2
            ink = "white" if abs(log(ratio)) > 0.6 * log(LIMIT) else "black"
            interval = f"{row['low_95']:.{digits}f} to {row['high_95']:.{digits}f}"
            text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"
            style = {"ha": "center", "va": "center", "color": ink}
            axes.text(j, i - 0.12, text, weight="bold", **style)
            axes.text(j, i + 0.25, interval, size=8, **style)
    axes.set_xticks(range(len(columns)), [str(evaluations) for *_, evaluations in columns])
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("evaluations of f per estimate")
    problems = list(dict.fromkeys(problem for problem, *_ in columns))
    width = len(columns) // len(problems)
    top = axes.secondary_xaxis("top")
    top.set_xticks([width * i + (width - 1) / 2 for i in range(len(problems))], problems)
    for scale in (axes, top):
        scale.tick_params(length=0)
        scale.spines[:].set_visible(False)
    for i in range(1, len(problems)):
        axes.axvline(width * i - 0.5, color="white", linewidth=6)
    for i in range(1, len(names)):
        axes.axhline(i - 0.5, color="white", linewidth=1)
    bar = figure.colorbar(image, ax=axes, pad=0.01, extend="max")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("variance / RLOO's (blue: less)")
    figure.savefig(path, dpi=130)


def subset_times() -> str:
    names, lines = pivot(read("subset/speed_cpu"), "what", "how", lambda row: short(row["ms"]))
    return table(["ms", *names], lines)


def subset_errors() -> str:
    rows = read("subset/stability")
    columns = {
        "log-probability, per item": "log_prob_per_item",
        "marginals": "marginals",
        "their gradient": "gradient",
    }
    lines = [
        [row["logits"], row["how"], *(short(row[column]) for column in columns.values())]
        for row in rows
    ]
    return table(["logits", "", *columns], lines)


def autoencoder_losses(rows: list[Row]) -> str:
    """Return losses and seconds of training, means over seeds, at the last step common to all."""
    names = {row["estimator"] for row in rows}
    last = min(max(row["step"] for row in rows if row["estimator"] == name) for name in names)
    runs = [row for row in rows if row["step"] == last]
    lines = []
    for name in distinct(runs, "estimator"):
        same = selected(runs, estimator=name)
        columns = ("loss_likeliest", "loss", "seconds")
        means = [sum(row[column] for row in same) / len(same) for column in columns]
        lines.append([name, f"{means[0]:.1f}", f"{means[1]:.1f}", len(same), f"{means[2]:.0f}"])
    head = (f"after {last:,.0f} steps", "most likely code", "a draw", "seeds", "seconds")
    return table(head, lines)


def autoencoder_picture(path: Path) -> None:
    rows = [row for row in read("subset/autoencoder") if row["step"] > 0]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for number, name in enumerate(distinct(rows, "estimator")):
        for seed in sorted({row["seed"] for row in rows}):
            run = selected(rows, estimator=name, seed=seed)
            for ax, column in zip(axes, ("step", "seconds"), strict=True):
                label = name if seed == 0 else None
                values = [row[column] for row in run]
                ax.plot(
                    values, [row["loss_likeliest"] for row in run], color=f"C{number}", label=label
                )
    axes[0].set(xlabel="step", ylabel="test loss at the most likely code, nats")
    axes[1].set(xlabel="seconds of training")
    axes[0].legend()
    figure.savefig(path, dpi=130)


def sweep_times(rows: list[Row]) -> dict[str, str]:
    """Return how the cost of SCateR's sweep grows with d, and its lead over a loop."""
    numbers = {}
    for kind, law in (("state", "with a state"), ("prefix", "without")):
        sweeps = selected(rows, what="sweep", law=law)
        (loop,) = selected(rows, what="loop", law=law)
        (sweep,) = selected(sweeps, d=loop["d"])
        sizes, times, counts = (
            [row[column] for row in sweeps] for column in ("d", "milliseconds", "conditional_rows")
        )
        numbers[f"{kind}_growth"] = f"{exponent(sizes, times):.2f}"
        numbers[f"{kind}_lead"] = f"{loop['milliseconds'] / sweep['milliseconds']:.0f}"
        numbers["rows_growth"] = f"{exponent(sizes, counts):.2f}"
    return numbers


def values() -> dict[str, object]:
    return {
        "subset_times": subset_times(),
        "subset_errors": subset_errors(),
        "autoencoder_losses": autoencoder_losses(read("subset/autoencoder")),
        "autoencoder_mnist": autoencoder_losses(read("subset/autoencoder_mnist")),
        "counts": counts(read("quality/counts")),
        **sweep_times(read("quality/structured_scaling")),
    }


def figures() -> dict[str, object]:
    return {"structured_variance.png": picture, "subset_autoencoder.png": autoencoder_picture}


def counts(rows: list[Row]) -> str:
    """Return the variance of gradients for counts, by function and estimator."""
    rows = [{**row, "method": f"{row['estimator']} | {row['evaluations']}"} for row in rows]
    names, lines = pivot(rows, "method", "function", lambda row: short(row["variance"]))
    return table(("estimator", "evaluations", *names), lines)
