"""Advantages of tokens from completions that were sampled again from chosen prefixes."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def changes_of_value(
    scores: Float[Tensor, " rows"],
    baseline: Float[Tensor, " rows"],
    values: Float[Tensor, "rows length"],
    mask: Bool[Tensor, "rows length"],
) -> Float[Tensor, "rows length"]:
    """Return the next known value after each token minus the last known value before it.

    ``values`` holds estimates of the expected score given the tokens *before* each position, NaN
    where there is none. The value after the last known one is the score, and the value before the
    first one is the baseline.
    """
    length = values.shape[-1]
    is_known = mask & ~values.isnan()
    known = torch.where(is_known, values, 0.0)
    position = torch.arange(length, device=values.device).expand_as(values)
    last = torch.where(is_known, position, -1).cummax(-1).values
    before = known.gather(-1, last.clamp(min=0))
    before = torch.where(last >= 0, before, baseline.unsqueeze(-1))
    first = torch.where(is_known, position, length).flip(-1).cummin(-1).values.flip(-1)
    beyond = torch.full_like(first[:, :1], length)
    following = torch.cat([first[:, 1:], beyond], -1)
    after = known.gather(-1, following.clamp(max=length - 1))
    return torch.where(following < length, after, scores.unsqueeze(-1)) - before
