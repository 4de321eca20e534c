"""The pictures and numbers of idea.md, by enumeration of every draw of some random functions."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog

METHODS = {"REINFORCE": catlog.Reinforce(), "IndeCateR": catlog.IndeCateR()}
COLOURS = {"REINFORCE": "#c2410c", "IndeCateR": "#1d4ed8"}
AS_DRAWN, CLAMPED, REDRAWN = "#e5e7eb", "#1d4ed8", "#fde68a"  # colours of variables
LOGITS = [round(-4 + 0.125 * i, 3) for i in range(65)]
TABLES = 400


def points(d: int) -> Tensor:
    """Return all points of d bits, a row each."""
    return torch.tensor(list(product((0.0, 1.0), repeat=d)), dtype=torch.float64)


def tabled(values: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function of bits with these values, in the order of ``points``."""

    def f(x: Tensor) -> Tensor:
        return values[(x @ 2.0 ** torch.arange(x.shape[-1] - 1, -1, -1, dtype=x.dtype)).long()]

    return f


def estimates(
    E: catlog.Estimator, f: Callable[[Tensor], Tensor], theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one draw's gradient for every outcome ``[outcomes, d]``, and their probabilities."""
    x = points(len(theta))
    logits = theta.expand(x.shape).clone().requires_grad_()
    value = E(f, Independent(Bernoulli(logits=logits), 1), x=x.unsqueeze(0))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return gradient, Independent(Bernoulli(logits=theta), 1).log_prob(x).exp()


def variance(values: Tensor, weight: Tensor) -> Tensor:
    """Return the variance of outcomes ``[outcomes, ...]`` with these probabilities."""
    weight = weight.view(-1, *[1] * (values.dim() - 1))
    return (weight * (values - (weight * values).sum(0)).square()).sum(0)


def variances(f: Callable[[Tensor], Tensor], theta: Tensor, *, is_shared: bool) -> dict[str, float]:
    """Return the variance of the gradient in the first logit, or in one that all bits share."""
    measured = {}
    for name, E in METHODS.items():
        gradient, weight = estimates(E, f, theta)
        measured[name] = variance(gradient.sum(-1) if is_shared else gradient[:, 0], weight).item()
    return measured


def shared() -> list[dict[str, Any]]:
    """Return the variance of the gradient of XOR, for two bits with one logit."""
    xor = tabled(torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    thetas = {logit: torch.full((2,), logit, dtype=torch.float64) for logit in LOGITS}
    return [
        {"problem": "xor", "logit": logit, **variances(xor, theta, is_shared=True)}
        for logit, theta in thetas.items()
    ]


@cache
def random_tables() -> list[dict[str, Any]]:
    """Return variances for random functions of three bits, with separate logits or a shared one."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(TABLES):
        f = tabled(torch.randn(8, dtype=torch.float64, generator=generator))
        theta = torch.randn(3, dtype=torch.float64, generator=generator)
        rows.append({"problem": "own logits", **variances(f, theta, is_shared=False)})
        same = theta[:1].expand(3)
        rows.append({"problem": "shared logit", **variances(f, same, is_shared=True)})
    return rows


def values() -> dict[str, object]:
    rows = [row for row in random_tables() if row["problem"] == "shared logit"]
    return {
        "tables": TABLES,
        "own_above": above("own logits"),
        "shared_above": above("shared logit"),
        "median": f"{median(row['IndeCateR'] / row['REINFORCE'] for row in rows):.2f}",
    }


def above(problem: str) -> int:
    """Return on how many random functions IndeCateR has more variance than REINFORCE."""
    rows = [row for row in random_tables() if row["problem"] == problem]
    return sum(row["IndeCateR"] > row["REINFORCE"] for row in rows)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def evaluated_points(kind: str) -> list[list[tuple[int, str]]]:
    """Return the points of one draw, each variable with the colour of where it comes from.

    Beside the draw, every variable is set to every other category, unless ``kind`` is "none". With
    "suffix", the variables after it are drawn again.
    """
    x, k = [0, 2, 1, 1], 3
    redrawn = {0: [[2, 0, 1], [0, 1, 2]], 1: [[0, 2], [2, 1]], 2: [[0], [2]], 3: [[], []]}
    rows = [[(value, AS_DRAWN) for value in x]]
    for i in range(len(x)) if kind != "none" else ():
        categories = [category for category in range(k) if category != x[i]]
        for category, suffix in zip(categories, redrawn[i], strict=True):
            row = [(value, AS_DRAWN) for value in x]
            row[i] = category, CLAMPED
            if kind == "suffix":
                row[i + 1 :] = [(value, REDRAWN) for value in suffix]
            rows.append(row)
    return rows


def draw_points(axes: Axes, rows: list[list[tuple[int, str]]]) -> None:
    """Draw a line of squares per point, the draw itself on top."""
    for r, row in enumerate(rows):
        below = r + (0.4 if r else 0)
        for j, (value, face) in enumerate(row):
            square = plt.Rectangle((j, -below), 0.92, 0.84, facecolor=face, edgecolor="none")
            axes.add_patch(square)
            ink = "white" if face == CLAMPED else "#111827"
            axes.text(j + 0.46, -below + 0.4, value, ha="center", va="center", color=ink)
    axes.text(-0.25, 0.4, "x", ha="right", va="center", style="italic")
    axes.set(xlim=(-0.7, 4.1), ylim=(-8.7, 1.1), aspect="equal")
    axes.axis("off")


def which_points(path: Path) -> None:
    """Draw where each estimator evaluates f, for one draw of four variables, three categories."""
    figure, panels = plt.subplots(1, 3, figsize=(9, 4.1), dpi=130, layout="constrained")
    titles = (
        "REINFORCE\nthe draw, nothing else",
        "SCateR\none variable set, later ones resampled",
        "IndeCateR\none variable set, the others kept",
    )
    for axes, title, kind in zip(panels, titles, ("none", "suffix", "keep"), strict=True):
        draw_points(axes, evaluated_points(kind))
        axes.set_title(title, fontsize=9.5)
    faces = (AS_DRAWN, CLAMPED, REDRAWN)
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=face) for face in faces]
    labels = ["as drawn", "set to every other category", "resampled, given the earlier ones"]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def rao_blackwell(path: Path) -> None:
    """Draw one logit's gradient for every outcome of four bits: IndeCateR's are means."""
    d = 4
    f = tabled(
        torch.randn(2**d, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 1
    )
    theta = torch.tensor([0.4, -0.6, 0.2, 0.9], dtype=torch.float64)
    figure, axes = plt.subplots(figsize=(7.5, 3.6), dpi=130, layout="constrained")
    # The first bit is the slowest: rows r and r + half differ in it alone.
    x, half = points(d), 2 ** (d - 1)
    for name, E in METHODS.items():
        gradient, weight = estimates(E, f, theta)
        label = f"{name}: variance {variance(gradient, weight)[0]:.3f}"
        if name == "REINFORCE":
            for r in range(half):
                pair = gradient[[r, r + half], 0]
                axes.plot([r, r], pair, color="#d1d5db", linewidth=1.5, zorder=1)
            place, sizes = torch.arange(half).repeat(2), 500 * weight
            axes.scatter(place, gradient[:, 0], sizes, zorder=2, color=COLOURS[name], label=label)
            exact = (weight * gradient[:, 0]).sum().item()
        else:
            place, sizes = torch.arange(half), 500 * (weight[:half] + weight[half:])
            style = {"marker": "D", "zorder": 3, "color": COLOURS[name], "label": label}
            axes.scatter(place, gradient[:half, 0], sizes, **style)
    line = {"color": "#111827", "linewidth": 1, "linestyle": "--", "zorder": 0}
    axes.axhline(exact, label="exact gradient", **line)
    axes.set_xticks(range(half), ["".join(str(int(bit)) for bit in row) for row in x[:half, 1:]])
    axes.set_xlabel(r"the other bits $x_{\neq 1}$; size of a mark: its probability")
    axes.set_ylabel(r"one draw's estimate of $\partial/\partial\theta_1$")
    axes.margins(y=0.15)
    legend = figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    for handle in legend.legend_handles[:2]:
        handle.set_sizes([40])  # type: ignore[union-attr]
    _clean(axes)
    figure.savefig(path)


def limit(path: Path) -> None:
    """Draw the variances with shared parameters: XOR, and random functions."""
    rows = shared() + random_tables()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), dpi=130, layout="constrained")
    for name in METHODS:
        curve = [(row["logit"], row[name]) for row in rows if row["problem"] == "xor"]
        left.plot(*zip(*curve, strict=True), color=COLOURS[name], label=name, linewidth=2)
    left.set(
        xlabel="the logit that both bits share",
        ylabel="variance of one draw's gradient",
        title="XOR of two bits with one logit",
    )
    left.legend(frameon=False)
    for problem, colour in (("own logits", "#0f766e"), ("shared logit", "#a21caf")):
        some = [row for row in rows if row["problem"] == problem]
        label = f"{problem}: {above(problem)} of {len(some)} above"
        x, y = ([row[name] for row in some] for name in ("REINFORCE", "IndeCateR"))
        right.scatter(x, y, 9, color=colour, alpha=0.6, label=label, linewidths=0)
    ends = [5e-3, 5]
    right.plot(ends, ends, color="#111827", linewidth=1, linestyle="--")
    right.set(xscale="log", yscale="log", xlim=(5e-3, 5), ylim=(5e-5, 5))
    right.set(xlabel="variance of REINFORCE", ylabel="variance of IndeCateR")
    right.set_title(f"{TABLES} random functions of three bits")
    right.legend(frameon=False, loc="lower right", fontsize=9)
    for axes in (left, right):
        _clean(axes)
    figure.savefig(path)


def figures() -> dict[str, object]:
    return {
        "idea_points.png": which_points,
        "idea_rao_blackwell.png": rao_blackwell,
        "idea_limit.png": limit,
    }
