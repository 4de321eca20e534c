"""
A vector-quantised autoencoder with a learned codebook
======================================================

Each digit is encoded as 6 letters of an alphabet of 16 learned vectors.

The codebook is learned together with encoder and decoder. The usual VQ-VAE copies gradients past
the nearest-neighbour step and needs extra losses to move the codebook. Here the letters are
sampled, closer vectors being more probable, and the gradient of the expected loss is unbiased. No
extra loss is needed, and the codebook learns from both sides: from the decoder, which reads it, and
from the encoder, which aims at it.
"""

# sphinx_gallery_thumbnail_number = 2

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical
from torch.nn.functional import mse_loss

import catlog

QUICK = "CATLOG_QUICK" in os.environ
LETTERS, ALPHABET, WIDTH, STEPS = 6, 16, 4, 30 if QUICK else 600
images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
train, test = images[:1500], images[1500:]

# %%
# The distribution of a letter is a softmax of negated squared distances to the codebook. A small
# entropy bonus keeps letters in use.


class VQ(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, LETTERS * WIDTH),
            nn.Unflatten(1, (LETTERS, WIDTH)),
        )
        self.codebook = nn.Parameter(torch.randn(ALPHABET, WIDTH))
        self.decoder = nn.Sequential(
            nn.Flatten(-2), nn.Linear(LETTERS * WIDTH, 128), nn.ReLU(), nn.Linear(128, 64)
        )

    def distribution(self, images: Tensor) -> Independent:
        distance = (self.encoder(images).unsqueeze(-2) - self.codebook).square().sum(-1)
        return Independent(OneHotCategorical(logits=-distance), 1)

    def decode(self, x: Tensor) -> Tensor:
        return self.decoder(x @ self.codebook)

    def best(self, images: Tensor) -> Tensor:
        """The nearest letters, as one-hot vectors."""
        return self.distribution(images).base_dist.mode


# %%
# Three estimators at 91 evaluations of the decoder. The test uses the nearest letters, as a VQ-VAE
# does. Straight-Through's gradient is biased but has little noise. This decoder is so smooth that
# the lower noise outweighs the bias.

estimators = {
    "IndeCateR": catlog.IndeCateR(samples=1),
    "RLOO": catlog.RLOO(samples=91),
    "Straight-Through": catlog.StraightThrough(samples=91),
}
curves, models = {}, {}
for name, E in estimators.items():
    torch.manual_seed(0)
    models[name] = model = VQ()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    curves[name] = []
    for step in range(STEPS + 1):
        if step % (STEPS // 10) == 0:
            with torch.no_grad():
                curves[name].append(float(mse_loss(model.decode(model.best(test)), test)))
        batch = train[torch.randint(len(train), (32,))]
        q = model.distribution(batch)
        loss = E(lambda x, batch=batch: (model.decode(x) - batch).square().sum(-1), q)  # noqa: B023
        optimiser.zero_grad()
        (loss - 0.02 * q.entropy()).mean().backward()
        optimiser.step()
    use = models[name].best(train).mean((0, 1))
    perplexity = float((-(use * use.clamp(1e-9).log()).sum()).exp())
    print(
        f"{name:17} squared error per pixel {curves[name][-1]:.4f}, "
        f"perplexity of the letters {perplexity:.1f} of {ALPHABET}"
    )

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(torch.linspace(0, STEPS, len(curve)), curve, label=name)
axes.set(xlabel="step", ylabel="squared error per pixel (test)", yscale="log")
axes.legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/vq_autoencoder.png", dpi=150)

# %%
# Digits, their reconstructions, and what a letter means: one digit, with each of the 16 letters in
# the first place.

model = models["IndeCateR"]
with torch.no_grad():
    code = model.best(test[:1]).repeat(ALPHABET, 1, 1)
    code[:, 0] = torch.eye(ALPHABET)
    shown = torch.cat([test[:8], model.decode(model.best(test[:8])), model.decode(code)])
figure, panels = plt.subplots(4, 8, figsize=(6.5, 3.4), layout="constrained")
for image, axes in zip(shown, panels.flat, strict=True):
    axes.imshow(image.view(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1)
    axes.axis("off")
figure.savefig("demo/vq_autoencoder_digits.png", dpi=150)
