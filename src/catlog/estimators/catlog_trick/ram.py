"""RAM: reparameterisation with Gumbel noise, each variable summed out."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_chunk_size
from ...estimator import ANY, FromDraws, Function
from .scater import SCateR


@dataclass(frozen=True, repr=False)
class RAM(FromDraws):
    r"""The CatLog-Derivative trick with common Gumbel noise: it sums over one variable at a time
    and holds the noise of the others fixed.

    .. math::
        \sum_i \sum_k \frac1N \sum_n \partial q(k \mid x^{(n)}_{<i})\,
        f\bigl(x^{(n)}_{<i}, k, x_{>i}(\varepsilon^{(n)}_{>i})\bigr),
        \qquad x_j = \arg\max_k \log q(k \mid x_{<j}) + \varepsilon_{jk}

    It is :class:`SCateR` with ``suffix="gumbel"``: unbiased, with the suffixes of different
    categories coupled.

    Cost: N (1 + d (k - 1)) evaluations and, for dependent variables, N d^2 (k - 1) integers per
    batch element at once. Needs: any f.
    Reference: Tokui and Sato, "Evaluating the variance of likelihood-ratio gradient estimators",
    2017.

    Args:
        samples: number of draws N.
        chunk_size: evaluations of f at once; None: chosen for the device.
        validate: check the values of f and q for NaN and inf (eager mode only).

    >>> from catlog import MarkovChain
    >>> q = MarkovChain(torch.zeros(2), torch.zeros(2, 2), length=3)
    >>> RAM(samples=2)(lambda x: x.sum(-1).float(), q).shape
    torch.Size([])
    """

    samples: int = 1
    chunk_size: int | None = None
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    reference = "Tokui & Sato 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chunk_size("RAM", self.chunk_size)

    @property
    def _scater(self) -> SCateR:
        return SCateR(
            self.samples, suffix="gumbel", chunk_size=self.chunk_size, validate=self.validate
        )

    def evaluations(self, q: Distribution) -> int:
        return self._scater.evaluations(q)

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
        return self._scater(f, q, x=x, noise=noise, outputs=outputs, generator=generator)
