"""Direct optimisation through the perturbed argmax."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_chunk_size, check_number, refuse_outputs
from ...distributions.factors import factors
from ...estimator import INDEPENDENT, FromDraws, Function
from ...evaluation.evaluate import evaluate
from ...evaluation.neighbours import differences
from ...sampling.draw import draws_for
from ...sampling.gumbel import argmax_shift, gumbels_given_argmax
from ..logit_gradients import with_logit_gradient


@dataclass(frozen=True, repr=False)
class DirectOptimisation(FromDraws):
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
        validate: check the values of f and q for NaN and inf (eager mode only).

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = DirectOptimisation(epsilon=100.0)
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.zeros(1, 2)).backward()
    >>> logits.grad
    tensor([0.0100, 0.0000])
    """

    samples: int = 1
    epsilon: float = 1.0
    chunk_size: int | None = None
    validate: bool = True

    unbiased = False
    supports = INDEPENDENT
    differentiates_f = False
    randomness = ("x", "noise")
    many_outputs = False
    reference = "Lorberbom et al. 2019"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("DirectOptimisation", "epsilon", self.epsilon)
        if abs(self.epsilon) < 1e-30:  # float32 would make 0 of one below 1e-45
            raise ValueError(
                f"DirectOptimisation: `epsilon` must be a number other than 0, but {self.epsilon} "
                "was given."
            )
        check_chunk_size("DirectOptimisation", self.chunk_size)

    def evaluations(self, q: Distribution) -> int:
        law = factors(q, validate=False)
        return self.samples * (1 + sum(law.cardinalities) - law.d)

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("DirectOptimisation", outputs, "its perturbed point depends on f's values")
        law = factors(q, validate=self.validate)
        x = draws_for(self, law, x, generator)
        index = law.index(x)
        z = gumbels_given_argmax(law, index, noise, generator=generator)
        fx = evaluate(f, x, law)
        table = differences(f, x, fx, law, chunk_size=self.chunk_size)
        shift = argmax_shift(law, index, z, table, self.epsilon)
        return with_logit_gradient(fx, law, shift)
