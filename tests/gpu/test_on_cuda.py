"""On a GPU: `catlog.sample` and advantages beside the CPU; every estimator in a captured training
step at the sizes of real models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, sample
from catlog.core.categories import Kind
from catlog.estimators import DARN, ESTIMATORS, GumbelRao
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals
from real_sizes import BATCH, BITS, settings_of
from support.draws import distribution

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

LAYERS = [
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
@pytest.mark.parametrize(("E", "bits"), LAYERS)
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


def training_step(
    E: catlog.Estimator, bits: int, device: str, planted: Callable[[], None] = lambda: None
) -> tuple[catlog.compiled.CompiledStep, Tensor]:
    """Return the step of an autoencoder of 784 pixels, and a batch of images."""
    torch.manual_seed(0)
    images = torch.rand(BATCH, 784, device=device)
    encoder = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, bits)).to(device)
    decoder = nn.Sequential(nn.Linear(bits, 200), nn.ReLU(), nn.Linear(200, 784)).to(device)
    modules = [encoder, decoder, *([E.to(device)] if isinstance(E, nn.Module) else [])]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimiser = torch.optim.Adam(parameters, 1e-3, capturable=device == "cuda")

    def loss(images: Tensor) -> Tensor:
        planted()
        q = Independent(Bernoulli(logits=encoder(images), validate_args=False), 1)
        return E(lambda z: (decoder(z) - images).square().mean(-1), q)

    return catlog.compiled_step(loss, optimiser, compile=False), images


def fail_in_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise ZeroDivisionError("planted")


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize(
    "name", [name for name in ESTIMATORS if Kind.BITS in ESTIMATORS[name].supports]
)
def test_captured_at_real_sizes(name: str) -> None:
    """Twice in one process, each time after a capture that fails."""
    settings = settings_of(name)
    bits = 8 if name == "Exact" else BITS
    for _ in range(2):
        E = ESTIMATORS[name](**settings)
        failing, images = training_step(E, bits, "cuda", fail_in_capture)
        with pytest.raises(RuntimeError, match=r"could not be captured.*planted"):
            failing(images)
        E = ESTIMATORS[name](**settings)
        step, images = training_step(E, bits, "cuda")
        losses = torch.stack([step(images).clone() for _ in range(30)])
        assert step.mode == "captured"
        assert bool(losses.isfinite().all())
        assert losses[-1] < losses[0]
        if name != "Exact":
            assert len(set(losses.tolist())) == len(losses)  # every replay has new draws
