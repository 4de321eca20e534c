"""Experiment 2 of the paper: maximise an expectation that hardly depends on any one variable."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from catlog import RLOO, GumbelSoftmax, IndeCateR
from catlog.functions import Additive

from .named_estimators import OnNumbers, law_for, takes_one_hot, with_temperature
from .settings import Count, Labels, Positive, Settings
from .training import GradientTask


@dataclass(frozen=True, kw_only=True)
class Optimisation(Settings):
    """Synthetic optimisation: maximise E[mean of (x_d - 0.499)^2] over D bits.

    f is additive, so IndeCateR's gradient is exact. The learning rates are the
    published ones, for RMSProp with epsilon inside the root as in the published
    code. With epsilon outside, a rate of 5 would converge within ten steps.
    """

    variables: Count = 200
    """D, the number of bits."""
    iterations: Count = 2000
    """Number of updates."""
    every: Count = 5
    """Log every N updates."""
    learning_rate: Positive | None = None
    """Learning rate; None: 5 (0.01 for biased estimators, 1 for RLOO-S, as published)."""
    anneal: bool = True
    """Gumbel-Softmax: lower the temperature by exp(-0.05) every 20 updates (published: 0.1)."""
    update: Literal["own", "published"] = "own"
    """Follow each variable's own gradient, or the first one's, a mistake of the published code."""

    name: ClassVar[str] = "optimisation"
    headline: ClassVar[tuple[str, str]] = ("value", "value")
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(2),
        "RLOO-F": RLOO(800),
        "RLOO-S": RLOO(2),
        "GS-F": GumbelSoftmax(800, hard=True, temperature=0.1),
        "GS-S": GumbelSoftmax(2, hard=True, temperature=0.1),
    }
    rates: ClassVar[dict[str, float]] = {"RLOO-S": 1.0}
    sizes: ClassVar[tuple[str, ...]] = ("variables", "update")

    def task(self) -> "OptimisationTask":
        return OptimisationTask(self)


class OptimisationTask(GradientTask):
    """The logits, RMSProp's average, and the exact objective."""

    saved = ("E", "optimiser", "logits", "average", "temperature")

    def __init__(self, config: Optimisation) -> None:
        super().__init__(config)
        self.config = config
        self.iterations = config.iterations
        self.every = config.every
        self.E, self.temperature = with_temperature(self.E, 0.1, self.device)
        self.rate = config.learning_rate or config.rates.get(
            config.estimator, 5.0 if self.E.unbiased else 0.01
        )
        self.logits = torch.randn(config.variables, 2, device=self.device).requires_grad_()
        self.average = torch.zeros_like(self.logits)
        costs = (torch.arange(2.0) - 0.499).square().expand(config.variables, 2) / config.variables
        self.f: nn.Module = Additive(costs.to(self.device))
        if takes_one_hot(self.E):
            self.f = OnNumbers(lambda x: (x - 0.499).square().mean(-1), 2)
        self.exact = Additive(costs.double().to(self.device), one_hot=True)

    def gradient(self) -> Tensor:
        """Return an estimate of the gradient, zero where it is not finite."""
        value = self.E(self.f, law_for(self.E, self.logits))
        return self.gradient_of(value, self.logits).nan_to_num(0.0, posinf=0.0, neginf=0.0)

    def step(self, i: int) -> None:
        if self.config.anneal and i > 0 and i % 20 == 0:
            self.temperature *= torch.tensor(-0.05).exp()
        gradient = self.gradient()
        self.optimiser.step()
        if self.config.update == "published":
            gradient = gradient[:1].expand_as(gradient)
        with torch.no_grad():  # RMSProp of Keras: epsilon inside the root
            self.average.mul_(0.9).addcmul_(gradient, gradient, value=0.1)
            self.logits += self.rate * gradient * (self.average + 1e-7).rsqrt()

    def measure(self, i: int) -> dict[str, float]:
        with torch.no_grad():
            value = float(self.exact(self.logits.double().softmax(-1)[None]))
        with torch.random.fork_rng(devices=[self.logits.device] if self.logits.is_cuda else []):
            estimates = torch.stack([self.gradient() for _ in range(4)])
        variance = float(estimates.var(0).sum())
        spread = float(estimates.var(-1, correction=0).mean())
        return {"value": value, "gradient_variance": variance, "gradient_spread": spread}
