"""Which variables of each draw an estimator looks at."""

import torch
from jaxtyping import Int64
from torch import Tensor

from ..checks import check_count, check_injected
from ..distributions.conditionals import Conditionals
from ..distributions.factors import Factors
from ..tracing import can_inspect
from .randomness import rand


def deal_variables(
    owner: str,
    law: Factors | Conditionals,
    n: int,
    m: int | None,
    chosen: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Int64[Tensor, "n *batch m"]:
    """Return m different variables for each of n draws: ``chosen``, checked, or dealt.

    Every batch element has one shuffled deck of its d variables, dealt in turn. Each variable is as
    likely as any other, and over n draws no two variables' counts differ by more than one.
    """
    hint = "It goes with `chosen`." if m is None else f"q has {law.d} variables."
    check_count(owner, "variables", m, most=law.d, hint=hint)
    assert m is not None
    if chosen is not None:
        return _check_chosen(chosen, n, m, law)
    deck = rand((*law.batch_shape, law.d), device=law.device, generator=generator).argsort(-1)
    turn = torch.arange(n * m, device=deck.device) % law.d
    return deck[..., turn].unflatten(-1, (n, m)).movedim(-2, 0)


def _check_chosen(
    chosen: object, n: int, m: int, law: Factors | Conditionals
) -> Int64[Tensor, "n *batch m"]:
    """Return the chosen variables, or raise unless every draw has m different ones."""
    d, shape = law.d, (n, *law.batch_shape, m)
    index = check_injected("chosen", chosen, shape, "[n, *batch, variables]", law, 1)
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(
            f"chosen must hold the numbers of variables as integers, but {index.dtype} was given."
        )
    if can_inspect(law.validate, index):
        if not bool(((index >= 0) & (index < d)).all()):
            raise ValueError(
                f"chosen must hold numbers from 0 to {d - 1}, since q has {d} variables, but "
                "others were given."
            )
        if bool((index.sort(-1).values.diff(dim=-1) == 0).any()):
            raise ValueError(
                "chosen must hold different variables for every draw, but one was given twice."
            )
    return index.long()
