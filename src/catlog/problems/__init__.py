"""Problems with known answers: a function, a distribution and the right gradient, small and large.

>>> from catlog import RLOO, problems
>>> problem = problems.make("ising")
>>> RLOO(samples=10)(problem.f, problem.q()).backward()
>>> estimate, truth = problem.parameters[0].grad, problem.reference().gradient[0]
"""

from ..core.checks import check_choice
from . import analytic, autoencoder  # noqa: F401  # each registers its problems
from .problem import PROBLEMS, SIZES, Problem, Reference, Size, summary


def make(name: str, size: Size = "small", seed: int = 0) -> Problem:
    """Return the problem of this name.

    Args:
        name: see :func:`describe`.
        size: "small" (its points can be enumerated) or "large".
        seed: the seed of the random numbers that define the problem.

    >>> make("parity", "large").points
    1073741824
    """
    check_choice("problems.make", "name", name, tuple(PROBLEMS))
    check_choice("problems.make", "size", size, SIZES)
    return PROBLEMS[name](size=size, seed=seed)


def describe() -> dict[str, str]:
    """Return the structure that each problem tests."""
    return {name: summary(make) for name, make in PROBLEMS.items()}


__all__ = ["PROBLEMS", "Problem", "Reference", "describe", "make"]
