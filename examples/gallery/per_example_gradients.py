"""
Per-example gradients with torch.func
=====================================

How much noise comes from the batch, and how much from sampling the discrete code?

``E(f, q)`` is an ordinary function of tensors, so ``torch.func`` transforms it: ``vmap(grad(...))``
gives the gradient of every example at once. If the noise of the examples dominates, more draws are
a waste.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.func import functional_call, grad, vmap

import catlog

QUICK = "CATLOG_QUICK" in os.environ
EXAMPLES, REPEATS = 50 if QUICK else 200, 4 if QUICK else 16
torch.manual_seed(0)
images = torch.tensor(load_digits().data / 16, dtype=torch.float32)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 16)
        self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, image: Tensor, E: catlog.Estimator) -> Tensor:
        q = Independent(Bernoulli(logits=self.encoder(image), validate_args=False), 1)
        return E(lambda z: (self.decoder(z) - image).square().sum(-1), q)


model = Autoencoder()
optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(20 if QUICK else 300):
    optimiser.zero_grad()
    model(images[torch.randint(len(images), (64,))], catlog.IndeCateR(1)).mean().backward()
    optimiser.step()

# %%
# One gradient per example: ``randomness="different"`` gives every example separate draws. Two
# things to know: distributions are made with ``validate_args=False`` (a check of numbers is
# impossible inside vmap), and only Exact, Reinforce and RLOO have *second* derivatives
# (``torch.func.hessian``); the other estimators raise an error.

weights = {name: parameter.detach() for name, parameter in model.named_parameters()}


def per_example(E: catlog.Estimator) -> Tensor:
    """``[examples, 16, 64]``: the gradient of the loss of each example in the encoder's weights."""
    of_one = grad(lambda weights, image: functional_call(model, weights, (image, E)))
    of_all = vmap(of_one, in_dims=(None, 0), randomness="different")
    return of_all(weights, images[:EXAMPLES])["encoder.weight"]


estimators: dict[str, catlog.Estimator] = {
    "RLOO, 17 evaluations": catlog.RLOO(17),
    "DisARM, 18": catlog.DisARM(9),
    "IndeCateR, 17": catlog.IndeCateR(1),
    "RLOO, 68": catlog.RLOO(68),
    "DisARM, 68": catlog.DisARM(34),
    "IndeCateR, 68, Latin": catlog.IndeCateR(4, sampling="latin"),
}

# %%
# Repeats of the same example show the noise of the draws. The spread of the examples' means, minus
# the remaining noise of the draws, is the noise of the examples.

draws, examples = {}, {}
for name, E in estimators.items():
    gradients = torch.stack([per_example(E) for _ in range(REPEATS)])  # [repeats, examples, 16, 64]
    draws[name] = float(gradients.var(0).sum((-1, -2)).mean())
    examples[name] = float(gradients.mean(0).var(0).sum()) - draws[name] / REPEATS
    share = draws[name] / (draws[name] + examples[name])
    parts = f"variance by draws {draws[name]:.3f}, by examples {examples[name]:.3f}"
    print(f"{name:21} {parts}: draws are {share:.0%} of the noise")

# %%
# The noise of the examples is the same for all estimators, as it must be: they are all unbiased and
# differ only in the noise of the draws.

figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
names, left, width = list(draws), list(examples.values()), list(draws.values())
axes.barh(names, left, color="lightgrey", label="which examples are in the batch")
axes.barh(names, width, left=left, color="tab:blue", label="the draws of the code")
axes.invert_yaxis()
axes.set(xlabel="variance of the gradient of one example (encoder's weights)")
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/per_example_gradients.png", dpi=150)
