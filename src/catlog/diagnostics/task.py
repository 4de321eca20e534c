"""The gradient that is estimated, and what it is taken in."""

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from ..core.checks import check_function
from ..core.estimator import Estimator
from ..core.evaluator import Evaluator, Function
from ..core.factors import base_distribution, given_form, unclamped_logits
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

    def estimate(
        self, E: Estimator[Any], generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "*batch"], Distribution | None]:
        """Return estimates whose sum has the gradient, and the q that they are of, if any."""
        raise NotImplementedError

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

    def differentiated(self, value: Tensor, retain: bool = False) -> Float[Tensor, "entries"]:
        """Return the gradient of a sum in the parameters, as a vector of float64."""
        return flat(gradients_in(value, self.parameters, retain=retain)).double()


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
        parameters: Tensor | Sequence[Tensor] | None = None,
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
        check_trainable(self.parameters)
        own = {id(leaf) for leaf in self.parameters}
        if own.isdisjoint(map(id, graph_leaves(_from_parameters(self.q)))):
            raise ValueError(
                "parameters: q does not depend on any of them. Build q from these tensors "
                "themselves, not from copies or detached ones."
            )
        self.known = f if isinstance(f, Known) else None
        self.f = f if self.known is None else self.known.under(self.q)
        self.factors = view(self.q)
        self.points = prod(self.factors.cardinalities)
        self.device = self.factors.device
        if prod(self.factors.batch_shape) == 0:
            raise ValueError(
                f"q: its batch {tuple(self.q.batch_shape)} is empty, so there is no gradient to "
                "measure. Give a batch with at least one distribution."
            )
        with torch.no_grad():
            self.knows_mean = Evaluator(self.f, self.factors).mean() is not None
        self.loss(torch.ones(self.factors.batch_shape, device=self.device))  # raises if it is wrong
        self.factors.validate = False  # values that are NaN are left to the estimators
        of_f = graph_leaves(Evaluator(self.f, self.factors)(self.draws(1)))
        self.leaves = (*self.parameters, *(leaf for leaf in of_f if id(leaf) not in own))

    def draws(self, n: int, seed: int = 0) -> Tensor:
        """Return n points."""
        return Randomness(self.factors, generator=self.generator(seed)).points(n)

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

    def loss(self, value: Tensor) -> Tensor:
        """Return the loss of every estimate: the estimate itself, if no loss was given."""
        losses: object = value if self._loss is None else self._loss(value)
        return _with_shape(
            losses,
            value.shape,
            f"loss: it must map tensors element by element, but for values {tuple(value.shape)}",
            "Leave out the sum over the batch.",
        )

    def penalties(self, q: Distribution) -> Tensor:
        """Return what is added to the loss of each batch element."""
        if self.penalty is None:
            return torch.zeros((), device=self.device)
        shape = q.batch_shape
        owner = f"penalty: a number per batch element is needed, of shape {tuple(shape)}, but"
        return _with_shape(self.penalty(q), shape, owner, "Sum over the variables only.")

    @property
    def shares_parameters(self) -> bool:
        """Whether the distributions of the batch depend on the same parameters.

        If the parameters are the logits, the batch is not a sample of a larger data set.
        """
        own = own_parameter(self.q)
        shapes = [parameter.shape for parameter in self.parameters]
        return prod(self.factors.batch_shape) > 1 and (own is None or own.shape not in shapes)

    def exact(self) -> Float[Tensor, "parameters"]:
        """Return the exact gradient, by enumeration unless f knows its mean."""
        value, _ = self.estimate(Exact() if self.knows_mean else Exact(limit=self.points), None)
        return self.differentiated(value, retain=not self.rebuilds_q)

    def check_mean(self, limit: int = MOST_CHECKED) -> None:
        """Raise ValueError if ``f.expectation`` or its gradient does not agree with f.

        Nothing is compared if q has many points, or if f does not know its mean.
        """
        if not self.knows_mean or self.points > min(limit, MOST_CHECKED):
            return
        f, E, q = self.f, Exact(limit=self.points), self.make_q(*self.parameters)
        known, summed = E(f, q), E(lambda x: f(x), q)
        with torch.no_grad():
            size = E(lambda x: f(x).to(self.factors.real).abs(), q)
            size = size * _rounding(f, self.draws(1), summed)
        own, true = (gradients_in(mean, self.parameters, retain=True) for mean in (known, summed))
        cases = [("returns", known.detach(), summed.detach(), size)]
        for i, (ours, exact) in enumerate(zip(own, true, strict=True)):
            bound = size.sum() + size.max() * exact.abs().max()
            cases.append((f"has, in parameter {i}, the derivative", ours, exact, bound))
        for claim, ours, exact, bound in cases:
            is_wrong = ~((ours - exact).abs() <= bound)
            if bool(is_wrong.any()):
                at = tuple(is_wrong.nonzero()[0].tolist())
                raise ValueError(
                    f"f.expectation does not agree with f: it {claim} {float(ours[at]):.6g} at "
                    f"index {at}, but the sum over all {self.points} points gives "
                    f"{float(exact[at]):.6g}. Correct `expectation`, or use `lambda x: f(x)`, "
                    "which has none."
                )


def _rounding(f: object, x: Tensor, fx: Tensor) -> float:
    """Return a bound of f's relative rounding error; generous, since f's terms may be larger."""
    dtypes = {fx.dtype, *([x.dtype] if x.is_floating_point() else [])}
    if isinstance(f, nn.Module):
        tensors = (*f.parameters(), *f.buffers())
        dtypes |= {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if torch.is_autocast_enabled(x.device.type):
        dtypes.add(torch.get_autocast_dtype(x.device.type))
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    precision = torch.get_float32_matmul_precision()
    if torch.float64 not in dtypes and (x.is_cuda or precision != "highest"):
        # The mantissa of bfloat16 ("medium") or TF32 ("high", and convolutions on a GPU).
        coarsest = max(coarsest, 2.0**-7 if precision == "medium" else 2.0**-10)
    return coarsest * (1024 if coarsest < 1e-6 else 32)


def _with_shape(values: object, shape: torch.Size, owner: str, remedy: str) -> Tensor:
    """Return values of the user, or raise ValueError if they do not have this shape."""
    if not isinstance(values, Tensor) or values.shape != shape:
        returned = tuple(values.shape) if isinstance(values, Tensor) else repr(values)
        raise ValueError(f"{owner} it returned {returned}. {remedy}")
    return values


# The parameters of q


def _sources(
    q: DistributionLike, parameters: Tensor | Sequence[Tensor] | None
) -> tuple[Callable[..., Distribution], Distribution, list[Tensor]]:
    """Return a callable that makes q, q itself and the tensors to take the gradient in."""
    known: Any = converted(q)
    if isinstance(known, Distribution):
        if parameters is not None:
            return lambda *_: known, known, listed(parameters)
        leaves = graph_leaves(_from_parameters(known))
        if not leaves:
            leaves, known = _with_leaf(known)
        return lambda *_: known, known, leaves
    if not callable(q):
        raise TypeError(
            "q: a distribution is needed, or a callable that makes it from `parameters`, but "
            f"{type(q).__name__} was given."
        )
    if parameters is None:
        raise ValueError(
            "parameters: q is a callable, so the tensors to call it with are needed, but "
            "None was given. Pass them as a list, parameters=[...]."
        )
    return q, converted(q(*listed(parameters))), listed(parameters)


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
    parameter: Tensor = getattr(getattr(inner, "_categorical", inner), _form(inner))
    return parameter


def _form(q: Any) -> str:
    """Return "logits" if q can be rebuilt from them, else "probs"."""
    return "probs" if given_form(q) == "probs" else "logits"


def rebuilt(q: Distribution, parameter: Tensor) -> Distribution:
    """Return q with other logits (or probabilities).

    torch normalises the logits of a Categorical. A second time changes neither them nor gradients.
    """
    # As the user gave it: the first torch.compile of a process switches torch's default off.
    validate = q.__dict__.get("_validate_args")
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
    return gradients_in(normalised * gradient, [leaf])[0].flatten()


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


def gradients_in(value: Tensor, leaves: Sequence[Tensor], retain: bool = False) -> list[Tensor]:
    """Return the gradients of ``value.sum()``, zeros if there are none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    total = value.sum()
    return list(torch.autograd.grad(total, leaves, retain_graph=retain, materialize_grads=True))


def flat(tensors: Sequence[Tensor]) -> Float[Tensor, "entries"]:
    """Return tensors as one vector."""
    return torch.cat([part.flatten() for part in tensors])
