"""The straight-through estimator of least variance for a given bias on quadratic functions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_number
from ...distributions.factors import Factors
from ...estimator import Kind
from ...sampling.draw import Draws
from ..logit_gradients import finite_log_probs, is_drawn
from .reinmax import times_jacobian
from .relaxation import MeanThroughDraws, weighted_log_odds


@dataclass(frozen=True, repr=False)
class MinimumVarianceStraightThrough(MeanThroughDraws):
    r"""The derivative of the draw with the lowest variance for its bias on quadratic f.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot S(x^{(n)})\, \partial \text{logits}, \qquad
        S = \arg\min_{\mathbb{E}[S(x)] = J(p)} \;
        \mathbb{E} \lVert S(x) \rVert^2 + \tfrac{w}{2} \sum_{ij} \lVert B_{ij} \rVert^2

    where :math:`J(p) = \operatorname{diag}(p) - p p^\top` and
    :math:`B_{ij} = p_j S(j)_i + p_i S(i)_j - [i = j]\, J(p)_i` is the bias for f with the second
    derivative i, j. (S(j) is the matrix for the draw j, and S(j)_i its row i.) The constraint makes
    it exact in expectation for f that is multilinear. **Biased** otherwise. As the weight w of the
    bias grows, it becomes exact for f that is quadratic in each variable given the others, as
    :class:`ReinMax` is, and has the least :math:`\mathbb{E} \lVert S(x) \rVert^2` of all that are.
    At w = 0 it is :class:`StraightThrough`. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; one system of k equations per variable.
    Needs: f differentiable; a Bernoulli or one-hot q.
    Reference: Hooper & Shekhovtsov, "Generalized and optimal straight-through estimators", 2026.

    Args:
        samples: number of draws N.
        bias_weight: w, at least 0 (the authors raise it from 1 to a million in training). Any
            finite weight is accurate, also in float32.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = MinimumVarianceStraightThrough()
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    bias_weight: float = 100.0
    draws: Draws = "independent"
    validate: bool = True

    reference = "Hooper & Shekhovtsov 2026"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("MinimumVarianceStraightThrough", "bias_weight", self.bias_weight, least=0)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        p = law.probs.detach()
        if law.kind == Kind.BITS:
            zero, one = self._weights(*p.unbind(-1))
            return weighted_log_odds(law, zero + law.flat(x).to(law.real) * (one - zero))
        drawn = is_drawn(law, law.index(x))
        slope = times_jacobian(p, finite_log_probs(law))
        multiplier = self._multiplier(p, slope)
        a, b = self._shares(p.dtype)

        def of_drawn(table: Tensor) -> Tensor:
            """Return the entry of the drawn category."""
            return (table * drawn).sum(-1, keepdim=True)

        total = a * multiplier + b * (p * (multiplier - of_drawn(multiplier)) + drawn * slope)
        return total / (a + b * (p + of_drawn(p)))

    def _shares(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return a = 1 / (1 + w) and b = w / (1 + w), with which no weight overflows.

        Every 1 + w p is written as (a + b p) / a. The bound of a keeps its products from underflow.
        """
        least = 2**24 * torch.finfo(dtype).tiny
        return max(1 / (1 + self.bias_weight), least), self.bias_weight / (1 + self.bias_weight)

    def _weights(
        self, zero: Float[Tensor, "*batch d"], one: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d"]]:
        """Return S for draws 0 and 1 of a bit, in the log-odds; the arguments are probabilities.

        It is ``mean`` with the two equations of ``_multiplier`` solved by hand, so that no
        differences of probabilities or of multipliers cancel.
        """
        a, b = self._shares(one.dtype)
        slope = zero * one
        coupling = b * slope
        zero_pair, one_pair = a + 2 * b * zero, a + 2 * b * one
        zero_sum = zero / zero_pair + one
        one_sum = one / one_pair + zero
        zero_right = -(a + b * zero) / zero_pair * slope
        one_right = (a + b * one) / one_pair * slope
        both_right = b * (zero - one) / zero_pair * (slope / one_pair)  # their sum, over a
        determinant = a * zero_sum * one_sum + coupling * (zero_sum + one_sum)
        one_multiplier = (zero_sum * one_right + coupling * both_right) / determinant
        difference = (zero_sum * one_right - one_sum * zero_right) / determinant
        drawn_zero = a * one_multiplier + b * one * difference
        drawn_one = (a * one_multiplier + b * slope) / one_pair
        return drawn_zero, drawn_one

    def _multiplier(
        self, p: Float[Tensor, "*batch d k"], slope: Float[Tensor, "*batch d k"]
    ) -> Float[Tensor, "*batch d k"]:
        """Return Lagrange's multiplier of the constraint, times the logits; ``slope`` is J(p) times
        the logits.

        The rows of the symmetric matrix add up to a s. As w grows, a s vanishes beside the entries,
        and the matrix becomes singular: a constant can be added to the solution. The sum of all
        equations, s . solution = total / a, says which. It is added to every equation, after each
        was divided by its diagonal.
        """
        a, b = self._shares(p.dtype)
        row, column = p.unsqueeze(-1), p.unsqueeze(-2)
        pairs = a + b * (row + column)
        share = column / pairs
        s = share.sum(-1)
        is_same = torch.eye(p.shape[-1], dtype=torch.bool, device=p.device)
        coupling = (b * row * share).masked_fill(is_same, 0.0)
        diagonal = a * s + coupling.sum(-1)
        right = (a + b * p) / (a + 2 * b * p) * slope / diagonal
        matrix = torch.where(is_same, 1.0, -coupling / diagonal.unsqueeze(-1))
        # The slopes add up to 0, so the sum of all right sides is a times this.
        total = (slope / (a + 2 * b * p)).sum(-1, keepdim=True) / 2
        norm = s.sum(-1, keepdim=True)
        matrix = matrix + (s / norm).unsqueeze(-2)
        solution: Tensor = torch.linalg.solve_ex(matrix, (right + total / norm).unsqueeze(-1))[0]
        return solution.squeeze(-1)
