"""Discrete sites as one distribution, and points of that distribution as values of the sites."""

from collections.abc import Callable, Iterable
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import MaskedDistribution, Unit
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import one_hot, pad

from ..core.categories import Kind
from ..core.estimator import Estimator, check_estimator
from ..core.factors import base_distribution
from ..core.ordered import Ordered
from ..core.view import converted
from ..core.view import view as view_of
from ..distributions import Categoricals
from ..estimators import Exact
from .runs import OWNER, Names, Node, Nodes, plates, with_dimensions

FORMS = frozenset({Kind.BITS, Kind.INDEX, Kind.ONE_HOT})


def unmasked(distribution: Any) -> Any:
    """Return what a site is drawn from: a mask is for its log-probability only."""
    if isinstance(distribution, MaskedDistribution):
        return unmasked(distribution.base_dist)
    if not isinstance(distribution, Independent):
        return distribution
    return unmasked(distribution.base_dist).to_event(distribution.reinterpreted_batch_ndims)


def factors_of(node: Node) -> Any:
    """Return a discrete site as estimators see it; raise TypeError if they cannot take it."""
    return view_of(unmasked(node["fn"]), supports=FORMS)


def discrete_sites(nodes: Nodes) -> list[str]:
    """Return the discrete sites of a guide."""
    return [
        name
        for name, node in nodes.items()
        if not (node["is_observed"] or getattr(node["fn"], "has_rsample", False))
    ]


def check_guide(nodes: Nodes) -> None:
    """Raise if a site of the guide has neither a reparameterisation nor an estimator."""
    discrete = discrete_sites(nodes)
    for name, node in nodes.items():
        fn, site = node["fn"], f"{OWNER}: the guide's site {name!r}"
        kind = type(base_distribution(fn)).__name__
        if isinstance(fn, Unit) and not fn.__dict__.get("has_rsample"):
            raise NotImplementedError(
                f"{OWNER}: pyro.factor({name!r}, ...) in the guide must have has_rsample=True, but "
                f"it is {fn.__dict__.get('has_rsample')}. If it is not a function of "
                "reparameterised sites, move it to the model, with the other sign."
            )
        if name in discrete:
            _check_discrete(node, f"{site} is {kind}")
        elif node["infer"].get("estimator") is not None:
            raise TypeError(
                f"{site} is {kind}, which is reparameterised, but `infer['estimator']` is for "
                "discrete sites. Remove it."
            )


def _check_discrete(node: Node, subject: str) -> None:
    """Raise if estimators cannot take a site, or take it for another distribution."""
    try:
        factors_of(node)
    except TypeError as error:
        raise NotImplementedError(
            f"{subject}, which has neither a reparameterisation nor an estimator. {error} Write a "
            "bounded count as Categorical, or use pyro.infer.TraceGraph_ELBO."
        ) from None
    fn, value = unmasked(node["fn"]), node["value"]
    if not torch.allclose(converted(fn).log_prob(value), fn.log_prob(value), 1e-3, 1e-3):
        raise ValueError(
            f"{subject}, whose conversion by catlog.distributions.register_distribution must have "
            "the same values and probabilities, but it has others."
        )


def estimator_of(name: str, node: Node, default: Estimator) -> Estimator:
    """Return the estimator of a site: its own, Exact where it is enumerated, or the default."""
    infer = node["infer"]
    if (estimator := infer.get("estimator")) is not None:
        check_unbiased(f"`infer['estimator']` of site {name!r}", estimator)
        return estimator
    if not infer.get("enumerate"):
        return default
    if infer.get("num_samples") is not None:
        raise NotImplementedError(
            f"{OWNER}: site {name!r} has `num_samples`. Mark it with "
            'infer={"estimator": catlog.RLOO(8)} instead.'
        )
    return Exact()


def check_unbiased(argument: str, estimator: Any) -> None:
    """Raise unless the argument is an unbiased estimator of expectations."""
    check_estimator(f"{OWNER}: {argument}", estimator)
    if estimator.target != "expectation" or not estimator.unbiased:
        reason = "biased" if estimator.target == "expectation" else "an estimator of another bound"
        raise ValueError(
            f"{OWNER}: {argument} must be unbiased, because the ELBO is an expectation, but "
            f"{estimator!r} is {reason}. Use IndeCateR, SCateR or RLOO."
        )


class Site:
    """A discrete site as variables of a distribution: elements of joint plates, then of its event.

    Args:
        node: the site.
        nesting: the number of dimensions for plates.
        kept: those whose elements are a batch; elements of others are variables of the event.
    """

    def __init__(self, node: Node, nesting: int, kept: Iterable[int]) -> None:
        self.view = factors_of(node)
        dims, sizes = range(-nesting, 0), {dim: size for _, dim, size in plates(node)}
        self.plates = torch.Size(sizes.get(dim, 1) for dim in dims)
        self.kept = torch.Size(sizes.get(dim, 1) if dim in kept else 1 for dim in dims)
        self.joint = torch.Size(1 if dim in kept else sizes.get(dim, 1) for dim in dims)
        self.is_joint = self.joint.numel() > 1
        self.variables = self.joint.numel() * self.view.d

    def value(self, x: Tensor, form: Kind) -> Tensor:
        """Return points ``[*rows, *kept, variables]`` in a form as a value of the site."""
        n, tail = len(self.plates), 2 if form == Kind.ONE_HOT else 1  # dimensions of a variable
        rows, rest = x.shape[: x.dim() - n - tail], x.shape[x.dim() - tail + 1 :]
        if self.is_joint:
            x = x.reshape(rows + self.kept + self.joint + (self.view.d,) + rest)
            x = x.movedim(*self._places(len(rows)))
        if form != self.view.kind == Kind.ONE_HOT:
            x = one_hot(x.long(), self.view.k)
        return x.to(self.view.dtype).reshape(rows + self.plates + self.view.event_shape)

    def table(self, batch: torch.Size) -> Float[Tensor, "*batch variables k"]:
        """Return the log-probabilities of the site's variables, with the rows of ``batch``."""
        n, shape = len(self.plates), (self.variables, self.view.k)
        log_probs = with_dimensions(self.view.log_probs, n, 2)
        rows, variable = log_probs.shape[: log_probs.dim() - n - 2], log_probs.shape[-2:]
        log_probs = log_probs.expand(rows + self.plates + variable)
        if self.is_joint:
            pairs = tuple(chain.from_iterable(zip(self.kept, self.joint, strict=True)))
            log_probs = log_probs.reshape(rows + pairs + variable)
            log_probs = log_probs.movedim(*self._places(len(rows))[::-1])
        return log_probs.reshape(rows + self.kept + shape).expand(batch + shape)

    def _places(self, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where joint dimensions stand: after all kept ones, and each after its kept one."""
        n = len(self.plates)
        return tuple(range(rows + n, rows + 2 * n)), tuple(range(rows + 1, rows + 2 * n, 2))


class JointSites:
    """Several discrete sites as one distribution, and its points as values of the sites.

    Args:
        nodes: the sites by name, with their distributions.
        nesting: the number of dimensions for plates.
        kept: those whose elements are a batch.
        is_ordered: whether sites depend on each other.
    """

    def __init__(
        self, nodes: Nodes, nesting: int, kept: Iterable[int], is_ordered: bool = False
    ) -> None:
        self.sites = {name: Site(node, nesting, kept) for name, node in nodes.items()}
        forms = {(site.view.kind, site.view.k) for site in self.sites.values()}
        self.kept = next(iter(self.sites.values())).kept
        self.form = Kind.INDEX if is_ordered or len(forms) > 1 else next(iter(forms))[0]
        self.sizes = [site.variables for site in self.sites.values()]
        self.cardinalities = tuple(
            site.view.k for site in self.sites.values() for _ in range(site.variables)
        )

    def values(self, x: Tensor) -> dict[str, Tensor]:
        """Return points of the distribution as values of the sites."""
        parts = x.split(self.sizes, -2 if self.form == Kind.ONE_HOT else -1)
        pairs = zip(self.sites.items(), parts, strict=True)
        return {name: site.value(part, self.form) for (name, site), part in pairs}

    def tables(self, batch: torch.Size) -> list[Tensor]:
        """Return the log-probabilities of every site."""
        return [site.table(batch) for site in self.sites.values()]

    def independent(self, batch: torch.Size) -> Distribution:
        """Return the distribution of sites that do not depend on each other."""
        k = max(self.cardinalities)
        tables = self.tables(batch)
        tables = [pad(table, (0, k - table.shape[-1]), value=-torch.inf) for table in tables]
        logits = torch.cat(tables, -2)
        if self.form == Kind.BITS:
            return Independent(Bernoulli(logits=logits[..., 1] - logits[..., 0]), 1)
        if self.form == Kind.INDEX and len(set(self.cardinalities)) > 1:
            return Categoricals(logits, self.cardinalities)
        kind = OneHotCategorical if self.form == Kind.ONE_HOT else Categorical
        return Independent(kind(logits=logits), 1)


class GuideSites(Ordered):
    """Discrete guide sites that depend on each other, as a distribution of their conditionals.

    One site is one block. The conditionals come from runs of the guide, with the earlier sites
    fixed.

    Args:
        sites: the sites at their values in one run.
        tables: from points ``[rows, *batch, d]`` to the log-probabilities of every site.
        batch_shape: of the distribution.
        childless: sites that no other one depends on. All others count as ancestors of all later
            ones, as only the first child of a site is noticed when it appears.
    """

    def __init__(
        self,
        sites: JointSites,
        tables: Callable[[Tensor], list[Tensor]],
        batch_shape: torch.Size,
        childless: Names,
    ) -> None:
        self.tables = tables
        ends = accumulate(sites.sizes, initial=0)
        self.blocks = tuple(tuple(range(start, end)) for start, end in pairwise(ends))
        known = [
            () if name in childless else block
            for name, block in zip(sites.sites, self.blocks, strict=True)
        ]
        self.ancestors = tuple(frozenset().union(*known[:i]) for i in range(len(known)))
        self.cardinalities = sites.cardinalities
        first = next(iter(sites.sites.values())).view.log_probs
        self.real, self.device = first.dtype, first.device
        super().__init__(batch_shape, torch.Size([len(self.cardinalities)]))

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self.tables(x)[block]

    def raw_logits(self, x: Tensor) -> Tensor:
        return self.by_variable(self.tables(x))
