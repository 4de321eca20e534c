"""What functions with a table of their own share: their tensors, and how they read points and q."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor, nn
from torch.distributions import Distribution

from ..core.categories import one_hots
from ..core.checks import broadcasts, check_is_tensor
from ..core.factors import IndependentFactors
from ..core.ordered import Ordered
from ..core.tracing import can_inspect
from ..core.view import converted, view

Variables = Int64[Tensor, "n *batch m"]


class OwnTable(nn.Module):
    """A function that knows its table, and perhaps its mean."""

    one_hot: bool

    def _check_own(self, method: Literal["neighbours", "expectation"], kind: type) -> None:
        """Raise if this has another forward than ``kind``, but inherits the method from there."""
        inherits = getattr(type(self), method) is getattr(kind, method)
        if inherits and method not in self.__dict__ and (difference := how_it_differs(self, kind)):
            result = "table" if method == "neighbours" else "mean"
            raise TypeError(
                f"{type(self).__name__}: {difference}, but its {result} is that of the original "
                f"forward. Override `{method}` as well, or pass the estimator `lambda x: f(x)`, "
                f"which has no {result} of its own."
            )

    def _one_hots(self, x: Tensor, d: int, k: int) -> Real[Tensor, "*lead d k"]:
        """Return points as one-hot vectors, relaxed ones too, or raise."""
        expected = (d, k) if self.one_hot else (d,)
        if x.shape[-len(expected) :] != expected:
            form = "[..., d, k]" if self.one_hot else "[..., d]"
            raise ValueError(
                f"{type(self).__name__}: x must end in {expected} ({form}), the sizes of f with "
                f"one_hot={self.one_hot}, but its shape is {tuple(x.shape)}."
            )
        if self.one_hot:
            return x
        if not x.is_floating_point():
            self._check_categories(x, k)
            return one_hots(x, k, torch.int64)
        if k != 2:
            raise ValueError(
                f"{type(self).__name__}: x must hold integers, the categories of f with k = {k}, "
                f"but {x.dtype} was given. Floats are bits, or one-hot vectors with one_hot=True."
            )
        return torch.stack([1 - x, x], -1)

    def _check_categories(self, x: Tensor, k: int) -> None:
        """Raise if a category is not below ``k``, where it costs no synchronisation to look."""
        can_look = x.device.type == "cpu" and can_inspect(True, x) and x.numel() > 0
        if can_look and int(x.max()) >= k:
            raise ValueError(
                f"{type(self).__name__}: x must hold categories below {k}, the number of f's "
                f"categories, but it holds {int(x.max())}."
            )

    def _changes(
        self, table: Float[Tensor, "n *batch d k"], x: Tensor, variables: Variables | None
    ) -> Tensor:
        """Return the rows of the given variables, minus their entries of x's own categories."""
        current = x.argmax(-1) if self.one_hot else x.long()
        if variables is not None:
            rows = variables.unsqueeze(-1).expand(variables.shape + table.shape[-1:])
            table, current = table.gather(-2, rows), current.gather(-1, variables)
        return table - table.gather(-1, current.unsqueeze(-1))

    def _independent(self, q: Distribution, d: int | None = None) -> IndependentFactors:
        """Return the view of q, for the mean of a function of d variables (None: of any number).

        Raise NotImplementedError if the variables of q depend on each other: there, the mean is not
        known.
        """
        name = type(self).__name__
        if isinstance(converted(q), Ordered):
            raise NotImplementedError(
                f"{name}: its mean is known for independent variables, but those of "
                f"{type(q).__name__} depend on each other."
            )
        law = view(q)
        assert isinstance(law, IndependentFactors)
        if d not in (None, law.d):
            raise ValueError(
                f"{name}: q must have {d} variables, as f has, but {law.d} variables were given."
            )
        return law

    def _probs(self, q: Distribution, d: int, k: int) -> Float[Tensor, "*batch d k"]:
        """Return the probabilities of independent variables, with zeros up to k categories."""
        law = self._independent(q, d)
        if law.k > k:
            raise ValueError(
                f"{type(self).__name__}: q must have at most {k} categories, as f has, but {law.k} "
                "were given."
            )
        return nn.functional.pad(law.probs, (0, k - law.k)) if law.k < k else law.probs


def hold(module: nn.Module, **tensors: tuple[Tensor, str]) -> None:
    """Register parameters, and other tensors as buffers: ``module.to(device)`` moves them.

    Args:
        module: their owner.
        tensors: under its name, each tensor and its shape, such as "[*batch, d, k]". Equal letters
            are equal sizes.
    """
    owner, fits = type(module).__name__, True
    sizes: dict[str, int] = {}
    for name, (tensor, form) in tensors.items():
        check_is_tensor(owner, name, tensor, form)
        letters = form.removeprefix("[*batch, ").strip("[]").split(", ")
        event = tensor.shape[max(0, tensor.dim() - len(letters)) :] if "*" in form else tensor.shape
        fits &= len(event) == len(letters)
        for letter, size in zip(letters, event, strict=False):
            fits &= sizes.setdefault(letter, size) == size
    if not fits:
        forms = " and ".join(f"`{name}` {form}" for name, (_, form) in tensors.items())
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor, _ in tensors.values())
        raise ValueError(
            f"{owner}: {forms.replace(' ', ' must have shape ', 1)}, but {shapes} "
            f"{'was' if len(tensors) == 1 else 'were'} given."
        )
    for name, (tensor, _) in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor, persistent=False)


def hold_function(
    module: nn.Module, name: str, function: Callable[[Tensor], Tensor] | None
) -> None:
    """Set an attribute to a function; one that is a module is registered as such."""
    if hasattr(function, "parameters"):
        setattr(module, name, function)
    else:  # torch 2.6 cannot trace nn.Module.__setattr__ of a function
        object.__setattr__(module, name, function)


def how_it_differs(module: nn.Module, kind: type[nn.Module]) -> str:
    """Return in words how ``module(x)`` may differ from ``kind.forward``, or an empty string."""
    if type(module).forward is not kind.forward or type(module).__call__ is not nn.Module.__call__:
        return f"{type(module).__name__} overrides forward"
    if "forward" in module.__dict__:
        return f"this {type(module).__name__} was given another forward"
    if module._forward_hooks or module._forward_pre_hooks:
        return (
            f"this {type(module).__name__} has forward hooks (weight_norm and spectral_norm of "
            "torch.nn.utils are hooks, too)"
        )
    return ""


def is_exactly(module: object, kind: type[nn.Module]) -> bool:
    """Return whether ``module`` is a plain ``kind``, to be computed in any way."""
    # First by attribute: torch 2.6 cannot trace the type of a lambda.
    return hasattr(module, "forward") and type(module) is kind and not how_it_differs(module, kind)


def check_batch(
    owner: nn.Module, name: str, values: Tensor, event_dims: int, lead: tuple[int, ...]
) -> None:
    """Raise unless the batch of ``values`` broadcasts to that of points with ``lead`` [n, *batch].

    Without this check, a batch as large as n would pair one element with each draw.

    Args:
        owner: the function or head that holds the values.
        name: the argument.
        values: ``[*batch, *event]``.
        event_dims: how many of its last dimensions are no batch.
        lead: the first sizes of the points.
    """
    given, batch = tuple(values.shape[: values.dim() - event_dims]), tuple(lead[1:])
    if not broadcasts(given, batch):
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must have a batch that broadcasts to that of q, "
            f"{batch}, but its shape is {tuple(values.shape)}, with the batch {given}. Points have "
            f"the sizes [n, *batch], here {tuple(lead)}. Give q the batch {given}, for example by "
            f"parameters expanded to it, or pass `{name}` of one batch element."
        )
