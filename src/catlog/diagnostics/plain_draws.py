"""Independent draws with the values of f at them, which many estimators can use."""

import torch
from torch import Tensor

from ..evaluation.evaluate import evaluate
from ..sampling.draw import draw
from .gradient_samples import GradientSampler


class PlainDraws:
    """Independent draws with the values of f, evaluated in sets.

    Estimators of plain draws (RLOO, CritiCateR, BBVI, Reinforce) are judged from the same draws,
    with any number of draws up to the size of a set: 16 draws are also two times 8 draws.

    Args:
        task: The gradient to estimate.
        size: The draws of a set.
        generator: The source of the draws.

    Attributes:
        seconds: The time of the fastest set.
    """

    def __init__(self, task: GradientSampler, size: int, generator: torch.Generator) -> None:
        self.task = task
        self.size = size
        self.generator = generator
        self.seconds = 0.0
        self._x: list[Tensor] = []
        self._fx: list[Tensor] = []

    @property
    def count(self) -> int:
        """The number of draws."""
        return self.size * len(self._x)

    def extend(self, sets: int) -> None:
        """Evaluate f until there are this many sets."""
        while len(self._x) < sets:
            seconds, (x, fx) = self.task.timed(self._evaluated)
            self.seconds = min(self.seconds, seconds) if self._x else seconds
            self._x.append(x)
            self._fx.append(fx)

    @torch.no_grad()
    def _evaluated(self) -> tuple[Tensor, Tensor]:
        x = draw(self.task.view, self.size, generator=self.generator)
        return x, evaluate(self.task.f, x, self.task.view)

    def subsets(self, samples: int, first: int, most: int) -> tuple[Tensor, Tensor]:
        """Return draws ``[samples, repeats, ...]`` and values, beginning with draw `first`.

        There are at most `most` repeats.
        """
        repeats = min(most, (self.count - first) // samples)
        part = slice(first, first + repeats * samples)
        x, fx = torch.cat(self._x)[part], torch.cat(self._fx)[part]
        shape = (repeats, samples)
        return x.unflatten(0, shape).transpose(0, 1), fx.unflatten(0, shape).transpose(0, 1)
