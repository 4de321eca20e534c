"""Differences of two argmaxes with the same Gumbel noise: I-MLE and direct optimisation."""

from dataclasses import KW_ONLY

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ..core import Count, Estimate, Estimator, Evaluator, Positive, Randomness
from ..core.categories import gumbels_given_argmax
from ..core.factors import IndependentFactors, RelaxableFactors

__all__ = ["IMLE", "DirectOptimisation"]


def with_shift(
    q: IndependentFactors,
    draw: Randomness,
    index: Int64[Tensor, "n *batch d"],
    fx: Float[Tensor, "n *batch"],
    change: Float[Tensor, "n *batch d k"],
    step: float,
) -> Estimate:
    """Return the mean of f, with the gradient (y - x) / step in the logits, for the draws x and the
    argmaxes y after ``step * change`` was added to the logits behind x."""
    u = draw.uniform(*index.shape, q.k, batch_from=1)
    z = gumbels_given_argmax(q.log_probs, index, u)
    shift = one_hot((z + step * change).argmax(-1), q.k) - one_hot(index, q.k)
    value = fx.mean(0)
    return Estimate(value, value + q.with_gradient((shift / step).to(q.real).mean(0)))


class IMLE(Estimator[RelaxableFactors]):
    r"""The difference between a draw and a second draw with the same noise, made after a gradient
    step on the logits.

    .. math::
        \frac1N \sum_n \frac{x^{(n)} - y^{(n)}}{\lambda} \cdot \partial \text{logits}, \qquad
        x = \arg\max(\text{logits} + g), \quad y = \arg\max\bigl(\text{logits} + g - \lambda\,
        \partial_x f(x)\bigr)

    Each variable has its own argmax over its categories. With Gumbel noise g, used here, x is a
    draw of q and the value is unbiased (the paper's sum-of-Gamma noise is for argmaxes over larger
    sets; for one of k categories it tends to a Gumbel). The gradient is **biased**. For f that is
    linear in each variable given the others, its expectation is
    :math:`\mathbb{E}[\operatorname{softmax}(\text{logits}) -
    \operatorname{softmax}(\text{logits} - \lambda \partial_x f)]`
    over lambda, which tends to the truth as lambda goes to 0, while the variance grows as 1 /
    lambda.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Niepert et al., "Implicit MLE: backpropagating through discrete exponential family
    distributions", 2021.

    Args:
        samples: number of draws N.
        step: lambda > 0.

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> import torch
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> IMLE(step=100.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([0.0100, 0.0000])
    """

    samples: int = 1
    _: KW_ONLY
    step: Positive = 1.0

    unbiased = False
    differentiates_f = True
    many_outputs = False
    why_one_output = "its perturbed point depends on the slope of one output"

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx, slope = f.slope(x)
        return with_shift(q, draw, q.index(x), fx, q.by_category(slope), -self.step)


class DirectOptimisation(Estimator[IndependentFactors]):
    r"""The difference between a draw and a second draw with the same noise, made after adding f to
    the logits.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_i \frac{y^{(n)}_i - x^{(n)}_i}{\varepsilon} \cdot
        \partial \text{logits}_i,
        \qquad
        x_i = \arg\max_k \text{logits}_{ik} + g_{ik}, \quad
        y_i = \arg\max_k \text{logits}_{ik} + g_{ik} + \varepsilon f(x_{\neq i}, k)

    with Gumbel noise g. Only one variable changes at a time, so f may be a black box. In
    expectation it is
    :math:`\mathbb{E}[\operatorname{softmax}(\text{logits}_i + \varepsilon f(x_{\neq i}, \cdot)) -
    \operatorname{softmax}(\text{logits}_i)] / \varepsilon`:
    **biased**, of order epsilon, while the variance grows as 1 / epsilon. :class:`IndeCateR` has
    the limit's expectation from the same evaluations. The value is unbiased.

    Cost: N (1 + d (k - 1)) evaluations. Needs: any f.
    Reference: Lorberbom et al., "Direct optimization through argmax for discrete variational
    auto-encoder", 2019.

    Args:
        samples: number of draws N.
        epsilon: any number but 0; its sign chooses the side from which the difference is taken.
        chunk_size: evaluations of f at once; None: chosen for the device.

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> import torch
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = DirectOptimisation(epsilon=100.0)
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.zeros(1, 2)).backward()
    >>> logits.grad
    tensor([0.0100, 0.0000])
    """

    samples: int = 1
    _: KW_ONLY
    epsilon: float = 1.0
    chunk_size: Count | None = None

    unbiased = False
    many_outputs = False
    why_one_output = "its perturbed point depends on f's values"

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.epsilon) < 1e-30:  # float32 would make 0 of one below 1e-45
            raise ValueError(
                f"DirectOptimisation: `epsilon` must be a number other than 0, but {self.epsilon} "
                "was given."
            )

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        return with_shift(q, draw, q.index(x), fx, f.neighbours(x, fx), self.epsilon)
