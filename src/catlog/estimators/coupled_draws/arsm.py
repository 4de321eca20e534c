"""ARSM: augment, REINFORCE, swap, merge."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.factors import factors
from ...estimator import INDEPENDENT, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ..logit_gradients import logit_surrogate
from .coupling import coupling_noise


@dataclass(frozen=True, repr=False)
class ARSM(FromDraws):
    r"""ARM for categorical variables: f at the arg-min categories after swapping pairs of noise
    components, weighted by the noise.

    .. math::
        \partial_{\phi_{im}} \approx \sum_j \Bigl(f(x^{mj}) - \frac1k \sum_c f(x^{cj})\Bigr)
        \bigl(\tfrac1k - \pi_{ij}\bigr), \qquad x_i = \arg\min_c \pi_{ic} / p_i(c),\; \pi_i \sim
        \text{Dirichlet}(1, \dots, 1)

    with :math:`\phi` the logits; :math:`x^{mj}` are the arg-min categories after swapping the
    entries m and j of :math:`\pi_i`, in *all* variables i. Every such point is a draw of q, so the
    value is the mean over all of them. Value and gradient are averaged over N noise vectors.
    Unbiased; with k = 2 it is :class:`ARM`. Categories of probability zero are never drawn; with
    mixed cardinalities k is the largest.

    Cost: ``samples`` (1 + k (k - 1) / 2) evaluations. Needs: nothing of f.
    Reference: Yin et al., "ARSM: augment-REINFORCE-swap-merge estimator for gradient
    backpropagation through categorical variables", 2019.

    Args:
        samples: number N of noise vectors.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes :math:`\pi` as ``noise``, ``[samples, *batch, d, k]`` with sums
    1 over the last dimension.

    >>> logits = torch.zeros(1, 3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Categorical(logits=logits), 1)
    >>> noise = torch.tensor([[[0.2, 0.3, 0.5]]])
    >>> ARSM()(lambda x: (x[..., 0] == 0).float(), q, noise=noise).backward()
    >>> logits.grad
    tensor([[ 0.1778, -0.0889, -0.0889]])
    """

    samples: int = 1
    validate: bool = True

    unbiased = True
    supports = INDEPENDENT
    differentiates_f = False
    randomness = ("noise",)
    reference = "Yin et al. 2019"

    def evaluations(self, q: Distribution) -> int:
        k = factors(q, validate=False).k
        return self.samples * (1 + k * (k - 1) // 2)

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        n, k = self.samples, law.k
        shape = (n, *law.batch_shape, law.d, k)
        pi = coupling_noise(self, law, shape, x, noise, generator, simplex=-1)
        order, which = _swaps(k, law.device)
        scaled = pi[..., order] / law.probs.detach().unsqueeze(-2)
        category = scaled.argmin(-1)  # [n, *batch, d, swaps]
        points = law.point(category.movedim(-1, 0).flatten(0, 1))
        fx = evaluate(f, points, law, validate=self.validate)
        swapped = fx.detach().unflatten(0, (-1, n))[which]  # [k (m), k (j), n, *batch]
        change = (swapped - swapped.mean(0)).movedim((0, 1), (-2, -1)).unsqueeze(-3)
        slope = (change * (1 / k - pi).unsqueeze(-2)).sum(-1).mean(0)
        value = fx.mean(0)
        return attach(value, value + logit_surrogate(law, slope))


def _swaps(k: int, device: torch.device) -> tuple[Int64[Tensor, "swaps k"], Int64[Tensor, "k k"]]:
    """Return the orders of k entries with at most two swapped, and which one swaps m and j."""
    m, j = torch.triu_indices(k, k, 1, device=device)
    number = torch.arange(1, len(m) + 1, device=device)
    which = torch.zeros(k, k, dtype=torch.int64, device=device)
    which = which.index_put((m, j), number).index_put((j, m), number)
    order = torch.arange(k, device=device).repeat(len(m) + 1, 1)
    return order.index_put((number, m), j).index_put((number, j), m), which
