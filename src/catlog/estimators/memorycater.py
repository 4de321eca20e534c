"""MemoryCateR: a critic of earlier evaluations of f, integrated exactly; RLOO on the residual.

The critic is a kernel ridge regression on remembered evaluations, whose mean under independent
variables is known. The kernel of two points that differ in H variables is rho^H. It is a product
over variables, so its mean over x, and the gradient of that mean, are products too. Every function
of x is a sum of such kernels; a rho near 1 prefers main effects and pairs. A second, narrow kernel
fits the residual of the first at the remembered points.

Points are one-hot, ``[critics, points, d k]``. The two parts of a critic, smooth and narrow, are
kept apart.
"""

from dataclasses import KW_ONLY
from itertools import accumulate, product
from math import exp
from operator import mul
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from ..core import Count, Estimate, Evaluator, Learner, Randomness
from ..core.categories import integers
from ..core.checks import check_count
from ..core.factors import IndependentFactors
from ..core.learning import frozen, learns, write
from .score_function import leave_one_out
from .shrinkage import shrunk_coefficients

__all__ = ["MemoryCateR"]

Drawn = Int64[Tensor, "c rows d"]

DECAY = 0.95  # of alpha's and beta's running fit: about the last 20 calls count
WIDTHS = (0.5, 2.0, 8.0)  # rho = exp(-width / d): interactions of about width / 2 variables
SHARES = (1e-6, 1e-3, 1e-1)  # of the narrow kernel, relative to the smooth one
NARROW = 1e-4  # rho of the narrow kernel
RIDGE = 1e-7  # on a kernel diagonal of about 1, for the Cholesky factorisation


class MemoryCateR(Learner[IndependentFactors]):
    r"""A critic h fitted to earlier evaluations of f and integrated exactly, and RLOO on the
    residual f - h.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \partial\, \mathbb{E}[h]
        + \frac{1}{N-1} \sum_n \bigl(r(x^{(n)}) - \overline{r}\bigr)\, \partial \log q(x^{(n)}),
        \qquad r = f - h

    The critic is a kernel ridge regression on ``size`` remembered points z (the most recently seen
    different ones),

    .. math::
        h(x) = \sum_z w_z \bigl[ \alpha\, \rho^{H(x, z)} + \beta \nu\, \rho_0^{H(x, z)} \bigr]

    with H the number of variables in which two points differ. It can represent interactions of all
    orders and prefers low ones. The second kernel is so narrow (:math:`\rho_0 = 10^{-4}`) that it
    only corrects the remembered points themselves. A kernel is a product over variables, so that
    :math:`\mathbb{E}[h] = \sum_z w_z [\alpha \prod_i (\rho + (1 - \rho)\, p_i(z_i)) + \dots]` and
    its gradient are exact. :math:`\rho` and :math:`\nu` maximise the marginal likelihood of the
    memory. :math:`\alpha, \beta` in [0, 1] are a running least-squares fit of f on both parts of h
    at points that h had not seen. So a critic that predicts nothing gets coefficient 0, and the
    estimator becomes RLOO. All of this comes from *earlier* calls, so the estimate is unbiased,
    whatever is remembered. ``eval()`` and the transforms of torch.func freeze the critic.

    The value is :math:`\mathbb{E}[h] + \overline{r}`, also unbiased, with less variance than the
    mean of f.

    It pays off if the same f is evaluated in many calls, and q visits few points or f has low-order
    interactions. If f changes between calls (a network in training), old values are wrong until
    alpha and beta have adapted.

    Cost: ``samples`` evaluations; while it learns, nine Cholesky factorisations of a ``size`` x
    ``size`` matrix per critic and call. Needs: any f.
    Reference: this library.

    Args:
        samples: number of draws N, at least 2.
        size: number of points remembered, per critic.
        critics: 1 if f is the same for all batch elements, else the number of different functions.
            The last batch dimensions of q must have that many elements, and each element gets a
            separate critic.
        max_variables: the largest number of variables that q may have.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E, generator = MemoryCateR(samples=16, size=8), torch.Generator().manual_seed(0)
    >>> for _ in range(20):  # until all 8 points are known
    ...     value = E(lambda x: x.prod(-1), q, generator=generator)
    >>> abs(value.item() - 1 / 8) < 0.01, int((E.age > 0).sum())
    (True, 8)
    """

    samples: int = 16
    _: KW_ONLY
    size: Count = 256
    critics: Count = 1
    max_variables: Count = 64

    many_outputs = False
    why_one_output = "it remembers one value per point"
    least_samples = 2
    too_few = "One draw has no others to leave out."

    def __post_init__(self) -> None:
        super().__post_init__()
        slots = self.critics, self.size
        # Category numbers, then -1.
        self.points = nn.Buffer(torch.full((*slots, self.max_variables), -1))
        self.values = nn.Buffer(torch.zeros(slots, dtype=torch.float64))
        # The call at which a point was last seen; 0: no point.
        self.age = nn.Buffer(torch.zeros(slots, dtype=torch.int64))
        self.clock = nn.Buffer(torch.ones(1, dtype=torch.int64))
        self.weight = nn.Buffer(torch.zeros(self.critics, 2, self.size, dtype=torch.float64))
        self.rho = nn.Buffer(torch.ones(self.critics, 2, dtype=torch.float64))
        # Normal equations of alpha and beta: the matrix, and the right-hand side less the matrix
        # times (1, 1).
        self.gram = nn.Buffer(torch.zeros(2, 2, dtype=torch.float64))
        self.excess = nn.Buffer(torch.zeros(2, dtype=torch.float64))

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        self._check(q)
        x = draw.points(self.samples)
        fx = f(x)
        index = q.index(x)
        # By critic: [critics, rows of the batch, ...]; draws come first among the rows.
        probs = q.probs.reshape(-1, self.critics, q.d * q.k).movedim(1, 0).double()
        drawn = index.reshape(-1, self.critics, q.d).movedim(1, 0)
        points, weight, rho, trust = frozen(
            self, self.points, self.weight, self.rho, self.coefficients()
        )
        points, trust = encoded(points[..., : q.d], q.k), trust.double().unsqueeze(-1)
        h = Critic(points, weight.double(), rho.double(), q.d)
        at_draws, on_average = h.at(encoded(drawn, q.k)), h.mean(probs)
        critic = (trust * at_draws).sum(1).T.reshape(fx.shape).to(fx)
        mean = (trust * on_average).sum(1).T.reshape(q.batch_shape).to(q.real)
        residual = fx - critic
        advantage = (residual - leave_one_out(residual)).detach()
        value = residual.mean(0) + mean
        if learns(self, fx):
            self._learn(q, drawn, fx.detach(), at_draws, on_average.detach())
        return Estimate(value, value + (advantage * q.log_prob(index)).mean(0))

    def coefficients(self) -> Float[Tensor, "2"]:
        """Return alpha and beta from earlier calls, in [0, 1]."""
        return shrunk_coefficients(self.gram, self.excess).clamp(0, 1)

    def _check(self, q: IndependentFactors) -> None:
        hint = f"q has {q.d} variables."
        check_count("MemoryCateR", "max_variables", self.max_variables, least=q.d, hint=hint)
        if self.critics in (1, *accumulate(reversed(q.batch_shape), mul)):
            return
        raise ValueError(
            "MemoryCateR: `critics` must be 1 or the number of elements of the last batch "
            "dimensions of q, whose batch shape is "
            f"{tuple(q.batch_shape)}, but {self.critics} was given."
        )

    @torch.no_grad()
    def _learn(
        self, q: IndependentFactors, drawn: Drawn, fx: Tensor, at_draws: Tensor, on_average: Tensor
    ) -> None:
        """Update alpha and beta with this call's draws, store the draws, and refit h."""
        value = fx.reshape(-1, self.critics).T.double()
        gram, excess = calibration_equations(value, at_draws, on_average)
        new = pad(drawn[:, : self.size], (0, self.max_variables - q.d), value=-1)
        slots = slots_for(new, self.points, self.age)
        points = write_slots(self.points, slots, new)
        values = write_slots(self.values, slots, value[:, : self.size])
        age = write_slots(self.age, slots, self.clock.expand(slots.shape))
        limit = integers(q.cardinalities, points.device)
        fits = (points[..., : q.d] < limit).all(-1) & (points >= 0).sum(-1).eq(q.d)
        used = (age > 0) & fits  # not the points of another distribution
        weight, rho = fit_critic(encoded(points[..., : q.d], q.k), values.double(), used, q.d)
        gram = self.gram.lerp(gram.to(self.gram), 1 - DECAY)
        excess = self.excess.lerp(excess.to(self.excess), 1 - DECAY)
        new_state = points, values, age, self.clock + 1, weight, rho, gram, excess
        write(zip(self.buffers(), new_state, strict=True), together=True)


def encoded(index: Int64[Tensor, "*lead d"], k: int) -> Float[Tensor, "*lead dk"]:
    """Return one-hot points in float64; a category that is not among the k has zeros only."""
    return (index.unsqueeze(-1) == torch.arange(k, device=index.device)).flatten(-2).double()


class Critic(NamedTuple):
    """A sum of kernels at remembered points; both of its parts, smooth and narrow.

    Attributes:
        points: the remembered points.
        weight: of the kernels there.
        rho: of both kernels.
        d: the number of variables.
    """

    points: Float[Tensor, "c m dk"]
    weight: Float[Tensor, "c 2 m"]
    rho: Float[Tensor, "c 2"]
    d: int

    def at(self, x: Float[Tensor, "c n dk"]) -> Float[Tensor, "c 2 n"]:
        """Return both parts at x."""
        differ = self.d - x @ self.points.mT
        kernel = self.rho[..., None, None] ** differ.unsqueeze(1)
        return (kernel @ self.weight.unsqueeze(-1)).squeeze(-1)

    def mean(self, probs: Float[Tensor, "c n dk"]) -> Float[Tensor, "c 2 n"]:
        """Return the means of both parts under independent variables, differentiable in
        ``probs``."""
        rho = self.rho[..., None, None]
        gain = (1 + (1 / rho - 1) * probs.unsqueeze(1)).log()
        kernel_mean = (gain @ self.points.mT.unsqueeze(1) + self.d * rho.log()).exp()
        return (kernel_mean @ self.weight.unsqueeze(-1)).squeeze(-1)


def fit_critic(
    points: Float[Tensor, "c m dk"], value: Float[Tensor, "c m"], used: Bool[Tensor, "c m"], d: int
) -> tuple[Float[Tensor, "c 2 m"], Float[Tensor, "c 2"]]:
    """Return weights and rho of both kernels: of nine settings, those with the most evidence."""
    count = used.sum(-1).clamp(min=1)
    mean = (value * used).sum(-1) / count
    target = (value - mean.unsqueeze(-1)) * used
    # Kernels are looked up by H. Empty slots have H = d + 1, where the kernel is 0, and a diagonal
    # of 1.
    outside = ~(used.unsqueeze(-1) & used.unsqueeze(-2))
    differ = (d - points @ points.mT).masked_fill(outside, d + 1).int()
    h = torch.arange(d + 1, dtype=points.dtype, device=points.device)
    diagonal = torch.diag_embed(RIDGE + (~used).to(points.dtype))
    best = torch.full_like(mean, -torch.inf)
    weight = torch.zeros(
        (*mean.shape, 2, points.shape[-2]), dtype=points.dtype, device=points.device
    )
    rho = torch.ones_like(weight[..., 0])
    for width, share in product(WIDTHS, SHARES):
        smooth = exp(-width / d)
        kernel = pad(smooth**h + share * NARROW**h, (0, 1))
        root = torch.linalg.cholesky_ex(kernel[differ] + diagonal).L
        solved = torch.cholesky_solve(target.unsqueeze(-1), root).squeeze(-1)
        size = (target * solved).sum(-1).clamp(min=torch.finfo(mean.dtype).tiny)
        evidence = -count / 2 * (size / count).log() - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        better = (evidence > best) & solved.isfinite().all(-1)
        best = torch.where(better, evidence, best)
        weight = torch.where(
            better[:, None, None], torch.stack([solved, share * solved], -2), weight
        )
        both = torch.stack([torch.full_like(best, smooth), torch.full_like(best, NARROW)], -1)
        rho = torch.where(better.unsqueeze(-1), both, rho)
    return weight, rho


def calibration_equations(
    value: Float[Tensor, "c r"],
    at_draws: Float[Tensor, "c 2 r"],
    on_average: Float[Tensor, "c 2 b"],
) -> tuple[Float[Tensor, "2 2"], Float[Tensor, "2"]]:
    """Return the normal equations of f on both parts of the critic, at r = n b draws of b batch
    elements.

    They are the matrix, and the right-hand side minus the matrix times (1, 1).
    """
    b = on_average.shape[-1]
    n = value.shape[-1] // b
    feature = at_draws - on_average.repeat(1, 1, n)
    residual = (value - at_draws.sum(1)).unflatten(-1, (n, b)).movedim(1, 0)
    residual = (residual - leave_one_out(residual)).movedim(0, 1).flatten(1)
    gram = torch.einsum("cir,cjr->ij", feature, feature) / residual.numel()
    return gram, torch.einsum("cir,cr->i", feature, residual) / residual.numel()


def slots_for(new: Drawn, points: Tensor, age: Int64[Tensor, "c m"]) -> Int64[Tensor, "c r"]:
    """Return the slots for r <= m new points: that of the same point, else the least recently seen
    one.

    Of equal new points, all but the first get slot m, which is not stored.
    """
    same = (new.unsqueeze(-2) == points.unsqueeze(-3)).all(-1)
    is_known = same.any(-1)
    is_repeated = (new.unsqueeze(-2) == new.unsqueeze(-3)).all(-1).tril(-1).any(-1)
    needs_slot = ~is_known & ~is_repeated
    oldest = age.masked_fill(same.any(-2), torch.iinfo(age.dtype).max).argsort(dim=-1, stable=True)
    free = oldest.gather(-1, (needs_slot.cumsum(-1) - 1).clamp(min=0))
    slots = torch.where(is_known, same.int().argmax(-1), free)
    return torch.where(is_repeated, points.shape[-2], slots)


def write_slots(kept: Tensor, slots: Int64[Tensor, "c r"], new: Tensor) -> Tensor:
    """Return ``kept`` ``[c, m, ...]`` with ``new`` in these slots; slot m is not stored."""
    tail = new.dim() - 2
    index = slots.view(*slots.shape, *[1] * tail).expand(new.shape)
    return pad(kept, (0, 0) * tail + (0, 1)).scatter(1, index, new.to(kept.dtype))[:, :-1]
