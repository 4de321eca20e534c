"""Call a loss with several batch sizes, in eager mode and compiled."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from shutil import which
from sysconfig import get_path

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

import catlog
from catlog.distributions import Categoricals
from catlog.testing.settings import supports
from support.laws import KINDS
from support.structured_cases import StructuredCase

LAWS = KINDS | {"mixed": lambda logits: Categoricals(logits, (3, 2, 3, 2)[: logits.shape[-2]])}
BATCHES = [(5, 3), (3, 3), (7, 3)]  # batch elements, variables


def widest(E: catlog.Estimator) -> str:
    """Return the most general kind of distribution that E takes."""
    return next(kind for kind in ("mixed", "one-hot", "index", "bits") if supports(E, kind))


def learns(E: catlog.Estimator) -> bool:
    """Return whether E has a state that calls change."""
    return isinstance(E, nn.Module) and any(True for _ in E.buffers())


def why_not_inductor() -> str:
    """Return what Inductor lacks on this machine; empty if it can work."""
    if not any(map(which, ("g++", "clang++", "c++"))):
        return "Inductor needs a C++ compiler, and this machine has none"
    if not (Path(get_path("include")) / "Python.h").exists():
        return "Inductor needs Python's headers, and this machine has none"
    if " " in torch.__path__[0]:
        return (
            f"Inductor's linker takes no path with a space, and torch is in {torch.__path__[0]!r}"
        )
    return ""


PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "addr"}


def check_graph(graph: fx.GraphModule, inputs: object) -> Callable[..., object]:
    """Raise where a graph has what a GPU lacks, or what its compiler turns into that.

    A GPU has no products of integer matrices. Inductor before PyTorch 2.13 replaces a number that
    is scattered into zeros by ``where(..., number, 0)``, and loses the dtype of the zeros.
    """
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            continue
        if str(node.target).removeprefix("aten.").split(".")[0] in PRODUCTS:
            assert value.is_floating_point(), f"a product of integers: {node.format_node()}"
        if node.target is torch.ops.aten.scatter.value and value.is_floating_point():
            zeros, dim, index, _ = node.args
            is_constant = zeros.op == "call_function" and not zeros.all_input_nodes
            message = f"a number in constants: {node.format_node()}"
            assert not (is_constant and index.meta["val"].shape[dim] == 1), message
    return make_boxed_func(graph.forward)


# As "aot_eager", and every graph is checked.
checked_graphs = aot_autograd(
    fw_compiler=check_graph, partition_fn=min_cut_rematerialization_partition
)


def f(x: Tensor, scale: Tensor) -> Tensor:
    x = x.to(scale.dtype)
    x = x.flatten(-2) if x.dim() == 4 else x
    return (x * scale[: x.shape[-1]]).sum(-1).sin() * x[..., 0]


def both(
    E: catlog.Estimator,
    law: str,
    sizes: list[tuple[int, int]] = BATCHES[:1],
    graphs: list[int] | None = None,
    device: str = "cpu",
    **options: object,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return values, gradients and buffers, compiled and in eager mode, with the same seeds.

    The number of compiled graphs is appended to ``graphs`` after every size.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = outcomes(
        E, law, sizes, lambda loss: torch.compile(loss, fullgraph=True, **options), device, graphs
    )
    return compiled, outcomes(E, law, sizes, lambda loss: loss, device)


def outcomes(
    E: catlog.Estimator,
    law: str,
    sizes: list[tuple[int, int]],
    prepared: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
    device: str,
    graphs: list[int] | None = None,
) -> list[Tensor]:
    copy = deepcopy(E).to(device) if isinstance(E, nn.Module) else E
    call = prepared(lambda logits, scale: copy(lambda x: f(x, scale), LAWS[law](logits)))
    results = []
    for batch, d in sizes:
        torch.manual_seed(batch)
        logits = torch.randn(batch, d, 3, dtype=torch.float64).to(device).requires_grad_()
        scale = torch.linspace(0.5, 1.5, 3 * d, dtype=torch.float64).to(device).requires_grad_()
        value = call(logits, scale)
        gradients = torch.autograd.grad(value.sum(), [logits, scale])
        buffers = copy.buffers() if isinstance(copy, nn.Module) else ()
        results += [value.detach(), *gradients, *(buffer.clone() for buffer in buffers)]
        if graphs is not None:
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return results


def check(E: catlog.Estimator, law: str, graphs: list[int], **options: object) -> None:
    """Compare values, gradients and the numbers of graphs for three batch sizes.

    Estimators that learn must only compile here: test_learning.py compares their results.
    """
    counted: list[int] = []
    compiled, eager = both(E, law, BATCHES, counted, **options)
    assert counted == graphs
    if learns(E):
        assert all(result.isfinite().all() for result in compiled)
    else:
        torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-9)


def assert_compiles(
    loss: Callable[[Tensor], Tensor], theta: Tensor, dynamic: bool | None = False
) -> None:
    """Check that a compiled loss of theta has the value and the gradient of eager mode."""
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=checked_graphs)
    results = []
    for call in (compiled, loss):
        torch.manual_seed(0)
        value = call(theta)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), theta)])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def assert_compiles_on(case: StructuredCase, E: catlog.Estimator) -> None:
    """Check that an estimate on a structured distribution compiles."""

    def f(x: Tensor) -> Tensor:
        x = x.double()
        return (x * torch.arange(1.0, 1 + x.shape[-1], dtype=torch.float64)).sum(-1).sin()

    theta = case.theta.clone().requires_grad_()
    assert_compiles(lambda theta: E(f, case.distribution(theta)), theta)
