"""
Learning to explain: the few pixels that matter
===============================================

Which 6 of its 64 pixels tell us the digit in an image? A ``Subset`` chooses exactly six of them.

An explainer looks at the whole image and gives every pixel a logit. A ``Subset`` of these logits
draws six pixels, and a classifier sees nothing else. Both are trained together on the expected
cross-entropy of the classifier (Chen et al., "Learning to explain", 2018). The data are
scikit-learn's digits of 8 x 8 pixels.

The classifier is differentiable, so there is a choice. RLOO needs only values and is unbiased.
SIMPLE sends the classifier's derivative through the exact probabilities of the pixels
(``Subset.mean``), which is biased.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import catlog

QUICK = "CATLOG_QUICK" in os.environ
STEPS = 60 if QUICK else 800
PIXELS, BATCH = 6, 64
images, labels = load_digits(return_X_y=True)
train, test, y_train, y_test = (
    torch.tensor(part)
    for part in train_test_split(images / 16, labels, test_size=0.25, random_state=0)
)
train, test = train.float(), test.float()


# %%
# There are two small networks. The classifier gets the chosen pixels and a mask that says which
# they are, because a dark pixel is not the same as a hidden one.


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs)
    )


def seen(x: Tensor, pixels: Tensor) -> Tensor:
    """Return what the classifier sees of images under the masks ``x``, ``[*lead, 64]``."""
    x = x.float()
    return torch.cat([x * pixels, x], -1)


def accuracy(explainer: nn.Module, classifier: nn.Module) -> float:
    """Return the accuracy on test images with their six likeliest pixels."""
    with torch.no_grad():
        chosen = explainer(test).topk(PIXELS, -1).indices
        x = torch.zeros_like(test).scatter(-1, chosen, 1.0)
        return (classifier(seen(x, test)).argmax(-1) == y_test).float().mean().item()


class Anything(nn.Module):
    """An explainer that looks at nothing: any six pixels, others for every image."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.rand_like(pixels)


# %%
# All methods make four draws per image and step. The same step also trains the classifier, because
# the estimate includes the gradient in f's own parameters.

histories: dict[str, list[float]] = {}
explainers: dict[str, nn.Module] = {}
for name, E in {
    "RLOO": catlog.RLOO(samples=4),
    "SIMPLE": catlog.estimators.SIMPLE(samples=4),
    "random pixels": catlog.RLOO(samples=4),
}.items():
    torch.manual_seed(0)
    explainer = Anything() if name == "random pixels" else network(64, 64)
    classifier = network(128, 10)
    parameters = [*explainer.parameters(), *classifier.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=2e-3)
    histories[name] = []
    for step in range(STEPS):
        rows = torch.randint(len(train), (BATCH,))
        pixels, truth = train[rows], y_train[rows]

        def f(x: Tensor, pixels: Tensor = pixels, truth: Tensor = truth) -> Tensor:
            """Masks ``[n, batch, 64]`` to cross-entropies ``[n, batch]``."""
            logits = classifier(seen(x, pixels))  # noqa: B023  # called within the step
            return cross_entropy(logits.movedim(-1, 1), truth.expand(len(x), -1), reduction="none")

        q = catlog.distributions.Subset(explainer(pixels), k=PIXELS)
        loss = E(f, q).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 49 or step == STEPS - 1:
            histories[name].append(accuracy(explainer, classifier))
    explainers[name] = explainer
    print(f"{name:14} sees {PIXELS} of 64 pixels; test accuracy {histories[name][-1]:.3f}")

# %%
# The circles are the pixels that RLOO's explainer chooses in test images. A caveat of the method:
# the choice itself is information. An explainer that knows the digit can tell it to the classifier
# by where it looks.

figure = plt.figure(figsize=(10, 3.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 1.2])
ax = left.subplots()
for name, history in histories.items():
    ax.plot([min(50 * (i + 1), STEPS) for i in range(len(history))], history, label=name)
ax.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1))
ax.legend(loc="lower right")
with torch.no_grad():
    chosen = explainers["RLOO"](test).topk(PIXELS, -1).indices.numpy()
for digit, ax in enumerate(right.subplots(2, 5).flat):
    row = int((y_test == digit).int().argmax())
    ax.imshow(test[row].view(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1.6)
    ax.scatter(chosen[row] % 8, chosen[row] // 8, s=28, facecolors="none", edgecolors="tab:red")
    ax.set(xticks=[], yticks=[])
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/learning_to_explain.png", dpi=150)
