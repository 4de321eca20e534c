"""The fields that all experiments share: flags on the command line, and the record of a run."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import torch

from catlog import Estimator

if TYPE_CHECKING:
    from .training import Task

Labels = Mapping[str, Estimator]  # by the paper's names

# Numbers with their smallest value; `Positive` is above zero. The command line checks types and
# choices.
Count = Annotated[int, 1]
Counted = Annotated[int, 0]
AtLeastTwo = Annotated[int, 2]
Positive = Annotated[float, 5e-324]


@dataclass(frozen=True, kw_only=True)
class Settings(ABC):
    """The estimator, the seed and the device of an experiment."""

    estimator: str = "IndeCateR"
    """An estimator of catlog.estimators, or a label of the paper such as IndeCateR-D or RLOO-F."""
    samples: Count | None = None
    """Number of draws; None: the paper's number for this experiment."""
    options: tuple[str, ...] = ()
    """More settings of the estimator, such as sampling=latin variables=4."""
    seed: Counted = 0
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
    kinds: ClassVar[set[str]] = {"bits", "one-hot", "index"}  # of variables that f can read

    def __post_init__(self) -> None:
        """Raise ValueError if a field is out of its range."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value, parts = getattr(self, name, None), (hint, *get_args(hint))
            for least in (least for part in parts for least in getattr(part, "__metadata__", ())):
                if value is not None and not (isfinite(value) and value >= least):
                    bound = "above 0" if 0 < least < 1 else f"at least {least}"
                    flag = name.replace("_", "-")
                    raise ValueError(f"--{flag} must be {bound}, but {value!r} was given.")

    @abstractmethod
    def task(self) -> "Task":
        """Return the work of the run. Wrong settings and missing data raise here."""

    @property
    def methods(self) -> Labels:
        """The paper's methods at this size."""
        return self.labels

    def record(self) -> dict[str, Any]:
        """Return all fields as they are read from a file, where tuples are lists."""
        return json.loads(json.dumps({"experiment": self.name, **asdict(self)}))

    @property
    def torch_device(self) -> torch.device:
        has_gpu = torch.cuda.is_available()
        if self.device == "cuda" and not has_gpu:
            raise ValueError(
                "--device must be cpu or auto, but it is cuda, and torch sees no GPU here."
            )
        return torch.device("cuda" if has_gpu and self.device != "cpu" else "cpu")

    def prepare(self) -> torch.device:
        """Set torch's precision and choice of convolution algorithms, and return the device."""
        device = self.torch_device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = True
        return device
