"""The gradient that is estimated, and what it is taken in."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from math import prod
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..core.checks import check_function, check_tensor, refusal
from ..core.estimator import Estimator
from ..core.evaluator import Evaluator, Function
from ..core.factors import base_distribution, given_parameter
from ..core.ordered import Ordered
from ..core.randomness import Randomness
from ..core.view import converted, view
from ..estimators import Exact
from ..functions.known import Known

Clock = Callable[[], float]
DistributionLike = Distribution | Callable[..., Distribution]
Loss = Callable[[Tensor], Tensor]
Parameters = Tensor | Sequence[Tensor] | None
Penalty = Callable[[Distribution], Tensor]
Result = TypeVar("Result")


class Gradient:
    """A gradient that estimators estimate, and how long a call takes.

    Attributes:
        parameters: the tensors to take it in.
        leaves: these, and all other tensors that the estimates are computed from.
        device: where they are.
        clock: a function that returns seconds.
        rebuilds_q: whether every estimate has a graph of its own.
    """

    parameters: Sequence[Tensor]
    leaves: Sequence[Tensor]
    device: torch.device
    clock: Clock
    rebuilds_q = True

    def estimate(self, E: Estimator[Any], generator: torch.Generator | None) -> Tensor:
        """Return estimates whose sum has the gradient."""
        raise NotImplementedError

    def check(self, E: Estimator[Any]) -> None:
        """Raise an error if E cannot estimate it."""

    def evaluations(self, E: Estimator[Any]) -> int:
        """Return the evaluations of f per estimate and batch element."""
        return 1

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator with this seed on the device."""
        return torch.Generator(self.device).manual_seed(seed)

    def timed(self, call: Callable[[], Result]) -> tuple[float, Result]:
        """Return the seconds of a call until the device has done its work, and its result."""
        self._wait()
        start = self.clock()
        result = call()
        self._wait()
        return self.clock() - start, result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def gradients(self, value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of a sum; the graph of q is kept if it is used again."""
        return gradients_in(value, leaves, retain=not self.rebuilds_q)

    def differentiated(self, value: Tensor) -> Float[Tensor, "entries"]:
        """Return the gradient of a sum in the parameters, as a vector of float64."""
        return flat(self.gradients(value, self.parameters)).double()


class Task(Gradient):
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
        make_q: what returns q; it gets the parameters.
        factors: the distribution as estimators see it.
        points: the number of points of q.
        has_loss: whether a loss is applied to the estimates.
        knows_mean: whether f knows its mean under q, so that Exact needs no evaluation.
    """

    def __init__(
        self,
        f: Function,
        q: DistributionLike,
        parameters: Parameters = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        check_function(f)
        self.clock = clock
        self.penalty = penalty
        self._loss = loss
        self.has_loss = loss is not None
        self.rebuilds_q = not isinstance(converted(q), Distribution)
        self.make_q, self.q, self.parameters = _sources(q, parameters)
        if set(self.parameters).isdisjoint(leaves_of(self.q)):
            remedy = "Build q from these tensors themselves, not from copies or detached ones."
            claim, but = "be tensors that q depends on", "it depends on none of them"
            raise refusal("parameters", claim, but, remedy)
        self._under: Callable[[Distribution], Function] = (
            f.under if isinstance(f, Known) else lambda _: f
        )
        self.f = self._under(self.q)
        self.factors = view(self.q)
        self.points = prod(self.factors.cardinalities)
        self.device = self.factors.device
        if prod(self.factors.batch_shape) == 0:
            but = f"its batch {tuple(self.q.batch_shape)} is empty"
            raise refusal("q", "have a gradient", but, "Give at least one distribution.")
        with torch.no_grad():
            self.knows_mean = Evaluator(self.f, self.factors).mean() is not None
        self.loss(torch.ones(self.factors.batch_shape, device=self.device))  # raises if it is wrong
        self.factors.validate = False  # values that are NaN are left to the estimators
        of_f = graph_leaves(Evaluator(self.f, self.factors)(self.draws(1)))
        self.leaves = tuple(dict.fromkeys((*self.parameters, *of_f)))

    def draws(self, n: int, seed: int = 0) -> Tensor:
        """Return n points."""
        return Randomness(self.factors, generator=self.generator(seed)).points(n)

    def check(self, E: Estimator[Any]) -> None:
        if E.target == "bound":
            raise ValueError("it differentiates a bound, not E[f]")
        view(self.q, 0, E.accepts, "it", E.instead)

    def evaluations(self, E: Estimator[Any]) -> int:
        return 0 if self.knows_mean and E.is_exact else E.evaluations(self.q)

    def estimate(self, E: Estimator[Any], generator: torch.Generator | None) -> Tensor:
        """Return the loss of one estimate, with a new graph if a callable makes q."""
        q = self.make_q(*self.parameters)
        return self.loss(E(self._under(q), q, generator=generator))

    def loss(self, value: Tensor) -> Tensor:
        """Return the loss of every estimate: the estimate itself, if no loss was given."""
        losses = value if self._loss is None else self._loss(value)
        return check_tensor("loss(value)", losses, tuple(value.shape), "one per value, no sum")

    def of_penalty(self) -> Float[Tensor, "entries"]:
        """Return the gradient of what is added to the loss of each batch element."""
        q = self.make_q(*self.parameters)
        added = torch.zeros(q.batch_shape) if self.penalty is None else self.penalty(q)
        shape, form = tuple(q.batch_shape), "one per batch element, summed over the variables only"
        return self.differentiated(check_tensor("penalty(q)", added, shape, form))

    def exact(self) -> Float[Tensor, "entries"]:
        """Return the exact gradient, by enumeration unless f knows its mean."""
        E = Exact() if self.knows_mean else Exact(limit=self.points)
        return self.differentiated(self.estimate(E, None))


# The parameters of q


def _sources(
    q: DistributionLike, parameters: Parameters
) -> tuple[Callable[..., Distribution], Distribution, list[Tensor]]:
    """Return a callable that makes q, q itself and the tensors to take the gradient in."""
    known: Any = converted(q)
    if isinstance(known, Distribution):
        view(known)  # raises an error that lists the distributions, if this is none
        leaves = leaves_of(known) if parameters is None else parameters
        if parameters is None and not leaves and not isinstance(known, Ordered):
            known = deepcopy(known)
            leaves = [given_parameter(base_distribution(known)).requires_grad_()]
        return lambda *_: known, known, trainable(leaves)
    if not callable(q):
        claim = "be a distribution, or a callable that makes it from `parameters`"
        raise refusal("q", claim, f"{type(q).__name__} was given", kind=TypeError)
    if parameters is None:
        claim = "be the tensors to call q with, as it is a callable"
        raise refusal("parameters", claim, "None was given", "Pass a list, parameters=[...].")
    leaves = trainable(parameters)
    return q, converted(q(*leaves)), leaves


def leaves_of(q: Distribution) -> list[Tensor]:
    """Return the leaves that q was computed from."""
    if not isinstance(q, Ordered):
        return graph_leaves(given_parameter(base_distribution(q)))
    return graph_leaves(q.log_prob(q.sample()))


# Gradients


def trainable(parameters: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters as a list, also if they are a single tensor.

    Raise ValueError unless there are some, all of them tensors with a gradient.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    but = "" if given else "none were given or found"
    for number, parameter in enumerate(given):
        if not isinstance(parameter, Tensor):
            but = f"entry {number} is {parameter!r}"
        elif not parameter.requires_grad:
            but = f"entry {number} has requires_grad=False"
    if but:
        remedy = "Call requires_grad_() before q is built from them."
        raise refusal("parameters", "be tensors with requires_grad=True", but, remedy)
    return given


def graph_leaves(value: Tensor) -> list[Tensor]:
    """Return the leaves that a tensor was computed from."""
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    visited, stack, leaves = {None, value.grad_fn}, [value.grad_fn], []
    while stack:
        node = stack.pop()
        leaves += [node.variable] if hasattr(node, "variable") else []
        new: Any = dict.fromkeys(s for s, _ in node.next_functions if s not in visited)
        visited.update(new)
        stack += new
    return leaves


def gradients_in(value: Tensor, leaves: Sequence[Tensor], retain: bool = False) -> list[Tensor]:
    """Return the gradients of ``value.sum()``, zeros if there are none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    total = value.sum()
    return list(torch.autograd.grad(total, leaves, retain_graph=retain, materialize_grads=True))


def flat(tensors: Sequence[Tensor]) -> Float[Tensor, "entries"]:
    """Return tensors as one vector."""
    return torch.cat([part.flatten() for part in tensors])
