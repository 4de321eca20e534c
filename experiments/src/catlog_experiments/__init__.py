"""The experiments: dataclasses whose fields are the flags of ``catlog run``."""

from .addition import Addition
from .dvae import DVAE
from .gradients import Gradients
from .optimisation import Optimisation
from .programs import Programs
from .run import execute, folder_for

Experiment = Gradients | Optimisation | DVAE | Addition | Programs

EXPERIMENTS: dict[str, type[Experiment]] = {
    experiment.name: experiment
    for experiment in (Gradients, Optimisation, DVAE, Addition, Programs)
}

__all__ = [
    "DVAE",
    "EXPERIMENTS",
    "Addition",
    "Experiment",
    "Gradients",
    "Optimisation",
    "Programs",
    "execute",
    "folder_for",
]
