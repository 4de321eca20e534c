"""State that SlopeCateR learns: coefficients of its predictions, and scales of slopes."""

from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from .shrinkage import shrunk_coefficients
from .slope_predictions import Three

Updates = list[tuple[Tensor, Tensor]]  # buffers and their new values


class Coefficients(nn.Module):
    """The coefficients alpha and beta: a running least-squares fit of exact gradients on the two
    predictions.

    The buffers hold means of the normal equations: the matrix, and the right-hand side less the
    matrix times (1, 1).
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(2, 2))
        self.register_buffer("excess", torch.zeros(2))
        self.gram: Tensor
        self.excess: Tensor

    def forward(self) -> Float[Tensor, "2"]:
        return shrunk_coefficients(self.gram, self.excess)


class SlopeScales(nn.Module):
    """The running RMS slope of every variable, in a table of ``entries``.

    With more variables than entries, variable i uses entry i mod ``entries``. The buffers hold
    means of the squared norm of straight predictions, and of what it would be for slopes of size 1.
    """

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.register_buffer("size2", torch.zeros(entries))
        self.register_buffer("spread2", torch.zeros(entries))
        self.size2: Tensor
        self.spread2: Tensor

    def forward(self, d: int) -> Float[Tensor, " d"]:
        """Return the scales of d variables, 1 before any data."""
        entries = len(self.size2)
        if entries == 0:
            return torch.ones(d, device=self.size2.device)
        size = torch.where(self.spread2 > 0, self.size2 / self.spread2, 1.0).sqrt()
        return size.repeat(ceil(d / entries))[:d]


def fit_updates(
    gram: Float[Tensor, "2 2"],
    excess: Float[Tensor, "2"],
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
    ss = ((straight * straight).sum(-1) + scale * noise_ss).mean()
    sc = ((straight * curved).sum(-1) + scale * noise_sc).mean()
    cc = ((curved * curved).sum(-1) + scale * noise_cc).mean()
    es = (exact * straight).sum(-1).mean()
    ec = (exact * curved).sum(-1).mean()
    new_gram = torch.stack([ss, sc, sc, cc]).view(2, 2).to(gram)
    new_excess = torch.stack([es - ss - sc, ec - sc - cc]).to(excess)
    return [(gram, gram.lerp(new_gram, rate)), (excess, excess.lerp(new_excess, rate))]


def scale_updates(pairs: list[tuple[Tensor, Float[Tensor, "*batch d"]]], rate: float) -> Updates:
    """Return the updated entries of buffers of :class:`SlopeScales`, from values per variable."""
    updates = []
    for buffer, values in pairs:
        if len(buffer) > 0:
            mean = fold_into(values.reshape(-1, values.shape[-1]).mean(0), len(buffer))
            used = buffer[: len(mean)]
            updates.append((used, used.lerp(mean.to(used), rate)))
    return updates


def fold_into(values: Float[Tensor, " d"], entries: int) -> Float[Tensor, " p"]:
    """Return the sums of all values that share an entry: variable i has entry i mod ``entries``.

    >>> fold_into(torch.arange(5.0), 3)
    tensor([3., 5., 2.])
    """
    if len(values) <= entries:
        return values
    return pad(values, (0, -len(values) % entries)).view(-1, entries).sum(0)
