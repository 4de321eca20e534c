"""
A bandit with factored actions: which baseline?
===============================================

Five decisions at once with strong interactions: which estimator's gradient is least noisy?

A shop decides on 5 things at once (price, picture, place, ...), each with 4 options, for 8 kinds of
customers. All 1,024 actions can be enumerated, so the true gradient is known, and even the *exact*
baseline :math:`b = E[r]`, the best that REINFORCE could hope to learn. Summing over one decision at
a time gives every decision a separate baseline. No function of the customer alone can do that.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

import catlog

QUICK = "CATLOG_QUICK" in os.environ
CUSTOMERS, DECISIONS, OPTIONS, STEPS, REPEATS = 8, 5, 4, 20 if QUICK else 150, 50 if QUICK else 200
torch.manual_seed(0)
taste = torch.randn(CUSTOMERS, DECISIONS, OPTIONS)
pairs = torch.randn(CUSTOMERS, DECISIONS, OPTIONS, DECISIONS, OPTIONS) / 2


def reward(x: Tensor) -> Tensor:
    """``[..., customers, decisions]`` to ``[..., customers]``: a squashed score."""
    x = torch.nn.functional.one_hot(x, OPTIONS).float()
    score = (x * taste).sum((-1, -2)) + torch.einsum("...cdo,cdoep,...cep->...c", x, pairs, x)
    return 10 * (score / 2).sigmoid()


def policy(logits: Tensor) -> Independent:
    return Independent(Categorical(logits=logits), 1)


# %%
# Every estimator gets 16 evaluations of the reward. REINFORCE gets the exact baseline for free.

exact = catlog.Exact()


def exact_baseline(logits: Tensor) -> catlog.Reinforce:
    b = exact(reward, policy(logits.detach()))
    return catlog.Reinforce(16, baseline=lambda values: b)


estimators = {
    "Reinforce": lambda logits: catlog.Reinforce(16),
    "Reinforce, exact baseline": exact_baseline,
    "RLOO": lambda logits: catlog.RLOO(16),
    "CritiCateR": lambda logits: catlog.CritiCateR(16),
    "IndeCateR": lambda logits: catlog.IndeCateR(1),
}


def gradient(E: catlog.Estimator, logits: Tensor) -> Tensor:
    leaf = logits.detach().requires_grad_()
    return torch.autograd.grad(E(reward, policy(leaf)).sum(), leaf)[0]


# %%
# First we measure the noise of the gradient at a uniform policy. Then we train by plain gradient
# ascent, where the noise shows.

start = torch.zeros(CUSTOMERS, DECISIONS, OPTIONS)
truth = gradient(exact, start)
actions = torch.cartesian_prod(*[torch.arange(OPTIONS)] * DECISIONS)
best = reward(actions.unsqueeze(1).expand(-1, CUSTOMERS, -1)).amax(0).mean()
variance, curves = {}, {}
for name, make in estimators.items():
    torch.manual_seed(1)
    noise = torch.stack([gradient(make(start), start) for _ in range(REPEATS)]) - truth
    variance[name] = float(noise.square().sum((1, 2, 3)).mean() / truth.square().sum())
    logits = start.clone()
    curves[name] = []
    for _ in range(STEPS):
        curves[name].append(float(best - exact(reward, policy(logits)).mean()))
        logits += 0.5 * gradient(make(logits), logits)
    print(
        f"{name:26} variance / |gradient|^2: {variance[name]:.3f}   "
        f"regret after {STEPS} steps: {curves[name][-1]:.3f}"
    )

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
bars = axes.barh(list(variance), list(variance.values()), color=[f"C{i}" for i in range(5)])
axes.bar_label(bars, fmt="%.2f", padding=3)
axes.invert_yaxis()
axes.set(xlabel="variance / ‖gradient‖², 16 evaluations", xlim=(0, 1.15 * max(variance.values())))
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/factored_bandit.png", dpi=150)

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(curve, label=name)
axes.set(xlabel="step", ylabel="regret: best reward - expected reward", yscale="log")
axes.legend(fontsize=8)
figure.savefig("demo/factored_bandit_regret.png", dpi=150)
