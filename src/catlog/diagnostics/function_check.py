"""check: what an estimator needs of f, tried at a few points of q."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.abilities import has_table
from ..core.categories import Kind
from ..core.checks import check_function
from ..core.estimator import Estimator
from ..core.evaluator import Evaluator, Function
from ..core.factors import Factors, IndependentFactors, RelaxableFactors, base_distribution
from ..core.left_alone import left_alone, modules_of
from ..core.ordered import Ordered
from ..core.randomness import Randomness
from ..core.view import relaxable, view
from ..distributions.counts import Counts
from ..distributions.network_checks import rounding
from ..estimators import Exact

ROWS = 3
MOST_VARIABLES = 8  # whose neighbours are compared with f's own table
MOST_POINTS = 2**10  # that are summed to compare them with f's own mean


@dataclass(frozen=True)
class FunctionReport:
    """The result of :func:`catlog.check`; printed, it is a sentence or two per finding.

    Attributes:
        is_noisy: Whether f returns other values when it is called again.
        is_differentiable: Whether f has a finite derivative in x; False if x are integers.
        findings: What was found, in words.
    """

    is_noisy: bool
    is_differentiable: bool
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.findings)


def check(
    f: Function, q: Distribution, E: Estimator | None = None, *, outputs: int = 0
) -> FunctionReport:
    """Evaluate f at a few points of q, and raise ValueError if it breaks its contract.

    f must return one finite float or bool per point, ``[n, *batch]``, which depends on this point
    and batch element alone: it is compared with its value when the point is evaluated alone, in
    another order, and beside other points in the other batch elements. What f offers besides, a
    table of ``neighbours`` or an ``expectation``, must agree with it. If the distribution has a
    method ``check`` (:meth:`catlog.distributions.Autoregressive.check`), its network is checked,
    too. All mistakes are named in one error.

    Noise is no mistake, but it is reported with a way out: f returns other values when it is called
    again, as with dropout. Estimators stay unbiased, but those that subtract values of f at
    neighbouring points become much noisier. While they are used, a
    :class:`~catlog.NoisyFunctionWarning` says so.

    Random numbers of torch, numpy and Python, buffers, modes and gradients stay as they were.

    Cost: at most 13 evaluations of f per batch element, those of its derivative, and what is
    compared with its table (8 variables) and its mean (up to 1,024 points).

    Args:
        f: the function.
        q: the distribution.
        E: an estimator. If it needs a derivative of f, f must have one.
        outputs: the number of output dimensions of f.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(torch.rand(5, 3)), 1)
    >>> print(check(lambda x: x.square().sum(-1), q))
    f: one finite value per point, the same again and whatever the other points are.
    f: differentiable in x.
    """
    check_function(f)
    if E is not None and not hasattr(E, "differentiates_f"):
        raise TypeError(f"check: `E` must be an estimator, but {type(E).__name__} was given.")
    needs_slope = E is not None and E.differentiates_f
    with left_alone(f, q):
        torch.manual_seed(0)
        base = base_distribution(q)
        if isinstance(base, Ordered) and hasattr(base, "check"):
            base.check()
        law = view(q, outputs, frozenset(Kind))
        if needs_slope and not isinstance(law, Counts):
            relaxable(law, type(E).__name__)
        trial = _Trial(f, law, _points(law, q))
        trial.compare_with_itself()
        slope_error = _slope_error(f, trial.x, law)
        if needs_slope and slope_error:
            trial.problems.append(slope_error)
        has_none = "no finite derivative in x. Estimators that need none are possible."
        trial.findings.append(f"f: {has_none if slope_error else 'differentiable in x.'}")
        if not trial.is_noisy and not trial.problems:
            trial.compare_with_offers(q)
    if trial.problems:
        raise ValueError("\n".join(trial.problems))
    return FunctionReport(trial.is_noisy, slope_error is None, tuple(trial.findings))


def _points(law: Factors, q: Distribution) -> Tensor:
    """Return possible points; neighbouring ones differ in every variable that can differ."""
    if isinstance(law, Counts):
        return q.sample((ROWS,)).reshape(ROWS, *law.batch_shape, *law.event_shape)
    if not isinstance(law, IndependentFactors):
        return Randomness(law).points(ROWS)
    order = torch.rand(law.probs.shape, device=law.device)
    order = order.masked_fill(~law.possible, -1.0).argsort(-1, descending=True)
    row = torch.arange(ROWS, device=law.device).view(-1, *[1] * (law.probs.dim() - 1))
    rank = (row % law.possible.sum(-1)).unsqueeze(-1)
    return law.point(order.expand(ROWS, *order.shape).gather(-1, rank).squeeze(-1))


def _slope_error(f: Function, x: Tensor, law: Factors) -> str | None:
    """Return why f has no finite derivative in x; None if it has one."""
    if not isinstance(law, RelaxableFactors):
        return "f: the points of q are integers, in which nothing can be differentiated."
    try:
        Evaluator(f, law).slope(x)
    except Exception as error:  # f may raise anything if it was not written for this
        return f"{error}"
    return None


class _Dtypes(TorchDispatchMode):
    """Collect the dtypes in which f computes, also under autocast inside f."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.dtypes |= {leaf.dtype for leaf in leaves if leaf.is_floating_point()}
        return result


class _Trial:
    """f at the points x, what was found, and what is wrong."""

    def __init__(self, f: Function, law: Factors, x: Tensor) -> None:
        self.f = f
        self.law = law
        self.x = x
        self.findings: list[str] = []
        self.problems: list[str] = []
        self.is_noisy = False
        with torch.no_grad(), _Dtypes() as seen:
            self.fx = Evaluator(f, law)(x)
        eps = rounding({self.fx.dtype, *seen.dtypes} - {torch.bool}, x.device)
        # Rows are rounded otherwise beside others. The square root allows for terms of f that
        # cancel, and is far below what a normalisation does. The same call again gives the same
        # bits, but for sums in another order on a GPU.
        self.limit = sqrt(eps)
        self.repeat_limit = min(self.limit, 16 * eps)

    @torch.no_grad()
    def compare_with_itself(self) -> None:
        """Compare f with f at the same points, beside others."""
        law, x, fx, f = self.law, self.x, self.fx, Evaluator(self.f, self.law)
        again = f(x)
        self.is_noisy = self._differ(fx, again, self.repeat_limit)
        if self.is_noisy:
            self.findings.append(self._noise((fx - again).abs().max().item()))
            return
        influences = []
        batch, end = prod(law.batch_shape), x.dim() - len(law.event_shape)

        def rest(values: Tensor) -> Tensor:
            return values.reshape(ROWS, batch, -1)[:, 1:]

        cases: list[tuple[str, Callable[[], tuple[Tensor, Tensor]]]] = [
            ("a point is evaluated alone", lambda: (fx[1:2], f(x[1:2]))),
            ("the points come in another order", lambda: (fx.flip(0), f(x.flip(0)))),
        ]
        if batch > 1:
            other = x.flatten(1, end - 1).clone()
            other[:, 0] = other[1, 0]
            cases.append(
                (
                    "the points of another batch element change",
                    lambda: (rest(fx), rest(f(other.view_as(x)))),
                )
            )
        for case, values in cases:
            with self._named(case):
                if self._differ(*values(), self.limit):
                    influences.append(case)
        if influences:
            self.problems.append(
                f"f: its values change when {', and when '.join(influences)}. Points must not "
                "influence each other: look for a mean, a normalisation, or a reshape that mixes "
                f"the first dimensions [n, *batch].{self._batch_normalisation()}"
            )
        self.findings.append(
            "f: one finite value per point, the same again and whatever the other points are."
        )

    @torch.no_grad()
    def compare_with_offers(self, q: Distribution) -> None:
        """Compare f's own table and its own mean with f."""
        plain = lambda x: self.f(x)  # noqa: E731  # which offers nothing
        for owner, compared in (("f.neighbours", self._tables), ("f.expectation", self._means)):
            with self._named("it is called", owner):
                own, true = compared(q, plain) or (None, None)
                if own is not None and true is not None:
                    if self._differ(own, true, self.limit, self.fx):
                        self.problems.append(
                            f"{owner} does not agree with f: it differs by "
                            f"{(own - true).abs().max().item():.4g}. Correct it, or pass "
                            "`lambda x: f(x)`."
                        )
                    self.findings.append(f"{owner}: agrees with f.")

    def _tables(self, q: Distribution, plain: Function) -> tuple[Tensor, Tensor] | None:
        """Return the changes of some variables of one point, by f's own table and by f."""
        if not isinstance(self.law, IndependentFactors) or not has_table(self.f):
            return None
        law = self.law
        order = torch.rand((1, *law.batch_shape, law.d), device=law.device).argsort(-1)
        arguments = self.x[:1], self.fx[:1], order[..., :MOST_VARIABLES]
        own, true = (Evaluator(f, law).neighbours(*arguments) for f in (self.f, plain))
        return own, true

    def _means(self, q: Distribution, plain: Function) -> tuple[Tensor, Tensor] | None:
        """Return f's own mean and the sum over all points, if they are few."""
        law = self.law
        if isinstance(law, Counts) or prod(law.cardinalities) > MOST_POINTS:
            return None
        own = Evaluator(self.f, law).mean()
        if own is None:
            return None
        return own, Exact(limit=MOST_POINTS)(plain, q, outputs=law.outputs)

    @contextmanager
    def _named(self, case: str, owner: str = "f") -> Iterator[None]:
        """Note an error of f together with what was tried."""
        try:
            yield
        except Exception as error:
            self.problems.append(
                f"{owner}: it fails when {case}, with {type(error).__name__}: {error}"
                + self._batch_normalisation()
            )

    @staticmethod
    def _differ(first: Tensor, second: Tensor, limit: float, *others: Tensor) -> bool:
        """Return whether values differ by more than ``limit`` times the largest value."""
        if first.numel() == 0:
            return False
        size = max(values.abs().amax() for values in (first, second, *others))
        return not bool(((first - second).abs() <= limit * size).all())

    def _training(self, kind: type) -> list[nn.Module]:
        """Return the modules of this kind in f that are in training mode."""
        modules = [module for root in modules_of(self.f) for module in root.modules()]
        return [module for module in modules if isinstance(module, kind) and module.training]

    def _batch_normalisation(self) -> str:
        if not self._training(nn.modules.batchnorm._BatchNorm):
            return ""
        return (
            " Batch normalisation in training mode does this: call eval() on it, or use LayerNorm "
            "or GroupNorm."
        )

    def _noise(self, change: float) -> str:
        dropouts: list[Any] = self._training(nn.modules.dropout._DropoutNd)
        active = sorted({type(dropout).__name__ for dropout in dropouts if dropout.p > 0})
        own = "random numbers or a state of its own"
        source = f"{', '.join(active)} in training mode" if active else own
        return (
            f"f: noisy. Called again, it returns values that differ by up to {change:.3g}, because "
            f"of {source}. Estimators that subtract values of f become much noisier, and whether "
            "points influence each other cannot be seen. Call eval() on the network in f, or draw "
            "the noise once per step, outside f, so that all points share it."
        )
