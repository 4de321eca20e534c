"""The fields that all experiments share; each is a flag on the command line and an entry of config.json."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from .ranges import Checked, Count, Seed


@dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """How to estimate, and where."""

    estimator: str = "IndeCateR"
    """An estimator of the registry (see `catlog list`), or a label of the paper such as IndeCateR-D, RLOO-F, RLOO-S, GS-F."""
    samples: Count | None = None
    """Number of draws; None: the paper's for this experiment."""
    options: tuple[str, ...] = ()
    """Further settings of the estimator, such as draws=latin variables=4."""
    seed: Seed = 0
    """Seed of the parameters, the draws and the order of the data."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto: on a GPU if there is one."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the training step; auto: on a GPU."""
    tf32: bool = True
    """On a GPU, matrix products in TF32."""

    divides: ClassVar[bool] = False  # whether it trains on batches, which several ranks can divide

    @property
    def torch_device(self) -> torch.device:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "--device cuda was given, but torch sees no GPU. Use --device cpu, or auto."
            )
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def compiles(self) -> bool | None:
        return {"auto": None, "yes": True, "no": False}[self.compile]

    def prepare(self) -> torch.device:
        """Set torch up for this run: precision and, for convolutions, the choice of algorithm."""
        device = self.torch_device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = True
        return device
