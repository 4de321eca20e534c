"""Every estimator on a GPU: the numbers of the CPU, nothing that waits, captured training steps.

Where there is no GPU, fewer examples run on the CPU, and on torch's meta device, whose tensors have
no values to look at.
"""

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Binomial, Distribution, Independent, Poisson
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map

import catlog
from catlog import CritiCateR, IndeCateR, SCateR, SlopeCateR
from catlog.core.view import view
from catlog.distributions import Autoregressive, Prompted, Subset, left_padded, truncated
from catlog.estimators import (
    LEG,
    MAPO,
    RAM,
    SIMPLE,
    CountDifferences,
    DoubleCV,
    SumAndSample,
    UnorderedSet,
)
from catlog.functions import Additive, FirstLayerLinear, Known, OfSum
from catlog.testing.battery import draw_randomness, takes
from catlog.testing.cases import CASES, normals, placed, seeded
from catlog.testing.settings import one_of_each, select
from real_sizes import NoHostCopies
from support.laws import bits, integers
from support.structured_cases import STRUCTURED_CASES

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
Function = Callable[[Tensor], Tensor]


def plain(q: Distribution, theta: Tensor) -> Function:
    """Return f of points of q, in float64, without constants of the host."""
    dims = len(q.event_shape)

    def f(x: Tensor) -> Tensor:
        flat = x.double().reshape(*x.shape[: x.dim() - dims], -1)
        scale = torch.linspace(0.5, 1.5, flat.shape[-1], dtype=flat.dtype, device=flat.device)
        return (flat * scale).sum(-1).sin()

    return f


class Example(NamedTuple):
    """A distribution, and a function of it, from parameters ``theta`` [batch, ...] anywhere."""

    theta: Tensor
    distribution: Callable[[Tensor], Distribution]
    function: Callable[[Distribution, Tensor], Function] = plain

    def unchecked(self, theta: Tensor) -> Distribution:
        """Return the distribution of theta as made with ``validate_args=False``."""
        q = self.distribution(theta)
        q._validate_args = False
        return q


PROMPTS = left_padded([[1], [0, 1, 2], [2, 2], [1, 0], [0]])


def prompted(t: Tensor) -> Distribution:
    """Return completions of prompts by a model that likes the tokens that it has seen."""

    def model(tokens: Tensor, positions: Tensor, mask: Tensor, seen: Tensor | None) -> Any:
        new = one_hot(tokens, 3).to(t.dtype) * mask[:, -tokens.shape[1] :, None]
        seen = new.cumsum(1) if seen is None else seen[:, -1:] + new.cumsum(1)
        return seen * (1 + positions.unsqueeze(-1)) * t[0] / 9, seen

    network = Prompted(model, *(placed(part, t.device) for part in PROMPTS))
    return Autoregressive(network, [3] * 4, t.shape[:1], dtype=t.dtype, device=t.device, end=0)


def subset_by_row(t: Tensor) -> Distribution:
    return Subset(t, torch.arange(len(t), device=t.device))


def decoded(*place: Any) -> FirstLayerLinear:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(*place)
    return FirstLayerLinear(decoder, lambda out: (out - 1).square().sum(-1))


# Made before they are compiled.
DECODED = {
    place: decoded(*place)
    for place in product(("cpu", DEVICE.type), (torch.float32, torch.float64))
}


def known(q: Distribution, theta: Tensor) -> Function:
    part = Additive(normals(8, 2, seed=5).to(theta))
    f = Known(lambda x: part(x) + (3 * x.sum(-1)).sin(), part, coefficient=0.5)
    return f.to(theta.device).under(q)


def of_sum(target: int) -> Callable[[Distribution, Tensor], Function]:
    f = OfSum(lambda s: (s == target).double(), categories=10)
    return lambda q, theta: deepcopy(f).to(theta.device)


EXAMPLES = {
    name: Example(torch.stack([case.theta, case.theta / 2]), case.distribution)
    for name, case in (CASES | STRUCTURED_CASES).items()
    # torch cannot sample no draws; known nodes have no gradient
    if "no draws" not in name and "known nodes" not in name
} | {
    "prompted": Example(normals(5, 3), prompted),
    "subset by row": Example(normals(5, 6), subset_by_row),
    "Poisson": Example(normals(5, 4), lambda t: Independent(Poisson(t.exp()), 1)),
    "Binomial": Example(
        normals(5, 4), lambda t: Independent(Binomial(t.new_full((), 5), logits=t), 1)
    ),
    "short counts": Example(
        normals(5, 4),
        lambda t: truncated(Independent(Poisson(t.exp()), 1), categories=6),
    ),
    "wide": Example(normals(5, 40, 3), integers),
    "decoder": Example(
        normals(10, 16), bits, lambda q, theta: DECODED[theta.device.type, theta.dtype]
    ),
    "known parts": Example(normals(5, 8), bits, known),
    "sum": Example(normals(2, 6, 10, seed=3), integers, of_sum(27)),  # by products
    "long sum": Example(normals(2, 1000, 10, seed=3), integers, of_sum(4500)),  # by FFT
}
# A name or two of every family.
FAMILIES = [
    "subset", "ranking", "crf", "chain", "network with a block", "mixture of bits",
    "mixture of one-hot vectors", "copies of subset of one", "copies of short chain",
]  # fmt: skip
SEQUENCES = [
    "sequence, network(x, i)", "sequence that ends, network(x, i)",
    "sequence that ends, context in the state", "copies of sequence that ends, step", "prompted",
]  # fmt: skip
SPECIAL = {
    "subset by row": [catlog.RLOO(4), SCateR(2), LEG(2)],
    "prompted": [catlog.RLOO(4), CritiCateR(4), SCateR(2), RAM(2), catlog.Exact()],
    "Poisson": [CountDifferences(4)],
    "Binomial": [CountDifferences(4)],
    "short counts": [IndeCateR(3)],
    "wide": [CritiCateR(8)],
    "decoder": [IndeCateR(2), IndeCateR(2, per_variable=True), SlopeCateR(4)],
    "known parts": [catlog.RLOO(6)],
    "sum": [catlog.Exact()],
    "long sum": [catlog.Exact()],
    "subset": [SIMPLE(3), SCateR(2, suffix="common")],
    "chain": [SCateR(2, suffix="common")],
}


def on(E: catlog.Estimator, device: torch.device | str) -> catlog.Estimator:
    """Return E, or a copy with its parameters on the device."""
    return deepcopy(E).to(device) if isinstance(E, nn.Module) else E


def rows() -> list[Any]:
    """Return estimators and examples; on a CPU one example for each, and RLOO for all."""
    first = [parameter.values[0] for parameter in one_of_each()]
    pairs = [(E, name) for name, case in CASES.items() for E in select().values() if takes(E, case)]
    names = [name for name in STRUCTURED_CASES if name in EXAMPLES]
    pairs += [(E, name) for name in names for E in first if "structured" in E.supports]
    if not ON_GPU:
        home = {repr(E): (E, name) for E, name in pairs if name in ("bits", "one-hot", "chain")}
        pairs = [*home.values(), *((catlog.RLOO(2), name) for name in names)]
    pairs += [(E, name) for name, special in SPECIAL.items() for E in special]
    return [pytest.param(E, name, id=f"{E!r}-{name}") for E, name in pairs]


def randomness(E: catlog.Estimator, q: Distribution) -> dict[str, Any]:
    """Draw what can be given: uniforms alone where the points follow from them."""
    if isinstance(E, catlog.Exact):
        return {}
    options = draw_randomness(E, q)
    has_uniforms = any(noise.is_floating_point() for noise in options.get("noise", ()))
    if has_uniforms and isinstance(E, SCateR | RAM | MAPO | SumAndSample | UnorderedSet):
        options.pop("x", None)
    return options


def compare(result: Callable[[torch.device], list[Tensor]]) -> None:
    """Compare what ``result`` returns for the CPU and for the device."""
    outcomes = []
    for place in (torch.device("cpu"), DEVICE):
        values = result(place)
        assert all(value.device.type == place.type for value in values)
        outcomes.append([value.detach().cpu() for value in values])
    torch.testing.assert_close(*outcomes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("E", "name"), rows())
def test_value_and_gradient(E: catlog.Estimator, name: str) -> None:
    """With the same draws and noise."""
    start, distribution, function = EXAMPLES[name]
    given = randomness(E, distribution(start))

    def result(place: torch.device) -> list[Tensor]:
        theta = start.to(place, copy=True).requires_grad_()
        q = distribution(theta)
        value = on(E, place)(function(q, theta), q, **tree_map(lambda part: part.to(place), given))
        return [value, torch.autograd.grad(value.sin().sum(), theta)[0]]

    compare(result)


@pytest.mark.parametrize("name", [name for name in STRUCTURED_CASES if name in EXAMPLES])
def test_points_and_probabilities(name: str) -> None:
    """Points from the same uniforms, their log-probabilities, entropy and marginals."""
    start, distribution, _ = EXAMPLES[name]

    def result(place: torch.device) -> list[Tensor]:
        theta = start.to(place, copy=True).requires_grad_()
        law = view(distribution(theta))
        u = torch.rand(20, len(theta), law.d, dtype=torch.float64, generator=seeded(1)).to(place)
        index = law.ordered.from_uniforms(u)
        values = [law.log_prob(index), law.ordered.entropy(), law.ordered.marginals()]
        total = sum(value.sin().sum() for value in values)
        return [law.point(index).double(), *values, torch.autograd.grad(total, theta)[0]]

    compare(result)
    x = distribution(start.to(DEVICE)).sample((3,))
    assert x.device.type == DEVICE.type


def waiting() -> list[Any]:
    """Return estimators and examples that wait for nothing."""
    # The others sort out points, or copy short lists to the GPU unless compiled.
    waits = catlog.Exact | SCateR | LEG | RAM | MAPO | UnorderedSet | SumAndSample
    pairs = [
        (E, name)
        for name, case in CASES.items()
        for E in select().values()
        if ON_GPU and case.kind != "mixed" and takes(E, case) and not isinstance(E, waits)
    ]  # on the meta device: tests/compiled/test_no_host_copies.py
    pairs += [(E, name) for E, name in captured() if name in (*FAMILIES, "Poisson")]
    return [pytest.param(E, name, id=f"{E!r}-{name}") for E, name in pairs]


def captured() -> list[tuple[catlog.Estimator, str]]:
    return [
        *((catlog.RLOO(4), name) for name in [*FAMILIES, *SEQUENCES, "subset by row"]),
        *((CritiCateR(4), name) for name in ("subset", "ranking", "crf")),
        *((SCateR(1), name) for name in ("subset", "crf", "mixture of bits", "chain")),
        *((CountDifferences(4), name) for name in ("Poisson", "Binomial")),
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize(("E", "name"), waiting())
def test_nothing_waits_for_the_gpu(E: catlog.Estimator, name: str) -> None:
    place, example = torch.device("cuda" if ON_GPU else "meta"), EXAMPLES[name]
    theta, E = example.theta.to(place).requires_grad_(), on(E, place)
    f = example.function(example.unchecked(theta), theta)
    if not ON_GPU:
        with NoHostCopies():
            E(f, example.unchecked(theta)).sum().backward()
        return
    E(f, example.unchecked(theta))
    q = example.unchecked(theta)
    torch.cuda.set_sync_debug_mode("error")
    try:
        E(f, q).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


WITH_TABLE = [
    *(IndeCateR(2, **options) for options in ({}, {"per_variable": True}, {"variables": 4})),
    IndeCateR(2, sampling="latin"),
    SlopeCateR(4),
    SlopeCateR(4, every=3),
]
STEPS = [
    *((E, name, False) for E, name in captured()),
    *((E, "decoder", compile) for E in WITH_TABLE for compile in (False, True)),
    (catlog.RLOO(4), "subset", True),
    (SCateR(1), "chain", True),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize(("E", "name", "compile"), STEPS if ON_GPU else STEPS[:1])
def test_a_training_step(E: catlog.Estimator, name: str, compile: bool) -> None:
    """A whole step, captured on a GPU: it draws again at every replay, and the loss falls."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    example = EXAMPLES[name]
    theta, E = nn.Parameter(example.theta.float().to(DEVICE)), on(E, DEVICE)
    optimiser = torch.optim.Adam([theta], 0.05, capturable=ON_GPU)

    def loss(scale: Tensor) -> Tensor:
        q = example.unchecked(theta)
        return scale * E(example.function(q, theta), q)

    step = catlog.compiled_step(loss, optimiser, compile=compile, estimator=E)
    scale = torch.ones(len(theta), device=DEVICE)
    losses = [step(scale).item() for _ in range(150)]
    wanted = "compiled, captured" if compile else "captured"
    assert step.mode == (wanted if ON_GPU else "eager")
    assert sum(losses[-20:]) < sum(losses[:20])
    assert len(set(losses[:20])) > 3
    assert bool(theta.isfinite().all())


@needs_gpu
def test_a_captured_step_averages_over_a_group(tmp_path: Path) -> None:
    """nccl with one rank: the mean is the gradient, and the message is part of the graph."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        results = []
        for group in (None, dist.group.WORLD):
            theta = nn.Parameter(torch.ones(5, device=DEVICE))
            optimiser = torch.optim.Adam([theta], 0.1, capturable=True)
            step = catlog.compiled_step(
                lambda x, theta=theta: (x @ theta).square(), optimiser, compile=False, group=group
            )
            for i in range(5):
                step(torch.full((4, 5), 0.1 * i, device=DEVICE))
            assert step.mode == "captured"
            results.append(theta.detach())
        torch.testing.assert_close(*results)
    finally:
        dist.destroy_process_group()


@needs_gpu
@pytest.mark.parametrize("ask", ["advise", "compare"])
def test_estimators_that_learn_are_asked_on_the_device(ask: str) -> None:
    logits = torch.zeros(8, 20, device=DEVICE, requires_grad=True)
    q = bits(logits)
    f, learners = plain(q, logits), [SlopeCateR(2), DoubleCV(2)]
    if ask == "advise":  # the first two candidates are tried in any case
        advice = catlog.advise(f, q, candidates=learners)
        assert {trial.name for trial in advice.trials} == set(map(repr, learners)), advice.skipped
    else:
        assert len(catlog.compare(f, q, learners, repeats=4).rows) == 2
