"""
Telling digits apart by the rules of sudoku
===========================================

Handwritten 4 x 4 sudokus without a single label: the rules alone teach the digits.

A network gives every cell a distribution over four symbols, and f is a plain Python function that
counts broken rules. Training lowers the expected number of broken rules, and the network learns to
distinguish the digits. The rules cannot say which symbol means which digit, so the symbols are
matched to the digits for the score.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from itertools import permutations
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent

import catlog
from catlog_experiments.data import load

QUICK = "CATLOG_QUICK" in os.environ
STEPS, BOARDS, SEEDS = 10 if QUICK else 200, 8, 1 if QUICK else 3

# %%
# The rules: no symbol twice in a row, a column or a 2 x 2 box. Plain Python on lists: f may be
# anything.

ROWS = [[4 * i + j for j in range(4)] for i in range(4)]
BOXES = [[4 * i + j for i in (a, a + 1) for j in (b, b + 1)] for a in (0, 2) for b in (0, 2)]
UNITS = ROWS + [list(column) for column in zip(*ROWS, strict=True)] + BOXES


def broken(board: list[int]) -> int:
    """The number of symbols that are missing from a row, column or box."""
    return sum(4 - len({board[cell] for cell in unit}) for unit in UNITS)


def f(x: Tensor) -> Tensor:
    """``[n, batch, 16]`` integers to ``[n, batch]`` numbers of broken rules."""
    return torch.tensor([[float(broken(board)) for board in row] for row in x.tolist()])


# %%
# Boards: one solution, its symbols renamed and its rows swapped at random, written with random
# images of the digits 1 to 4.

data = load("mnist-5000")
SOLUTION = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
# [4, 400, 784] and [4, 100, 784]
images = torch.stack([data.train[data.train_labels == digit] for digit in (1, 2, 3, 4)])
unseen = torch.stack([data.test[data.test_labels == digit] for digit in (1, 2, 3, 4)])


def write(boards: int) -> Tensor:
    """``[boards, 16, 784]`` images."""
    swapped = [
        SOLUTION[torch.cat([torch.randperm(2), 2 + torch.randperm(2)])] for _ in range(boards)
    ]
    digits = torch.stack([torch.randperm(4)[board].flatten() for board in swapped])
    return images[digits, torch.randint(images.shape[1], digits.shape)]


def score(network: nn.Module) -> tuple[float, tuple[int, ...]]:
    """Accuracy on unseen digits under the best naming of the symbols, and that naming."""
    with torch.no_grad():
        read = network(unseen).argmax(-1)
    return max(
        (float((read == torch.tensor(names)[:, None]).float().mean()), names)
        for names in permutations(range(4))
    )


# %%
# Every method checks 49 fillings per board and step. For IndeCateR these are one draw and its 48
# neighbours, which share 15 of their 16 cells with it; for the others they are 49 draws. All cells
# share one network, so the theorem on IndeCateR's variance does not apply here. IndeCateR sometimes
# takes two digits for the same.

curves: dict[str, list[list[float]]] = {}
for name, E in {
    "CritiCateR": catlog.CritiCateR(49),
    "RLOO": catlog.RLOO(49),
    "IndeCateR": catlog.IndeCateR(1),
}.items():
    curves[name] = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 4))
        optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
        curves[name].append([])
        for step in range(STEPS + 1):
            if step % (STEPS // 10) == 0:
                curves[name][-1].append(score(network)[0])
            optimiser.zero_grad()
            E(f, Independent(Categorical(logits=network(write(BOARDS))), 1)).mean().backward()
            optimiser.step()
        if name == "CritiCateR" and seed == 0:
            trained = network
    accuracies = ", ".join(f"{curve[-1]:.3f}" for curve in curves[name])
    print(f"{name:10} unseen digits recognised: {accuracies}")

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for colour, (name, runs) in enumerate(curves.items()):
    for seed, curve in enumerate(runs):
        steps = torch.linspace(0, STEPS, len(curve))
        axes.plot(steps, curve, color=f"C{colour}", label=name if seed == 0 else None)
axes.axhline(0.25, color="grey", linestyle=":", label="chance")
axes.set(xlabel="step", ylabel="unseen digits recognised", ylim=(0.2, 1.02))
axes.legend(loc="lower right")
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/sudoku.png", dpi=150)

# %%
# A board, and how a trained network reads it (blue), each symbol by the digit it was matched with.

board = write(1)
names = score(trained)[1]
with torch.no_grad():
    read = [1 + names.index(symbol) for symbol in trained(board[0]).argmax(-1).tolist()]
figure, panels = plt.subplots(4, 4, figsize=(4, 3.6), layout="constrained")
for image, digit, axes in zip(board[0].view(16, 28, 28), read, panels.flat, strict=True):
    axes.imshow(image.numpy(), cmap="gray_r")
    axes.text(24, 7, digit, color="tab:blue", fontsize=12)
    axes.set(xticks=[], yticks=[])
figure.savefig("demo/sudoku_board.png", dpi=150)
