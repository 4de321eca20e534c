"""The estimators that race, by their labels: "GumbelSoftmax(4, hard=True)"."""

import re
from dataclasses import dataclass
from typing import Any

from catlog import Estimator
from catlog.estimator import label
from catlog.experiments.named_estimators import make_estimator

DRAWS = (4, 2, 8, 16)
# Straight-through Gumbel-Softmax has its usual, constant temperature of 1.
SETTINGS = {
    "ReinMax": (),
    "SlopeCateR": (),
    "GumbelSoftmax": ("hard=True",),
    "RLOO": (),
    "CritiCateR": (),
}


@dataclass(frozen=True)
class Racer:
    """An estimator by name.

    Attributes:
        name: its class.
        samples: its number of draws; None if it has none, as Exact.
        options: further settings, such as "draws=latin".
    """

    name: str
    samples: int | None
    options: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> "Racer":
        """Return the racer that a label of catlog names.

        >>> Racer.parsed("IndeCateR(9, draws=latin, variables=4)")
        Racer(name='IndeCateR', samples=9, options=('draws=latin', 'variables=4'))
        """
        match = re.fullmatch(r"(\w+)\((?:(\d+)(?:, |(?=\))))?(.*)\)", text)
        if match is None:
            raise ValueError(f"Racer: `text` must be a label such as RLOO(4), but it is {text!r}.")
        name, samples, options = match.groups()
        draws = None if samples is None else int(samples)
        return cls(name, draws, tuple(options.split(", ")) if options else ())

    @property
    def settings(self) -> dict[str, Any]:
        """The same as fields of an experiment's settings."""
        return {"estimator": self.name, "samples": self.samples, "options": self.options}

    def estimator(self) -> Estimator:
        return make_estimator(self.name, self.samples, self.options, {})

    @property
    def label(self) -> str:
        return label(self.estimator())


def entrants() -> list[str]:
    """Return the labels of all racers, the likely good ones first."""
    racers = [
        Racer(name, samples, options) for samples in DRAWS for name, options in SETTINGS.items()
    ]
    racers += [Racer("IndeCateR", samples) for samples in sorted(DRAWS)]
    return [racer.label for racer in racers]
