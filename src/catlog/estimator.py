"""The contract of every estimator, its label, and the tie between a value and a gradient."""

from collections.abc import Callable
from enum import StrEnum
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from .checks import check_count
from .tracing import can_inspect, inside_functorch

Function = Callable[[Tensor], Tensor]

Target = Literal["expectation", "bound"]


class Kind(StrEnum):
    """The kinds of distribution. The first three are also the forms in which f sees points."""

    BITS = "bits"  # Bernoulli: floats 0 and 1
    INDEX = "index"  # Categorical: integers
    ONE_HOT = "one-hot"  # OneHotCategorical: one-hot floats
    MIXED = "mixed"  # Categoricals: integers, with different numbers of categories
    COUNTS = "counts"  # Poisson, Binomial, Geometric, NegativeBinomial
    STRUCTURED = "structured"  # Autoregressive, MarkovChain, Subset, ...: dependent integers


BITS = frozenset({Kind.BITS})
RELAXABLE = BITS | {Kind.ONE_HOT}
INDEPENDENT = RELAXABLE | {Kind.INDEX, Kind.MIXED}
ANY = INDEPENDENT | {Kind.STRUCTURED}

TWICE = (
    "E(f, q): this estimate has an unbiased first derivative, but not a second one. For second "
    "derivatives (create_graph=True, hessian) use Reinforce, RLOO or, where q has few points, "
    "Exact."
)


@runtime_checkable
class Estimator(Protocol):
    r"""The contract of an estimator, which is an expectation operator: ``E(f, q)`` estimates
    :math:`\mathbb{E}_{x\sim q}[f(x)]`.

    - ``q``: a distribution with ``batch_shape = [*batch]`` (separate expectations) and
      ``event_shape = [*event]`` (the random vector).
    - ``f``: called with points ``[n, *batch, *event]``, in the format of ``q.sample()``; returns
      floats (or bools, for indicators) ``[n, *batch]``; those of 16 bits are widened to float32. f
      may be a black box unless ``differentiates_f``, and it may have parameters. An f with a method
      ``neighbours(x)`` computes its own table, and one with a method ``expectation(q)`` its own
      mean (see :mod:`catlog.functions`).
    - ``outputs``: the number of trailing output dimensions of f. With ``outputs=1``, f returns
      ``[n, *batch, m]`` and the result is ``[*batch, m]``, an expectation per output. All outputs
      share the draws, and each has the value and gradient that a separate call would give.
      Estimators with ``many_outputs`` accept such functions; the others raise an error.
    - ``x``: points to use instead of drawing them, ``[rows(q), *batch, *event]``: replay, common
      random numbers, exact tests.
    - ``generator``: the source of randomness; by default torch's global generator.

    Returns ``[*batch]``: the *value* is an estimate of the expectation, and its *gradient* (by
    ``backward``) is this method's estimate of the expectation's gradient, in the parameters of q
    and of f. Values compose: ``E(f, q).log()``, sums and products are differentiated by the
    ordinary chain rule. *Second* derivatives (``create_graph=True``, ``hessian``) are right with
    Exact, Reinforce and RLOO. With GumbelSoftmax they are those of the relaxation that it
    differentiates. The other estimators raise an error if they are differentiated twice.

    A category of probability exactly zero (a logit of -inf, a probability of 0) is never shown to f
    and gets no gradient. The probability of a variable that is certain gets no gradient either: f
    is unknown at its other categories, and so is the one-sided derivative. Gradients in the other
    parameters are those with the impossible categories held at zero. Finite logits keep every
    category possible.

    An estimator that learns is an ``nn.Module``: ``backward`` also fills the ``grad`` of the
    estimator's parameters, with the gradient of the variance of its estimate (see
    ``catlog.estimator.attach``). Give ``E.parameters()`` to a separate optimiser.

    Attributes:
        target: "expectation", or "bound" for VIMCO, which estimates the importance-weighted bound
            of its draws instead of E[f].
        supports: the kinds of distribution that q may be.
        randomness: the keyword arguments through which a call takes its randomness, in the order in
            which they are drawn. A call that is given all of them is deterministic. ``()``: nothing
            is random. ``x``: points, as above; ``chosen``: the variables that are summed out in
            each draw, ``[n, *batch, m]``; ``start``: uniforms ``[1, *batch]``, with SlopeCateR's
            pairs ``[2, *batch]``; ``noise``: further uniforms, of a shape that the class states.
            This holds for independent variables. SCateR and RAM take ``noise`` as well, which
            matters for structured distributions only.
        many_outputs: whether f may have output dimensions, which needs an estimate that is linear
            in f. An estimator without this attribute takes none, and no argument ``outputs``.
        reference: who proposed it.

    An estimator that takes ``x``, but whose points are not independent draws of q (they are drawn
    without replacement, or outside a set), also has ``draws_are_dependent = True``.
    """

    target: ClassVar[Target]
    supports: ClassVar[frozenset[Kind]]
    reference: ClassVar[str]

    @property
    def unbiased(self) -> bool:
        """Return whether value and gradient are right in expectation, with the present settings."""

    @property
    def randomness(self) -> tuple[str, ...]:
        """Return the names of the arguments that inject randomness, with the present settings."""

    @property
    def differentiates_f(self) -> bool:
        """Return whether the derivative of f in its input is used."""

    def rows(self, q: Distribution) -> int:
        """Return the number of base draws: the leading dimension of ``x``."""

    def evaluations(self, q: Distribution) -> int:
        """Return the number of evaluations of f per batch element."""

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]: ...


def label(E: object) -> str:
    """Return the name of an estimator, its number of draws and the settings that are not defaults.

    It is the ``__repr__`` of every estimator. Python, ``compare`` and ``catlog compare`` make the
    same estimator of it again. Coefficients that an estimator learns are left out; of a function or
    a module there is only the name.

    >>> from catlog import DoubleCV, IndeCateR, SumAndSample
    >>> IndeCateR(2, draws="latin"), DoubleCV(4), SumAndSample(top=3)
    (IndeCateR(2, draws='latin'), DoubleCV(4), SumAndSample(samples=1, top=3))
    """
    settings: list[str] = []
    for position, (name, parameter) in enumerate(signature(type(E)).parameters.items()):
        value = getattr(E, name, parameter.default)
        if name == "samples":
            settings.insert(0, f"{name}={value}" if position else str(value))
        elif not isinstance(value, nn.Parameter) and value is not parameter.default:
            text = _setting(value)
            if text != _setting(parameter.default):
                settings.append(f"{name}={text}")
    return f"{type(E).__name__}({', '.join(settings)})"


def _setting(value: object) -> str:
    """Return a setting in few characters that still tell it from every other number."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not can_inspect(True, value):
            return "tensor"
        short = f"{value.item():.3g}"
        return short if bool(value == float(short)) else repr(value.item())
    if value is None or isinstance(value, bool | int | str | tuple | list):
        return repr(value)
    if isinstance(value, Real):
        short = f"{float(value):.3g}"
        return short if float(short) == value else repr(float(value))
    return str(getattr(value, "__name__", type(value).__name__))


class FromDraws:
    """Defaults for estimators of E[f] that evaluate f once at each of ``samples`` draws of q.

    A subclass adds ``unbiased``, ``supports``, ``differentiates_f``, ``reference``
    and ``__call__``. It overrides what differs.
    """

    samples: int
    validate: bool
    supports: ClassVar[frozenset[Kind]]
    reference: ClassVar[str]
    target: ClassVar[Target] = "expectation"
    many_outputs: ClassVar[bool] = True
    least_samples: ClassVar[int] = 1
    too_few: ClassVar[str] = ""  # what to do instead of drawing fewer, for an error

    __repr__ = label

    def __post_init__(self) -> None:
        self.check_draws("samples", self.samples)

    def check_draws(self, name: str, count: object) -> None:
        """Raise unless a number of draws is large enough."""
        owner, hint = type(self).__name__, self.too_few
        if isinstance(count, float) and hasattr(self, "temperature"):
            hint = f"For a temperature write {owner}(temperature={count})."
        check_count(owner, name, count, self.least_samples, hint=hint)

    @property
    def randomness(self) -> tuple[str, ...]:
        return ("x",)

    def rows(self, q: Distribution) -> int:
        return self.samples

    def evaluations(self, q: Distribution) -> int:
        return self.samples


def attach(
    value: Float[Tensor, "*batch"],
    surrogate: Float[Tensor, "*batch"],
    objective: Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return a tensor with the value of ``value`` and the gradient of ``surrogate``.

    ``objective`` is for estimators that learn: the squared norm of this call's gradient in the
    logits of q, as a function of the estimator's parameters and of nothing else that is
    differentiable. The estimate is unbiased for all parameters, so the gradient of its squared norm
    is a gradient of its variance. If the loss is :math:`\sum_b w_b E_b`, the variance of its
    gradient is :math:`\sum_b w_b^2 \operatorname{Var} g_b`. This is what ``backward``
    differentiates, so the parameters are trained to *lower* it, whatever the sign and scale of the
    loss.

    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> y = attach(torch.tensor(10.0), theta**2)
    >>> y.backward()
    >>> y.item(), theta.grad.item()
    (10.0, 6.0)
    """
    attached = tie(value, surrogate)
    if objective is not None:
        attached = _applied(_Objective, attached, objective)
    return once(attached)


def tie(
    value: Float[Tensor, "*batch"], surrogate: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return a tensor with the value of ``value`` and all derivatives of ``surrogate``."""
    return value.detach() + (surrogate - surrogate.detach())


def likelihood_ratio(log_prob: Tensor) -> Tensor:
    r"""Return :math:`q(x) / q(x)` with the denominator held fixed: 1, with the derivatives of q(x)
    over q(x).

    The first derivative is the score. A mean of f times this ratio has, in expectation, all
    derivatives of E[f].

    Reference: Foerster et al., "DiCE: The infinitely differentiable Monte Carlo estimator", 2018.
    """
    return (log_prob - log_prob.detach()).exp()


def once(estimate: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return ``estimate``, with a gradient that raises an error when it is differentiated again.

    A surrogate has the right first derivative. Its second one is wrong, because it treats the
    weights as constants. Compiled code has no second derivatives anyway.
    """
    return estimate if torch.compiler.is_compiling() else _applied(_Once, estimate)


def _applied(function: type[torch.autograd.Function], *tensors: Tensor) -> Tensor:
    """Apply a function of autograd.

    ``Function.apply`` inspects the signature of ``forward`` at every call, which takes longer than
    all the rest and matters inside torch.func only.
    """
    apply = function.apply
    if not torch.compiler.is_compiling() and not inside_functorch():
        apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    result: Tensor = apply(*tensors)  # type: ignore[no-untyped-call]
    return result


class _Once(torch.autograd.Function):
    """Identity on ``estimate``, whose gradient (or tangent) passes through :class:`_Refused`.

    The estimate is passed along, so that differentiating again in anything behind it is refused.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(estimate: Tensor) -> Tensor:
        return estimate.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if not torch.is_grad_enabled():  # without create_graph there is no second derivative
            return gradient
        return _Refused.apply(gradient, *ctx.saved_tensors)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _Refused.apply(tangent, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Refused(torch.autograd.Function):
    """Identity on ``gradient``, which raises an error when it is differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, estimate: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError(TWICE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(TWICE)


class _Objective(torch.autograd.Function):
    """Identity on ``attached``. In the backward pass, ``objective`` gets the *squared* gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(attached: Tensor, objective: Tensor) -> Tensor:
        return attached.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.square()
