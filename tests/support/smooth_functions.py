"""Functions that slope-based estimators differentiate exactly, and the bias of an estimator."""

from dataclasses import replace

import torch
from torch import Tensor

import catlog
from catlog.testing import PARAMETER, Case, expectation, expected
from catlog.testing.cases import FeatureFunction, normals


def plain(case: Case) -> Case:
    """Return the case with linear features, so that a quadratic f of them is quadratic in x."""
    bits = "bits" in case.name
    return replace(case, features=lambda x: torch.cat([x, x], -1) if bits else x.flatten(-2))


def quadratic(z: Tensor, c: Tensor) -> Tensor:
    return c[0] * z.square().sum(-1) + ((z @ normals(6, 6, seed=2)) * z).sum(-1)


def multilinear(z: Tensor, c: Tensor) -> Tensor:
    """A function that is linear in each variable given the others, after :func:`plain`."""
    return z[..., 0] * z[..., 4] - c[1] * z[..., 1] * z[..., 5] + (z * c).sum(-1)


def bias(E: catlog.Estimator, case: Case, f: FeatureFunction) -> float:
    """Return the relative bias of the gradient in theta, by enumeration."""
    got, exact = expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER)
    for index in (0, 2):  # the value and the gradient in f's parameter have none
        torch.testing.assert_close(got[index], exact[index], rtol=0, atol=1e-12)
    return float((got[1] - exact[1]).norm() / exact[1].norm())
