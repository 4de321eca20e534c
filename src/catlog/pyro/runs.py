"""Runs of models and guides with given values at their sites.

Values have *rows*, dimensions to the left of all plates, as in Pyro's parallel enumeration. The
dimension ``-1 - nesting - level`` holds the rows of one level, where ``nesting`` is the number of
dimensions for plates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta, MaskedDistribution
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, TransformedDistribution

from ..core.factors import base_distribution

OWNER = "catlog.pyro.ELBO"
Node = dict[str, Any]  # a site of a trace
Nodes = Mapping[str, Node]  # the sites of a run, in order
Program = Callable[..., Any]
Plate = tuple[str, int, int]  # the name of a plate, its dimension from the right, and its size
Values = dict[str, Tensor]
Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True)
class Programs:
    """A model and a guide with their arguments, and the randomness that all runs of a step share.

    Attributes:
        model: the model.
        guide: the guide.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        nesting: the number of dimensions for plates.
        unshared: sites whose noise is drawn for every row, and for every run.
        drawn: what the guide drew at first: the values of sites that a run does not give.
        coupled: continuous guide sites that had rows in a run. They are drawn by inverse CDF from
            uniforms that all rows share, so they are functions of the discrete sites.
        noise: the uniforms of the coupled sites.
        subsamples: the indices of every plate.
        has_gradients: whether runs build a graph, also those inside an estimator's no_grad: a
            program may differentiate something itself.
    """

    model: Program
    guide: Program
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    nesting: int
    unshared: Names = NONE
    drawn: dict[str, Tensor] = field(default_factory=dict)
    coupled: set[str] = field(default_factory=set)
    noise: dict[str, Tensor] = field(default_factory=dict)
    subsamples: dict[str, Tensor] = field(default_factory=dict)
    has_gradients: bool = field(default_factory=torch.is_grad_enabled)

    def run(self, program: str, values: Values, repeated: Names = NONE) -> dict[str, Node]:
        """Return the sample sites of a run of the "model" or the "guide", in order.

        ``repeated`` sites get their values in two equal rows.
        """
        given = Given(self, values, repeated)
        with poutine.trace() as tracer, given, torch.set_grad_enabled(self.has_gradients):
            getattr(self, program)(*self.args, **self.kwargs)
        return _samples(tracer.trace.nodes)

    def value(self, site: Node) -> Tensor:
        """Return the value of a guide site that a run does not give."""
        name, fn = site["name"], site["fn"]
        if getattr(fn, "has_rsample", False) and has_rows(fn.batch_shape, self.nesting):
            self.coupled.add(name)
        return _by_inverse_cdf(site, self) if name in self.coupled else self.drawn[name]


def _samples(nodes: Nodes) -> dict[str, Node]:
    samples = {name: node for name, node in nodes.items() if node["type"] == "sample"}
    return {name: node for name, node in samples.items() if not site_is_subsample(node)}


class Given(Messenger):  # type: ignore[misc, unused-ignore]
    """A handler that gives sites their values, and repeats the subsamples of earlier runs."""

    def __init__(self, programs: Programs, values: Values, repeated: Names = NONE) -> None:
        super().__init__()
        self.programs = programs
        self.values = values
        self.repeated = repeated

    def _pyro_sample(self, msg: Node) -> None:
        name, value = msg["name"], None
        if msg["is_observed"] or msg["done"]:
            return
        if site_is_subsample(msg):
            value = self.programs.subsamples.get(name)
        elif name in self.values:
            value = self.values[name]
        elif name in self.programs.drawn:
            value = self.programs.value(msg)
        if value is not None:
            msg["value"] = value
            msg["done"] = True

    def _pyro_post_sample(self, msg: Node) -> None:
        if site_is_subsample(msg):
            self.programs.subsamples.setdefault(msg["name"], msg["value"])
        elif msg["name"] in self.repeated:  # the trace, outside, has recorded one row already
            dims = self.programs.nesting + 1
            value = with_dimensions(msg["value"], dims, len(msg["fn"].event_shape))
            msg["value"] = value.expand(2, *value.shape[1:])


def _by_inverse_cdf(node: Node, programs: Programs) -> Tensor:
    """Return a reparameterised value, by uniforms that all rows and all runs of a step share, or by
    those of every row."""
    name, fn = node["name"], node["fn"]
    levels = max(0, len(fn.batch_shape) - programs.nesting)

    def uniforms(like: Tensor) -> Tensor:
        if name in programs.unshared:
            return _stratified(like, levels)
        if name not in programs.noise:
            programs.noise[name] = _stratified(like[(0,) * levels], 0)
        return programs.noise[name]

    try:
        return _of_uniforms(fn, uniforms)
    except NotImplementedError:
        raise NotImplementedError(
            f"{OWNER}: the guide's site {name!r} depends on discrete sites, but "
            f"{type(base_distribution(fn)).__name__} has no `icdf`, by which rows share noise. Use "
            "Normal, MultivariateNormal, Laplace, Uniform, a transformation of these or Delta."
        ) from None


def _of_uniforms(fn: Distribution, uniforms: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a value of ``fn`` as a function of its parameters and of ``uniforms(like)``.

    ``like`` has the shape of a value of the distribution inside all wrappers.
    """
    base = base_distribution(fn)
    if isinstance(base, MaskedDistribution):  # a mask is for the log-probability only
        return _of_uniforms(base.base_dist, uniforms)
    if isinstance(base, Delta):
        return base.v
    if isinstance(base, TransformedDistribution):
        value = _of_uniforms(base.base_dist, uniforms)
        for transform in base.transforms:
            value = transform(value)
        return value
    mean = base.mean
    u = uniforms(mean)
    if isinstance(base, MultivariateNormal):
        normal = torch.special.ndtri(u)
        return mean + (base.scale_tril @ normal.unsqueeze(-1)).squeeze(-1)
    return base.icdf(u)


def _stratified(like: Tensor, levels: int) -> Tensor:
    """Return uniforms of the shape of ``like``, whose first dimensions are rows of so many levels.

    Of R rows, each has another one of R strata, in an order that is random for every element. So
    the uniforms of a row are independent, and their mean over rows has at most R / (R - 1) times
    the variance that independent rows would give (Owen, "Monte Carlo variance of scrambled net
    quadrature", 1997).
    """
    count = like.shape[:levels].numel()
    rows = like.reshape(count, *like.shape[levels:])
    u = (torch.rand_like(rows).argsort(0) + torch.rand_like(rows)) / count
    half = torch.finfo(u.dtype).eps / 2  # the inverse is infinite at 0 and 1
    return u.clamp(half, 1 - half).reshape(like.shape)


def drawn(nodes: Nodes) -> dict[str, Tensor]:
    """Return the values of the sites that are not observed."""
    return {name: node["value"] for name, node in nodes.items() if not node["is_observed"]}


def log_prob(node: Node) -> Tensor:
    """Return the log-probability of a site, scaled by its plates and masked."""
    value = node["fn"].log_prob(node["value"], *node["args"], **node["kwargs"])
    return scale_and_mask(value, node["scale"], node["mask"])


def batch_shape(node: Node) -> torch.Size:
    """Return the shape of the log-probability of a site, without computing it."""
    factors = (node["scale"], node["mask"])
    shapes = [factor.shape for factor in factors if isinstance(factor, Tensor)]
    return torch.broadcast_shapes(getattr(node["fn"], "batch_shape", ()), *shapes)


def has_rows(batch_shape: torch.Size, nesting: int) -> bool:
    """Return whether there are dimensions to the left of those for plates, even for one row."""
    return len(batch_shape) > nesting


def plates(node: Node) -> frozenset[Plate]:
    """Return the vectorised plates of a site. One without a size has that of the site."""
    frames = [frame for frame in node["cond_indep_stack"] if frame.vectorized]
    return frozenset(
        (frame.name, frame.dim, _size(node, frame.dim) if frame.size == -1 else frame.size)
        for frame in frames
    )


def _size(node: Node, dim: int) -> int:
    value, event_dims = node["value"], len(node["fn"].event_shape)
    shape = torch.broadcast_shapes(batch_shape(node), value.shape[: value.dim() - event_dims])
    return shape[dim] if len(shape) >= -dim else 1


def with_dimensions(value: Tensor, dims: int, event_dims: int) -> Tensor:
    """Return ``value`` with at least ``dims`` dimensions before its event, by ones at the left."""
    missing = dims + event_dims - value.dim()
    return value.reshape((1,) * missing + value.shape) if missing > 0 else value
