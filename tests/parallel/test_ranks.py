"""Two ranks (gloo, spawned once): a divided estimate, and training on divided batches."""

import os
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import catlog
from catlog.functions import FirstLayerLinear, OfSum, Sharded
from catlog.testing.settings import VARIANTS
from catlog_experiments.named_estimators import law_for, takes_one_hot

torch.set_num_threads(1)
pytestmark = pytest.mark.xdist_group("ranks")  # they are spawned once

D, K, BATCH = 3, 3, 2


class Network(nn.Module):
    """An f with parameters, on points of any distribution."""

    def __init__(self, inputs: int, events: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.events = events  # dimensions of a point
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return self.layers(x.flatten(-self.events).double()).squeeze(-1)


# An estimator, f, q and its parameters.
Problem = tuple[Any, Any, Distribution, list[Tensor]]


def of_estimator(E: Any) -> Problem:
    one_hot = takes_one_hot(E)
    k = K if "index" in E.supports or one_hot else 2
    logits = torch.randn(BATCH, D, k, dtype=torch.float64).requires_grad_()
    f = Network(D * k if one_hot else D, 2 if one_hot else 1)
    return E, f, law_for(E, logits), [logits]


def markov() -> Problem:
    """SCateR on dependent variables, with more rows than one chunk holds."""
    start, step = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3,), (3, 3))
    )
    q = catlog.distributions.MarkovChain(start, step, length=5)
    f: Any = lambda x: (x * torch.arange(5.0, dtype=torch.float64)).sum(-1).sin()  # noqa: E731
    return catlog.SCateR(3, chunk_size=7), f, q, [start, step]


def own_table(kind: str, E: Any) -> Problem:
    """A function with its own table: draws are divided, or variables if that divides better."""
    logits = torch.randn(BATCH, 4, 3, dtype=torch.float64).requires_grad_()
    if kind == "sum":
        total = OfSum(lambda s: (s == 4).double(), categories=3)
        return E, total, Independent(Categorical(logits=logits), 1), [logits]
    is_bits = kind == "bits"
    first = nn.Linear(4 if is_bits else 12, 6)
    f = FirstLayerLinear(
        nn.Sequential(first, nn.ReLU(), nn.Linear(6, 1)).double(), one_hot=not is_bits
    )
    law = Bernoulli(logits=logits[..., 0]) if is_bits else OneHotCategorical(logits=logits)
    return E, f, Independent(law, 1), [logits]


PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{
        f"{name} {options}": partial(of_estimator, catlog.estimators.ESTIMATORS[name](**options))
        for name, variants in VARIANTS.items()
        for options in variants
    },
    "markov": markov,
    **{
        f"{kind} {E}": partial(own_table, kind, E)
        for kind in ("bits", "one-hot", "sum")
        for E in (
            *(
                catlog.IndeCateR(n, per_variable=fresh)
                for n in (1, 2, 3)
                for fresh in (False, True)
            ),
            *([catlog.IndeCateR(3, variables=1)] if kind != "sum" else []),
        )
    },
}


def mean_over_ranks(gradient: Tensor) -> Tensor:
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def estimated(name: str, sharded: bool) -> dict[str, Any]:
    """Return value and gradients; if f is divided, those in its parameters averaged over ranks."""
    torch.manual_seed(0)
    E, f, q, leaves = PROBLEMS[name]()
    E = deepcopy(E)
    value = E(Sharded(f) if sharded else f, q, generator=torch.Generator().manual_seed(3))
    loss = (value * torch.arange(1.0, value.numel() + 1, dtype=torch.float64)).sin().sum()
    of_f = list(f.parameters()) if isinstance(f, nn.Module) else []
    leaves = leaves + (list(E.parameters()) if isinstance(E, nn.Module) else [])
    gradients = torch.autograd.grad(loss, [*leaves, *of_f], materialize_grads=True)
    averaged = [mean_over_ranks(g) if sharded else g for g in gradients[len(leaves) :]]
    numbers = [value.detach(), *gradients[: len(leaves)], *averaged]
    return {"numbers": numbers, "rows": getattr(f, "rows", [])}


def estimates() -> dict[str, Any]:
    """Return plain and divided estimates of every problem."""
    return {name: [estimated(name, sharded) for sharded in (False, True)] for name in PROBLEMS}


def failures() -> dict[str, Any]:
    """Errors if ranks disagree or f fails on one of them; the group survives."""
    rank = dist.get_rank()
    q = Independent(Bernoulli(logits=torch.zeros(4)), 1)

    def message(f: Any, seed: int) -> str:
        try:
            catlog.RLOO(4)(Sharded(f), q, generator=torch.Generator().manual_seed(seed))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def fails(x: Tensor) -> Tensor:
        if rank == 1:
            raise ZeroDivisionError("a part of f")
        return x.sum(-1)

    return {
        "other draws": message(lambda x: x.sum(-1), seed=rank),
        "f fails": message(fails, seed=0),
        "wrong shape": message(lambda x: x, seed=0),
        "indicator": message(lambda x: x.sum(-1) > 2, seed=0),
    }


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 6).double()
        self.decoder = nn.Linear(6, 4).double()

    def forward(self, images: Tensor, x: Tensor, share: bool = False) -> Tensor:
        f: Any = lambda z: (self.decoder(z).sin() - images).square().sum(-1)  # noqa: E731
        q = Independent(Bernoulli(logits=self.encoder(images)), 1)
        return catlog.IndeCateR(2, variables=2)(
            Sharded(f) if share else f, q, x=x, noise=x[..., :2].long() + torch.tensor([2, 4])
        )


def autoencoder() -> tuple[Autoencoder, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        Autoencoder(),
        torch.randn(8, 4, dtype=torch.float64),
        torch.bernoulli(torch.full((2, 8, 6), 0.5, dtype=torch.float64)),
    )


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def inside_ddp() -> dict[str, Any]:
    """All ranks see all images and divide the rows of f; DDP averages the decoder's gradient."""
    model, images, x = autoencoder()
    parallel = DistributedDataParallel(model)
    parallel(images, x, share=True).mean().backward()
    return {"inside ddp": flat(p.grad for p in model.parameters())}


def steps(group: Any) -> Tensor:
    """The parameters after three steps, each rank of the group with its part of the images.

    The optimiser gets the parameters of the decoder after the step is made.
    """
    model, images, x = autoencoder()
    world, rank = (dist.get_world_size(group), dist.get_rank(group)) if group else (1, 0)
    part = slice(rank * 8 // world, (rank + 1) * 8 // world)
    optimiser = torch.optim.SGD(model.encoder.parameters(), 0.1)
    step = catlog.compiled_step(lambda a, b: model(a, b), optimiser, group=group)
    optimiser.add_param_group({"params": [*model.decoder.parameters()]})
    for _ in range(3):
        step(images[part], x[:, part])
    return flat(model.parameters())


PARTS = [estimates, failures, inside_ddp]


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results: dict[str, Any] = {}
    try:
        for part in PARTS:
            results |= part()
        results["steps"] = steps(dist.group.WORLD)
        groups = [dist.new_group([member]) for member in range(2)]  # made by both
        results["steps alone"] = steps(groups[rank])
    except Exception:
        results["error"] = traceback.format_exc()
    torch.save(results, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    mp.spawn(work, args=(str(folder),), nprocs=2)
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_divided_estimate_equals_the_whole(name: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        plain, shared = rank[name]
        assert_close(shared["numbers"], plain["numbers"], rtol=1e-12, atol=1e-14)
        assert shared["rows"] == [-(-rows // 2) for rows in plain["rows"]]
    assert torch.equal(*(rank[name][1]["numbers"][0] for rank in ranks))


def test_disagreement_and_failure_are_raised_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert all("same points" in rank["other draws"] for rank in ranks)
    assert "failed on rank 1" in ranks[0]["f fails"]
    assert ranks[1]["f fails"] == "ZeroDivisionError: a part of f"
    assert all("one value per point" in rank["wrong shape"] for rank in ranks)
    assert all(rank["indicator"] == "nothing" for rank in ranks)


def gradient() -> Tensor:
    model, images, x = autoencoder()
    model(images, x).mean().backward()
    return flat(p.grad for p in model.parameters())


WHOLE: dict[str, Callable[[], Tensor]] = {
    "inside ddp": gradient,  # all ranks see all images and divide the rows of f
    "steps": partial(steps, None),
    "steps alone": partial(steps, None),  # a group of one rank
}


@pytest.mark.parametrize("name", WHOLE)
def test_training_is_that_of_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    wanted = WHOLE[name]()
    for rank in ranks:
        assert_close(rank[name], wanted, rtol=0, atol=1e-13 if "steps" in name else 1e-14)
    assert torch.equal(ranks[0]["steps"], ranks[1]["steps"])
