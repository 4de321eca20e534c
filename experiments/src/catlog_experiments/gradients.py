"""Experiment 1 of the paper: estimates of a gradient whose exact value is known."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from catlog import RLOO, GumbelSoftmax, IndeCateR
from catlog.estimators import Reinforce
from catlog.functions import Additive, Potts

from .named_estimators import OnNumbers, law_for, takes_one_hot
from .settings import AtLeastTwo, Count, Labels, Settings
from .training import GradientTask


@dataclass(frozen=True, kw_only=True)
class Gradients(Settings):
    """Synthetic gradients: estimates at fixed logits, and the exact gradient.

    An additive f is the paper's sum of abs(x_d - b_d). IndeCateR is exact on it
    with one draw, so the comparison says little. A pairwise f is a Potts energy
    with a coupling between every two variables, which makes the comparison fair.
    """

    variables: Count = 12
    """D, the number of variables."""
    categories: AtLeastTwo = 3
    """K, the number of categories of a variable."""
    function: Literal["additive", "pairwise"] = "additive"
    """f: the paper's additive function, or one with interactions."""
    repeats: AtLeastTwo = 1000
    """Number of estimates."""
    together: Count = 50
    """Number of estimates made at once (affects memory and speed only)."""

    name: ClassVar[str] = "gradients"
    headline: ClassVar[tuple[str, str]] = ("relative_variance", "relative variance")
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(1),
        "IndeCateR-Latin": IndeCateR(2, sampling="latin"),
        "REINFORCE": Reinforce(1000),
        "RLOO": RLOO(1000),
        "GS": GumbelSoftmax(1000, hard=True, temperature=1.0),
    }
    sizes: ClassVar[tuple[str, ...]] = ("variables", "categories", "function")

    def task(self) -> "GradientsTask":
        return GradientsTask(self)


class GradientsTask(GradientTask):
    """``together`` estimates per iteration; the state is the sums over all of them."""

    saved = ("E", "optimiser", "g", "g2", "cosine", "cosine2")

    def __init__(self, config: Gradients) -> None:
        super().__init__(config)
        self.config = config
        one_hot, device = takes_one_hot(self.E), self.device
        self.iterations = -(-config.repeats // config.together)
        self.every = self.iterations + 1  # log at the end only

        d, k = config.variables, config.categories
        generator = torch.Generator().manual_seed(config.seed)  # one problem for all estimators
        self.logits = torch.randn(d, k, generator=generator).to(device)
        if config.function == "additive":
            cdf = torch.distributions.Categorical(logits=self.logits.cpu()).probs.cumsum(-1)
            b = (torch.rand(d, 1, generator=generator) > cdf).sum(-1).clamp(max=k - 1)
            b, costs = b.to(device), (torch.arange(k) - b[:, None]).abs().float().to(device)
            self.f: nn.Module = (
                OnNumbers(lambda x: (x - b).abs().sum(-1), k) if one_hot else Additive(costs)
            )
            multilinear: nn.Module = Additive(costs, one_hot=True)
        else:
            couplings = (torch.randn(d, d, generator=generator) / d**0.5).to(device)
            fields = torch.randn(d, k, generator=generator).to(device)
            self.f = Potts(couplings, fields, one_hot=one_hot)
            multilinear = Potts(couplings, fields, one_hot=True)
        # f is multilinear in one-hot points, so f at the probabilities is its expectation.
        logits = self.logits.double().requires_grad_()
        expectation = multilinear.double()(logits.softmax(-1)[None])
        (self.exact,) = torch.autograd.grad(expectation.sum(), logits)
        self.g = torch.zeros_like(self.exact)
        self.g2 = torch.zeros_like(self.exact)
        self.cosine = self.exact.new_zeros(())
        self.cosine2 = self.exact.new_zeros(())

    def step(self, i: int) -> None:
        count = min(self.config.together, self.config.repeats - i * self.config.together)
        logits = self.logits.expand(count, *self.logits.shape).clone().requires_grad_()
        loss = self.E(self.f, law_for(self.E, logits)).sum()
        gradient = self.gradient_of(loss, logits).double()
        self.optimiser.step()
        cosine = torch.nn.functional.cosine_similarity(
            gradient.flatten(1), self.exact.flatten()[None]
        )
        self.g += gradient.sum(0)
        self.g2 += gradient.square().sum(0)
        self.cosine += cosine.sum()
        # the square of the distance, not of the cosine, which would cancel where it is tiny
        self.cosine2 += (1 - cosine).square().sum()

    def measure(self, i: int) -> dict[str, float]:
        """Return the paper's "bias", mean(1 - cos), and "variance", var(cos), and the true ones."""
        n = min(i * self.config.together, self.config.repeats)
        if n < 2:
            return {}
        mean = self.g / n
        variance = (self.g2 - n * mean.square()).clamp(min=0) / (n - 1)
        distance = 1 - self.cosine / n
        norm2 = self.exact.square().sum()
        bias2 = ((mean - self.exact).square() - variance / n).sum()  # less the mean's variance
        return {
            "estimates": n,
            "evaluations": self.E.evaluations(law_for(self.E, self.logits)),
            "cosine_distance": float(distance),
            "cosine_variance": max(0.0, float(self.cosine2 / n - distance.square())),
            "relative_bias": float((mean - self.exact).norm() / norm2.sqrt()),
            "relative_bias2": float(bias2 / norm2),
            "relative_variance": float(variance.sum() / norm2),
            "variance": float(variance.sum()),
            "exact_norm2": float(norm2),
        }
