"""Cells of a simplex: the pieces on which a draw from continuous noise is constant."""

from itertools import combinations, pairwise

import torch
from torch import Tensor

Cells = tuple[Tensor, Tensor]


def cells(size: int, forms: list[Tensor]) -> Cells:
    """Return centres and sizes of the pieces of a simplex cut by the zeros of linear forms."""
    if size == 1:
        return torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if size == 2:
        ends = sorted({0.0, 1.0, *(float(b / (b - a)) for a, b in forms if a * b < 0)})
        low, high = torch.tensor(list(pairwise(ends)), dtype=torch.float64).T
        return torch.stack([(low + high) / 2, 1 - (low + high) / 2], -1), high - low
    pieces = [list(torch.eye(3, dtype=torch.float64))]
    for form in forms:
        pieces = [
            half
            for piece in pieces
            for sign in (1, -1)
            if len(half := _half(piece, sign * form)) > 2
        ]
    triangles = [
        torch.stack([torch.stack([p[0], a, b]) for a, b in pairwise(p[1:])]) for p in pieces
    ]
    areas = [fan.det().abs() for fan in triangles]
    sizes = torch.stack([area.sum() for area in areas])
    centres = [
        (area[:, None] * fan.mean(1)).sum(0) / area.sum()
        for area, fan in zip(areas, triangles, strict=True)
    ]
    has_area = sizes > 1e-15
    return torch.stack(centres)[has_area], sizes[has_area]


def _half(piece: list[Tensor], form: Tensor) -> list[Tensor]:
    """Return the part of a convex polygon where the form is not negative."""
    heights = [float(corner @ form) for corner in piece]
    part = []
    for a, b, at_a, at_b in zip(
        piece, piece[1:] + piece[:1], heights, heights[1:] + heights[:1], strict=True
    ):
        if at_a >= 0:
            part.append(a)
        if at_a * at_b < 0:
            part.append(a + (b - a) * (at_a / (at_a - at_b)))
    return part


def gumbel_cells(probs: Tensor) -> Cells:
    """Return cells of Gumbel noise on which the argmax of log p + noise is constant.

    That is for every row p of ``probs`` ``[rows, k]`` at once. Gumbel noise is minus the logarithm
    of an exponential variable e_k, so the argmax has the least e_k / p_k. Exponential variables
    divided by their sum are uniform in the simplex. The centres are such e.
    """
    k = probs.shape[-1]
    forms: dict[tuple[float, ...], Tensor] = {}
    for p in probs:
        for a, b in combinations(range(k), 2):
            if p[a] > 0 and p[b] > 0:
                form = torch.zeros(k, dtype=torch.float64)
                form[a], form[b] = p[b] / (p[a] + p[b]), -p[a] / (p[a] + p[b])
                forms[tuple((form * 1e11).round().tolist())] = form
    return cells(k, list(forms.values()))
