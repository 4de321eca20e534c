"""An f that is noisy, or whose points influence each other, is named where its values are
subtracted; nothing else changes, and no other f gives a warning."""

import gc
import warnings
from collections.abc import Callable
from functools import partial
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical, Poisson
from torch.nn.functional import dropout

import catlog
from catlog import NoisyFunctionWarning

Function = Callable[[Tensor], Tensor]
D = 4
MANY = 30  # batch elements: dropout leaves the values of all of them alone once in 10^10 times
SUBTRACTING = {
    "IndeCateR": catlog.IndeCateR(2),
    "IndeCateR, per variable": catlog.IndeCateR(1, per_variable=True),
    "IndeCateR, some variables": catlog.IndeCateR(1, variables=2),
    "SCateR": catlog.SCateR(1),
    "SCateR, common noise": catlog.SCateR(1, suffix="common"),
    "RAM": catlog.estimators.RAM(1),
    "LEG": catlog.estimators.LEG(1),
    "SlopeCateR": catlog.SlopeCateR(4),
}
OTHERS = {
    "Exact": catlog.Exact(),
    "RLOO": catlog.RLOO(2),
    "CritiCateR": catlog.CritiCateR(4),
    "MemoryCateR": catlog.estimators.MemoryCateR(4),
    "ReinMax": catlog.ReinMax(2),
    "DisARM": catlog.DisARM(2),
}


def bits(*batch: int, **options: bool) -> Independent:
    logits = torch.linspace(-1, 1, D).expand(*batch, D).clone().requires_grad_()
    return Independent(Bernoulli(logits=logits, **options), 1)


class Dropped(nn.Module):
    """A noisy function; every instance is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, 0.5).sum(-1)


def rows_of(network: nn.Module) -> Function:
    return lambda x: network(x.flatten(0, -2)).view(x.shape[:-1])


@pytest.mark.parametrize("name", SUBTRACTING)
def test_noise_is_named_where_values_are_subtracted(name: str) -> None:
    E, q = SUBTRACTING[name], bits(MANY)
    with pytest.warns(NoisyFunctionWarning, match="draws random numbers.*outside f") as caught:
        E(Dropped(), q)
    assert {warning.filename for warning in caught} == {__file__}
    mask = dropout(torch.ones(MANY, D), 0.5)
    E(lambda x: (x * mask).sum(-1), q)  # one mask for all points


@pytest.mark.parametrize("name", OTHERS)
def test_noise_is_not_named_elsewhere(name: str) -> None:
    OTHERS[name](Dropped(), bits(MANY))


def chain() -> Distribution:
    return catlog.distributions.MarkovChain(torch.zeros(3), torch.zeros(D - 1, 3, 3))


@pytest.mark.parametrize(
    ("E", "q"),
    [
        (catlog.SCateR(1), chain()),
        (catlog.estimators.LEG(1), chain()),
        (catlog.estimators.CountDifferences(1), Independent(Poisson(torch.ones(2, D)), 1)),
        (catlog.IndeCateR(1), Independent(OneHotCategorical(logits=torch.zeros(2, D, 3)), 1)),
    ],
)
def test_noise_is_named_for_every_kind(E: catlog.Estimator, q: Distribution) -> None:
    end = -len(q.event_shape)

    def value(x: Tensor) -> Tensor:
        return x.float().flatten(end).sum(-1)

    E(value, q)
    with pytest.warns(NoisyFunctionWarning):
        E(lambda x: value(x) + torch.rand(x.shape[:end]), q)


def test_noise_in_an_own_table_is_named() -> None:
    f = catlog.functions.FirstLayerLinear(
        nn.Sequential(nn.Linear(D, 3), nn.Dropout()), lambda h: h.square().sum(-1)
    )
    with pytest.warns(NoisyFunctionWarning):
        catlog.IndeCateR(1)(f, bits(MANY))


@pytest.mark.parametrize("make", [catlog.IndeCateR, catlog.SlopeCateR])
def test_values_gradients_random_numbers_and_calls_are_those_without_a_look(
    make: Callable[..., catlog.Estimator],
) -> None:
    network = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 1))
    inner = rows_of(network)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    seen = []
    for validate in (True, False):
        network.load_state_dict(start)
        torch.manual_seed(0)
        q = bits(MANY, validate_args=validate)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = make(4)(inner, q)
        value.sum().backward()
        assert len(caught) == 2 * validate  # random numbers, and a batch
        gradient = q.base_dist.logits.grad
        seen.append((value, gradient, torch.rand(3), *network.state_dict().values()))
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", SUBTRACTING)
def test_a_sound_function_is_not_evaluated_once_more(name: str) -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x.sum(-1)

    E, q = SUBTRACTING[name], bits(MANY)
    E(f, q)
    assert sum(calls) == E.evaluations(q)


def test_few_uses_are_looked_at() -> None:
    f, looks = Dropped(), []
    for use in range(1, 17):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            catlog.IndeCateR(1)(f, bits(MANY))
        looks += [use] * len(caught)
    assert looks == [1, 2, 3, 4, 8, 16]


def test_batch_normalisation_is_named_in_training_mode_only() -> None:
    network = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).eval()
    f = rows_of(network)
    catlog.IndeCateR(1)(f, bits(MANY))  # a validation before the training
    network.train()
    with pytest.warns(NoisyFunctionWarning, match="batch normalisation.*LayerNorm"):
        catlog.IndeCateR(1)(partial(f), bits(MANY))


def draws_in_vain(x: Tensor) -> Tensor:
    torch.rand(3)
    return x.sum(-1)


def shares_noise(x: Tensor) -> Tensor:
    return (x * torch.rand(D)).sum(-1)


def takes_no_single_point(x: Tensor) -> Tensor:
    assert len(x) > 1
    return Dropped()(x)


model = nn.ModuleDict({"encoder": nn.BatchNorm1d(D), "decoder": nn.Linear(D, 1)})
# Calls that give no warning, as every warning is an error here.
SILENT: dict[str, Callable[[], object]] = {
    "random numbers that change nothing": lambda: catlog.IndeCateR(1)(draws_in_vain, bits(MANY)),
    "f cannot be repeated": lambda: catlog.IndeCateR(2)(takes_no_single_point, bits()),
    "batch normalisation elsewhere": lambda: catlog.IndeCateR(1)(
        lambda x: model["decoder"](x).squeeze(-1), bits(MANY)
    ),
    "values are not checked": lambda: catlog.IndeCateR(1)(
        Dropped(), bits(MANY, validate_args=False)
    ),
    "grad": lambda: torch.func.grad(traced)(torch.zeros(2, D)),
    "vmap": lambda: torch.func.vmap(traced, randomness="different")(torch.zeros(3, 2, D)),
    **{
        f"compiled {name}": lambda name=name: torch.compile(
            lambda logits: traced(logits, name), backend="eager", fullgraph=True
        )(torch.zeros(2, D, requires_grad=True))
        for name in ("IndeCateR", "SlopeCateR")
    },
}


def traced(logits: Tensor, name: str = "IndeCateR") -> Tensor:
    q = Independent(Bernoulli(logits=logits, validate_args=False), 1)
    return SUBTRACTING[name](Dropped(), q).sum()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", SILENT)
def test_no_warning(name: str) -> None:
    SILENT[name]()


def test_noise_that_the_points_of_a_call_share_is_named() -> None:
    with pytest.warns(NoisyFunctionWarning):
        catlog.IndeCateR(1)(shares_noise, bits(MANY))


def test_the_warning_can_be_turned_off() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyFunctionWarning)
        catlog.IndeCateR(1)(Dropped(), bits(MANY))


def test_functions_are_not_kept() -> None:
    network = nn.Linear(D, 1)

    def call() -> "ref[object]":
        f = lambda x: network(x).squeeze(-1)  # noqa: E731
        catlog.IndeCateR(1)(f, bits(MANY))
        return ref(f)

    kept = call()
    gc.collect()
    assert kept() is None


def test_masks_shared_in_a_step_leave_no_noise_in_differences() -> None:
    """f is additive given the mask, so its gradient is the same for all draws and calls."""

    def noisy(x: Tensor) -> Tensor:
        return dropout(x, 0.5).sum(-1)

    def shared(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return torch.vmap(noisy, randomness="same")(x)

    def gradient(E: catlog.Estimator, f: Function, x: Tensor) -> Tensor:
        q = bits(3)
        E(f, q, x=x).sum().backward()
        return q.base_dist.logits.grad

    draws = torch.zeros(2, 3, D), torch.ones(2, 3, D)
    E = catlog.IndeCateR(2, chunk_size=6)
    first, second = (gradient(E, shared, x) for x in draws)
    assert torch.allclose(first, second, rtol=0, atol=1e-6)
    with pytest.warns(NoisyFunctionWarning):
        first, second = (gradient(E, noisy, x) for x in draws)
    assert not torch.allclose(first, second, rtol=0, atol=1e-2)
    assert not catlog.check(shared, bits(3)).is_noisy
