"""On a GPU: `catlog.sample` beside F.gumbel_softmax, compiled and by a generator, and
`catlog.language_models.advantages` beside the CPU. They run on the CPU, too.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, sample
from catlog.estimators import DARN, GumbelRao
from catlog.testing.cases import normals

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
both_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
ESTIMATORS = [
    pytest.param(E, bits, id=f"{E!r} {'bits' if bits else 'one-hot'}")
    for E in (ReinMax(), StraightThrough(), GumbelSoftmax(hard=True), GumbelRao(), DARN())
    for bits in (False, True)
    if bits or not isinstance(E, DARN)
]


def numbers(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    return normals(*shape, seed=seed).to(device)


def seeded(device: str, seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@both_devices
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_softmax_is_that_of_torch(
    device: str, hard: bool, dim: int, dtype: torch.dtype
) -> None:
    """After the same seed: bit for bit the same values and gradient, and the next number too.

    Hard values of torch's function have rounding errors.
    """
    leaf = numbers(6, 5, 4, device=device).to(dtype).requires_grad_()
    weight = numbers(6, 5, 4, seed=1, device=device).to(dtype)
    results = []
    for draw in (
        lambda: F.gumbel_softmax(leaf, 0.7, hard=hard, dim=dim),
        lambda: sample(leaf, GumbelSoftmax(temperature=0.7, hard=hard), dim=dim),
    ):
        torch.manual_seed(3)
        y = draw()
        (gradient,) = torch.autograd.grad((y * weight).sum(), leaf)
        results.append((y.round() if hard else y, gradient, torch.rand((), device=device)))
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(theirs, ours)
    assert results[0][1].abs().max() > 1e-3


@both_devices
@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_draws_follow_the_generator(device: str, E: catlog.Estimator, bits: bool) -> None:
    logits = numbers(50, 4, device=device)
    first, again, other = (
        sample(logits, E, bits=bits, generator=seeded(device, seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert bool(((first == 0) | (first == 1)).all())
    assert first.device.type == device
    if not bits:
        assert bool((first.sum(-1) == 1).all())
    with torch.inference_mode():
        inferred = sample(logits, E, bits=bits, generator=seeded(device))
        assert torch.equal(inferred, first)
        assert inferred.is_inference()


@both_devices
@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_gradient_is_that_of_the_cpu(device: str, E: catlog.Estimator, bits: bool) -> None:
    """With the same draw or noise."""
    gradients = []
    for place in ("cpu", device):
        leaf = numbers(5, 4, device=place).requires_grad_()
        y = sample(leaf, E, bits=bits, **injected(E, bits, place))
        total = (y * numbers(5, 4, seed=1, device=place)).sum(-1).sin().sum()
        gradients.append(torch.autograd.grad(total, leaf)[0].cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)
    assert gradients[0].abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@both_devices
@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_compiles_as_one_graph(device: str, E: catlog.Estimator, bits: bool) -> None:
    """With the same draw or noise, the gradient is that of an eager layer; without, it draws."""
    torch._dynamo.reset()
    weight = numbers(5, 4, seed=1, device=device)
    # Inductor for the CPU needs a C++ compiler, and tests/compiled has it.
    backend = "inductor" if device == "cuda" else "aot_eager"

    def loss(logits: Tensor, randomness: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        y = sample(logits, E, bits=bits, **randomness)
        return (y * weight).sum(-1).sin().sum(), y

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    gradients = []
    for function in (loss, compiled):
        leaf = numbers(5, 4, device=device).requires_grad_()
        value, _ = function(leaf, injected(E, bits, device))
        gradients.append(torch.autograd.grad(value, leaf)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)
    logits = numbers(5, 4, device=device).requires_grad_()
    draws = torch.stack([compiled(logits, {})[1].detach() for _ in range(20)])
    # Inductor may compute x + (y - y) with a fused multiply-add, which leaves a rounding error.
    torch.testing.assert_close(draws, draws.round(), rtol=0, atol=1e-15)
    assert set(draws.round().abs().unique().tolist()) == {0.0, 1.0}
    assert bool((draws != draws[0]).any())


def injected(E: catlog.Estimator, bits: bool, device: str) -> dict[str, Tensor]:
    """Return a draw, and noise, for logits of shape [5, 4]."""
    given = {}
    if not isinstance(E, GumbelSoftmax):
        index = torch.tensor([0, 3, 1, 1, 2])
        x = numbers(5, 4, seed=2) > 0 if bits else F.one_hot(index, 4)
        given["x"] = x.double().to(device)
    if (type(E), bits) in NOISE:
        uniforms = torch.rand(10_000, dtype=torch.float64, generator=seeded("cpu", 7))
        shape = NOISE[type(E), bits]
        given["noise"] = uniforms[: torch.Size(shape).numel()].view(shape).to(device)
    return given


NOISE = {
    (GumbelSoftmax, False): (1, 5, 1, 4),
    (GumbelSoftmax, True): (1, 5, 4, 1),
    (GumbelRao, False): (10, 1, 5, 1, 4),
    (GumbelRao, True): (10, 1, 5, 4, 1, 2),
}


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("bits", [False, True])
@pytest.mark.parametrize("name", ["ReinMax", "StraightThrough", "GumbelSoftmax"])
def test_no_synchronisation(name: str, bits: bool) -> None:
    """Without validation nothing waits for the GPU."""
    E = catlog.estimators.ESTIMATORS[name]()
    logits = torch.randn(5, 4, device="cuda", requires_grad=True)
    sample(logits, E, bits=bits, validate_args=False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(logits, E, bits=bits, validate_args=False).sin().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@both_devices
@pytest.mark.parametrize("groups", [4, [0, 1, 0, 1, 2, 2, 2, 1]], ids=["size", "labels"])
@pytest.mark.parametrize(
    "estimator", ["reinforce", "rloo", "criticater", "vineppo", "dr_grpo", "grpo"]
)
def test_advantages_are_those_of_the_cpu(
    device: str, estimator: str, groups: int | list[int]
) -> None:
    results = []
    for place in ("cpu", device):
        mask = torch.arange(6, device=place) < torch.tensor([6, 2, 3, 6, 1, 4, 5, 6]).to(
            place
        ).unsqueeze(-1)
        options: dict[str, Tensor] = {}
        if estimator == "criticater":
            options["tokens"] = (numbers(8, 6, seed=1) > 0).long().to(place)
        if estimator == "vineppo":
            options["values"] = numbers(8, 6, seed=2).masked_fill(
                numbers(8, 6, seed=3) > 0, torch.nan
            ).to(place)  # fmt: skip
        labels = torch.tensor(groups, device=place) if isinstance(groups, list) else groups
        weights = catlog.language_models.advantages(
            numbers(8, device=place), labels, mask, estimator=estimator, **options
        )
        assert weights.device.type == place
        results.append(weights.cpu())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)
    assert results[0].abs().max() > 0.1
