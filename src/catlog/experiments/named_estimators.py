"""From a name on the command line to an estimator: a class of the registry, or a label of the paper such as RLOO-F."""

import ast
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from ..estimator import Estimator, Kind
from ..estimators import ESTIMATORS
from .settings import Settings

# label -> the registry's name and its settings
Labels = Mapping[str, tuple[str, dict[str, Any]]]


def make_estimator(
    name: str, samples: int | None, options: tuple[str, ...], labels: Labels
) -> Estimator:
    """The estimator called ``name`` (a label of this experiment, or a class), with ``options`` such as ``draws=latin``.

    >>> make_estimator("IndeCateR-D", 3, ("draws=latin",), {"IndeCateR-D": ("IndeCateR", {"per_variable": True})})
    IndeCateR(3, per_variable=True, draws=latin)
    """
    check_known(name, labels)
    listed, settings = labels.get(name, (name, {}))
    cls = ESTIMATORS[listed]
    fields = signature(cls).parameters
    given: dict[str, Any] = dict(settings)
    if samples is not None:
        given["samples"] = samples
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--options: {option!r} must have the form name=value.")
        given[key] = parsed(value)
    unknown = [key for key in given if key not in fields]
    if unknown:
        raise ValueError(
            f"{listed} has no setting {', '.join(unknown)}. It has {', '.join(fields)}."
        )
    return cls(**given)


def check_known(name: str, labels: Labels) -> None:
    """Raise unless ``name`` is that of an estimator here."""
    if name not in labels and name not in ESTIMATORS:
        known = sorted({*labels, *ESTIMATORS})
        raise ValueError(f"--estimator: {name!r} is not known. Give one of {', '.join(known)}.")


def chosen_estimator(
    config: Settings,
    labels: Labels,
    device: torch.device,
    *,
    samples: int | None = None,
    bounds: bool = False,
) -> Estimator:
    """The estimator that a configuration asks for, on its device; ``bounds``: also one that bounds a likelihood instead."""
    E = make_estimator(config.estimator, samples or config.samples, config.options, labels)
    if E.target == "bound" and not bounds:
        raise ValueError(
            f"--estimator: {type(E).__name__} bounds a likelihood by log-weights; here is none. Use it with `catlog run dvae`."
        )
    return E.to(device) if isinstance(E, nn.Module) else E


def parsed(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def own_parameters(E: Estimator) -> list[nn.Parameter]:
    """What an estimator that learns wants trained."""
    return list(E.parameters()) if isinstance(E, nn.Module) else []


def own_state(E: Estimator) -> dict[str, Any]:
    return E.state_dict() if isinstance(E, nn.Module) else {}


def load_own_state(E: Estimator, state: dict[str, Any]) -> None:
    if isinstance(E, nn.Module):
        E.load_state_dict(state)


class Learner:
    """An estimator outside of a model's training, with an optimiser for what it learns itself, where it does."""

    def __init__(self, E: Estimator) -> None:
        self.E, self.own = E, own_parameters(E)
        self.optimiser = torch.optim.Adam(self.own, 1e-2) if self.own else None

    def gradient(self, value: Tensor, logits: Tensor) -> Tensor:
        """That of ``value`` in ``logits``; the estimator's own parameters get theirs."""
        gradient, *others = torch.autograd.grad(value, [logits, *self.own], allow_unused=True)
        for parameter, its in zip(self.own, others, strict=True):
            parameter.grad = its
        return gradient

    def step(self) -> None:
        if self.optimiser is not None:
            self.optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "estimator": own_state(self.E),
            "optimiser": self.optimiser.state_dict() if self.optimiser else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_own_state(self.E, state["estimator"])
        if self.optimiser is not None:
            self.optimiser.load_state_dict(state["optimiser"])


def takes_one_hot(E: Estimator) -> bool:
    """Whether E wants points as one-hot vectors: to relax them, or because it takes no numbers."""
    return Kind.ONE_HOT in E.supports and (E.differentiates_f or Kind.INDEX not in E.supports)


def law_for(E: Estimator, logits: Float[Tensor, "*batch d k"]) -> Distribution:
    """Independent variables with these logits, as E can take them: numbers, one-hot vectors, or bits."""
    if takes_one_hot(E):
        base: Distribution = OneHotCategorical(logits=logits, validate_args=False)
    elif Kind.INDEX in E.supports and not E.differentiates_f:
        base = Categorical(logits=logits, validate_args=False)
    elif logits.shape[-1] == 2:
        base = Bernoulli(logits=logits[..., 1] - logits[..., 0], validate_args=False)
    else:
        raise ValueError(
            f"--estimator: {type(E).__name__} is for bits, but there are {logits.shape[-1]} categories here."
        )
    return Independent(base, 1)


class OnNumbers(nn.Module):
    """A function of category numbers, read from one-hot points, also relaxed ones: what relaxations see in the published code."""

    def __init__(self, f: Callable[[Tensor], Tensor], categories: int) -> None:
        super().__init__()
        self.f, self.categories = f, categories

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x @ torch.arange(self.categories, dtype=x.dtype, device=x.device))
