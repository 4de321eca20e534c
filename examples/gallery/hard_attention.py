"""
Hard attention: where to look
=============================

A classifier may look at 3 of the 16 patches of a digit, and learns where.

A policy sees a blurred 4 x 4 thumbnail and gives three distributions over the patches. Looking is
discrete: a patch is seen or not. For each of the three glimpses, IndeCateR evaluates f at every
other patch. It needs nothing but these values.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent
from torch.nn.functional import avg_pool2d, cross_entropy

import catlog
from catlog_experiments.data import load

QUICK = "CATLOG_QUICK" in os.environ
STEPS, GLIMPSES = 20 if QUICK else 500, 3
data = load("mnist-5000")


def patches(images: Tensor) -> Tensor:
    """``[batch, 784]`` to 16 patches of 7 x 7: ``[batch, 16, 49]``."""
    return images.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)


def thumbnail(images: Tensor) -> Tensor:
    return avg_pool2d(images.view(-1, 1, 28, 28), 7).flatten(1)


# %%
# f covers all patches except those in x and returns the classifier's loss.


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(
            nn.Linear(16, 64),
            nn.ReLU(),
            nn.Linear(64, GLIMPSES * 16),
            nn.Unflatten(1, (GLIMPSES, 16)),
        )
        self.classifier = nn.Sequential(nn.Linear(16 + 784, 64), nn.ReLU(), nn.Linear(64, 10))

    def classify(self, images: Tensor, x: Tensor) -> Tensor:
        """Logits ``[n, batch, 10]`` of images of which the patches x ``[n, batch, 3]`` are seen."""
        seen = torch.zeros(*x.shape[:-1], 16).scatter(-1, x, 1.0)
        pixels = (patches(images) * seen.unsqueeze(-1)).flatten(-2)
        return self.classifier(torch.cat([seen, pixels], -1))

    def loss(self, images: Tensor, labels: Tensor, E: catlog.Estimator) -> Tensor:
        def f(x: Tensor) -> Tensor:
            logits = self.classify(images, x).movedim(-1, 1)
            return cross_entropy(logits, labels.expand(len(x), -1), reduction="none")

        return E(f, Independent(Categorical(logits=self.policy(thumbnail(images))), 1))


# %%
# There are two ways to learn the policy, with 46 evaluations of f each. RLOO needs a backward pass
# through all of them, IndeCateR through one. A third policy stays random, so that only the
# classifier learns.

estimators = {"IndeCateR": catlog.IndeCateR(1), "RLOO": catlog.RLOO(46), "random glimpses": None}
curves, readers = {}, {}
for name, E in estimators.items():
    torch.manual_seed(0)
    readers[name] = reader = Reader()
    if E is None:
        nn.init.zeros_(reader.policy[2].weight)
        reader.policy.requires_grad_(False)
    optimiser = torch.optim.Adam([p for p in reader.parameters() if p.requires_grad], lr=3e-3)
    curves[name] = []
    for step in range(STEPS + 1):
        if step % (STEPS // 10) == 0:
            with torch.no_grad():
                x = Categorical(logits=reader.policy(thumbnail(data.test))).sample((5,))
                right = reader.classify(data.test, x).argmax(-1) == data.test_labels
            curves[name].append(float(right.float().mean()))
        rows = torch.randint(len(data.train), (32,))
        optimiser.zero_grad()
        loss = reader.loss(data.train[rows], data.train_labels[rows], E or catlog.RLOO(46))
        loss.mean().backward()
        optimiser.step()
    print(f"{name:16} test accuracy {curves[name][-1]:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, curve in curves.items():
    axes.plot(torch.linspace(0, STEPS, len(curve)), curve, label=name)
axes.set(xlabel="step", ylabel="test accuracy with 3 glimpses")
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/hard_attention.png", dpi=150)

# %%
# Where the policy prefers to look. In this short training it settles on three good places for all
# digits.

with torch.no_grad():
    best = readers["IndeCateR"].policy(thumbnail(data.test)).argmax(-1)
count = len(best.sort(-1).values.unique(dim=0))
print(f"different sets of patches preferred on {len(best)} test digits: {count}")
seen = torch.zeros(10, 16).scatter(1, best[:10], 1.0).view(10, 4, 4)
seen = seen.repeat_interleave(7, 1).repeat_interleave(7, 2)
figure, panels = plt.subplots(2, 5, figsize=(6.5, 2.8), layout="constrained")
for image, mask, axes in zip(data.test[:10].view(10, 28, 28), seen, panels.flat, strict=True):
    axes.imshow((image * (0.25 + 0.75 * mask)).numpy(), cmap="gray_r", vmin=0, vmax=1)
    axes.imshow(mask.numpy(), cmap="Oranges", alpha=0.25 * mask.numpy(), vmin=0, vmax=1.5)
    axes.set(xticks=[], yticks=[])
figure.savefig("demo/hard_attention_glimpses.png", dpi=150)
