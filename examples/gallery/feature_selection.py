"""
Feature selection with a metric that has no derivative
======================================================

Which columns should a classifier get? There is one bit per column, and f calls scikit-learn.

f trains scikit-learn's naive Bayes on the selected columns and returns its balanced accuracy on
held-out rows. It has no derivative. The table is scikit-learn's wine data with 13 shuffled copies
of its columns added. A good selection omits the copies, and that can be checked.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_wine
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog

QUICK = "CATLOG_QUICK" in os.environ
STEPS = 8 if QUICK else 60
real, labels = load_wine(return_X_y=True)
shuffled = np.random.default_rng(0).permuted(real, axis=0)
columns = np.concatenate([real, shuffled], 1)


def split(rows: np.ndarray, truth: np.ndarray, share: float) -> list[np.ndarray]:
    return train_test_split(rows, truth, test_size=share, random_state=0, stratify=truth)


rest, test, y_rest, y_test = split(columns, labels, 0.3)
train, held_out, y_train, y_held_out = split(rest, y_rest, 0.5)

# %%
# The metric is plain numpy and scikit-learn, one selection at a time. Selections repeat as the
# distribution becomes certain, so a dictionary saves most of the work in the end.

known: dict[bytes, float] = {}


def accuracy(chosen: np.ndarray, rows: np.ndarray, truth: np.ndarray) -> float:
    if not chosen.any():
        return 1 / 3  # a guess among three classes
    model = GaussianNB().fit(train[:, chosen], y_train)
    return float(balanced_accuracy_score(truth, model.predict(rows[:, chosen])))


def f(x: Tensor) -> Tensor:
    """Bits ``[n, 26]`` to held-out accuracy minus half a percent for every column: ``[n]``."""
    values = []
    for bits in x.bool().numpy():
        key = bits.tobytes()
        if key not in known:
            known[key] = accuracy(bits, held_out, y_held_out) - 0.005 * bits.sum()
        values.append(known[key])
    return torch.tensor(values)


# %%
# Both estimators get 27 evaluations per step.

histories = {}
for name, E in {"IndeCateR": catlog.IndeCateR(samples=1), "RLOO": catlog.RLOO(samples=27)}.items():
    torch.manual_seed(0)
    known.clear()
    logits = torch.zeros(26, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.2)
    histories[name] = []
    for _ in range(STEPS):
        histories[name].append(logits.sigmoid().detach())
        optimiser.zero_grad()
        (-E(f, Independent(Bernoulli(logits=logits), 1))).backward()
        optimiser.step()
    chosen = (logits > 0).numpy()
    print(
        f"{name:10} keeps {chosen[:13].sum()} of 13 real columns "
        f"and {chosen[13:].sum()} of 13 shuffled ones; "
        f"test accuracy {accuracy(chosen, test, y_test):.3f}; {len(known)} models trained"
    )
print(f"all columns: test accuracy {accuracy(np.ones(26, bool), test, y_test):.3f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
for ax, (name, history) in zip(axes, histories.items(), strict=True):
    paths = torch.stack(history)
    ax.plot(paths[:, 13:], color="lightgrey")
    ax.plot(paths[:, :13], color="tab:blue")
    ax.set(title=name, xlabel="step")
axes[0].set(ylabel="probability of being selected", ylim=(0, 1))
lines = {"real columns": axes[0].lines[-1], "shuffled copies": axes[0].lines[0]}
figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/feature_selection.png", dpi=150)
