"""ReDGE: straight-through at the end of a denoising path."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_count, check_generator, check_number
from ...distributions.factors import Factors
from ...sampling.gumbel import gumbels
from ...sampling.randomness import given_or_rand
from .relaxation import MeanThroughDraws, straight_through, to_point


@dataclass(frozen=True, repr=False)
class ReDGE(MeanThroughDraws):
    r"""Straight-through at the mean that a diffusion model of the categories predicts.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial \hat x_{t_1}(z_{t_1}), \quad
        x \sim \hat x_{t_1}, \qquad
        \hat x_t(z) = \operatorname{softmax}\bigl(\text{logits} + \tfrac{1 - t}{t^2} z\bigr), \quad
        z_s = (1 - s)\, \hat x_t(z_t) + \tfrac{s}{t} \bigl(z_t - (1 - t)\, \hat x_t(z_t)\bigr)

    starting from Gaussian noise :math:`z_1`. :math:`\hat x_t(z)` is the mean of x given
    :math:`(1 - t)\, x + t\, \varepsilon = z`, in closed form: nothing is trained. The times t are
    ``steps`` equal steps from 1 to :math:`t_1`, and the derivative passes through all of them
    (DDIM). One step is :class:`StraightThrough`. **Biased**. The path is discretised, so x is drawn
    from q only approximately (exactly with one step), and the value also has a small bias.

    Cost: ``samples`` evaluations, forward and backward; ``steps`` softmaxes. Needs: f
    differentiable; a Bernoulli or one-hot q.
    Reference: Gourevitch et al., "Categorical reparameterization with denoising diffusion models",
    2026.

    Args:
        samples: number of draws N.
        steps: number of denoising steps, at least 1 (one less than ``n_steps`` of the authors'
            code, where time 1 is 0.9999).
        last_time: :math:`t_1`, above 0 and at most 1; the lower, the nearer to one-hot is the
            relaxed draw.
        validate: check f's values for NaN and inf (eager mode only).

    In place of ``x``, a call takes uniforms as ``noise``, ``[2, samples, *batch, d, k]``: those
    behind :math:`z_1`, and those behind the Gumbels that draw x.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReDGE(steps=1)(lambda x: 4 * x[..., 0], q).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    steps: int = 4
    last_time: float = 0.5
    validate: bool = True

    randomness = ("noise",)
    reference = "Gourevitch et al. 2026"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ReDGE", "steps", self.steps)
        check_number("ReDGE", "last_time", self.last_time, least=0, most=1, closed=True)
        if self.last_time == 0:
            raise ValueError(
                "ReDGE: `last_time` must be above 0, but 0 was given. Give a small number, as 0.1, "
                "for relaxed draws that are almost one-hot."
            )

    def points(
        self,
        law: Factors,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *batch_event"]:
        """Return draws with this estimator's derivative, ``[n, *batch, *event]``."""
        check_generator(generator, law.device)
        shape = (2, self.samples, *law.batch_shape, law.d, law.k)
        form = "[2, n, *batch, d, k]"
        u = given_or_rand(noise, shape, form, law, generator, lead=2)
        soft = self._denoised(law, u[0])
        index = (soft.detach().log() + gumbels(u[1])).argmax(-1)
        return straight_through(law, law.point(index), to_point(law, soft))

    def _denoised(
        self, law: Factors, u: Float[Tensor, "n *batch d k"]
    ) -> Float[Tensor, "n *batch d k"]:
        """Return the relaxed draws at the end of the path, from the uniforms behind its start."""
        z = torch.special.ndtri(u.clamp(min=torch.finfo(u.dtype).tiny))
        log_probs, span = law.log_probs, 1 - self.last_time
        soft = log_probs.softmax(-1).expand(z.shape)
        for step in range(1, self.steps):
            before = 1 - span * (step - 1) / (self.steps - 1)
            after = 1 - span * step / (self.steps - 1)
            z = (1 - after) * soft + after / before * (z - (1 - before) * soft)
            soft = (log_probs + (1 - after) / after**2 * z).softmax(-1)
        return soft
