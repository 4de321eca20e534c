"""Variance of gradients in Pyro: catlog.pyro.ELBO beside Pyro's own ELBOs, at equal evaluations.

It needs the extra `pyro`. Each model is trained for a while, and then every method estimates the
same gradient many times. One evaluation is the log-joint of one datum at one value of its latent
variables. Columns:

- steps: of training before the measurement, with Adam at 0.02 and the problem's first estimator;
- evaluations: per datum and gradient;
- variance: the trace of the covariance of the gradient in the guide's parameters;
- error: the standard error of the variance;
- ratio: the variance over that of TraceGraph_ELBO;
- milliseconds: the median time of a gradient, methods taking turns.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO, TraceGraph_ELBO
from torch import Tensor

import catlog
import catlog.pyro

from .measuring import Row, Rows, Table, moments_of, seconds_in_turns

Program = Callable[[], None]
BASELINE = {"baseline": {"use_decaying_avg_baseline": True}}
REFERENCE = "TraceGraph_ELBO"
WARM_UP = 100  # steps of a decaying average


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixture(infer: dict[str, Any]) -> tuple[Program, Program]:
    """A Gaussian mixture: 50 data, 5 components, the assignments in the guide."""
    y = numbers(50, seed=0) + torch.arange(50) % 5 * 2.0

    def model() -> None:
        locations = pyro.param("locations", torch.arange(5) * 2.0)
        with pyro.plate("data", 50):
            z = pyro.sample("z", dist.Categorical(logits=torch.zeros(5)))
            pyro.sample("y", dist.Normal(locations[z], 1.0), obs=y)

    def guide() -> None:
        logits = pyro.param("guide_logits", 0.1 * numbers(50, 5, seed=1))
        with pyro.plate("data", 50):
            pyro.sample("z", dist.Categorical(logits=logits), infer=infer)

    return model, guide


def autoencoder(infer: dict[str, Any]) -> tuple[Program, Program]:
    """An autoencoder of 20 binary images of 40 pixels with 30 bits each: 2^30 points."""
    images = (numbers(20, 40, seed=2) > 0).float()

    def model() -> None:
        decoder = pyro.param("decoder", 0.3 * numbers(40, 30, seed=3))
        with pyro.plate("data", 20):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.zeros(30)).to_event(1))
            logits = (2 * x - 1) @ decoder.T
            pyro.sample("image", dist.Bernoulli(logits=logits).to_event(1), obs=images)

    def guide() -> None:
        encoder = pyro.param("guide_encoder", 0.1 * numbers(30, 40, seed=4))
        with pyro.plate("data", 20):
            logits = (2 * images - 1) @ encoder.T
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), infer=infer)

    return model, guide


def chain(infer: dict[str, Any]) -> tuple[Program, Program]:
    """Two dependent variables of 5 categories for each of 20 data."""
    y = 2 * numbers(20, seed=5)

    def model() -> None:
        transition = pyro.param("transition", numbers(5, 5, seed=6))
        with pyro.plate("data", 20):
            a = pyro.sample("a", dist.Categorical(logits=torch.zeros(5)))
            b = pyro.sample("b", dist.Categorical(logits=transition[a]))
            pyro.sample("y", dist.Normal(1.0 * (a - b), 1.0), obs=y)

    def guide() -> None:
        start = pyro.param("guide_start", 0.1 * numbers(20, 5, seed=7))
        transition = pyro.param("guide_transition", 0.1 * numbers(20, 5, 5, seed=8))
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
        rows.append(row | {"milliseconds": 1000 * statistics.median(seconds)})
    return [{**row, "ratio": row["variance"] / rows[0]["variance"]} for row in rows]


def variance(args: argparse.Namespace, table: Table) -> Rows:
    for name, (_, stages, *_) in PROBLEMS.items():
        for steps in stages:
            yield measure(name, min(steps, 5) if args.quick else steps, 10 if args.quick else 300)
