"""On a GPU: `catlog.sample` beside F.gumbel_softmax, compiled and by a generator, and
`catlog.language_models.advantages`, beside the CPU.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough, sample
from catlog.estimators import DARN, GumbelRao
from catlog.testing.cases import normals

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

ESTIMATORS = [
    pytest.param(E, bits, id=f"{E!r} {'bits' if bits else 'one-hot'}")
    for E in (ReinMax(), StraightThrough(), GumbelSoftmax(hard=True), GumbelRao(), DARN())
    for bits in (False, True)
    if bits or not isinstance(E, DARN)
]


def numbers(*shape: int, seed: int = 0, device: str = "cuda") -> Tensor:
    return normals(*shape, seed=seed).to(device)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_softmax_is_that_of_torch(hard: bool, dim: int, dtype: torch.dtype) -> None:
    """After the same seed: bit for bit the same values and gradient, and the next number too.

    Hard values of torch's function have rounding errors.
    """
    leaf = numbers(6, 5, 4).to(dtype).requires_grad_()
    weight = numbers(6, 5, 4, seed=1).to(dtype)
    results = []
    for draw in (
        lambda: F.gumbel_softmax(leaf, 0.7, hard=hard, dim=dim),
        lambda: sample(leaf, GumbelSoftmax(temperature=0.7, hard=hard), dim=dim),
    ):
        torch.manual_seed(3)
        y = draw()
        (gradient,) = torch.autograd.grad((y * weight).sum(), leaf)
        results.append((y.round() if hard else y, gradient, torch.rand((), device="cuda")))
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(theirs, ours)
    assert results[0][1].abs().max() > 1e-3


@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_draws_follow_the_generator(E: catlog.Estimator, bits: bool) -> None:
    logits = numbers(50, 4)
    generators = (torch.Generator("cuda").manual_seed(seed) for seed in (0, 0, 1))
    first, again, other = (sample(logits, E, bits=bits, generator=g) for g in generators)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.is_cuda


@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_gradient_is_that_of_the_cpu(E: catlog.Estimator, bits: bool) -> None:
    """With the same draw or noise."""
    gradients = []
    for place in ("cpu", "cuda"):
        leaf = numbers(5, 4, device=place).requires_grad_()
        y = sample(leaf, E, bits=bits, **injected(E, bits, place))
        total = (y * numbers(5, 4, seed=1, device=place)).sum(-1).sin().sum()
        gradients.append(torch.autograd.grad(total, leaf)[0].cpu())
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize(("E", "bits"), ESTIMATORS)
def test_compiles_as_one_graph(E: catlog.Estimator, bits: bool) -> None:
    """With the same draw or noise, the gradient is that of an eager layer; without, it draws."""
    torch._dynamo.reset()
    weight = numbers(5, 4, seed=1)

    def loss(logits: Tensor, randomness: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        y = sample(logits, E, bits=bits, **randomness)
        return (y * weight).sum(-1).sin().sum(), y

    compiled, gradients = torch.compile(loss, fullgraph=True), []
    for function in (loss, compiled):
        leaf = numbers(5, 4).requires_grad_()
        value, _ = function(leaf, injected(E, bits, "cuda"))
        gradients.append(torch.autograd.grad(value, leaf)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)
    draws = torch.stack([compiled(numbers(5, 4).requires_grad_(), {})[1] for _ in range(20)])
    # Inductor may compute x + (y - y) with a fused multiply-add, which leaves a rounding error.
    torch.testing.assert_close(draws, draws.round(), rtol=0, atol=1e-15)
    assert bool((draws != draws[0]).any())


def injected(E: catlog.Estimator, bits: bool, device: str) -> dict[str, Tensor]:
    """Return a draw, and noise, for logits of shape [5, 4]."""
    given = {}
    if not isinstance(E, GumbelSoftmax):
        index = torch.tensor([0, 3, 1, 1, 2])
        x = numbers(5, 4, seed=2) > 0 if bits else F.one_hot(index, 4)
        given["x"] = x.double().to(device)
    if (type(E), bits) in NOISE:
        uniforms = normals(10_000, seed=7).sigmoid()
        shape = NOISE[type(E), bits]
        given["noise"] = uniforms[: torch.Size(shape).numel()].view(shape).to(device)
    return given


NOISE = {
    (GumbelSoftmax, False): (1, 5, 1, 4),
    (GumbelSoftmax, True): (1, 5, 4, 1),
    (GumbelRao, False): (10, 1, 5, 1, 4),
    (GumbelRao, True): (10, 1, 5, 4, 1, 2),
}


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


@pytest.mark.parametrize("groups", [4, [0, 1, 0, 1, 2, 2, 2, 1]], ids=["size", "labels"])
@pytest.mark.parametrize(
    "estimator", ["reinforce", "rloo", "criticater", "vineppo", "dr_grpo", "grpo"]
)
def test_advantages_are_those_of_the_cpu(estimator: str, groups: int | list[int]) -> None:
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
