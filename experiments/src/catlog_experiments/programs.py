"""Learn to read digits from the outputs of a program that saw them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from catlog import RLOO, IndeCateR
from catlog.functions import DigitsOfSum
from catlog.problems.mlp import glorot

from .digits import Digits, DigitsTask, Results, conv, deep, lenet, total
from .settings import AtLeastTwo, Count, Counted, Labels, Positive, Settings


def add_numbers(digits: Digits) -> Results:
    """Return the digits of the sum of two numbers, most significant first.

    >>> add_numbers(torch.tensor([5, 8, 3, 3]))
    tensor([0, 9, 1])
    """
    sums = digits.unflatten(-1, (2, -1)).sum(-2)
    results, carry = [], torch.zeros_like(sums[..., 0])
    for place in reversed(sums.unbind(-1)):
        results.append((place + carry) % 10)
        carry = (place + carry) // 10
    return torch.stack([carry, *reversed(results)], -1)


def _one(result: Tensor) -> Results:
    return result.long().unsqueeze(-1)


# The number of images that a program reads (None: as many as the experiment says), and a map from
# digits to the results, which are the only labels of training. The eleven programs of MNIST-R
# (Solko-Breslin et al., "Data-efficient learning with neural programs", 2024), and sums of two
# numbers and of many digits.
PROGRAMS: dict[str, tuple[int | None, Callable[[Digits], Results]]] = {
    "numbers": (None, add_numbers),
    "sum": (None, total),
    "sum-2": (2, total),
    "sum-3": (3, total),
    "sum-4": (4, total),
    "mult-2": (2, lambda x: _one(x[..., 0] * x[..., 1])),
    "mod-2": (2, lambda x: _one(x[..., 0] % (x[..., 1] + 1))),
    "add-mod-3": (2, lambda x: _one((x[..., 0] + x[..., 1]) % 3)),
    "add-sub": (3, lambda x: _one(x[..., 0] + x[..., 1] - x[..., 2])),
    "less-than": (2, lambda x: _one(x[..., 0] < x[..., 1])),
    "equal": (2, lambda x: _one(x[..., 0] == x[..., 1])),
    "not-3-or-4": (1, lambda x: _one((x[..., 0] != 3) & (x[..., 0] != 4))),
    "count-3-4": (8, lambda x: _one(((x == 3) | (x == 4)).sum(-1))),
}


@dataclass(frozen=True, kw_only=True)
class Programs(Settings):
    """Programs over digits: a network is trained on what a program computes.

    The loss is the sum over the results of -log P(the result is right), with one
    expectation per result and one set of draws for all. f is an indicator. Its
    derivative is zero, so relaxations do not apply.
    """

    program: Literal[
        "numbers", "sum", "sum-2", "sum-3", "sum-4", "mult-2", "mod-2", "add-mod-3", "add-sub",
        "less-than", "equal", "not-3-or-4", "count-3-4",
    ] = "numbers"  # fmt: skip
    """numbers: the sum of two numbers; sum: of single digits; the others are MNIST-R's."""
    digits: Count = 4
    """Digits of each number (numbers), or of the sum (sum)."""
    data: Literal["mnist-5000", "mnist"] = "mnist-5000"
    """Images; mnist-5000 needs no files, mnist is read from CATLOG_DATA or downloaded."""
    sequences: Count | None = None
    """Training examples; None: as many as use no image twice."""
    epochs: Count = 20
    """Passes over the training examples."""
    batch: Count = 10
    """Examples per step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam at the start."""
    decay: bool = True
    """Let the learning rate fall linearly to zero."""
    network: Literal["lenet", "conv", "deep"] = "lenet"
    """The paper's LeNet; conv: two convolutions (32, 64) and 1,024 hidden units with dropout;
    deep: six convolutions with batch normalisation and dropout."""
    whole: bool = False
    """One expectation, that all results are right, instead of one per result."""
    double_softmax: bool = False
    """Give the network's probabilities to the distribution as logits, a published mistake."""
    value_samples: AtLeastTwo | None = None
    """Further draws, for the value only; None: the estimator's own value."""
    shift: Counted = 0
    """Move every training image by up to this many pixels in both directions, at random."""
    restart: Count | None = None
    """Start with new weights after every N epochs whose last one lost over 0.5 nats per result."""
    every: Count | None = None
    """Log every N steps; None: once per epoch."""

    name: ClassVar[str] = "programs"
    headline: ClassVar[tuple[str, str]] = ("accuracy", "accuracy")
    kinds: ClassVar[set[str]] = {"index"}  # the derivative of f is zero
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(2),
        "IndeCateR-D": IndeCateR(1, per_variable=True),
        "RLOO": RLOO(100),
    }
    sizes: ClassVar[tuple[str, ...]] = ("program", "data", "digits", "whole", "double_softmax")

    def task(self) -> "ProgramsTask":
        return ProgramsTask(self)


def shifted(images: Float[Tensor, "*lead 28 28"], most: int) -> Float[Tensor, "*lead 28 28"]:
    """Return the images, each moved by up to ``most`` pixels in both directions, at random."""
    lead, size = images.shape[:-2], images.shape[-1]
    start = torch.randint(0, 2 * most + 1, (2, *lead, 1), device=images.device)
    rows, columns = start + torch.arange(size, device=images.device)
    padded = pad(images, (most, most, most, most))
    padded = padded.gather(-2, rows.unsqueeze(-1).expand(*lead, size, padded.shape[-1]))
    return padded.gather(-1, columns.unsqueeze(-2).expand(*lead, size, size))


class ProgramsTask(DigitsTask):
    """Model, examples and likelihood."""

    saved = (*DigitsTask.saved, "recent_loss")

    def __init__(self, config: Programs) -> None:
        digits, program = PROGRAMS[config.program]
        digits = digits or config.digits * (2 if config.program == "numbers" else 1)
        network = {"lenet": lenet, "conv": conv, "deep": deep}[config.network]
        value = None if config.value_samples is None else RLOO(config.value_samples)
        super().__init__(
            config, program, digits, network, value, batch=1, sequences=config.sequences
        )
        self.config = config
        # A tensor, which a captured step reads at every replay.
        self.rate = torch.tensor(config.learning_rate, device=self.device)
        self.optimiser.param_groups[0]["lr"] = self.rate
        self.recent_loss = 0.0  # per result, as it was logged last

    def training_logits(self, index: Tensor) -> Float[Tensor, "batch digits 10"]:
        images = self.train.batch(index)
        if self.config.shift:
            images = shifted(images, self.config.shift)
        logits = self.logits(images)
        return logits.softmax(-1) if self.config.double_softmax else logits

    def function(self, results: Results) -> tuple[Callable[[Tensor], Tensor], int]:
        """Return which results are right, as a function of digits, and its output dimensions."""
        if self.config.program.startswith("sum"):
            return super().function(results)
        is_sum = self.config.program == "numbers"
        right: Callable[[Tensor], Tensor] = (
            DigitsOfSum(results) if is_sum else lambda x: self.program(x) == results
        )
        return (lambda x: right(x).all(-1), 0) if self.config.whole else (right, 1)

    def step(self, i: int) -> None:
        if self.config.decay:
            self.rate.fill_(self.config.learning_rate * (1 - i / self.iterations))
        period = (self.config.restart or 0) * self.per_epoch
        if period and i > 0 and i % period == 0 and self.recent_loss > 0.5:
            self.start_again()
        super().step(i)

    @torch.no_grad()
    def start_again(self) -> None:
        """Draw new weights and forget the optimiser's moments, in the same tensors."""
        for layer in self.model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.reset_parameters()
        glorot(self.model)
        for moments in self.optimiser.state.values():
            for value in moments.values():
                value.zero_()

    def measure(self, i: int) -> dict[str, float]:
        metrics = super().measure(i)
        if i > 0:
            outputs = 1 if self.config.whole else self.results.shape[-1]
            self.recent_loss = metrics["train"] / outputs
        return metrics

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimiser.param_groups[0]["lr"] = self.rate
