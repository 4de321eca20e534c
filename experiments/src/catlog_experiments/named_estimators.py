"""Estimators by name: a class of the registry, or a label of the paper such as RLOO-F."""

import ast
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from catlog import Estimator, GumbelSoftmax
from catlog.estimators import ESTIMATORS

from .settings import Labels, Settings, did_you_mean


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
        advice = did_you_mean(name, known) or f" Use one of {', '.join(known)}."
        raise ValueError(f"--estimator: {name!r} is not known.{advice}")
    settings: dict[str, Any] = {} if samples is None else {"samples": samples}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--options: {option!r} must have the form name=value.")
        settings[key] = parse_literal(value)
    base = labels.get(name)
    cls = ESTIMATORS[name] if base is None else type(base)
    parameters = signature(cls).parameters
    for key in settings:
        if key not in parameters:
            raise ValueError(
                f"{cls.__name__} has no setting {key}.{did_you_mean(key, parameters)} "
                f"It has {', '.join(parameters)}."
            )
    return cls(**settings) if base is None else replace(base, **settings)  # type: ignore[type-var]


def chosen_estimator(config: Settings, device: torch.device | str = "cpu") -> Estimator:
    """Return the estimator of a configuration on its device; raise if it does not fit."""
    E = make_estimator(config.estimator, config.samples, config.options, config.methods)
    name, categories = type(E).__name__, getattr(config, "categories", config.category_count)
    misfits = {
        "bounds a likelihood by log-weights, and this experiment has no likelihood. Use it with "
        "`catlog run dvae`.": E.target == "bound" and not config.has_likelihood,
        f"needs the derivative of f, which is zero everywhere in {config.name}. Use a black-box "
        "estimator such as RLOO.": E.differentiates_f and not config.has_derivative,
        f"is for bits, but there are {categories} categories here.": E.supports == {"bits"}
        and categories > 2,
    }
    for misfit, applies in misfits.items():
        if applies:
            raise ValueError(f"--estimator: {name} {misfit}")
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
