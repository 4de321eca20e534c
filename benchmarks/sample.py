"""Time of `catlog.sample` beside `torch.nn.functional.gumbel_softmax`.

    python -m benchmarks.sample                     # writes results/speed/sample_cpu.csv
    python -m benchmarks.sample --device cuda

A step is the draw and the gradient of a weighted sum of it. In every round all methods take turns;
`ratio` is the median over rounds of the time relative to F.gumbel_softmax in the same round.
"""

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

import catlog
from catlog.sample import SlopeEstimator

from .command_line import opened, table_parser
from .tables import Row
from .turns import median_ratio, seconds_in_turns

SHAPES = [(32, 10), (100, 20, 10), (100, 200, 10)]
REFERENCE = "F.gumbel_softmax"
ESTIMATORS: list[SlopeEstimator] = [
    catlog.GumbelSoftmax(temperature=0.5, hard=True),
    catlog.StraightThrough(validate=False),
    catlog.ReinMax(validate=False),
    catlog.estimators.GumbelRao(validate=False),
]
Draw = Callable[[Tensor], Tensor]


def methods() -> dict[str, Draw]:
    """Return the functions to time, by name."""
    draws: dict[str, Draw] = {REFERENCE: lambda logits: F.gumbel_softmax(logits, 0.5, hard=True)}
    for E in ESTIMATORS:
        draws[type(E).__name__] = lambda logits, E=E: catlog.sample(logits, E)  # type: ignore[misc]
    return draws


def measure(shape: tuple[int, ...], device: str, rounds: int) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator).to(device).requires_grad_()
    weight = torch.randn(shape, generator=generator).to(device)

    def step(draw: Draw) -> None:
        torch.autograd.grad((draw(logits) * weight).sum(), logits)

    steps = {name: partial(step, draw) for name, draw in methods().items()}
    times = seconds_in_turns(steps, rounds, warm_up=3, least=0.01)
    return [
        {
            "shape": " x ".join(map(str, shape)),
            "method": name,
            "ms": 1000 * median(took),
            "ratio": median_ratio(took, times[REFERENCE]),
        }
        for name, took in times.items()
    ]


def main() -> None:
    parser = table_parser(__doc__, quick=False, rounds=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args, table = opened(parser, "speed/sample_{device}.csv", "shape")
    for shape in SHAPES:
        table.add(measure(shape, args.device, args.rounds), " x ".join(map(str, shape)))


if __name__ == "__main__":
    main()
