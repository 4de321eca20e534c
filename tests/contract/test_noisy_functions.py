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
from catlog import IndeCateR, NoisyFunctionWarning, SCateR, SlopeCateR
from catlog.estimators import LEG, RAM, CountDifferences, MemoryCateR

Function = Callable[[Tensor], Tensor]
D = 4
MANY = 30  # batch elements: dropout leaves the values of all of them alone once in 10^10 times


def bits(*batch: int, **options: bool) -> Independent:
    logits = torch.linspace(-1, 1, D).expand(*batch, D).clone().requires_grad_()
    return Independent(Bernoulli(logits=logits, **options), 1)


def value(x: Tensor) -> Tensor:
    return x.float().flatten(2).sum(-1) if x.dim() == 4 else x.float().sum(-1)


class Dropped(nn.Module):
    """A noisy function; every instance is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        return value(dropout(x.float(), 0.5))


def rows_of(network: nn.Module) -> Function:
    return lambda x: network(x.flatten(0, -2)).view(x.shape[:-1])


SUBTRACTING: list[tuple[catlog.Estimator, Distribution]] = [
    *((E, bits(MANY)) for E in (IndeCateR(2), IndeCateR(1, per_variable=True))),
    *((E, bits(MANY)) for E in (IndeCateR(1, variables=2), SCateR(1), RAM(1), LEG(1))),
    *((E, bits(MANY)) for E in (SCateR(1, suffix="common"), SlopeCateR(4))),
    *(
        (E, catlog.distributions.MarkovChain(torch.zeros(MANY, 3), torch.zeros(MANY, D - 1, 3, 3)))
        for E in (SCateR(1), LEG(1))
    ),
    (CountDifferences(1), Independent(Poisson(torch.ones(MANY, D)), 1)),
    (IndeCateR(1), Independent(OneHotCategorical(logits=torch.zeros(MANY, D, 3)), 1)),
]
OTHERS = (catlog.Exact(), catlog.RLOO(2), catlog.CritiCateR(4), MemoryCateR(4), catlog.ReinMax(2))


@pytest.mark.parametrize(("E", "q"), SUBTRACTING, ids=repr)
def test_noise_is_named_where_values_are_subtracted(E: catlog.Estimator, q: Distribution) -> None:
    """And a sound function is evaluated no more often."""
    with pytest.warns(NoisyFunctionWarning, match="draws random numbers.*outside f") as caught:
        E(Dropped(), q)
    assert {warning.filename for warning in caught} == {__file__}
    mask, calls = dropout(torch.ones(q.event_shape), 0.5), []

    def sound(x: Tensor) -> Tensor:
        calls.append(len(x))
        return value(x * mask)  # one mask for all points

    E(sound, q)
    assert sum(calls) == E.evaluations(q)


def shares_noise(x: Tensor) -> Tensor:
    return (x * torch.rand(D)).sum(-1)


def test_noise_of_a_call_or_in_an_own_table_is_named() -> None:
    network = nn.Sequential(nn.Linear(D, 3), nn.Dropout())
    table = catlog.functions.FirstLayerLinear(network, lambda h: h.square().sum(-1))
    for f in (shares_noise, table):
        with pytest.warns(NoisyFunctionWarning):
            IndeCateR(1)(f, bits(MANY))


@pytest.mark.parametrize("make", [IndeCateR, SlopeCateR])
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
            estimate = make(4)(inner, q)
        estimate.sum().backward()
        assert len(caught) == 2 * validate  # random numbers, and a batch
        gradient = q.base_dist.logits.grad
        seen.append((estimate, gradient, torch.rand(3), *network.state_dict().values()))
    assert all(map(torch.equal, *seen))


def test_few_uses_are_looked_at() -> None:
    f, looks = Dropped(), []
    for use in range(1, 17):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            IndeCateR(1)(f, bits(MANY))
        looks += [use] * len(caught)
    assert looks == [1, 2, 3, 4, 8, 16]


def test_batch_normalisation_is_named_in_training_mode_only() -> None:
    network = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).eval()
    f = rows_of(network)
    IndeCateR(1)(f, bits(MANY))  # a validation before the training
    network.train()
    with pytest.warns(NoisyFunctionWarning, match="batch normalisation.*LayerNorm"):
        IndeCateR(1)(partial(f), bits(MANY))


def draws_in_vain(x: Tensor) -> Tensor:
    torch.rand(3)
    return x.sum(-1)


def takes_no_single_point(x: Tensor) -> Tensor:
    assert len(x) > 1
    return Dropped()(x)


def traced(logits: Tensor, E: catlog.Estimator = IndeCateR(2)) -> Tensor:
    return E(Dropped(), Independent(Bernoulli(logits=logits, validate_args=False), 1)).sum()


def silenced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyFunctionWarning)
        IndeCateR(1)(Dropped(), bits(MANY))


model = nn.ModuleDict({"encoder": nn.BatchNorm1d(D), "decoder": nn.Linear(D, 1)})
# Calls that give no warning, as every warning is an error here.
SILENT: dict[str, Callable[[], object]] = {
    **{repr(E): lambda E=E: E(Dropped(), bits(MANY)) for E in OTHERS},
    "random numbers that change nothing": lambda: IndeCateR(1)(draws_in_vain, bits(MANY)),
    "f cannot be repeated": lambda: IndeCateR(2)(takes_no_single_point, bits()),
    "batch normalisation elsewhere": lambda: IndeCateR(1)(
        lambda x: model["decoder"](x).squeeze(-1), bits(MANY)
    ),
    "values are not checked": lambda: IndeCateR(1)(Dropped(), bits(MANY, validate_args=False)),
    "it is turned off": silenced,
    "grad": lambda: torch.func.grad(traced)(torch.zeros(2, D)),
    "vmap": lambda: torch.func.vmap(traced, randomness="different")(torch.zeros(3, 2, D)),
    **{
        f"compiled {E}": lambda E=E: torch.compile(
            lambda logits: traced(logits, E), backend="eager", fullgraph=True
        )(torch.zeros(2, D, requires_grad=True))
        for E in (IndeCateR(2), SlopeCateR(4))
    },
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", SILENT)
def test_no_warning(name: str) -> None:
    SILENT[name]()


def test_functions_are_not_kept() -> None:
    def called() -> "list[ref[object]]":
        network = nn.Sequential(nn.Linear(D, 1), nn.Flatten(-2))
        functions = [lambda x: network(x).squeeze(-1), network]
        for f in functions:
            IndeCateR(1)(f, bits(MANY))
        return list(map(ref, functions))

    kept = called()
    gc.collect()
    assert [function() for function in kept] == [None, None]
