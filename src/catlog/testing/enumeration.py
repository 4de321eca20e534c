"""The judge: E[estimate] as a finite sum.

Every outcome of the sampler is one batch element; weighted by its probability and back-propagated once, the estimates add up
to the estimator's expectation, to be compared with the sum over the sample space. Nothing here uses the library's own
enumeration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

import catlog
from catlog.distributions.factors import factors
from catlog.estimator import Kind
from catlog.estimators.catlog_trick.slope_predictions import gradient_scale, selection_probabilities


@dataclass(frozen=True)
class Case:
    """A law over few points: parameters ``theta``, how to make q from them (any leading batch), and its points."""

    name: str
    theta: Tensor
    law: Callable[[Tensor], Distribution]
    points: Tensor  # [points, *event], as q.sample() writes them
    features: Callable[
        [Tensor], Tensor
    ]  # [..., *event] to [..., 6] reals, one-hot where the law is of integers

    @property
    def kind(self) -> Kind:
        """As an estimator's ``supports`` calls it."""
        kinds = {
            "bits": Kind.BITS,
            "integer": Kind.INDEX,
            "one-hot": Kind.ONE_HOT,
            "masked": Kind.MIXED,
            "mixed": Kind.MIXED,
        }
        return next(kind for word, kind in kinds.items() if word in self.name)

    def probabilities(self, theta: Tensor) -> Tensor:
        q = self.law(theta)
        return q.log_prob(self.points).exp()


def _grid(*sizes: int) -> Tensor:
    return torch.tensor(list(product(*(range(size) for size in sizes))))


def _rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _masked(theta: Tensor) -> Tensor:
    return theta.masked_fill(torch.tensor([[False, False, True], [True, False, False]]), -torch.inf)


def cases() -> list[Case]:
    """Bits, integers, one-hot; by logits and by probabilities; mixed cardinalities, masks, one variable, two event dims."""

    def float_bits(x: Tensor) -> Tensor:
        return torch.cat([x, x.square()], -1)

    def bits2d(x: Tensor) -> Tensor:
        return x.flatten(-2) @ _rand(2, 6, seed=5)

    def one_hot_index(x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x, 3).flatten(-2).double()

    def one_hot_single(x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x, 3).double() @ _rand(3, 6, seed=6)

    def relaxed(x: Tensor) -> Tensor:
        return x.flatten(-2)

    index = _grid(3, 3)
    return [
        Case(
            "bits",
            _rand(3),
            lambda t: Independent(Bernoulli(logits=t), 1),
            _grid(2, 2, 2).double(),
            float_bits,
        ),
        Case(
            "bits by probs",
            _rand(3).sigmoid(),
            lambda t: Independent(Bernoulli(probs=t), 1),
            _grid(2, 2, 2).double(),
            float_bits,
        ),
        Case(
            "bits, two event dims",
            _rand(1, 2),
            lambda t: Independent(Bernoulli(logits=t), 2),
            _grid(2, 2).double().view(4, 1, 2),
            bits2d,
        ),
        Case(
            "integers",
            _rand(2, 3),
            lambda t: Independent(Categorical(logits=t), 1),
            index,
            one_hot_index,
        ),
        Case(
            "integers by probs",
            _rand(2, 3).exp(),
            lambda t: Independent(Categorical(probs=t), 1),
            index,
            one_hot_index,
        ),
        Case(
            "one integer",
            _rand(3),
            lambda t: Categorical(logits=t),
            torch.arange(3),
            one_hot_single,
        ),
        Case(
            "one-hot",
            _rand(2, 3),
            lambda t: Independent(OneHotCategorical(logits=t), 1),
            torch.eye(3).double()[index],
            relaxed,
        ),
        Case(
            "masked",
            _rand(2, 3),
            lambda t: Independent(Categorical(logits=_masked(t)), 1),
            torch.tensor([[0, 1], [0, 2], [1, 1], [1, 2]]),
            one_hot_index,
        ),
        Case(
            "mixed cardinalities",
            _rand(2, 3),
            lambda t: catlog.Categoricals(t, (3, 2)),
            _grid(3, 2),
            one_hot_index,
        ),
    ]


def functions() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Non-multilinear functions of features [..., 6] with a parameter of their own."""
    a, b = _rand(6, seed=1), _rand(6, 6, seed=2)
    return {
        "sine": lambda z, c: (z @ (a * c) + ((z @ b) * z).sum(-1)).sin(),
        "network": lambda z, c: ((z @ b).tanh() * c).sum(-1).exp(),
        "max": lambda z, c: (z @ b * c).amax(-1),
    }


def expected(
    case: Case, f: Callable[[Tensor, Tensor], Tensor], c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """E[f], and its gradients in theta and in f's parameter c, summed over the points."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()
    value = (case.probabilities(theta) * f(case.features(case.points), c)).sum()
    return value.detach(), *torch.autograd.grad(value, [theta, c])


def outcomes(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    """Every x [rows, outcomes, *event] of independent draws, and its probability [outcomes]."""
    choice = torch.tensor(list(product(range(len(case.points)), repeat=rows))).T
    return case.points[choice], case.probabilities(case.theta)[choice].prod(0)


def every_start(
    E: catlog.SlopeCateR, case: Case, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outcomes times the intervals of the uniform in which the corrected variables stay the same, at their middles."""
    law = factors(case.law(case.theta))
    size = gradient_scale(law.probs) * E.sizes(law.d)
    ends = (E.turns(law.k) * selection_probabilities(size)).cumsum(-1) % 1
    ends = torch.cat([ends.new_zeros(1), ends, ends.new_ones(1)]).sort().values
    start, length = (ends[1:] + ends[:-1]) / 2, ends.diff()
    outcomes = x.shape[1]
    return (
        x.repeat_interleave(len(start), 1),
        (weight[:, None] * length).flatten(),
        start.repeat(outcomes).unsqueeze(0),
    )


def expectation(
    E: catlog.Estimator, case: Case, f: Callable[[Tensor, Tensor], Tensor], c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """E over the sampler's outcomes of the estimator's value and gradients."""
    theta, c = case.theta.clone().requires_grad_(), c.clone().requires_grad_()

    def black_box(x: Tensor) -> Tensor:
        return f(case.features(x), c)

    if isinstance(E, catlog.Exact):
        total = E(black_box, case.law(theta))
        return total.detach(), *torch.autograd.grad(total, [theta, c])
    x, weight = outcomes(case, E.rows(case.law(theta)))
    extra = {}
    if getattr(E, "variables", None):
        d, n, m = 3 if "bits" in case.name else 2, len(x), E.variables
        decks = torch.tensor(
            list(permutations(range(d)))
        )  # the sampler deals the n draws' variables from one deck
        dealt = decks[:, torch.arange(n * m) % d].view(-1, n, m).movedim(1, 0)
        extra["chosen"] = dealt.repeat_interleave(x.shape[1], 1)
        x, weight = (
            x.repeat(1, len(decks), *([1] * (x.dim() - 2))),
            weight.repeat(len(decks)) / len(decks),
        )
    if isinstance(E, catlog.SlopeCateR):
        x, weight, extra["start"] = every_start(E, case, x, weight)
    q = case.law(theta.expand(x.shape[1], *theta.shape))
    total = (weight * E(black_box, q, x=x, **extra)).sum()
    return total.detach(), *torch.autograd.grad(total, [theta, c])
