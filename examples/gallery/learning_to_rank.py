"""
Learning to rank with a list-wise reward
========================================

A policy over rankings, ``PlackettLuce``, trained on NDCG itself, which has no derivative.

Every query has eight documents with four features and a relevance from 0 to 4. A linear model
scores the documents. NDCG@3 looks at the first three of the ranking that the scores make: relevant
documents should be among them, in the right order. It is a step function of the scores, so the
usual way is to predict relevance by least squares and to sort. Here the scores define a
distribution over rankings, and E[NDCG] has a gradient.

The queries are constructed so that this matters. One feature grows with quality, with much noise.
Another has little noise, but it grows only up to a medium quality and falls beyond it. It predicts
the relevance of most documents well and misleads among the best ones, on which the reward depends.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import catlog

QUICK = "CATLOG_QUICK" in os.environ
STEPS = 40 if QUICK else 200
DOCUMENTS, FEATURES, TOP, BATCH = 8, 4, 3, 64


def queries(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return features ``[count, 8, 4]`` and relevances ``[count, 8]``."""
    generator = torch.Generator().manual_seed(seed)
    quality = torch.randn(count, DOCUMENTS, generator=generator)
    features = torch.randn(count, DOCUMENTS, FEATURES, generator=generator)
    features[..., 0] = quality + 1.5 * features[..., 0]
    features[..., 1] = -(quality - 0.5).abs() + 0.2 * features[..., 1]
    return features, (1.2 * quality + 1.5).clamp(0, 4).round()


train, relevance = queries(2000, seed=0)
test, test_relevance = queries(1000, seed=1)


# %%
# The reward: discounted gains of the first three documents, relative to the best ranking.

DISCOUNT = 1 / torch.arange(2.0, TOP + 2).log2()


def ndcg(ranking: Tensor, relevance: Tensor) -> Tensor:
    """Rankings ``[*lead, 3]`` of documents with relevances ``[*lead, 8]`` to NDCG@3."""
    gains = 2**relevance - 1
    best = (gains.sort(-1, descending=True).values[..., :TOP] * DISCOUNT).sum(-1)
    gained = gains.expand(*ranking.shape[:-1], DOCUMENTS).gather(-1, ranking)
    return (gained * DISCOUNT).sum(-1) / best.clamp(min=1)


def held_out_ndcg(weights: Tensor) -> float:
    """Return the mean NDCG@3 of test queries, sorted by score."""
    ranking = (test @ weights).topk(TOP, -1).indices
    return ndcg(ranking, test_relevance).mean().item()


columns = torch.cat([train, torch.ones_like(train[..., :1])], -1).flatten(0, 1)
least_squares = torch.linalg.lstsq(columns, relevance.flatten().unsqueeze(-1)).solution[:-1, 0]
print(f"least squares    test NDCG {held_out_ndcg(least_squares):.3f}")


# %%
# Rankings of the first three documents are enough (``k=3``). Both estimators draw eight rankings
# per query and step.

histories: dict[str, list[float]] = {}
for name, E in {"RLOO": catlog.RLOO(8), "CritiCateR": catlog.CritiCateR(8)}.items():
    torch.manual_seed(0)
    weights = torch.zeros(FEATURES, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=0.05)
    histories[name] = []
    for step in range(STEPS):
        rows = torch.randint(len(train), (BATCH,))
        q = catlog.distributions.PlackettLuce(train[rows] @ weights, k=TOP)
        reward = E(lambda x, rows=rows: ndcg(x, relevance[rows]), q).mean()
        optimiser.zero_grad()
        (-reward).backward()
        optimiser.step()
        if step % 10 == 9:
            histories[name].append(held_out_ndcg(weights.detach()))
    print(f"{name:16} test NDCG {histories[name][-1]:.3f}")

# %%
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name, history in histories.items():
    ax.plot([10 * (i + 1) for i in range(len(history))], history, label=name)
ax.axhline(held_out_ndcg(least_squares), color="grey", linestyle="--", label="least squares")
ax.set(xlabel="step", ylabel="test NDCG@3")
ax.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/learning_to_rank.png", dpi=150)
