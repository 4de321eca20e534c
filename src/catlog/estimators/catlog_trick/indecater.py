"""IndeCateR: the CatLog-Derivative trick for independent variables."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_choice, check_chunk_size, check_count, check_flag
from ...distributions.factors import Factors, factors, relaxable
from ...estimator import INDEPENDENT, FromDraws, Function, Kind, attach
from ...evaluation.evaluate import evaluate, value_and_slope
from ...evaluation.neighbours import differences, mean_differences
from ...sampling.draw import DRAWS, Draws, base_draws
from ...sampling.subsets import deal_variables
from ...tracing import full_precision


@dataclass(frozen=True, repr=False)
class IndeCateR(FromDraws):
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
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        variables: number m of variables to sum out in each draw; None: all.
        control: with ``variables``, "taylor" or "none" (for black-box f).
        chunk_size: evaluations of f at once; None: chosen for the device. Bounds the memory.
        validate: check the values of f and q for NaN and inf (eager mode only).

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> IndeCateR(samples=1)(lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1), q).backward()
    >>> logits.grad
    tensor([0.2500, 0.5000, 1.0000])
    """

    samples: int = 1
    per_variable: bool = False
    draws: Draws = "independent"
    variables: int | None = None
    control: Literal["taylor", "none"] = "taylor"
    chunk_size: int | None = None
    validate: bool = True

    unbiased = True
    supports = INDEPENDENT
    reference = "De Smet et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("IndeCateR", "per_variable", self.per_variable)
        check_choice("IndeCateR", "draws", self.draws, DRAWS)
        check_choice("IndeCateR", "control", self.control, ("taylor", "none"))
        check_chunk_size("IndeCateR", self.chunk_size)
        if self.variables is not None:
            check_count("IndeCateR", "variables", self.variables)
            if self.per_variable:
                raise ValueError(
                    "IndeCateR: `variables` and `per_variable` exclude each other: with the "
                    "latter every draw serves one variable."
                )

    @property
    def differentiates_f(self) -> bool:
        return self.variables is not None and self.control == "taylor"

    @property
    def randomness(self) -> tuple[str, ...]:
        return ("x",) if self.variables is None else ("x", "chosen")

    def rows(self, q: Distribution) -> int:
        return self.samples * (factors(q, validate=False).d if self.per_variable else 1)

    def evaluations(self, q: Distribution) -> int:
        law = factors(q, validate=False)
        if self.variables is not None:
            return self.samples * (1 + self.variables * (law.k - 1))
        alternatives = sum(law.cardinalities) - law.d
        return self.rows(q) + self.samples * alternatives

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        chosen: Int64[Tensor, "n *batch m"] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        groups = (law.d,) if self.per_variable else ()
        x = base_draws(law, x, self.samples, self.draws, groups=groups, generator=generator)
        slope = None
        if self.differentiates_f:
            owner = "IndeCateR(variables=..., control='taylor')"
            relaxable(q, law, owner, instead=", or pass control='none'")
            fx, slope = value_and_slope(f, x, law)
        else:
            fx = evaluate(f, x, law)
        if self.variables is not None or chosen is not None:
            chosen = deal_variables("IndeCateR", law, x.shape[0], self.variables, chosen, generator)
        if chosen is None:
            weight = mean_weight = mean_differences(
                f, x, fx, law, per_variable=self.per_variable, chunk_size=self.chunk_size
            )
        else:
            table = differences(f, x, fx, law, chosen=chosen, chunk_size=self.chunk_size)
            mean_weight = _mean_over_draws(table, chosen, law.d)
            weight = mean_weight if slope is None else _taylor(law, x, slope, table, chosen)
        base = fx.mean(0)
        # Rao-Blackwellised value: averaged over the variables, each of them summed out.
        if law.outputs == 0:
            value = base + (law.probs * mean_weight).sum((-1, -2)) / law.d
            return attach(value, base + (law.probs * weight).sum((-1, -2)))
        change = _summed_out(law, weight)
        mean_change = change if weight is mean_weight else _summed_out(law, mean_weight)
        value = base + (mean_change.detach() * _shares(f, law, fx)).sum(-1)
        return attach(value, base + change.sum(-1))


def _summed_out(law: Factors, weight: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d"]:
    """Return every variable's weights, summed over its categories by their probabilities.

    They are contracted, because the product would be as large as the table.
    """
    with full_precision(weight):
        return torch.einsum("...dk,...dk->...d", law.probs, weight.to(law.probs.dtype))


def _shares(f: Function, law: Factors, fx: Tensor) -> Tensor | float:
    """Return the shares of the variables in the value: equal, for those that ``f.touches`` names.

    Any shares that do not depend on the draws keep the value unbiased.
    """
    touches = getattr(f, "touches", None)
    if touches is None:
        return 1 / law.d
    expected = (law.d, *fx.shape[fx.dim() - law.outputs :])
    if not isinstance(touches, Tensor) or touches.shape != expected or touches.dtype != torch.bool:
        raise ValueError(
            f"f.touches must hold bools of shape {expected} ([variables, *outputs]), but it is "
            f"{touches!r}."
        )
    by_output = touches.to(law.device).movedim(0, -1)
    by_output = by_output | ~by_output.any(-1, keepdim=True)  # none: all
    return by_output.to(law.real) / by_output.sum(-1, keepdim=True)


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
    law: Factors, x: Tensor, slope: Tensor, table: Tensor, chosen: Tensor
) -> Float[Tensor, "*batch d k"]:
    """Return the mean first-order prediction of every difference, corrected by the exact ones."""
    flat, slope = law.flat(x), law.flat(slope).to(table.dtype)
    if law.kind == Kind.BITS:
        predicted = torch.stack([-flat * slope, (1 - flat) * slope], -1)
    else:
        predicted = slope - (flat * slope).sum(-1, keepdim=True)
    predicted_chosen = predicted.gather(-2, chosen.unsqueeze(-1).expand(table.shape))
    return predicted.mean(0) + _mean_over_draws(table - predicted_chosen, chosen, law.d)
