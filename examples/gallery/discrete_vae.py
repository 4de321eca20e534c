"""
A discrete VAE in 60 lines
==========================

An autoencoder whose code is 24 bits, trained by three estimators on MNIST digits.

The encoder gives the distribution q of the bits. ``E(f, q)`` is the expected reconstruction loss,
and its gradient reaches the encoder through q and the decoder through f. Each estimator has 24
evaluations of the decoder per image and step. Two are unbiased and need no tuning; the bias of
Gumbel-Softmax depends on its temperature.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, kl_divergence

import catlog
from catlog_experiments.data import binarise, load

QUICK = "CATLOG_QUICK" in os.environ
BITS, STEPS = 24, 24 if QUICK else 400
data = load("mnist-5000")
train, test = binarise(data.train), binarise(data.test)

# %%
# The model is two small networks and a loss. It does not know how gradients are estimated.


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, BITS))
        self.decoder = nn.Sequential(nn.Linear(BITS, 128), nn.ReLU(), nn.Linear(128, 784))

    def loss(self, images: Tensor, E: catlog.Estimator) -> Tensor:
        """The negated ELBO of every image."""
        q = Independent(Bernoulli(logits=self.encoder(images)), 1)
        prior = Independent(Bernoulli(logits=torch.zeros_like(q.base_dist.logits)), 1)
        value = E(lambda z: -Bernoulli(logits=self.decoder(z)).log_prob(images).sum(-1), q)
        return value + kl_divergence(q, prior)


# %%
# Training is the usual loop, and swapping the estimator takes one word. The test loss is always
# measured in the same way, with 5 draws of the bits.

estimators = {
    "IndeCateR": catlog.IndeCateR(samples=6, variables=3, sampling="latin"),  # 3 bits of each draw
    "RLOO": catlog.RLOO(samples=24),
    "Gumbel-Softmax, 0.5": catlog.GumbelSoftmax(samples=24, temperature=0.5),
    "Gumbel-Softmax, 1.0": catlog.GumbelSoftmax(samples=24, temperature=1.0),
}
curves, models = {}, {}
for name, E in estimators.items():
    torch.manual_seed(0)
    models[name] = model = Autoencoder()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    curves[name] = []
    for step in range(STEPS + 1):
        if step % (STEPS // 8) == 0:
            with torch.no_grad():
                curves[name].append(float(model.loss(test, catlog.Reinforce(samples=5)).mean()))
        optimiser.zero_grad()
        model.loss(train[torch.randint(len(train), (32,))], E).mean().backward()
        optimiser.step()
    print(f"{name:20} negated ELBO of unseen digits after {STEPS} steps: {curves[name][-1]:.1f}")

# %%
# The last figure shows test digits and their reconstructions from the bits of the first model.

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(torch.linspace(0, STEPS, len(curve)), curve, label=name)
axes.set(xlabel="step", ylabel="negated ELBO of test digits", ylim=(155, 230))
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/discrete_vae.png", dpi=150)

# %%
# Digits, and their reconstructions from 24 bits:

with torch.no_grad():
    z = (models["IndeCateR"].encoder(test[:10]) > 0).float()
    pictures = torch.stack([test[:10], models["IndeCateR"].decoder(z).sigmoid()])
pictures = pictures.view(2, 2, 5, 28, 28).permute(1, 0, 3, 2, 4).reshape(4 * 28, 5 * 28)
figure, axes = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
axes.imshow(pictures.numpy(), cmap="gray_r")
axes.axis("off")
figure.savefig("demo/discrete_vae_digits.png", dpi=150)
