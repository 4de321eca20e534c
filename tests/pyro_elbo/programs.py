"""Models and guides: pairs by name, small enough to enumerate."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from catlog.testing.cases import normals

Program = Callable[..., Any]
Programs = tuple[Program, Program]  # a model and a guide


def free(
    name: str, *shape: int, seed: int, kind: Any = dist.Bernoulli, infer: Any = None, **plates: int
) -> Tensor:
    """Sample a discrete site of a guide, whose logits are parameters.

    ``plates`` are its plates from the left to the right, size by name.
    """
    logits = pyro.param(f"{name}_logits", normals(*shape, seed=seed))
    with ExitStack() as stack:
        for dim, (plate, size) in enumerate(plates.items(), -len(plates)):
            stack.enter_context(pyro.plate(plate, size, dim=dim))
        return pyro.sample(name, kind(logits=logits), infer=infer or {})


categories = partial(free, kind=dist.Categorical)


def mixture(infer: dict[str, Any] | None = None) -> Programs:
    """A Gaussian mixture of four data with the assignments in the guide, and a global location."""

    def model() -> None:
        locations = pyro.param("locations", torch.tensor([-1.0, 0.5, 2.0]))
        weights = pyro.param("weights", torch.tensor([0.1, 0.2, -0.3]))
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Categorical(logits=weights))
            pyro.sample("y", dist.Normal(locations[z] + shift, 1.0), obs=normals(4, seed=0))

    def guide() -> None:
        pyro.sample("shift", dist.Delta(pyro.param("shift_location", torch.tensor(0.3))))
        categories("z", 4, 3, seed=1, infer=infer, data=4)

    return model, guide


def autoencoder(data: int = 3) -> Programs:
    """An autoencoder with three bits per datum; both programs take the indices of a minibatch."""
    images = (normals(data, 5, seed=2) > 0).double()

    def model(batch: Tensor | None = None) -> None:
        decoder = pyro.param("decoder", normals(5, 3, seed=3))
        prior = pyro.param("prior", normals(3, seed=4))
        with pyro.plate("data", data, subsample=batch) as index:
            x = pyro.sample("x", dist.Bernoulli(logits=prior).to_event(1))
            logits = (x @ decoder.T).sin() * 2
            pyro.sample("image", dist.Bernoulli(logits=logits).to_event(1), obs=images[index])

    def guide(batch: Tensor | None = None) -> None:
        encoder = pyro.param("encoder", normals(3, 5, seed=5))
        with pyro.plate("data", data, subsample=batch) as index:
            logits = images[index] @ encoder.T
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1))

    return model, guide


def chain(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Programs:
    """Two steps per datum: the guide's second site depends on its first one."""

    def model() -> None:
        start = pyro.param("start", normals(3, seed=7))
        transition = pyro.param("transition", normals(3, 3, seed=8))
        with pyro.plate("data", 2):
            a = pyro.sample("a", dist.Categorical(logits=start))
            b = pyro.sample("b", dist.Categorical(logits=transition[a]))
            pyro.sample("y", dist.Normal(1.0 * a * b - b, 1.0), obs=normals(2, seed=6))

    def guide() -> None:
        transition = pyro.param("guide_transition", normals(2, 3, 3, seed=10))
        with pyro.plate("data", 2):
            a = categories("a", 2, 3, seed=9, infer=first)
            logits = transition[torch.arange(2), a]
            pyro.sample("b", dist.Categorical(logits=logits), infer=second or {})

    return model, guide


def global_and_local() -> Programs:
    """A global bit and a bit per datum, drawn in the guide in the other order."""

    def model() -> None:
        g = pyro.sample("g", dist.Bernoulli(0.4))
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Bernoulli(0.2 + 0.5 * g))
            pyro.sample("y", dist.Normal(x - 2 * g * x, 1.0), obs=normals(3, seed=11))

    return model, lambda: (free("x", 3, seed=12, data=3), free("g", seed=13))


def two_plates() -> Programs:
    """Bits in one plate, one-hot vectors in another; no site depends on both."""

    def model() -> None:
        with pyro.plate("rows", 2):
            a = pyro.sample("a", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Normal(a, 1.0), obs=normals(2, seed=14))
        with pyro.plate("columns", 3):
            b = pyro.sample("b", dist.OneHotCategorical(logits=torch.zeros(2)))
            pyro.sample("w", dist.Normal(b[..., 0], 1.0), obs=normals(3, seed=15))

    def guide() -> None:
        free("a", 2, seed=16, rows=2)
        free("b", 3, 2, seed=17, kind=dist.OneHotCategorical, columns=3)

    return model, guide


def grid() -> Programs:
    """Bits of rows and categories of columns, which meet in every cell of a table."""

    def model() -> None:
        rows, columns = pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 2, dim=-1)
        with rows:
            a = pyro.sample("a", dist.Bernoulli(0.3))
        with columns:
            b = pyro.sample("b", dist.Categorical(logits=torch.zeros(3)))
        with rows, columns:
            pyro.sample("y", dist.Normal(a * b - b, 1.0), obs=normals(2, 2, seed=18))

    def guide() -> None:
        logits = pyro.param("a_logits", normals(2, 1, seed=19))
        with pyro.plate("rows", 2, dim=-2):
            pyro.sample("a", dist.Bernoulli(logits=logits))
        categories("b", 2, 3, seed=20, columns=2)

    return model, guide


def two_summed_plates() -> Programs:
    """Bits in a table, all of which a factor outside of both plates reads."""

    def model() -> None:
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            x = pyro.sample("x", dist.Bernoulli(0.3))
        weight = pyro.param("weight", normals(2, 3, seed=29))
        pyro.factor("f", (x * weight).sum((-2, -1), keepdim=True).sin())

    return model, lambda: free("x", 2, 3, seed=30, rows=2, columns=3)


def loop() -> Programs:
    """Sites of a Python loop, with different numbers of categories."""

    def model() -> None:
        x = [pyro.sample(f"x{i}", dist.Categorical(torch.ones(2 + i))) for i in range(3)]
        total = x[0] * x[1] - x[2]
        pyro.sample("y", dist.Normal(1.0 * total, 1.0), obs=torch.tensor(0.3))

    return model, lambda: [categories(f"x{i}", 2 + i, seed=21 + i) for i in range(3)]


def masked() -> Programs:
    """Data of which some are missing, in a plate of pixels inside the plate of images."""
    present = torch.tensor([[True, False], [True, True]])

    def model() -> None:
        weight = pyro.param("weight", normals(2, 3, seed=26))
        with pyro.plate("images", 2, dim=-1):
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
            with pyro.plate("pixels", 2, dim=-2), poutine.mask(mask=present):
                loc = weight[torch.arange(2).unsqueeze(-1), z]
                pyro.sample("y", dist.Normal(loc, 1.0), obs=normals(2, 2, seed=27))

    return model, lambda: categories("z", 2, 3, seed=28, images=2)


def delta() -> Programs:
    """A reparameterised site given a bit."""

    def model() -> None:
        x = pyro.sample("x", dist.Bernoulli(0.3))
        z = pyro.sample("z", dist.Normal(2 * x, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(0.8))

    def guide() -> None:
        x = free("x", seed=31).long()
        location = pyro.param("location", torch.tensor([-0.5, 1.5]))
        pyro.sample("z", dist.Delta(location[x]))

    return model, guide


def bounded_count() -> Programs:
    """A count that is Poisson in the model, and has four values in the guide."""

    def model() -> None:
        x = pyro.sample("x", dist.Poisson(torch.tensor(1.3)))
        pyro.sample("y", dist.Normal(1.0 * x, 1.0), obs=torch.tensor(0.8))

    return model, lambda: categories("x", 4, seed=44)


def plate_without_a_size(is_in_model: bool) -> Programs:
    """Bits in a plate that has no size in the guide, and none in the model if it says so.

    Without a size a plate may have three elements at one site, and one at another.
    """

    def model() -> None:
        with pyro.plate("data", None if is_in_model else 3):
            x = pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.3)))
            w = pyro.sample("w", dist.Bernoulli(torch.tensor(0.3))) if is_in_model else 0.0
            pyro.sample("y", dist.Normal(x + w, 1.0), obs=normals(3, seed=41))

    def guide() -> None:
        with pyro.plate("data"):
            free("x", 3, seed=42)
            if is_in_model:
                free("w", seed=43)

    return model, guide


INDEPENDENT = {
    "mixture": mixture,
    "autoencoder": autoencoder,
    "global_and_local": global_and_local,
    "two_plates": two_plates,
    "grid": grid,
    "two_summed_plates": two_summed_plates,
    "loop": loop,
    "masked": masked,
    "delta": delta,
    "bounded_count": bounded_count,
    "plate_without_a_size": partial(plate_without_a_size, is_in_model=False),
    "plate_without_a_size_in_both": partial(plate_without_a_size, is_in_model=True),
}
