"""The fused table: its formula against brute force, and on a GPU the kernels against float64."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
import catlog_kernels as kernels
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear

# Relative error in norm of the values, and of the gradient of IndeCateR, with 10 bits of mantissa.
BOUND = 1e-3
# points, batch, bits, widths, chosen bits, biases
SIZES = {
    "DVAE": (200, 100, 200, (256, 384, 784), None, True),
    "odd": (21, 7, 13, (33, 67, 51), None, True),
    "chosen": (12, 3, 9, (40, 130, 70), 4, True),
    "no biases": (6, 6, 70, (64, 64, 64), None, False),
    "one bit": (3, 1, 1, (5, 3, 1), None, True),
    "wide": (4, 2, 5, (300, 384, 130), None, True),
}
# Changes of a module after the first, which the kernels would not see.
CHANGES = {
    "hook": lambda module: module.register_forward_hook(lambda module, given, out: 2 * out),
    "pre-hook": lambda module: module.register_forward_pre_hook(lambda module, given: given),
    "another forward": lambda module: setattr(module, "forward", module.forward),
    "another class": lambda module: setattr(module, "__class__", doubled(type(module))),
}


def doubled(kind: type[nn.Module]) -> type[nn.Module]:
    return type("Doubled", (kind,), {"forward": lambda self, x: 2 * kind.forward(self, x)})


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
sizes = pytest.mark.parametrize("size", SIZES)


def arguments(
    size: str, scale: float = 1.0, device: str = "cpu", seed: int = 0
) -> list[Tensor | None]:
    """Return the operation's float32 tensors for a network with activations of about ``scale``."""
    points, batch, d, (h1, h2, out), slots, biases = SIZES[size]
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x = (torch.rand(points, d, generator=generator) < 0.5).float()
    w1, w2, w3 = (
        randn(h1, d) / d**0.5 * scale,
        randn(h2, h1) / h1**0.5,
        randn(out, h2) / h2**0.5 / scale,
    )
    b1, b2, b3 = (
        (0.1 * scale * randn(h1), 0.1 * scale * randn(h2), randn(out))
        if biases
        else (None, None, None)
    )
    targets = (torch.rand(batch, out, generator=generator) < 0.3).float()
    which = (
        None if slots is None else torch.rand(points, d, generator=generator).argsort(-1)[:, :slots]
    )
    offset = torch.zeros(batch) if b3 is None else targets @ b3
    tensors = [x, which, w1, b1, w2, b2, w3, b3, targets @ w3, offset]
    return [tensor if tensor is None else tensor.to(device) for tensor in tensors]


def double(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [
        tensor
        if tensor is None
        else (tensor.double() if tensor.is_floating_point() else tensor).cpu()
        for tensor in tensors
    ]


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.cpu().double() - expected).norm() / expected.norm())


def decoder(d: int, *widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    first, second, out = widths
    return nn.Sequential(
        nn.Linear(d, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, out)
    )


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("chosen", [False, True])
def test_formula_equals_brute_force(
    batch: tuple[int, ...], chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU would call the operation, against FirstLayerLinear's own way and against f."""
    d = 5
    net = decoder(d, 6, 8, 7).double()
    f = FirstLayerLinear(
        net, BernoulliCrossEntropy(torch.rand(*batch, 7, dtype=torch.float64)), precision="half"
    )
    x = torch.randint(2, (3, *batch, d)).double()
    variables = torch.rand(3, *batch, d).argsort(-1)[..., :2] if chosen else None
    with torch.no_grad():
        own_way = f.neighbours(x, variables)
        monkeypatch.setattr(kernels, "usable", lambda x, slots: True)
        table = f.neighbours(x, variables)
        torch.testing.assert_close(table, own_way, rtol=0, atol=1e-12)
        for i in range(d if variables is None else 2):
            for k in (0.0, 1.0):
                point = x.scatter(
                    -1,
                    torch.full_like(x[..., :1], i).long()
                    if variables is None
                    else variables[..., i : i + 1],
                    k,
                )
                torch.testing.assert_close(table[..., i, int(k)], f(point), rtol=0, atol=1e-12)
        compiled = torch.compile(f.neighbours, fullgraph=True, dynamic=False, backend="aot_eager")
        torch.testing.assert_close(compiled(x, variables), table, rtol=0, atol=1e-12)
    torch._dynamo.reset()


@pytest.mark.parametrize("size", ["odd", "chosen"])
def test_operation_is_registered_well(size: str) -> None:
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(kernels.bernoulli_table, tuple(arguments(size)), test_utils=checks)


def test_which_networks_use_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    head, x = BernoulliCrossEntropy(torch.rand(4, 7)), torch.zeros(2, 4, 5)
    net = decoder(5, 6, 8, 7)
    made: list[Tensor] = []

    table = kernels.bernoulli_table

    def noticed(*tensors: Tensor) -> Tensor:
        made.append(table(*tensors))
        return made[-1]

    def uses_it(f: FirstLayerLinear) -> bool:
        made.clear()
        assert f.neighbours(x).shape == (2, 4, 5, 2)
        return bool(made)

    monkeypatch.setattr(kernels, "bernoulli_table", noticed)
    with torch.no_grad():
        assert not uses_it(FirstLayerLinear(net, head, precision="half"))  # on a CPU
        monkeypatch.setattr(kernels, "usable", lambda x, slots: True)
        assert uses_it(FirstLayerLinear(net, head, precision="half"))
        assert not uses_it(FirstLayerLinear(net, head))  # PyTorch's default is full float32
        assert not uses_it(FirstLayerLinear(net, head, precision="float32"))
        assert not uses_it(FirstLayerLinear(net, lambda out: out.sum(-1), precision="half"))
        small = decoder(5, 6, 7, 7)[:3]
        assert not uses_it(FirstLayerLinear(small, head, precision="half"))
        for at, change in product(range(4), CHANGES):
            changed = decoder(5, 6, 8, 7)
            CHANGES[change](changed[at + 1])
            assert not uses_it(FirstLayerLinear(changed, head, precision="half")), (at, change)
    assert not uses_it(FirstLayerLinear(net, head, precision="half"))  # with autograd
    with pytest.raises(ValueError, match="`precision` must be"):
        FirstLayerLinear(net, head, precision="bfloat16")


@on_gpu
@sizes
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6], ids=str)
def test_kernel_against_float64(size: str, scale: float) -> None:
    tensors = arguments(size, scale, "cuda")
    expected = kernels.bernoulli_table(*double(tensors))
    for _ in range(2):  # while it tunes, and after
        assert error(kernels.bernoulli_table(*tensors), expected) < BOUND


@on_gpu
@sizes
@pytest.mark.parametrize("index", range(2))
def test_both_ways_of_the_last_layer(
    size: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products by the library and fused, without tuning; repeated calls give the same numbers."""
    from catlog_kernels import triton_kernels as tk

    monkeypatch.setattr(tk, "chosen", {})
    monkeypatch.setattr(tk, "LAST", tk.LAST[index : index + 1])
    tensors = arguments(size, device="cuda")
    table = kernels.bernoulli_table(*tensors)
    expected = kernels.bernoulli_table(*double(tensors))
    assert error(table, expected) < BOUND
    assert error(table[:, :-1] - table[:, -1:], expected[:, :-1] - expected[:, -1:]) < 2e-3
    assert torch.equal(kernels.bernoulli_table(*tensors), table)


@on_gpu
@pytest.mark.parametrize("size", ["odd", "chosen"])
def test_few_points_at_once(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from catlog_kernels import triton_kernels as tk

    tensors = arguments(size, device="cuda")
    monkeypatch.setattr(tk, "chosen", {})
    monkeypatch.setattr(tk, "LAST", tk.LAST[1:])
    table = kernels.bernoulli_table(*tensors)
    monkeypatch.setattr(tk, "AT_ONCE", 2**14)
    torch.testing.assert_close(kernels.bernoulli_table(*tensors), table, rtol=1e-5, atol=1e-4)


@on_gpu
@pytest.mark.parametrize("layer", [2, 4, 6])
def test_nan_is_not_hidden(layer: int) -> None:
    tensors = arguments("odd", device="cuda")
    weight = tensors[layer]
    assert weight is not None
    weight[3, 5] = float("nan")
    assert bool(kernels.bernoulli_table(*tensors).isnan().any())


@on_gpu
def test_gradient_against_float64() -> None:
    """The gradient of IndeCateR for the paper's decoder, f(x) itself in float32."""
    logits = torch.randn(100, 200, generator=torch.Generator().manual_seed(0))
    images = (torch.rand(100, 784, generator=torch.Generator().manual_seed(1)) < 0.2).float()
    x = (
        torch.rand(2, 100, 200, generator=torch.Generator().manual_seed(2)) < logits.sigmoid()
    ).float()
    gradients = []
    for dtype, device in ((torch.float64, "cpu"), (torch.float32, "cuda")):
        net = decoder(200, 256, 384, 784).to(device, dtype)
        f = FirstLayerLinear(net, BernoulliCrossEntropy(images.to(device, dtype)), precision="half")
        theta = logits.to(device, dtype, copy=True).requires_grad_()
        catlog.IndeCateR(2)(
            f, Independent(Bernoulli(logits=theta), 1), x=x.to(device, dtype)
        ).sum().backward()
        gradients.append(theta.grad)
    assert error(gradients[1], gradients[0]) < BOUND


@on_gpu
@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_compiled_and_captured() -> None:
    net = decoder(80, 32, 48, 8).cuda()
    f = FirstLayerLinear(
        net, BernoulliCrossEntropy(torch.rand(5, 8, device="cuda")), precision="half"
    )
    x = torch.randint(2, (2, 5, 80), device="cuda").float()
    with torch.no_grad():
        eager = f.neighbours(x)
        compiled = torch.compile(f.neighbours, fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(x), eager, rtol=1e-4, atol=1e-4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = compiled(x)
        x.copy_(1 - x)
        captured.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(captured, f.neighbours(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
