"""Experiment 4 of the paper: learn to read digits from their sum."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from catlog import RLOO, IndeCateR, log_expectation
from catlog.functions import OfSum

from . import data
from .digits import DigitsTask, lenet
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
    length: ClassVar[str] = "epochs"
    has_derivative: ClassVar[bool] = False
    category_count: ClassVar[int] = 10
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(10),
        "IndeCateR-D": IndeCateR(10, per_variable=True),
        "IndeCateR-Latin": IndeCateR(10, sampling="latin"),
        "IndeCateR-D-Latin": IndeCateR(10, per_variable=True, sampling="latin"),
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
        super().__init__(config)
        sequences = data.addition(data.load(config.data), config.digits)
        self.prepare_reader(config, sequences, lenet())
        if config.clip is not None:
            max_norm = config.clip

            def clip(*_: object) -> None:
                clip_grad_norm_(self.model.parameters(), max_norm)

            self.optimiser.register_step_pre_hook(clip)

    def loss(self, index: Tensor) -> Tensor:
        """Return minus the log of the estimated probability of the right sum.

        IndeCateR's estimate is Rao-Blackwellised, so it is seldom zero. Sequences whose estimate is
        zero have the loss -log(1e-8) and no gradient.
        """
        sums = self.train.sums[index]
        q = self.distribution(self.logits(self.train.batch(index)))
        f = OfSum(lambda total: (total == sums).float(), categories=10)
        return -log_expectation(self.E, f, q, floor=1e-8)

    def measure(self, i: int) -> dict[str, float]:
        """Return the test accuracy of the most probable digits, and of their sums."""
        digits = self.read_digits()
        return {
            "accuracy": float((digits.sum(-1) == self.test.sums).float().mean()),
            "digit_accuracy": float((digits == self.test.labels).float().mean()),
            **self.progress(i),
        }
