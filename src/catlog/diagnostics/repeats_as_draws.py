"""Functions that take repeats of an estimate as further draws."""

from collections.abc import Callable

from torch import Tensor
from torch.distributions import Distribution

from ..core.evaluator import Function


class RepeatsAsDraws:
    """f, with the repeats (second dimension) folded into the draws (first dimension).

    Attributes:
        f: The function.
        expectation: Its mean for every repeat, if f knows it.
    """

    expectation: Callable[[Distribution], Tensor] | None = None

    def __init__(self, f: Function) -> None:
        self.f = f

    def __call__(self, x: Tensor) -> Tensor:
        fx = self.f(x.flatten(0, 1))
        if isinstance(fx, Tensor) and fx.shape[:1] == (x.shape[0] * x.shape[1],):
            return fx.unflatten(0, x.shape[:2])
        return fx  # not what the contract asks for: the estimator raises


class TableOfRepeats(RepeatsAsDraws):
    """The same for a function with its own neighbour table."""

    @property
    def table_checked(self) -> bool:
        """Whether f's table was compared with f; kept on f, which outlives this view."""
        return getattr(self.f, "table_checked", False)

    @table_checked.setter
    def table_checked(self, checked: bool) -> None:
        object.__setattr__(self.f, "table_checked", checked)

    def neighbours(self, x: Tensor, variables: Tensor | None = None) -> Tensor:
        chosen = () if variables is None else (variables.flatten(0, 1),)
        table: Tensor = self.f.neighbours(x.flatten(0, 1), *chosen)  # type: ignore[attr-defined]
        return table.unflatten(0, x.shape[:2])
