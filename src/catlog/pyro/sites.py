"""Discrete sites as one distribution, and points of that distribution as values of the sites."""

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import MaskedDistribution, Unit
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from torch.nn.functional import one_hot, pad

from ..core.categories import Kind
from ..core.estimator import Estimator
from ..core.factors import base_distribution
from ..core.ordered import Ordered
from ..core.view import converted
from ..core.view import view as view_of
from ..distributions import Categoricals
from ..estimators import Exact
from .runs import OWNER, Node, with_dimensions

SUPPORTED = (Bernoulli, Categorical, OneHotCategorical)


def is_discrete(distribution: Any) -> bool:
    """Return whether the estimators of catlog can take the distribution of a site.

    ``OneHotCategoricalStraightThrough`` is reparameterised, so it stays as it is.
    """
    base = base_distribution(law(distribution))
    return isinstance(base, SUPPORTED) and not isinstance(base, OneHotCategoricalStraightThrough)


def unmasked(distribution: Any) -> Any:
    """Return what a site is drawn from: a mask is for its log-probability only."""
    if isinstance(distribution, MaskedDistribution):
        return unmasked(distribution.base_dist)
    if not isinstance(distribution, Independent):
        return distribution
    base = unmasked(distribution.base_dist)
    if base is distribution.base_dist:
        return distribution
    return base.to_event(distribution.reinterpreted_batch_ndims)


def law(distribution: Any) -> Any:
    """Return what a site is drawn from, as a distribution that estimators know if it is one."""
    return converted(unmasked(distribution))


def discrete_sites(nodes: Mapping[str, Node]) -> list[str]:
    """Return the guide's discrete sites, or raise an error that names a site of another kind."""
    names = []
    for name, node in nodes.items():
        kind = type(base_distribution(node["fn"])).__name__
        if isinstance(node["fn"], Unit) and not node["fn"].__dict__.get("has_rsample"):
            raise NotImplementedError(
                f"{OWNER}: pyro.factor({name!r}, ...) in the guide must have has_rsample=True, but "
                f"it is {node['fn'].__dict__.get('has_rsample')}. Set it if the factor is a "
                "function of reparameterised sites; otherwise move the factor to the model, with "
                "the other sign."
            )
        if node["is_observed"]:
            continue
        if is_discrete(node["fn"]):
            names.append(name)
        elif node["infer"].get("estimator") is not None:
            raise TypeError(
                f"{OWNER}: the guide's site {name!r} is {kind}, but `infer['estimator']` is for "
                "Bernoulli, Categorical and OneHotCategorical. Remove it; continuous sites are "
                "reparameterised."
            )
        elif not getattr(node["fn"], "has_rsample", False):
            supported = ", ".join(cls.__name__ for cls in SUPPORTED)
            raise NotImplementedError(
                f"{OWNER}: the guide's site {name!r} is {kind}, which has neither a "
                f"reparameterisation nor an estimator. Discrete sites must be {supported}, alone "
                "or with `.to_event(...)` or `.mask(...)`, or be converted to one of these by "
                "catlog.distributions.register_distribution: write a bounded count as Categorical, "
                "or use pyro.infer.TraceGraph_ELBO."
            )
    return names


def estimator_of(name: str, node: Node, default: Estimator) -> Estimator:
    """Return the estimator of a site: its own, Exact where it is enumerated, or the default."""
    infer = node["infer"]
    estimator = infer.get("estimator")
    if estimator is not None:
        check_estimator(f"`infer['estimator']` of site {name!r}", estimator)
        return estimator
    if not infer.get("enumerate"):
        return default
    if infer.get("num_samples") is not None:
        raise NotImplementedError(
            f"{OWNER}: site {name!r} asks for enumeration by `num_samples`. Mark it with "
            'infer={"estimator": catlog.RLOO(8)} instead.'
        )
    return Exact()


def check_estimator(argument: str, estimator: object) -> None:
    """Raise unless the argument is an unbiased estimator of expectations."""
    if isinstance(estimator, type) or not isinstance(estimator, Estimator):
        raise TypeError(
            f"{OWNER}: {argument} must be an estimator such as catlog.IndeCateR(2), but "
            f"{estimator!r} was given."
        )
    if estimator.target != "expectation" or not estimator.unbiased:
        reason = "biased" if estimator.target == "expectation" else "an estimator of another bound"
        raise ValueError(
            f"{OWNER}: {argument} must be unbiased, because sites need values in their support and "
            f"the ELBO is an expectation, but {estimator!r} is {reason}. Use IndeCateR, SCateR or "
            "RLOO."
        )


class Site:
    """A discrete site as variables of a distribution: elements of joint plates, then of its event.

    Args:
        distribution: of the site.
        joint: plates whose elements are variables of the event, size by dimension.
    """

    def __init__(self, distribution: Distribution, joint: dict[int, int]) -> None:
        self.view: Any = view_of(law(distribution))
        self.joint = joint
        self.k = self.view.k
        self.variables = self.view.d * prod(joint.values())

    def value(self, x: Tensor, form: Kind) -> Tensor:
        """Return points ``[*rows, *plates, variables]`` in a form as a value of the site."""
        start = x.dim() - (2 if form == Kind.ONE_HOT else 1)  # of the variables
        x = x.unflatten(start, (*self.joint.values(), self.view.d))
        for slot, dim in enumerate(self.joint):
            x = x.transpose(start + dim, start + slot)
        x = x.flatten(start, start + len(self.joint))
        if form != self.view.kind == Kind.ONE_HOT:
            x = one_hot(x.long(), self.k)
        return x.to(self.view.dtype).reshape(x.shape[:start] + self.view.event_shape)

    def table(self, batch: torch.Size) -> Float[Tensor, "*batch variables k"]:
        """Return the log-probabilities of the site's variables, with the plates of ``batch``."""
        log_probs: Tensor = self.view.log_probs
        start = len(batch)
        plates = with_dimensions(log_probs, start, 2).shape[:start]
        log_probs = log_probs.reshape(plates + (1,) * len(self.joint) + log_probs.shape[-2:])
        for slot, (dim, size) in enumerate(self.joint.items()):
            shape = list(log_probs.shape)
            shape[start + dim] = size
            log_probs = log_probs.expand(shape).transpose(start + dim, start + slot)
        log_probs = log_probs.flatten(start, start + len(self.joint))
        return log_probs.expand(batch + log_probs.shape[-2:])


class JointSites:
    """Several discrete sites as one distribution, and its points as values of the sites.

    Args:
        nodes: the sites by name, with their distributions.
        joint: plates whose elements are variables of the event, size by dimension.
        is_ordered: whether sites depend on each other.
    """

    def __init__(
        self, nodes: Mapping[str, Node], joint: dict[int, int], is_ordered: bool = False
    ) -> None:
        self.sites = {name: Site(node["fn"], joint) for name, node in nodes.items()}
        forms = {(site.view.kind, site.k) for site in self.sites.values()}
        self.form = Kind.INDEX if is_ordered or len(forms) > 1 else next(iter(forms))[0]

    def values(self, x: Tensor) -> dict[str, Tensor]:
        """Return points of the distribution as values of the sites."""
        parts = x.split(
            [site.variables for site in self.sites.values()], -1 - (self.form == Kind.ONE_HOT)
        )
        pairs = zip(self.sites.items(), parts, strict=True)
        return {name: site.value(part, self.form) for (name, site), part in pairs}

    def tables(self, batch: torch.Size) -> list[Tensor]:
        """Return the log-probabilities of every site."""
        return [site.table(batch) for site in self.sites.values()]

    def independent(self, batch: torch.Size) -> Distribution:
        """Return the distribution of sites that do not depend on each other."""
        sizes = [site.k for site in self.sites.values() for _ in range(site.variables)]
        pads = [(0, max(sizes) - site.k) for site in self.sites.values()]
        tables = zip(self.tables(batch), pads, strict=True)
        logits = torch.cat([pad(table, width, value=-torch.inf) for table, width in tables], -2)
        if self.form == Kind.BITS:
            return Independent(Bernoulli(logits=logits[..., 1] - logits[..., 0]), 1)
        if self.form == Kind.INDEX and len(set(sizes)) > 1:
            return Categoricals(logits, sizes)
        kind = OneHotCategorical if self.form == Kind.ONE_HOT else Categorical
        return Independent(kind(logits=logits), 1)


class GuideSites(Ordered):
    """Discrete guide sites that depend on each other, as a distribution of their conditionals.

    One site is one block. The conditionals come from runs of the guide, with the earlier sites
    fixed.

    Args:
        sites: the sites at their values in one run.
        tables: from points ``[rows, *batch, d]`` to the log-probabilities of every site.
        parents: of each site, the positions of the sites that it depends on.
        batch_shape: of the distribution.
    """

    def __init__(
        self,
        sites: JointSites,
        tables: Callable[[Tensor], list[Tensor]],
        parents: tuple[frozenset[int], ...],
        batch_shape: torch.Size,
    ) -> None:
        variables = [site.variables for site in sites.sites.values()]
        ends = [0, *accumulate(variables)]
        self.tables = tables
        self.blocks = tuple(tuple(range(start, end)) for start, end in pairwise(ends))
        self.cardinalities = tuple(
            site.k for site in sites.sites.values() for _ in range(site.variables)
        )
        self.ancestors = tuple(
            frozenset(i for parent in positions for i in self.blocks[parent])
            for positions in parents
        )
        first = next(iter(sites.sites.values())).view.log_probs
        self.real, self.device = first.dtype, first.device
        super().__init__(batch_shape, torch.Size(ends[-1:]))

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self.tables(x)[block]

    def raw_logits(self, x: Tensor) -> Tensor:
        return self.by_variable(self.tables(x))
