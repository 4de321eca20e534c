"""
An expensive black box in worker processes, from a notebook
===========================================================

Which columns does a decision tree need? f is a cross-validation that two processes share.

``catlog.functions.Mapped`` gives each point to a worker of an executor, as a numpy array. In a
notebook the function is defined in a cell, not in a module that a worker could import. loky's
executor sends it as a copy, together with the data that it uses. loky is a package of its own, and
a part of joblib, which comes with scikit-learn. This page can be downloaded as a notebook.
"""

import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from joblib.externals.loky import get_reusable_executor  # or: from loky import ...
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.functions import Mapped

QUICK = "CATLOG_QUICK" in os.environ
STEPS, WORKERS = 4 if QUICK else 25, 2
data = load_breast_cancer()
columns, labels = data.data, data.target
print(f"{len(columns)} patients, {columns.shape[1]} columns")

# %%
# f is an ordinary function of one point that uses variables of other cells. A main guard is not
# needed, and lambdas and closures would work as well.

PRICE = 0.005  # of a column


def score(bits: np.ndarray) -> float:
    """Return the accuracy of a tree on the selected columns in a cross-validation, less a price."""
    chosen = bits.astype(bool)
    if not chosen.any():
        return float(max(labels.mean(), 1 - labels.mean()))
    tree = DecisionTreeClassifier(max_depth=4, random_state=0)
    accuracies = cross_val_score(tree, columns[:, chosen], labels, cv=3)
    return float(accuracies.mean() - PRICE * chosen.sum())


# %%
# The result is an f for any estimator that needs no derivative. If ``score`` raises an error,
# another error names the point.

torch.manual_seed(0)
logits = torch.zeros(30, requires_grad=True)
optimiser = torch.optim.Adam([logits], lr=0.3)
E = catlog.CritiCateR(samples=24)
history, values = [], []
began = time.perf_counter()
f = Mapped(score, get_reusable_executor(WORKERS))
for _ in range(STEPS):
    optimiser.zero_grad()
    value = E(f, Independent(Bernoulli(logits=logits), 1))
    (-value).backward()
    history.append(logits.sigmoid().detach())
    values.append(value.item())
    optimiser.step()
seconds = time.perf_counter() - began
chosen = (logits > 0).numpy()
print(f"{STEPS} steps of 24 evaluations by {WORKERS} workers: {seconds:.1f} s")
print(f"expected score {values[0]:.3f} before, {values[-1]:.3f} after")
print(f"all columns {score(np.ones(30)):.3f}, selected ones {score(chosen):.3f}")
print(f"selected {chosen.sum()}:", ", ".join(data.feature_names[chosen]))

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
axes[0].plot(values)
axes[0].axhline(score(np.ones(30)), color="grey", linestyle=":", label="all columns")
axes[0].set(xlabel="step", ylabel="expected score")
axes[0].legend()
paths = torch.stack(history)
axes[1].plot(paths[:, ~chosen], color="lightgrey")
axes[1].plot(paths[:, chosen], color="tab:blue")
axes[1].set(xlabel="step", ylabel="probability of being selected", ylim=(0, 1))
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/notebook_workers.png", dpi=150)
