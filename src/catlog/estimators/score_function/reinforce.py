"""REINFORCE, and the moving-average baseline."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_baseline, check_module_device, check_number
from ...distributions.conditionals import view
from ...estimator import ANY, FromDraws, Function, likelihood_ratio, tie
from ...evaluation.evaluate import evaluate
from ...evaluation.learning import frozen, learns, write
from ...sampling.draw import draws_for
from ..logit_gradients import differentiable_log_prob


@dataclass(frozen=True, repr=False)
class Reinforce(FromDraws):
    r"""The score-function estimator: f at each draw times the gradient of the draw's
    log-probability.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - b\bigr)\, \partial \log q(x^{(n)})

    Unbiased for any baseline b that does not depend on the draws of this call. It works for every q
    and f, but it is noisy. Its second derivatives are also unbiased.

    Cost: ``samples`` evaluations. Needs: any f.
    Reference: Williams, "Simple statistical gradient-following algorithms", 1992.

    Args:
        samples: number of draws N.
        baseline: b, a number, or a callable that takes the values ``[n, *batch]`` of this call and
            returns a baseline made from *earlier* ones, such as :class:`MovingAverageBaseline`.
        validate: check f's values for NaN and inf (eager mode only).

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> Reinforce(samples=4)(lambda x: x.sum(-1), q, x=torch.eye(4, 3))
    tensor(0.7500)
    """

    samples: int = 1
    baseline: float | Callable[[Tensor], Tensor] = 0.0
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    reference = "Williams 1992"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.baseline):
            check_number("Reinforce", "baseline", self.baseline, kind="a number or a callable")

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = view(q, outputs=outputs, validate=self.validate)
        x = draws_for(self, law, x, generator)
        fx = evaluate(f, x, law)
        baseline = (
            check_baseline(self.baseline(fx.detach()), fx)
            if callable(self.baseline)
            else self.baseline
        )
        ratio = likelihood_ratio(differentiable_log_prob(law, x))
        return tie(fx.mean(0), ((fx - baseline) * ratio + baseline).mean(0))


class MovingAverageBaseline(nn.Module):
    r"""A baseline for :class:`Reinforce`: the moving average of f over *earlier* calls, all draws
    and the batch.

    .. math:: m \leftarrow \gamma m + (1-\gamma)\,\overline{f}, \qquad b = m / (1 - \gamma^t)

    The current values enter only after b has been read, so the estimate stays unbiased. The state
    is saved in ``state_dict``.

    Args:
        decay: :math:`\gamma`, at least 0 and below 1.

    >>> baseline = MovingAverageBaseline(decay=0.5)
    >>> [baseline(torch.tensor([value])).item() for value in (4.0, 8.0, 8.0)]
    [0.0, 4.0, 6.666666507720947]
    """

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        check_number("MovingAverageBaseline", "decay", decay, 0, 1)
        self.decay = decay
        # Shape [1], not []: torch.compile takes a 0-d float64 tensor for a number and does not
        # write to it.
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("weight", torch.zeros(1))
        self.mean: Tensor
        self.weight: Tensor

    def forward(self, values: Tensor) -> Tensor:
        check_module_device(self, values.device, "baseline")
        weight = self.weight.clamp(min=torch.finfo(self.weight.dtype).tiny)
        (baseline,) = frozen(self, self.mean / weight)
        if learns(self, values):
            rate = 1 - self.decay
            mean = values.detach().mean().to(self.mean)
            write(
                [
                    (self.mean, self.mean.lerp(mean, rate)),
                    (self.weight, self.weight.lerp(torch.ones_like(self.weight), rate)),
                ]
            )
        return baseline.squeeze(0)
