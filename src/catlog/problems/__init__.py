"""Problems with known answers: a function, a law, and the right gradient, each in a small and a large version.

>>> from catlog import RLOO, problems
>>> problem = problems.make("ising")
>>> RLOO(samples=10)(problem.f, problem.q()).backward()
>>> estimate, truth = problem.parameters[0].grad, problem.reference().gradient[0]
"""

from collections.abc import Callable

from ..checks import check_choice
from .additive import additive
from .autoencoder import dvae, dvae_encoder
from .pairwise import ising, potts, xor
from .parity import parity
from .problem import SIZES, Problem, Reference, Size, summary
from .random_networks import random_network, vq
from .sequences import autoregressive, bayesian_network, chain
from .sets import max_coverage, subset_selection
from .sums import digit_sum, knapsack, mixed

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "additive": additive,
    "ising": ising,
    "potts": potts,
    "random-network": random_network,
    "max-coverage": max_coverage,
    "knapsack": knapsack,
    "parity": parity,
    "xor": xor,
    "digit-sum": digit_sum,
    "dvae": dvae,
    "dvae-encoder": dvae_encoder,
    "subset-selection": subset_selection,
    "vq": vq,
    "chain": chain,
    "bayesian-network": bayesian_network,
    "autoregressive": autoregressive,
    "mixed": mixed,
}


def make(name: str, size: Size = "small", seed: int = 0) -> Problem:
    """The problem of this name: "small" (its points can be enumerated) or "large", random from ``seed``.

    >>> make("parity", "large").points
    1073741824
    """
    check_choice("make", "name", name, tuple(PROBLEMS))
    check_choice("make", "size", size, SIZES)
    return PROBLEMS[name](size=size, seed=seed)


def describe() -> dict[str, str]:
    """Which structure each problem tests."""
    return {name: summary(maker) for name, maker in PROBLEMS.items()}


__all__ = ["PROBLEMS", "Problem", "Reference", "describe", "make"]
