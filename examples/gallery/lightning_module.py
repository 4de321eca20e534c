"""
Inside Lightning
================

A classifier with a bottleneck of 12 hard bits, trained by a Lightning Trainer.

An estimator is called in ``training_step`` like any other function, so Lightning needs no callback
and no manual optimisation. The estimator is an argument of the module, so it is easy to swap. The
12 bits are a learned hash of the digit. This example needs the extra ``gallery``.
"""

# sphinx_gallery_thumbnail_number = 2

import logging
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import catlog

try:
    import lightning
except ImportError:
    raise SystemExit("This example needs Lightning: pip install lightning") from None

QUICK = "CATLOG_QUICK" in os.environ
BITS, EPOCHS = 12, 2 if QUICK else 30
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train = TensorDataset(images[:1500], labels[:1500])
test = TensorDataset(images[1500:], labels[1500:])

# %%
# The module. Training and validation share the loss, so validation also calls the estimator.
# Lightning validates in ``torch.inference_mode``, where an estimator returns its value and
# differentiates nothing, not even f for SlopeCateR. The accuracy is that of the most probable bits,
# as a hash would be used.


class Hash(lightning.LightningModule):
    def __init__(self, E: catlog.Estimator) -> None:
        super().__init__()
        self.E = E
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, BITS))
        self.classifier = nn.Sequential(nn.Linear(BITS, 64), nn.ReLU(), nn.Linear(64, 10))
        self.accuracies: list[float] = []
        self.losses: list[float] = []

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        def f(z: Tensor) -> Tensor:
            logits = self.classifier(z).movedim(-1, 1)
            return cross_entropy(logits, labels.expand(len(z), -1), reduction="none")

        return self.E(f, Independent(Bernoulli(logits=self.encoder(images)), 1)).mean()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.loss(*batch)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        self.losses.append(float(self.loss(images, labels)))
        right = self.classifier((self.encoder(images) > 0).float()).argmax(-1) == labels
        self.accuracies.append(float(right.float().mean()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# %%
# The usual Trainer. All estimators get 12 to 14 evaluations of the classifier per image. SlopeCateR
# uses the derivative of f and is unbiased. Straight-Through uses it and is biased.

warnings.filterwarnings("ignore", module="lightning")  # advice on data loaders
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
estimators = {
    "SlopeCateR": catlog.SlopeCateR(samples=8),
    "IndeCateR": catlog.IndeCateR(samples=1),
    "DisARM": catlog.DisARM(samples=6),
    "RLOO": catlog.RLOO(samples=13),
    "Straight-Through": catlog.StraightThrough(samples=13),
}
modules = {}
for name, E in estimators.items():
    lightning.seed_everything(0, verbose=False)
    modules[name] = module = Hash(E)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(train, 64, shuffle=True), DataLoader(test, len(test)))
    print(
        f"{name:17} test accuracy from {BITS} bits: {module.accuracies[-1]:.3f}; "
        f"expected loss {module.losses[-1]:.3f}"
    )

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
for name, module in modules.items():
    axes[0].plot(module.accuracies, label=name)
    axes[1].plot(module.losses)
axes[0].set(xlabel="epoch", ylabel="test accuracy")
axes[1].set(xlabel="epoch", ylabel="expected test loss, estimated", ylim=(0, 2.5))
axes[0].legend()
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/lightning_module.png", dpi=150)

# %%
# The hash of unseen digits, sorted by class: a good code is nearly constant within a class.

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
order = labels[1500:].argsort()
with torch.no_grad():
    codes = modules["IndeCateR"].encoder(images[1500:][order]) > 0
axes.imshow(codes.T.numpy(), aspect="auto", cmap="Greys", interpolation="nearest")
count = labels[1500:].bincount()
edges = count.cumsum(0)
axes.set(title="the bits of unseen digits", yticks=[])
axes.set_xticks((edges - count / 2).tolist(), range(10))
for edge in edges[:-1].tolist():
    axes.axvline(edge, color="tab:red", linewidth=0.7)
figure.savefig("demo/lightning_module_bits.png", dpi=150)
