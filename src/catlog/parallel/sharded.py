"""One estimate across ranks: every rank evaluates its share of the points, and all get all values."""

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..estimator import Function

COMPARED = (
    2**15
)  # numbers of a call that ranks compare, about: draws that differ do so in half of them
Group = (
    Any  # torch.distributed.ProcessGroup, which a build of torch without distributed does not have
)


class Sharded:
    r"""f with its points divided among the ranks of a process group.

    ``E(Sharded(f), q)`` is ``E(f, q)``, to the last bit where f's value at a point does not depend on how many points it is
    given at once, with every rank evaluating one part in ``ranks`` of each call: of the rows of a neighbour table, of SCateR's
    clamped points, of the draws of any other estimator. Where f has its own table (``f.neighbours``), draws or, if that
    divides better, variables are shared out.

    All ranks of the group must make the same calls with the same points: give each a ``generator`` of the same seed (or the
    same ``x``) and the same q. Then

    - values, and gradients in q's parameters, are complete and equal on every rank;
    - gradients in f's *own* parameters are those of a rank's rows times the number of ranks, so that their **mean over the
      ranks** is the gradient. DDP takes that mean, and so does ``compiled_step(..., group=group)``; it leaves the gradients in
      q's parameters as they are. This also holds where DDP's group is larger and consists of several such groups with data of
      their own.

    Cost: ceil(rows / ranks) evaluations per rank and call of f; one all-gather of the values and, with ``check``, one of three
    integers. At most ranks - 1 points per call are evaluated in vain (the last one, repeated: equal shapes everywhere).
    Needs: ``torch.distributed`` (without a process group, or with one rank, it is f itself), eager mode.

    Args:
        f: as an estimator takes it.
        group: the process group; None: all ranks.
        check: compare the points among ranks (of large calls, some 30,000 of their numbers), and tell all ranks where f fails
            on one. Costs a synchronisation on a GPU.

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3, requires_grad=True)), 1)
    >>> x = torch.tensor([[1.0, 0.0, 1.0]])
    >>> from catlog import IndeCateR
    >>> IndeCateR()(Sharded(lambda x: x.sum(-1)), q, x=x).item()  # under torchrun: each rank evaluates a part of the four points
    1.8333333730697632
    """

    def __init__(self, f: Function, group: Group = None, check: bool = True) -> None:
        self.f, self.group, self.check = f, group, check

    @property
    def ranks(self) -> int:
        """How many ranks share the work."""
        return (
            dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1
        )

    @property
    def neighbours(self) -> Callable[..., Tensor] | None:
        """f's own table, shared out; None where f has none."""
        return self._neighbours if getattr(self.f, "neighbours", None) is not None else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.ranks == 1:
            return self.f(x)
        return self._shared(lambda: self.f(_Split.apply(x, self.group)), x, len(x))  # type: ignore[no-untyped-call]

    def _neighbours(self, x: Tensor, variables: Tensor | None = None) -> Tensor:
        table = self.f.neighbours  # type: ignore[attr-defined]
        if self.ranks == 1:
            return table(x) if variables is None else table(x, variables)
        one_hot = getattr(self.f, "one_hot", False)
        lead = x.dim() - getattr(self.f, "event_dims", 2 if one_hot else 1)
        d = prod(x.shape[lead : x.dim() - one_hot])
        n, slots = len(x), d if variables is None else variables.shape[-1]
        if ceil(n / self.ranks) * slots <= n * ceil(slots / self.ranks):
            mine = own_rows(n, self.group, x.device)
            some = () if variables is None else (variables[mine],)
            return self._shared(lambda: table(x[mine], *some), x, n)
        mine = own_rows(slots, self.group, x.device)
        if variables is None:
            variables = torch.arange(d, device=x.device).expand(*x.shape[:lead], d)
        return self._shared(
            lambda: table(x, variables[..., mine]).movedim(-2, 0), x, slots
        ).movedim(0, -2)

    def _shared(self, evaluate: Callable[[], Tensor], x: Tensor, rows: int) -> Tensor:
        """The values of all ranks, in order, where ``evaluate`` gives this rank's."""
        own, error = None, None
        try:
            own = evaluate()
        except Exception as raised:
            error = raised
        if self.check:
            self._compare(x, error)
        if error is not None:
            raise error
        assert own is not None
        if not isinstance(own, Tensor) or own.dim() == 0 or len(own) != ceil(rows / self.ranks):
            return own  # not what the contract asks for: the caller says so
        if own.dtype == torch.bool:
            return _gathered(own.view(torch.uint8), rows, self.group).bool()
        return _Join.apply(own, rows, self.group)  # type: ignore[no-untyped-call]

    def _compare(self, x: Tensor, error: Exception | None) -> None:
        points = x.detach().flatten()[:: max(1, x.numel() // COMPARED)].round().long()
        key = (
            torch.arange(1, points.numel() + 1, device=x.device) * 0x5851F42D4C957F2D
        )  # wraps around: exact in any order
        own = torch.stack(
            [key.new_tensor(error is not None), key.new_tensor(x.numel()), (points * key).sum()]
        )
        every = _gathered(own.unsqueeze(0), self.ranks, self.group)
        failed = every[:, 0].nonzero().flatten().tolist()
        if failed and error is None:
            raise RuntimeError(
                f"Sharded: f failed on rank {failed[0]} of the group; the error is told there."
            )
        if not failed and bool((every != every[0]).any()):
            raise RuntimeError(
                "Sharded: the ranks of a group must evaluate f at the same points, but their points differ. Give the estimator a "
                "generator of the same seed (or the same x) on all of them, and the same q."
            )


def own_rows(rows: int, group: Group, device: torch.device) -> Tensor:
    """Which rows this rank evaluates: equally many everywhere, the last row repeated where they do not divide."""
    share = ceil(rows / dist.get_world_size(group))
    return (torch.arange(share, device=device) + dist.get_rank(group) * share).clamp(max=rows - 1)


def _gathered(own: Tensor, rows: int, group: Group) -> Tensor:
    every = own.new_empty((dist.get_world_size(group) * len(own), *own.shape[1:]))
    newer = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
    (newer or dist.all_gather_into_tensor)(every, own.detach().contiguous(), group=group)
    return every[:rows]


class _Split(torch.autograd.Function):
    """This rank's rows; backward, the mean over ranks' scaling is undone and every rank gets the gradient of all rows."""

    @staticmethod
    def forward(x: Tensor, group: Group) -> Tensor:
        return x[own_rows(len(x), group, x.device)]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Group], output: Tensor) -> None:
        ctx.rows, ctx.group = len(inputs[0]), inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        every: Tensor = _Join.apply(gradient, ctx.rows, ctx.group)  # type: ignore[no-untyped-call]
        return every / dist.get_world_size(ctx.group), None


class _Join(torch.autograd.Function):
    """The rows of all ranks; backward, a rank's own rows times the number of ranks, zero at repeated ones."""

    @staticmethod
    def forward(own: Tensor, rows: int, group: Group) -> Tensor:
        return _gathered(own, rows, group)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, Group], output: Tensor) -> None:
        ctx.share, ctx.group = len(inputs[0]), inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ranks = dist.get_world_size(ctx.group)
        missing = ctx.share * ranks - len(gradient)
        if missing:
            gradient = torch.cat([gradient, gradient.new_zeros((missing, *gradient.shape[1:]))])
        own: Tensor = _Split.apply(gradient, ctx.group)  # type: ignore[no-untyped-call]
        return own * ranks, None, None
