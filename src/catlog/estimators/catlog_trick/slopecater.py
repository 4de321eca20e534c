"""SlopeCateR: gradients predicted from derivatives of f, with exact corrections."""

from math import ceil
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_choice, check_count, check_number, check_uniforms
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, Function, Kind, Target, attach, label
from ...evaluation.evaluate import value_and_slope
from ...evaluation.learning import frozen, learns, write
from ...sampling.draw import DRAWS, Draws, base_draws
from ...sampling.randomness import rand
from ..logit_gradients import logit_surrogate
from .slope_predictions import (
    gradient_scale,
    make_predictions,
    selection_probabilities,
    systematic_sample,
)
from .slope_statistics import Coefficients, SlopeScales


class SlopeCateR(nn.Module):
    r"""A prediction of every variable's gradient from the derivatives of f, corrected by exact sums
    over a few variables.

    With :math:`G(x) = \partial f / \partial x_i` per category, and c the category that was drawn,
    variable i first gets

    .. math::
        \sum_k \partial p_i(k)\, \alpha\, G_k(x) \;+\; \beta\, \tfrac12 \Bigl( \bigl[G_c(x) -
        \textstyle\sum_k p_i(k) G_k(x)\bigr]
        \,\partial \log p_i(c) - \sum_k \partial p_i(k)\, G_k(x) \Bigr)

    averaged over N draws. With :math:`\alpha = 1`, the first term is straight-through (f linear in
    each variable), and with :math:`\beta = 1` the sum is :class:`ReinMax`: a difference of f is the
    mean of the slopes at *both* its ends, which is right for f quadratic in each variable. Then M
    variables are summed out exactly, one at a time, as in :class:`IndeCateR`:

    .. math::
        \sum_{j=1}^M \frac1{M \pi_{i_j}} \sum_k \partial p_{i_j}(k)\, \bigl[ f(x_{\neq i}, k) - \hat
        f_i(x_{\neq i}, k) \bigr]

    where :math:`\hat f_i` is the mean of the prediction over :math:`x_i`, from the slopes at the
    same points. So the noise of the drawn value cancels, and the residual is third-order in each
    variable. The expected number of corrections :math:`M \pi_i` of a variable is proportional to
    how undecided it is, p (1 - p) for a bit, times how large its slopes were in earlier calls. A
    tenth of the corrections goes to all variables equally. Systematic sampling chooses the
    variables, so all points are known before f is called, once. Any :math:`\pi_i > 0` and any
    coefficients from *earlier* calls leave the estimate unbiased. :math:`\alpha, \beta` are a
    running least-squares fit of the corrections, over all variables and batch elements, so that
    they vanish where slopes predict nothing. They are frozen by ``eval()``, inside ``torch.func``
    transforms and under ``torch.inference_mode``. The value is the mean of f over the N draws.

    Cost: N + ``corrections`` (k - 1) evaluations, forward and backward. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: this library; the prediction is that of Liu et al., "Bridging discrete and
    backpropagation: straight-through and beyond", 2023.

    Args:
        samples: number of draws N.
        corrections: number M of exact sums over one variable, spread evenly over the draws; None: 2
            N / (3 (k - 1)), which takes two fifths of the evaluations. More of them pay where f is
            far from quadratic in its variables.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified).
        decay: of the running fit, and of the RMS slopes; 1 keeps alpha = beta = 1.
        slope_entries: length of the table of RMS slopes, one per variable (more variables share
            entries); 0: no table.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> f = lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1).square()
    >>> SlopeCateR(samples=2)(f, q, x=torch.eye(3)[:2]).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = RELAXABLE
    differentiates_f: ClassVar[bool] = True
    randomness: ClassVar[tuple[str, ...]] = ("x", "start")
    many_outputs: ClassVar[bool] = True
    reference: ClassVar[str] = "this library; Liu et al. 2023"

    __repr__ = label

    def __init__(
        self,
        samples: int = 8,
        corrections: int | None = None,
        draws: Draws = "latin",
        decay: float = 0.98,
        slope_entries: int = 1024,
        validate: bool = True,
    ) -> None:
        super().__init__()
        check_count("SlopeCateR", "samples", samples)
        if corrections is not None:
            check_count("SlopeCateR", "corrections", corrections)
        check_choice("SlopeCateR", "draws", draws, DRAWS)
        check_number("SlopeCateR", "decay", decay, 0, 1, closed=True)
        check_count("SlopeCateR", "slope_entries", slope_entries, least=0)
        self.samples = samples
        self.corrections = corrections
        self.draws = draws
        self.decay = decay
        self.slope_entries = slope_entries
        self.validate = validate
        self.coefficients = Coefficients()
        self.sizes = SlopeScales(slope_entries)

    def rows(self, q: Distribution) -> int:
        return self.samples

    def evaluations(self, q: Distribution) -> int:
        k = factors(q, validate=False).k
        return self.samples + self.turns(k) * (k - 1)

    def turns(self, k: int) -> int:
        """Return M, the number of exact sums over a variable of k categories."""
        return (
            ceil(2 * self.samples / (3 * max(k - 1, 1)))
            if self.corrections is None
            else self.corrections
        )

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        start: Float[Tensor, "1 *batch"] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        relaxable(q, law, "SlopeCateR")
        x = base_draws(
            law, x, self.samples, self.draws, generator=generator, validate=self.validate
        )
        n, m = x.shape[0], self.turns(law.k)
        undecided = gradient_scale(law.probs.detach())
        # In one tensor, for one kernel.
        (learned,) = frozen(self, torch.cat([self.coefficients(), self.sizes(law.d)]))
        coefficients, sizes = learned.to(law.real).split([2, law.d])
        often = m * selection_probabilities(undecided * sizes)
        if start is None:
            start = rand(
                (1, *law.batch_shape), dtype=law.real, device=law.device, generator=generator
            )
        else:
            start = check_uniforms(
                "start",
                start,
                (1, *law.batch_shape),
                "[1, *batch]",
                law,
                self.validate,
                closed=True,
            )
        variable = systematic_sample(often, m, start)
        predictions = make_predictions(law, x, variable)
        points = torch.cat([law.flat(x), predictions.corrected_points().to(law.dtype)])
        learning = self.decay < 1 and learns(self, points)
        values, slopes = value_and_slope(
            f, law.shaped(points), law, validate=self.validate, learns=learning
        )
        slopes = law.flat(slopes).to(law.real)
        terms, noise = predictions.exact_and_predicted(values.detach(), slopes)
        weight = 1 / often.expand(m, *often.shape).gather(-1, variable.unsqueeze(-1))
        exact, straight, curved = terms[0] * weight, terms[1] * weight, terms[2] * weight
        alpha, beta = coefficients.unbind()
        first, second = predictions.first_and_second_order(slopes[:n])
        residual = (exact - alpha * straight - beta * curved).movedim(0, -2)
        slot = variable.movedim(0, -1).unsqueeze(-1).expand(residual.shape)
        gradient = (alpha * first + beta * second).scatter_add(-2, slot, residual)
        if law.kind == Kind.BITS:
            gradient = torch.cat([-gradient, gradient], -1)  # log p(1) - log p(0) is the logit
        if learning:
            rate = 1 - self.decay
            fit = self.coefficients.updates(
                (exact, straight, curved), noise, weight.squeeze(-1) / n, rate
            )
            scales = self.sizes.updates(predictions.size2(slopes[:n]), undecided.square(), rate)
            write(fit + scales)
        value = values[:n].mean(0)
        return attach(value, value + logit_surrogate(law, gradient))
