"""The fields that all experiments share: flags on the command line and entries of config.json."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from .loop import Task
from .ranges import Checked, Count, Seed

# label of the paper -> name in the registry, settings
Labels = Mapping[str, tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Settings(Checked, ABC):
    """The estimator, the seed and the device of an experiment."""

    estimator: str = "IndeCateR"
    """An estimator (see `catlog list`), or a label of the paper such as IndeCateR-D or RLOO-F."""
    samples: Count | None = None
    """Number of draws; None: the paper's number for this experiment."""
    options: tuple[str, ...] = ()
    """More settings of the estimator, such as draws=latin variables=4."""
    seed: Seed = 0
    """Seed of the parameters, the draws and the order of the data."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto: on a GPU if there is one."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the training step; auto: on a GPU."""
    tf32: bool = True
    """On a GPU, compute matrix products in TF32."""

    name: ClassVar[str]  # of the experiment
    labels: ClassVar[Labels]  # the paper's methods
    sizes: ClassVar[tuple[str, ...]]  # the fields that name a run's folder
    headline: ClassVar[tuple[str, str]]  # the metric to show, and its name with sign and unit
    length: ClassVar[str]  # the field that says how long a run is, and changes nothing else
    divides: ClassVar[bool] = False  # whether several ranks can divide its batches
    has_likelihood: ClassVar[bool] = False  # whether estimators of a bound on it apply
    has_derivative: ClassVar[bool] = True  # whether f has a derivative other than zero
    category_count: ClassVar[int] = 2  # of a variable, unless a field `categories` says it

    @abstractmethod
    def task(self) -> Task:
        """Return what the loop runs."""

    @property
    def methods(self) -> Labels:
        """The paper's methods at this size."""
        return self.labels

    @property
    def data_set(self) -> str | None:
        """The name of the images that a run loads; None if it needs none."""
        return getattr(self, "data", None)

    def check_extension(self) -> None:
        """Raise if a run of these settings cannot be continued as a longer one."""

    @property
    def torch_device(self) -> torch.device:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "--device must be cpu or auto, but it is cuda, and torch sees no GPU here."
            )
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def compiles(self) -> bool | None:
        return {"auto": None, "yes": True, "no": False}[self.compile]

    def prepare(self) -> torch.device:
        """Set torch's precision and choice of convolution algorithms, and return the device."""
        device = self.torch_device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = True
        return device
