"""Gumbel-Softmax (Concrete), soft and straight-through."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import (
    broadcasts,
    check_choice,
    check_flag,
    check_randomness,
    check_temperature,
    check_uniforms,
)
from ...distributions.conditionals import without_outputs
from ...distributions.factors import Factors, factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function, Kind
from ...evaluation.evaluate import evaluate_through
from ...sampling.draw import DRAWS, Draws, uniforms
from ...sampling.gumbel import gumbels, logistics
from ...tracing import inside_functorch


@dataclass(frozen=True, repr=False)
class GumbelSoftmax(FromDraws):
    r"""The gradient of f through a continuous relaxation of the draw.

    .. math::
        \frac1N \sum_n \partial f\bigl(\operatorname{softmax}((\log p + g^{(n)})/\tau)\bigr), \qquad
        g \sim \text{Gumbel}

    A Bernoulli q uses the binary Concrete :math:`\sigma((\text{logit} + \ell)/\tau)` with logistic
    noise. With ``hard``, f sees the discrete draw (the argmax) and only the derivative is that of
    the relaxed one: this is straight-through Gumbel-Softmax (ST-Gumbel); :class:`GumbelRao` has its
    expectation at a lower variance. The variance is low. It is **biased** for every temperature,
    and its gradient is zero if f is piecewise constant. Without ``hard`` the value is also that of
    the relaxed draw.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable, defined between
    the categories; a Bernoulli or one-hot q.
    Reference: Jang et al., "Categorical reparameterization with Gumbel-Softmax", 2017; Maddison et
    al., "The Concrete distribution", 2017.

    Args:
        samples: number of draws N.
        temperature: tau > 0: a number; a tensor of one, where a schedule changes it inside a
            captured graph; or a tensor that broadcasts to the logits of q, for a temperature per
            variable.
        hard: straight-through.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, *batch, d]`` for bits, else
    ``[samples, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = GumbelSoftmax(samples=8, temperature=0.5)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> logits.grad.shape
    torch.Size([2])
    """

    samples: int = 1
    temperature: float | Tensor = 1.0
    hard: bool = False
    draws: Draws = "independent"
    validate: bool = True

    unbiased = False
    supports = RELAXABLE
    differentiates_f = True
    randomness = ("noise",)
    reference = "Jang et al. 2017; Maddison et al. 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature("GumbelSoftmax", self.temperature, many=True)
        check_flag("GumbelSoftmax", "hard", self.hard)
        check_choice("GumbelSoftmax", "draws", self.draws, DRAWS)

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
        relaxable(q, law, "GumbelSoftmax")
        points = self.points(law, noise=noise, generator=generator).clone()
        return evaluate_through(f, points, law).mean(0)

    def points(
        self, law: Factors, *, noise: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n *batch_event"]:
        """Return relaxed draws or, with ``hard``, draws with their derivative."""
        shape = (*law.batch_shape, law.d)
        shape += (law.k,) if law.kind == Kind.ONE_HOT else ()
        if noise is not None:
            u = check_uniforms("noise", noise, (self.samples, *shape), "for this q", law)
        else:
            u = uniforms(
                self.samples,
                shape,
                self.draws,
                dtype=law.real,
                device=law.device,
                generator=generator,
            )
            if self.draws != "independent":  # those may be 1, and its Gumbel infinite
                u = u.clamp(max=1 - torch.finfo(u.dtype).eps / 2)
        log_probs = law.log_probs
        temperature = self.temperature_for(without_outputs(law) + law.event_shape)
        if isinstance(temperature, Tensor) and temperature.dim() > 0:
            temperature = temperature.reshape(shape)
        if law.kind == Kind.BITS:
            odds = log_probs[..., 1] - log_probs[..., 0]
            relaxed = self.relax(odds, logistics(u), temperature, bits=True)
        else:
            relaxed = self.relax(log_probs, gumbels(u), temperature)
        return law.shaped(relaxed.to(law.dtype))

    def temperature_for(self, shape: tuple[int, ...]) -> float | Tensor:
        """Return the temperature, expanded to logits of this shape if it is one per variable."""
        temperature = self.temperature
        if not isinstance(temperature, Tensor) or temperature.dim() == 0:
            return temperature
        if not broadcasts(temperature.shape, shape):
            raise ValueError(
                "GumbelSoftmax: `temperature` must be a number or broadcast to the logits, "
                f"{tuple(shape)}, but its shape is {tuple(temperature.shape)}."
            )
        return temperature.expand(shape)

    def relax(
        self,
        logits: Float[Tensor, "..."],
        noise: Float[Tensor, "*shape"],
        temperature: float | Tensor,
        *,
        bits: bool = False,
        dim: int = -1,
    ) -> Float[Tensor, "*shape"]:
        """Return relaxed draws or, with ``hard``, draws with their derivative.

        Args:
            logits: along ``dim``, normalised or not; one per variable for bits.
            noise: Gumbel noise, logistic noise for bits; it may have more leading dimensions.
            temperature: what ``temperature_for`` returned.
            bits: whether the variables are bits.
            dim: the dimension of the categories.
        """
        scores = (logits + noise) / temperature
        relaxed = scores.sigmoid() if bits else scores.softmax(dim)
        if not self.hard:
            return relaxed
        constant = relaxed.detach()
        if bits:
            discrete = (constant > 0.5).to(relaxed.dtype)
        else:
            zeros = torch.zeros_like(constant)
            put = zeros.scatter if inside_functorch() else zeros.scatter_
            discrete = put(dim, constant.argmax(dim, keepdim=True), 1.0)
        return discrete + (relaxed - constant)
