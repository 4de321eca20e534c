"""One variable of four categories and a curved f, for formulas that are written out for a draw."""

import torch
from torch import Tensor
from torch.distributions import OneHotCategorical

import catlog
from catlog.testing.cases import normals

K = 4
THETA = normals(K)
WEIGHT = normals(K, seed=1)
DRAWS = torch.eye(K).double()


def f(x: Tensor) -> Tensor:
    return (x @ WEIGHT).sin()


def slope(draw: Tensor) -> Tensor:
    """Return the derivative of f at a draw."""
    return (draw @ WEIGHT).cos() * WEIGHT


def gradient(E: catlog.Estimator, **injected: Tensor) -> Tensor:
    """Return E's gradient in the logits."""
    theta = THETA.clone().requires_grad_()
    return torch.autograd.grad(E(f, OneHotCategorical(logits=theta), **injected), theta)[0]


def conditional_scores(log_p: Tensor, draw: Tensor, u: Tensor) -> Tensor:
    """Return log p plus Gumbels whose sum is largest at the draw, from uniforms."""
    e = -u.log()
    first = (e * draw).sum(-1, keepdim=True)  # the first arrival, at the draw
    return -torch.where(draw.bool(), first, e / log_p.exp() + first).log()
