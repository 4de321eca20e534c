"""NVIL: REINFORCE with a learned, input-dependent baseline."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_context, check_module_device, check_network, refuse_outputs
from ...distributions.conditionals import Conditionals, view
from ...distributions.factors import Factors
from ...estimator import ANY, FromDraws, Function, Kind, attach
from ...evaluation.evaluate import evaluate
from ...evaluation.networks import call_network
from ...sampling.draw import draws_for
from ..logit_gradients import score_in_logits, squared_norm


class NVIL(FromDraws, nn.Module):
    r"""REINFORCE with a learned baseline: a constant c, and a network C of the context of each
    batch element.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - c - C(\text{context})\bigr)\,
        \partial \log q(x^{(n)})

    It is unbiased for any c and C, because they do not see the draws. They learn to lower the
    variance: their gradient is that of :math:`\frac1{N^2} \sum_n (f - c - C)^2 \lVert s \rVert^2`,
    with the score s in the logits. (The products of two draws' terms have an expectation that does
    not depend on c and C, so they are left out.) The paper fits them to f by least squares, without
    the weight :math:`\lVert s \rVert^2`, and divides the signal by :math:`\max(1, \sigma)` with a
    running :math:`\sigma`. That changes the gradient's length, not its direction in expectation,
    provided that :math:`\sigma` comes from earlier calls. It is left out here; divide the loss by
    such a number if you want it.

    Cost: ``samples`` evaluations. Needs: any f; an optimiser for ``parameters()``.
    Reference: Mnih and Gregor, "Neural variational inference and learning in belief networks",
    2014.

    Args:
        samples: number of draws N.
        network: C, a module that maps ``[*batch, features]`` to ``[*batch, 1]`` or ``[*batch]``;
            None: no C.
        validate: check f's values for NaN and inf (eager mode only).

    The call takes ``context`` ``[*batch, features]``, for instance the encoder's input. None: the
    logits of q (bits, ``[*batch, d]``) or log-probabilities (``[*batch, d k]``), within [-30, 30].

    >>> E = NVIL(samples=2, network=nn.Linear(3, 1))
    >>> bits = torch.distributions.Bernoulli(logits=torch.zeros(5, 3))
    >>> q = torch.distributions.Independent(bits, 1)
    >>> E(lambda x: x.sum(-1), q, context=torch.randn(5, 3)).sum().backward()
    >>> E.centre.grad is not None
    True
    """

    unbiased = True
    supports = ANY
    differentiates_f = False
    many_outputs = False
    reference = "Mnih & Gregor 2014"

    def __init__(
        self, samples: int = 1, network: nn.Module | None = None, validate: bool = True
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        check_network("NVIL", network)
        self.samples = samples
        self.network = network
        self.validate = validate
        self.centre = nn.Parameter(torch.zeros(()))

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        context: Float[Tensor, "*batch features"] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("NVIL", outputs, "it learns one baseline of f")
        law = view(q, validate=self.validate)
        check_module_device(self, law.device)
        x = draws_for(self, law, x, generator)
        fx = evaluate(f, x, law)
        log_probs, score = score_in_logits(law, law.index(x))
        signal = fx.detach() - self._baseline(law, context).to(fx.dtype)
        surrogate = (fx + signal.detach() * (score * log_probs).sum((-1, -2))).mean(0)
        return attach(
            fx.mean(0), surrogate, (signal.square() * squared_norm(law, score)).mean(0) / x.shape[0]
        )

    def _baseline(
        self, law: Factors | Conditionals, context: Tensor | None
    ) -> Float[Tensor, "*batch"]:
        if self.network is None:
            return self.centre.expand(law.batch_shape)
        if context is None:
            if isinstance(law, Conditionals):
                raise ValueError(
                    "context: NVIL's network needs [*batch, features] here; a structured "
                    "distribution has no fixed logits to read."
                )
            log_probs = law.log_probs.detach().clamp(min=-30.0)
            context = (
                log_probs[..., 1] - log_probs[..., 0]
                if law.kind == Kind.BITS
                else log_probs.flatten(-2)
            )
        context = check_context(context, law).detach()
        return self.centre + call_network("NVIL", self.network, context, law.batch_shape)
