"""
MaxCut, and an entropy bonus that works
=======================================

Divide the nodes of a graph so that many edges are cut, with a learned distribution over all cuts.

There are 30 nodes, a bit for each, and every bit depends on all earlier ones. The number of cut
edges has no derivative. A policy that is rewarded for cuts alone soon draws the same cut again and
again, even if it is not the best. An entropy bonus that decreases during training keeps it
searching.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import catlog

QUICK = "CATLOG_QUICK" in os.environ
NODES, EDGES = 30, 120
STEPS, DRAWS, SEEDS = 40 if QUICK else 160, 32, 1 if QUICK else 3
BONUS = 2.0  # edges that one nat of entropy is worth at first

torch.manual_seed(0)
pairs = torch.combinations(torch.arange(NODES))
edges = pairs[torch.randperm(len(pairs))[:EDGES]]


def f(x: Tensor) -> Tensor:
    """Sides of the nodes ``[..., nodes]`` to the numbers of cut edges ``[...]``."""
    return (x[..., edges[:, 0]] != x[..., edges[:, 1]]).sum(-1).float()


# %%
# The policy is a network with masked weights, so that the logits of node i depend only on nodes
# before i. ``all_logits`` gives all conditionals of a known cut in one call. For sampling, ``step``
# computes one node at a time from the sides so far. :class:`~catlog.distributions.Autoregressive`
# checks that both agree, and that logits do not depend on later nodes.


class Policy(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        scale = (NODES * hidden) ** -0.5
        self.first = nn.Parameter(scale * torch.randn(NODES, hidden, NODES))
        self.bias = nn.Parameter(torch.zeros(NODES, hidden))
        self.second = nn.Parameter(scale * torch.randn(NODES, hidden, 2))
        self.register_buffer("mask", torch.ones(NODES, NODES).tril(-1).unsqueeze(1))

    def all_logits(self, x: Tensor) -> Tensor:
        sides = 2.0 * x - 1
        hidden = torch.einsum("ihj,...j->...ih", self.first * self.mask, sides) + self.bias
        return torch.einsum("...ih,ihk->...ik", hidden.tanh(), self.second)

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(*lead, NODES)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is not None:
            state = state.clone()
            state[..., i - 1] = 2.0 * previous - 1
        hidden = state @ self.first[i].T + self.bias[i]  # later nodes are still zero
        return hidden.tanh() @ self.second[i], state


# %%
# **The bonus.** The entropy is ``E[-log q(x)]``, so it is one more term of f, detached, and the
# estimator differentiates it as it does the rest of f. The mean of ``-q.log_prob(x)`` over draws
# has the same value, but its gradient is zero in expectation, and it would do nothing.


def train(E: catlog.Estimator, bonus: float, seed: int) -> tuple[list[float], list[float], float]:
    """Return for every step the mean number of cut edges and the entropy, and the best cut."""
    torch.manual_seed(seed)
    q = catlog.distributions.Autoregressive(policy := Policy(), [2] * NODES)
    optimiser = torch.optim.Adam(policy.parameters(), lr=2e-2)
    means, entropies, best = [], [], 0.0
    for step in range(STEPS):
        weight = bonus * max(0.0, 1 - step / (0.8 * STEPS))  # zero in the last fifth
        seen = []

        def reward(x: Tensor, weight: float = weight, seen: list[Tensor] = seen) -> Tensor:
            cuts, log_probs = f(x), q.log_prob(x).detach()
            seen.append(torch.stack([cuts, -log_probs]))
            return cuts - weight * log_probs

        optimiser.zero_grad()
        (-E(reward, q)).backward()
        optimiser.step()
        cuts, surprise = torch.cat(seen, -1)
        means.append(float(cuts.mean()))
        entropies.append(float(surprise.mean()))
        best = max(best, float(cuts.max()))
    return means, entropies, best


# %%
# The best of all cuts is known: the first node stays where it is, and the other 2^29 cuts are
# enumerated. With sides of ±1, a cut has half of (edges - sum of side times side over all edges).
# The sum has a part within each half of the nodes, and a part between the halves, which is a matrix
# product.

adjacency = torch.zeros(NODES, NODES)
adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1
half = NODES // 2
sides = 1 - 2.0 * (torch.arange(2**half).unsqueeze(-1) >> torch.arange(half) & 1)
inner = ((sides @ adjacency[half:, half:]) * sides).sum(-1) / 2
least = torch.inf
for some in sides[sides[:, 0] == 1].split(512):
    outer = ((some @ adjacency[:half, :half]) * some).sum(-1, keepdim=True) / 2
    sums = torch.addmm(inner, some @ adjacency[:half, half:], sides.T) + outer
    least = min(least, float(sums.min()))
best_of_all = (EDGES - least) / 2
print(f"the best of all cuts has {best_of_all:.0f} of {EDGES} edges")

# %%
# Every method gets 32 evaluations of f per step.

settings = {
    "RLOO, no bonus": (catlog.RLOO(DRAWS), 0.0),
    "RLOO, bonus": (catlog.RLOO(DRAWS), BONUS),
    "CritiCateR, bonus": (catlog.CritiCateR(DRAWS), BONUS),
}
curves = {}
for name, (E, bonus) in settings.items():
    runs = [train(E, bonus, seed) for seed in range(SEEDS)]
    means, entropies = torch.tensor([run[:2] for run in runs]).mean(0)
    curves[name] = means, entropies
    found = ", ".join(f"{best:.0f}" for _, _, best in runs)
    print(f"{name:22} mean cut at the end {means[-10:].mean():.1f}; best cut of each run: {found}")

# %%
# Without the bonus the entropy is gone after a few dozen steps, and the cut at that time is the
# answer. With the bonus the policy decides later, and better.

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for name, (means, entropies) in curves.items():
    axes[0].plot(means, label=name)
    axes[1].plot(entropies)
axes[0].axhline(best_of_all, color="grey", linestyle=":", label="best of all cuts")
axes[0].set(xlabel="step", ylabel="mean number of cut edges")
axes[1].set(xlabel="step", ylabel="entropy of the policy, nats")
axes[0].legend(fontsize=8)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/maxcut.png", dpi=150)
