"""Estimators by name: a class of the registry, or a label of the paper such as RLOO-F."""

import ast
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from catlog import Estimator, GumbelSoftmax
from catlog.estimators import ESTIMATORS

from .settings import Labels, Settings


def make_estimator(
    name: str, samples: int | None, options: tuple[str, ...], labels: Labels
) -> Estimator:
    """Return the estimator ``name`` (one of ``labels``, or a class) with ``options``.

    >>> labels = {"IndeCateR-D": ESTIMATORS["IndeCateR"](10, per_variable=True)}
    >>> make_estimator("IndeCateR-D", 3, ("sampling=latin",), labels)
    IndeCateR(3, per_variable=True, sampling='latin')
    """
    known = sorted({*labels, *ESTIMATORS})
    if name not in known:
        similar = get_close_matches(name, known, n=1)
        advice = f"Did you mean {similar[0]}?" if similar else f"Use one of {', '.join(known)}."
        raise ValueError(f"--estimator: {name!r} is not known. {advice}")
    settings: dict[str, Any] = {} if samples is None else {"samples": samples}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--options: {option!r} must have the form name=value.")
        settings[key] = parse_literal(value)
    base = labels.get(name)
    cls = ESTIMATORS[name] if base is None else type(base)
    return cls(**settings) if base is None else replace(base, **settings)  # type: ignore[type-var]


def chosen_estimator(config: Settings, device: torch.device | str = "cpu") -> Estimator:
    """Return the estimator of a configuration on its device; raise if it does not fit."""
    E = make_estimator(config.estimator, config.samples, config.options, config.methods)
    name, kinds = type(E).__name__, set(config.kinds)
    if getattr(config, "categories", 2) > 2:
        kinds.discard("bits")
    if E.target == "bound":
        raise ValueError(f"--estimator: {name} bounds a likelihood by log-weights. Use another.")
    if not kinds & E.supports:
        raise ValueError(
            f"--estimator: {name} is for variables of the kinds {', '.join(sorted(E.supports))}, "
            f"but those of {config.name} are {', '.join(sorted(kinds))} here. Use another, such as "
            "RLOO."
        )
    return E.to(device) if isinstance(E, nn.Module) else E


def with_temperature(
    E: Estimator, default: float, device: torch.device
) -> tuple[Estimator, Tensor]:
    """Return the estimator and its temperature, a tensor that a captured step reads.

    Only Gumbel-Softmax has one; for other estimators it is ``default``.
    """
    temperature = torch.tensor(default, device=device)
    if isinstance(E, GumbelSoftmax):
        temperature.fill_(float(E.temperature))
        E = replace(E, temperature=temperature)
    return E, temperature


def parse_literal(value: str) -> Any:
    """Return the Python literal that ``value`` is, else ``value`` itself."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value


def takes_one_hot(E: Estimator) -> bool:
    """Return True if E needs one-hot points: to relax them, or since it takes no numbers."""
    return "one-hot" in E.supports and (E.differentiates_f or "index" not in E.supports)


def law_for(E: Estimator, logits: Float[Tensor, "*batch d k"]) -> Distribution:
    """Return independent variables as E supports them: category numbers, one-hot or bits."""
    if takes_one_hot(E):
        base: Distribution = OneHotCategorical(logits=logits, validate_args=False)
    elif "index" in E.supports and not E.differentiates_f:
        base = Categorical(logits=logits, validate_args=False)
    else:
        base = Bernoulli(logits=logits[..., 1] - logits[..., 0], validate_args=False)
    return Independent(base, 1)


class OnNumbers(nn.Module):
    """A function of category numbers, called with one-hot points, which may be relaxed.

    The published code gives relaxations this function.
    """

    def __init__(self, f: Callable[[Tensor], Tensor], categories: int) -> None:
        super().__init__()
        self.f = f
        self.categories = categories

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x @ torch.arange(self.categories, dtype=x.dtype, device=x.device))
