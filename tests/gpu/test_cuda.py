"""On a GPU: the same numbers as on the CPU, no synchronisation, and capture of the whole training
step in a CUDA graph.
"""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical
from torch.utils._pytree import tree_map

import catlog
from catlog import Exact, SCateR
from catlog.distributions import Categoricals, MarkovChain
from catlog.estimators import LEG, MAPO, RAM, DoubleCV, SumAndSample, UnorderedSet
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals
from catlog.testing.settings import continuous, estimators, supports

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

LAWS = {
    "bits": lambda logits: Independent(Bernoulli(logits=logits[..., 0], validate_args=False), 1),
    "integers": lambda logits: Independent(Categorical(logits=logits, validate_args=False), 1),
    "one-hot": lambda logits: Independent(OneHotCategorical(logits=logits, validate_args=False), 1),
    "mixed": lambda logits: Categoricals(logits, (3, 2, 3), validate_args=False),
}


def f(x: Tensor) -> Tensor:
    x = x.flatten(-2) if x.dim() == 4 else x.double()
    return (x * torch.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype, device=x.device)).sum(-1).sin()


def on(E: catlog.Estimator, device: str) -> catlog.Estimator:
    """Return E, or a copy with its parameters on the device."""
    return deepcopy(E).to(device) if isinstance(E, nn.Module) else E


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
def test_same_as_on_the_cpu(E: catlog.Estimator, law: str) -> None:
    logits = torch.randn(5, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if not supports(E, "index" if law == "integers" else law) or continuous(E):
        pytest.skip("not for this law, or with draws that cannot be injected")
    given = draw_randomness(E, LAWS[law](logits))
    results = []
    for device in ("cpu", "cuda"):
        theta = logits.to(device).requires_grad_()
        options = tree_map(lambda part, device=device: part.to(device), given)
        value = on(E, device)(f, LAWS[law](theta), **options)
        results.append([value.detach().cpu(), torch.autograd.grad(value.sum(), theta)[0].cpu()])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
def test_no_synchronisation(E: catlog.Estimator, law: str) -> None:
    """Without validation nothing waits for the GPU."""
    if not supports(E, "index" if law == "integers" else law):
        pytest.skip("not for this law")
    if law == "mixed" or isinstance(E, Exact | SCateR | LEG | RAM):
        pytest.skip(
            "copies a short list (cardinalities, moves) to the GPU, which waits for it unless "
            "compiled"
        )
    if isinstance(E, MAPO | UnorderedSet | SumAndSample):
        pytest.skip("sorts out points of a memory or a set, with cardinalities copied to the GPU")
    E = on(E, "cuda")
    logits = torch.randn(5, 3, 3, device="cuda", requires_grad=True)
    q = LAWS[law](logits)
    E(f, q)
    torch.cuda.set_sync_debug_mode("error")
    try:
        E(f, q).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize(
    "E",
    [
        catlog.IndeCateR(2),
        catlog.IndeCateR(2, per_variable=True),
        catlog.IndeCateR(2, sampling="latin"),
        catlog.IndeCateR(2, variables=4),
        catlog.SlopeCateR(4),
        catlog.SlopeCateR(4, every=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("compile", [False, None], ids=["captured", "compiled and captured"])
def test_whole_step_in_a_graph(E: catlog.Estimator, compile: bool | None) -> None:
    """Forward, estimate, backward and update captured once and replayed; the loss falls."""
    torch.manual_seed(0)
    encoder = nn.Linear(8, 16).cuda()
    decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
    E = deepcopy(E).cuda() if isinstance(E, nn.Module) else E
    optimiser = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters()], 1e-2, capturable=True
    )

    def loss(images: Tensor) -> Tensor:
        q = Independent(Bernoulli(logits=encoder(images), validate_args=False), 1)
        return E(FirstLayerLinear(decoder, lambda out: (out - images).square().sum(-1)), q)

    step = catlog.compiled_step(loss, optimiser, compile=compile, estimator=E)
    images = torch.rand(10, 8, device="cuda")
    before = step(images).item()
    assert step.mode == ("captured" if compile is False else "compiled, captured")
    losses = [step(images).item() for _ in range(300)]
    assert losses[-1] < 0.5 * before
    assert len(set(losses)) > 290  # every replay draws again
    assert len(step._recordings) == (2 if "every" in repr(E) else 1)
    with pytest.raises(ValueError, match="captured with"):
        step(images[:5])


@pytest.mark.filterwarnings("ignore:TensorFloat32")
# a hook keeps a node of the default stream alive
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
@pytest.mark.parametrize(
    "how", ["captured", "fused, captured", "compiled, captured", "hooked, compiled, captured"]
)
def test_captured_step_equals_eager(how: str) -> None:
    """With the draws given, the parameters move as in an eager step, from the first call on."""
    x = torch.bernoulli(torch.full((2, 10, 6), 0.5)).cuda()
    images = torch.rand(10, 4, device="cuda")
    results = []
    for captured in (False, True):
        torch.manual_seed(1)
        encoder, decoder = nn.Linear(4, 6).cuda(), nn.Linear(6, 4).cuda()
        parameters = [*encoder.parameters(), *decoder.parameters()]
        optimiser = torch.optim.Adam(
            parameters, 1e-2, fused="fused" in how or None, capturable=captured
        )
        if "hooked" in how:
            optimiser.register_step_pre_hook(
                lambda *_, of=parameters: [parameter.grad.mul_(-1) for parameter in of] and None
            )

        def loss(
            images: Tensor, encoder: nn.Module = encoder, decoder: nn.Module = decoder
        ) -> Tensor:
            q = Independent(Bernoulli(logits=encoder(images), validate_args=False), 1)
            return catlog.IndeCateR(2)(lambda z: (decoder(z) - images).square().sum(-1), q, x=x)

        step = catlog.compiled_step(loss, optimiser, compile=captured and "compiled" in how)
        for _ in range(5):
            step(images)
        assert ("capturable=True" in step.why) == (not captured)
        assert step.mode == (
            how.removeprefix("fused, ").removeprefix("hooked, ") if captured else "eager"
        )
        results.append(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    torch.testing.assert_close(*results)


CRITICS = {  # q, the shape of its parameters, and draws: both routes of CritiCateR's regressions
    "bits": (LAWS["bits"], (5, 3, 3), 16),
    "wide": (LAWS["integers"], (5, 40, 3), 8),
    "chain": (
        lambda theta: MarkovChain(theta[..., 0, :], theta[..., 1:, :], 4, validate_args=False),
        (5, 4, 3),
        16,
    ),
}


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize("name", CRITICS)
@pytest.mark.parametrize("mode", ["captured", "compiled, captured"])
def test_criticater_in_a_graph(name: str, mode: str) -> None:
    """On the same draws it has the gradient of an eager step."""
    law, shape, draws = CRITICS[name]
    start = normals(*shape).cuda()
    x, ones = law(start).sample((draws,)), torch.ones(5, dtype=torch.float64, device="cuda")
    gradients = []
    for wanted in ("eager", mode):
        theta = nn.Parameter(start.clone())
        optimiser = torch.optim.Adam([theta], 0.0, capturable=wanted != "eager")

        def loss(scale: Tensor, theta: Tensor = theta) -> Tensor:
            return scale * catlog.CritiCateR(draws)(lambda x: f(x.double()), law(theta), x=x)

        step = catlog.compiled_step(loss, optimiser, compile=wanted == "compiled, captured")
        for _ in range(2):  # the second call is a replay, at the same theta
            step(ones)
        assert step.mode == wanted
        gradients.append(theta.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("failure", ["look", "cholesky_inverse"])
def test_a_failed_capture_leaves_no_trace(failure: str) -> None:
    """The step says why, and torch's state is as before. Later captures: test_real_sizes.py.

    The first step is made before it is captured.
    """
    theta = nn.Parameter(torch.zeros(4, device="cuda"))
    stream, x = torch.cuda.current_stream(), torch.ones(4, device="cuda")

    def loss(x: Tensor) -> Tensor:
        q = Independent(Bernoulli(logits=theta, validate_args=False), 1)
        value = catlog.IndeCateR(2)(lambda z: (z - x).square().sum(-1), q)
        if failure == "look":
            return value * float(theta.detach().sum().cos())
        return value + torch.cholesky_inverse(torch.eye(3, device="cuda").repeat(2, 1, 1)).mean()

    optimiser = torch.optim.Adam([theta], 0.1, capturable=True)
    step = catlog.compiled_step(loss, optimiser, compile=False)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="could not be captured"):
            step(x)
        torch.testing.assert_close(theta.abs(), torch.full_like(theta, 0.1))
    assert torch.cuda.current_stream() == stream
    assert len(set(torch.rand(100, device="cuda").tolist())) > 90


def test_a_captured_step_averages_over_a_group(tmp_path: Path) -> None:
    """nccl with one rank: the mean is the gradient, and the message is part of the graph."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        results = []
        for group in (None, dist.group.WORLD):
            torch.manual_seed(0)
            model = nn.Linear(5, 1).cuda()
            optimiser = torch.optim.Adam(model.parameters(), 0.1, capturable=True)
            step = catlog.compiled_step(
                lambda x, model=model: model(x).square(), optimiser, compile=False, group=group
            )
            for i in range(5):
                step(torch.full((4, 5), 0.1 * i, device="cuda"))
            assert step.mode == "captured"
            results.append(model.weight.detach().clone())
        torch.testing.assert_close(results[0], results[1])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("precision", [None, "half"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_papers_decoder_under_autocast(kind: torch.dtype, precision: str | None) -> None:
    """The gradient by the table, also by the kernels, is as good as that of the black box."""
    if precision is not None:
        pytest.importorskip("catlog_kernels")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 784)
    ).cuda()
    head = BernoulliCrossEntropy((torch.rand(4, 784, device="cuda") < 0.3).float())
    table = FirstLayerLinear(net, head, precision=precision)
    x = (torch.rand(2, 4, 200, device="cuda") < 0.5).float()
    gradients = []
    for function, low in ((table, False), (table, True), (lambda x: table(x), True)):
        logits = torch.zeros(4, 200, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=kind, enabled=low):
            value = catlog.IndeCateR(2)(function, Independent(Bernoulli(logits=logits), 1), x=x)
        gradients.append(torch.autograd.grad(value.sum(), logits)[0])
    exact, *rounded = gradients
    assert all((gradient - exact).norm() < 0.1 * exact.norm() for gradient in rounded)


@pytest.mark.parametrize("ask", ["advise", "compare"])
def test_estimators_that_learn_are_asked_on_the_gpu(ask: str) -> None:
    logits = torch.zeros(8, 20, device="cuda", requires_grad=True)
    q = Independent(Bernoulli(logits=logits), 1)
    weights = torch.linspace(-1, 1, 20, device="cuda")

    def f(x: Tensor) -> Tensor:
        return (x * weights).sum(-1).sin()

    learners = [catlog.SlopeCateR(2), DoubleCV(2)]
    if ask == "advise":
        # The first two candidates are tried in any case.
        advice = catlog.advise(f, q, candidates=learners)
        assert {trial.name for trial in advice.trials} == set(map(repr, learners))
    else:
        assert len(catlog.compare(f, q, learners, repeats=4).rows) == 2
