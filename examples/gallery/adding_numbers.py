"""
Adding numbers of 100 digits
============================

A network learns to read handwritten digits from sums of long numbers. Its input is two numbers of N
digits, and the only labels are the digits of their sum.

An indicator of the whole sum is almost never 1, so a sampler learns nothing from it. But the
program has N + 1 outputs, and each of them depends on two digits and a carry. With ``outputs=1``,
an estimator returns one expectation per output, all from one set of draws. The same code learns
from numbers of 100 digits: see :doc:`/programs`. Here N is 8, which takes two minutes on a CPU.
"""

# sphinx_gallery_thumbnail_number = 1

import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent

import catlog
from catlog.functions import DigitsOfSum
from catlog_experiments.data import addition, load
from catlog_experiments.networks import lenet
from catlog_experiments.programs import add_numbers

QUICK = "CATLOG_QUICK" in os.environ
N, EPOCHS = 8, 1 if QUICK else 12
data = addition(load("mnist-5000"), 2 * N)
train, test = data.train, data.test
train_sums, test_sums = add_numbers(train.labels), add_numbers(test.labels)
print(f"{len(train)} sums of two numbers of {N} digits")

# %%
# **The function.** :class:`~catlog.functions.DigitsOfSum` says for each digit of the sum whether it
# is right. It knows the effect of every changed digit without another addition: a change affects
# the digit at the same place, and the digits before it as far as the carry runs.

f = DigitsOfSum(torch.tensor([0, 9, 1]))  # 58 + 33 = 91
print(f(torch.tensor([[5, 8, 3, 3], [5, 8, 3, 0]])))

# %%
# **The loss** is minus the sum of the logarithms of the N + 1 probabilities. The gradient of a
# logarithm is a ratio. IndeCateR with 50 draws gives the numerators. The denominators come from 500
# further draws, which cost little, because none of their neighbours is evaluated
# (``value=catlog.RLOO(500)``). RLOO gets as many evaluations, for each digit of the sum and, as a
# control, for the whole sum.

evaluations = 50 * (1 + 9 * 2 * N) + 500
methods = {
    "IndeCateR, per digit": (catlog.IndeCateR(50, sampling="latin"), catlog.RLOO(500), True),
    "RLOO, per digit": (catlog.RLOO(evaluations), None, True),
    "RLOO, whole sum": (catlog.RLOO(evaluations), None, False),
}


def loss(model: nn.Module, rows: Tensor, method: str) -> Tensor:
    E, value, per_digit = methods[method]
    images = train.batch(rows)
    logits = model(images.reshape(-1, 1, 28, 28)).view(len(rows), 2 * N, 10)
    q = Independent(Categorical(logits=logits), 1)
    f = DigitsOfSum(train_sums[rows])
    if not per_digit:
        return -catlog.log_expectation(E, lambda x: f(x).all(-1), q, floor=1e-8).mean()
    logarithms = catlog.log_expectation(E, f, q, floor=1e-8, value=value, outputs=1)
    return -logarithms.sum(-1).mean()


@torch.no_grad()
def accuracy(model: nn.Module) -> tuple[float, float]:
    """Return the shares of test sums and of test digits that the network reads right."""
    images = test.images[test.index].reshape(-1, 1, 28, 28)
    digits = model(images).argmax(-1).view(-1, 2 * N)
    is_right = (add_numbers(digits) == test_sums).all(-1)
    return float(is_right.float().mean()), float((digits == test.labels).float().mean())


curves: dict[str, list[tuple[float, float]]] = {}
for method in methods:
    torch.manual_seed(0)
    model = lenet()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    curves[method] = [accuracy(model)]
    began = time.process_time()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train)).split(2):
            optimiser.zero_grad()
            loss(model, rows, method).backward()
            optimiser.step()
        curves[method].append(accuracy(model))
    sums, digits = curves[method][-1]
    seconds = time.process_time() - began
    print(f"{method:21} sums {sums:.3f}, digits {digits:.3f}, {seconds:.0f} s of CPU time")

# %%
# Nothing is learned from the whole sum, because no draw of 16 digits ever hits it.

figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3.2), layout="constrained", sharey=True)
for method, curve in curves.items():
    left.plot([sums for sums, _ in curve], label=method)
    right.plot([digits for _, digits in curve], label=method)
left.set(xlabel="epoch", ylabel="read right (test)", title="whole sums", ylim=(0, 1))
right.set(xlabel="epoch", title="digits, which nobody labelled")
right.legend(loc="center right")
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/adding_numbers.png", dpi=150)
