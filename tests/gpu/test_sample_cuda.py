"""On a GPU: `catlog.sample` and `catlog.language_models.advantages`, beside the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, sample
from catlog.estimators import DARN, GumbelRao
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals
from support.draws import distribution

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

ESTIMATORS = [
    pytest.param(E, bits, id=f"{E!r} {'bits' if bits else 'one-hot'}")
    for E in (ReinMax(), StraightThrough(), GumbelSoftmax(hard=True), GumbelRao(), DARN())
    for bits in (False, True)
    if bits or not isinstance(E, DARN)
]


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_gumbel_softmax_is_that_of_torch(hard: bool, dim: int) -> None:
    """After the same seed: bit for bit the same values and gradient, and the next number too.

    Hard values of torch's function have rounding errors.
    """
    for dtype in (torch.float32, torch.float64):
        leaf = normals(6, 5, 4).to("cuda", dtype).requires_grad_()
        weight = normals(6, 5, 4, seed=1).to(leaf)
        results = []
        for draw in (
            lambda leaf: F.gumbel_softmax(leaf, 0.7, hard=hard, dim=dim),
            lambda leaf: sample(leaf, GumbelSoftmax(temperature=0.7, hard=hard), dim=dim),
        ):
            torch.manual_seed(3)
            y = draw(leaf)
            (gradient,) = torch.autograd.grad((y * weight).sum(), leaf)
            results.append((y.round() if hard else y, gradient, torch.rand((), device="cuda")))
        assert all(torch.equal(theirs, ours) for theirs, ours in zip(*results, strict=True))
        assert results[0][1].abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore")  # Inductor's own, and of the mode that finds waits
@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_sample(E: catlog.Estimator, bits: bool) -> None:
    """With the same draw or noise, the gradient is that of the CPU, also compiled as one graph.

    Draws follow the generator, and without validation nothing waits for the GPU.
    """
    torch._dynamo.reset()
    given = draw_randomness(E, distribution(normals(5, 4), bits))
    if "x" in given:
        given["x"] = given["x"][0]

    def draw(logits: Tensor, randomness: dict[str, Any]) -> tuple[Tensor, Tensor]:
        y = sample(logits, E, bits=bits, **randomness)
        scale = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
        return (y * scale).sum(-1).sin().sum(), y

    compiled, gradients = torch.compile(draw, fullgraph=True), []
    for place, function in (("cpu", draw), ("cuda", draw), ("cuda", compiled)):
        leaf = normals(5, 4).to(place).requires_grad_()
        here = tree_map_only(Tensor, lambda part, to=place: part.to(to), given)
        value, _ = function(leaf, here)
        gradients.append(torch.autograd.grad(value, leaf)[0].cpu())
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-12)
    draws = torch.stack([compiled(leaf, {})[1] for _ in range(20)])
    # Inductor may compute x + (y - y) with a fused multiply-add, which leaves a rounding error.
    torch.testing.assert_close(draws, draws.round(), rtol=0, atol=1e-15)
    assert bool((draws != draws[0]).any())
    logits = normals(50, 4).cuda().requires_grad_()
    generators = (torch.Generator("cuda").manual_seed(seed) for seed in (0, 0, 1))
    first, again, other = (sample(logits, E, bits=bits, generator=g) for g in generators)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    if isinstance(E, DARN | GumbelRao):
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(logits, E, bits=bits, validate_args=False).sin().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("groups", [4, [0, 1, 0, 1, 2, 2, 2, 1]], ids=["size", "labels"])
@pytest.mark.parametrize(
    "estimator", ["reinforce", "rloo", "criticater", "vineppo", "dr_grpo", "grpo"]
)
def test_advantages(estimator: str, groups: int | list[int]) -> None:
    mask = torch.arange(6) < torch.tensor([6, 2, 3, 6, 1, 4, 5, 6]).unsqueeze(-1)
    options: dict[str, Tensor] = {}
    if estimator == "criticater":
        options["tokens"] = (normals(8, 6, seed=1) > 0).long()
    if estimator == "vineppo":
        options["values"] = normals(8, 6, seed=2).masked_fill(normals(8, 6, seed=3) > 0, torch.nan)
    labels = torch.tensor(groups) if isinstance(groups, list) else groups
    given = normals(8), labels, mask
    results = []
    for place in ("cpu", "cuda"):
        here, named = tree_map_only(Tensor, lambda part, to=place: part.to(to), (given, options))
        weights = catlog.language_models.advantages(*here, estimator=estimator, **named)
        assert weights.device.type == place
        results.append(weights.cpu())
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
