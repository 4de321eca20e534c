"""Perturbed argmaxes, as published: the point moves with f, for the same Gumbel noise."""

import pytest
import torch
from torch import Tensor

import catlog
from catlog.estimators import IMLE, DirectOptimisation
from catlog.testing.cases import seeded
from support.one_variable import DRAWS, THETA, K, conditional_scores, f, gradient, slope


@pytest.mark.parametrize("step", [0.5, 2.0, -2.0])
@pytest.mark.parametrize("cls", [IMLE, DirectOptimisation])
def test_as_published(cls: type[catlog.Estimator], step: float) -> None:
    if cls is IMLE and step < 0:
        return
    E = cls(step=step) if cls is IMLE else cls(epsilon=step)
    signed = -step if cls is IMLE else step  # I-MLE moves to the lower cost
    moved = 0
    for u in torch.rand(20, K, dtype=torch.float64, generator=seeded()):
        for draw in DRAWS:
            score = conditional_scores(THETA.log_softmax(-1), draw, u)
            change: Tensor = slope(draw) if cls is IMLE else f(DRAWS) - f(draw)
            point = DRAWS[(score + signed * change).argmax()]
            got = gradient(E, x=draw.unsqueeze(0), noise=u.view(1, 1, K))
            torch.testing.assert_close(got, (point - draw) / signed, rtol=0, atol=1e-7)
            moved += not torch.equal(point, draw)
    assert 0 < moved < 80
