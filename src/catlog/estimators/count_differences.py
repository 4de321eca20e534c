"""The gradient for counts, from differences of f."""

from dataclasses import KW_ONLY

import torch
from torch import Tensor

from ..core import Count, Estimate, Estimator, Evaluator, Randomness
from ..core.randomness import seeded_from
from ..distributions.counts import Counts


class CountDifferences(Estimator[Counts]):
    r"""The gradient for counts, from the change of f when a count grows (or falls) by one.

    For independent counts :math:`z_i` the derivative of :math:`\mathbb{E}[f(z)]` is

    .. math::
        \text{Poisson}(\lambda)\colon\;
        & \partial_{\lambda_i} \mathbb{E} f = \mathbb{E}[f(z + e_i) - f(z)] \\
        \text{Binomial}(n, p)\colon\;
        & \partial_{p_i} \mathbb{E} f = \tfrac1{1 - p_i} \mathbb{E}[(n_i - z_i)\,
        (f(z + e_i) - f(z))] = \tfrac1{p_i} \mathbb{E}[z_i\, (f(z) - f(z - e_i))] \\
        \text{Geometric}(p)\colon\;
        & \partial_{p_i} \mathbb{E} f = -\tfrac1{p_i} \mathbb{E}[(z_i + 1)\,
        (f(z + e_i) - f(z))] \\
        \text{NegativeBinomial}(r, p)\colon\;
        & \partial_{p_i} \mathbb{E} f = \tfrac1{1 - p_i} \mathbb{E}[(z_i + r_i)\,
        (f(z + e_i) - f(z))]

    by summation by parts: the weight is minus the derivative of the CDF, divided by the probability
    of the count. Of the two forms for a Binomial, the first is used up to p = 1/2 and the second
    beyond, so that weights stay small. The sample space is not truncated, and no derivative of f is
    needed. Other parameters (logits) get their gradient by the chain rule; ``total_count`` gets
    none, and an error is raised if it requires one.

    To use other estimators, see :func:`catlog.distributions.truncated`.

    Cost: ``samples * (1 + d)`` evaluations. Needs: q of Poisson, Binomial, Geometric or
    NegativeBinomial variables; any f.
    Reference: Cong et al., "GO gradient for expectation-based objectives", 2019, of which these are
    the discrete cases.

    Args:
        samples: number of draws.
        chunk_size: evaluations of f at once (None: chosen for the device).

    >>> rate = torch.tensor([2.0, 5.0], requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Poisson(rate), 1)
    >>> CountDifferences()(lambda z: 3 * z[..., 0] - z[..., 1], q).backward()
    >>> rate.grad
    tensor([ 3., -1.])
    """

    samples: int = 1
    _: KW_ONLY
    chunk_size: Count | None = None

    def estimate(self, f: Evaluator, q: Counts, draw: Randomness) -> Estimate:
        x = draw.given_points(self.samples)
        if x is None:
            with torch.no_grad(), seeded_from(draw.generator):
                x = q.distribution.sample((self.samples,))
        z = x.reshape(x.shape[:1] + q.batch_shape + (q.d,))
        fx = f(x.reshape(z.shape[:-1] + q.event_shape))
        weight = q.weights(z.to(q.real))
        # Where the weight is 0, the count cannot move on (a Binomial at its end): z is kept.
        step = torch.where(weight != 0, q.steps, 0.0).to(z.dtype)
        rows, d = len(z), q.d

        def changed(part: slice) -> Tensor:
            number = torch.arange(part.start, part.stop, device=z.device)
            moved = torch.nn.functional.one_hot(number % d, d).to(z.dtype)
            moved = moved.view(-1, *[1] * (z.dim() - 2), d)
            points = z[number // d] + step[number // d] * moved
            return points.reshape(points.shape[:-1] + q.event_shape)

        with torch.no_grad():
            values = f.chunked(changed, rows * d)
            change = values.unflatten(0, (rows, d)) - fx.unsqueeze(1)
            weight = (weight * q.steps).movedim(-1, 1)
            gradient = (weight * change).mean(0)
        value = fx.mean(0)
        return Estimate(value, value + (gradient * q.parameter.movedim(-1, 0)).sum(0))
