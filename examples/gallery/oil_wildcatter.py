"""
A Bayesian network fitted to a reward: the oil wildcatter
=========================================================

Test the ground? Drill? A policy inside a Bayesian network, trained to earn the most.

Raiffa's classic decision problem as a Bayesian network. Nature's nodes (is there oil? what does the
seismic test say?) have known tables. The wildcatter's nodes (test or not? drill or not, given the
report?) are learned, to maximise the expected profit. The variables depend on each other, so this
needs an estimator for structured distributions. The best policy is known by solving the decision
tree: test, and drill unless the test shows no structure. It earns 22,500 dollars on average.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import catlog
from catlog.distributions import Node

QUICK = "CATLOG_QUICK" in os.environ
STEPS, RUNS = 30 if QUICK else 400, 16

# %%
# Tables: oil (dry, wet, soaking); the test's report (no structure, open, closed, and "not tested").

OIL = torch.tensor([0.5, 0.3, 0.2]).log()
TESTED = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.3, 0.4, 0.3, 0.0], [0.1, 0.4, 0.5, 0.0]])
NOT_TESTED = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(3, 4)
REPORT = torch.stack([NOT_TESTED, TESTED]).log()  # [test, oil, report]
PAYOFF = torch.tensor([-70.0, 50.0, 200.0])  # of drilling, in thousands of dollars; a test costs 10


def network(test: Tensor, drill: Tensor) -> catlog.distributions.BayesianNetwork:
    """``RUNS`` wildcatters, each with its own logits ``test [2]`` and ``drill [report, 2]``."""
    nodes = {
        "oil": Node([], OIL.expand(RUNS, 3), fixed=True),
        "test": Node([], test),
        "report": Node(["test", "oil"], REPORT.expand(RUNS, 2, 3, 4), fixed=True),
        "drill": Node(["report"], drill),
    }
    return catlog.distributions.BayesianNetwork(nodes, (RUNS,))


def profit(x: Tensor) -> Tensor:
    oil, test, _, drill = x.unbind(-1)
    return drill * PAYOFF[oil] - 10 * test


# %%
# This is gradient ascent. ``Exact`` sums over all 48 points and gives the true gradient. The others
# get about 30 evaluations per step. Sixteen wildcatters learn at once, through the batch
# dimension of the distribution.

estimators = {
    "exact gradient": catlog.Exact(),
    "SCateR": catlog.SCateR(samples=10, suffix="common"),
    "CritiCateR": catlog.CritiCateR(samples=30),
    "RLOO": catlog.RLOO(samples=30),
    "Reinforce": catlog.Reinforce(samples=30),
}
curves, policies = {}, {}
for name, E in estimators.items():
    torch.manual_seed(0)
    test = torch.zeros(RUNS, 2, requires_grad=True)
    drill = torch.zeros(RUNS, 4, 2, requires_grad=True)
    optimiser = torch.optim.Adam([test, drill], lr=0.03)
    curves[name] = []
    for _ in range(STEPS + 1):
        q = network(test, drill)
        with torch.no_grad():
            curves[name].append(catlog.Exact()(profit, q))
        optimiser.zero_grad()
        (-E(profit, q)).sum().backward()
        optimiser.step()
    policies[name] = test.softmax(-1)[:, 1].detach(), drill.softmax(-1)[:, :, 1].detach()
    final = curves[name][-1]
    print(
        f"{name:15} {E.evaluations(q):3} evaluations: mean profit {final.mean():6.2f} of 22.50, "
        f"worst of {RUNS} runs {final.min():6.2f}"
    )

# %%
# "Never test, drill anyway" earns 20. It is a trap on the way to the best policy, and noise keeps
# some of the runs in it. SCateR's 30 evaluations are 10 histories and their changes; here 30
# independent histories are better.

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(torch.stack(curve).mean(1), label=name)
axes.axhline(22.5, color="grey", linestyle=":", label="best policy: 22.5")
axes.axhline(20, color="grey", linestyle="--", linewidth=0.8, label="drill without a test: 20")
axes.set(xlabel="step", ylabel="expected profit (1000 $), mean of 16 runs", ylim=(0, 24))
axes.legend(fontsize=8)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/oil_wildcatter.png", dpi=150)

# %%
# The best learned policy:

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
test, drill = policies["CritiCateR"]
run = int(curves["CritiCateR"][-1].argmax())
names = ["test", "drill:\nno structure", "drill:\nopen", "drill:\nclosed"]
axes.bar(names, [float(test[run]), *drill[run, :3].tolist()], color="tab:blue")
axes.set(title="probability to ...", ylim=(0, 1.05))
figure.savefig("demo/oil_wildcatter_policy.png", dpi=150)
