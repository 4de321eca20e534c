"""Noise for coupled draws, negatively dependent events made from it, and their probabilities."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_generator, check_randomness, check_uniforms
from ...distributions.factors import Factors, bits_only, factors
from ...estimator import FromDraws, Function
from ...sampling.gumbel import positive
from ...sampling.randomness import rand
from ..logit_gradients import with_logit_gradient


class CoupledDraws(FromDraws):
    """The mean of f at coupled draws, with a gradient in the logits from the values there.

    A subclass adds ``supports`` and ``coupled``.
    """

    unbiased = True
    differentiates_f = False
    randomness = ("noise",)
    for_categories: ClassVar[str] = ""  # a method of bits: what to use for categories
    simplex: ClassVar[int | None] = None  # along it the noise is Dirichlet(1, ..., 1), else uniform

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        check_randomness(self, x=x, noise=noise)
        law = factors(q, outputs=outputs, validate=self.validate)
        if self.for_categories:
            bits_only(q, law, type(self).__name__, self.for_categories)
        fx, slope = self.coupled(f, law, self._noise(law, noise, generator))
        return with_logit_gradient(fx, law, slope)

    def noise_per_variable(self, law: Factors) -> tuple[int, ...]:
        """Return the shape of the noise of one variable in one draw."""
        return ()

    def coupled(
        self, f: Function, law: Factors, noise: Tensor
    ) -> tuple[Float[Tensor, "m *batch"], Float[Tensor, "*batch d k"]]:
        """Return f at coupled draws, and a slope in the logits made from these values."""
        raise NotImplementedError

    def _noise(
        self, law: Factors, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "n *batch_and_noise"]:
        """Return the noise given to the call, checked, or draw it."""
        check_generator(generator, law.device)
        shape = (self.samples, *law.batch_shape, law.d, *self.noise_per_variable(law))
        if noise is not None:
            form = f"for {type(self).__name__} with this q"
            return check_uniforms(
                "noise", noise, shape, form, law, closed=True, simplex=self.simplex
            )
        u = rand(shape, dtype=law.real, device=law.device, generator=generator)
        if self.simplex is None:
            return u
        exponential = -positive(u).log()
        return exponential / exponential.sum(self.simplex, keepdim=True)


def of_bits(slope: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d 2"]:
    """Return the slope in both log-probabilities of bits for a slope in their log-odds."""
    return torch.stack([-slope, slope], -1)


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
