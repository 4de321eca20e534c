"""Functions of sums of integers: the law of a sum of independent variables is a convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..distributions.categoricals import Categoricals
from ..functions import OfSum
from .problem import Problem, Size, bits, black_box, normal, one_hot, summary


def law_of_sum(probs: Tensor, weights: Sequence[int] | None = None) -> Tensor:
    r"""P(sum = s) for s = 0, 1, ..., where variable i adds ``weights[i]`` (None: 1) times its category: ``[*batch, d, k]``.

    >>> law_of_sum(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    tensor([0.2500, 0.5000, 0.2500])
    """
    d, k = probs.shape[-2:]
    total = torch.ones(probs.shape[:-2] + (1,), dtype=probs.dtype)
    for i, weight in enumerate([1] * d if weights is None else weights):
        moved = [
            pad(total * probs[..., i, j, None], (weight * j, weight * (k - 1 - j)))
            for j in range(k)
        ]
        total = torch.stack(moved).sum(0)
    return total


def digit_sum(size: Size = "small", seed: int = 0) -> Problem:
    r"""An indicator that is seldom one: almost every draw says nothing, and there is no derivative.

    .. math:: f(x) = \Bigl[\sum_i x_i = s\Bigr], \qquad x_i \in \{0, \dots, 9\}
    """
    d = {"small": 3, "large": 16}[size]
    (logits,) = normal(seed, (d, 10))
    logits *= 2
    target = (
        int((logits.softmax(-1) @ torch.arange(10.0, dtype=torch.float64)).sum().round()) + d // 2
    )
    f = OfSum(lambda s: (s.round() == target).double(), categories=10, one_hot=True)

    def expectation(logits: Tensor) -> Tensor:
        return law_of_sum(logits.softmax(-1))[..., target]

    return Problem(
        "digit-sum",
        summary(digit_sum),
        black_box(f),
        (logits.requires_grad_(),),
        one_hot,
        interactions=True,
        relaxable=False,
        structured=f,
        expectation=expectation,
        size=size,
        seed=seed,
    )


def knapsack(size: Size = "small", seed: int = 0) -> Problem:
    r"""Values add up until a constraint binds: a kink that couples all variables on one side only.

    .. math:: f(x) = \sum_i v_i x_i - \lambda \max\Bigl(0, \sum_i w_i x_i - C\Bigr)
    """
    d = {"small": 10, "large": 100}[size]
    logits, values = normal(seed, (d,), (d,))
    weights = torch.randint(1, 11, (d,), generator=torch.Generator().manual_seed(seed))
    values = weights / 10 * (1 + values.abs())
    capacity, penalty = int(weights.sum()) // 2, 0.5
    w = weights.double()

    def f(x: Tensor) -> Tensor:
        return x @ values - penalty * (x @ w - capacity).relu()

    def expectation(logits: Tensor) -> Tensor:
        p = logits.sigmoid()
        over = (torch.arange(int(weights.sum()) + 1) - capacity).relu().double()
        return p @ values - penalty * (
            law_of_sum(torch.stack([1 - p, p], -1), weights.tolist()) @ over
        )

    return Problem(
        "knapsack",
        summary(knapsack),
        f,
        (logits.requires_grad_(),),
        bits,
        interactions=True,
        relaxable=True,
        expectation=expectation,
        size=size,
        seed=seed,
    )


def mixed(size: Size = "small", seed: int = 0) -> Problem:
    r"""Variables of 2 to 7 categories, some masked, in a batch of two laws with masks of their own.

    .. math:: f(x) = \Bigl|\sum_i x_i - t\Bigr|
    """
    d = {"small": 5, "large": 60}[size]
    generator = torch.Generator().manual_seed(seed)
    sizes = [2 + i % 6 for i in range(d)]
    k = max(sizes)
    (logits,) = normal(seed, (2, d, k))
    # One category of every variable with three or more is masked, another one in each of the two laws.
    masked = (
        torch.rand(2, d, k, generator=generator) * (torch.arange(k) < torch.tensor(sizes)[:, None])
    ).argmax(-1)
    mask = torch.arange(k) == torch.where(torch.tensor(sizes) > 2, masked, k)[..., None]

    def law(logits: Tensor) -> Categoricals:
        return Categoricals(logits.masked_fill(mask, -torch.inf), sizes)

    mean = (law(logits).probs @ torch.arange(k, dtype=torch.float64)).sum(-1)
    target = mean.round() + torch.tensor([0, d**0.5 // 1], dtype=torch.float64)
    f = OfSum(lambda s: (s - target).abs(), categories=k)

    def expectation(logits: Tensor) -> Tensor:
        total = law_of_sum(law(logits).probs)
        sums = torch.arange(total.shape[-1], dtype=torch.float64)
        return (total * (sums - target.unsqueeze(-1)).abs()).sum(-1)

    return Problem(
        "mixed",
        summary(mixed),
        black_box(f),
        (logits.requires_grad_(),),
        law,
        interactions=True,
        relaxable=False,
        structured=f,
        expectation=expectation,
        size=size,
        seed=seed,
    )
