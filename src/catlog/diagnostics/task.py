"""The gradient that is estimated, and what it is taken in."""

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from ..core.checks import check_function
from ..core.estimator import Estimator
from ..core.evaluator import Evaluator, Function
from ..core.factors import base_distribution, given_form, unclamped_logits
from ..core.neighbours import rounding
from ..core.ordered import Ordered
from ..core.randomness import Randomness
from ..core.view import converted, view
from ..distributions.categoricals import Categoricals
from ..estimators import Exact
from ..functions.known import Known

Clock = Callable[[], float]
DistributionLike = Distribution | Callable[..., Distribution]
Loss = Callable[[Tensor], Tensor]
Penalty = Callable[[Distribution], Tensor]
Result = TypeVar("Result")

MOST_CHECKED = 2**12  # points, at which a mean that f knows is compared with f


class Task:
    r"""The gradient of :math:`\sum_b \mathbb{E}[f]_b` in parameters of q.

    Args:
        f: the function, or a :class:`catlog.functions.Known`: then estimators get ``f.under(q)``.
        q: a distribution, or a callable that builds it from ``parameters``, with a new graph at
            every call.
        parameters: leaves with ``requires_grad``; None: those that q was computed from or, if there
            are none, the logits (or probabilities) of q.
        loss: applied to every estimate of E[f], element by element, before the sum over the batch.
        penalty: what is added to the loss of each batch element, as a function of q.
        clock: a function that returns seconds.

    Attributes:
        f: the function as an estimator gets it.
        q: the distribution.
        factors: the distribution as estimators see it.
        parameters: the tensors to take the gradient in.
        leaves: these, and all other tensors that f's values are computed from.
        rebuilds_q: whether a step includes building q.
        points: the number of points of q.
        has_loss: whether a loss is applied to the estimates.
        knows_mean: whether f knows its mean under q, so that Exact needs no evaluation.
    """

    def __init__(
        self,
        f: Function,
        q: DistributionLike,
        parameters: Tensor | Sequence[Tensor] | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        check_function(f)
        self.clock = clock
        self.penalty = penalty
        self.has_loss = loss is not None
        self._loss = loss
        self.rebuilds_q = not isinstance(converted(q), Distribution)
        self.make_q, self.q, leaves = _sources(q, parameters)
        self.parameters = tuple(leaves)
        check_trainable(self.parameters)
        if not any(_is_among(leaf, leaves) for leaf in graph_leaves(_from_parameters(self.q))):
            raise ValueError(
                "parameters: q does not depend on any of them. Build q from these tensors "
                "themselves, not from copies or detached ones."
            )
        self.known = f if isinstance(f, Known) else None
        self.f = f if self.known is None else self.known.under(self.q)
        self.factors = view(self.q)
        self.batch_size = prod(self.factors.batch_shape)
        self.points = prod(self.factors.cardinalities)
        self.device = self.factors.device
        if self.batch_size == 0:
            raise ValueError(
                f"q: its batch {tuple(self.q.batch_shape)} is empty, so there is no gradient to "
                "measure. Give a batch with at least one distribution."
            )
        with torch.no_grad():
            self.knows_mean = Evaluator(self.f, self.factors).mean() is not None
        self.loss(torch.ones(self.factors.batch_shape, device=self.device))  # raises if it is wrong
        self.factors.validate = False  # values that are NaN are left to the estimators
        of_f = graph_leaves(Evaluator(self.f, self.factors)(self.draws(1)))
        others = [leaf for leaf in of_f if not _is_among(leaf, leaves)]
        self.leaves = (*self.parameters, *others)

    def draws(self, n: int, seed: int = 0) -> Tensor:
        """Return n points."""
        return Randomness(self.factors, generator=self.generator(seed)).points(n)

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator with this seed on the device of q."""
        return torch.Generator(self.device).manual_seed(seed)

    def evaluations(self, E: Estimator[Any]) -> int:
        """Return the evaluations of f per estimate and batch element."""
        return 0 if self.is_known_to(E) else E.evaluations(self.q)

    def is_known_to(self, E: Estimator[Any]) -> bool:
        """Return whether E uses the mean that f knows."""
        return self.knows_mean and E.is_exact

    def estimate(
        self, E: Estimator[Any], generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "*batch"], Distribution]:
        """Return the loss of one estimate, and its q, with a new graph if a callable makes it."""
        q = self.make_q(*self.parameters)
        f = self.f if self.known is None else self.known.under(q)
        return self.loss(E(f, q, generator=generator)), q

    def timed(self, call: Callable[[], Result]) -> tuple[float, Result]:
        """Return the seconds that a call takes, on the device too, and its result."""
        return timed(call, self.clock, self.device)

    def loss(self, value: Tensor) -> Tensor:
        """Return the loss of every estimate: the estimate itself, if no loss was given."""
        if self._loss is None:
            return value
        losses = self._loss(value)
        if not isinstance(losses, Tensor) or losses.shape != value.shape:
            returned = tuple(losses.shape) if isinstance(losses, Tensor) else repr(losses)
            raise ValueError(
                f"loss: it must map tensors element by element, but for values "
                f"{tuple(value.shape)} it returned {returned}. Leave out the sum over the batch."
            )
        return losses

    def penalties(self, q: Distribution) -> Tensor:
        """Return what is added to the loss of each batch element."""
        if self.penalty is None:
            return torch.zeros((), device=self.device)
        penalties = self.penalty(q)
        if not isinstance(penalties, Tensor) or penalties.shape != q.batch_shape:
            returned = tuple(penalties.shape) if isinstance(penalties, Tensor) else repr(penalties)
            raise ValueError(
                f"penalty: a number per batch element is needed, of shape {tuple(q.batch_shape)}, "
                f"but it returned {returned}. Sum over the variables only."
            )
        return penalties

    @property
    def shares_parameters(self) -> bool:
        """Whether the distributions of the batch depend on the same parameters.

        If the parameters are the logits, the batch is not a sample of a larger data set.
        """
        own = own_parameter(self.q)
        shapes = [parameter.shape for parameter in self.parameters]
        return self.batch_size > 1 and (own is None or own.shape not in shapes)

    def exact(self) -> Float[Tensor, "parameters"]:
        """Return the exact gradient, by enumeration unless f knows its mean."""
        value, _ = self.estimate(Exact() if self.knows_mean else Exact(limit=self.points), None)
        return flat(gradients_in(value, self.parameters, retain=not self.rebuilds_q)).double()

    def check_mean(self, limit: int = MOST_CHECKED) -> None:
        """Raise ValueError if ``f.expectation`` or its gradient does not agree with f.

        Nothing is compared if q has many points, or if f does not know its mean.
        """
        if not self.knows_mean or self.points > min(limit, MOST_CHECKED):
            return
        f, E = self.f, Exact(limit=self.points)
        q = self.make_q(*self.parameters)
        known, summed = E(f, q), E(lambda x: f(x), q)
        with torch.no_grad():
            size = E(lambda x: f(x).to(self.factors.real).abs(), q)
            size = size * rounding(f, self.draws(1), summed)
        slopes = [gradients_in(mean, self.parameters, retain=True) for mean in (known, summed)]
        bounds = [size.sum() + size.max() * slope.abs().max() for slope in slopes[1]]
        wholes = [
            "returns",
            *(f"has, in parameter {i}, the derivative" for i in range(len(bounds))),
        ]
        parts = ((known.detach(), *slopes[0]), (summed.detach(), *slopes[1]), (size, *bounds))
        for name, own, true, bound in zip(wholes, *parts, strict=True):
            is_wrong = ~((own - true).abs() <= bound)
            if bool(is_wrong.any()):
                at = tuple(is_wrong.nonzero()[0].tolist())
                raise ValueError(
                    f"f.expectation does not agree with f: it {name} {float(own[at]):.6g} at index "
                    f"{at}, but the sum over all {self.points} points gives {float(true[at]):.6g}. "
                    "Correct `expectation`, or use `lambda x: f(x)`, which has none."
                )


def timed(call: Callable[[], Result], clock: Clock, device: torch.device) -> tuple[float, Result]:
    """Return the seconds that a call takes until the device has done its work, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start, result


# The parameters of q


def _sources(
    q: DistributionLike, parameters: Tensor | Sequence[Tensor] | None
) -> tuple[Callable[..., Distribution], Distribution, list[Tensor]]:
    """Return a callable that makes q, q itself and the tensors to take the gradient in."""
    leaves = None if parameters is None else listed(parameters)
    distribution = converted(q)
    if isinstance(distribution, Distribution):
        if leaves is None:
            leaves = graph_leaves(_from_parameters(distribution))
            if not leaves:
                leaves, distribution = _with_leaf(distribution)
        return lambda *_: distribution, distribution, leaves
    if not callable(q):
        raise TypeError(
            "q: a distribution is needed, or a callable that makes it from `parameters`, but "
            f"{type(q).__name__} was given."
        )
    if leaves is None:
        raise ValueError(
            "parameters: q is a callable, so the tensors to call it with are needed, but "
            "None was given. Pass them as a list, parameters=[...]."
        )
    return q, converted(q(*leaves)), leaves


def _from_parameters(q: Distribution) -> Tensor:
    """Return a tensor that is computed from all parameters of q."""
    own = own_parameter(q)
    with torch.enable_grad():
        return q.log_prob(q.sample()) if own is None else own


def own_parameter(q: Distribution) -> Tensor | None:
    """Return the logits or probabilities that independent variables were given by; else None."""
    q = converted(q)
    if isinstance(q, Ordered):
        return None
    view(q)  # raises an error that lists the distributions, if this is none
    inner = base_distribution(q)
    inner = inner._categorical if isinstance(inner, OneHotCategorical) else inner
    parameter: Tensor = getattr(inner, _form(inner))
    return parameter


def _form(q: Any) -> str:
    """Return "logits" if q can be rebuilt from them, else "probs"."""
    return "probs" if given_form(q) == "probs" else "logits"


def rebuilt(q: Distribution, parameter: Tensor) -> Distribution:
    """Return q with other logits (or probabilities).

    torch normalises the logits of a Categorical. A second time changes neither them nor gradients.
    """
    validate = q._validate_args
    if isinstance(q, Independent):
        inner = rebuilt(q.base_dist, parameter)
        return Independent(inner, q.reinterpreted_batch_ndims, validate_args=validate)
    if isinstance(q, Categoricals):
        return Categoricals(parameter, q.cardinalities, validate_args=validate)
    assert isinstance(q, Bernoulli | Categorical | OneHotCategorical)
    return type(q)(**{_form(q): parameter}, validate_args=validate)


def gradient_in_logits(gradient: Tensor, q: Distribution) -> Float[Tensor, "logits"]:
    """Return a gradient in what torch normalised as one in the logits (or probabilities)."""
    own = own_parameter(q)
    assert own is not None
    leaf = own.detach().clone().requires_grad_()
    normalised = own_parameter(rebuilt(q, leaf))
    assert normalised is not None
    return gradients_in(normalised, [leaf], gradient)[0].flatten()


def _with_leaf(q: Distribution) -> tuple[list[Tensor], Distribution]:
    """Return a copy of q with logits (or probabilities) that are a leaf of the graph."""
    own = own_parameter(q)
    if own is None:
        raise ValueError(
            "q: none of its parameters has requires_grad=True, so it has no gradient to estimate. "
            "Call requires_grad_() on them before q is built from them."
        )
    inner = base_distribution(q)
    if given_form(inner) == "unknown":
        own = unclamped_logits(getattr(inner, "_categorical", inner), validate=True)
    leaf = own.detach().clone().requires_grad_()
    return [leaf], rebuilt(q, leaf)


# Gradients


def listed(parameters: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters as a list, also if they are a single tensor."""
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def check_trainable(parameters: Sequence[object]) -> None:
    """Raise ValueError unless there are parameters, all of them tensors with a gradient."""
    if not parameters:
        raise ValueError(
            "parameters: tensors with requires_grad=True are needed, but none were given or found."
        )
    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor) or not parameter.requires_grad:
            kind = type(parameter).__name__
            lack = " without a gradient" if isinstance(parameter, Tensor) else ""
            raise ValueError(
                f"parameters: entry {number} must be a tensor with requires_grad=True, but it is a "
                f"{kind}{lack}. Call requires_grad_() before q is built from it."
            )


def _is_among(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    return any(tensor is entry for entry in tensors)


def graph_leaves(value: Tensor) -> list[Tensor]:
    """Return the leaves that a tensor was computed from."""
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    visited, stack, leaves = {value.grad_fn}, [value.grad_fn], []
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for source, _ in node.next_functions:
            if source is not None and source not in visited:
                visited.add(source)
                stack.append(source)
    return leaves


def gradients_in(
    value: Tensor, leaves: Sequence[Tensor], weight: Tensor | None = None, retain: bool = False
) -> list[Tensor]:
    """Return the gradients of ``value.sum()`` (or of the weighted sum), zeros if there are none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    total = value.sum() if weight is None else (value * weight).sum()
    return list(torch.autograd.grad(total, leaves, retain_graph=retain, materialize_grads=True))


def flat(tensors: Sequence[Tensor]) -> Float[Tensor, "entries"]:
    """Return tensors as one vector."""
    return torch.cat([part.flatten() for part in tensors])
