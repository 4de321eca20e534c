"""Straight-through Gumbel-Softmax with a temperature for each direction."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_temperature
from ...distributions.factors import Factors
from ...sampling.draw import Draws, base_draws
from ...sampling.gumbel import gumbels_given_argmax
from ..logit_gradients import finite_log_probs
from .relaxation import MeanThroughDraws, straight_through, to_point


@dataclass(frozen=True, repr=False)
class DecoupledStraightThrough(MeanThroughDraws):
    r"""Straight-through Gumbel-Softmax with one temperature for draws and one for derivatives.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \partial \operatorname{softmax}(\text{logits}/\tau_b + g^{(n)}), \qquad
        x^{(n)} = \arg\max(\text{logits}/\tau_f + g^{(n)}), \quad g \sim \text{Gumbel}

    The forward temperature :math:`\tau_f` sets how much is explored: x is drawn from
    :math:`\operatorname{softmax}(\text{logits}/\tau_f)`. The backward temperature :math:`\tau_b`
    sets how the gradient is spread over the categories. **Biased** for every pair. Unless
    :math:`\tau_f = 1`, so is the value: it is an expectation under the tempered distribution.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Shah et al., "Improving discrete optimisation via decoupled straight-through
    Gumbel-Softmax", 2024 (arXiv 2410.13331, first version).

    Args:
        samples: number of draws N.
        forward_temperature: :math:`\tau_f > 0`, a number, or a 0-d tensor.
        backward_temperature: :math:`\tau_b > 0`, a number, or a 0-d tensor.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    The uniforms behind the Gumbels (given x) can be given to a call as ``noise``, ``[N, *batch, d,
    k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> E = DecoupledStraightThrough(forward_temperature=0.5, backward_temperature=2.0)
    >>> E(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad[0] > 0, logits.grad[1]
    (tensor(True), tensor(0.))
    """

    samples: int = 1
    forward_temperature: float | Tensor = 1.0
    backward_temperature: float | Tensor = 1.0
    draws: Draws = "independent"
    validate: bool = True

    randomness = ("x", "noise")
    reference = "Shah et al. 2024"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("forward_temperature", "backward_temperature"):
            check_temperature("DecoupledStraightThrough", getattr(self, name), name)

    def points(
        self,
        law: Factors,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *batch_event"]:
        """Return draws with this estimator's derivative, ``[n, *batch, *event]``."""
        log_forward = (law.log_probs.detach() / self.forward_temperature).log_softmax(-1)
        forward = law.with_probs(log_forward.exp(), log_forward)
        x = base_draws(forward, x, self.samples, self.draws, generator=generator)
        z = gumbels_given_argmax(forward, forward.index(x), noise, (), generator=generator)
        logits = finite_log_probs(law)
        gumbel = z - torch.where(law.possible, log_forward, 0.0)  # still -inf where impossible
        soft = (gumbel + logits / self.backward_temperature).softmax(-1)
        return straight_through(law, x, to_point(law, soft))
