"""Networks whose first layer is linear, and a cross-entropy that goes with them."""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..core.categories import widened
from ..core.checks import check_choice, check_count
from ..core.tracing import may_write
from .relu_units import FEWEST_MOVES, values_by_units
from .tables import (
    OwnTable,
    Variables,
    check_batch,
    hold,
    hold_function,
    how_it_differs,
    is_exactly,
)

try:
    import catlog_kernels
except ImportError:
    catlog_kernels = None  # type: ignore[assignment]


class BernoulliCrossEntropy(nn.Module):
    r"""A head for :class:`FirstLayerLinear`: Bernoulli log-likelihood of targets, negated.

    Targets lie in [0, 1].

    .. math:: \sum_j \operatorname{softplus}(\ell_j) - t_j \ell_j

    After a linear layer, :math:`\ell = W h + b`, the second term is
    :math:`h \cdot W^\top t + t \cdot b`, so that the logits are read once, by the softplus.

    Args:
        targets: ``[*batch, pixels]`` (or ``[pixels]`` for all batch elements). Their batch must
            broadcast to that of q.

    >>> BernoulliCrossEntropy(torch.tensor([1.0, 0.0]))(torch.tensor([[0.0, 0.0]]))
    tensor([1.3863])
    """

    targets: Tensor

    def __init__(self, targets: Shaped[Tensor, "*batch pixels"]) -> None:
        super().__init__()
        if isinstance(targets, Tensor) and not targets.is_floating_point():  # a binary image
            targets = targets.to(torch.get_default_dtype())
        hold(self, targets=(targets, "[*batch, pixels]"))

    def forward(self, logits: Float[Tensor, "n *batch pixels"]) -> Float[Tensor, "n *batch"]:
        self.check_logits(logits.shape)
        if not logits.is_floating_point():
            raise TypeError(
                f"BernoulliCrossEntropy: `logits` must be floats, but {logits.dtype} was given. "
                "Call it with the output of a network."
            )
        logits = widened(logits)
        return (nn.functional.softplus(logits) - logits * self.targets).sum(-1)

    def check_logits(self, shape: tuple[int, ...]) -> None:
        """Raise unless the targets fit logits of this shape, ``[n, *batch, pixels]``."""
        pixels = self.targets.shape[-1]
        if shape[-1] != pixels:
            raise ValueError(
                f"BernoulliCrossEntropy: `targets` must have one number per logit, {shape[-1]}, "
                f"but their shape is {tuple(self.targets.shape)}. Change them or the network's "
                "last layer."
            )
        check_batch(self, "targets", self.targets, 1, shape[:-1])

    def after(self, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return this head as a function of the last layer's input.

        In fewer than 32 bits the logits are rounded, which both terms must see alike, so there the
        head itself is called. Without autograd the softplus is written over the logits: on a CPU,
        a second tensor of their size for every slice of neighbours took a sixth of a step.
        """
        weight, bias = linear.weight, linear.bias
        if weight.dtype.itemsize < 4 or torch.is_autocast_enabled(weight.device.type):
            return lambda hidden: self(linear(hidden))
        targets = self.targets.to(weight.dtype)
        slope = targets @ weight
        offset = 0.0 if bias is None else targets @ bias

        def values(hidden: Float[Tensor, "n *batch h"]) -> Float[Tensor, "n *batch"]:
            logits = linear(hidden)
            if may_write():
                softplus = torch.logaddexp(logits, logits.new_zeros(()), out=logits)
            else:
                softplus = nn.functional.softplus(logits)
            return softplus.sum(-1) - (hidden * slope).sum(-1) - offset

        return values


class FirstLayerLinear(OwnTable):
    r"""A network that starts with a linear layer, followed by a reduction to one value per point.

    .. math:: f(x) = \text{head}\bigl(\text{rest}(W x + b)\bigr)

    A change of variable i moves the first layer's output by one column of W, so the table needs no
    first product; the rest of the network runs on slices that fit the cache. On a CPU, hidden units
    that are off at a point and at all its neighbours are left out of the products. This applies to
    bits or category numbers, linear layers with ReLUs between them, and
    :class:`BernoulliCrossEntropy` as the head.

    A container or first layer with hooks, or of a subclass that overrides forward, raises an error.
    So does batch normalisation in training mode, which makes f depend on other points. Later
    modules and the head are called as they are, unless they are plain.

    Args:
        network: an ``nn.Sequential`` whose first module is ``nn.Linear``; its input is the event,
            flattened.
        head: maps the network's output ``[rows, *batch, out]`` to ``[rows, *batch]``, such as
            :class:`BernoulliCrossEntropy` (made to be fast after a linear layer); None: the
            output's last dimension, of size 1, is dropped.
        one_hot: x is one-hot ``[..., d, k]`` and the layer's input is its d k numbers.
        categories: k, where x holds category numbers 0 ... k - 1, which the layer reads as they
            are; 2 for bits.
        event_dims: number of event dimensions of x; None: 1, or 2 where it is one-hot.
        chunk_size: evaluations at once in the table (None: 1024 on a CPU, all on a GPU).
        precision: of the table on a GPU, for bits, three linear layers with ReLUs between them and
            :class:`BernoulliCrossEntropy`: "half" (changes rounded to as many bits as TF32, scaled
            into float16's range by powers of two) or "float32" (by PyTorch, as for all other
            networks). "half" needs the package ``catlog_kernels`` (in a clone of the repository,
            ``pip install ./kernels``). None: "half" where it is installed and
            ``torch.set_float32_matmul_precision`` allows TF32, else "float32".

    >>> decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> f = FirstLayerLinear(decoder)
    >>> f.neighbours(torch.zeros(5, 3)).shape
    torch.Size([5, 3, 2])
    """

    head: Callable[[Tensor], Tensor] | None

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
        is_sequence = isinstance(network, nn.Sequential) and len(network) > 0
        if not is_sequence or not isinstance(network[0], nn.Linear):
            raise TypeError(
                "FirstLayerLinear: `network` must be an nn.Sequential that starts with nn.Linear, "
                f"but {network!r} was given."
            )
        event_dims = (2 if one_hot else 1) if event_dims is None else event_dims
        for name, count in (("categories", categories), ("event_dims", event_dims)):
            check_count("FirstLayerLinear", name, count)
        if chunk_size is not None:
            check_count("FirstLayerLinear", "chunk_size", chunk_size)
        if precision is not None:
            check_choice("FirstLayerLinear", "precision", precision, ("half", "float32"))
        if precision == "half" and catlog_kernels is None:
            raise ImportError(
                "FirstLayerLinear: `precision` must be None or 'float32' without the package "
                "catlog_kernels, but 'half' was given. In a clone of the repository, "
                "`pip install ./kernels` installs it."
            )
        self.network = network
        hold_function(self, "head", head)
        self.one_hot = one_hot
        self.chunk_size = chunk_size
        self.categories = categories
        self.precision = precision
        self.event_dims = event_dims
        self._check_network()

    def _check_network(self) -> None:
        """Raise if the first layer or the container does more than the table assumes."""
        for name, module, kind in (
            ("network", self.network, nn.Sequential),
            ("network[0]", self.network[0], nn.Linear),
        ):
            if difference := how_it_differs(module, kind):
                raise TypeError(
                    f"FirstLayerLinear: `{name}` must run as {kind.__name__} does, but "
                    f"{difference}, which the table ignores. Remove that (norms: "
                    "torch.nn.utils.parametrizations), or pass the estimator a function that "
                    "calls the network, without a table."
                )

    def _check_rows(self) -> None:
        """Raise if the network mixes points."""
        for name, module in self.network.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
                module.training or module.running_mean is None
            ):
                raise ValueError(
                    "FirstLayerLinear: `network` normalises by the batch in "
                    f"{type(module).__name__} at {name!r}, so that f(x) depends on the points "
                    "beside x. Call `network.eval()`, or use LayerNorm or GroupNorm."
                )

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return self._reduce(self.network(self._input(x)))

    def _input(self, x: Tensor) -> Float[Tensor, "n *batch inputs"]:
        """Flatten the event dimensions to the first layer's input."""
        first = cast(nn.Linear, self.network[0])
        flat = x.flatten(-self.event_dims)
        flat = flat if flat.is_floating_point() else flat.to(first.weight.dtype)
        if flat.shape[-1] != first.in_features:
            raise ValueError(
                f"FirstLayerLinear: the last {self.event_dims} dimensions of x {tuple(x.shape)} "
                f"must hold the first layer's {first.in_features} inputs. Set `event_dims` (and "
                "`one_hot`) to fit q."
            )
        return flat

    def _reduce(self, out: Tensor) -> Tensor:
        return out.squeeze(-1) if self.head is None else self.head(out)

    def _rest(self) -> Callable[[Tensor], Tensor]:
        """Return what follows the first layer, as a function of a tensor that it may write into."""
        modules = list(self.network)[1:]  # children() would skip a module that occurs twice
        reduce: Callable[[Tensor], Tensor] = self._reduce
        plain_head = is_exactly(self.head, BernoulliCrossEntropy)
        if plain_head and modules and is_exactly(modules[-1], nn.Linear):
            reduce = cast(BernoulliCrossEntropy, self.head).after(cast(nn.Linear, modules.pop()))

        def values(hidden: Tensor) -> Tensor:
            for module in modules:
                hidden = hidden.relu_() if is_exactly(module, nn.ReLU) else module(hidden)
            return reduce(hidden)

        return values

    def _layers_between_relus(self) -> list[nn.Linear]:
        """Return the linear layers of a network that has plain ReLUs between them alone.

        There are none where the network is another one, or the head no plain cross-entropy.
        """
        modules = list(self.network)
        alternate = all(
            is_exactly(module, nn.ReLU if i % 2 else nn.Linear) for i, module in enumerate(modules)
        )
        fits = alternate and len(modules) % 2 == 1 and not self.one_hot
        if not fits or not is_exactly(self.head, BernoulliCrossEntropy):
            return []
        return [cast(nn.Linear, layer) for layer in modules[::2]]

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        self._check_own("neighbours", FirstLayerLinear)
        self._check_network()
        self._check_rows()
        flat, head, last = self._input(x), cast(BernoulliCrossEntropy, self.head), self.network[-1]
        if is_exactly(head, BernoulliCrossEntropy) and isinstance(last, nn.Linear):
            head.check_logits((*flat.shape[:-1], last.out_features))
        layers = self._layers_between_relus()
        k = x.shape[-1] if self.one_hot else self.categories
        # torch.compile can trace this attribute, but not torch.get_float32_matmul_precision.
        allows_half = self.precision is None and torch.backends.cuda.matmul.allow_tf32
        wants_half = (self.precision == "half" or allows_half) and len(layers) == 3 and k == 2
        if wants_half and catlog_kernels and not (self.chunk_size or torch.is_grad_enabled()):
            table = catlog_kernels.decoder_table(layers, head.targets, flat, variables)
            if table is not None:
                return table
        current = flat.unflatten(-1, (-1, k)).argmax(-1) if self.one_hot else flat.long()
        if variables is not None:
            current = current.gather(-1, variables)
        slots = current.shape[-1]
        moves = slots * (k - 1)
        slot = torch.arange(slots, device=x.device).repeat_interleave(k - 1, output_size=moves)
        moved_from = current[..., slot]
        moved_to = (moved_from + torch.arange(1, k, device=x.device).repeat(slots)) % k
        which = slot if variables is None else variables[..., slot]
        by_units = len(layers) > 1 and min(moves, self.chunk_size or moves) >= FEWEST_MOVES
        if by_units and self._may_leave_out_units(flat):
            change, chunk_size = moved_to - moved_from, self.chunk_size
            unmoved, moved = values_by_units(layers, head.targets, flat, change, which, chunk_size)
        else:
            unmoved, moved = self._values(flat, moved_from, moved_to, which, k)
        dtype = torch.promote_types(unmoved.dtype, moved.dtype)  # autocast may make them differ
        table = unmoved.to(dtype).unsqueeze(-1).expand(*current.shape[:-1], slots * k)
        return table.scatter(-1, slot * k + moved_to, moved.to(dtype)).unflatten(-1, (slots, k))

    def _may_leave_out_units(self, flat: Tensor) -> bool:
        weight = self.network[0].weight
        is_plain = flat.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        return is_plain and flat.dtype == weight.dtype and flat.itemsize >= 4 and may_write()

    def _values(
        self, flat: Tensor, moved_from: Tensor, moved_to: Tensor, which: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """Return f at the points ``[n, *batch]`` and at their moves ``[n, *batch, moves]``."""
        first, rest = cast(nn.Linear, self.network[0]), self._rest()
        weight = first.weight  # read once: a parametrised weight is computed at every access
        base = nn.functional.linear(flat, weight, first.bias)
        columns = weight.mT.contiguous()
        # Moves in front: [moves, n, *batch], so that the rest of the network sees rows of whole
        # batches without a copy.
        moved_from, moved_to = moved_from.movedim(-1, 0), moved_to.movedim(-1, 0)
        if which.dim() == 1:  # the same columns for all points
            which = which.view(-1, *[1] * (flat.dim() - 1))
        else:
            which = which.movedim(-1, 0)
        # Slices of the moves fit the caches of a CPU; on a GPU, all run at once.
        points = max(1, base[..., 0].numel())
        size = self.chunk_size or (len(which) * points if base.is_cuda else 1024)
        values = [base.new_zeros((0, *base.shape[:-1]))]
        for start in range(0, len(which), max(1, size // points)):
            part = slice(start, start + max(1, size // points))
            if self.one_hot:
                hidden = base + columns[which[part] * k + moved_to[part]]
                hidden -= columns[which[part] * k + moved_from[part]]
            else:
                change = (moved_to[part] - moved_from[part]).to(base.dtype).unsqueeze(-1)
                hidden = torch.addcmul(base, change, columns[which[part]])
            values.append(rest(hidden.flatten(0, 1)).unflatten(0, (-1, len(flat))))
        return rest(base), torch.cat(values).movedim(0, -1)
