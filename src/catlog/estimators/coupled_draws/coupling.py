"""Noise for coupled draws, negatively dependent events made from it, and their probabilities."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...checks import check_generator, check_uniforms
from ...distributions.factors import Factors
from ...estimator import FromDraws
from ...sampling.randomness import rand


def coupling_noise(
    E: FromDraws,
    law: Factors,
    shape: tuple[int, ...],
    x: Tensor | None,
    noise: Tensor | None,
    generator: torch.Generator | None,
    simplex: int | None = None,
) -> Tensor:
    """Return ``noise``, checked, or draw it for the estimator E.

    It holds uniforms or, with ``simplex``, Dirichlet(1, ..., 1) vectors along that dimension.
    """
    owner = type(E).__name__
    if x is not None:
        raise ValueError(
            f"x: {owner} makes coupled draws from noise; give `noise` or a `generator` instead."
        )
    check_generator(generator, law.device)
    if noise is not None:
        form = f"for {owner} with this q"
        return check_uniforms(
            "noise", noise, shape, form, law, E.validate, closed=True, simplex=simplex
        )
    u = rand(shape, dtype=law.real, device=law.device, generator=generator)
    if simplex is None:
        return u
    exponential = -u.clamp(min=torch.finfo(u.dtype).tiny).log()
    return exponential / exponential.sum(simplex, keepdim=True)


def antithetic_events(
    noise: Float[Tensor, "n *shape"], chance: Float[Tensor, "*shape"]
) -> Bool[Tensor, "n *shape"]:
    """Return N negatively dependent events of the same probability: u_n < chance, u_n = (1 -
    noise_n)^(N - 1).

    The noise is Dirichlet(1, ..., 1) along its first dimension, so that u_n is uniform.
    """
    return (1 - noise).pow(len(noise) - 1) < chance


def pair_probability(n: int, chance: Tensor) -> Tensor:
    """Return the probability that two of the ``n`` events of :func:`antithetic_events` both happen.

    They do where both noises exceed t = 1 - chance^(1 / (n - 1)), and P(noise_1 > t, noise_2 > t) =
    max(0, 1 - 2t)^(n - 1).
    """
    # not chance.pow(1 / (n - 1)): Triton rounds such an exponent to float32
    root = (chance.log() / (n - 1)).exp()
    return (2 * root - 1).clamp(min=0).pow(n - 1)


def pair_correction(n: int, chance: Tensor) -> Tensor:
    """Return the ratio of P(one of two events happens) for independent and for antithetic events.

    It is c (1 - c) / (c - P(both)), which is at most 1.
    """
    both = pair_probability(n, chance)
    return (1 - chance) / (1 - both / chance.clamp(min=torch.finfo(chance.dtype).tiny))
