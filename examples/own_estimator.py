"""A complete estimator to copy: REINFORCE in two halves, each with the other half's mean as its
baseline.

Print an estimated and an exact gradient, then run the tests that every estimator has to pass:

    python examples/own_estimator.py
    pytest --pyargs catlog.testing --estimator examples/own_estimator.py:TwoHalves

Copy this file, rename the class, and replace the lines between the two comments.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent

import catlog
from catlog.building_blocks import (
    ANY,
    Function,
    Kind,
    Target,
    attach,
    base_draws,
    check_count,
    evaluate,
    label,
    view,
)


@dataclass(frozen=True)
class TwoHalves:
    r"""REINFORCE whose baseline for each draw is the mean over the other half of the draws.

    .. math::
        \frac1{2N} \sum_{h\in\{0,1\}} \sum_n \bigl(f(x^{(h,n)}) - \overline{f}_{1-h}\bigr)\,
        \partial \log q(x^{(h,n)})

    Unbiased, because the other half is drawn independently. RLOO leaves out one draw instead of a
    half.

    Cost: 2 N evaluations. Needs: any f.
    Reference: none; an example.

    Args:
        samples: number of draws N in each half.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(1, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> TwoHalves()(lambda x: x[..., 0], q, x=torch.tensor([[0.0], [1.0]])).backward()
    >>> logits.grad
    tensor([0.5000])
    """

    samples: int = 1
    validate: bool = True

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = ANY
    differentiates_f: ClassVar[bool] = False
    randomness: ClassVar[tuple[str, ...]] = ("x",)
    reference: ClassVar[str] = "an example"

    __repr__ = label

    def __post_init__(self) -> None:
        check_count("TwoHalves", "samples", self.samples)

    def rows(self, q: Distribution) -> int:
        return 2 * self.samples

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        law = view(q, validate=self.validate)
        x = base_draws(law, x, self.rows(q), generator=generator)  # [2 n, *batch, *event]
        fx = evaluate(f, x, law)  # [2 n, *batch]
        # What makes this estimator: where f is evaluated, and how the values are weighted.
        score = law.log_prob(law.index(x))
        halves = fx.unflatten(0, (2, -1))
        advantage = (halves - halves.mean(1, keepdim=True).flip(0)).flatten(0, 1).detach()
        value, surrogate = fx.mean(0), (fx + advantage * score).mean(0)
        # The value, with the gradient of the surrogate.
        return attach(value, surrogate)


def main() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.5, -1.0, 0.3], requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return (x.sum(-1) - 1.6).abs()

    for E in (TwoHalves(samples=10_000), catlog.Exact()):
        (gradient,) = torch.autograd.grad(E(f, Independent(Bernoulli(logits=logits), 1)), logits)
        print(f"{E!r:16}", *(f"{number:8.4f}" for number in gradient))


if __name__ == "__main__":
    main()
