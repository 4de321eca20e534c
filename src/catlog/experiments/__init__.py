"""The four experiments of the paper: dataclasses whose fields are the flags of ``catlog run``."""

from .addition import Addition
from .dvae import DVAE
from .gradients import Gradients
from .optimisation import Optimisation
from .run import execute, folder_for

Experiment = Gradients | Optimisation | DVAE | Addition

EXPERIMENTS: dict[str, type[Experiment]] = {
    experiment.name: experiment for experiment in (Gradients, Optimisation, DVAE, Addition)
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
