"""The four experiments of the paper, each a dataclass: its fields are the flags of ``catlog run`` and the record on disk."""

from .addition import Addition
from .dvae import DVAE
from .gradients import Gradients
from .optimisation import Optimisation
from .run import execute, folder_for

Experiment = Gradients | Optimisation | DVAE | Addition

EXPERIMENTS: dict[str, type[Experiment]] = {
    each.name: each for each in (Gradients, Optimisation, DVAE, Addition)
}

__all__ = [
    "DVAE",
    "EXPERIMENTS",
    "Addition",
    "Experiment",
    "Gradients",
    "Optimisation",
    "execute",
    "folder_for",
]
