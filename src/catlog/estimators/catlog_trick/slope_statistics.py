"""What SlopeCateR learns from its calls: how far slopes are to be trusted, and how large those of every variable are."""

from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from .shrinkage import shrunk_coefficients
from .slope_predictions import Three

Updates = list[tuple[Tensor, Tensor]]  # buffers, and what to write into them


class Coefficients(nn.Module):
    """alpha and beta, a running least-squares fit of what f is worth by the two predictions of it.

    Kept are means of the normal equations: the matrix, and the right-hand side less the matrix times (1, 1).
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(2, 2))
        self.register_buffer("excess", torch.zeros(2))
        self.gram: Tensor
        self.excess: Tensor

    def forward(self) -> Float[Tensor, "2"]:
        return shrunk_coefficients(self.gram, self.excess)

    @torch.no_grad()
    def updates(self, terms: Three, noise: Three, scale: Tensor, rate: float) -> Updates:
        """From what f and the predictions gave, [..., k], and the noise in these, times ``scale``: (co)variances."""
        exact, straight, curved = terms
        pairs = (straight, straight), (straight, curved), (curved, curved)
        ss, sc, cc = (
            ((a * b).sum(-1) + scale * more).mean()
            for (a, b), more in zip(pairs, noise, strict=True)
        )
        es, ec = ((exact * each).sum(-1).mean() for each in (straight, curved))
        gram, excess = (
            torch.stack([ss, sc, sc, cc]).view(2, 2),
            torch.stack([es - ss - sc, ec - sc - cc]),
        )
        return [
            (kept, kept.lerp(new.to(kept), rate))
            for kept, new in ((self.gram, gram), (self.excess, excess))
        ]


class SlopeScales(nn.Module):
    """The root mean square of every variable's slopes, in so many places; more variables share them.

    Kept are, by place, means of the squared size of straight predictions and of what it would be for slopes of size 1.
    """

    def __init__(self, places: int) -> None:
        super().__init__()
        self.register_buffer("size2", torch.zeros(places))
        self.register_buffer("spread2", torch.zeros(places))
        self.size2: Tensor
        self.spread2: Tensor

    def forward(self, d: int) -> Float[Tensor, " d"]:
        """Of d variables; 1 where nothing was seen."""
        places = len(self.size2)
        if places == 0:
            return torch.ones(d, device=self.size2.device)
        size = torch.where(self.spread2 > 0, self.size2 / self.spread2, 1.0).sqrt()
        return size.repeat(ceil(d / places))[:d]

    @torch.no_grad()
    def updates(
        self, size2: Float[Tensor, "*batch d"], spread2: Float[Tensor, "*batch d"], rate: float
    ) -> Updates:
        places = len(self.size2)
        if places == 0:
            return []
        means = (
            fold_into(each.reshape(-1, each.shape[-1]).mean(0), places) for each in (size2, spread2)
        )
        seen = (
            (kept[: len(mean)], mean)
            for kept, mean in zip((self.size2, self.spread2), means, strict=True)
        )
        return [(kept, kept.lerp(mean.to(kept), rate)) for kept, mean in seen]


def fold_into(values: Float[Tensor, " d"], places: int) -> Float[Tensor, " p"]:
    """The sums of all values that share a place: variable i has place i mod ``places``.

    >>> folded(torch.arange(5.0), 3)
    tensor([3., 5., 2.])
    """
    if len(values) <= places:
        return values
    return pad(values, (0, -len(values) % places)).view(-1, places).sum(0)
