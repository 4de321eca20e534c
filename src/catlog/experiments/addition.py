"""Experiment 4 of the paper: learn to read digits from their sum alone."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent
from torch.nn.utils import clip_grad_norm_

from .. import data
from ..functions import OfSum
from .named_estimators import Labels, chosen_estimator
from .ranges import Count, Positive
from .settings import Settings
from .training import Training, adam, glorot


@dataclass(frozen=True, kw_only=True)
class Addition(Settings):
    """MNIST addition: a LeNet reads D images, their labels are never seen, only the sum. Loss: -log P(sum is right).

    f, "the drawn digits add up to the sum", is an indicator: its derivative is zero, so relaxations do not apply.
    """

    data: Literal["mnist-5000", "mnist"] = "mnist-5000"
    """Images; mnist-5000 is embedded, mnist is read from CATLOG_DATA or downloaded."""
    digits: Count = 4
    """D, the number of images in a sum."""
    epochs: Count = 10
    """Passes over the training sequences (the paper: 100)."""
    batch: Count = 10
    """Sequences per step."""
    learning_rate: Positive = 1e-3
    """Adam's."""
    clip: Positive | None = None
    """Longest gradient, as a norm; None: any. Without it long runs of 16 digits and more fall back now and then."""
    every: Count | None = None
    """Log after so many steps; None: once an epoch."""

    name: ClassVar[str] = "addition"
    divides: ClassVar[bool] = True
    labels: ClassVar[Labels] = {
        "IndeCateR": ("IndeCateR", {"samples": 10}),
        "IndeCateR-D": ("IndeCateR", {"samples": 10, "per_variable": True}),
        "IndeCateR-Latin": ("IndeCateR", {"samples": 10, "draws": "latin"}),
        "IndeCateR-D-Latin": ("IndeCateR", {"samples": 10, "per_variable": True, "draws": "latin"}),
        "RLOO-F": ("RLOO", {}),  # 100 D draws
        "RLOO-S": ("RLOO", {"samples": 10}),
    }
    sizes: ClassVar[tuple[str, ...]] = ("data", "digits")

    def task(self) -> "AdditionTask":
        return AdditionTask(self)


def clip(weights: list[nn.Parameter], longest: float) -> None:
    """Shorten the gradient to this norm."""
    clip_grad_norm_(weights, longest)


def lenet() -> nn.Sequential:
    """The published network: the two pooling layers are in its code, though not in the paper's text."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class AdditionTask:
    """Model, sequences and likelihood; the loop's task."""

    def __init__(self, config: Addition) -> None:
        self.config, device = config, config.prepare()
        samples = (
            100 * config.digits if config.estimator == "RLOO-F" and config.samples is None else None
        )
        self.E = chosen_estimator(config, config.labels, device, samples=samples)
        if self.E.differentiates_f:
            raise ValueError(
                f"--estimator: {config.estimator} needs the derivative of f, but that of an indicator is zero."
            )
        sequences = data.addition(data.load(config.data), config.digits)
        self.train, self.test = sequences.train.to(device), sequences.test.to(device)
        self.network = lenet()
        glorot(self.network)
        self.network.to(device)
        optimiser = adam(self.network.parameters(), config.learning_rate, self.E, device)
        if config.clip is not None:
            longest, weights = config.clip, list(self.network.parameters())
            optimiser.register_step_pre_hook(lambda *_: clip(weights, longest))
        self.training = Training(
            self.loss,
            self.network,
            self.E,
            optimiser,
            examples=len(self.train),
            batch=config.batch,
            seed=config.seed,
            device=device,
            compile=config.compiles,
        )
        self.iterations = config.epochs * self.training.per_epoch
        self.every = config.every or self.training.per_epoch

    def logits(self, images: Tensor) -> Tensor:
        return self.network(images.reshape(-1, 1, 28, 28)).view(*images.shape[:-2], 10)

    def loss(self, index: Tensor) -> Tensor:
        """-log of the estimated probability of the right sum. For IndeCateR that estimate is Rao-Blackwellised: seldom zero."""
        sums = self.train.sums[index]
        q = Independent(
            Categorical(logits=self.logits(self.train.batch(index)), validate_args=False), 1
        )
        f = OfSum(lambda total: (total == sums).float(), categories=10)
        return -(self.E(f, q) + 1e-8).log()

    def step(self, i: int) -> None:
        self.training.step(i)

    @torch.no_grad()
    def measure(self, i: int) -> dict[str, float]:
        """Accuracy on the test sequences: of their sums, by the most probable digits, and of single digits."""
        rows = torch.arange(len(self.test), device=self.test.index.device)
        read = torch.cat(
            [self.logits(self.test.batch(part)).argmax(-1) for part in rows.split(250)]
        )
        metrics = {
            "epoch": i / self.training.per_epoch,
            "accuracy": float((read.sum(-1) == self.test.sums).float().mean()),
            "digit_accuracy": float((read == self.test.labels).float().mean()),
        }
        if i > 0:
            metrics["train"] = self.training.mean_loss()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return self.training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training.load_state_dict(state)
