"""Experiment 4 of the paper: learn to read digits from their sum."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from torch.nn.utils import clip_grad_norm_

from catlog import RLOO, IndeCateR

from .digits import DigitsTask, lenet, total
from .settings import Count, Labels, Positive, Settings


@dataclass(frozen=True, kw_only=True)
class Addition(Settings):
    """MNIST addition: a LeNet reads D images and is trained on their sum.

    The loss is -log P(sum is right). f is the indicator that the drawn digits
    add up to the sum. Its derivative is zero, so relaxations do not apply.
    """

    data: Literal["mnist-5000", "mnist"] = "mnist-5000"
    """Images; mnist-5000 needs no files, mnist is read from CATLOG_DATA or downloaded."""
    digits: Count = 4
    """D, the number of images in a sum."""
    epochs: Count = 10
    """Passes over the training sequences (the paper: 100)."""
    batch: Count = 10
    """Sequences per step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    clip: Positive | None = None
    """Largest norm of the gradient; None: no limit. It stabilises long runs of 16+ digits."""
    every: Count | None = None
    """Log every N steps; None: once per epoch."""

    name: ClassVar[str] = "addition"
    headline: ClassVar[tuple[str, str]] = ("accuracy", "accuracy")
    kinds: ClassVar[set[str]] = {"index"}  # the derivative of f is zero
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(10),
        "IndeCateR-D": IndeCateR(10, per_variable=True),
        "RLOO-S": RLOO(10),
    }
    sizes: ClassVar[tuple[str, ...]] = ("data", "digits")

    @property
    def methods(self) -> Labels:
        return {**self.labels, "RLOO-F": RLOO(100 * self.digits)}

    def task(self) -> "AdditionTask":
        return AdditionTask(self)


class AdditionTask(DigitsTask):
    """Model, sequences and likelihood."""

    def __init__(self, config: Addition) -> None:
        super().__init__(config, total, config.digits, lenet)

        def clip(*_: object) -> None:
            clip_grad_norm_(self.model.parameters(), config.clip or inf)

        if config.clip is not None:
            self.optimiser.register_step_pre_hook(clip)
