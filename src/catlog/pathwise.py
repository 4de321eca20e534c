"""Expectations over discrete and continuous variables: pathwise in the continuous ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from .core.checks import (
    check_count,
    check_function,
    check_generator,
    check_kind,
    check_outputs,
    check_tensor,
    refusal,
)
from .core.estimator import Estimator, check_estimator
from .core.randomness import seeded_from


@dataclass(frozen=True)
class Pathwise:
    r"""The expectation over categorical x and continuous z.

    ``Pathwise(E)(f, q, p)`` estimates :math:`\mathbb{E}[f(x, z)]`.

    z is drawn from p by its reparameterisation, :math:`z = g_\phi(\varepsilon)`. The remaining
    expectation over x alone is estimated by E:

    .. math::
        \frac1M \sum_{m=1}^M E\bigl(x \mapsto f(x, z^{(m)}),\; q\bigr)

    The gradient in :math:`\phi` is pathwise, and the gradient in q is that of E. The estimate is
    unbiased if E is. Every z is a further batch element for E, so a draw of x and all its
    neighbours see the same z. Without these common random numbers, the noise of z would drown the
    differences between neighbours. Three cases:

    - x and z independent: ``E(f, q, p)``.
    - z given x: p is the distribution of the noise, and f makes z from it,
      ``lambda x, noise: g(x, mu[x] + sigma[x] * noise)``.
    - x given z: q is a function of z, ``E(f, lambda z: Categorical(logits=network(z)), p)``; the
      gradient also reaches p through the logits.

    ``f(x, z)`` gets points ``[n, samples, *batch, *event]`` of x and of z, and returns
    ``[n, samples, *batch]``.

    Cost: ``samples`` times that of E.
    Needs: ``p.rsample`` and p with the batch shape of q; f differentiable in z (in x: what E
    needs).

    Args:
        estimator: E, any estimator of catlog.
        samples: number M of draws of z. Each has separate draws of x:
            ``Pathwise(IndeCateR(1), samples=8)`` pairs eight z with eight x.

    >>> from torch.distributions import Bernoulli, Normal
    >>> from catlog import Exact
    >>> mu, logit = torch.tensor(1.0, requires_grad=True), torch.tensor(0.0, requires_grad=True)
    >>> q, p = Bernoulli(logits=logit), Normal(mu, 1e-6)
    >>> Pathwise(Exact(), samples=3)(lambda x, z: x * z, q, p).backward()
    >>> mu.grad, logit.grad
    (tensor(0.5000), tensor(0.2500))
    """

    estimator: Estimator[Any]
    samples: int = 1

    def __post_init__(self) -> None:
        check_count("Pathwise", "samples", self.samples)
        check_estimator("Pathwise: `estimator`", self.estimator)

    @property
    def unbiased(self) -> bool:
        return self.estimator.unbiased

    def __call__(
        self,
        f: Callable[[Tensor, Tensor], Tensor],
        q: Distribution | Callable[[Tensor], Distribution],
        p: Distribution,
        *,
        z: Tensor | None = None,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        """Return the estimate ``[*batch]``, or ``[*batch, *outputs]``.

        Args:
            f: the function of x and z.
            q: the distribution of x, or a function from z ``[samples, *batch, *event]`` to the
                distribution of x given z.
            p: the distribution of z.
            z: to use instead of drawing, ``[samples, *batch, *event]`` as ``p.rsample((samples,))``
                gives it, with its graph.
            x: to use instead of drawing, ``[n, samples, *batch, *event]`` with the estimator's n.
            outputs: the number of output dimensions of f, as for the estimator: f returns
                ``[n, samples, *batch, *outputs]``.
            generator: the source of randomness of z and of x; torch's default generator if None.
        """
        check_kind("p", p, Distribution, "be a torch.distributions.Distribution of z")
        if not isinstance(q, Distribution) and not callable(q):
            claim, but = "be a distribution of x or a function from z to one", type(q).__name__
            raise refusal("q", claim, f"{but} was given", kind=TypeError)
        check_function(f)
        check_outputs(outputs)
        check_generator(generator)
        if not p.has_rsample:
            raise ValueError(
                f"p: {type(p).__name__} has no rsample, so z has no path for a gradient. Give a "
                "reparameterised distribution (Normal, Gamma, Dirichlet, ...); categorical "
                "variables belong in q."
            )
        if z is None:
            with seeded_from(generator):
                z = p.rsample((self.samples,))
        else:
            expected = (self.samples, *p.batch_shape, *p.event_shape)
            z = check_tensor("z", z, expected, "[samples, *batch, *event]")
        batch = z.shape[: 1 + len(p.batch_shape)]
        law = q.expand((self.samples, *q.batch_shape)) if isinstance(q, Distribution) else q(z)
        check_kind("q(z)", law, Distribution, "be a distribution of x")
        if law.batch_shape != batch:
            but = f"z has {tuple(batch)} and q {tuple(law.batch_shape)} ([samples, *batch])"
            remedy = (
                "Wrap distributions of vectors as Independent(p, 1). p.expand(...) gives every "
                "batch element a separate z."
            )
            raise refusal("p and q", "have one batch shape", but, remedy)

        def given_z(points: Tensor) -> Tensor:
            return f(points, z.expand(points.shape[:1] + z.shape))

        # Not every estimator takes outputs.
        options: dict[str, Any] = {"outputs": outputs} if outputs else {}
        return self.estimator(given_z, law, x=x, generator=generator, **options).mean(0)
