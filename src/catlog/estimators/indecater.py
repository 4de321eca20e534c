"""IndeCateR: the CatLog-Derivative trick for independent variables."""

from dataclasses import KW_ONLY
from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ..core import Count, Estimate, Estimator, Evaluator, Randomness, Sampling
from ..core.evaluator import mean_over_draws
from ..core.factors import IndependentFactors, RelaxableFactors
from ..core.view import relaxable, view

__all__ = ["IndeCateR"]


class IndeCateR(Estimator[IndependentFactors]):
    r"""The CatLog-Derivative trick for independent variables: it sums exactly over one variable at
    a time and samples the others.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_{i=1}^d \sum_{k} \partial p_i(k)\;
        \frac1N \sum_{n} \bigl[f(x^{(n)}_{\neq i}, k) - f(x^{(n)})\bigr]

    Subtracting :math:`f(x)` does not change the sum, since :math:`\sum_k \partial p_i(k) = 0`, but
    it lowers the rounding error. The estimator is unbiased, needs no tuning, and is exact for d = 1
    and for additive f. Its variance is at most REINFORCE's for each parameter that occurs in one
    factor; for parameters shared between factors this can fail. The *value* is the
    Rao-Blackwellised mean :math:`\frac1{Nd}\sum_{n,i,k} p_i(k) f(x^{(n)}_{\neq i}, k)`, which is
    seldom zero for sparse f. If f has many outputs and an attribute ``touches``, bools
    ``[d, *outputs]``, the mean for an output is taken over the marked variables only. If these are
    the variables that matter most for the output, the value has far less noise, which its logarithm
    needs.

    ``per_variable`` draws N points for every variable instead of N for all (the paper's
    per-variable version).

    ``variables=m`` sums out m random variables of each draw instead of all d. For a differentiable
    f, one backward pass predicts all differences (``control="taylor"``), and the exact ones correct
    the prediction:

    .. math::
        \sum_{i,k} \partial p_i(k)\, T_{ik} + \frac{d}{m} \sum_{i \in S} \sum_k \partial p_i(k)\,
        \bigl[f(x_{\neq i}, k) - f(x) - T_{ik}\bigr], \qquad
        T_{ik} = \partial_{x_i} f(x) \cdot (e_k - x_i)

    It is unbiased for any m, because every variable is in S with probability m/d. The sets of the N
    draws are taken in turn from one random permutation of the variables, so that all variables are
    chosen equally often.

    Cost: N (1 + d (k - 1)) evaluations; ``per_variable``: N d k; ``variables=m``: N (1 + m (k - 1))
    and one backward pass for all draws.
    Needs: any f (``control="taylor"``: f differentiable and a Bernoulli or one-hot q).
    Reference: De Smet et al., "Differentiable sampling of categorical distributions using the
    CatLog-Derivative trick", 2023, Proposition 4.1.

    Args:
        samples: number of draws N.
        per_variable: draw N points for every variable.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        variables: number m of variables to sum out in each draw; None: all.
        control: with ``variables``, "taylor" or "none" (for black-box f).
        chunk_size: evaluations of f at once; None: chosen for the device. Bounds the memory.

    >>> import torch
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> IndeCateR(samples=1)(lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1), q).backward()
    >>> logits.grad
    tensor([0.2500, 0.5000, 1.0000])
    """

    samples: int = 1
    _: KW_ONLY
    per_variable: bool = False
    sampling: Sampling = "independent"
    variables: Count | None = None
    control: Literal["taylor", "none"] = "taylor"
    chunk_size: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variables is not None and self.per_variable:
            raise ValueError(
                "IndeCateR: `variables` and `per_variable` exclude each other: with the latter "
                "every draw serves one variable."
            )

    @property
    def differentiates_f(self) -> bool:
        return self.variables is not None and self.control == "taylor"

    def evaluations(self, q: Distribution) -> int:
        factors = view(q, 0, self.accepts, "IndeCateR")
        moves = sum(factors.cardinalities) - factors.d
        if self.variables is not None:
            moves = self.variables * (factors.k - 1)
        return self.samples * ((factors.d if self.per_variable else 1) + moves)

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        if self.variables is not None:
            return self._of_some(f, q, draw, self.variables)
        x = draw.points(self.samples, self.sampling, groups=q.d if self.per_variable else 1)
        fx = f(x)
        change = f.summed_out(x, fx, self.per_variable)
        base = mean_over_draws(fx)
        # Rao-Blackwellised value: averaged over the variables, each of them summed out.
        value = base + (change.detach() * f.shares(fx)).sum(-1)
        return Estimate(value, base + change.sum(-1))

    def _of_some(self, f: Evaluator, q: IndependentFactors, draw: Randomness, m: int) -> Estimate:
        """Return the estimate from m variables of each draw, and predictions of the others."""
        x = draw.points(self.samples, self.sampling)
        if self.control == "taylor":
            owner = "IndeCateR(variables=..., control='taylor')"
            relaxable(q, owner, instead=", or pass control='none'")
            fx, slope = f.slope(x)
        else:
            fx = f(x)
        chosen = draw.variables(len(x), m)
        table = f.neighbours(x, fx, chosen)
        exact = q.mean(_mean_over_draws(table, chosen, q.d))
        change = exact
        if self.control == "taylor":
            change = q.mean(_taylor(q, x, slope, table, chosen))
        base = fx.mean(0)
        return Estimate(base + (exact.detach() * f.shares(fx)).sum(-1), base + change.sum(-1))


def _mean_over_draws(
    table: Float[Tensor, "n *batch m k"], chosen: Int64[Tensor, "n *#batch m"], d: int
) -> Float[Tensor, "*batch d k"]:
    """Return the mean over draws; chosen variables have the weight d / m, the others 0."""
    n, m, k = table.shape[0], table.shape[-2], table.shape[-1]
    variable = chosen.movedim(0, -2).flatten(-2)
    entries = table.movedim(0, -3).flatten(-3, -2) * (d / (m * n))
    total = entries.new_zeros((*entries.shape[:-2], d, k))
    return total.scatter_add(-2, variable.unsqueeze(-1).expand(entries.shape), entries)


def _taylor(
    q: IndependentFactors, x: Tensor, slope: Tensor, table: Tensor, chosen: Tensor
) -> Float[Tensor, "*batch d k"]:
    """Return the mean first-order prediction of every difference, corrected by the exact ones."""
    assert isinstance(q, RelaxableFactors)
    by_category = q.by_category(slope).to(table.dtype)
    predicted = by_category - (q.drawn(x) * by_category).sum(-1, keepdim=True)
    predicted_chosen = predicted.gather(-2, chosen.unsqueeze(-1).expand(table.shape))
    return predicted.mean(0) + _mean_over_draws(table - predicted_chosen, chosen, q.d)
