"""
Reading digits from their sums
==============================

A network learns to read digits from nothing but the sum of three of them.

Nobody says what the single digits are. The network gives every image a distribution over 0 ... 9,
and the likelihood of a sum is ``E([x adds up to the sum], q)``. The function is an indicator. It
has no derivative, so relaxations do not apply, and with more digits it is zero more often.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent

import catlog
from catlog_experiments.data import addition, load

QUICK = "CATLOG_QUICK" in os.environ
DIGITS, EPOCHS, SEEDS = 3, 1 if QUICK else 15, 1 if QUICK else 3
data = addition(load("mnist-5000"), DIGITS)
train, test = data.train, data.test

# %%
# The loss is minus the log-likelihood. :func:`~catlog.log_expectation` takes the logarithm of an
# estimate. Where all draws miss the sum, the likelihood counts as 1e-8 and has no gradient.
# IndeCateR sums out each digit in turn: with the other two drawn, it always finds the digit that
# makes the sum right, if there is one.


def accuracy(network: nn.Module) -> tuple[float, float]:
    """Of the sums and of the single digits of the test set, as the network reads them."""
    with torch.no_grad():
        read = network(test.images[test.index]).argmax(-1)
    is_right = (read.sum(-1) == test.sums), (read == test.labels)
    return is_right[0].float().mean().item(), is_right[1].float().mean().item()


estimators = {
    "IndeCateR": catlog.IndeCateR(samples=4, per_variable=True),  # for 3 digits: 120 evaluations
    "RLOO": catlog.RLOO(samples=120),
}
curves: dict[str, list[list[float]]] = {}
for name, E in estimators.items():
    curves[name] = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Flatten(-2), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        curve = [accuracy(network)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(train)).split(20):
                q = Independent(Categorical(logits=network(train.batch(rows))), 1)

                def is_right(x: Tensor, rows: Tensor = rows) -> Tensor:
                    return x.sum(-1) == train.sums[rows]

                loss = -catlog.log_expectation(E, is_right, q, floor=1e-8).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            curve.append(accuracy(network))
        print(f"{name}, seed {seed}: sums read right {curve[-1][0]:.3f}, digits {curve[-1][1]:.3f}")
        curves[name].append([sums for sums, _ in curve])
    if name == "IndeCateR":
        with torch.no_grad():
            read = network(test.images[test.index[:4]]).softmax(-1)

# %%
# Each method has three runs. With 120 draws of three digits, some draws often hit the sum by
# chance, and RLOO is faster here if it does not get stuck. The paper's experiment,
# ``catlog run addition``, goes from 4 to 32 digits. Each row of the picture is a test sum, with the
# network's reading beside every digit.

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for colour, (name, runs) in enumerate(curves.items()):
    for seed, sums in enumerate(runs):
        axes.plot(sums, color=f"C{colour}", label=name if seed == 0 else None)
axes.set(xlabel="epoch", ylabel="sums read right (test)", ylim=(0, 1))
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/mnist_addition.png", dpi=150)

# %%
# What the network reads, learned from sums alone:

figure, grid = plt.subplots(4, 2 * DIGITS, figsize=(6.5, 4.2), layout="constrained")
for row, (images, probabilities) in enumerate(zip(test.images[test.index[:4]], read, strict=True)):
    for column in range(DIGITS):
        grid[row, 2 * column].imshow(images[column].numpy(), cmap="gray_r")
        grid[row, 2 * column].axis("off")
        grid[row, 2 * column + 1].bar(range(10), probabilities[column].numpy(), color="tab:blue")
        grid[row, 2 * column + 1].set(ylim=(0, 1), yticks=[], xticks=[0, 3, 6, 9])
        grid[row, 2 * column + 1].tick_params(labelsize=6)
figure.savefig("demo/mnist_addition_digits.png", dpi=150)
