"""Estimators inside the transforms of torch.func give the same gradients as ``backward``."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import functional_call, grad, jvp, vmap
from torch.testing import assert_close

import catlog
from catlog.estimators import ESTIMATORS
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import VARIANTS, select, tape
from support.laws import bits

COUPLING = torch.randn(3, 3, generator=seeded()).double()
LOGITS = torch.randn(4, 3, generator=seeded(1)).double()


def f(x: Tensor) -> Tensor:
    return ((x @ COUPLING) * x).sum(-1).sin()


def loss(E: catlog.Estimator, logits: Tensor, **options: Tensor | None) -> Tensor:
    return E(f, bits(logits, validate_args=False), **options)


def by_backward(E: catlog.Estimator, logits: Tensor, **options: Tensor | None) -> Tensor:
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(E, leaf, **options).sum(), leaf)[0]


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_grad(name: str) -> None:
    for settings in VARIANTS[name]:
        torch.manual_seed(0)
        expected = by_backward(ESTIMATORS[name](**settings), LOGITS)
        torch.manual_seed(0)
        E = ESTIMATORS[name](**settings)
        gradient = grad(lambda logits, E=E: loss(E, logits).sum())(LOGITS)
        assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


INJECTABLE = {type(E).__name__ for E in select(continuous=False).values() if tape(E)}


@pytest.mark.parametrize("name", sorted(INJECTABLE))
def test_vmap_of_grad_at_injected_points(name: str) -> None:
    for settings in VARIANTS[name]:
        E, q = ESTIMATORS[name](**settings), bits(LOGITS)
        injected = draw_randomness(E, q)
        mapped = vmap(
            grad(lambda logits, injected, E=E: loss(E, logits, **injected)), in_dims=(0, 1)
        )
        results = mapped(LOGITS, injected), by_backward(E, LOGITS, **injected)  # the latter learns
        assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("name", ["MAPO", "SumAndSample", "UnorderedSet"])
def test_vmap_of_grad_with_draws_from_outside_a_set(name: str, randomness: str) -> None:
    """Where all points but one are summed, the estimate is exact whatever is drawn."""
    E = ESTIMATORS[name](
        **{"MAPO": {"size": 7}, "SumAndSample": {"top": 7}, "UnorderedSet": {"samples": 8}}[name]
    )
    points = torch.cartesian_prod(*[torch.arange(2)] * 3)
    if name == "MAPO":
        E.memory[:, :3] = points[1:]
        before = E.memory.clone()
    gradient = vmap(grad(lambda logits: loss(E, logits)), randomness=randomness)(LOGITS)
    assert_close(gradient, by_backward(catlog.Exact(), LOGITS), rtol=1e-10, atol=1e-10)
    if name == "MAPO":
        grad(lambda logits: loss(E, logits).sum())(LOGITS)
        assert torch.equal(E.memory, before)


SWEEPS = {
    "independent": catlog.SCateR(2, chunk_size=3),
    "common": catlog.SCateR(2, suffix="common"),
    "gumbel": catlog.estimators.RAM(2),
    "variables": catlog.SCateR(2, variables=2),
    "categories": catlog.SCateR(2, categories=1),
}


def chain(parameters: Tensor) -> Distribution:
    """Return a Markov chain of 4 categories."""
    initial, transition = parameters.split([1, 4], -2)
    return catlog.distributions.MarkovChain(
        initial.squeeze(-2), transition, length=3, validate_args=False
    )


def network(parameters: Tensor) -> Distribution:
    """Return a network whose logits depend on the sum of the earlier variables."""

    def logits(x: Tensor, i: int) -> Tensor:
        total = x[..., :i].sum(-1, keepdim=True).double()
        return parameters[..., i, :] + (1 + total) * parameters[..., 3, :]

    shape = parameters.shape[:-2]
    return catlog.distributions.Autoregressive(logits, [4, 4, 4], shape, dtype=torch.float64)


@pytest.mark.parametrize("law", [chain, network])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_vmap_of_grad_of_sweeps(sweep: str, law: Callable[[Tensor], Distribution]) -> None:
    """Mapped over the batch, a sweep gives the gradients of one call for all batch elements."""
    E = SWEEPS[sweep]
    parameters = normals(6, 5, 4)
    injected = tuple(draw_randomness(E, law(parameters))["noise"])

    def expectation(parameters: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        return E(lambda x: f(x.double()), law(parameters), noise=noise)

    leaf = parameters.clone().requires_grad_()
    (expected,) = torch.autograd.grad(expectation(leaf, injected).sum(), leaf)
    dims = tuple(1 + noise.is_floating_point() for noise in injected)
    mapped = vmap(grad(expectation), in_dims=(0, dims))(parameters, injected)
    torch.testing.assert_close(mapped, expected, rtol=1e-12, atol=1e-12)
    # Without a batch in the parameters, the noise alone is mapped.
    shared = vmap(grad(expectation), in_dims=(None, dims))(parameters[0], injected)
    leaf = parameters[:1].expand(6, 5, 4).clone().requires_grad_()
    (expected,) = torch.autograd.grad(expectation(leaf, injected).sum(), leaf)
    torch.testing.assert_close(shared, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["RAM", "SCateR"])
def test_sweeps_draw_in_vmap(name: str) -> None:
    E = ESTIMATORS[name](samples=2)
    for randomness in ("same", "different"):
        gradient = vmap(grad(lambda logits: loss(E, logits)), randomness=randomness)(LOGITS)
        assert bool((gradient != 0).any(-1).all())


def test_mapped_draws_differ() -> None:
    same = LOGITS[:1].expand(50, 3)
    gradient = grad(lambda logits: loss(catlog.IndeCateR(1), logits))
    assert len(vmap(gradient, randomness="different")(same).unique(dim=0)) > 3


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch uses it itself
def test_forward_mode() -> None:
    """A directional derivative is the gradient's product with the direction."""
    q, direction = bits(LOGITS), torch.ones_like(LOGITS)
    x = q.sample((2,))
    for E in (catlog.IndeCateR(2), catlog.RLOO(2), catlog.Exact()):
        points = None if isinstance(E, catlog.Exact) else x
        _, slope = jvp(
            lambda logits, E=E, x=points: loss(E, logits, x=x).sum(), (LOGITS,), (direction,)
        )
        assert_close(slope, by_backward(E, LOGITS, x=points).sum(), rtol=1e-12, atol=1e-12)


def test_per_example_gradients_of_a_module() -> None:
    """The gradients of an encoder and a decoder add up to those of the batch."""
    torch.manual_seed(0)
    encoder, decoder = torch.nn.Linear(5, 3).double(), torch.nn.Linear(3, 5).double()
    images = torch.rand(4, 5).double()
    model = torch.nn.ModuleList([encoder, decoder])
    parameters = dict(model.named_parameters())

    def objective(parameters: dict[str, Tensor], images: Tensor, x: Tensor) -> Tensor:
        part = {
            name: {k[2:]: v for k, v in parameters.items() if k.startswith(name)} for name in "01"
        }
        q = bits(functional_call(encoder, part["0"], images), validate_args=False)

        def error(x: Tensor) -> Tensor:
            return (functional_call(decoder, part["1"], x).tanh() - images).square().sum(-1)

        return catlog.IndeCateR(1)(error, q, x=x)

    x = torch.randint(2, (1, 4, 3)).double()
    per_example = vmap(grad(objective), in_dims=(None, 0, 1))(parameters, images, x)
    expected = torch.autograd.grad(
        objective(parameters, images, x).sum(), list(parameters.values())
    )
    for name, whole in zip(parameters, expected, strict=True):
        assert per_example[name].shape == (4, *whole.shape)
        assert_close(per_example[name].sum(0), whole, rtol=1e-12, atol=1e-12)


def test_slopecater_in_vmap_with_one_source_of_randomness_gives_no_warning() -> None:
    def total(logits: Tensor) -> Tensor:
        return loss(catlog.SlopeCateR(2), logits).sum()

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once per process
    try:
        gradients = vmap(grad(total), randomness="same")(LOGITS)
    finally:
        torch.set_warn_always(before)
    assert bool(gradients.isfinite().all())
