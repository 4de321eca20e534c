"""The picture of choose.md: variance on a trained autoencoder, from
results/quality/variance_dvae.csv.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from . import read

# Method in the file: label in the picture. The file has more.
METHODS = {
    "RLOO n=402": "RLOO(402)",
    "IndeCateR n=2": "IndeCateR(2)",
    "IndeCateR n=2, Latin": 'IndeCateR(2, sampling="latin")',
    "IndeCateR n=20, m=20, Taylor, Latin": 'IndeCateR(20, variables=20,\ndraws="latin")',
}


def picture(path: Path) -> None:
    rows = read("quality/variance_dvae")
    stages = sorted({row["epochs"] for row in rows})
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    height = 0.8 / len(stages)
    for i, epochs in enumerate(stages):
        stage = {row["method"]: row for row in rows if row["epochs"] == epochs}
        shade = plt.get_cmap("viridis")(0.15 + 0.6 * i / max(1, len(stages) - 1))
        for j, method in enumerate(METHODS):
            variance, error = stage[method]["variance"], stage[method]["variance_95"]
            place = j + (i - (len(stages) - 1) / 2) * height
            label = f"{epochs} epochs" if j == 0 else None
            axes.barh(
                place, variance, height * 0.9, xerr=error, color=shade, capsize=2, label=label
            )
            text = f"{variance:,.0f}" if variance >= 10 else f"{variance:#.2g}"
            axes.annotate(
                text, (variance + error, place), (5, 0), textcoords="offset points", va="center"
            )
    axes.set_yticks(range(len(METHODS)), list(METHODS.values()))
    axes.set(xscale="log")
    axes.set_xlabel("variance over draws / ‖gradient‖², with 95 % intervals")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(title="decoder trained for", loc="outside right center", frameon=False)
    figure.savefig(path, dpi=130)


def figures() -> dict[str, object]:
    return {"variance.png": picture}
