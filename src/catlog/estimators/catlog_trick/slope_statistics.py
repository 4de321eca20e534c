"""State that SlopeCateR learns: coefficients of its predictions, and scales of slopes."""

from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from .shrinkage import shrunk_coefficients
from .slope_pairs import Three

Updates = list[tuple[Tensor, Tensor]]  # buffers and their new values


class Coefficients(nn.Module):
    """The coefficients alpha and beta: a running least-squares fit of exact gradients on the two
    predictions.

    The buffers hold means of the normal equations: the matrix, and the right-hand side less the
    matrix times (1, 1). With ``fits`` there is one for every entry of q's first batch dimension.
    """

    def __init__(self, *fits: int) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(*fits, 2, 2))
        self.register_buffer("excess", torch.zeros(*fits, 2))
        self.gram: Tensor
        self.excess: Tensor

    def forward(self) -> Float[Tensor, "*fits 2"]:
        return shrunk_coefficients(self.gram, self.excess)


class SlopeScales(nn.Module):
    """The running RMS slope of every variable, in a table of ``entries``.

    With more variables than entries, variable i uses entry i mod ``entries``. The buffers hold
    means of the squared norm of straight predictions, and of what it would be for slopes of size 1.
    With ``fits`` there is a table for every entry of q's first batch dimension.
    """

    def __init__(self, entries: int, *fits: int) -> None:
        super().__init__()
        self.register_buffer("size2", torch.zeros(*fits, entries))
        self.register_buffer("spread2", torch.zeros(*fits, entries))
        self.size2: Tensor
        self.spread2: Tensor

    def forward(self, d: int) -> Float[Tensor, "*fits d"]:
        """Return the scales of d variables, 1 before any data."""
        *fits, entries = self.size2.shape
        if entries == 0:
            return torch.ones(*fits, d, device=self.size2.device)
        size = torch.where(self.spread2 > 0, self.size2 / self.spread2, 1.0).sqrt()
        return size.repeat(*[1] * len(fits), ceil(d / entries))[..., :d]


def fit_updates(
    gram: Float[Tensor, "*fits 2 2"],
    excess: Float[Tensor, "*fits 2"],
    terms: Three,
    noise: Three,
    scale: Tensor,
    rate: float,
) -> Updates:
    """Return the updated buffers of :class:`Coefficients`, from exact and predicted gradients
    ``[..., k]``.

    ``noise`` holds the (co)variances of the predictions, which are weighted by ``scale``.
    """
    exact, straight, curved = terms
    noise_ss, noise_sc, noise_cc = noise

    def mean(values: Float[Tensor, "m *batch"]) -> Float[Tensor, "*fits"]:
        return values.mean() if gram.dim() == 2 else values.movedim(1, 0).flatten(1).mean(-1)

    ss = mean((straight * straight).sum(-1) + scale * noise_ss)
    sc = mean((straight * curved).sum(-1) + scale * noise_sc)
    cc = mean((curved * curved).sum(-1) + scale * noise_cc)
    es = mean((exact * straight).sum(-1))
    ec = mean((exact * curved).sum(-1))
    new_gram = torch.stack([ss, sc, sc, cc], -1).view(gram.shape).to(gram)
    new_excess = torch.stack([es - ss - sc, ec - sc - cc], -1).to(excess)
    return [(gram, gram.lerp(new_gram, rate)), (excess, excess.lerp(new_excess, rate))]


def scale_updates(pairs: list[tuple[Tensor, Float[Tensor, "*batch d"]]], rate: float) -> Updates:
    """Return the updated entries of buffers of :class:`SlopeScales`, from values per variable."""
    updates = []
    for buffer, values in pairs:
        *fits, entries = buffer.shape
        if entries > 0:
            mean = fold_into(values.reshape(*fits, -1, values.shape[-1]).mean(-2), entries)
            used = buffer[..., : mean.shape[-1]]
            updates.append((used, used.lerp(mean.to(used), rate)))
    return updates


def fold_into(values: Float[Tensor, "*fits d"], entries: int) -> Float[Tensor, "*fits p"]:
    """Return the sums of all values that share an entry: variable i has entry i mod ``entries``.

    >>> fold_into(torch.arange(5.0), 3)
    tensor([3., 5., 2.])
    """
    d = values.shape[-1]
    if d <= entries:
        return values
    return pad(values, (0, -d % entries)).unflatten(-1, (-1, entries)).sum(-2)
