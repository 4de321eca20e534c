"""Structured distributions and counts on a GPU: the numbers of the CPU, gradients, captured steps.

Every test has a device. On the CPU it runs everywhere, and shows that the test itself is right; on
the GPU only the device differs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    Multinomial,
    OneHotCategorical,
    Poisson,
)
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    LinearChainCRF,
    MarkovChain,
    Node,
    PlackettLuce,
    Prompted,
    Subset,
    gumbel_top_k,
    left_padded,
    truncated,
)
from catlog.estimators import LEG, RAM, SIMPLE, CountDifferences, UnorderedSet
from catlog.functions import Additive, Known, OfSum
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals, seeded
from real_sizes import NoHostCopies
from support.chi_square import p_value, tally

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
each_device = pytest.mark.parametrize("device", DEVICES)
BATCH = 5
FALSE_ALARMS = 1e-9  # of a chi-square test


class Ending(nn.Module):
    """A recurrent network with a state, and a context for every batch element."""

    context_in_state = True

    def __init__(self, t: Tensor) -> None:
        super().__init__()
        self.t = t

    def start(self, lead: torch.Size) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(lead, dtype=self.t.dtype, device=self.t.device)
        return zeros, self.t.expand(lead + self.t.shape[-2:])

    def step(self, state: Any, i: int, previous: Tensor | None) -> tuple[Tensor, Any]:
        total, t = state
        total = total if previous is None else 0.5 * total + previous
        return t[..., i, :] + total.unsqueeze(-1).tanh() * t[..., i + 1, :], (total, t)


def by_sums(t: Tensor) -> Callable[[Tensor, int], Tensor]:
    """Return a network whose logits depend on the sum of the earlier tokens."""
    return lambda x, i: t[..., i, :] + x[..., :i].sum(-1, keepdim=True) * t[..., i + 1, :]


def autoregressive(network: Any, t: Tensor, **options: Any) -> Distribution:
    batch = t.shape[:-2]
    return Autoregressive(
        network, [3] * 4, batch, dtype=t.dtype, device=t.device, validate_args=False, **options
    )


def prompted(t: Tensor) -> Distribution:
    """Return completions of prompts by a model that likes the tokens that it has seen."""

    def model(tokens: Tensor, positions: Tensor, mask: Tensor, seen: Tensor | None) -> Any:
        new = one_hot(tokens, 3).to(t.dtype) * mask[:, -tokens.shape[1] :, None]
        seen = new.cumsum(1) if seen is None else seen[:, -1:] + new.cumsum(1)
        return seen * (1 + positions.unsqueeze(-1)) * t[0, 0] / 9, seen

    prompts, mask = left_padded([[1], [0, 1, 2], [2, 2], [1, 0], [0]])
    network = Prompted(model, prompts.to(t.device), mask.to(t.device))
    return autoregressive(network, t, end=0)


def network_of_nodes(t: Tensor) -> Distribution:
    nodes = {
        "a": Node([], t[..., 0, :]),
        "b": Node(["a"], t[..., 1:4, :]),
        "c": Node(["a"], t[..., 4:7, :], size=3, bits=True),
    }
    return BayesianNetwork(nodes, t.shape[:-2], validate_args=False)


def masked_subset(t: Tensor) -> Distribution:
    k = torch.arange(BATCH, device=t.device)  # of each batch element
    mask = torch.arange(6, device=t.device) != 4
    return Subset(t[..., :6, 0], k, mask, validate_args=False)


def mixture(t: Tensor, components: Distribution) -> Distribution:
    weights = Categorical(logits=t[..., 8, :2], validate_args=False)
    return MixtureSameFamily(weights, components, validate_args=False)


def independent(base: Distribution) -> Distribution:
    return Independent(base, 1, validate_args=False)


# Of logits [batch, 9, 3].
LAWS: dict[str, Callable[[Tensor], Distribution]] = {
    "subset": lambda t: Subset(t[..., :6, 0], 2, validate_args=False),
    "masked subset": masked_subset,
    "ranking": lambda t: PlackettLuce(t[..., :5, 0], 3, validate_args=False),
    "crf": lambda t: LinearChainCRF(t[..., :4, :], t[..., 4:7, :], validate_args=False),
    "chain": lambda t: MarkovChain(t[..., 0, :], t[..., 1:4, :], length=4, validate_args=False),
    "network": network_of_nodes,
    "autoregressive": lambda t: autoregressive(by_sums(t), t),
    "sequence that ends": lambda t: autoregressive(by_sums(t), t, end=0, temperature=0.7),
    "sequence with a state": lambda t: autoregressive(Ending(t), t, end=1),
    "prompted sequence": prompted,
    "mixture": lambda t: mixture(
        t, independent(Bernoulli(logits=t[..., :8, 0].unflatten(-1, (2, 4)), validate_args=False))
    ),
    "mixture of one-hot vectors": lambda t: mixture(
        t,
        independent(
            OneHotCategorical(logits=t[..., :4, :].unflatten(-2, (2, 2)), validate_args=False)
        ),
    ),
    "multinomial": lambda t: Multinomial(2, logits=t[..., :3, 0], validate_args=False),
    "copies of chains": lambda t: independent(
        MarkovChain(
            t[..., :2, :], t[..., 2:8, :].unflatten(-2, (2, 3)), length=2, validate_args=False
        )
    ),
    "copies of subsets": lambda t: independent(Subset(t[..., :2, :], 2, validate_args=False)),
    "copies of sequences": lambda t: independent(
        autoregressive(by_sums(t.unflatten(-2, (1, 9))), t.unflatten(-2, (1, 9)), end=0)
    ),
}
each_law = pytest.mark.parametrize("name", LAWS)
COUNTS: dict[str, Callable[[Tensor], Distribution]] = {
    "Poisson": lambda t: independent(Poisson(t[..., :4, 0].exp(), validate_args=False)),
    "Binomial": lambda t: independent(Binomial(5, logits=t[..., :4, 0], validate_args=False)),
}


def logits() -> Tensor:
    return normals(BATCH, 9, 3)


def function(q: Distribution) -> Callable[[Tensor], Tensor]:
    """Return f of points of q, in float64."""
    dims = len(q.event_shape)

    def f(x: Tensor) -> Tensor:
        flat = x.double().reshape(*x.shape[: x.dim() - dims], -1)
        scale = torch.linspace(0.5, 1.5, flat.shape[-1], dtype=flat.dtype, device=flat.device)
        return (flat * scale).sum(-1).sin()

    return f


def on_both(device: str, result: Callable[[Tensor], list[Tensor]]) -> None:
    """Compare what ``result`` makes from logits on the CPU and on the device, with gradients.

    ``result`` gets float64 logits that require a gradient, and returns tensors.
    """
    outcomes = []
    for place in ("cpu", device):
        theta = logits().to(place).requires_grad_()
        values = result(theta)
        assert all(value.device.type == place for value in values)
        gradients = [
            torch.autograd.grad(value.sin().sum(), theta, retain_graph=True)[0]
            for value in values
            if value.requires_grad
        ]
        assert gradients
        outcomes.append([value.detach().cpu() for value in (*values, *gradients)])
    torch.testing.assert_close(*outcomes, rtol=1e-10, atol=1e-12)


@each_device
@each_law
def test_numbers_are_the_same(name: str, device: str) -> None:
    """Draws from the same uniforms, their log-probabilities, entropy and marginals."""

    def result(theta: Tensor) -> list[Tensor]:
        law = view(LAWS[name](theta))
        u = torch.rand(20, BATCH, law.d, dtype=torch.float64, generator=seeded(1))
        index = law.ordered.from_uniforms(u.to(theta.device))
        return [
            law.point(index).double(),
            law.log_prob(index),
            law.ordered.entropy(),
            law.ordered.marginals(),
        ]

    on_both(device, result)


@each_device
@each_law
def test_samples_by_chi_square(name: str, device: str) -> None:
    """Draws on the device against probabilities of the CPU, of one batch element."""
    q = LAWS[name](logits())
    law = view(q)
    points = law.ordered.enumerate_support()
    probs = law.ordered.log_prob(points).exp()[:, 2]
    on_device = view(LAWS[name](logits().to(device)))
    x = on_device.index(Randomness(on_device).points(10_000))[:, 2].cpu()
    assert p_value(tally(x, points[:, 2]), probs) > FALSE_ALARMS
    x = LAWS[name](logits().to(device)).sample((3,))
    assert x.device.type == device
    assert view(LAWS[name](logits().to(device))).index(x).shape[:2] == (3, BATCH)


WITH_DRAWS = [catlog.RLOO(4), catlog.CritiCateR(4), LEG(2), UnorderedSet(2)]
SWEEPS = [catlog.SCateR(2), catlog.SCateR(2, suffix="common"), RAM(2)]


@each_device
@pytest.mark.parametrize("E", [*WITH_DRAWS, *SWEEPS, catlog.Exact()], ids=repr)
@each_law
def test_a_gradient_is_the_same(name: str, E: catlog.Estimator, device: str) -> None:
    """With the same draws or noise; the masked subsets of no item have one point alone."""
    q = LAWS[name](logits())
    options = draw_randomness(E, q)
    if isinstance(E, UnorderedSet):
        if name == "masked subset":
            pytest.skip("a batch element has one point")
        options = {"x": different(q)}
    elif isinstance(E, catlog.SCateR | RAM):
        options.pop("x")

    def result(theta: Tensor) -> list[Tensor]:
        on_device = tree_map(lambda part: part.to(theta.device), options)
        law = LAWS[name](theta)
        return [E(function(law), law, **on_device)]

    on_both(device, result)


def different(q: Distribution) -> Tensor:
    """Return two different points for every batch element."""
    law = view(q)
    points = law.ordered.enumerate_support()
    best = law.ordered.log_prob(points).topk(2, 0).indices
    return law.point(points.gather(0, best.unsqueeze(-1).expand(*best.shape, law.d)))


CAPTURED = [  # torch's Multinomial copies its number of draws to the GPU when it is made
    *((name, catlog.RLOO(4)) for name in LAWS if name != "multinomial"),
    *((name, catlog.CritiCateR(4)) for name in ("subset", "ranking", "crf")),
    *((name, catlog.SCateR(1)) for name in ("subset", "crf", "mixture", "chain")),
]
OF_COUNTS = [(name, CountDifferences(4)) for name in COUNTS]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # Inductor's own
@each_device
@pytest.mark.parametrize(
    ("name", "E", "compile"),
    [
        *(
            pytest.param(name, E, False, id=f"{name}-{E!r}-captured")
            for name, E in CAPTURED + OF_COUNTS
        ),
        pytest.param("subset", CAPTURED[0][1], True, id="subset-RLOO-compiled"),
        pytest.param("chain", CAPTURED[-1][1], True, id="chain-SCateR-compiled"),
    ],
)
def test_a_training_step(name: str, E: catlog.Estimator, compile: bool, device: str) -> None:
    """A whole step, captured on a GPU: it draws again at every replay, and the loss falls."""
    if compile and device == "cpu":
        pytest.skip("tests/contract/test_compile.py compiles on a CPU")
    torch._dynamo.reset()
    torch.manual_seed(0)
    theta = nn.Parameter(logits().float().to(device))
    optimiser = torch.optim.Adam([theta], 0.05, capturable=device == "cuda")

    def loss(scale: Tensor) -> Tensor:
        q = (LAWS | COUNTS)[name](theta)
        return scale * E(lambda x: function(q)(x).float(), q)

    step = catlog.compiled_step(loss, optimiser, compile=compile)
    scale = torch.ones(BATCH, device=device)
    losses = [step(scale).item() for _ in range(150)]
    wanted = "compiled, captured" if compile else "captured"
    assert step.mode == (wanted if device == "cuda" else "eager")
    assert sum(losses[-20:]) < sum(losses[:20])
    assert len(set(losses[:20])) > 3
    assert bool(theta.isfinite().all())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@each_device
@pytest.mark.parametrize(("name", "E"), CAPTURED, ids=repr)
def test_nothing_waits_for_the_gpu(name: str, E: catlog.Estimator, device: str) -> None:
    """Without a GPU: on torch's meta device, whose tensors have no values to look at."""
    if "sequence" in name:
        pytest.skip("looks which sequences have ended, unless it is captured or compiled")
    if name == "masked subset":
        pytest.skip("looks for the largest k, unless it is captured or compiled")
    theta = logits().to("meta" if device == "cpu" else device).requires_grad_()
    q = LAWS[name](theta)
    f = function(q)
    if device == "cpu":
        with NoHostCopies():
            E(f, LAWS[name](theta)).sum().backward()
        return
    E(f, q).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        E(f, LAWS[name](theta)).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Other results, of logits [batch, 9, 3].


def of_simple(theta: Tensor) -> Tensor:
    torch.manual_seed(0)
    x = LAWS["subset"](logits()).sample((3,)).to(theta.device)
    return SIMPLE(3)(function(LAWS["subset"](theta)), LAWS["subset"](theta), x=x)


def of_a_sum(theta: Tensor, digits: int = 6, target: int = 27) -> Tensor:
    """By products for six digits, by FFT for a thousand."""
    scores = normals(2, digits, 10, seed=3).to(theta.device) * theta[:2, :1, :1]
    f = OfSum(lambda s: (s == target).double(), categories=10).to(theta.device)
    return catlog.Exact()(f, independent(Categorical(logits=scores, validate_args=False)))


def of_known_parts(theta: Tensor) -> Tensor:
    q = independent(Bernoulli(logits=theta[..., :8, 0], validate_args=False))
    part = Additive(normals(8, 2, seed=5).to(theta.device))
    known = Known(lambda x: part(x) + (3 * x.sum(-1)).sin(), part, coefficient=0.5)
    known.to(theta.device)
    x = torch.randint(2, (6, BATCH, 8), generator=seeded(6)).to(theta)
    first, second = (catlog.RLOO(6)(known.under(q), q, x=x) for _ in range(2))
    return torch.stack([first, second, known.coefficient.expand(BATCH)])


def of_counts(theta: Tensor, name: str) -> Tensor:
    q, x = COUNTS[name](theta), torch.randint(5, (3, BATCH, 4), generator=seeded(7))
    x, short = x.to(theta.device), truncated(q, categories=6)
    f = lambda z: (z.double().square().sum(-1) + 1).sqrt()  # noqa: E731
    differences = CountDifferences(3)(f, q, x=x.double())
    return torch.stack([differences, catlog.IndeCateR(3)(f, short, x=x)])


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "SIMPLE": of_simple,
    "the mean of a sum": of_a_sum,
    "the mean of a long sum": partial(of_a_sum, digits=1000, target=4500),
    "known parts": of_known_parts,
    **{f"counts, {name}": partial(of_counts, name=name) for name in COUNTS},
}


@each_device
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_the_same(name: str, device: str) -> None:
    on_both(device, lambda theta: [RESULTS[name](theta)])


@each_device
def test_gumbel_top_k(device: str) -> None:
    chosen = gumbel_top_k(logits().to(device)[..., 0].expand(2000, BATCH, 9), 3)
    assert chosen.device.type == device
    assert bool((chosen.sort(-1).values.diff(dim=-1) > 0).all())
