"""Attend, infer, repeat in Pyro: catlog.pyro.ELBO beside TraceGraph_ELBO with a neural baseline.

It needs the extra `pyro`, and scikit-learn for the digits. The model (Eslami et al., "Attend,
infer, repeat", 2016) is that of Pyro's example `examples/air`, small: images of 20 x 20 pixels with
up to two digits of 8 x 8, three steps, networks of 64 units. In each step the guide says whether
there is another object, where it is and what it is. With TraceGraph_ELBO the guide has the
example's second recurrent network, which predicts a baseline and learns ten times as fast; the
losses of catlog need none. Columns:

- section "training": `bound`, the negative bound per image in nats, exact in the three bits, after
  `cpu` seconds of processor time and `steps` steps of Adam with `rate`, from the start `seed`;
- section "gradient": the trace of the covariance of the gradient for 16 images, in the network that
  gives the probabilities of the bits (`presence`) and in all networks of the guide (`guide`);
  `error`, the standard error of the former; `ms`, the median processor time of a gradient, methods
  taking turns. All have the same weights: those after `steps` steps of
  TraceGraph_ELBO at 0.001, after which only its baseline learned for as many steps again.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceGraph_ELBO
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import catlog
import catlog.pyro

from .measuring import Row, Rows, Table, moments_of, seconds_in_turns

STEPS, SIZE, WINDOW, WHAT, HIDDEN, BATCH = 3, 20, 10, 10, 64, 64
REFERENCE = "TraceGraph_ELBO"
ESTIMATORS = [catlog.RLOO(2), catlog.RLOO(4), catlog.SCateR(1), catlog.Exact()]


def images(count: int, seed: int = 0) -> Tensor:
    """Return images with no, one or two digits."""
    generator = torch.Generator().manual_seed(seed)
    digits = torch.tensor(load_digits().images / 16, dtype=torch.float32)
    canvas = torch.zeros(count, SIZE, SIZE)
    for image in canvas:
        for _ in range(int(torch.randint(3, (), generator=generator))):
            row, column = torch.randint(SIZE - 7, (2,), generator=generator).tolist()
            digit = digits[torch.randint(len(digits), (), generator=generator)]
            image[row : row + 8, column : column + 8] += digit
    return canvas.clamp(max=1)


def together(*parts: Tensor) -> Tensor:
    """Return tensors side by side, each with the rows and plates of all."""
    lead = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], -1)


def resampled(image: Tensor, where: Tensor, size: int) -> Tensor:
    """Return images ``[n, height, width]`` at a grid that is scaled and moved, ``where [n, 3]``."""
    scale, x, y = where.unbind(-1)
    zero = torch.zeros_like(scale)
    theta = torch.stack([scale, zero, x, zero, scale, y], -1).unflatten(-1, (2, 3))
    grid = F.affine_grid(theta, [len(image), 1, size, size], align_corners=False)
    return F.grid_sample(image.unsqueeze(1), grid, align_corners=False).squeeze(1)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


class AIR(nn.Module):
    """Model and guide; ``guide(..., use_baseline=True)`` also predicts a baseline."""

    where_mean = torch.tensor([2.5, 0.0, 0.0])
    where_scale = torch.tensor([0.2, 1.0, 1.0])

    def __init__(self) -> None:
        super().__init__()
        state = HIDDEN + 1 + 3 + WHAT
        self.embed = nn.Sequential(nn.Linear(SIZE**2, HIDDEN), nn.ReLU())
        self.rnn = nn.LSTMCell(state, HIDDEN)
        self.presence = network(HIDDEN, 1)
        self.place = network(HIDDEN, 6)
        self.encode = network(WINDOW**2, 2 * WHAT)
        self.decode = network(WHAT, WINDOW**2)
        self.baseline = nn.ModuleDict(
            {
                "embed": nn.Sequential(nn.Linear(SIZE**2, HIDDEN), nn.ReLU()),
                "rnn": nn.LSTMCell(state, HIDDEN),
                "value": network(HIDDEN, 1),
            }
        )

    def model(self, batch: Tensor, use_baseline: bool = False) -> None:
        pyro.module("air", self)
        with pyro.plate("data", len(batch)):
            is_present, canvas = torch.ones(1), torch.zeros(SIZE, SIZE)
            for t in range(STEPS):
                is_present = pyro.sample(f"pres{t}", dist.Bernoulli(0.5 * is_present).to_event(1))
                place = dist.Normal(self.where_mean, self.where_scale).mask(is_present)
                where = pyro.sample(f"where{t}", place.to_event(1))
                what = pyro.sample(
                    f"what{t}", dist.Normal(torch.zeros(WHAT), 1.0).mask(is_present).to_event(1)
                )
                window = (self.decode(what) - 2).sigmoid().unflatten(-1, (WINDOW, WINDOW))
                drawn = catlog.pyro.rows(resampled, event_dims=(2, 1, 0))
                canvas = canvas + is_present.unsqueeze(-1) * drawn(window, where, SIZE)
            pixels = dist.Normal(canvas.flatten(-2), 0.3).to_event(1)
            pyro.sample("image", pixels, obs=batch.flatten(1))

    def guide(self, batch: Tensor, use_baseline: bool = False) -> None:
        pyro.module("air", self)
        with pyro.plate("data", len(batch)):
            embedded = self.embed(batch.flatten(1))
            state = (torch.zeros(HIDDEN), torch.zeros(HIDDEN))
            baseline_state = state
            is_present, where, what = torch.ones(1), torch.zeros(3), torch.zeros(WHAT)
            for t in range(STEPS):
                infer = {}
                if use_baseline:
                    inputs = together(
                        self.baseline["embed"](batch.flatten(1)),
                        *(value.detach() for value in (is_present, where, what)),
                    )
                    baseline_state = catlog.pyro.rows(self.baseline["rnn"])(inputs, baseline_state)
                    value = self.baseline["value"](baseline_state[0]) * is_present
                    infer = {"baseline": {"baseline_value": value.squeeze(-1)}}
                inputs = together(embedded, is_present, where, what)
                state = catlog.pyro.rows(self.rnn)(inputs, state)
                bit = dist.Bernoulli(self.presence(state[0]).sigmoid() * is_present).to_event(1)
                is_present = pyro.sample(f"pres{t}", bit, infer=infer)
                mean, scale = self.place(state[0]).chunk(2, -1)
                place = dist.Normal(
                    mean + self.where_mean, F.softplus(scale) * self.where_scale
                ).mask(is_present)
                where = pyro.sample(f"where{t}", place.to_event(1))
                inverse = together(1 / where[..., :1], -where[..., 1:] / where[..., :1])
                window = catlog.pyro.rows(resampled, event_dims=(2, 1, 0))(batch, inverse, WINDOW)
                mean, scale = self.encode(window.flatten(-2)).chunk(2, -1)
                content = dist.Normal(mean, F.softplus(scale)).mask(is_present)
                what = pyro.sample(f"what{t}", content.to_event(1))

    def networks_of_guide(self) -> list[nn.Module]:
        return [self.presence, self.embed, self.rnn, self.place, self.encode]


def start(seed: int, rate: float) -> tuple[AIR, torch.optim.Optimizer]:
    """Return a model and its optimiser, in which the baseline learns ten times as fast."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    air = AIR()
    slow = [p for name, p in air.named_parameters() if not name.startswith("baseline")]
    groups = [{"params": slow}, {"params": list(air.baseline.parameters()), "lr": 10 * rate}]
    return air, torch.optim.Adam(groups, lr=rate)


def losses() -> dict[str, Callable[[AIR, Tensor], float]]:
    """Return every method as a function that computes gradients."""
    theirs = TraceGraph_ELBO(max_plate_nesting=1)
    methods: dict[str, Callable[[AIR, Tensor], float]] = {
        REFERENCE: lambda air, x: theirs.loss_and_grads(air.model, air.guide, x, True)
    }
    for estimator in ESTIMATORS:
        own = catlog.pyro.ELBO(estimator, max_plate_nesting=1)
        methods[f"ELBO({estimator})"] = lambda air, x, own=own: own.loss_and_grads(
            air.model, air.guide, x
        )
    return methods


def bound(air: AIR, data: Tensor) -> float:
    """Return the negative bound per image: a sum over the bits, four draws of the other sites."""
    pyro.set_rng_seed(0)
    loss = catlog.pyro.ELBO(catlog.Exact(), num_particles=4, max_plate_nesting=1)
    return loss.loss(air.model, air.guide, data) / len(data)


def train(method: str, seed: int, rate: float, limit: float, data: Tensor) -> Row:
    """Train for some seconds of processor time, and return the row of section "training"."""
    air, optimiser = start(seed, rate)
    step = losses()[method]
    step(air, data[:BATCH])  # what the first step finds out is not counted
    generator = torch.Generator().manual_seed(seed)
    steps, began = 0, time.process_time()
    while time.process_time() - began < limit:
        optimiser.zero_grad()
        step(air, data[torch.randint(len(data), (BATCH,), generator=generator)])
        optimiser.step()
        steps += 1
    row = {"section": "training", "method": method, "steps": steps, "rate": rate, "seed": seed}
    return row | {"cpu": limit, "bound": bound(air, data[:500])}


def gradients(steps: int, repeats: int, data: Tensor) -> list[Row]:
    """Return the rows of section "gradient"."""
    air, optimiser = start(0, 0.001)
    methods = losses()
    for turn in range(2 * steps):
        if turn == steps:  # only the baseline learns from here on
            optimiser.param_groups[0]["lr"] = 0.0
        optimiser.zero_grad()
        methods[REFERENCE](air, data[torch.randint(len(data), (BATCH,))])
        optimiser.step()
    samples: dict[str, list[Tensor]] = {method: [] for method in methods}
    presence = sum(p.numel() for p in air.presence.parameters())

    def add_sample(method: str) -> None:
        air.zero_grad()
        methods[method](air, data[:16])
        grads = [p.grad for part in air.networks_of_guide() for p in part.parameters()]
        samples[method].append(torch.cat([grad.flatten() for grad in grads if grad is not None]))

    calls = {method: partial(add_sample, method) for method in methods}
    times = seconds_in_turns(calls, repeats, warm_up=1, clock=time.process_time)
    rows = []
    for method, vectors in samples.items():
        all_networks = torch.stack(vectors[1:]).double()
        moments = moments_of(all_networks[:, :presence])
        row = {"section": "gradient", "method": method, "steps": steps}
        row |= {"presence": moments.variance, "error": moments.error * moments.variance}
        row |= {"guide": moments_of(all_networks).variance}
        rows.append(row | {"ms": 1000 * median(times[method])})
    return rows


def air(args: argparse.Namespace, table: Table) -> Rows:
    data = images(100 if args.quick else 1000)
    for steps in [2] if args.quick else [0, 100, 200]:
        yield gradients(steps, 4 if args.quick else 120, data)
    rates, seeds, cpu = ((0.001,), (11,), 0.2) if args.quick else ((0.001, 0.003), (11, 12), 30.0)
    for rate, seed, method in product(rates, seeds, losses()):
        yield [train(method, seed, rate, cpu, data)]
