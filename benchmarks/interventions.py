"""The cost of SCateR's sweep over all interventions, for growing numbers of variables d.

    python -m benchmarks.interventions             # writes results/quality/structured_scaling.csv
    python -m benchmarks.interventions --quick     # seconds; writes only to a given --output

One draw of variables with 8 categories, from a recurrent network that carries a state, and from the
same network without one. `what` "sweep": all interventions together; "estimate": SCateR(1); "loop":
the obvious loop over variables and categories, which sets one variable and draws its suffix alone.
The loop may use the stored states of the base draw. Both must find the same points from the same
uniforms.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import catlog
from catlog.distributions import Autoregressive, Ordered
from catlog.sampling.interventions import all_interventions, noise_shape

from .command_line import opened, table_parser
from .quality.structured import conditional_rows
from .tables import Row
from .turns import seconds_in_turns, spread

CATEGORIES = 8
WIDTH = 32
STATES = {"with a state": True, "without": False}


class Recurrent:
    """A gated recurrent network that gives the logits of the next variable."""

    def __init__(self, seed: int = 0) -> None:
        self.cell = torch.nn.GRUCell(CATEGORIES, WIDTH).double()
        self.out = torch.nn.Linear(WIDTH, CATEGORIES).double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in [*self.cell.parameters(), *self.out.parameters()]:
            parameter.data.normal_(0, 2 * WIDTH**-0.5, generator=generator)

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(*lead, WIDTH, dtype=torch.float64)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is not None:
            state = self.cell(one_hot(previous, CATEGORIES).double(), state)
        return self.out(state), state


def recurrent(d: int, incremental: bool) -> Autoregressive:
    """Return d variables of a network that carries its state, or reads the whole prefix."""
    network = Recurrent()

    def of_prefix(x: Tensor, i: int) -> Tensor:
        logits, state = network.step(network.start(x.shape[:-1]), 0, None)
        for j in range(i):
            logits, state = network.step(state, j + 1, x[..., j])
        return logits

    net = network if incremental else of_prefix
    return Autoregressive(net, [CATEGORIES] * d, dtype=torch.float64)


def next_draw(q: Ordered, x: Tensor, j: int, state: object, u: Tensor) -> tuple[Tensor, object]:
    """Return a draw of x[j] from the variables before it, and the state."""
    if q.incremental:
        logits, state = q.step(state, j, x[:, j - 1] if j else None)
    else:
        logits = q.conditional(x, j).squeeze(-2)
    cdf = logits.softmax(-1).cumsum(-1)
    return (u[:, j, None] >= cdf[:, :-1]).sum(-1), state


def loop(q: Ordered, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the base draw ``[1, d]`` and the points of all interventions ``[moves, 1, d]``."""
    d = len(q.cardinalities)
    x = torch.zeros(1, d, dtype=torch.int64)
    state = q.start(torch.Size([1])) if q.incremental else None
    states = []
    for j in range(d):
        x[:, j], state = next_draw(q, x, j, state, noise[0])
        states.append(state)
    moved: list[Tensor] = []
    for i in range(d):
        for offset in range(1, q.cardinalities[i]):
            y = x.clone()
            y[:, i] = (x[:, i] + offset) % q.cardinalities[i]
            u = noise[len(moved) + 1] if len(noise) > 1 else noise[0]
            state = states[i]
            for j in range(i + 1, d):
                y[:, j], state = next_draw(q, y, j, state, u)
            moved.append(y)
    return x, torch.stack(moved)


def check_equal(q: Ordered, noise: Tensor) -> None:
    """Raise an error if the loop and the sweep find different points from the same uniforms."""
    for suffix, uniforms in (("independent", noise), ("common", noise[:1])):
        swept = all_interventions(q, uniforms, suffix=suffix)  # type: ignore[arg-type]
        x, moved = loop(q, uniforms)
        assert torch.equal(swept.x, x), f"{suffix}: the base draws differ"
        assert torch.equal(swept.moved, moved), f"{suffix}: the interventions differ"


def mean_category(x: Tensor) -> Tensor:
    return x.double().mean(-1)


def measure(ds: list[int], loop_d: int, rounds: int) -> list[Row]:
    calls: dict[tuple[str, str, int], Callable[[], object]] = {}
    for (kind, incremental), d in ((item, d) for item in STATES.items() for d in ds):
        q = recurrent(d, incremental)
        shape = noise_shape(q, 1, "independent", None, d * (CATEGORIES - 1))
        noise = torch.rand(shape, dtype=torch.float64)
        calls["sweep", kind, d] = lambda q=q, noise=noise: all_interventions(q, noise)
        if incremental:
            calls["estimate", kind, d] = lambda q=q: catlog.SCateR(1)(mean_category, q)
        if d == loop_d:
            calls["loop", kind, d] = lambda q=q, noise=noise: loop(q, noise)
            with torch.no_grad():
                check_equal(q, noise)
    with torch.no_grad():
        times = seconds_in_turns(calls, rounds, warm_up=2)
    rows = []
    for (what, kind, d), seconds in times.items():
        ms = spread(seconds)
        counted = None
        if what != "loop":
            q = recurrent(d, STATES[kind])
            # The differentiable pass at the base draw belongs to the estimate, not to the sweep.
            base = d if what == "sweep" else 0
            counted = conditional_rows(catlog.SCateR(1), q, mean_category) - base
        rows.append(
            {
                "what": what,
                "law": kind,
                "d": d,
                "k": CATEGORIES,
                "points": 1 + d * (CATEGORIES - 1),
                "conditional_rows": counted,
                "milliseconds": ms["ms"],
                "fastest": ms["ms_min"],
                "slowest": ms["ms_max"],
                "rounds": rounds,
            }
        )
    return rows


def main() -> None:
    args, table = opened(
        table_parser(__doc__), "quality/structured_scaling.csv", "what", "law", "d"
    )
    torch.manual_seed(0)
    rows = measure([4, 8, 16], 8, 5) if args.quick else measure([8, 16, 32, 64], 32, 7)
    table.add(rows, "interventions")


if __name__ == "__main__":
    main()
