"""Gradients and training in Pyro: `catlog.pyro.ELBO` beside Pyro's own losses.

    python -m benchmarks.from_pyro    # half an hour; quality/pyro_variance.csv, pyro/ss_vae.csv

It needs the extra `pyro`, and scikit-learn for the digits of 8 x 8 pixels.

"variance": each model is trained for `steps` steps of Adam at 0.02 with the problem's first
estimator, and then every method estimates the same gradient many times. `evaluations` are per datum
and gradient; one is the log-joint of one datum at one value of its latent variables. `variance` is
the trace of the covariance of the gradient in the guide's parameters, `error` its standard error,
`ratio` the variance over that of TraceGraph_ELBO, `milliseconds` the median time of a gradient,
methods taking turns.

"ss_vae": the model of Pyro's example `examples/vae/ss_vae_M2` without labels: a label of ten
categories and eight continuous variables, which depend on it in the guide; networks with one hidden
layer of 64 units. Rows of section "training": `bound`, the negative bound per image in nats, exact
in the label, after `steps` steps of Adam with `rate`, from the start `seed`; `ms`, processor time
of a step. The longest training is of three losses only. Rows of section "gradient": the trace of
the covariance of the gradient for 100 images in the networks of the label (`encoder_y`), of the
style (`encoder_z`) and of the image (`decoder`), at the same weights for all methods: after `steps`
steps of TraceEnum_ELBO at 0.003. `noise` is the argument of catlog.pyro.ELBO. What is in the file
already is not measured again.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import (
    SVI,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    config_enumerate,
)
from torch import Tensor, nn

import catlog
import catlog.pyro
from catlog.diagnostics.naming import parse_estimator

from .measuring import Args, Page, Row, Rows, Table, moments_of, randn, seconds_in_turns

page = Page(__doc__)
KEY = ("section", "method", "noise", "steps", "rate", "seed")
Program = Callable[[], None]
BASELINE = {"baseline": {"use_decaying_avg_baseline": True}}
REFERENCE = "TraceGraph_ELBO"
WARM_UP = 100  # steps of a decaying average


def mixture(infer: dict[str, Any]) -> tuple[Program, Program]:
    """A Gaussian mixture: 50 data, 5 components, the assignments in the guide."""
    y = randn(50, seed=0) + torch.arange(50) % 5 * 2.0

    def model() -> None:
        locations = pyro.param("locations", torch.arange(5) * 2.0)
        with pyro.plate("data", 50):
            z = pyro.sample("z", dist.Categorical(logits=torch.zeros(5)))
            pyro.sample("y", dist.Normal(locations[z], 1.0), obs=y)

    def guide() -> None:
        logits = pyro.param("guide_logits", 0.1 * randn(50, 5, seed=1))
        with pyro.plate("data", 50):
            pyro.sample("z", dist.Categorical(logits=logits), infer=infer)

    return model, guide


def autoencoder(infer: dict[str, Any]) -> tuple[Program, Program]:
    """An autoencoder of 20 binary images of 40 pixels with 30 bits each: 2^30 points."""
    images = (randn(20, 40, seed=2) > 0).float()

    def model() -> None:
        decoder = pyro.param("decoder", 0.3 * randn(40, 30, seed=3))
        with pyro.plate("data", 20):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.zeros(30)).to_event(1))
            logits = (2 * x - 1) @ decoder.T
            pyro.sample("image", dist.Bernoulli(logits=logits).to_event(1), obs=images)

    def guide() -> None:
        encoder = pyro.param("guide_encoder", 0.1 * randn(30, 40, seed=4))
        with pyro.plate("data", 20):
            logits = (2 * images - 1) @ encoder.T
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), infer=infer)

    return model, guide


def chain(infer: dict[str, Any]) -> tuple[Program, Program]:
    """Two dependent variables of 5 categories for each of 20 data."""
    y = 2 * randn(20, seed=5)

    def model() -> None:
        transition = pyro.param("transition", randn(5, 5, seed=6))
        with pyro.plate("data", 20):
            a = pyro.sample("a", dist.Categorical(logits=torch.zeros(5)))
            b = pyro.sample("b", dist.Categorical(logits=transition[a]))
            pyro.sample("y", dist.Normal(1.0 * (a - b), 1.0), obs=y)

    def guide() -> None:
        start = pyro.param("guide_start", 0.1 * randn(20, 5, seed=7))
        transition = pyro.param("guide_transition", 0.1 * randn(20, 5, 5, seed=8))
        with pyro.plate("data", 20):
            a = pyro.sample("a", dist.Categorical(logits=start), infer=infer)
            logits = transition[torch.arange(20), a]
            pyro.sample("b", dist.Categorical(logits=logits), infer=infer)

    return model, guide


# The problem, its stages of training in steps, its evaluations per datum, and the estimators that
# cost as many.
PROBLEMS = {
    "mixture": (mixture, [100], 5, [catlog.IndeCateR(1), catlog.RLOO(5)]),
    "autoencoder": (autoencoder, [5, 100], 31, [catlog.IndeCateR(1), catlog.RLOO(31)]),
    "chain": (chain, [100], 9, [catlog.SCateR(1), catlog.RLOO(9)]),
}


def gradient(elbo: Any, model: Program, guide: Program) -> Tensor:
    """Return one gradient in the guide's parameters, as a vector."""
    parameters = dict(pyro.get_param_store().named_parameters())
    elbo.loss_and_grads(model, guide)
    flat = torch.cat([p.grad.flatten() for name, p in parameters.items() if name[:5] == "guide"])
    for parameter in parameters.values():
        parameter.grad = None
    return flat.double()


def measure(name: str, steps: int, repeats: int) -> list[Row]:
    """Return a row per method."""
    make, _, evaluations, estimators = PROBLEMS[name]
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    plain, with_baseline = make({}), make(BASELINE)
    svi = SVI(*plain, pyro.optim.Adam({"lr": 0.02}), loss=catlog.pyro.ELBO(estimators[0]))
    for _ in range(steps):
        svi.step()
    own = {str(estimator): catlog.pyro.ELBO(estimator) for estimator in estimators}
    theirs = {"num_particles": evaluations, "vectorize_particles": True}
    methods = {
        REFERENCE: (TraceGraph_ELBO(**theirs), plain),
        f"{REFERENCE}, decaying average": (TraceGraph_ELBO(**theirs), with_baseline),
        "Trace_ELBO": (Trace_ELBO(**theirs), plain),
        **{f"catlog.pyro.ELBO({label})": (elbo, plain) for label, elbo in own.items()},
    }
    samples: dict[str, list[Tensor]] = {method: [] for method in methods}

    def add_sample(method: str) -> None:
        elbo, programs = methods[method]
        samples[method].append(gradient(elbo, *programs))

    calls = {method: partial(add_sample, method) for method in methods}
    times = seconds_in_turns(calls, repeats, warm_up=min(WARM_UP, repeats))
    rows = []
    for method, seconds in times.items():
        moments = moments_of(torch.stack(samples[method][-repeats:]))
        row = {"problem": name, "steps": steps, "method": method, "evaluations": evaluations}
        row |= {"variance": moments.variance, "error": moments.error * moments.variance}
        rows.append(row | {"milliseconds": 1000 * median(seconds)})
    return [{**row, "ratio": row["variance"] / rows[0]["variance"]} for row in rows]


@page.section("quality/pyro_variance.csv", "problem", "steps", "method")
def variance(args: Args, table: Table) -> Rows:
    for name, (_, stages, *_) in PROBLEMS.items():
        for steps in stages:
            yield measure(name, min(steps, 5) if args.quick else steps, 10 if args.quick else 300)


# A label of ten categories and a style, which depends on it in the guide.
HIDDEN, LABELS, STYLE, BATCH = 64, 10, 8, 100
ENUMERATED = "TraceEnum_ELBO, parallel"
THEIRS: dict[str, Any] = {"Trace_ELBO": Trace_ELBO, "TraceGraph_ELBO": TraceGraph_ELBO}
THEIRS[ENUMERATED] = TraceEnum_ELBO
NETWORKS = ("encoder_y", "encoder_z", "decoder")
LOSSES: list[tuple[str, Any]] = [  # with the argument `noise`
    ("Trace_ELBO", None), ("TraceGraph_ELBO", None), (ENUMERATED, None), ("Exact()", "shared"),
    ("Exact()", "stratified"), ("IndeCateR(1)", "shared"), ("RLOO(2)", "shared"),
    ("RLOO(2)", "stratified"), ("RLOO(4)", "shared"), ("RLOO(4)", "stratified"),
]  # fmt: skip
TRAININGS = [(0.001, 1000, LOSSES), (0.003, 1000, LOSSES), (0.003, 4000, LOSSES[2:5])]
MEASURED = ("Exact()", "IndeCateR(1)", "RLOO(4)")


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, outputs))


def together(*parts: Tensor) -> Tensor:
    """Return tensors side by side, each with the rows and plates of all."""
    lead = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], -1)


class Autoencoder(nn.Module):
    """Model and guide of images."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_y = network(64, LABELS)
        self.encoder_z = network(64 + LABELS, 2 * STYLE)
        self.decoder = network(LABELS + STYLE, 64)

    def model(self, images: Tensor) -> None:
        pyro.module("autoencoder", self)
        with pyro.plate("data", len(images)):
            z = pyro.sample("z", dist.Normal(torch.zeros(STYLE), 1.0).to_event(1))
            y = pyro.sample("y", dist.OneHotCategorical(logits=torch.zeros(LABELS)))
            pixels = dist.Bernoulli(logits=self.decoder(together(y, z)), validate_args=False)
            pyro.sample("image", pixels.to_event(1), obs=images)

    def guide(self, images: Tensor) -> None:
        pyro.module("autoencoder", self)
        with pyro.plate("data", len(images)):
            y = pyro.sample("y", dist.OneHotCategorical(logits=self.encoder_y(images)))
            mean, log_scale = self.encoder_z(together(images, y)).chunk(2, -1)
            pyro.sample("z", dist.Normal(mean, log_scale.exp()).to_event(1))


def gradient_of(method: str, noise: Any) -> Callable[[Autoencoder, Tensor], float]:
    """Return a function that computes the gradient of the negative bound."""
    if method in THEIRS:
        loss: Any = THEIRS[method](max_plate_nesting=1)
    else:
        loss = catlog.pyro.ELBO(parse_estimator(method), max_plate_nesting=1, noise=noise)

    def step(model: Autoencoder, images: Tensor) -> float:
        guide = model.guide
        guide = config_enumerate(guide, "parallel") if method == ENUMERATED else guide
        return loss.loss_and_grads(model.model, guide, images)

    return step


def trained(
    method: str, noise: Any, seed: int, steps: int, rate: float
) -> tuple[Autoencoder, float]:
    """Return a model after training, and the processor time of a step in milliseconds."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    model, step, images = Autoencoder(), gradient_of(method, noise), digits()
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
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().data / 16, dtype=torch.float32)


def bound(model: Autoencoder, particles: int) -> float:
    """Return the negative bound per image: a sum over labels, ``particles`` draws of the style."""
    pyro.set_rng_seed(0)
    loss = catlog.pyro.ELBO(catlog.Exact(), num_particles=particles, max_plate_nesting=1)
    with torch.no_grad():
        return loss.loss(model.model, model.guide, digits()) / len(digits())


def gradients(steps: int, repeats: int) -> list[Row]:
    """Return the rows of section "gradient"."""
    model, _ = trained(ENUMERATED, None, 0, steps, 0.003)
    rows = []
    for method, noise in [(ENUMERATED, None), *product(MEASURED, ("shared", "stratified"))]:
        step, vectors = gradient_of(method, noise), {name: [] for name in NETWORKS}
        for _ in range(repeats):
            model.zero_grad()
            step(model, digits()[:BATCH])
            for name in NETWORKS:
                grads = [p.grad.flatten() for p in getattr(model, name).parameters()]
                vectors[name].append(torch.cat(grads).double())
        row = {"section": "gradient", "method": method, "noise": noise, "steps": steps}
        rows.append(
            row | {name: float(torch.stack(vectors[name]).var(0).sum()) for name in NETWORKS}
        )
    return rows


@page.section("pyro/ss_vae.csv", *KEY)
def ss_vae(args: Args, table: Table) -> Rows:
    for steps in [2] if args.quick else [100, 1000]:
        if ("gradient", MEASURED[0], "shared", steps, None, None) not in table:
            yield gradients(steps, 4 if args.quick else 60)
    trainings = [(0.003, 5, LOSSES)] if args.quick else TRAININGS
    for (rate, steps, losses), seed in product(trainings, (21,) if args.quick else (21, 22, 23)):
        for method, noise in losses:
            cells = ("training", method, noise, steps, rate, seed)
            if cells not in table:
                model, ms = trained(method, noise, seed, steps, rate)
                row = dict(zip(KEY, cells, strict=True))
                yield [row | {"ms": ms, "bound": bound(model, 1 if args.quick else 10)}]


if __name__ == "__main__":
    logging.getLogger("pyro").setLevel(logging.WARNING)
    page.run()
