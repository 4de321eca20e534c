"""
The logarithm of an expectation: products modulo 7
==================================================

A network learns to read two digits from their product modulo 7, by maximum likelihood.

The likelihood of a product is ``E([x_1 x_2 mod 7 is right], q)``, and the loss is minus its
logarithm. The logarithm of an *estimate* is biased: its mean is too low, and it is minus infinity
where all draws are wrong. ``catlog.log_expectation`` defines that case and lowers the bias. Here
all 100 pairs of digits can be enumerated, so both can be seen.
"""

# sphinx_gallery_thumbnail_number = 2

import math
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent

import catlog
from catlog_experiments.data import load

QUICK = "CATLOG_QUICK" in os.environ
FLOOR = 1e-3  # is added to every estimate, so that its logarithm is finite
EPOCHS, SEEDS, REPEATS = 1 if QUICK else 12, 1 if QUICK else 2, 200 if QUICK else 2000
digits = load("mnist-5000")
torch.manual_seed(0)
pairs = torch.randperm(4000).view(-1, 2)
test_pairs = torch.arange(1000).view(-1, 2)[torch.randperm(500)]
test_pairs = torch.stack([test_pairs[:, 0], test_pairs[:, 1].roll(1)], 1)  # all pairs of digits


def products(labels: Tensor) -> Tensor:
    return labels.prod(-1) % 7


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def readings(model: nn.Module, rows: Tensor, images: Tensor = digits.train) -> Independent:
    """Return the distributions of two digits that the model reads in each pair of images."""
    return Independent(Categorical(logits=model(images[rows])), 1)


# %%
# **The bias.** For ten pairs of images and an untrained network, the mean of many estimates of the
# log-likelihood minus the exact one. All have 38 or 40 evaluations of f. ``repeats=2`` spends them
# on two calls of the estimator. The difference of the two shows how noisy they are, and is used to
# correct the leading error. If all draws were wrong, the value is the logarithm of the floor, and
# such a pair of images has no gradient.

model = network()
rows = pairs[:10]
answers = products(digits.train_labels[rows])


def is_right(x: Tensor) -> Tensor:
    """Digits ``[..., batch, 2]`` to whether they give the present answers ``[batch]``."""
    return products(x) == answers


candidates = {
    "RLOO(40)": (catlog.RLOO(40), 1),
    "RLOO(20), repeats=2": (catlog.RLOO(20), 2),
    "IndeCateR(2)": (catlog.IndeCateR(2), 1),
    "IndeCateR(1), repeats=2": (catlog.IndeCateR(1), 2),
}
bias, error = {}, {}
with torch.no_grad():
    q = readings(model, rows)
    truth = catlog.log_expectation(catlog.Exact(), is_right, q)
    for name, (E, repeats) in candidates.items():
        many = q.expand([REPEATS, 10])
        estimates = catlog.log_expectation(E, is_right, many, repeats=repeats, floor=FLOOR)
        missed = (estimates < math.log(1.01 * FLOOR)).float().mean()
        differences = (estimates - truth).mean(-1)
        bias[name] = float(differences.mean())
        error[name] = float(differences.std() / REPEATS**0.5)
        print(
            f"{name:24} bias {bias[name]:+.4f} ± {error[name]:.4f} nats; "
            f"all draws wrong in {100 * missed:.1f} % of the estimates"
        )

# %%
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axes.barh(list(bias), list(bias.values()), xerr=list(error.values()), color="tab:blue")
axes.invert_yaxis()
axes.axvline(0, color="black", linewidth=0.8)
axes.set(xlabel="bias of log E[f], nats")
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/product_modulo_7_bias.png", dpi=150)

# %%
# **Training.** The digits 0 and 7 always have the product 0, so only the product can be learned,
# not every digit. A guess of 0 is right in about a third of all products.


def accuracy(model: nn.Module) -> float:
    """Return the share of test products that the most probable digits give."""
    with torch.no_grad():
        read = model(digits.test[test_pairs]).argmax(-1)
    return float((products(read) == products(digits.test_labels[test_pairs])).float().mean())


estimators = {
    "Exact": (catlog.Exact(), 1),
    "IndeCateR": (catlog.IndeCateR(1), 2),
    "RLOO": (catlog.RLOO(20), 2),
}
curves: dict[str, list[list[float]]] = {}
for name, (E, repeats) in estimators.items():
    curves[name] = []
    began = time.process_time()
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = network()
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
        curve = [accuracy(model)]
        for _ in range(EPOCHS):
            shuffled = torch.randperm(4000).view(-1, 2)
            for rows in shuffled.split(20):
                answers = products(digits.train_labels[rows])
                q = readings(model, rows)
                likelihood = catlog.log_expectation(E, is_right, q, repeats=repeats, floor=FLOOR)
                optimiser.zero_grad()
                (-likelihood.mean()).backward()
                optimiser.step()
            curve.append(accuracy(model))
        curves[name].append(curve)
    ends = ", ".join(f"{curve[-1]:.3f}" for curve in curves[name])
    print(f"{name:10} products read right {ends}; {time.process_time() - began:.0f} s of CPU time")

# %%
# 100 evaluations of f for Exact, 38 and 40 for the others. f is cheap here, so the exact likelihood
# takes no more time than an estimate. A run that settles on a wrong reading of some digit stays
# below the others for a long time.

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for colour, (name, runs) in enumerate(curves.items()):
    for seed, curve in enumerate(runs):
        axes.plot(curve, color=f"C{colour}", label=name if seed == 0 else None)
axes.set(xlabel="epoch", ylabel="products read right (test)", ylim=(0, 1))
axes.legend()
figure.savefig("demo/product_modulo_7.png", dpi=150)
