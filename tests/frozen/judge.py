"""Values and gradients of all estimators, settings and kinds of distribution, at fixed seeds.

`numbers.npz` holds what the first edition of this library computed, in float64. An estimator that
takes the same random numbers in the same order must compute the same. Special cases were added
later, when tests showed that they equal other estimators: DoubleCV and RODEO before they learn,
weights of 0, and one step of ReDGE.

    python -m tests.frozen.judge     # writes numbers.npz again, after a change of what is judged
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog.testing.cases import CASES, FUNCTIONS, PARAMETER, normals, seeded
from support.structured_cases import STRUCTURED_CASES

FILE = Path(__file__).with_name("numbers.npz")
CALLS = 2  # in turn, so that what is learned in the first shows in the second


def network(inputs: int, outputs: int, seed: int) -> nn.Module:
    """Return a smooth network with fixed weights."""
    layers = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    with torch.no_grad():
        for number, parameter in enumerate(layers.parameters()):
            parameter.copy_(normals(*parameter.shape, seed=seed + number))
    return layers


# Settings of every estimator. A function makes a setting that depends on the number of variables.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Exact": [{}, {"chunk_size": 2}],
    "Reinforce": [{}, {"samples": 2, "baseline": 0.7}],
    "RLOO": [{}, {"samples": 3}],
    "NVIL": [{}, {"samples": 2, "network": lambda d: network(d, 1, 10)}],
    "BBVI": [{"samples": 2}, {"samples": 3}],
    "MuProp": [{}, {"samples": 2}],
    "REBAR": [{}, {"samples": 2, "temperature": 0.2, "eta": 0.6}],
    "RELAX": [{"samples": 3}, {"samples": 2, "network": lambda d: network(d, 1, 20)}],
    "DoubleCV": [{}, {"alpha": 0.7}, {"samples": 3, "alpha": -0.4}],
    "RODEO": [
        {},
        {"alpha": -0.6, "beta": 0.4},
        {"samples": 3, "alpha": 0.3, "beta": -0.2},
        {"samples": 3, "alpha": 0.3, "beta": 0.5, "network": lambda d: network(2, 2, 30)},
    ],
    "IndeCateR": [
        {},
        {"samples": 2, "chunk_size": 3},
        {"samples": 3, "sampling": "latin"},
        {"samples": 12, "sampling": "latin"},
        {"samples": 3, "sampling": "antithetic"},
        {"per_variable": True},
        {"samples": 2, "per_variable": True, "sampling": "latin"},
        {"samples": 2, "variables": 1},
        {"samples": 2, "variables": 2, "chunk_size": 2},
        {"samples": 2, "variables": 2, "control": "none"},
    ],
    "SCateR": [
        {},
        {"samples": 2, "chunk_size": 3},
        {"variables": 1},
        {"samples": 2, "suffix": "common"},
        {"samples": 2, "suffix": "gumbel"},
        {"samples": 2, "variables": 2, "suffix": "common"},
        {"categories": 1},
    ],
    "CritiCateR": [{"samples": 2}, {"samples": 5, "folds": 3}, {"samples": 16, "ridge": 0.1}],
    "SlopeCateR": [
        {"samples": 2},
        {"samples": 2, "corrections": 1, "sampling": "independent"},
        {"samples": 1, "corrections": 3, "slope_entries": 2},
        {"samples": 2, "corrections": 3, "pairs": True, "decay": 0.7},
        {"samples": 2, "pairs": False, "decay": 1.0},
        {"samples": 4, "every": 2},
    ],
    "MemoryCateR": [{"samples": 3}, {"samples": 3, "size": 5, "critics": 2}],
    "LEG": [{}, {"samples": 2, "chunk_size": 3}],
    "RAM": [{}, {"samples": 2, "chunk_size": 3}],
    "ARM": [{}, {"samples": 2}],
    "DisARM": [{}, {"samples": 2}],
    "ARMS": [{}, {"samples": 3}],
    "ARSM": [{}, {"samples": 2}],
    "CARMS": [{}, {"samples": 4}],
    "DisARMTree": [{}, {"samples": 2, "tree": "stick"}],
    "VIMCO": [{}, {"samples": 3}],
    "UnorderedSet": [{}, {"samples": 3}],
    "SumAndSample": [{"top": 2}, {"top": 1, "samples": 3}],
    "MAPO": [{"size": 2}, {"size": 3, "samples": 3, "maximise": False, "clip": 0.3}],
    "StraightThrough": [{}, {"samples": 3, "sampling": "latin"}],
    "SIMPLE": [{}, {"samples": 2}],
    "GumbelSoftmax": [
        {"samples": 2},
        {"samples": 2, "hard": True, "temperature": 0.5},
        {"samples": 3, "sampling": "antithetic"},
    ],
    "GumbelRao": [{"samples": 2}, {"noise_samples": 3, "temperature": 0.5, "sampling": "latin"}],
    "ReinMax": [{}, {"samples": 2, "temperature": 1.3}, {"samples": 3, "sampling": "latin"}],
    "ReinMaxRao": [{"samples": 2}, {"noise_samples": 3, "temperature": 1.5}],
    "ReinMaxCV": [
        {"samples": 2},
        {"noise_samples": 3, "temperature": 0.5, "control_weight": 1.0},
        {"control_weight": 0.0},
    ],
    "GappedStraightThrough": [{}, {"samples": 2, "gap": None, "temperature": 0.7}],
    "DecoupledStraightThrough": [
        {"samples": 2},
        {"forward_temperature": 0.7, "backward_temperature": 1.5},
    ],
    "MinimumVarianceStraightThrough": [
        {},
        {"samples": 2, "bias_weight": 1.0},
        {"bias_weight": 0.0},
    ],
    "ReDGE": [{"samples": 2}, {"steps": 1}, {"steps": 2, "last_time": 0.9}],
    "DARN": [{}, {"samples": 2, "order": 1}],
    "IMLE": [{"samples": 2}, {"samples": 3, "step": 2.0}],
    "DirectOptimisation": [{"samples": 2}, {"samples": 3, "epsilon": -2.0, "chunk_size": 2}],
}
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


NAMES = tuple(SETTINGS)


class Setup(NamedTuple):
    """One thing that is judged.

    Attributes:
        name: of the estimator, with its settings and the case.
        E: the estimator.
        distribution: makes q from its parameters.
        theta: the parameters.
        f: the function, of points and of a parameter.
        outputs: the number of output dimensions of f.
        options: of the call.
    """

    name: str
    E: Any
    distribution: Callable[[Tensor], Distribution]
    theta: Tensor
    f: Callable[[Tensor, Tensor], Tensor]
    outputs: int
    options: dict[str, Any]


def smooth(features: Callable[[Tensor], Tensor], outputs: int) -> Callable[..., Tensor]:
    """Return f: the sine of features, with three outputs or none."""

    def f(x: Tensor, c: Tensor) -> Tensor:
        z = features(x)
        if not outputs:
            return FUNCTIONS["sine"](z, c)
        return torch.stack([FUNCTIONS[name](z, c) for name in FUNCTIONS], -1)

    return f


def structured_features(theta: Tensor, points: Tensor) -> Callable[[Tensor], Tensor]:
    flat = points[0].numel()
    weight = normals(flat, 6, seed=8)
    return lambda x: x.reshape(*x.shape[: x.dim() - points.dim() + 1], flat).double() @ weight


def supported(cls: Any, kind: str) -> bool:
    return kind in {str(entry) for entry in cls.supports}


def setups(only: str | None = None) -> Iterator[Setup]:
    """Make everything that is judged, of all estimators or of one."""
    for name, settings in SETTINGS.items():
        if only not in (None, name):
            continue
        cls = getattr(catlog.estimators, name)
        for setting in settings:
            for case in CASES.values():
                if supported(cls, str(case.kind)):
                    theta = torch.stack([case.theta, case.theta / 2])
                    yield from _both(
                        name, setting, case.name, case.distribution, theta, case.features
                    )
            if supported(cls, "structured"):
                for label in STRUCTURED:
                    case = STRUCTURED_CASES[label]
                    theta = torch.stack([case.theta, case.theta / 2])
                    features = structured_features(theta, case.points)
                    yield from _both(name, setting, label, case.distribution, theta, features)
    if only not in (None, "SIMPLE"):
        return
    # Subsets are not of independent bits, but SIMPLE knows their marginals.
    case = STRUCTURED_CASES["masked subset"]
    theta = torch.stack([case.theta, case.theta / 2])
    features = structured_features(theta, case.points)
    yield from _both("SIMPLE", {"samples": 2}, case.name, case.distribution, theta, features)


def _both(
    name: str,
    setting: dict[str, Any],
    label: str,
    distribution: Callable[[Tensor], Distribution],
    theta: Tensor,
    features: Callable[[Tensor], Tensor],
) -> Iterator[Setup]:
    cls = getattr(catlog.estimators, name)
    d = theta[0].numel()
    options: dict[str, Any] = {}
    made = {key: value(d) if callable(value) else value for key, value in setting.items()}
    if name == "NVIL" and "network" in made:
        options["context"] = theta.detach().flatten(1)
    if name == "RELAX" and "network" in made:
        points = distribution(theta).sample((1,))
        made["network"] = nn.Sequential(nn.Flatten(2), network(points[0, 0].numel(), 1, 20))
    try:
        E = cls(**deepcopy(made))
        E(lambda x: smooth(features, 0)(x, PARAMETER), distribution(theta), **options)
    except (TypeError, ValueError) as error:
        if "variables" in str(error) or "needs points" in str(error):
            return  # more variables than q has; integers
        raise
    listing = ", ".join(f"{key}={_shown(value)}" for key, value in setting.items())
    for outputs in (0, 1) if getattr(cls, "many_outputs", False) else (0,):
        title = f"{name}({listing}) | {label} | {outputs} outputs"
        f = smooth(features, outputs)
        yield Setup(title, cls(**deepcopy(made)), distribution, theta, f, outputs, options)


def _shown(value: Any) -> str:
    return "network" if callable(value) else str(value)


def numbers(setup: Setup) -> np.ndarray:
    """Return the values and gradients of some calls in turn, and what was learned, as a vector."""
    generator, E = seeded(7), setup.E
    if isinstance(E, nn.Module):
        E = E.double()
    torch.manual_seed(11)  # of the coin of seldom corrections
    parts: list[Tensor] = []
    for _ in range(CALLS):
        theta = setup.theta.clone().requires_grad_()
        c = PARAMETER.clone().requires_grad_()
        options = dict(setup.options, outputs=setup.outputs) if setup.outputs else setup.options
        f, q = partial(setup.f, c=c), setup.distribution(theta)
        value = E(f, q, generator=generator, **options)
        weight = torch.linspace(-1.0, 1.4, value.numel(), dtype=torch.float64).view(value.shape)
        leaves = [theta, c]
        if isinstance(E, nn.Module):
            leaves += list(E.parameters())
        gradients = torch.autograd.grad((weight * value).sum(), leaves, allow_unused=True)
        parts += [value.detach(), *(g for g in gradients if g is not None)]
    return torch.cat([part.double().flatten() for part in parts]).numpy()


def write() -> None:
    rows = {setup.name: numbers(setup) for setup in setups()}
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
