"""The fields that all experiments share: flags on the command line, and the record of a run."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from math import isfinite
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)  # fmt: skip

import torch

from catlog import Estimator

if TYPE_CHECKING:
    from .training import Task

Labels = Mapping[str, Estimator]  # by the paper's names

# Numbers with their smallest value; `Positive` is above zero. The command line checks types.
Count = Annotated[int, 1]
Counted = Annotated[int, 0]
AtLeastTwo = Annotated[int, 2]
NotNegative = Annotated[float, 0.0]
Positive = Annotated[float, 5e-324]


def _unmet(value: Any, hint: Any) -> str:
    """Return what a type demands of a value that does not comply: a choice, or a bound."""
    if get_origin(hint) is Literal and value not in get_args(hint):
        return f"one of {', '.join(map(str, get_args(hint)))}"
    for least in getattr(hint, "__metadata__", ()):
        is_bound = isinstance(least, int | float) and value is not None
        if is_bound and not (isfinite(value) and value >= least):
            return "above 0" if 0 < least < 1 else f"at least {least}"
    return next(filter(None, (_unmet(value, part) for part in get_args(hint))), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the closest known name, "" if none is close.

    >>> did_you_mean("RLO", ["Exact", "RLOO", "ARM"])
    ' Did you mean RLOO?'
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""


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
    length: ClassVar[str]  # the field that says how long a run is
    has_likelihood: ClassVar[bool] = False  # whether estimators of a bound on it apply
    has_derivative: ClassVar[bool] = True  # whether f has a derivative other than zero
    category_count: ClassVar[int] = 2  # of a variable, unless a field `categories` says it

    def __post_init__(self) -> None:
        """Raise ValueError if a field is out of its range, or none of its choices."""
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value, flag = getattr(self, field.name), field.name.replace("_", "-")
            if demand := _unmet(value, hints[field.name]):
                raise ValueError(f"--{flag} must be {demand}, but {value!r} was given.")

    @abstractmethod
    def task(self) -> "Task":
        """Return the work of the run. Wrong settings and missing data raise here."""

    @property
    def methods(self) -> Labels:
        """The paper's methods at this size."""
        return self.labels

    @property
    def is_extendable(self) -> bool:
        """Whether a longer run begins like this one, so that it can continue it."""
        return True

    def record(self) -> dict[str, Any]:
        """Return all fields as they are read from a file, where tuples are lists."""
        return json.loads(json.dumps({"experiment": self.name, **asdict(self)}))

    def identity(self) -> dict[str, Any]:
        """Return the record, without the length if a longer run continues this one."""
        return {**self.record(), **({self.length: None} if self.is_extendable else {})}

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
