"""On a GPU: the same numbers as on the CPU, no synchronisation, and capture of the whole training step in a CUDA graph."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical

import catlog
from catlog.functions import FirstLayerLinear
from test_battery import estimators

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAWS = {
    "bits": lambda logits: Independent(Bernoulli(logits=logits[..., 0], validate_args=False), 1),
    "integers": lambda logits: Independent(Categorical(logits=logits, validate_args=False), 1),
    "one-hot": lambda logits: Independent(OneHotCategorical(logits=logits, validate_args=False), 1),
    "mixed": lambda logits: catlog.Categoricals(logits, (3, 2, 3), validate_args=False),
}


def f(x: Tensor) -> Tensor:
    x = x.flatten(-2) if x.dim() == 4 else x.double()
    return (x * torch.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype, device=x.device)).sum(-1).sin()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
def test_same_as_on_the_cpu(E: catlog.Estimator, law: str) -> None:
    logits = torch.randn(5, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if (E.differentiates_f and law in ("integers", "mixed")) or isinstance(E, catlog.GumbelSoftmax):
        pytest.skip("not for this law, or with draws that cannot be injected")
    options = {} if isinstance(E, catlog.Exact) else {"x": LAWS[law](logits).sample((E.rows(LAWS[law](logits)),))}
    if getattr(E, "variables", None):
        options["chosen"] = torch.rand(E.samples, 5, 3).argsort(-1)[..., : E.variables]
    results = []
    for device in ("cpu", "cuda"):
        theta = logits.to(device).requires_grad_()
        value = E(f, LAWS[law](theta), **{key: each.to(device) for key, each in options.items()})
        results.append([value.detach().cpu(), torch.autograd.grad(value.sum(), theta)[0].cpu()])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
def test_no_synchronisation(E: catlog.Estimator, law: str) -> None:
    """With values unchecked nothing waits for the GPU."""
    if E.differentiates_f and law in ("integers", "mixed"):
        pytest.skip("needs a law that can be relaxed")
    if law == "mixed" or isinstance(E, catlog.Exact):
        pytest.skip("copies the cardinalities or the list of points to the GPU")
    unchecked = type(E)(**{**vars(E), "validate": False})
    logits = torch.randn(5, 3, 3, device="cuda", requires_grad=True)
    q = LAWS[law](logits)
    unchecked(f, q)
    torch.cuda.set_sync_debug_mode("error")
    try:
        unchecked(f, q).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{}, {"fresh": True}, {"draws": "latin"}, {"variables": 4}], ids=str)
def test_whole_step_in_a_graph(options: dict[str, object]) -> None:
    """Forward, estimate, backward and update captured once and replayed; the loss falls."""
    torch.manual_seed(0)
    encoder = nn.Linear(8, 16).cuda()
    decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
    E = catlog.IndeCateR(2, **options)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimiser = torch.optim.Adam(parameters, 1e-2, fused=True, capturable=True)
    images = torch.rand(10, 8, device="cuda")

    def step() -> Tensor:
        q = Independent(Bernoulli(logits=encoder(images), validate_args=False), 1)
        loss = E(FirstLayerLinear(decoder, lambda out: (out - images).square().sum(-1)), q).mean()
        optimiser.zero_grad(set_to_none=False)
        loss.backward()
        optimiser.step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        before = step().item()
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(300):
        graph.replay()
    assert loss.item() < 0.5 * before
