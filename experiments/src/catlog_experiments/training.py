"""Training of a model: shuffled batches, the compiled step, and their state."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from catlog import Estimator, compiled_step

from .named_estimators import load_own_state, own_parameters, own_state


def adam(
    parameters: Iterable[Tensor], learning_rate: float, E: Estimator, device: torch.device
) -> torch.optim.Adam:
    """Return Adam with Keras' epsilon; parameters of the estimator are a second group."""
    groups: list[dict[str, Any]] = [{"params": list(parameters)}]
    if learned := own_parameters(E):
        groups.append({"params": learned, "lr": 1e-3})
    return torch.optim.Adam(groups, learning_rate, eps=1e-7, capturable=device.type == "cuda")


class Training:
    """Minibatch steps on ``loss(index)``, where ``index`` selects the examples.

    The last, smaller batch of an epoch is dropped. The permutation of an epoch depends on
    (seed, epoch) alone, so step i always sees the same examples. ``config`` has the settings
    ``batch``, ``seed``, ``compiles`` and ``torch_device``.

    With ``models`` (see :mod:`.stacked`) an index has one row per model, in the order of the seeds
    ``seed``, ``seed + 1``, and so on.
    """

    def __init__(
        self,
        config: Any,
        loss: Callable[[Tensor], Tensor],
        model: nn.Module,
        E: Estimator,
        optimiser: torch.optim.Optimizer,
        examples: int,
        models: int | None = None,
    ) -> None:
        if not 1 <= config.batch <= examples:
            raise ValueError(
                f"--batch must be between 1 and the {examples} examples, "
                f"but {config.batch} was given."
            )
        self.model = model
        self.E = E
        self.optimiser = optimiser
        self.examples = examples
        self.batch = config.batch
        self.seed = config.seed
        self.device = config.torch_device
        self.models = models
        self.per_epoch = examples // self.batch
        self.compiled = compiled_step(loss, optimiser, compile=config.compiles, estimator=E)
        self.total = torch.zeros((), device=self.device)
        self.steps = 0
        self._epoch = -1
        self._order = torch.empty(0)

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

    def mean_loss(self) -> float:
        """Return the mean over the steps since the last call, NaN without steps."""
        mean = float(self.total) / self.steps if self.steps else float("nan")
        self.total.zero_()
        self.steps = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "estimator": own_state(self.E),
            "optimiser": self.optimiser.state_dict(),
            "total": self.total,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_own_state(self.E, state["estimator"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.total.copy_(state["total"])
        self.steps = state["steps"]


class TrainingTask:
    """A task whose steps and state are those of a training over epochs."""

    training: Training

    def step(self, i: int) -> None:
        self.training.step(i)

    def state_dict(self) -> dict[str, Any]:
        return self.training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training.load_state_dict(state)


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
