r"""Functions that know their own table: f at every single-variable change of x, in fewer operations than by calling f.

Any f with a method ``neighbours(x, variables=None)`` is read by :class:`catlog.IndeCateR` through it:

- ``neighbours(x)`` returns ``[n, *batch, d, k]``, the value of f with ``x_i`` set to category k, for all i and k;
- ``neighbours(x, variables)`` with ``variables`` of shape ``[n, *batch, m]`` returns ``[n, *batch, m, k]`` for those only.

It is called without autograd. The entry of x's own category is f(x) as the table has it: differences are taken to it, so that
both sides are rounded alike. The entries of impossible categories are not used. A few entries are compared with f itself at the
first use (eager mode with ``validate=True``, see :mod:`catlog.evaluation.neighbours`).

Sums are taken in float32 or wider, whatever the type of the costs, of x, or of autocast: f is large and its changes are small.

Points are read as laws write them: int64 categories (Categorical), 0/1 floats (Bernoulli), or one-hot floats, for which
the constructors take ``one_hot=True``. All functions here extend to relaxed points (between 0 and 1), so estimators that
differentiate f can use them as well.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..checks import check_count
from ..parallel.pool import Pool as Pool
from ..parallel.pool import RowError as RowError
from ..parallel.sharded import Sharded as Sharded
from .kernels import PRECISIONS, bernoulli_table, tf32_allowed, usable

Variables = Int64[Tensor, "n *batch m"]
FEWEST_MOVES = 160  # of a point, from which it pays to pick the weights of its hidden units


def _hold(module: nn.Module, **tensors: Tensor | None) -> None:
    """Keep parameters as parameters and tensors as buffers, so that ``module.to(device)`` moves them."""
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor, persistent=False)


def _changed(module: nn.Module, kind: type[nn.Module]) -> str:
    """How a call of ``module`` may differ from ``kind.forward``, in words; empty where it does not."""
    if type(module).forward is not kind.forward or type(module).__call__ is not nn.Module.__call__:
        return f"{type(module).__name__} has a forward of its own"
    if "forward" in module.__dict__:
        return f"a forward was put into this {type(module).__name__}"
    if module._forward_hooks or module._forward_pre_hooks:
        return f"this {type(module).__name__} has forward hooks (weight_norm and spectral_norm of torch.nn.utils are such, too)"
    return ""


def _exactly(module: object, kind: type[nn.Module]) -> bool:
    """Whether ``module`` is a ``kind`` and nothing else, so that what it computes may be computed in another way."""
    return type(module) is kind and not _changed(module, kind)


def _check_own(f: nn.Module, kind: type[nn.Module]) -> None:
    """Raise where f has another forward than ``kind``, but the same table."""
    inherited = type(f).neighbours is kind.neighbours and "neighbours" not in f.__dict__  # type: ignore[attr-defined]
    if inherited and (how := _changed(f, kind)):
        raise TypeError(
            f"{type(f).__name__}: {how}, which its table does not know of. Give it a method `neighbours` of its own as well, or "
            "hand the estimator `lambda x: f(x)`, which evaluates f at every neighbour."
        )


def _wide(values: Tensor) -> Tensor:
    """``values``, in float32 where they are in fewer bits."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Autocast turned off where it is on."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _one_hot(x: Tensor, k: int, one_hot: bool) -> Float[Tensor, "*lead d k"]:
    """Points as (possibly relaxed) one-hot vectors."""
    if one_hot:
        return x
    if x.is_floating_point():
        return torch.stack([1 - x, x], -1)
    return nn.functional.one_hot(x, k)


def _picked(table: Float[Tensor, "n *batch d k"], variables: Variables | None) -> Tensor:
    """The rows of the given variables."""
    if variables is None:
        return table
    return table.gather(-2, variables.unsqueeze(-1).expand(variables.shape + table.shape[-1:]))


def _changes(
    table: Float[Tensor, "n *batch d k"], x: Tensor, one_hot: bool, variables: Variables | None
) -> Tensor:
    """``table`` at the given variables, less its entry of every variable's own category."""
    own = x.argmax(-1) if one_hot else x.long()
    table = _picked(table, variables)
    own = own if variables is None else own.gather(-1, variables)
    return table - table.gather(-1, own.unsqueeze(-1))


def _start(buffer: Tensor, *shape: int) -> Tensor:
    """The first numbers of a flat buffer, in this shape."""
    return buffer[: prod(shape)].view(shape)


class Additive(nn.Module):
    r"""A separate cost per variable.

    .. math:: f(x) = \sum_i c_i(x_i)

    IndeCateR is exact on it with one draw. Table: O(d k) per draw in all.

    Args:
        costs: ``[*batch, d, k]`` (or ``[d, k]`` for all batch elements), a parameter or a tensor.
        one_hot: x is one-hot.

    >>> f = Additive(torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    >>> f(torch.tensor([[1.0, 1.0]])), f.neighbours(torch.tensor([[1.0, 1.0]]))
    (tensor([3.]), tensor([[[2., 3.],
             [1., 3.]]]))
    """

    def __init__(self, costs: Float[Tensor, "*batch d k"], one_hot: bool = False) -> None:
        super().__init__()
        if costs.dim() < 2:
            raise ValueError(
                f"Additive: `costs` must have shape [*batch, d, k], but {tuple(costs.shape)} was given."
            )
        self.one_hot = one_hot
        self.costs: Tensor
        _hold(self, costs=costs)

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return (_one_hot(x, self.costs.shape[-1], self.one_hot) * _wide(self.costs)).sum((-1, -2))

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        _check_own(self, Additive)
        costs = _wide(self.costs).expand(
            x.shape[: x.dim() - (2 if self.one_hot else 1)] + self.costs.shape[-2:]
        )
        return Additive.forward(self, x)[..., None, None] + _changes(
            costs, x, self.one_hot, variables
        )


class Pairwise(nn.Module):
    r"""A cost per variable and a cost per pair of variables.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_{i<j} J_{ij}(x_i, x_j)

    Table: one product with J per draw, as much as about k evaluations of f instead of d (k - 1).

    Args:
        couplings: ``[d, k, d, k]``; the sum over i < j reads the part above the block diagonal only.
        fields: ``[d, k]``, or None for none.
        one_hot: x is one-hot.

    >>> couplings = torch.zeros(2, 2, 2, 2)
    >>> couplings[0, :, 1, :] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # XOR
    >>> f = Pairwise(couplings)
    >>> f(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([1., 0.])
    """

    def __init__(
        self,
        couplings: Float[Tensor, "d k d k"],
        fields: Float[Tensor, "d k"] | None = None,
        one_hot: bool = False,
    ) -> None:
        super().__init__()
        if couplings.dim() != 4 or couplings.shape[:2] != couplings.shape[2:]:
            raise ValueError(
                f"Pairwise: `couplings` must have shape [d, k, d, k], but {tuple(couplings.shape)} was given."
            )
        if fields is not None and fields.shape != couplings.shape[:2]:
            raise ValueError(
                f"Pairwise: `fields` must have shape {tuple(couplings.shape[:2])}, but {tuple(fields.shape)} was given."
            )
        self.one_hot = one_hot
        self.couplings: Tensor
        self.fields: Tensor
        _hold(
            self,
            couplings=couplings,
            fields=couplings.new_zeros(couplings.shape[:2]) if fields is None else fields,
        )

    def _felt(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x as one-hot, and the cost that the couplings add to each category of each variable, given the others."""
        d, k = self.fields.shape
        upper = torch.ones(d, d, dtype=torch.bool, device=x.device).triu(1)[:, None, :, None]
        half = torch.where(upper, _wide(self.couplings), 0.0).reshape(d * k, d * k)
        points = _one_hot(x, k, self.one_hot).to(half.dtype)
        with _full_precision(x):
            return points, (points.flatten(-2) @ (half + half.mT)).unflatten(-1, (d, k))

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        points, felt = self._felt(x)
        return (points * (self.fields + felt / 2)).sum((-1, -2))

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        _check_own(self, Pairwise)
        points, felt = self._felt(x)
        value = (points * (self.fields + felt / 2)).sum((-1, -2))
        return value[..., None, None] + _changes(self.fields + felt, x, self.one_hot, variables)


class Potts(nn.Module):
    r"""Pairwise agreement: the couplings of :class:`Pairwise` without their :math:`k^2` copies.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_{i<j} J_{ij} [x_i = x_j]

    An Ising energy :math:`\sum_i b_i s_i + \sum_{i<j} A_{ij} s_i s_j` of spins :math:`s = 2x - 1` is, up to a constant,
    ``Potts(2 * A, fields=torch.stack([-b, b], -1))``: see :func:`ising`.

    Args:
        couplings: J ``[d, d]``; the part above the diagonal is read.
        fields: h ``[d, k]``.
        one_hot: x is one-hot.

    >>> f = Potts(torch.ones(3, 3), torch.zeros(3, 4))
    >>> f(torch.tensor([[0, 0, 3], [1, 1, 1]]))
    tensor([1., 3.])
    """

    def __init__(
        self, couplings: Float[Tensor, "d d"], fields: Float[Tensor, "d k"], one_hot: bool = False
    ) -> None:
        super().__init__()
        if fields.dim() != 2 or couplings.shape != (fields.shape[0],) * 2:
            raise ValueError(
                f"Potts: `couplings` must have shape [d, d] and `fields` [d, k], but {tuple(couplings.shape)} and "
                f"{tuple(fields.shape)} were given."
            )
        self.one_hot = one_hot
        self.couplings: Tensor
        self.fields: Tensor
        _hold(self, couplings=couplings, fields=fields)

    def _felt(self, x: Tensor) -> tuple[Tensor, Tensor]:
        half = _wide(self.couplings).triu(1)
        points = _one_hot(x, self.fields.shape[-1], self.one_hot).to(half.dtype)
        with _full_precision(x):
            return points, (half + half.mT) @ points

    forward = Pairwise.forward
    neighbours = Pairwise.neighbours


def ising(couplings: Float[Tensor, "d d"], fields: Float[Tensor, "d"]) -> Potts:
    r"""The energy of spins :math:`s = 2x - 1`, x bits: :math:`\sum_i b_i s_i + \sum_{i<j} A_{ij}(s_i s_j + 1)`.

    >>> ising(torch.ones(2, 2), torch.zeros(2))(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([2., 0.])
    """
    return Potts(2 * couplings, torch.stack([-fields, fields], -1))


class OfSum(nn.Module):
    r"""A function of a weighted sum of the categories' numbers, such as "do these digits add up to s?".

    .. math:: f(x) = g\Bigl(\sum_i w_i x_i\Bigr)

    Table: without weights, g at the 2k - 1 possible sums and O(d k) look-ups per draw; with weights, d k cheap calls of g.

    Args:
        g: maps sums ``[rows, *batch]`` to values ``[rows, *batch]``, element by element (it may know the batch).
        categories: k, the number of categories of every variable (2 for bits).
        weights: ``[d]``; None: all one.
        one_hot: x is one-hot.

    >>> f = OfSum(lambda s: (s == 3).float(), categories=4)
    >>> f(torch.tensor([[1, 2], [2, 2]])), f.neighbours(torch.tensor([[1, 2]]))
    (tensor([1., 0.]), tensor([[[0., 1., 0., 0.],
             [0., 0., 1., 0.]]]))
    """

    def __init__(
        self,
        g: Callable[[Tensor], Tensor],
        categories: int,
        weights: Float[Tensor, "d"] | None = None,
        one_hot: bool = False,
    ) -> None:
        super().__init__()
        check_count("OfSum", "categories", categories)
        self.g, self.categories, self.one_hot = g, categories, one_hot
        self.weights: Tensor | None
        _hold(self, weights=weights)

    def _sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every variable's number, and their weighted sum."""
        x = _wide(x)
        with _full_precision(x):
            number = (
                x @ torch.arange(self.categories, dtype=x.dtype, device=x.device)
                if self.one_hot
                else x
            )
        return number, (number if self.weights is None else number * _wide(self.weights)).sum(-1)

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return self.g(self._sum(x)[1])

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        _check_own(self, OfSum)
        number, total = self._sum(x)
        k = self.categories
        if variables is not None:
            number = number.gather(-1, variables)
        category = torch.arange(k, dtype=number.dtype, device=x.device)
        if self.weights is None:
            shifts = torch.arange(1 - k, k, dtype=number.dtype, device=x.device)
            values = self._rows(total.unsqueeze(-1) + shifts)
            where = (category - number.unsqueeze(-1)).long() + (k - 1)
            return values.unsqueeze(-2).expand(*number.shape, 2 * k - 1).gather(-1, where)
        weights = _wide(self.weights if variables is None else self.weights[variables])
        sums = total[..., None, None] + weights.unsqueeze(-1) * (category - number.unsqueeze(-1))
        return self._rows(sums.flatten(-2)).unflatten(-1, (-1, k))

    def _rows(self, sums: Float[Tensor, "n *batch many"]) -> Tensor:
        """g at ``many`` sums per draw, called with the batch in its last dimensions."""
        many = sums.shape[-1]
        return self.g(sums.movedim(-1, 0).flatten(0, 1)).unflatten(0, (many, -1)).movedim(0, -1)


class BernoulliCrossEntropy(nn.Module):
    r"""A head for :class:`FirstLayerLinear`: minus the log-likelihood of targets in [0, 1] under independent Bernoullis.

    .. math:: \sum_j \operatorname{softplus}(\ell_j) - t_j \ell_j

    After a linear layer, :math:`\ell = W h + b`, the second term is :math:`h \cdot W^\top t + t \cdot b`, so that the logits are
    read once, by the softplus.

    Args:
        targets: ``[*batch, pixels]``.

    >>> BernoulliCrossEntropy(torch.tensor([1.0, 0.0]))(torch.tensor([[0.0, 0.0]]))
    tensor([1.3863])
    """

    def __init__(self, targets: Float[Tensor, "*batch pixels"]) -> None:
        super().__init__()
        self.targets: Tensor
        _hold(self, targets=targets)

    def forward(self, logits: Float[Tensor, "n *batch pixels"]) -> Float[Tensor, "n *batch"]:
        logits = _wide(logits)
        return (nn.functional.softplus(logits) - logits * self.targets).sum(-1)

    def after(self, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        """This head as a function of the last layer's input.

        In fewer than 32 bits the logits are rounded, which the two terms must see alike: there the head is called. Without
        autograd one buffer holds the logits of all calls: on a CPU, memory that is asked for again for every slice of neighbours
        is given back and mapped in again each time, at a sixth of the step's time.
        """
        weight, bias = linear.weight, linear.bias
        if weight.dtype.itemsize < 4 or torch.is_autocast_enabled(weight.device.type):
            return lambda hidden: self(linear(hidden))
        slope = self.targets @ weight
        offset = 0.0 if bias is None else self.targets @ bias
        buffers: dict[int, Tensor] = {}

        def softplus(hidden: Tensor) -> Tensor:
            if (
                torch.is_grad_enabled()
                or torch.compiler.is_compiling()
                or hidden.dtype != weight.dtype
            ):
                return nn.functional.softplus(linear(hidden))
            rows = hidden.flatten(0, -2)
            if len(rows) not in buffers:
                buffers[len(rows)] = rows.new_empty(len(rows), linear.out_features)
            logits = torch.mm(rows, weight.mT, out=buffers[len(rows)])
            if bias is not None:
                logits += bias
            torch.logaddexp(logits, logits.new_zeros(()), out=logits)
            return logits.view(*hidden.shape[:-1], -1)

        def values(hidden: Float[Tensor, "n *batch h"]) -> Float[Tensor, "n *batch"]:
            return softplus(hidden).sum(-1) - (hidden * slope).sum(-1) - offset

        return values


class FirstLayerLinear(nn.Module):
    r"""A network that starts with a linear layer, followed by a reduction to one value per point.

    .. math:: f(x) = \text{head}\bigl(\text{rest}(W x + b)\bigr)

    A change of variable i moves the first layer's output by one column of W, so the table needs no first product; the rest
    of the network runs on slices that fit the cache. On a CPU, for bits or numbers, linear layers with ReLUs between them and
    :class:`BernoulliCrossEntropy`, hidden units that are off at a point and all its neighbours are left out of the products.

    A changed first layer or container (hooks, a subclass with a forward of its own) is refused; so is batch normalisation in
    training mode, which makes f depend on other points. Later modules and the head are called as they are, unless they are plain.

    Args:
        network: an ``nn.Sequential`` whose first module is ``nn.Linear``; its input is the event, flattened.
        head: maps the network's output ``[rows, *batch, out]`` to ``[rows, *batch]``, such as :class:`BernoulliCrossEntropy`
            (made to be fast after a linear layer); None: the output's last dimension, of size 1, is dropped.
        one_hot: x is one-hot ``[..., d, k]`` and the layer's input is its d k numbers.
        categories: k, where x holds category numbers 0 ... k - 1, which the layer reads as they are; 2 for bits.
        event_dims: number of event dimensions of x; None: 1, or 2 where it is one-hot.
        chunk_size: points at once in the table (None: 1024 on a CPU, all on a GPU).
        precision: of the table on a GPU, for bits, three linear layers with ReLUs between them and
            :class:`BernoulliCrossEntropy`, which run as one kernel: "half" (changes rounded to as many bits as TF32, made to
            fit float16's range by powers of two) or "bfloat16" (see :mod:`catlog.functions.kernels`); "float32": by PyTorch, as all
            other networks. None: "half" where ``torch.set_float32_matmul_precision`` allows TF32, else "float32".

    >>> decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> f = FirstLayerLinear(decoder)
    >>> f.neighbours(torch.zeros(5, 3)).shape
    torch.Size([5, 3, 2])
    """

    def __init__(
        self,
        network: nn.Sequential,
        head: Callable[[Tensor], Tensor] | None = None,
        one_hot: bool = False,
        categories: int = 2,
        event_dims: int | None = None,
        chunk_size: int | None = None,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        if (
            not isinstance(network, nn.Sequential)
            or len(network) == 0
            or not isinstance(network[0], nn.Linear)
        ):
            raise TypeError(
                f"FirstLayerLinear: `network` must be an nn.Sequential that starts with nn.Linear, but {network!r} was given."
            )
        if chunk_size is not None:
            check_count("FirstLayerLinear", "chunk_size", chunk_size)
        if precision not in (None, "float32", *PRECISIONS):
            raise ValueError(
                f'FirstLayerLinear: `precision` must be None, "float32" or one of {PRECISIONS}, but {precision!r} was given.'
            )
        check_count("FirstLayerLinear", "categories", categories)
        self.network, self.head, self.one_hot, self.chunk_size = network, head, one_hot, chunk_size
        self.categories, self.precision = categories, precision
        self.event_dims = (2 if one_hot else 1) if event_dims is None else event_dims
        self._check_network()

    def _check_network(self) -> None:
        """Raise where the table would leave something out."""
        for name, module, kind in (
            ("network", self.network, nn.Sequential),
            ("network[0]", self.network[0], nn.Linear),
        ):
            if how := _changed(module, kind):
                raise TypeError(
                    f"FirstLayerLinear: `{name}` must run as {kind.__name__} does, but {how}, which the table does not know of. "
                    "Take that away (norms: torch.nn.utils.parametrizations), or hand the estimator a function that calls the "
                    "network, without a table."
                )

    def _check_rows(self) -> None:
        """Raise where the network mixes points."""
        for name, module in self.network.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
                module.training or module.running_mean is None
            ):
                raise ValueError(
                    f"FirstLayerLinear: `network` normalises by the batch in {type(module).__name__} at {name!r}, so that f(x) "
                    "depends on the points beside x. Call `network.eval()`, or use LayerNorm or GroupNorm."
                )

    @property
    def table_checked(self) -> bool:
        """Whether a table of this network, read like this, was compared with brute force (heads change from step to step)."""
        return self._reads() in self.network.__dict__.get("_tables_checked", ())

    @table_checked.setter
    def table_checked(self, checked: bool) -> None:
        known = self.network.__dict__.setdefault("_tables_checked", set())
        (known.add if checked else known.discard)(self._reads())

    def _reads(self) -> tuple[object, ...]:
        return (
            self.one_hot,
            self.categories,
            self.event_dims,
            self.precision,
            type(self.head).__qualname__,
        )

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return self._reduce(self.network(self._input(x)))

    def _input(self, x: Tensor) -> Float[Tensor, "n *batch inputs"]:
        """The event dimensions flattened to the first layer's input."""
        first = cast(nn.Linear, self.network[0])
        flat = x.flatten(-self.event_dims)
        flat = flat if flat.is_floating_point() else flat.to(first.weight.dtype)
        if flat.shape[-1] != first.in_features:
            raise ValueError(
                f"FirstLayerLinear: the last {self.event_dims} dimensions of x {tuple(x.shape)} must hold the first layer's "
                f"{first.in_features} inputs. Set `event_dims` (and `one_hot`) to fit the law."
            )
        return flat

    def _reduce(self, out: Tensor) -> Tensor:
        return out.squeeze(-1) if self.head is None else self.head(out)

    def _rest(self) -> Callable[[Tensor], Tensor]:
        """What follows the first layer, as a function of a tensor that it may write into."""
        modules = list(self.network)[
            1:
        ]  # children() would leave out a module that comes a second time
        reduce: Callable[[Tensor], Tensor] = self._reduce
        if (
            _exactly(self.head, BernoulliCrossEntropy)
            and modules
            and _exactly(modules[-1], nn.Linear)
        ):
            reduce = cast(BernoulliCrossEntropy, self.head).after(cast(nn.Linear, modules.pop()))

        def values(hidden: Tensor) -> Tensor:
            for module in modules:
                hidden = hidden.relu_() if _exactly(module, nn.ReLU) else module(hidden)
            return reduce(hidden)

        return values

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        _check_own(self, FirstLayerLinear)
        self._check_network()
        self._check_rows()
        first, rest = cast(nn.Linear, self.network[0]), self._rest()
        flat = self._input(x)
        if self._fits_kernel(flat, variables):
            return self._by_kernel(flat, variables)
        weight = (
            first.weight
        )  # read once: where it is parametrised, every look at it may be another
        base = nn.functional.linear(flat, weight, first.bias)
        k = x.shape[-1] if self.one_hot else self.categories
        own = flat.unflatten(-1, (-1, k)).argmax(-1) if self.one_hot else flat.long()
        variable = (
            torch.arange(own.shape[-1], device=x.device).expand(own.shape)
            if variables is None
            else variables
        )
        own = own if variables is None else own.gather(-1, variables)
        slots = own.shape[-1]

        # Moves in front: [moves, n, *batch], so that the rest of the network sees rows of whole batches without a copy.
        slot = torch.arange(slots, device=x.device).repeat_interleave(
            k - 1, output_size=slots * (k - 1)
        )
        offset = torch.arange(1, k, device=x.device).repeat(slots)
        category = (own[..., slot] + offset) % k
        if self._skips_units(base, len(slot)):
            change, which = (
                category - own[..., slot],
                slot if variables is None else variable[..., slot],
            )
            size = self.chunk_size or 1024
            parts = [
                self._by_units(base, *part)
                for part in zip(change.split(size, -1), which.split(size, -1), strict=True)
            ]
            table = parts[0][0].unsqueeze(-1).expand(*own.shape[:-1], slots * k)
            return table.scatter(
                -1, slot * k + category, torch.cat([moved for _, moved in parts], -1)
            ).unflatten(-1, (slots, k))
        moved_from, moved_to, which = (
            each.movedim(-1, 0) for each in (own[..., slot], category, variable[..., slot])
        )
        columns = weight.mT.contiguous()
        if variables is None and not self.one_hot:
            which = which[
                (slice(None),) + (slice(0, 1),) * (which.dim() - 1)
            ]  # the same column for the whole batch
        values = [base.new_zeros((0, *base.shape[:-1]))]
        for part in self._parts(len(slot), base):
            if self.one_hot:
                hidden = base + columns[which[part] * k + moved_to[part]]
                hidden -= columns[which[part] * k + moved_from[part]]
            else:
                change = (moved_to[part] - moved_from[part]).to(base.dtype).unsqueeze(-1)
                hidden = torch.addcmul(base, change, columns[which[part]])
            values.append(rest(hidden.flatten(0, 1)).unflatten(0, (-1, len(x))))
        still, moved = rest(base)[..., None], torch.cat(values).movedim(0, -1)
        kind = torch.promote_types(
            still.dtype, moved.dtype
        )  # autocast may have made them different
        table = still.to(kind).expand(*own.shape[:-1], slots * k)
        return table.scatter(-1, slot * k + category, moved.to(kind)).unflatten(-1, (slots, k))

    def _skips_units(self, base: Tensor, moves: int) -> bool:
        """Whether :meth:`_by_units` gives this table, and pays."""
        alternate = self._alternates() and not self.one_hot
        fits = alternate and cast(BernoulliCrossEntropy, self.head).targets.dim() < base.dim()
        plain = (
            base.device.type == "cpu"
            and base.dtype == cast(nn.Linear, self.network[0]).weight.dtype
            and base.itemsize >= 4
        )
        eager = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        return fits and plain and eager and min(moves, self.chunk_size or moves) >= FEWEST_MOVES

    def _alternates(self) -> bool:
        """Whether the network is plain linear layers with plain ReLUs between them, before a plain cross-entropy."""
        layers = list(self.network)
        fits = all(
            _exactly(layer, nn.ReLU if i % 2 else nn.Linear) for i, layer in enumerate(layers)
        )
        return fits and len(layers) % 2 == 1 and _exactly(self.head, BernoulliCrossEntropy)

    def _by_units(self, base: Tensor, change: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """f at the points ``[n, *batch]`` and at their moves ``[n, *batch, moves]``, a few points at a time.

        Units that a ReLU turns off at a point and at all its moves are left out of the products; most changes are small, so
        that is nearly every unit that is off at the point. Changes from the point are multiplied. Temporaries are reused.
        """
        first, *layers = (cast(nn.Linear, self.network[i]) for i in range(0, len(self.network), 2))
        at = [base.flatten(0, -2)]
        for layer in layers:
            at.append(layer(at[-1].relu()))
        logits, zero = at[-1], base.new_zeros(())
        targets = cast(BernoulliCrossEntropy, self.head).targets.expand(*base.shape[1:-1], -1)
        targets = targets.reshape(-1, logits.shape[-1]).repeat(len(base), 1)
        straight, slope = (targets * logits).sum(-1, keepdim=True), targets @ layers[-1].weight

        change = change.flatten(0, -2).to(base.dtype)
        columns = (
            first.weight[:, which] if which.dim() == 1 else None
        )  # else other variables for every point
        weights = [layer.weight.mT.contiguous() for layer in layers]
        moved, m = torch.empty_like(change), change.shape[-1]
        group = max(
            1,
            min(
                len(change),
                2 * torch.get_num_threads(),
                self.chunk_size // m if self.chunk_size else len(change),
            ),
        )
        hidden, kept = (
            [base.new_empty(group * len(weight) * m) for weight in weights] for _ in range(2)
        )
        rows, out = (
            [base.new_empty(group * weight.numel()) for weight in weights],
            base.new_empty(group * m * logits.shape[-1]),
        )
        row = rows[0]
        for start in range(0, len(change), group):
            part = slice(start, min(start + group, len(change)))
            points = torch.arange(part.stop - start).unsqueeze(1)
            moves = (
                first.weight[:, which.flatten(0, -2)[part]].movedim(1, 0)
                if columns is None
                else columns
            )
            for i, weight in enumerate(weights):
                here, h_out = (
                    at[i][part].unsqueeze(2),
                    _start(hidden[i], len(points), len(weight), m),
                )
                if i == 0:
                    h = torch.addcmul(here, moves, change[part].unsqueeze(1), out=h_out)
                else:
                    h = torch.baddbmm(here, row.mT, h, out=h_out)
                highest = h.relu_().amax(2)
                most = int((highest != 0).sum(1).max())
                on = highest.topk(most, 1, sorted=False).indices
                unit = (points * len(weight) + on).flatten()
                h = torch.index_select(
                    h.flatten(0, 1), 0, unit, out=_start(kept[i], len(unit), m)
                ).unflatten(0, on.shape)
                h -= here.relu().gather(1, on.unsqueeze(2))
                row = torch.index_select(
                    weight, 0, on.flatten(), out=_start(rows[i], len(unit), weight.shape[1])
                )
                row = row.unflatten(0, on.shape)
            new = torch.baddbmm(
                logits[part].unsqueeze(1),
                h.mT,
                row,
                out=_start(out, len(points), m, logits.shape[-1]),
            )
            torch.sum(torch.logaddexp(new, zero, out=new), 2, out=moved[part])
            moved[part] -= (slope[part].gather(1, on).unsqueeze(1) @ h).squeeze(1) + straight[part]
        still = torch.logaddexp(logits, zero).sum(-1, keepdim=True) - straight
        return still.view(base.shape[:-1]), moved.unflatten(0, base.shape[:-1])

    def _fits_kernel(self, flat: Tensor, variables: Variables | None) -> bool:
        """Whether :func:`catlog.functions.kernels.bernoulli_table` gives this table, in a precision that is allowed."""
        if self.one_hot or self.categories != 2 or self.chunk_size or torch.is_grad_enabled():
            return False
        if len(self.network) != 5 or not self._alternates():
            return False
        slots = (flat if variables is None else variables).shape[-1]
        if cast(BernoulliCrossEntropy, self.head).targets.dim() >= flat.dim() or not usable(
            flat, slots
        ):
            return False
        return self.precision != "float32" if self.precision else tf32_allowed()

    def _by_kernel(self, flat: Tensor, variables: Variables | None) -> Tensor:
        first, second, last = (cast(nn.Linear, self.network[i]) for i in (0, 2, 4))
        targets = (
            cast(BernoulliCrossEntropy, self.head)
            .targets.expand(*flat.shape[1:-1], -1)
            .reshape(-1, last.out_features)
        )
        with _full_precision(flat):  # the kernels have precisions of their own
            values = bernoulli_table(
                flat.flatten(0, -2),
                None if variables is None else variables.flatten(0, -2),
                first.weight,
                first.bias,
                second.weight,
                second.bias,
                last.weight,
                last.bias,
                targets @ last.weight,
                targets.new_zeros(len(targets)) if last.bias is None else targets @ last.bias,
                self.precision or "half",
            ).unflatten(0, flat.shape[:-1])
        own = (flat if variables is None else flat.gather(-1, variables)).bool()
        moved, still = values[..., :-1], values[..., -1:]
        return torch.stack([torch.where(own, moved, still), torch.where(own, still, moved)], -1)

    def _parts(self, moves: int, base: Tensor) -> list[slice]:
        """Slices of the moves: few enough points at once for the caches of a CPU, all at once on a GPU."""
        points = max(1, base[..., 0].numel())
        size = self.chunk_size or (moves * points if base.is_cuda else 1024)
        step = max(1, size // points)
        return [slice(start, start + step) for start in range(0, moves, step)]
