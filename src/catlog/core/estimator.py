"""The contract of every estimator, and the one place where it is called."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from inspect import signature
from math import prod
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_type_hints,
)

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.distributions import Distribution

from .categories import Kind
from .checks import check_count, check_module_device, refusal
from .evaluator import Evaluator, Function
from .factors import Factors
from .left_alone import left_alone
from .randomness import Randomness
from .settings import Learned, check_setting, label
from .tracing import in_inference_mode, inside_functorch, is_transformed
from .view import view

if TYPE_CHECKING:  # `Estimator` alone is one of any factors; Python has defaults from 3.13 on
    from typing_extensions import TypeVar as TypeVarWithDefault

    Q = TypeVarWithDefault("Q", bound=Factors, default=Any)
else:
    Q = TypeVar("Q", bound=Factors)

TWICE = (
    "E(f, q): this estimate has an unbiased first derivative, but not a second one. For second "
    "derivatives (create_graph=True, hessian) use Reinforce, RLOO or, where q has few points, "
    "Exact."
)

NOISE = "`{}` is part of `noise`: all that is drawn besides points, in that order."
RENAMED = {
    "draws": "`draws` is called `sampling`.",
    "validate": "Give `validate_args=False` to q.",
    "tau": "tau is called `temperature`.",
    "chosen": NOISE.format("chosen"),
    "start": NOISE.format("start"),
}


class Estimate(NamedTuple):
    r"""What an estimator returns.

    Attributes:
        value: of the estimate, ``[*batch]``.
        surrogate: whose derivative is that of the estimate.
        objective: of an estimator that learns by ``backward``: the squared norm of this call's
            gradient in the logits of q, as a function of the estimator's parameters and of nothing
            else that is differentiable. The estimate is unbiased for all parameters, so the
            gradient of its squared norm is one of its variance. If the loss is
            :math:`\sum_b w_b E_b`, the variance of its gradient is
            :math:`\sum_b w_b^2 \operatorname{Var} g_b`. That is what ``backward`` differentiates,
            so the parameters are trained to *lower* it, whatever the sign and scale of the loss.
    """

    value: Float[Tensor, "*batch"]
    surrogate: Float[Tensor, "*batch"]
    objective: Float[Tensor, "*batch"] | None = None


@dataclass_transform(frozen_default=True)
class Estimator(Generic[Q]):
    r"""An expectation operator: ``E(f, q)`` estimates :math:`\mathbb{E}_{x\sim q}[f(x)]`.

    - ``q``: a distribution with ``batch_shape = [*batch]`` (separate expectations) and
      ``event_shape = [*event]`` (the random vector).
    - ``f``: called with points ``[n, *batch, *event]``, in the format of ``q.sample()``; returns
      floats (or bools, for indicators) ``[n, *batch]``; those of 16 bits are widened to float32. f
      may be a black box unless ``differentiates_f``, and it may have parameters. What else it may
      offer (a table, its mean) is in :mod:`catlog.core.abilities`.

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

    **A method of your own** is a subclass ``class Mine(Estimator[IndependentFactors])``. The type
    in brackets says which factors ``estimate`` takes. It is a frozen dataclass of its settings,
    which are annotated class attributes and checked by their annotations. It defines one method,
    :meth:`estimate`. All that methods have in common (reading q, checking f's values, chunks, the
    generator, second derivatives) is done around it. One that learns derives from :class:`Learner`.

    Attributes:
        accepts: the kinds of distribution that q may be, from the type in brackets.
        supports: the same, unless only some distributions of a kind can be taken.
        target: "expectation", or "bound" for VIMCO, which estimates the importance-weighted bound
            of its draws instead of E[f].
        is_exact: whether it is E[f] itself, which a mean that f knows can replace.
        unbiased: whether value and gradient are right in expectation, with the present settings.
        twice: whether second derivatives are right, too, or are meant as they are; else they raise.
        differentiates_f: whether the derivative of f in its input is used.
        many_outputs: whether f may have output dimensions, which needs an estimate that is linear
            in f; ``why_one_output`` says why not.
        least_samples: the fewest draws that the method works with; ``too_few`` says what to use
            instead of fewer.
        instead: what to use for other kinds of distribution, for an error.
    """

    accepts: ClassVar[frozenset[Kind]]
    supports: ClassVar[frozenset[Kind]]
    target: ClassVar[Literal["expectation", "bound"]] = "expectation"
    is_exact: ClassVar[bool] = False
    twice: ClassVar[bool] = False
    many_outputs: ClassVar[bool] = True
    why_one_output: ClassVar[str] = ""
    least_samples: ClassVar[int] = 1
    too_few: ClassVar[str] = ""
    instead: ClassVar[str] = ""

    __repr__ = label

    def __init_subclass__(cls, frozen: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            factors = get_args(base)
            if factors and not isinstance(factors[0], TypeVar):
                classes = get_args(factors[0]) or factors[:1]  # of a union, or one
                cls.accepts = frozenset().union(*(factors.kinds for factors in classes))
                if "supports" not in cls.__dict__:
                    cls.supports = cls.accepts
        is_module = issubclass(cls, nn.Module)  # which changes, and is equal to itself alone
        dataclass(frozen=frozen and not is_module, eq=not is_module, repr=False)(cls)
        for field in fields(cls) if is_module else ():  # type: ignore[arg-type]
            if field.name in cls.__dict__:  # a default there would hide a network of an instance
                delattr(cls, field.name)

    def __post_init__(self) -> None:
        self.check_settings({field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def differentiates_f(self) -> bool:
        return False

    def check_settings(self, settings: dict[str, object]) -> None:
        """Raise unless all settings are what their annotations say."""
        if torch.compiler.is_compiling():  # which cannot trace annotations
            return
        owner, kinds = type(self).__name__, _annotations(type(self))
        for name, value in settings.items():
            if name == "samples":
                hint = self.too_few
                if isinstance(value, float) and hasattr(self, "temperature"):
                    hint = f"For a temperature write {owner}(temperature={value})."
                check_count(owner, name, value, self.least_samples, hint=hint)
            check_setting(owner, name, value, kinds[name])

    def estimate(self, f: Evaluator, q: Q, draw: Randomness) -> Estimate:
        """Return the value of the estimate, and a surrogate that has its gradient.

        Args:
            f: ``f(x)`` evaluates the function; see :class:`~catlog.core.evaluator.Evaluator`.
            q: the factors of the distribution.
            draw: ``draw.points(n)`` draws from q; see
                :class:`~catlog.core.randomness.Randomness`.
        """
        raise NotImplementedError

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | tuple[Tensor, ...] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch_outputs"]:
        """Return the estimate, ``[*batch]`` or ``[*batch, *outputs]``.

        Args:
            f: the function.
            q: the distribution.
            x: points to use instead of drawing them, ``[n, *batch, *event]``: replay, common random
                numbers, exact tests.
            noise: what to use instead of all else that is drawn, in that order.
            outputs: the number of trailing output dimensions of f. With ``outputs=1``, f returns
                ``[n, *batch, m]`` and the result is ``[*batch, m]``, an expectation per output. All
                outputs share the draws, and each has the value and gradient that a separate call
                would give.
            generator: the source of randomness; torch's global one if None.
            options: what a method takes besides; see its class.
        """
        owner = type(self).__name__
        if options:
            _check_options(owner, self.estimate, options)
        if outputs and not self.many_outputs:
            _refuse_outputs(owner, self.why_one_output)
        factors = view(q, outputs, self.accepts, owner, self.instead)
        if isinstance(self, nn.Module):
            check_module_device(self, factors.device)
        draw = Randomness(factors, x, noise, generator, owner, self.least_samples, self.too_few)
        evaluator = Evaluator(f, factors, getattr(self, "chunk_size", None))
        estimate = self.estimate(evaluator, factors, draw, **options)  # type: ignore[arg-type]
        if x is not None or noise is not None:
            draw.check_used()
        return attached(estimate, self.twice)

    def evaluations(self, q: Distribution) -> int:
        """Return how often a call evaluates f per batch element, by counting in a call."""
        count = 0

        def zero(x: Tensor) -> Tensor:
            nonlocal count
            count += len(x)
            lead = x.shape[: x.dim() - len(factors.event_shape)]
            return (x.to(factors.real) * 0).reshape(*lead, prod(factors.event_shape)).sum(-1)

        factors = view(q, 0, self.accepts, type(self).__name__, self.instead)
        # In inference mode nothing is learned.
        with nullcontext() if in_inference_mode() else left_alone(self):
            self(zero, q, generator=torch.Generator(factors.device))
        return count


@dataclass_transform(eq_default=False)
class Learner(Estimator[Q], nn.Module, frozen=False):
    """An estimator that learns: an ``nn.Module``.

    Its settings are annotated class attributes, too. A number of the type ``Learned`` becomes a
    parameter that starts there. Other parameters, buffers and modules of its own are made in
    ``__post_init__``, after ``super().__post_init__()``.

    One with parameters returns an ``objective``, and ``backward`` fills their ``grad``. Give
    ``E.parameters()`` to a separate optimiser. One with buffers updates them by
    :func:`catlog.core.learning.write`, in training mode.
    """

    def __new__(cls, *settings: Any, **named: Any) -> Any:  # beartype does not take Self
        learner = super().__new__(cls)
        nn.Module.__init__(learner)  # before the settings: a network is one
        return learner

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in _annotations(type(self)).items():
            if kind == Learned:
                start = torch.as_tensor(getattr(self, name)).detach()
                setattr(self, name, nn.Parameter(torch.tensor(float(start))))

    forward = Estimator.__call__
    __call__ = cast(Callable[..., Tensor], nn.Module.__call__)


def _annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the settings of a class; of a module, those of ``__init__``."""
    found = cls.__dict__.get("_kinds")
    if found is None:
        source = cls.__init__ if issubclass(cls, nn.Module) else cls
        found = get_type_hints(source, include_extras=True)
        type.__setattr__(cls, "_kinds", found)
    return found


def _check_options(owner: str, estimate: Callable[..., Estimate], options: dict[str, Any]) -> None:
    """Raise if a method does not take an argument of its call."""
    own = list(signature(estimate).parameters)[3:]
    for name in options:
        if name not in own:
            names = ", ".join(["f", "q", "x", "noise", "outputs", "generator", *own])
            message = f"{owner}: a call takes {names}, but `{name}` was given."
            raise TypeError(f"{message} {RENAMED.get(name, '')}".rstrip())


def _refuse_outputs(owner: str, reason: str) -> None:
    raise ValueError(
        f"outputs: {owner} takes functions with one output per point, because {reason}. Use "
        "an estimator whose `many_outputs` is True, such as IndeCateR or RLOO, or one call per "
        "output."
    )


def attached(estimate: Estimate, twice: bool = False) -> Float[Tensor, "*batch"]:
    """Return a tensor with the value of an estimate and the gradient of its surrogate."""
    value, surrogate, objective = estimate
    if objective is not None:
        surrogate = _applied(_Objective, surrogate, objective)
        value = value.detach()
    if not twice:
        return once(surrogate, value)
    return surrogate if value is surrogate else tie(value, surrogate)


def tie(
    value: Float[Tensor, "*batch"], surrogate: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return a tensor with the value of ``value`` and all derivatives of ``surrogate``."""
    return value.detach() + (surrogate - surrogate.detach())


def once(
    surrogate: Float[Tensor, "*batch"], value: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return ``value``, with a gradient that raises an error when it is differentiated again.

    A surrogate has the right first derivative. Its second one is wrong, because it treats the
    weights as constants. Compiled code has no second derivatives anyway. A hook takes a fifth of
    the time of a function of autograd, but only the latter is seen by transforms.
    """
    if torch.compiler.is_compiling():
        return surrogate if value is surrogate else tie(value, surrogate)
    if is_transformed() or forward_ad._current_level >= 0:
        return _applied(_Once, surrogate, value.detach())
    result = surrogate.clone() if value is surrogate else tie(value, surrogate)
    if result.grad_fn is not None:
        # The hook holds the surrogate, not the result, which holds the hook.
        result.grad_fn.register_prehook(lambda gradients: _refused(gradients, surrogate))
    return result


def _refused(gradients: tuple[Tensor, ...], surrogate: Tensor) -> tuple[Tensor, ...] | None:
    """Return gradients that raise an error when they, or anything behind the surrogate, are
    differentiated; None without create_graph, where there is no second derivative."""
    if not torch.is_grad_enabled():
        return None
    return (_Refused.apply(*gradients, surrogate),)  # type: ignore[no-untyped-call]


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


class _Identity(torch.autograd.Function):
    """Identity on the first tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first: Tensor, *rest: Tensor) -> Tensor:
        return first.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass


class _Once(_Identity):
    """A value whose gradient (or tangent) is that of a surrogate, through :class:`_Refused`.

    The surrogate is passed along, so that differentiating again in anything behind it is refused.
    """

    @staticmethod
    def forward(first: Tensor, *rest: Tensor) -> Tensor:
        return rest[0].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (_refused((gradient,), *ctx.saved_tensors) or (gradient,))[0], None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, of_value: Tensor) -> Tensor:
        return _Refused.apply(tangent, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Refused(_Identity):
    """Identity on a gradient, which raises an error when it is differentiated."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError(TWICE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(TWICE)


class _Objective(_Identity):
    """Identity on an estimate. In the backward pass, the objective gets the *squared* gradient."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.square()


def check_estimator(subject: str, value: object, remedy: str = "") -> None:
    """Raise unless ``value`` is an estimator, not a class of them."""
    if not isinstance(value, Estimator):
        claim, but = "be an estimator such as RLOO(4)", f"{value!r} was given"
        raise refusal(subject, claim, but, remedy, TypeError)
