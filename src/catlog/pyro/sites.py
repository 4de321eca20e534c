"""Discrete sites as one distribution, and points of that distribution as values of the sites."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import MaskedDistribution
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
from ..core.factors import base_distribution
from ..core.ordered import Ordered
from ..core.view import converted
from ..core.view import view as view_of
from ..distributions import Categoricals

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


@dataclass(frozen=True)
class Layout:
    """Where the variables of a discrete site stand.

    Attributes:
        kind: the form of its values.
        dtype: of its values.
        event_shape: of its distribution.
        k: its number of categories.
        d: variables in one event.
        joint: plates whose elements are variables of the event, size by dimension.
    """

    kind: Kind
    dtype: torch.dtype
    event_shape: torch.Size
    k: int
    d: int
    joint: dict[int, int]

    @property
    def variables(self) -> int:
        return self.d * prod(self.joint.values())

    def value(self, x: Tensor, form: Kind) -> Tensor:
        """Return points ``[*rows, *plates, variables]`` in a form as a value of the site."""
        categories = (x.shape[-1],) if form == Kind.ONE_HOT else ()
        start = x.dim() - 1 - len(categories)  # of the variables
        x = x.unflatten(start, (*self.joint.values(), self.d))
        for slot, dim in enumerate(self.joint):
            x = x.transpose(start + dim, start + slot)
        x = x.flatten(start, start + len(self.joint))
        if form != self.kind:
            x = one_hot(x.long(), self.k) if self.kind == Kind.ONE_HOT else x
        return x.to(self.dtype).reshape(x.shape[:start] + self.event_shape)


def layout(distribution: Distribution, joint: dict[int, int]) -> Layout:
    """Return the layout of a discrete site."""
    view: Any = view_of(law(distribution))
    return Layout(view.kind, view.dtype, view.event_shape, view.k, view.d, joint)


def table(
    distribution: Distribution, joint: dict[int, int], batch: torch.Size
) -> Float[Tensor, "*batch variables k"]:
    """Return the log-probabilities of a site's variables, with the plates of ``batch``.

    Elements of the joint plates become variables of the event.
    """
    view: Any = view_of(law(distribution))
    log_probs = view.log_probs
    missing = len(batch) + 2 - log_probs.dim()
    log_probs = log_probs.reshape((1,) * missing + log_probs.shape)
    start = len(batch)
    log_probs = log_probs.reshape(log_probs.shape[:start] + (1,) * len(joint) + (view.d, view.k))
    for slot, (dim, size) in enumerate(joint.items()):
        shape = list(log_probs.shape)
        shape[start + dim] = size
        log_probs = log_probs.expand(shape).transpose(start + dim, start + slot)
    log_probs = log_probs.flatten(start, start + len(joint))
    return log_probs.expand(batch + log_probs.shape[-2:])


def form_of(layouts: list[Layout], is_ordered: bool) -> Kind:
    """Return the form of the points of a distribution of these sites."""
    is_mixed = len({(site.kind, site.k) for site in layouts}) > 1
    return Kind.INDEX if is_ordered or is_mixed else layouts[0].kind


def independent(tables: list[Tensor], layouts: list[Layout]) -> Distribution:
    """Return the distribution of independent sites, with these log-probabilities."""
    form = form_of(layouts, is_ordered=False)
    sizes = [site.k for site in layouts for _ in range(site.variables)]
    logits = joined(tables)
    if form == Kind.BITS:
        return Independent(Bernoulli(logits=logits[..., 1] - logits[..., 0]), 1)
    if form == Kind.ONE_HOT:
        return Independent(OneHotCategorical(logits=logits), 1)
    if len(set(sizes)) == 1:
        return Independent(Categorical(logits=logits), 1)
    return Categoricals(logits, sizes)


def joined(tables: list[Tensor]) -> Tensor:
    """Return the tables of several sites as one, padded with -inf."""
    k = max(rows.shape[-1] for rows in tables)
    return torch.cat([pad(rows, (0, k - rows.shape[-1]), value=-torch.inf) for rows in tables], -2)


class GuideSites(Ordered):
    """Discrete guide sites that depend on each other, as a distribution of their conditionals.

    One site is one block. The conditionals come from runs of the guide, with the earlier sites
    fixed.

    Args:
        tables: from points ``[rows, *batch, d]`` to the log-probabilities of every site.
        cardinalities: the numbers of categories of each site's variables.
        parents: of each site, the positions of the sites that it depends on.
        batch_shape: of the distribution.
        real: dtype of the log-probabilities.
        device: of the log-probabilities.
    """

    def __init__(
        self,
        tables: Callable[[Tensor], list[Tensor]],
        cardinalities: list[tuple[int, ...]],
        parents: tuple[frozenset[int], ...],
        batch_shape: torch.Size,
        real: torch.dtype,
        device: torch.device,
    ) -> None:
        ends = list(accumulate(map(len, cardinalities)))
        blocks = [tuple(range(start, end)) for start, end in pairwise([0, *ends])]
        self.tables = tables
        self.blocks = tuple(blocks)
        self.cardinalities = tuple(size for sizes in cardinalities for size in sizes)
        self.ancestors = tuple(
            frozenset(i for parent in positions for i in blocks[parent]) for positions in parents
        )
        self.real = real
        self.device = device
        super().__init__(batch_shape, torch.Size(ends[-1:]))

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self.tables(x)[block]

    def raw_logits(self, x: Tensor) -> list[Tensor]:
        return self.tables(x)
