"""MAPO: policy gradient with a memory of good points."""

from math import log2

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import pad

from ...checks import check_count, check_flag, check_module_device, check_number, refuse_outputs
from ...distributions.conditionals import Conditionals, view
from ...distributions.factors import Factors
from ...distributions.integers import integers
from ...estimator import ANY, FromDraws, Function
from ...evaluation.learning import frozen, learns
from .likely_and_rest import beam_search, sum_and_sample


class MAPO(FromDraws, nn.Module):
    r"""An exact sum over a memory M of the best points so far, and REINFORCE with N draws from
    outside it.

    .. math::
        w_M \sum_{m \in M} \frac{q(m)}{w_M}\, g(m) + \frac{1 - w_M}{N} \sum_n g(x^{(n)}), \qquad w_M
        = \sum_{m \in M} q(m),
        \quad x^{(n)} \sim q(\cdot \mid x \notin M),

    with :math:`g(x) = \partial f(x) + (f(x) - b)\, \partial \log q(x)` and b as in
    :class:`SumAndSample`. After each call in training mode (``E.train()``, the default) the best
    points of memory and draws become the memory of the *next* call, so that every estimate is
    unbiased while the memory changes. All batch elements share one memory, where a point counts
    with its best value among them. If good points differ between contexts, make one estimator for
    each context. The buffer ``memory`` is saved in ``state_dict``.

    Cost: size + samples evaluations. Needs: any f. Meant for sequences with sparse rewards.
    Reference: Liang et al., "Memory augmented policy optimization for program synthesis and
    semantic parsing", 2018.

    Args:
        size: number of points remembered.
        samples: number N of draws from outside the memory; given as ``x``, they must lie outside
            it.
        maximise: whether large values of f are good (a reward) or small ones (a loss).
        clip: the least weight of a memory that holds a possible point (0.1 in the paper).
            **Biased** above 0. It keeps good points in the gradient although the policy gives them
            little probability.
        max_variables: the largest number of variables that q may have.
        validate: check f's values for NaN and inf (eager mode only).

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E = MAPO(size=1, samples=2, max_variables=4)
    >>> E(lambda x: x.sum(-1), q, x=torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]])), E.memory
    (tensor(1.5000), tensor([[ 1,  0,  1, -1]]))
    """

    supports = ANY
    differentiates_f = False
    many_outputs = False
    draws_are_dependent = True
    reference = "Liang et al. 2018"

    def __init__(
        self,
        size: int = 4,
        samples: int = 2,
        maximise: bool = True,
        clip: float = 0.0,
        max_variables: int = 64,
        validate: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("size", size), ("samples", samples), ("max_variables", max_variables)):
            check_count("MAPO", name, value)
        check_flag("MAPO", "maximise", maximise)
        check_number("MAPO", "clip", clip, 0, 1)
        self.size = size
        self.samples = samples
        self.maximise = maximise
        self.clip = clip
        self.max_variables = max_variables
        self.validate = validate
        self.register_buffer("memory", torch.full((size, max_variables), -1))
        self.memory: Int64[Tensor, "size max_variables"]  # category numbers, then -1

    @property
    def unbiased(self) -> bool:
        return self.clip == 0

    def evaluations(self, q: Distribution) -> int:
        return self.size + self.samples

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("MAPO", outputs, "it remembers the points where one output is high")
        law = view(q, validate=self.validate)
        check_module_device(self, law.device)
        members, valid = self._recall(law)
        estimate, values, drawn = sum_and_sample(
            f, law, members, valid, self.samples, x, least=self.clip, generator=generator
        )
        if learns(self, values):
            self._remember(values, valid, drawn, law.k)
        return estimate

    @torch.no_grad()
    def _recall(self, law: Factors | Conditionals) -> tuple[Tensor, Bool[Tensor, "m *batch"]]:
        """Return the remembered points (a likely one for an impossible) and which are possible."""
        hint = f"q has {law.d} variables."
        check_count("MAPO", "max_variables", self.max_variables, least=law.d, hint=hint)
        (memory,) = frozen(self, self.memory)
        stored, beyond = memory[:, : law.d], memory[:, law.d :]
        fits = ((stored >= 0) & (stored < integers(law.cardinalities, stored.device))).all(-1)
        fits = fits & (beyond < 0).all(-1)
        lead = (self.size, *[1] * len(law.batch_shape))
        best, _ = beam_search(law, 1)
        points = torch.where(fits.view(*lead, 1), stored.view(*lead, law.d), best)
        # What follows an impossible prefix need not be a distribution, so it is not checked.
        unchecked = Conditionals(law.q, validate=False) if isinstance(law, Conditionals) else law
        valid = fits.view(lead) & (unchecked.log_prob(points) > -torch.inf)
        return torch.where(valid.unsqueeze(-1), points, best), valid

    @torch.no_grad()
    def _remember(self, values: Tensor, valid: Tensor, drawn: Tensor, k: int) -> None:
        """Keep the best different points of memory and draws, by the values of f in this call."""
        score = (values if self.maximise else -values).masked_fill(~values.isfinite(), -torch.inf)
        old = score[: self.size].masked_fill(~valid, -torch.inf).reshape(self.size, -1).amax(1)
        score = torch.cat([old, score[self.size :].flatten()])
        padding = (0, self.max_variables - drawn.shape[-1])
        pool = torch.cat([self.memory, pad(drawn.flatten(0, -2), padding, value=-1)])
        words = _words(pool[:, : drawn.shape[-1]], k)
        kept = []
        for _ in range(self.size):
            best = score.argmax(0, keepdim=True)
            row = pool.index_select(0, best)
            kept.append(torch.where(score.index_select(0, best).unsqueeze(1) > -torch.inf, row, -1))
            same = (words == words.index_select(0, best)).all(-1)
            score = score.masked_fill(same, -torch.inf)
        self.memory.copy_(torch.cat(kept))


def _words(points: Int64[Tensor, "rows d"], k: int) -> Int64[Tensor, "rows words"]:
    """Return points as few numbers, equal where the points are, to compare them quickly.

    A number holds as many variables as fit into 62 bits. Points with other categories than these k
    are not distinguished; they are not valid.

    >>> _words(torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1]]), k=2)
    tensor([[25],
            [16],
            [25]])
    """
    width = int(62 / log2(k + 1))
    digits = pad((points + 1).clamp(0, k), (0, -points.shape[-1] % width))
    places = (k + 1) ** torch.arange(width, device=points.device)
    return (digits.unflatten(-1, (-1, width)) * places).sum(-1)
