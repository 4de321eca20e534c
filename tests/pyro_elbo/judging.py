"""Judges of gradients: enumeration by plain runs of Pyro, and estimates at every outcome."""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import Distribution, Independent

import catlog
from catlog.core.categories import Kind
from catlog.testing.settings import tape

Gradients = dict[str, Tensor]


def gradients(
    elbo: Any, model: Callable[..., Any], guide: Callable[..., Any], *args: Any
) -> tuple[Tensor, Gradients]:
    """Return the ELBO and its gradients in all unconstrained parameters, at their first values."""
    pyro.clear_param_store()
    return _differentiated(-elbo.differentiable_loss(model, guide, *args))


def _differentiated(value: Tensor) -> tuple[Tensor, Gradients]:
    parameters = dict(pyro.get_param_store().named_parameters())
    found = torch.autograd.grad(
        value, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return value.detach(), dict(zip(parameters, found, strict=True))


def brute_force(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any
) -> tuple[Tensor, Gradients]:
    """Return the ELBO and its gradients as a sum over all values of all discrete guide sites.

    Model and guide run once per value, without rows. Continuous sites must be Delta.
    """
    pyro.clear_param_store()
    trace = poutine.trace(guide).get_trace(*args)
    sites = {
        name: node
        for name, node in trace.iter_stochastic_nodes()
        if type(node["fn"]).__name__ not in ("_Subsample", "Delta")
    }
    values = {name: points(node["fn"]) for name, node in sites.items()}
    total = torch.zeros(())
    for choice in product(*[range(len(rows)) for rows in values.values()]):
        given = trace.copy()
        for name in [name for name, node in given.nodes.items() if type(node.get("fn")) is Delta]:
            given.remove_node(name)
        for (name, rows), i in zip(values.items(), choice, strict=True):
            given.nodes[name] = {**sites[name], "value": rows[i]}
        drawn = poutine.trace(poutine.replay(guide, trace=given)).get_trace(*args)
        joint = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args)
        drawn.compute_log_prob()
        log_q = sum(drawn.nodes[name]["unscaled_log_prob"].sum() for name in sites)
        total = total + log_q.exp() * (joint.log_prob_sum() - drawn.log_prob_sum())
    return _differentiated(total)


def points(fn: Distribution) -> list[Tensor]:
    """Return all values of a site, every plate element and event element on its own."""
    base: Distribution = fn
    while isinstance(base, Independent):
        base = base.base_dist
    support = base.enumerate_support(expand=False).reshape(-1, *base.event_shape)
    shape = base.batch_shape
    choices = product(support, repeat=prod(shape))
    return [torch.stack(choice).reshape(shape + base.event_shape) for choice in choices]


class EveryOutcome(catlog.Estimator[catlog.Factors]):
    """The expectation of an estimator over all outcomes of its draws, as an estimator.

    Each outcome is a call with ``x``, weighted by its probability. The weights have no gradient.
    """

    reference = "definition"

    estimator: Any

    @property
    def supports(self) -> frozenset[Kind]:  # type: ignore[override]
        return self.estimator.supports

    def estimate(
        self, f: catlog.Evaluator, q: catlog.Factors, draw: catlog.Randomness
    ) -> catlog.Estimate:
        law = q.distribution
        ((_, shape),) = tape(self.estimator, law)
        support = q.point(q.ordered.enumerate_support())
        log_prob = torch.stack([law.log_prob(x) for x in support]).detach()
        total = torch.zeros(law.batch_shape)
        for choice in product(range(len(support)), repeat=shape[0]):
            weight = log_prob[list(choice)].sum(0).exp()
            total = total + weight * self.estimator(f.f, law, x=support[list(choice)])
        return catlog.Estimate(total, total)


def assert_equal(found: Gradients, wanted: Gradients, atol: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=atol, msg=name)
    assert max(float(gradient.abs().max()) for gradient in wanted.values()) > 0.01


def assert_same(found: tuple[Tensor, Gradients], wanted: tuple[Tensor, Gradients]) -> None:
    """Check that both values are equal, and all gradients."""
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-10)
    assert_equal(found[1], wanted[1])


def assert_mean(samples: Gradients, wanted: Gradients, error_rate: float = 1e-6) -> None:
    """Check that the mean over the copies is ``wanted``, by z-tests with a common error rate."""
    entries = sum(gradient.numel() for gradient in wanted.values())
    limit = torch.distributions.Normal(0.0, 1.0).icdf(
        torch.tensor(1 - error_rate / (2 * entries), dtype=torch.float64)
    )
    for name, gradient in wanted.items():
        copies = len(samples[name])
        error = samples[name].std(0) / copies**0.5
        difference = (samples[name].mean(0) - gradient).abs()
        assert (difference <= limit * error + 1e-10).all(), (name, difference / error)
        assert (limit * error < 0.2).all(), (name, error)
