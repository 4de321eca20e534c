"""The paper's experiments: dataclasses whose fields are the flags of ``catlog run``."""

from .addition import Addition
from .dvae import DVAE
from .gradients import Gradients
from .optimisation import Optimisation
from .programs import Programs
from .run import execute
from .run_folder import folder_for
from .sweeps import grid, sweep

EXPERIMENTS = {cls.name: cls for cls in (Gradients, Optimisation, DVAE, Addition, Programs)}

__all__ = [
    "DVAE", "EXPERIMENTS", "Addition", "Gradients", "Optimisation", "Programs", "execute",
    "folder_for", "grid", "sweep",
]  # fmt: skip
