"""CritiCateR: the CatLog-Derivative trick on a fitted critic, REINFORCE on the residual."""

from dataclasses import KW_ONLY
from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..core import Estimate, Estimator, Evaluator, Positive, Randomness, Range
from ..core.categories import as_index
from ..core.factors import Factors
from ..core.tracing import full_precision
from .ridge import regression

__all__ = ["CritiCateR"]


class CritiCateR(Estimator[Factors]):
    r"""An additive critic of f, fitted to the other draws and integrated exactly, and REINFORCE on
    the residual.

    For each variable i a table :math:`h_i(k)` predicts the effect of category k. The gradient of
    its mean has no noise. The score multiplies only the residual, from which the surprises of
    *later* variables are subtracted as well:

    .. math::
        \frac1N \sum_n \partial f(x) + \sum_i \Bigl( \sum_k \partial q(k \mid x_{<i})\, h_i(k)
        + \bigl[Y_i(x) - m_i(x_{\le i})\bigr]\, \partial \log q(x_i \mid x_{<i}) \Bigr), \qquad
        Y_{i}(x) = f(x) - \sum_{j > i} \Bigl( h_j(x_j) - \sum_k q(k \mid x_{<j}) h_j(k) \Bigr)

    (all x carry the index n). The models :math:`m_i = \mu + \sum_{j \le i} h^{(i)}_j(x_j)`,
    :math:`h_i = h^{(i)}_i`, are ridge regressions of :math:`Y_i`, from the last variable to the
    first. A draw's models are fitted to the *other* folds of draws. They do not depend on the draw,
    so the estimate is unbiased, however good the fit is. Each fit is shrunk by the best coefficient
    of its leave-one-out predictions. If the critic predicts nothing, this coefficient is 0, and the
    estimator is RLOO with folds.

    It needs no more evaluations than RLOO and beats it if f has main effects, including effects
    through later variables. If f is a pure interaction, it is about as good as RLOO.

    Cost: ``samples`` evaluations, and the cheapest of three ways to compute the regressions. For
    independent variables it is one factorisation of an N x N matrix. For several blocks of
    variables (a chain of d states has d blocks) it is one factorisation of a d k x d k matrix, and
    :math:`N^2` numbers that are read and written for every block. With many draws of few variables
    it is one factorisation of a d k x d k matrix for every fold.
    Needs: any f.
    Reference: this library; the correction by later variables is the control variate of Cheng et
    al., "Trajectory-wise control variates for variance reduction in policy gradient methods", 2019.

    Args:
        samples: number of draws N, at least 2.
        folds: number of groups of draws, at most N.
        ridge: the penalty of the regressions, in units of one category in which two draws agree. It
            is raised to the smallest stable value in the dtype of q's probabilities (float32: about
            1e-4 for 16 draws of 10 variables).

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> CritiCateR(samples=16)(lambda x: x.sum(-1), q).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """

    samples: int = 16
    _: KW_ONLY
    folds: Annotated[int, Range(2)] = 8
    ridge: Positive = 3.0

    least_samples = 2
    too_few = "The critic is fitted to the other draws."

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        index = q.index(x)
        n = len(index)
        log_probs = q.log_conditionals(index)  # [rows, *batch, d, k]; independent: one row
        with torch.no_grad(), full_precision(index):
            fold = torch.arange(n, device=index.device) % min(self.folds, n)
            # Draws to the right: [*batch, n, ...], so that regressions are batched matrix products.
            points = q.is_drawn(index).to(log_probs.dtype).movedim(0, -3)
            probs = log_probs.exp().movedim(0, -3)
            # The models do not see a shift of f, which would be rounded in the dtype of q.
            value = (fx - fx[:1]).movedim(0, -1).to(log_probs.dtype)
            tables, residuals = self._critic(q.ordered.blocks, points, probs, value, fold)
            if len(log_probs) == n:
                effects = tables[fold]
                scores = (residuals.unsqueeze(-1) * points).movedim(-3, 0)
            else:  # means over the draws, which share a row and, as one block, their residuals
                share = (fold == torch.arange(len(tables), device=fold.device)[:, None]).to(tables)
                effects = torch.tensordot(share.mean(-1), tables, 1).unsqueeze(0)
                scores = residuals[..., :1].mT @ points.flatten(-2) / n
                scores = scores.squeeze(-2).unflatten(-1, points.shape[-2:]).unsqueeze(0)
        summed_out = log_probs.exp() * effects
        scored = log_probs.masked_fill(log_probs == -torch.inf, 0.0) * scores
        base = fx.mean(0)
        return Estimate(base, base + (summed_out + scored).sum((-1, -2)).mean(0))

    def _critic(
        self,
        blocks: tuple[tuple[int, ...], ...],
        points: Float[Tensor, "*#batch n d k"],
        probs: Float[Tensor, "*#batch rows d k"],
        value: Float[Tensor, "*batch n"],
        fold: Int64[Tensor, "n"],
    ) -> tuple[Float[Tensor, "folds *batch d k"], Float[Tensor, "*batch n d"]]:
        """Return effects of categories and residuals by models that were not fitted to the fold."""
        n, largest = value.shape[-1], value.abs().amax(-1, keepdim=True)
        # A unit in which squares neither overflow nor vanish. It depends on the held-out value, so
        # it is a power of two: dividing by it rounds nothing.
        size = torch.where(largest > 0, largest, 1.0).log2().floor().exp2()
        folds = min(self.folds, n)
        held_out = fold == torch.arange(folds, device=value.device)[:, None]
        held_out = held_out.view(folds, *[1] * (value.dim() - 1), n)
        train = (~held_out).to(value.dtype)  # [folds, 1..., n]
        count = train.sum(-1, keepdim=True)
        model = regression(points, train, blocks, self.ridge)
        target = (value / size).expand(folds, *value.shape)
        tables = points.new_zeros((folds, *value.shape[:-1], *points.shape[-2:]))
        residuals = points.new_zeros((*value.shape, points.shape[-2]))
        for block in reversed(blocks):
            variables = as_index(block)
            mean = (train * target).sum(-1, keepdim=True) / count
            centred = train * (target - mean)
            predicted, left_out, table = model.fit(centred)
            # The small multiple of the target's variance keeps the ratio from being one of rounding
            # errors.
            spread = (left_out.square() + 1e-3 * centred.square()).sum(-1)
            spread = spread.clamp(min=torch.finfo(spread.dtype).tiny)
            shrink = ((left_out * centred).sum(-1) / spread).clamp(0, 1)
            table = table * shrink[..., None, None]  # h_i(k), per fold
            tables[..., variables, :] = table
            residual = target - mean - predicted * shrink[..., None]
            residuals[..., variables] = torch.where(held_out, residual, 0.0).sum(0).unsqueeze(-1)
            if block != blocks[0]:
                surprise = points[..., variables, :] - probs[..., variables, :]
                target = target - torch.einsum("...nik,f...ik->f...n", surprise, table)
                model.drop()
        return tables * size[..., None], residuals * size.unsqueeze(-1)
