"""A model in training: shuffled batches, the compiled step, and the state of it all."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compiled import compiled_step
from ..estimator import Estimator
from .named_estimators import load_own_state, own_parameters, own_state
from .ranks import training_group


def adam(
    parameters: Iterable[Tensor], learning_rate: float, E: Estimator, device: torch.device
) -> torch.optim.Adam:
    """Adam with Keras' epsilon; the own parameters of an estimator that learns are a second group."""
    groups: list[dict[str, Any]] = [{"params": list(parameters)}]
    if own := own_parameters(E):
        groups.append({"params": own, "lr": 1e-3})
    return torch.optim.Adam(groups, learning_rate, eps=1e-7, capturable=device.type == "cuda")


class Training:
    """Minibatch steps on ``loss(index)``, where ``index`` picks the examples; the last, smaller batch is dropped.

    Every epoch has its own permutation, made from (seed, epoch), so that step i always sees the same examples. Several ranks
    (see :mod:`.ranks`) take equal parts of every batch, and the mean of their gradients.
    """

    def __init__(
        self,
        loss: Callable[[Tensor], Tensor],
        model: nn.Module,
        E: Estimator,
        optimiser: torch.optim.Optimizer,
        *,
        examples: int,
        batch: int,
        seed: int,
        device: torch.device,
        compile: bool | None = None,
    ) -> None:
        if not 1 <= batch <= examples:
            raise ValueError(
                f"--batch must be between 1 and the {examples} examples, but {batch} was given."
            )
        self.model, self.E, self.optimiser = model, E, optimiser
        self.examples, self.batch, self.seed, self.device = examples, batch, seed, device
        self.per_epoch = examples // batch
        self.group = training_group()
        self.ranks, self.rank = (dist.get_world_size(), dist.get_rank()) if self.group else (1, 0)
        if batch % self.ranks:
            raise ValueError(
                f"--batch must be a multiple of the number of ranks, {self.ranks}, but {batch} was given."
            )
        self.compiled = compiled_step(loss, optimiser, compile=compile, group=self.group)
        self.total = torch.zeros((), device=device)
        self.steps = 0
        self._epoch = -1
        self._order = torch.empty(0)

    def step(self, i: int) -> None:
        part = self.batch // self.ranks
        self.total += self.compiled(self.index(i)[self.rank * part : (self.rank + 1) * part])
        self.steps += 1

    def index(self, i: int) -> Tensor:
        """Which examples iteration i sees."""
        epoch, j = divmod(i, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = torch.randperm(self.examples, generator=generator).to(self.device)
            self._epoch = epoch
        return self._order[j * self.batch : (j + 1) * self.batch]

    def mean_loss(self) -> float:
        """Mean over the steps since the last call, and over ranks (NaN for none)."""
        mean = float(self._mean_total()) / self.steps if self.steps else float("nan")
        self.total.zero_()
        self.steps = 0
        return mean

    def _mean_total(self) -> Tensor:
        if self.group is None:
            return self.total
        total = self.total.clone()
        dist.all_reduce(total, group=self.group)
        return total / self.ranks

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "estimator": own_state(self.E),
            "optimiser": self.optimiser.state_dict(),
            "total": self._mean_total(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_own_state(self.E, state["estimator"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.total.copy_(state["total"])
        self.steps = state["steps"]


def glorot(*modules: nn.Module) -> None:
    """Keras' default start: uniform Glorot weights, zero biases."""
    for module in (each for root in modules for each in root.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def gradient_statistics(
    loss: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    others: list[nn.Parameter],
    repeats: int,
) -> dict[str, float]:
    r"""The gradient of one minibatch, estimated ``repeats`` times: noise over draws, and what the paper calls variance.

    gradient_variance: :math:`\sum_j \operatorname{Var} g_j` over the draws of the estimator, the minibatch held fixed, for
    ``parameters``.
    gradient_norm2: :math:`\lVert\bar g\rVert^2` of the same, less the variance left in the mean: the signal.
    gradient_spread: the variance over the *entries* of each parameter's gradient, averaged over repeats and all parameters, also
    ``others``: the published "gradient variance", which holds signal as well (it would not vanish for the exact gradient).
    """
    total = [torch.zeros_like(p) for p in parameters]
    square, spread = 0.0, 0.0
    for _ in range(repeats):
        gradients = torch.autograd.grad(loss(), [*parameters, *others])
        spread += float(torch.stack([g.var(correction=0) for g in gradients]).mean())
        for sum_, g in zip(total, gradients[: len(parameters)], strict=True):
            sum_ += g
            square += float(g.square().sum())
    mean_norm2 = sum(float((t / repeats).square().sum()) for t in total)
    variance = (square - repeats * mean_norm2) / (repeats - 1)
    return {
        "gradient_variance": variance,
        "gradient_norm2": mean_norm2 - variance / repeats,
        "gradient_spread": spread / repeats,
    }
