"""check: what an estimator needs of f, tried at a few points of q."""

from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..core.abilities import has_table
from ..core.categories import Kind
from ..core.checks import check_function
from ..core.evaluator import Evaluator, Function
from ..core.factors import Factors, IndependentFactors, base_distribution
from ..core.left_alone import left_alone
from ..core.ordered import Ordered
from ..core.randomness import Randomness
from ..core.view import view
from ..distributions.counts import Counts
from ..distributions.network_checks import rounding
from ..estimators import Exact
from .task import gradients_in, graph_leaves

ROWS = 3
MOST_VARIABLES = 8  # whose neighbours are compared with f's own table
SOUND = "f: one finite value per point, the same again and whatever the other points are."
MOST_ROUNDING = 0.1  # relative to the largest value
MOST_POINTS = 2**12  # that are summed to compare them with f's own mean


@dataclass(frozen=True)
class FunctionReport:
    """The result of :func:`catlog.check`; printed, it is a sentence or two per finding.

    Attributes:
        is_noisy: Whether f returns other values when it is called again.
        findings: What was found, in words.
    """

    is_noisy: bool
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.findings)


def check(f: Function, q: Distribution, *, outputs: int = 0) -> FunctionReport:
    """Evaluate f at a few points of q, and raise ValueError if it breaks its contract.

    f must return one finite float or bool per point, ``[n, *batch]``, which depends on this point
    and batch element alone: it is compared with its value when the point is evaluated alone, in
    another order, and beside other points in the other batch elements. What f offers besides, a
    table of ``neighbours`` or an ``expectation``, must agree with it. If the distribution has a
    method ``check`` (:meth:`catlog.distributions.Autoregressive.check`), its network is checked,
    too.

    Noise is no mistake, but it is reported with a way out: f returns other values when it is called
    again, as with dropout. Estimators stay unbiased, but those that subtract values of f at
    neighbouring points become much noisier. While they are used, a
    :class:`~catlog.NoisyFunctionWarning` says so.

    Random numbers of torch, numpy and Python, buffers, modes and gradients stay as they were.

    Cost: at most 13 evaluations of f per batch element, and what is compared with its table (8
    variables) and its mean (up to 4,096 points).

    Args:
        f: the function.
        q: the distribution.
        outputs: the number of output dimensions of f.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(torch.rand(5, 3)), 1)
    >>> print(check(lambda x: x.square().sum(-1), q))
    f: one finite value per point, the same again and whatever the other points are.
    """
    check_function(f)
    with left_alone(f, q):
        torch.manual_seed(0)
        base = base_distribution(q)
        if isinstance(base, Ordered) and hasattr(base, "check"):
            base.check()
        law = view(q, outputs, frozenset(Kind))
        noise = _compared_with_itself(f, law, q)
        findings = [noise or SOUND]
        if not noise and _check_table(f, law):
            findings.append("f.neighbours: agrees with f.")
        if not noise and check_mean(f, q, outputs):
            findings.append("f.expectation: agrees with f.")
    return FunctionReport(bool(noise), tuple(findings))


def _check_table(f: Function, law: Factors) -> bool:
    """Raise ValueError if f's own table does not agree with f, for some variables of one point."""
    if not isinstance(law, IndependentFactors) or not has_table(f):
        return False
    x = Randomness(law).points(1)
    with torch.no_grad():
        fx = Evaluator(f, law)(x)
        order = torch.rand((1, *law.batch_shape, law.d), device=law.device).argsort(-1)
        arguments = x, fx, order[..., :MOST_VARIABLES]
        own, true = (Evaluator(g, law).neighbours(*arguments) for g in (f, lambda x: f(x)))
    if _differ(own, true, _rounding(fx, law), fx):
        difference = (own - true).abs().max().item()
        raise ValueError(
            f"f.neighbours does not agree with f: it differs by {difference:.4g}. Correct it, or "
            "pass `lambda x: f(x)`."
        )
    return True


def check_mean(f: Function, q: Distribution, outputs: int = 0) -> bool:
    """Raise ValueError if ``f.expectation`` or a derivative of it does not agree with f.

    Nothing is compared, and False returned, if q has many points or f does not know its mean.
    """
    law = view(q, outputs, frozenset(Kind))
    if isinstance(law, Counts) or prod(law.cardinalities) > MOST_POINTS:
        return False
    with torch.no_grad():
        if Evaluator(f, law).mean() is None:
            return False
    E = Exact(limit=MOST_POINTS)
    known, summed = (E(g, q, outputs=outputs) for g in (f, lambda x: f(x)))
    with torch.no_grad():
        size = E(lambda x: f(x).to(law.real).abs(), q, outputs=outputs)
        size = size * _rounding(summed, law)
    cases = [("returns", known.detach(), summed.detach(), size)]
    for i, leaf in enumerate(graph_leaves(summed)):
        (ours,), (exact,) = (gradients_in(mean, [leaf], retain=True) for mean in (known, summed))
        bound = size.sum() + size.max() * exact.abs().max()
        cases.append((f"has, in parameter {i}, the derivative", ours, exact, bound))
    for claim, ours, exact, bound in cases:
        is_wrong = ~((ours - exact).abs() <= bound)
        if bool(is_wrong.any()):
            at = tuple(is_wrong.nonzero()[0].tolist())
            raise ValueError(
                f"f.expectation does not agree with f: it {claim} {float(ours[at]):.6g} at index "
                f"{at}, but the sum over all points gives {float(exact[at]):.6g}. Correct "
                "`expectation`, or use `lambda x: f(x)`, which has none."
            )
    return True


def _points(law: Factors, q: Distribution) -> Tensor:
    """Return possible points, independent variables uniformly: a sharp q has equal ones."""
    if isinstance(law, Counts):
        return q.sample((ROWS,)).reshape(ROWS, *law.batch_shape, *law.event_shape)
    if not isinstance(law, IndependentFactors):
        return Randomness(law).points(ROWS)
    order = torch.rand(ROWS, *law.probs.shape, device=law.device)
    return law.point(order.masked_fill(~law.possible, -1.0).argmax(-1))


@torch.no_grad()
def _compared_with_itself(f: Function, law: Factors, q: Distribution) -> str:
    """Return what is said of noise; raise ValueError if points influence each other."""
    x, evaluator = _points(law, q), Evaluator(f, law)
    fx, again = evaluator(x), evaluator(x)
    relative = _rounding(fx, law)
    if _differ(fx, again, relative / 64):  # the same call: the same bits, if not on a GPU
        return (
            "f: noisy. Called again, it returns values that differ by up to "
            f"{(fx - again).abs().max().item():.3g}, because of dropout in training mode, random "
            "numbers or a state of its own. Estimators that subtract values of f become much "
            "noisier, and whether points influence each other cannot be seen. Call eval() on the "
            "network in f, or draw the noise once per step, outside f, so that all points share it."
        )
    batch, end = prod(law.batch_shape), x.dim() - len(law.event_shape)
    # What is tried, the points, the values they should have, and the first batch element to look at
    cases = [
        ("a point is evaluated alone", x[1:2], fx[1:2], 0),
        ("the points come in another order", x.flip(0), fx.flip(0), 0),
    ]
    if batch > 1:
        other = x.flatten(1, end - 1).clone()
        other[:, 0] = other[1, 0]
        cases.append(("the points of another batch element change", other.view_as(x), fx, 1))
    problems = []
    for case, points, expected, first in cases if fx.numel() else ():
        try:
            values = evaluator(points)
        except Exception as error:
            problems.append(f"it fails when {case}, with {type(error).__name__}: {error}")
            continue
        # Rows are rounded otherwise beside others, in fewer bits if f uses autocast. The square
        # root allows for that, and is far below what a normalisation does.
        true, ours = (y.reshape(len(y), batch, -1)[:, first:] for y in (expected, values))
        if _differ(true, ours, min(MOST_ROUNDING, sqrt(relative))):
            problems.append(f"its values change when {case}")
    if problems:
        raise ValueError(
            f"f: {', and '.join(problems)}. Points must not influence each other: look for a mean, "
            "a normalisation, or a reshape that mixes the first dimensions [n, *batch]. Batch "
            "normalisation in training mode does this: call eval() on it, or use LayerNorm or "
            "GroupNorm."
        )
    return ""


def _rounding(fx: Tensor, law: Factors) -> float:
    """Return a bound of f's relative rounding error; generous, since f's terms may be larger."""
    return min(MOST_ROUNDING, 1024 * rounding({fx.dtype, law.real} - {torch.bool}, fx.device))


def _differ(first: Tensor, second: Tensor, limit: float, *others: Tensor) -> bool:
    """Return whether values differ by more than ``limit`` times the largest value."""
    sizes = [values.abs().max() for values in (first, second, *others) if values.numel()]
    return not bool(((first - second).abs() <= limit * max(sizes, default=0.0)).all())
