"""Values and gradients of all estimators, settings and kinds of distribution, at fixed seeds.

`numbers.npz` holds what the first edition of this library computed, in float64. An estimator that
takes the same random numbers in the same order must compute the same. Others were added later, when
tests showed that they are right: DoubleCV and RODEO before they learn, weights of 0, one step of
ReDGE, masked one-hot vectors, and third calls of estimators that learn.

    PYTHONPATH=tests python -m frozen.judge  # writes numbers.npz again, if other things are judged
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog.testing.cases import CASES, FUNCTIONS, PARAMETER, POSSIBLE, Case, normals, seeded
from catlog.testing.settings import settings_in
from support.structured_cases import STRUCTURED_CASES, StructuredCase

FILE = Path(__file__).with_name("numbers.npz")


def network(
    outputs: int, seed: int, inputs: int | None = None, flattens: bool = False
) -> Callable[[Tensor], nn.Module]:
    """Return how to make a smooth network with fixed weights, on points like a given one."""

    def made(point: Tensor) -> nn.Module:
        size = inputs or point.numel()
        layers = nn.Sequential(nn.Linear(size, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
        with torch.no_grad():
            for number, parameter in enumerate(layers.parameters()):
                parameter.copy_(normals(*parameter.shape, seed=seed + number))
        return nn.Sequential(nn.Flatten(2), layers) if flattens else layers

    return made


# As in catlog.testing.settings.
TABLE = """
Exact: | chunk_size=2
Reinforce: | samples=2, baseline=0.7
RLOO ARMS VIMCO UnorderedSet: | samples=3
NVIL: | samples=2, network=network(1, 10)
BBVI: samples=2 | samples=3
MuProp ARM DisARM ARSM SIMPLE: | samples=2
REBAR: | samples=2, temperature=0.2, eta=0.6
RELAX: samples=3 | samples=2, network=network(1, 20, flattens=True)
DoubleCV: | alpha=0.7 | samples=3, alpha=-0.4
RODEO: | alpha=-0.6, beta=0.4 | samples=3, alpha=0.3, beta=-0.2
RODEO: samples=3, alpha=0.3, beta=0.5, network=network(2, 30, inputs=2)
IndeCateR: | samples=2, chunk_size=3 | samples=3, sampling="latin"
IndeCateR: samples=12, sampling="latin" | samples=3, sampling="antithetic" | per_variable=True
IndeCateR: samples=2, per_variable=True, sampling="latin" | samples=2, variables=1
IndeCateR: samples=2, variables=2, chunk_size=2 | samples=2, variables=2, control="none"
SCateR: | samples=2, chunk_size=3 | variables=1 | samples=2, suffix="common"
SCateR: samples=2, suffix="gumbel" | samples=2, variables=2, suffix="common" | categories=1
CritiCateR: samples=2 | samples=5, folds=3 | samples=16, ridge=0.1
SlopeCateR: samples=2 | samples=2, corrections=1, sampling="independent"
SlopeCateR: samples=1, corrections=3, slope_entries=2 | samples=4, every=2
SlopeCateR: samples=2, corrections=3, pairs=True, decay=0.7 | samples=2, pairs=False, decay=1.0
MemoryCateR: samples=3 | samples=3, size=5, critics=2
LEG RAM: | samples=2, chunk_size=3
CARMS: | samples=4
DisARMTree: | samples=2, tree="stick"
SumAndSample: top=2 | top=1, samples=3
MAPO: size=2 | size=3, samples=3, maximise=False, clip=0.3
StraightThrough: | samples=3, sampling="latin"
GumbelSoftmax: samples=2 | samples=2, hard=True, temperature=0.5
GumbelSoftmax: samples=3, sampling="antithetic"
GumbelRao: samples=2 | noise_samples=3, temperature=0.5, sampling="latin"
ReinMax: | samples=2, temperature=1.3 | samples=3, sampling="latin"
ReinMaxRao: samples=2 | noise_samples=3, temperature=1.5
ReinMaxCV: samples=2 | noise_samples=3, temperature=0.5, control_weight=1.0 | control_weight=0.0
GappedStraightThrough: | samples=2, gap=None, temperature=0.7
DecoupledStraightThrough: samples=2 | forward_temperature=0.7, backward_temperature=1.5
MinimumVarianceStraightThrough: | samples=2, bias_weight=1.0 | bias_weight=0.0
ReDGE: samples=2 | steps=1 | steps=2, last_time=0.9
DARN: | samples=2, order=1
IMLE: samples=2 | samples=3, step=2.0
DirectOptimisation: samples=2 | samples=3, epsilon=-2.0, chunk_size=2
"""
SETTINGS = settings_in(TABLE, network=network)
STRUCTURED = (
    "subset",
    "masked subset",
    "ranking of the first two",
    "crf with a rule",
    "chain with observations",
    "network with a block",
    "network of networks",
    "network with a known node",
    "sequence of different sizes, all_logits",
    "sequence that ends, step",
    "recurrent, step",
    "mixture of two bits",
    "mixture of one-hot vectors",
    "multinomial",
    "copies of short chain",
)
MASKED_ONE_HOT = Case(
    "one-hot, masked",
    torch.tensor([[0.3, -0.8, -torch.inf], [-torch.inf, 0.5, 0.1]], dtype=torch.float64),
    CASES["one-hot"].distribution,
    torch.eye(3).double()[POSSIBLE],
    CASES["one-hot"].features,
)


class Setup(NamedTuple):
    """One thing that is judged.

    Attributes:
        name: of the estimator, with its settings and the case.
        E: the estimator.
        distribution: makes q from its parameters.
        theta: the parameters.
        f: the function, of points and of a parameter.
        options: of the call.
    """

    name: str
    E: Any
    distribution: Callable[[Tensor], Distribution]
    theta: Tensor
    f: Callable[[Tensor, Tensor], Tensor]
    options: dict[str, Any]


def smooth(features: Callable[[Tensor], Tensor], outputs: int) -> Callable[..., Tensor]:
    """Return f: the sine of features, with three outputs or none."""

    def f(x: Tensor, c: Tensor) -> Tensor:
        z = features(x)
        if not outputs:
            return FUNCTIONS["sine"](z, c)
        return torch.stack([FUNCTIONS[name](z, c) for name in FUNCTIONS], -1)

    return f


def features_of(case: Case | StructuredCase) -> Callable[[Tensor], Tensor]:
    if isinstance(case, Case):
        return case.features
    flat, dims = case.points[0].numel(), case.points.dim() - 1
    weight = normals(flat, 6, seed=8)
    return lambda x: x.reshape(*x.shape[: x.dim() - dims], flat).double() @ weight


def cases(cls: Any) -> list[Case | StructuredCase]:
    """Return the cases that an estimator takes."""
    kinds = {str(entry) for entry in cls.supports}
    labels = STRUCTURED if "structured" in kinds else ()
    if cls is catlog.estimators.SIMPLE:  # it knows the marginals of a subset
        labels = ("masked subset",)
    independent = [case for case in (*CASES.values(), MASKED_ONE_HOT) if str(case.kind) in kinds]
    return independent + [STRUCTURED_CASES[label] for label in labels]


def setups(name: str) -> Iterator[Setup]:
    """Make everything that is judged of an estimator."""
    cls = getattr(catlog.estimators, name)
    for setting, case in product(SETTINGS[name], cases(cls)):
        theta = torch.stack([case.theta, case.theta / 2])
        q, features = case.distribution(theta), features_of(case)
        point = theta[0] if name == "NVIL" else q.sample()[0]
        made = {key: value(point) if callable(value) else value for key, value in setting.items()}
        has_context = name == "NVIL" and "network" in setting
        options = {"context": theta.flatten(1).nan_to_num(neginf=-9.0)} if has_context else {}
        try:
            E = cls(**made)
            deepcopy(E)(lambda x: smooth(features, 0)(x, PARAMETER), q, **options)  # noqa: B023
        except (TypeError, ValueError) as error:
            if "variables" in str(error) or "needs points" in str(error):
                continue  # more variables than q has; integers
            raise
        shown = {key: "network" if callable(value) else value for key, value in setting.items()}
        listing = ", ".join(f"{key}={value}" for key, value in shown.items())
        for outputs in (0, 1) if cls.many_outputs else (0,):
            title = f"{name}({listing}) | {case.name} | {outputs} outputs"
            by_output = {"outputs": outputs} if outputs else {}
            f = smooth(features, outputs)
            yield Setup(title, deepcopy(E), case.distribution, theta, f, options | by_output)


def numbers(setup: Setup) -> np.ndarray:
    """Return the values and gradients of calls in turn, as a vector.

    What is learned in the first call shows in the second; how well it predicts, in the third.
    """
    generator, E = seeded(7), setup.E
    if isinstance(E, nn.Module):
        E = E.double()
    torch.manual_seed(11)  # of the coin of seldom corrections
    parts: list[Tensor] = []
    calls = 3 if any(True for _ in getattr(E, "buffers", tuple)()) else 2
    for _ in range(calls):
        theta = setup.theta.clone().requires_grad_()
        c = PARAMETER.clone().requires_grad_()
        f, q = partial(setup.f, c=c), setup.distribution(theta)
        value = E(f, q, generator=generator, **setup.options)
        weight = torch.linspace(-1.0, 1.4, value.numel(), dtype=torch.float64).view(value.shape)
        leaves = [theta, c]
        if isinstance(E, nn.Module):
            leaves += list(E.parameters())
        gradients = torch.autograd.grad((weight * value).sum(), leaves, allow_unused=True)
        parts += [value.detach(), *(g for g in gradients if g is not None)]
    return torch.cat([part.double().flatten() for part in parts]).numpy()


def write() -> None:
    rows = {setup.name: numbers(setup) for name in SETTINGS for setup in setups(name)}
    ends = np.cumsum([len(row) for row in rows.values()])
    values = np.concatenate(list(rows.values()))
    np.savez_compressed(FILE, names=np.array(list(rows)), ends=ends, numbers=values)
    print(f"{len(rows)} setups, {ends[-1]} numbers")


def read() -> dict[str, np.ndarray]:
    """Return the numbers of every setup."""
    with np.load(FILE) as file:
        rows = np.split(file["numbers"], file["ends"][:-1])
        return dict(zip(file["names"].tolist(), rows, strict=True))


if __name__ == "__main__":
    write()
