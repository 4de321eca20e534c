"""One estimate across ranks: every rank evaluates a part of the points and gets all values."""

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.evaluator import Function

# About how many numbers of a call ranks compare. Draws that differ do so in half of them.
COMPARED = 2**15
Group = Any  # torch.distributed.ProcessGroup, which builds of torch without distributed lack


class Sharded:
    r"""f with its points divided among the ranks of a process group.

    ``E(Sharded(f), q)`` is ``E(f, q)``, to the last bit if f's value at a point does not depend on
    the number of points in a call. Every rank evaluates its part of each call: of the rows of a
    neighbour table, of SCateR's interventions, of the draws of any other estimator. If f has its
    own neighbour table (``f.neighbours``), draws or, if that divides better, variables are divided.

    All ranks of the group must make the same calls with the same points: give each a ``generator``
    of the same seed (or the same ``x``) and the same q. Then

    - values, and gradients in q's parameters, are complete and equal on every rank;
    - gradients in f's parameters are those of a rank's rows times the number of ranks, so that
      their **mean over the ranks** is the gradient. DDP takes that mean, and so does
      ``compiled_step(..., group=group)``; it leaves the gradients in q's parameters as they are.
      This also holds if DDP's group is larger and consists of several such groups with different
      data.

    Cost: ceil(rows / ranks) evaluations per rank and call of f; one all-gather of the values and,
    with ``check``, one of three integers. At most ranks - 1 evaluations per call are not used: the
    last point is repeated, so that shapes are equal on all ranks.
    Needs: ``torch.distributed`` (without a process group, or with one rank, it is f itself), eager
    mode.

    Args:
        f: The function, as an estimator takes it.
        group: The process group; None: all ranks.
        check: Compare the points among ranks (about 30,000 numbers of a large call), and raise an
            error on all ranks if f fails on one. Costs a synchronisation on a GPU.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR
    >>> q = Independent(Bernoulli(logits=torch.zeros(3, requires_grad=True)), 1)
    >>> f = Sharded(lambda x: x.sum(-1))  # under torchrun, a rank evaluates a part of four points
    >>> IndeCateR()(f, q, x=torch.tensor([[1.0, 0.0, 1.0]])).item()
    1.8333333730697632
    """

    def __init__(self, f: Function, group: Group = None, check: bool = True) -> None:
        self.f = f
        self.group = group
        self.check = check

    @property
    def ranks(self) -> int:
        """The number of ranks that share the work."""
        is_distributed = dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self.group) if is_distributed else 1

    @property
    def neighbours(self) -> Callable[..., Tensor] | None:
        """f's own neighbour table, divided among the ranks; None if f has none."""
        return self._neighbours if getattr(self.f, "neighbours", None) is not None else None

    @property
    def touches(self) -> Tensor | None:
        """Which variables matter most for which outputs, if f says so."""
        return getattr(self.f, "touches", None)

    def __call__(self, x: Tensor) -> Tensor:
        if self.ranks == 1:
            return self.f(x)
        return self._gather(lambda: self.f(exchange(x, 0, self.group)), x, len(x))

    def _neighbours(self, x: Tensor, variables: Tensor | None = None) -> Tensor:
        table = self.f.neighbours  # type: ignore[attr-defined]
        if self.ranks == 1:
            return table(x) if variables is None else table(x, variables)
        one_hot = getattr(self.f, "one_hot", False)
        lead = x.dim() - getattr(self.f, "event_dims", 2 if one_hot else 1)
        d = prod(x.shape[lead : x.dim() - one_hot])
        n = len(x)
        slots = d if variables is None else variables.shape[-1]
        if ceil(n / self.ranks) * slots <= n * ceil(slots / self.ranks):
            share = rows_of_rank(n, self.group, x.device)
            chosen = () if variables is None else (variables[share],)
            return self._gather(lambda: table(x[share], *chosen), x, n)
        share = rows_of_rank(slots, self.group, x.device)
        if variables is None:
            variables = torch.arange(d, device=x.device).expand(*x.shape[:lead], d)
        values = self._gather(lambda: table(x, variables[..., share]).movedim(lead, 0), x, slots)
        return values.movedim(0, lead)

    def _gather(self, evaluate: Callable[[], Tensor], x: Tensor, rows: int) -> Tensor:
        """Return the values of all ranks, in order; ``evaluate`` returns those of this rank."""
        values, error = None, None
        try:
            values = evaluate()
        except Exception as raised:
            error = raised
        if self.check:
            self._check_ranks(x, error)
        if error is not None:
            raise error
        assert values is not None
        is_tensor = isinstance(values, Tensor) and values.dim() > 0
        if not is_tensor or len(values) != ceil(rows / self.ranks):
            return values  # not what the contract asks for: the caller raises
        if values.dtype == torch.bool:
            return _gathered(values.view(torch.uint8), rows, self.group).bool()
        return exchange(values, rows, self.group)

    def _check_ranks(self, x: Tensor, error: Exception | None) -> None:
        """Raise an error on all ranks if f failed on one, or if their points differ."""
        points = x.detach().flatten()[:: max(1, x.numel() // COMPARED)].round().long()
        # Integers wrap around, so the sum is exact in any order.
        key = torch.arange(1, points.numel() + 1, device=x.device) * 0x5851F42D4C957F2D
        numbers = key.new_tensor([error is not None, x.numel()])
        summary = torch.cat([numbers, (points * key).sum().view(1)])
        summaries = _gathered(summary.unsqueeze(0), self.ranks, self.group)
        failed = summaries[:, 0].nonzero().flatten().tolist()
        if failed and error is None:
            raise RuntimeError(
                f"Sharded: f failed on rank {failed[0]} of the group, which raises the error."
            )
        if not failed and bool((summaries != summaries[0]).any()):
            raise RuntimeError(
                "Sharded: the ranks of a group must evaluate f at the same points, but their "
                "points differ. Give the estimator a generator of the same seed (or the same x) on "
                "all of them, and the same q."
            )


def rows_of_rank(rows: int, group: Group, device: torch.device) -> Tensor:
    """Return the rows of this rank; all have equally many, so the last row may be repeated."""
    share = ceil(rows / dist.get_world_size(group))
    return (torch.arange(share, device=device) + dist.get_rank(group) * share).clamp(max=rows - 1)


def _gathered(values: Tensor, rows: int, group: Group) -> Tensor:
    gathered = values.new_empty((dist.get_world_size(group) * len(values), *values.shape[1:]))
    from_2_13 = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
    gather = from_2_13 or dist.all_gather_into_tensor
    gather(gathered, values.detach().contiguous(), group=group)
    return gathered[:rows]


class _Exchange(torch.autograd.Function):
    """Take this rank's rows (``rows`` is 0), or gather ``rows`` of all ranks.

    Each is the other's backward pass, divided and multiplied by the number of ranks: every rank has
    the gradient of all points, and that of its own values, as often as there are ranks.
    """

    @staticmethod
    def forward(x: Tensor, rows: int, group: Group) -> Tensor:
        return _gathered(x, rows, group) if rows else x[rows_of_rank(len(x), group, x.device)]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, Group], output: Tensor) -> None:
        ctx.share = len(inputs[0])
        ctx.gathers, ctx.group = inputs[1] > 0, inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ranks = dist.get_world_size(ctx.group)
        if not ctx.gathers:
            return exchange(gradient, ctx.share, ctx.group) / ranks, None, None
        repeated = ctx.share * ranks - len(gradient)
        padded = torch.cat([gradient, gradient.new_zeros((repeated, *gradient.shape[1:]))])
        return exchange(padded, 0, ctx.group) * ranks, None, None


exchange: Callable[..., Tensor] = _Exchange.apply
