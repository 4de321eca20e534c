r"""
An autoencoder of counts
========================

The code of an image is 16 counts, such as numbers of spikes, with Poisson distributions.

The rate of a count has a simple gradient: how much one more count would change the loss,

.. math:: \frac{\partial}{\partial \lambda_i} \mathbb{E}[f(z)] = \mathbb{E}[f(z + e_i) - f(z)],

which :class:`catlog.estimators.CountDifferences` estimates, with 1 + 16 evaluations of the decoder
per draw. It truncates nothing and needs no derivative of f. We compare it with RLOO at as many
evaluations, on the same counts as categories 0 to 31 (:func:`catlog.distributions.truncated`).
"""

# sphinx_gallery_thumbnail_number = 1

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, Poisson, kl_divergence

import catlog
from catlog.distributions import lost_mass, truncated
from catlog_experiments.data import binarise, load

QUICK = "CATLOG_QUICK" in os.environ
COUNTS, CATEGORIES, STEPS = 16, 32, 24 if QUICK else 400
data = load("mnist-5000")
train, test = binarise(data.train), binarise(data.test)

# %%
# The model. The prior's rates are learned, and the divergence of two Poisson distributions has a
# closed form. The decoder reads square roots of counts, which have about the same noise at all
# rates.


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, COUNTS), nn.Softplus()
        )
        self.decoder = nn.Sequential(nn.Linear(COUNTS, 128), nn.ReLU(), nn.Linear(128, 784))
        self.prior = nn.Parameter(torch.zeros(COUNTS))

    def code(self, images: Tensor) -> Independent:
        return Independent(Poisson(self.encoder(images) + 1e-4), 1)

    def loss(self, images: Tensor, E: catlog.Estimator, is_truncated: bool = False) -> Tensor:
        """The negated ELBO of every image."""

        def reconstruction(z: Tensor) -> Tensor:
            logits = self.decoder(z.float().sqrt())
            return -Bernoulli(logits=logits, validate_args=False).log_prob(images).sum(-1)

        q = self.code(images)
        prior = Independent(Poisson(self.prior.exp().expand(q.batch_shape + (-1,))), 1)
        draws_from: Distribution = truncated(q, categories=CATEGORIES) if is_truncated else q
        return E(reconstruction, draws_from) + kl_divergence(q, prior)


# %%
# Training, twice with the same seed. The test loss is always measured with draws of the counts
# themselves.

estimators = {
    "CountDifferences": (catlog.estimators.CountDifferences(samples=1), False),
    "RLOO, truncated": (catlog.RLOO(samples=1 + COUNTS), True),
}
curves, models = {}, {}
for name, (E, is_truncated) in estimators.items():
    torch.manual_seed(0)
    models[name] = model = Autoencoder()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    curves[name] = []
    for step in range(STEPS + 1):
        if step % (STEPS // 8) == 0:
            with torch.no_grad():
                curves[name].append(
                    float(model.loss(test, catlog.estimators.CountDifferences()).mean())
                )
        optimiser.zero_grad()
        model.loss(train[torch.randint(len(train), (32,))], E, is_truncated).mean().backward()
        optimiser.step()
    print(f"{name:20} negated ELBO of unseen digits after {STEPS} steps: {curves[name][-1]:.1f}")

# %%
# How much of the distribution does the truncation lose? The bound holds for every image.

with torch.no_grad():
    q = models["CountDifferences"].code(test)
    lost = float(lost_mass(q, CATEGORIES).max())
    print(f"mean count {float(q.mean.mean()):.2f}, at most {lost:.1e} lost beyond {CATEGORIES - 1}")

# %%
# Curves, and reconstructions of test digits from one draw of the counts:

with torch.no_grad():
    z = q.sample()[:10]
    pictures = models["CountDifferences"].decoder(z.sqrt()).sigmoid()
    pictures = torch.stack([test[:10], pictures]).view(2, 2, 5, 28, 28)
pictures = pictures.permute(1, 0, 3, 2, 4).reshape(4 * 28, 5 * 28)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for name, curve in curves.items():
    left.plot(torch.linspace(0, STEPS, len(curve)), curve, label=name)
left.set(xlabel="step", ylabel="negated ELBO of test digits", ylim=(None, 260))
left.legend()
right.imshow(pictures.numpy(), cmap="gray_r")
right.axis("off")
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/poisson_autoencoder.png", dpi=150)
