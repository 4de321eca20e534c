"""Pearson's chi-square test of draws."""

import torch
from torch import Tensor


def tally(x: Tensor, points: Tensor) -> Tensor:
    """Return how often every point was drawn; points that are not listed raise an error."""
    base = 1 + int(max(x.max(), points.max()))
    drawn, listed = (_numbers(rows, base) for rows in (x, points))
    counts = drawn.bincount(minlength=int(listed.max()) + 1)[listed]
    assert counts.sum() == len(x), "an impossible point was drawn"
    return counts.double()


def _numbers(points: Tensor, base: int) -> Tensor:
    """Return one number for every point, whose digits are its categories."""
    flat = points.reshape(len(points), -1).long()
    return (flat * base ** torch.arange(flat.shape[-1])).sum(-1)


def p_value(counts: Tensor, probs: Tensor) -> float:
    """Return the p-value; points that are expected less than five times are one class."""
    is_rare = probs * counts.sum() < 5
    counts = torch.cat([counts[~is_rare], counts[is_rare].sum(0, keepdim=True)])
    expected = torch.cat([probs[~is_rare], probs[is_rare].sum(0, keepdim=True)]) * counts.sum()
    assert not bool(counts[expected == 0].any()), "a point of probability zero was drawn"
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected).square() / expected).sum()
    half = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2)) if len(counts) > 1 else 1.0
