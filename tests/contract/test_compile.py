"""torch.compile(fullgraph=True) equals eager, values and gradients.

A few that differ in their operations; ``make test-compile`` has every setting of every estimator on
every kind of distribution, and Inductor.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Poisson
from torch.testing import assert_close

import catlog
from catlog import compiled
from catlog.distributions import Autoregressive, BayesianNetwork, Node
from catlog.estimators import ESTIMATORS, CountDifferences
from catlog.functions import DigitsOfSum, FirstLayerLinear, OfSum
from catlog.testing.cases import normals, seeded
from support.compiling import (
    assert_compiles,
    assert_compiles_on,
    both,
    checked_graphs,
    widest,
)
from support.laws import bits, integers
from support.structured_cases import STRUCTURED_CASES

# Those that learn: test_learning.py.
FEW = [
    *(ESTIMATORS[name](2) for name in ("RLOO", "REBAR", "IndeCateR", "ARSM", "ReinMax")),
    catlog.IndeCateR(3, sampling="latin"),
]


# torch's own, when it traces the autograd.Function of an estimator that learns
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("E", FEW, ids=repr)
def test_compiled_equals_eager(E: catlog.Estimator) -> None:
    results = both(E, widest(E), backend=checked_graphs, dynamic=False)
    assert_close(*results, rtol=1e-12, atol=1e-12)


DEPENDENT = {
    "network with a block": catlog.SCateR(2, variables=2),
    "crf": catlog.SCateR(2),
    "sequence that ends, step": catlog.SCateR(2),
    "sequence that ends, all_logits": catlog.RLOO(3),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_structured_distributions_compile(name: str) -> None:
    assert_compiles_on(STRUCTURED_CASES[name], DEPENDENT[name])


def functions_with_a_table(logits: Tensor) -> Tensor:
    """Made inside, of the batch, as in a step of training."""
    targets = torch.arange(5.0, dtype=torch.float64)
    known = FirstLayerLinear(NETWORK, lambda out: out.squeeze(-1) * targets)
    of_sum = OfSum(lambda sums: (sums - targets).sin(), 2)
    first = catlog.IndeCateR(2, per_variable=True)(known, bits(logits))
    numbers = integers(torch.stack([logits, -logits], -1), validate_args=False)
    digits = catlog.IndeCateR(2)(DigitsOfSum(BITS_OF_SUM, 2), numbers, outputs=1)
    return first + catlog.IndeCateR(2)(of_sum, bits(logits)) - (digits + 0.1).log().sum(-1)


def a_module_of_an_autoregressive_distribution(logits: Tensor) -> Tensor:
    q = Autoregressive(Masked(), [3] * 3)
    return catlog.SCateR(2)(lambda x: (x * logits[0, :3]).sum(-1).sin(), q)


class Masked(nn.Module):
    def forward(self, x: Tensor, i: int) -> Tensor:
        return LINEAR(x.double() * (torch.arange(3) < i))


def counts(logits: Tensor) -> Tensor:
    q = Independent(Poisson(logits.exp(), validate_args=False), 1)
    return CountDifferences(2)(lambda z: z.prod(-1).sqrt(), q)


def a_logarithm(logits: Tensor) -> Tensor:
    f = OfSum(lambda total: torch.arange(5.0) * (total == 2), categories=2)
    q = bits(logits, validate_args=False)
    return catlog.log_expectation(catlog.IndeCateR(2), f, q, repeats=3, floor=1e-8)


def the_mean_of_a_sum(logits: Tensor) -> Tensor:
    q = bits(logits.repeat(1, 200), validate_args=False)
    return catlog.Exact()(OfSum(lambda total: total == 400, categories=2), q)


def a_layer(logits: Tensor) -> Tensor:
    return (catlog.sample(logits, catlog.ReinMax()) * logits.detach()).sum(-1).sin()


def the_drop_in(logits: Tensor) -> Tensor:
    return (catlog.gumbel_softmax(logits, hard=True) * logits.detach()).sum(-1).sin()


NETWORK = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
LINEAR = nn.Linear(3, 3).double()
BITS_OF_SUM = torch.randint(2, (5, 3), generator=seeded())
LOSSES = (
    functions_with_a_table,
    a_module_of_an_autoregressive_distribution,
    counts,
    a_logarithm,
    the_mean_of_a_sum,
    a_layer,
    the_drop_in,
)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_compiles_as_one_graph(loss: Callable[[Tensor], Tensor]) -> None:
    """All estimators and all layers that draw: tests/compiled/test_traced.py."""
    assert_compiles(loss, normals(5, 4).requires_grad_())


def test_a_network_is_drawn_in_the_order_of_its_own_graph() -> None:
    """One compiled function for two graphs with the same names."""
    torch._dynamo.reset()
    tables, root = normals(3, 3), normals(3)
    call = torch.compile(
        lambda nodes, x: BayesianNetwork(nodes).log_prob(x),
        fullgraph=True,
        backend="eager",
    )
    for nodes in (
        {"a": Node([], root), "b": Node(["a"], tables)},
        {"a": Node(["b"], tables), "b": Node([], root)},
    ):
        x = torch.tensor([1, 2])
        torch.testing.assert_close(call(nodes, x), BayesianNetwork(nodes).log_prob(x))


def test_a_distribution_made_outside() -> None:
    """q as an argument of the compiled function."""
    q = bits(torch.zeros(4, 3))
    x = q.sample((2,))
    E = catlog.IndeCateR(2)
    call = torch.compile(
        lambda q, x: E(lambda x: x.prod(-1), q, x=x), fullgraph=True, backend="aot_eager"
    )
    assert_close(call(q, x), E(lambda x: x.prod(-1), q, x=x))


def test_compiled_step_on_a_cpu() -> None:
    """A scheduler, which watches `optimiser.step`, makes no warning, though it comes later."""
    theta = nn.Parameter(torch.zeros(6))
    E = catlog.IndeCateR(2, sampling="latin")

    def loss(target: Tensor) -> Tensor:
        return E(lambda z: (z - target).square().sum(-1), bits(theta, validate_args=False))

    optimiser = torch.optim.Adam([theta], 0.5)
    step = catlog.compiled_step(loss, optimiser)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.99)
    losses = []
    for _ in range(50):
        losses.append(step(torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])).item())
        scheduler.step()
    assert losses[-1] < 0.1 * losses[0]
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.5 * 0.99**50)
    assert step.mode == "eager"
    assert "GPU" in step.why


def test_an_update_with_hooks_is_not_compiled() -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    assert compiled._can_compile(optimiser)
    optimiser.register_step_pre_hook(lambda *_: None)
    assert not compiled._can_compile(optimiser)


def test_steps_that_share_a_loss_do_not_use_up_the_recompilations() -> None:
    """torch.compile gives up on a code object after some variants: here two, for four models."""

    class Model:
        def __init__(self, size: int) -> None:
            self.theta = nn.Parameter(torch.zeros(size))
            self.E = catlog.RLOO(2 + size)

        def loss(self, target: Tensor) -> Tensor:
            q = bits(self.theta, validate_args=False)
            return self.E(lambda z: (z - target).square().sum(-1), q)

    torch._dynamo.reset()
    compile = torch.compile
    # the name of torch 2.6, which later versions take as well
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(cache_size_limit=2):
        patch.setattr(torch, "compile", lambda f, **options: compile(f, backend="eager", **options))
        for size in range(1, 5):
            model = Model(size)
            step = catlog.compiled_step(
                model.loss, torch.optim.SGD([model.theta], 0.1), compile=True
            )
            assert step(torch.ones(())).isfinite()
            assert step.mode == "compiled"
