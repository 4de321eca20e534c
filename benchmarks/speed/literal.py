"""IndeCateR as the paper's formula reads: every variable and category evaluated, all at once.

It is the baseline of the benchmarks and an independent check of the library, which shares no code.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution


def literal_indecater(
    f: Callable[[Tensor], Tensor],
    q: Distribution,
    *,
    x: Tensor | None = None,
    samples: int = 2,
) -> Tensor:
    """Return the estimate for q = Independent(Bernoulli, 1) with batch shape [batch].

    It needs n·d·2 + n evaluations of f.
    """
    if x is None:
        x = q.sample((samples,))
    n, batch, d = x.shape
    value = f(x)
    with torch.no_grad():
        points = x.expand(2, d, n, batch, d).clone()
        variable = torch.arange(d)
        points[0, variable, :, :, variable] = 0.0
        points[1, variable, :, :, variable] = 1.0
        table = f(points.view(2 * d * n, batch, d)).view(2, d, n, batch).mean(2)  # mean over draws
    p = q.base_dist.probs.T  # [d, batch]
    surrogate = ((1 - p) * table[0] + p * table[1]).sum(0) + value.mean(0)
    return value.mean(0).detach() + surrogate - surrogate.detach()
