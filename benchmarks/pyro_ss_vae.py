"""A label and a style in Pyro: losses for the guide of the semi-supervised autoencoder.

It needs the extra `pyro`, and scikit-learn for the digits of 8 x 8 pixels. The model is that of
Pyro's example `examples/vae/ss_vae_M2`, without labels: a label of ten categories and eight
continuous variables, which depend on it in the guide; networks with one hidden layer of 64 units.
Columns:

- section "training": `bound`, the negative bound per image in nats, exact in the label, after
  `steps` steps of Adam with `rate`, from the start `seed`; `ms`, processor time of a step. The
  longest training is of three losses only.
- section "gradient": the trace of the covariance of the gradient for 100 images in the networks of
  the label (`encoder_y`), of the style (`encoder_z`) and of the image (`decoder`), at the same
  weights for all methods: after `steps` steps of TraceEnum_ELBO at 0.003. With `code` "bits" the
  label is eight bits instead of one of ten categories.

`noise` is the argument of catlog.pyro.ELBO. What is in the file already is not measured again.
"""

import argparse
import time
from collections.abc import Callable
from itertools import product
from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, config_enumerate
from sklearn.datasets import load_digits
from torch import Tensor, nn

import catlog
import catlog.pyro

from .measuring import Row, Rows, Table
from .pyro_air import together

Noise = Literal["shared", "stratified"]
HIDDEN, STYLE, BATCH = 64, 8, 100
THEIRS = {"Trace_ELBO": Trace_ELBO, "TraceGraph_ELBO": TraceGraph_ELBO}
ENUMERATED = "TraceEnum_ELBO, parallel"
NETWORKS = ("encoder_y", "encoder_z", "decoder")
WIDTHS = {"label": 10, "bits": 8}
LOSSES: list[tuple[str, Noise | None]] = [
    ("Trace_ELBO", None), ("TraceGraph_ELBO", None), (ENUMERATED, None), ("Exact()", "shared"),
    ("Exact()", "stratified"), ("IndeCateR(1)", "shared"), ("RLOO(2)", "shared"),
    ("RLOO(2)", "stratified"), ("RLOO(4)", "shared"), ("RLOO(4)", "stratified"),
]  # fmt: skip
LONG = LOSSES[2:5]
TRAININGS = [(0.001, 1000, LOSSES), (0.003, 1000, LOSSES), (0.003, 4000, LONG)]
MEASURED = ("Exact()", "IndeCateR(1)", "SCateR(1)", "SlopeCateR(1)", "RLOO(4)", "Reinforce(4)")


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, outputs))


class Autoencoder(nn.Module):
    """Model and guide of images with a discrete code and a style."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self.code = code
        width = WIDTHS[code]
        self.encoder_y = network(64, width)
        self.encoder_z = network(64 + width, 2 * STYLE)
        self.decoder = network(width + STYLE, 64)

    def distribution(self, logits: Tensor) -> dist.TorchDistribution:
        if self.code == "label":
            return dist.OneHotCategorical(logits=logits)
        return dist.Bernoulli(logits=logits).to_event(1)

    def model(self, images: Tensor) -> None:
        pyro.module("autoencoder", self)
        with pyro.plate("data", len(images)):
            z = pyro.sample("z", dist.Normal(torch.zeros(STYLE), 1.0).to_event(1))
            y = pyro.sample("y", self.distribution(torch.zeros(WIDTHS[self.code])))
            pixels = dist.Bernoulli(logits=self.decoder(together(y, z)), validate_args=False)
            pyro.sample("image", pixels.to_event(1), obs=images)

    def guide(self, images: Tensor) -> None:
        pyro.module("autoencoder", self)
        with pyro.plate("data", len(images)):
            y = pyro.sample("y", self.distribution(self.encoder_y(images)))
            mean, log_scale = self.encoder_z(together(images, y)).chunk(2, -1)
            pyro.sample("z", dist.Normal(mean, log_scale.exp()).to_event(1))


def gradient_of(method: str, noise: Noise | None) -> Callable[[Autoencoder, Tensor], float]:
    """Return a function that computes the gradient of the negative bound."""
    if method == ENUMERATED:
        summed = TraceEnum_ELBO(max_plate_nesting=1)
        return lambda model, x: summed.loss_and_grads(
            model.model, config_enumerate(model.guide, "parallel"), x
        )
    loss = (
        THEIRS[method](max_plate_nesting=1)
        if method in THEIRS
        else catlog.pyro.ELBO(
            eval(method, vars(catlog)), max_plate_nesting=1, noise=noise or "shared"
        )
    )
    return lambda model, x: loss.loss_and_grads(model.model, model.guide, x)


def trained(
    code: str, method: str, noise: Noise | None, seed: int, steps: int, rate: float
) -> tuple[Autoencoder, float]:
    """Return a model after training, and the processor time of a step in milliseconds."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    model, step, images = Autoencoder(code), gradient_of(method, noise), digits()
    optimiser = torch.optim.Adam(model.parameters(), rate)
    generator = torch.Generator().manual_seed(seed)
    step(model, images[:BATCH])  # what the first step finds out is not counted
    began = time.process_time()
    for _ in range(steps):
        optimiser.zero_grad()
        step(model, images[torch.randint(len(images), (BATCH,), generator=generator)])
        optimiser.step()
    return model, 1000 * (time.process_time() - began) / steps


def digits() -> Tensor:
    return torch.tensor(load_digits().data / 16, dtype=torch.float32)


def bound(model: Autoencoder, particles: int) -> float:
    """Return the negative bound per image: a sum over labels, ``particles`` draws of the style."""
    pyro.set_rng_seed(0)
    loss = catlog.pyro.ELBO(catlog.Exact(), num_particles=particles, max_plate_nesting=1)
    with torch.no_grad():
        return loss.loss(model.model, model.guide, digits()) / len(digits())


def gradients(code: str, steps: int, repeats: int) -> list[Row]:
    """Return the rows of section "gradient"."""
    start = ENUMERATED if code == "label" else "RLOO(4)"
    model, _ = trained(code, start, None, 0, steps, 0.003)
    methods: list[tuple[str, Noise | None]] = [
        (method, noise) for method in MEASURED for noise in ("shared", "stratified")
    ]
    rows = []
    for method, noise in [(ENUMERATED, None)] * (code == "label") + methods:
        step, vectors = gradient_of(method, noise), {name: [] for name in NETWORKS}
        for _ in range(repeats):
            model.zero_grad()
            step(model, digits()[:BATCH])
            for name in NETWORKS:
                grads = [p.grad.flatten() for p in getattr(model, name).parameters()]
                vectors[name].append(torch.cat(grads).double())
        row = {"section": "gradient", "code": code, "method": method, "noise": noise}
        variances = {name: float(torch.stack(vectors[name]).var(0).sum()) for name in NETWORKS}
        rows.append(row | {"steps": steps} | variances)
    return rows


KEY = ("section", "code", "method", "noise", "steps", "rate", "seed")


def ss_vae(args: argparse.Namespace, table: Table) -> Rows:
    for code, steps in product(WIDTHS, [2] if args.quick else [100, 1000]):
        if ("gradient", code, MEASURED[0], "shared", steps, None, None) not in table:
            yield gradients(code, steps, 4 if args.quick else 60)
    trainings = [(0.003, 5, LOSSES)] if args.quick else TRAININGS
    for (rate, steps, losses), seed in product(trainings, (21,) if args.quick else (21, 22, 23)):
        for method, noise in losses:
            cells = ("training", "label", method, noise, steps, rate, seed)
            if cells not in table:
                model, ms = trained("label", method, noise, seed, steps, rate)
                row = dict(zip(KEY, cells, strict=True))
                yield [row | {"ms": ms, "bound": bound(model, 1 if args.quick else 10)}]
