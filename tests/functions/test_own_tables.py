"""Tables of changed modules are right or raise an error, and a table is compared by check."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from catlog import IndeCateR, functions
from catlog.core.view import view
from catlog.functions import (
    Additive,
    BernoulliCrossEntropy,
    FirstLayerLinear,
    OfSum,
    Pairwise,
    Potts,
)
from catlog.testing.cases import normals
from support.laws import bits
from support.own_tables import assert_right_table, set_normals

WIDTHS = {"few moves": (5, 6, 6, 4), "many moves": (170, 6, 6, 4)}
routes = pytest.mark.parametrize("route", WIDTHS)


def decoder(route: str) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS[route])]
    modules = [module for layer in layers for module in (layer, nn.ReLU())]
    return set_normals(nn.Sequential(*modules[:-1])).requires_grad_(False)


def points(d: int) -> Tensor:
    return (normals(2, 3, d, seed=5) > 0).double()


def head() -> BernoulliCrossEntropy:
    return BernoulliCrossEntropy(normals(3, 4, seed=6).sigmoid())


class Adapter(nn.Linear):
    """A linear layer with something beside it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.3 * x.sin().sum(-1, keepdim=True)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True)


class Weighted(BernoulliCrossEntropy):
    def forward(self, logits: Tensor) -> Tensor:
        return super().forward(logits) * 2 + logits[..., 0]


class Counted(nn.ReLU):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + x.cos()


def patched(module: nn.Module) -> nn.Module:
    before = module.forward
    module.forward = lambda x: 2 * before(x) + 1  # type: ignore[method-assign]
    return module


def with_weights_of(net: nn.Sequential, at: int, module: nn.Linear) -> nn.Sequential:
    module.load_state_dict(net[at].state_dict())
    net[at] = module.requires_grad_(False)
    return net


def add_input(module: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return out + given[0].sum(-1, keepdim=True)


def double(module: nn.Module, given: tuple[Tensor], out: tuple[Tensor]) -> tuple[Tensor, ...]:
    return tuple(None if gradient is None else 2 * gradient for gradient in given)


def normalised(net: nn.Sequential, norm: Callable[[nn.Module], object]) -> None:
    for at in (0, 2, 4):
        norm(net[at])


def weight_norm(layer: nn.Module) -> None:
    parametrizations.weight_norm(layer)
    layer.parametrizations.weight.original0.data *= 1.5


def batch_norm(net: nn.Sequential) -> None:
    net.insert(1, nn.BatchNorm1d(3).double())
    net[1].running_var *= 3.0
    net.eval()


TANH = nn.Tanh()
# Changes of a network, and of a head, that the table has to follow.
LATER_LAYERS: dict[str, Callable[[nn.Sequential], object]] = {
    "hook on a layer": lambda net: net[2].register_forward_hook(add_input),
    "hook on the last layer": lambda net: net[4].register_forward_hook(lambda *call: 2 * call[2]),
    "pre-hook": lambda net: net[4].register_forward_pre_hook(lambda net, given: (given[0] + 1,)),
    "hook on an activation": lambda net: net[1].register_forward_hook(
        lambda module, given, out: out - 0.1 * given[0]
    ),
    "adapter at the end": lambda net: with_weights_of(net, 4, Adapter(6, 4).double()),
    "another call": lambda net: net.__setitem__(3, Counted()),
    "patched activation": lambda net: patched(net[1]),
    "weight norm": lambda net: normalised(net, weight_norm),
    "backward hook": lambda net: [net[at].register_full_backward_hook(double) for at in (0, 2)],
    "batch norm, evaluated": batch_norm,
    "a ReLU comes twice": lambda net: net.__setitem__(3, net[1]),
    "two layers come twice": lambda net: (net.insert(4, net[2]), net.insert(5, net[1])),
    "an activation comes twice": lambda net: [net.__setitem__(at, TANH) for at in (1, 3)],
}
HEADS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "head with another forward": lambda head: Weighted(head.targets),
    "patched head": patched,
    "hook on the head": lambda head: (
        head.register_forward_hook(lambda module, given, out: out + given[0].square().sum(-1)),
        head,
    )[1],
}


@routes
@pytest.mark.parametrize("name", [*LATER_LAYERS, *HEADS])
def test_changed_later_modules_are_called(name: str, route: str) -> None:
    f = FirstLayerLinear(decoder(route), head())
    if name in HEADS:
        f.head = HEADS[name](f.head)
    else:
        LATER_LAYERS[name](f.network)
    x = points(WIDTHS[route][0])
    with torch.no_grad():
        assert_right_table(f, x, view(bits(torch.zeros(x.shape[1:], dtype=torch.float64))))


# A change of the beginning, which returns another network or nothing, and what the error says.
BEGINNINGS: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {
    "hook": (lambda net: net[0].register_forward_hook(add_input), r"\[0\]`.*forward hooks"),
    "adapter": (
        lambda net: with_weights_of(net, 0, Adapter(5, 6).double()),
        r"\[0\]`.*Adapter overrides forward",
    ),
    "patched": (
        lambda net: (patched(net[0]), net)[1],
        r"\[0\]`.*this Linear was given another forward",
    ),
    "hook on the network": (lambda net: net.register_forward_hook(add_input), "`.*forward hooks"),
    "residual": (lambda net: Residual(*net), "`.*Residual overrides forward"),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_changed_beginning_raises_an_error(name: str) -> None:
    change, where = BEGINNINGS[name]

    def changed(net: nn.Sequential) -> nn.Sequential:
        result = change(net)
        return result if isinstance(result, nn.Sequential) else net

    with pytest.raises(TypeError, match=f"`network{where}"):
        FirstLayerLinear(changed(decoder("few moves")), head())
    f = FirstLayerLinear(decoder("few moves"), head())
    f.network = changed(f.network)
    with pytest.raises(TypeError, match=f"`network{where}"):
        f.neighbours(points(5))
    f(points(5))  # as a black box it is what it is


def test_subclasses_that_compute_the_same_are_accepted() -> None:
    class Named(nn.Sequential):
        pass

    class Own(nn.Linear):
        pass

    net = decoder("few moves")
    f = FirstLayerLinear(Named(*with_weights_of(net, 0, Own(5, 6).double())), head())
    assert_close(f.neighbours(points(5)), FirstLayerLinear(net, head()).neighbours(points(5)))


def test_batch_normalisation_in_training_raises_an_error() -> None:
    net = nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Sequential(nn.BatchNorm1d(3)), nn.Linear(6, 1)
    ).double()
    f = FirstLayerLinear(net)
    with pytest.raises(ValueError, match=r"BatchNorm1d at '2.0'.*network.eval"):
        f.neighbours(points(5))
    net.eval()
    f.neighbours(points(5))
    net[2][0] = nn.BatchNorm1d(3, track_running_stats=False).double().eval()
    with pytest.raises(ValueError, match="normalises by the batch"):
        f.neighbours(points(5))


# f itself changed

OWN = {
    "Additive": lambda kind: kind(normals(5, 2)),
    "Pairwise": lambda kind: kind(normals(5, 2, 5, 2)),
    "Potts": lambda kind: kind(normals(5, 5), normals(5, 2)),
    "OfSum": lambda kind: kind(lambda s: (0.7 * s).sin(), 2, normals(5)),
    "FirstLayerLinear": lambda kind: kind(decoder("few moves"), head()),
}


@pytest.mark.parametrize("name", OWN)
def test_a_function_with_another_forward_and_an_old_table_raises_an_error(name: str) -> None:
    kind, x = getattr(functions, name), points(5)
    squared = type("Squared", (kind,), {"forward": lambda self, x: kind.forward(self, x) ** 2})
    message = "Squared: Squared overrides forward.*Override `neighbours`"
    with pytest.raises(TypeError, match=message):
        OWN[name](squared).neighbours(x)
    if hasattr(kind, "expectation"):
        with pytest.raises(TypeError, match="Squared overrides forward, but its mean"):
            OWN[name](squared).expectation(bits(torch.zeros(5)))
    methods = {"neighbours": lambda self, x, *given: kind.neighbours(self, x, *given) ** 2}
    both = type("Both", (squared,), methods)
    table = OWN[name](both).neighbours(x)
    assert_close(table, OWN[name](kind).neighbours(x) ** 2)
    assert_close(table.gather(-1, x.long().unsqueeze(-1))[..., 0, 0], OWN[name](both)(x))
    f = OWN[name](kind)
    handle = f.register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(TypeError, match="forward hooks"):
        f.neighbours(x)
    handle.remove()
    f.neighbours(x)
    with pytest.raises(TypeError, match=f"this {name} was given another forward"):
        patched(f).neighbours(x)


# Sums in few bits

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("kind", HALVES)
def test_sums_are_wider_than_what_is_summed(kind: torch.dtype) -> None:
    """300 variables: a sum that 16 bits cannot tell from its neighbours."""
    x = (normals(2, 3, 300) > 0).to(kind)
    costs, pairs = normals(300, 2).to(kind) + 4, normals(300, 300, seed=1).to(kind)
    made: list[Callable[..., nn.Module]] = [
        lambda costs, pairs: Additive(costs),
        lambda costs, pairs: Potts(pairs, costs),
        lambda costs, pairs: Pairwise(torch.ones(300, 2, 300, 2).to(pairs), costs),
        lambda costs, pairs: OfSum(lambda s: s, 2),
        lambda costs, pairs: OfSum(lambda s: s, 2, costs[:, 0]),
    ]
    for make in made:
        f, wide = make(costs, pairs), make(costs.double(), pairs.double())
        expected, table = wide(x.double()), wide.neighbours(x.double())
        assert f(x).dtype == f.neighbours(x).dtype == torch.float32
        assert_close(f(x).double(), expected, rtol=1e-5, atol=0)
        assert_close(f.neighbours(x).double(), table, rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", HALVES)
def test_cross_entropy_of_few_bits_is_summed_in_float32(kind: torch.dtype) -> None:
    logits, targets = 3 * normals(5, 784), (normals(784, seed=1) > 0).double()
    logits = logits.to(kind)
    value = BernoulliCrossEntropy(targets.to(kind))(logits)
    assert value.dtype == torch.float32
    assert_close(value.double(), BernoulliCrossEntropy(targets)(logits.double()), rtol=1e-5, atol=0)


class Rounded(torch.overrides.TorchFunctionMode):
    """Products as autocast makes them, rounded to bfloat16, in a way that every CPU can do."""

    PRODUCTS = (nn.functional.linear, Tensor.matmul, Tensor.__matmul__, torch.mm)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in self.PRODUCTS:
            args = tuple(
                argument.bfloat16().float() if isinstance(argument, Tensor) else argument
                for argument in args
            )
            assert not kwargs, "autocast takes the way without buffers"
            with torch.autocast("cpu", enabled=False):
                return function(*args).bfloat16()
        return function(*args, **(kwargs or {}))


AUTOCAST = [
    ("cpu", torch.bfloat16, None),
    *product(["cuda"], [torch.bfloat16, torch.float16], [None, "half"]),
]


@pytest.mark.parametrize(("device", "kind", "precision"), AUTOCAST)
def test_the_papers_decoder_under_autocast(
    device: str, kind: torch.dtype, precision: str | None
) -> None:
    """The gradients by the table, also by the kernels, and of the black box: far better than with
    sums in bfloat16."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if precision is not None:
        pytest.importorskip("catlog_kernels")
    layers = [nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 784)]
    net = set_normals(nn.Sequential(*layers)).float().requires_grad_(False).to(device)
    head = BernoulliCrossEntropy((normals(4, 784) > 0.5).float().to(device))
    f = FirstLayerLinear(net, head, precision=precision)
    x = (normals(2, 4, 200) > 0).float().to(device)

    def gradient(f: Callable[[Tensor], Tensor], low: bool) -> Tensor:
        logits = torch.zeros(4, 200, device=device, requires_grad=True)
        rounded = Rounded() if low and device == "cpu" else nullcontext()
        with torch.autocast(device, dtype=kind, enabled=low), rounded:
            value = IndeCateR(2)(f, bits(logits), x=x).sum()
        return torch.autograd.grad(value, logits)[0]

    exact = gradient(f, low=False)
    assert (gradient(lambda x: f(x), low=True) - exact).norm() < 0.1 * exact.norm()
    assert (gradient(f, low=True) - exact).norm() < 0.1 * exact.norm()
