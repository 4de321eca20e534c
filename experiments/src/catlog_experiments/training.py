"""The work of a run, and training of a model: shuffled batches, the compiled step, their state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from catlog import Estimator, compiled_step

from .named_estimators import chosen_estimator
from .settings import Settings


class Task(ABC):
    """The work of a run: steps, and measurements between them.

    Attributes:
        iterations: The number of steps.
        every: Measure and log every N steps.
        E: The estimator, on its device.
        saved: The names of the attributes that a checkpoint holds: what has a state, tensors
            (restored in place, because a captured step reads them) and numbers.
    """

    iterations: int
    every: int
    saved: ClassVar[tuple[str, ...]]

    def __init__(self, config: Settings) -> None:
        self.device = config.prepare()
        self.E: Estimator = chosen_estimator(config, self.device)

    @abstractmethod
    def step(self, i: int) -> None:
        """Run iteration i, counted from 0. It must not wait for the device."""

    @abstractmethod
    def measure(self, i: int) -> dict[str, float]:
        """Return the metrics after i iterations."""

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.saved}
        return {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
            if name != "E" or isinstance(value, nn.Module)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            target = getattr(self, name)
            if hasattr(target, "load_state_dict"):
                target.load_state_dict(value)
            elif isinstance(target, Tensor):
                target.data.copy_(value)
            else:
                setattr(self, name, value)


def own_parameters(E: Estimator) -> list[nn.Parameter]:
    """Return the parameters of an estimator that learns."""
    return list(E.parameters()) if isinstance(E, nn.Module) else []


def adam(
    parameters: Iterable[Tensor], learning_rate: float, E: Estimator, device: torch.device
) -> torch.optim.Adam:
    """Return Adam with Keras' epsilon; parameters of the estimator are a second group."""
    groups: list[dict[str, Any]] = [{"params": list(parameters)}]
    if learned := own_parameters(E):
        groups.append({"params": learned, "lr": 1e-3})
    return torch.optim.Adam(groups, learning_rate, eps=1e-7, capturable=device.type == "cuda")


class GradientTask(Task):
    """Estimates without a model to train; an estimator's own parameters learn by Adam."""

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.learned = own_parameters(self.E)
        self.optimiser = torch.optim.Adam(self.learned or [torch.zeros(())], 1e-2)

    def gradient_of(self, value: Tensor, logits: Tensor) -> Tensor:
        """Return the gradient of ``value`` in ``logits``, and set those of the parameters."""
        gradient, *rest = torch.autograd.grad(value, [logits, *self.learned], allow_unused=True)
        for parameter, parameter_gradient in zip(self.learned, rest, strict=True):
            parameter.grad = parameter_gradient
        return gradient


class Training(Task):
    """Minibatch steps on ``loss(index)``, where ``index`` selects the examples.

    The last, smaller batch of an epoch is dropped. The permutation of an epoch depends on
    (seed, epoch) alone, so step i always sees the same examples. ``config`` has the settings
    ``batch``, ``epochs``, ``every`` and ``seed``.
    """

    saved: ClassVar[tuple[str, ...]] = ("model", "E", "optimiser", "total", "steps")
    models: int | None = None  # with a stack of them, an index has a row per model, by its seed

    def prepare(
        self,
        config: Any,
        model: nn.Module,
        learning_rate: float,
        examples: int,
        every: int | None = None,
    ) -> None:
        """Prepare training by Adam, measured every N steps, by default once per epoch."""
        if not 1 <= config.batch <= examples:
            raise ValueError(
                f"--batch must be between 1 and the {examples} examples, "
                f"but {config.batch} was given."
            )
        self.model = model
        self.optimiser = adam(model.parameters(), learning_rate, self.E, self.device)
        self.examples = examples
        self.batch = config.batch
        self.seed = config.seed
        self.per_epoch = examples // self.batch
        self.iterations = config.epochs * self.per_epoch
        self.every = config.every or every or self.per_epoch
        compiles = {"auto": None, "yes": True, "no": False}[config.compile]
        self.compiled = compiled_step(self.loss, self.optimiser, compile=compiles, estimator=self.E)
        self.total = torch.zeros((), device=self.device)
        self.steps = 0
        self._epoch = -1
        self._order = torch.empty(0)

    @abstractmethod
    def loss(self, index: Tensor) -> Tensor:
        """Return the losses of examples."""

    def step(self, i: int) -> None:
        """Train on the batch of iteration i."""
        self.total += self.compiled(self.index(i))
        self.steps += 1

    def index(self, i: int) -> Tensor:
        """Return the examples of iteration i."""
        epoch, j = divmod(i, self.per_epoch)
        if epoch != self._epoch:
            seeds = range(self.seed, self.seed + (self.models or 1))
            orders = torch.stack([self._permutation(seed, epoch) for seed in seeds]).to(self.device)
            self._order = orders[0] if self.models is None else orders
            self._epoch = epoch
        return self._order[..., j * self.batch : (j + 1) * self.batch]

    def _permutation(self, seed: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return torch.randperm(self.examples, generator=generator)

    def progress(self, i: int) -> dict[str, float]:
        """Return the epoch and, after a step, the mean loss since the last call."""
        metrics = {"epoch": i / self.per_epoch}
        if i > 0:
            metrics["train"] = float(self.total) / self.steps if self.steps else float("nan")
        self.total.zero_()
        self.steps = 0
        return metrics


def gradient_statistics(
    loss: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    more_parameters: list[nn.Parameter],
    repeats: int,
) -> dict[str, float]:
    r"""Estimate the gradient of one minibatch ``repeats`` times and return three statistics.

    gradient_variance: :math:`\sum_j \operatorname{Var} g_j` over the draws of the estimator, for
    ``parameters`` and a fixed minibatch.
    gradient_norm2: the signal :math:`\lVert\bar g\rVert^2`, less the variance of the mean.
    gradient_spread: the variance over the *entries* of each parameter's gradient, averaged over
    repeats and all parameters, also ``more_parameters``. This is the published "gradient variance".
    It contains signal as well, and would not vanish for the exact gradient.
    """
    totals = [torch.zeros_like(parameter) for parameter in parameters]
    square, spread = 0.0, 0.0
    for _ in range(repeats):
        gradients = torch.autograd.grad(loss(), [*parameters, *more_parameters])
        spread += float(torch.stack([g.var(correction=0) for g in gradients]).mean())
        for total, g in zip(totals, gradients[: len(parameters)], strict=True):
            total += g
            square += float(g.square().sum())
    mean_norm2 = sum(float((total / repeats).square().sum()) for total in totals)
    variance = (square - repeats * mean_norm2) / (repeats - 1)
    return {
        "gradient_variance": variance,
        "gradient_norm2": mean_norm2 - variance / repeats,
        "gradient_spread": spread / repeats,
    }
