"""torch.compile(fullgraph=True) of every stateless estimator equals eager, values and gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Multinomial
from torch.testing import assert_close

import catlog
from catlog.compiled import compiled_update
from catlog.estimators import memorycater
from catlog.functions import FirstLayerLinear, OfSum, ising
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import one_of_each
from support.compiling import (
    BATCHES,
    assert_compiles,
    both,
    checked_graphs,
    why_not_inductor,
    widest,
)
from support.laws import bits, integers

# torch's own, when it traces the autograd.Function of an estimator that learns
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MemoryCateR choose from two kernels instead of nine, which takes a fourth of the time."""
    monkeypatch.setattr(memorycater, "WIDTHS", (2.0,))
    monkeypatch.setattr(memorycater, "SHARES", (1e-6, 1e-3))


@pytest.mark.parametrize("E", one_of_each())
def test_compiled_equals_eager(E: catlog.Estimator) -> None:
    """``make test-compile`` has every setting on every distribution, and Inductor."""
    results = both(E, widest(E), backend=checked_graphs, dynamic=False)
    assert_close(*results, rtol=1e-12, atol=1e-12)


STRUCTURED = {
    "chain": lambda t: catlog.distributions.MarkovChain(t[0], t[1:4], length=4),
    "network": lambda t: catlog.distributions.BayesianNetwork(
        {
            "a": catlog.distributions.Node([], t[0]),
            "b": catlog.distributions.Node(["a"], t[1:4]),
            "c": catlog.distributions.Node([], t[4]),
            "d": catlog.distributions.Node(["b", "c"], t[:9].view(3, 3, 3)),
        }
    ),
    "autoregressive": lambda t: catlog.distributions.Autoregressive(
        lambda x, i: t[i] + x[..., :i].sum(-1, keepdim=True) * t[i + 1], [3] * 4, dtype=t.dtype
    ),
    "subset": lambda t: catlog.distributions.Subset(t[:4, 0], 2),
    "ranking": lambda t: catlog.distributions.PlackettLuce(t[:5, 0], 4),
    "crf": lambda t: catlog.distributions.LinearChainCRF(t[:4], t[4:7]),
    "ending": lambda t: catlog.distributions.Autoregressive(
        lambda x, i: t[i] + x[..., :i].sum(-1, keepdim=True) * t[i + 1],
        [3] * 4,
        end=0,
        temperature=0.5,
        dtype=t.dtype,
    ),
    "mixture": lambda t: MixtureSameFamily(
        Categorical(logits=t[8, :2]), integers(t[:8].unflatten(0, (2, 4)))
    ),
    "multinomial": lambda t: Multinomial(2, logits=t[:4, 0]),
}
SAMPLERS = [
    catlog.Reinforce(2),
    catlog.RLOO(3),
    catlog.SCateR(2),
    catlog.SCateR(2, suffix="common"),
    catlog.SCateR(2, variables=2),
    catlog.SCateR(2, categories=1),
    catlog.estimators.RAM(2),
    catlog.estimators.LEG(2),
    catlog.CritiCateR(4),
    catlog.Exact(),
]


@pytest.mark.parametrize(
    ("law", "E"),
    [
        *(("network", E) for E in SAMPLERS),
        ("chain", SAMPLERS[2]),
        ("autoregressive", SAMPLERS[3]),
        *((law, E) for law in ("subset", "ranking", "crf") for E in (SAMPLERS[1], SAMPLERS[2])),
        ("subset", SAMPLERS[8]),
        ("ending", SAMPLERS[2]),
        ("mixture", SAMPLERS[1]),
        ("multinomial", SAMPLERS[1]),
    ],
    ids=lambda each: str(each),
)
def test_structured_distributions_compile(law: str, E: catlog.Estimator) -> None:
    def loss(theta: Tensor) -> Tensor:
        return E(
            lambda x: (x.double() * torch.arange(1.0, 5.0, dtype=torch.float64)).sum(-1).sin(),
            STRUCTURED[law](theta),
        )

    assert_compiles(loss, normals(9, 3).requires_grad_())


@pytest.mark.parametrize("draws", ["antithetic", "latin"])
@pytest.mark.parametrize("name", ["IndeCateR", "ReinMax", "DecoupledStraightThrough"])
def test_draws_compile(name: str, draws: str) -> None:
    E = catlog.estimators.ESTIMATORS[name](3, sampling=draws)
    results = both(E, "bits", BATCHES, backend=checked_graphs)
    assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"per_variable": True}, {"variables": 2}], ids=str)
@pytest.mark.parametrize("name", ["network", "ising", "sum"])
def test_functions_with_a_table_compile(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    function = {
        "network": FirstLayerLinear(network),
        "ising": ising(torch.randn(3, 3).double(), torch.randn(3).double()),
        "sum": OfSum(lambda s: (s - 1.5).square().sin(), 2),
    }[name]
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def loss(logits: Tensor) -> Tensor:
        return catlog.IndeCateR(2, **options)(function, bits(logits))

    assert_compiles(loss, logits)


@pytest.mark.parametrize("name", ["network", "sum"])
def test_functions_with_a_table_are_made_inside(name: str) -> None:
    """With a function of the batch, as in a step of training."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    targets = torch.arange(5.0, dtype=torch.float64)

    def loss(logits: Tensor) -> Tensor:
        function = {
            "network": lambda: FirstLayerLinear(network, lambda out: out.squeeze(-1) * targets),
            "sum": lambda: OfSum(lambda sums: (sums - targets).sin(), 2),
        }[name]()
        return catlog.IndeCateR(2)(function, bits(logits))

    assert_compiles(loss, torch.randn(5, 3, dtype=torch.float64, requires_grad=True))


def test_a_network_is_drawn_in_the_order_of_its_own_graph() -> None:
    """One compiled function for two graphs with the same names."""
    torch._dynamo.reset()
    Node = catlog.distributions.Node
    tables, root = normals(3, 3), normals(3)
    call = torch.compile(
        lambda nodes, x: catlog.distributions.BayesianNetwork(nodes).log_prob(x),
        fullgraph=True,
        backend="eager",
    )
    for nodes in (
        {"a": Node([], root), "b": Node(["a"], tables)},
        {"a": Node(["b"], tables), "b": Node([], root)},
    ):
        x = torch.tensor([1, 2])
        torch.testing.assert_close(
            call(nodes, x), catlog.distributions.BayesianNetwork(nodes).log_prob(x)
        )


def test_a_module_of_an_autoregressive_distribution_compiles() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3).double()

        def forward(self, x: Tensor, i: int) -> Tensor:
            return self.linear(x.double() * (torch.arange(3) < i))

    network = Network()

    def loss(shift: Tensor) -> Tensor:
        q = catlog.distributions.Autoregressive(network, [3] * 3)
        return catlog.SCateR(2)(lambda x: (x * shift).sum(-1).sin(), q)

    parameters = list(network.parameters())
    assert_compiles(loss, normals(3).requires_grad_(), parameters=parameters)


def test_a_distribution_made_outside() -> None:
    """q as an argument of the compiled function."""
    q = bits(torch.zeros(4, 3))
    x = q.sample((2,))
    E = catlog.IndeCateR(2)
    call = torch.compile(
        lambda q, x: E(lambda x: x.prod(-1), q, x=x), fullgraph=True, backend="aot_eager"
    )
    assert_close(call(q, x), E(lambda x: x.prod(-1), q, x=x))


@pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
@pytest.mark.usefixtures("own_inductor_cache")
@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_inductor() -> None:
    """Compiled draws differ from eager ones, so x is given."""
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    function = FirstLayerLinear(network, lambda out: out.squeeze(-1).exp())
    x = torch.bernoulli(torch.full((2, 5, 6), 0.5), generator=seeded())
    logits = torch.zeros(5, 6, requires_grad=True)

    def loss(logits: Tensor) -> Tensor:
        return catlog.IndeCateR(2)(function, bits(logits), x=x)

    eager, compiled = loss(logits), torch.compile(loss, fullgraph=True, dynamic=False)(logits)
    assert_close(compiled, eager)
    gradients = [
        torch.autograd.grad(step.sum(), [logits, *network.parameters()])
        for step in (compiled, eager)
    ]
    assert_close(*gradients)


def test_compiled_step_on_a_cpu() -> None:
    theta = nn.Parameter(torch.zeros(6))
    E = catlog.IndeCateR(2, sampling="latin")

    def loss(target: Tensor) -> Tensor:
        return E(lambda z: (z - target).square().sum(-1), bits(theta, validate_args=False))

    step = catlog.compiled_step(loss, torch.optim.Adam([theta], 0.5))
    target = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    losses = [step(target).item() for _ in range(50)]
    assert losses[-1] < 0.1 * losses[0]
    assert step.mode == "eager"
    assert "GPU" in step.why


def test_wrong_arguments_of_compiled_step_are_named() -> None:
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for wrong in (model.parameters(), list(model.parameters()), torch.optim.SGD, None):
        with pytest.raises(TypeError, match="compiled_step: `optimiser` must be an optimiser"):
            catlog.compiled_step(model, wrong)
    with pytest.raises(TypeError, match=r"compiled_step: `loss` must be a function.* SGD was"):
        catlog.compiled_step(optimiser, model)
    with pytest.raises(TypeError, match="compiled_step: `compile` must be True or False"):
        catlog.compiled_step(model, optimiser, compile="yes")


def test_a_step_makes_no_warning_of_a_scheduler() -> None:
    """Schedulers watch `optimiser.step`, also if they are made after the step."""
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    step = catlog.compiled_step(lambda x: model(x).square(), optimiser)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    step(torch.ones(3, 2))
    scheduler.step()
    assert optimiser.param_groups[0]["lr"] == 0.05


def test_steps_that_share_a_loss_do_not_use_up_the_recompilations() -> None:
    """torch.compile gives up on a code object after eight variants; here are ten models."""

    class Model:
        def __init__(self, size: int) -> None:
            self.theta = nn.Parameter(torch.zeros(size))
            self.E = catlog.RLOO(2 + size)

        def loss(self, target: Tensor) -> Tensor:
            q = bits(self.theta, validate_args=False)
            return self.E(lambda z: (z - target).square().sum(-1), q)

    torch._dynamo.reset()
    compile = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda f, **options: compile(f, backend="eager", **options))
        for size in range(1, 11):
            model = Model(size)
            step = catlog.compiled_step(
                model.loss, torch.optim.SGD([model.theta], 0.1), compile=True
            )
            assert step(torch.ones(())).isfinite()
            assert step.mode == "compiled"


@pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor())
def test_compiled_updates_do_not_use_up_the_recompilations() -> None:
    """Every update is compiled in one piece, and moves as the plain one does."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # names of torch 2.6, which later versions take as well
    with torch._dynamo.config.patch(cache_size_limit=2, fail_on_cache_limit_hit=True):
        for _ in range(4):
            moved = []
            for compiled in (False, True):
                torch.manual_seed(0)
                model = nn.Linear(4, 3).double()
                optimiser = torch.optim.Adam(model.parameters(), 1e-2)
                update = compiled_update(optimiser) if compiled else optimiser.step
                for _ in range(3):
                    optimiser.zero_grad()
                    model(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
                    update()
                moved.append(model.weight.detach())
            assert_close(*moved, rtol=1e-4, atol=1e-6)  # compiled, steps are counted in float32
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4
    assert not torch._dynamo.utils.counters["graph_break"]
