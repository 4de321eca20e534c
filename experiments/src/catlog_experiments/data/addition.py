"""MNIST addition: sequences of digits whose labels are hidden and whose sum is known."""

from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .images import Images


@dataclass(frozen=True)
class Sequences:
    """Sequences of images, stored as indices into one tensor of images.

    Attributes:
        images: the images, with pixels in [0, 1].
        index: the images of each sequence.
        labels: the digits, for evaluation.
    """

    images: Float[Tensor, "n 28 28"]
    index: Int64[Tensor, "sequences digits"]
    labels: Int64[Tensor, "sequences digits"]

    @property
    def sums(self) -> Int64[Tensor, " sequences"]:
        """The sum of each sequence's digits, the only label that training may use."""
        return self.labels.sum(1)

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, rows: Int64[Tensor, " batch"]) -> Float[Tensor, "batch digits 28 28"]:
        """Return the images of the sequences ``rows``."""
        return self.images[self.index[rows]]

    def to(self, device: torch.device | str) -> "Sequences":
        return Sequences(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class Addition:
    """Training and test sequences of ``digits`` digits each."""

    digits: int
    train: Sequences
    test: Sequences


def addition(
    images: Images, digits: int, seed: int = 0, batch: int = 10, sequences: int | None = None
) -> Addition:
    """Draw sequences of ``digits`` images from the training set and from the test set.

    No image occurs twice, unless ``sequences`` asks for more than there are. The paper draws the
    sequences once and uses them for every run and method, so ``seed`` is not the seed of a run.

    Args:
        images: images with the digits 0 to 9 as labels.
        digits: the length of a sequence.
        seed: the seed of the permutation of the images.
        batch: the number of sequences is rounded down to a multiple of it. It is 10 in the paper,
            so MNIST's test images give 620 sequences of 16 images, not 625.
        sequences: the number of training sequences. Images are used again, each equally often but
            for the last round, if there are too few of them. None: as many as use no image twice.

    >>> from catlog_experiments.data import load
    >>> data = addition(load("mnist-5000"), digits=4)
    >>> len(data.train), len(data.test), data.test.batch(torch.arange(10)).shape
    (1000, 250, torch.Size([10, 4, 28, 28]))
    """
    most = min(len(images.train), len(images.test)) // batch
    if not 1 <= digits <= most:
        raise ValueError(
            f"addition: `digits` must be between 1 and {most}, but {digits} was given. "
            f"{images.name!r} has {len(images.test)} test images."
        )
    generator = torch.Generator().manual_seed(seed)

    def draw(pixels: Tensor, labels: Tensor, count: int | None) -> Sequences:
        if count is None:
            count = len(pixels) // (digits * batch) * batch
        rounds = ceil(count * digits / len(pixels))
        orders = [torch.randperm(len(pixels), generator=generator) for _ in range(rounds)]
        index = torch.cat(orders)[: count * digits].reshape(count, digits)
        return Sequences(pixels.reshape(-1, 28, 28), index, labels[index])

    train = draw(images.train, images.train_labels, sequences)
    return Addition(digits, train, draw(images.test, images.test_labels, None))
