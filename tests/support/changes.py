"""Changes of f when one variable of a point changes, as estimators get them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from catlog.core.evaluator import Evaluator
from catlog.core.factors import Factors


def changes(
    f: Callable[[Tensor], Tensor], x: Tensor, factors: Factors, *arguments: Any, **options: Any
) -> Tensor:
    """Return ``f(x with x_i = k) - f(x)``, by f's own table if it has one."""
    return Evaluator(f, factors).neighbours(x, f(x), *arguments, **options)
