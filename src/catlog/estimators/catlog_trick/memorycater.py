"""MemoryCateR: a critic of earlier evaluations of f, integrated exactly; RLOO on the residual."""

from itertools import accumulate
from operator import mul

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import pad

from ...checks import check_count, check_module_device, refuse_outputs
from ...distributions.factors import Factors, factors
from ...distributions.integers import integers
from ...estimator import INDEPENDENT, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ...evaluation.learning import frozen, learns, write
from ...sampling.draw import draws_for
from ..logit_gradients import leave_one_out
from .kernel_critic import (
    calibration_equations,
    critic_means,
    critic_values,
    encoded,
    fit_critic,
    slots_for,
    write_slots,
)
from .shrinkage import shrunk_coefficients

DECAY = 0.95  # of alpha's and beta's running fit: about the last 20 calls count


class MemoryCateR(FromDraws, nn.Module):
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
        validate: check f's values for NaN and inf (eager mode only).

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E, generator = MemoryCateR(samples=16, size=8), torch.Generator().manual_seed(0)
    >>> for _ in range(20):  # until all 8 points are known
    ...     value = E(lambda x: x.prod(-1), q, generator=generator)
    >>> abs(value.item() - 1 / 8) < 0.01, int((E.age > 0).sum())
    (True, 8)
    """

    unbiased = True
    supports = INDEPENDENT
    differentiates_f = False
    many_outputs = False
    least_samples = 2
    too_few = "One draw has no others to leave out."
    reference = "this library"

    def __init__(
        self,
        samples: int = 16,
        size: int = 256,
        critics: int = 1,
        max_variables: int = 64,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        for name, count in (("size", size), ("critics", critics), ("max_variables", max_variables)):
            check_count("MemoryCateR", name, count)
        self.samples = samples
        self.size = size
        self.critics = critics
        self.max_variables = max_variables
        self.validate = validate
        empty = torch.zeros(critics, size, dtype=torch.float64)
        for name, buffer in {
            "points": torch.full((critics, size, max_variables), -1),  # category numbers, then -1
            "values": empty,
            # The call at which a point was last seen; 0: no point.
            "age": torch.zeros(critics, size, dtype=torch.int64),
            "clock": torch.ones(1, dtype=torch.int64),
            "weight": empty.unsqueeze(1).repeat(1, 2, 1),
            "rho": torch.ones_like(empty[:, :1]).repeat(1, 2),
            # Normal equations of alpha and beta: the matrix, and the right-hand side less the
            # matrix times (1, 1).
            "gram": torch.zeros(2, 2, dtype=torch.float64),
            "excess": torch.zeros(2, dtype=torch.float64),
        }.items():
            self.register_buffer(name, buffer)
        self.points: Tensor
        self.values: Tensor
        self.age: Tensor
        self.clock: Tensor
        self.weight: Tensor
        self.rho: Tensor
        self.gram: Tensor
        self.excess: Tensor

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("MemoryCateR", outputs, "it remembers one value per point")
        law = factors(q, validate=self.validate)
        check_module_device(self, law.device)
        self._check(law)
        x = draws_for(self, law, x, generator)
        fx = evaluate(f, x, law)
        index = law.index(x)
        # By critic: [critics, rows of the batch, ...]; draws come first among the rows.
        probs = law.probs.reshape(-1, self.critics, law.d * law.k).movedim(1, 0).double()
        drawn = index.reshape(-1, self.critics, law.d).movedim(1, 0)
        points, weight, rho, trust = frozen(
            self, self.points, self.weight, self.rho, self.coefficients()
        )
        points = encoded(points[..., : law.d], law.k)
        weight, rho, trust = weight.double(), rho.double(), trust.double().unsqueeze(-1)
        at_draws = critic_values(encoded(drawn, law.k), points, weight, rho, law.d)
        on_average = critic_means(probs, points, weight, rho, law.d)
        critic = (trust * at_draws).sum(1).T.reshape(fx.shape).to(fx)
        mean = (trust * on_average).sum(1).T.reshape(law.batch_shape).to(law.real)
        residual = fx - critic
        advantage = (residual - leave_one_out(residual)).detach()
        value = residual.mean(0) + mean
        if learns(self, fx):
            self._learn(law, drawn, fx.detach(), at_draws, on_average.detach())
        return attach(value, value + (advantage * law.log_prob(index)).mean(0))

    def coefficients(self) -> Float[Tensor, "2"]:
        """Return alpha and beta from earlier calls, in [0, 1]."""
        return shrunk_coefficients(self.gram, self.excess).clamp(0, 1)

    def _check(self, law: Factors) -> None:
        check_count(
            "MemoryCateR",
            "max_variables",
            self.max_variables,
            least=law.d,
            hint=f"q has {law.d} variables.",
        )
        if self.critics in (1, *accumulate(reversed(law.batch_shape), mul)):
            return
        raise ValueError(
            "MemoryCateR: `critics` must be 1 or the number of elements of the last batch "
            "dimensions of q, whose batch shape is "
            f"{tuple(law.batch_shape)}, but {self.critics} was given."
        )

    @torch.no_grad()
    def _learn(
        self,
        law: Factors,
        drawn: Int64[Tensor, "c r d"],
        fx: Tensor,
        at_draws: Tensor,
        on_average: Tensor,
    ) -> None:
        """Update alpha and beta with this call's draws, store the draws, and refit h."""
        value = fx.reshape(-1, self.critics).T.double()
        gram, excess = calibration_equations(value, at_draws, on_average)
        new = pad(drawn[:, : self.size], (0, self.max_variables - law.d), value=-1)
        slots = slots_for(new, self.points, self.age)
        points = write_slots(self.points, slots, new)
        values = write_slots(self.values, slots, value[:, : self.size])
        age = write_slots(self.age, slots, self.clock.expand(slots.shape))
        limit = integers(law.cardinalities, points.device)
        fits = (points[..., : law.d] < limit).all(-1) & (points >= 0).sum(-1).eq(law.d)
        used = (age > 0) & fits  # not the points of another distribution
        weight, rho = fit_critic(encoded(points[..., : law.d], law.k), values.double(), used, law.d)
        write(
            [
                (self.gram, self.gram.lerp(gram.to(self.gram), 1 - DECAY)),
                (self.excess, self.excess.lerp(excess.to(self.excess), 1 - DECAY)),
                (self.points, points),
                (self.values, values),
                (self.age, age),
                (self.clock, self.clock + 1),
                (self.weight, weight),
                (self.rho, rho),
            ],
            together=True,
        )
