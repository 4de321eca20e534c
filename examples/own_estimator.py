"""A complete estimator to copy: REINFORCE in two halves, each with the other half's mean as its
baseline.

Print an estimated and an exact gradient, then run the tests that every estimator has to pass:

    python examples/own_estimator.py
    pytest --pyargs catlog.testing --catlog-estimator examples/own_estimator.py:TwoHalves

Copy this file, rename the class, and replace the lines of `estimate`.
"""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog
from catlog import Estimate, Estimator, Evaluator, Factors, Randomness


class TwoHalves(Estimator[Factors]):
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

    >>> logits = torch.zeros(1, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> TwoHalves()(lambda x: x[..., 0], q, x=torch.tensor([[0.0], [1.0]])).backward()
    >>> logits.grad
    tensor([0.5000])
    """

    samples: int = 1

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(2 * self.samples)  # [2 N, *batch, *event]
        fx = f(x)  # [2 N, *batch]
        halves = fx.detach().unflatten(0, (2, -1))
        advantage = (halves - halves.mean(1, keepdim=True).flip(0)).flatten(0, 1)
        surrogate = fx + advantage * q.log_prob_at(x)
        # The estimate has this value, and the gradient of this surrogate.
        return Estimate(fx.mean(0), surrogate.mean(0))


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
