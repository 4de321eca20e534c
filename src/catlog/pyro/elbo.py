"""The evidence lower bound of a model and a guide of Pyro, with an estimator per discrete site."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Literal, get_args

import pyro.infer
import torch
from pyro.infer.enum import get_importance_trace
from pyro.infer.util import is_validation_enabled, torch_backward, torch_item
from torch import Tensor
from torch.distributions import Distribution

from ..core.categories import Kind
from ..core.checks import check_choice, check_count
from ..core.estimator import Estimator
from ..estimators import IndeCateR
from .runs import (
    Node,
    Plate,
    Program,
    Programs,
    batch_shape,
    drawn,
    log_prob,
    plates,
    with_dimensions,
)
from .sites import GuideSites, Layout, form_of, independent, layout, table
from .structure import Chain, Group, Structure, check_estimator, discover, discrete_sites, signature
from .vectorisation import OWNER, ChangedSiteError

Noise = Literal["shared", "stratified"]

# Arguments of Pyro's losses that have no meaning here, and what to do instead.
_OTHERS = {
    "max_iarange_nesting": "`max_iarange_nesting` is `max_plate_nesting`.",
    "strict_enumeration_warning": (
        "`strict_enumeration_warning` has no meaning, because sites are enumerated where they are "
        "marked. Remove it."
    ),
    "ignore_jit_warnings": "nothing is traced, so remove `ignore_jit_warnings`.",
    "jit_options": "nothing is traced, so remove `jit_options`.",
    "tail_adaptive_beta": "`tail_adaptive_beta` is for TraceTailAdaptive_ELBO only. Remove it.",
}


class ELBO(pyro.infer.ELBO):  # type: ignore[misc, unused-ignore]
    r"""The evidence lower bound for ``pyro.infer.SVI``, with estimators of catlog.

    .. math:: \mathbb{E}_{q(x, z)}\bigl[\log p(x, z, y) - \log q(x, z)\bigr]

    The guide's discrete sites x (Bernoulli, Categorical, OneHotCategorical) are one distribution,
    whose expectation the estimator takes. Its f is the log-joint of the replayed model, less the
    log-probability of the guide. Continuous sites z stay reparameterised.

    - Plates are kept: elements of a plate have separate expectations, so the cost in evaluations
      does not grow with its size. If a site outside the plate depends on its elements, they are
      variables of one event instead.
    - Sites that depend on earlier ones need an estimator for dependent variables (SCateR, RLOO).
    - ``infer={"estimator": catlog.RLOO(8)}`` gives a site an estimator of its own. Sites with other
      estimators or other plates are expectations inside each other, and their costs multiply.
    - ``infer={"enumerate": "parallel"}`` in the guide is ``infer={"estimator": catlog.Exact()}``.
    - Continuous sites that depend on discrete ones get the same noise in all rows, unless
      ``noise="stratified"``.

    Model and guide run with *rows*: values with one more dimension to the left of all plates, as in
    parallel enumeration. The first step runs them a few more times to find what depends on what,
    and to check that rows do not mix. What cannot have rows is refused by name. A step at which a
    site depends on more than before is noticed, and looks again.

    Cost: ``num_particles`` times the evaluations of the estimator, each of which is one row of a
    run of the model. Needs: an unbiased estimator.
    Reference: the estimator's; for the loss, Wingate & Weber, "Automated variational inference in
    probabilistic programming", 2013.

    Args:
        estimator: of all discrete guide sites without one of their own; None: IndeCateR(1).
        num_particles: the mean of this many estimates.
        max_plate_nesting: the number of dimensions for plates; by default it is found by a run.
        vectorize_particles: estimate all particles in one run, as elements of one more plate.
        retain_graph: keep the graph after the backward pass.
        noise: of continuous sites that depend on discrete ones. "shared": the same in all rows, so
            that it cancels in the differences of which discrete gradients consist; "stratified":
            every row has another stratum, so that it averages out in continuous gradients. Sites
            before the guide's last discrete site always share it.

    >>> import pyro
    >>> from pyro.distributions import Bernoulli, Normal
    >>> from pyro.infer import SVI
    >>> import catlog, catlog.pyro
    >>> y = torch.tensor([-1.0, 2.0, 0.5])
    >>> def model(y):
    ...     with pyro.plate("data", 3):
    ...         x = pyro.sample("x", Bernoulli(0.5))
    ...         pyro.sample("y", Normal(2 * x - 1, 1.0), obs=y)
    >>> def guide(y):
    ...     logits = pyro.param("logits", torch.zeros(3))
    ...     with pyro.plate("data", 3):
    ...         pyro.sample("x", Bernoulli(logits=logits))
    >>> pyro.clear_param_store()
    >>> adam = pyro.optim.Adam({"lr": 0.1})
    >>> svi = SVI(model, guide, adam, loss=catlog.pyro.ELBO(catlog.IndeCateR(2)))
    >>> for _ in range(100):
    ...     _ = svi.step(y)
    >>> posterior = (2 * y).sigmoid()
    >>> (pyro.param("logits").sigmoid() - posterior).abs().max() < 0.02
    tensor(True)
    """

    def __init__(
        self,
        estimator: Estimator | None = None,
        *,
        num_particles: int = 1,
        max_plate_nesting: float = inf,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        noise: Noise = "shared",
        **others: Any,
    ) -> None:
        for name in others:
            raise TypeError(f"{OWNER}: {_OTHERS.get(name, f'there is no argument `{name}`.')}")
        estimator = IndeCateR(1) if estimator is None else estimator
        check_estimator("`estimator`", estimator)
        check_count(OWNER, "num_particles", num_particles)
        super().__init__(
            num_particles=num_particles,
            max_plate_nesting=max_plate_nesting,
            vectorize_particles=vectorize_particles,
            retain_graph=retain_graph,
        )
        check_choice(OWNER, "noise", noise, get_args(Noise))
        self.estimator = estimator
        self.noise = noise
        self._known: tuple[Any, Structure] | None = None

    def differentiable_loss(
        self, model: Program, guide: Program, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the negative ELBO, with the estimators' gradients."""
        if isinstance(pyro.poutine.unwrap(guide), pyro.poutine.messenger.Messenger):
            raise NotImplementedError(
                f"{OWNER}: `guide` must be a program of its own, but it is a handler of the model "
                f"({type(guide).__name__}). Use pyro.infer.TraceGraph_ELBO."
            )
        if self.max_plate_nesting == inf:
            self._guess_max_plate_nesting(model, guide, args, kwargs)
        key = (model, guide)
        if self._known is not None and self._known[0][0] != key:
            self._known = None
        runs = self.num_particles
        if self.vectorize_particles:
            runs = 1
            model, guide = map(self._vectorized_num_particles, key)
        nesting = int(self.max_plate_nesting)
        particles = [Programs(model, guide, args, kwargs, nesting) for _ in range(runs)]
        total = torch.stack([self._estimate(programs, key) for programs in particles]).sum()
        return -total / self.num_particles

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return an estimate of the negative ELBO."""
        return float(torch_item(self.differentiable_loss(model, guide, *args, **kwargs)))

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return an estimate of the negative ELBO, after a backward pass through it."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            torch_backward(loss, self.retain_graph)
        return float(torch_item(loss))

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return traces as Pyro's base class asks; the estimates here do not use them."""
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)

    def _estimate(self, programs: Programs, key: tuple[Program, Program]) -> Tensor:
        """Return one estimate of the ELBO, a scalar."""
        nodes = self._first_run(programs)
        structure = self._structure(programs, nodes, key)
        try:
            return _Estimate(programs, structure, nodes, self.noise).total()
        except ChangedSiteError:
            self._known = None
            structure = self._structure(programs, nodes, key)
            return _Estimate(programs, structure, nodes, self.noise).total()

    def _first_run(self, programs: Programs) -> dict[str, Node]:
        """Run the guide, and forget what depends on what if a site depends on more than it did.

        Sites that none depended on have two equal rows in this run. So a new dependence shows in
        the shape of a site, or fails where it is control flow.
        """
        if self._known is not None:
            try:
                structure = self._known[1]
                nodes = programs.run_guide({}, structure.childless)
                if not any(_has_rows(node, programs.nesting) for node in nodes.values()):
                    return nodes
            except Exception:
                pass
            self._known = None
        return programs.run_guide({})

    def _structure(
        self, programs: Programs, nodes: dict[str, Node], key: tuple[Program, Program]
    ) -> Structure:
        """Return what depends on what, found at the first step and whenever the guide changes.

        ``key`` is the model and the guide, without a plate for particles.
        """
        known = (key, signature(nodes, self.estimator))
        if self._known is None or self._known[0] != known:
            validate = is_validation_enabled()
            self._known = (known, discover(programs, nodes, self.estimator, validate))
        return self._known[1]


def _has_rows(node: Node, dims: int) -> bool:
    """Return whether a site has several rows to the left of so many dimensions."""
    shape = batch_shape(node)
    return any(size > 1 for size in shape[: max(0, len(shape) - dims)])


def _check_support(x: Tensor, form: Kind, group: Group) -> None:
    """Raise if an estimator wants f between the categories, where sites have no values."""
    if form == Kind.INDEX or not group.estimator.differentiates_f or not is_validation_enabled():
        return
    values = x.detach()
    if not bool(((values == 0) | (values == 1)).all()):
        raise NotImplementedError(
            f"{OWNER}: {group.estimator!r} evaluates f between the categories of "
            f"{list(group.sites)}, but values of Pyro's discrete sites must be in their support. "
            "Use an estimator that does not, such as IndeCateR, RLOO or SlopeCateR."
        )


class _Estimate:
    """One estimate, given the sites of one run of the guide: the recursion over groups."""

    def __init__(
        self,
        programs: Programs,
        structure: Structure,
        nodes: dict[str, Node],
        noise: Noise,
    ) -> None:
        unshared = structure.leaves if noise == "stratified" else frozenset()
        self.programs = replace(programs, coupled=structure.coupled, unshared=unshared)
        self.structure = structure
        self.nodes = nodes
        self.discrete = set(discrete_sites(nodes))

    def total(self) -> Tensor:
        """Return the ELBO."""
        self._check_parents()
        nodes, coupled = self.nodes, self.structure.coupled
        fixed = {name: value for name, value in drawn(nodes).items() if name not in coupled}
        total = torch.zeros(())
        for name in self.structure.guide_sites:
            total = total - log_prob(nodes[name]).sum()
        if self.structure.model_sites:
            sites = self._model(nodes, fixed)
            total = total + sum(log_prob(sites[name]).sum() for name in self.structure.model_sites)
        for chain in self.structure.chains:
            total = total + self._expectation(chain, nodes, fixed, torch.Size()).sum()
        return total

    def _model(self, nodes: Mapping[str, Node], values: Mapping[str, Tensor]) -> dict[str, Node]:
        """Run the model with the values of the guide's sites."""
        sites = self.programs.run_model({**drawn(nodes), **values})
        for name in sites.keys() ^ self.structure.model_dims.keys():
            raise ChangedSiteError("model", name)
        return sites

    def _expectation(
        self, chain: Chain, nodes: dict[str, Node], values: dict[str, Tensor], rows: torch.Size
    ) -> Tensor:
        """Return the expectation over a chain of groups, ``[*rows, *plates]``.

        Plates that the first group does not keep have size 1. ``nodes`` are the guide's sites and
        ``values`` their values, both with the rows of earlier groups.
        """
        group = chain[0]
        sizes = plates(nodes[group.sites[0]])
        batch = rows + self._plates(group, sizes)
        joint = {plate[1]: sizes[plate] for plate in group.joint}
        layouts = [layout(nodes[name]["fn"], joint) for name in group.sites]
        form = form_of(layouts, group.is_ordered)

        def with_points(x: Tensor) -> dict[str, Tensor]:
            split = x.split([site.variables for site in layouts], -1 - (form == Kind.ONE_HOT))
            return values | {
                name: site.value(part, form)
                for name, site, part in zip(group.sites, layouts, split, strict=True)
            }

        def f(x: Tensor) -> Tensor:
            _check_support(x, form, group)
            points = with_points(x)
            lead = x.shape[:1] + rows
            inner = self._guide(group, points, len(lead)) if group.children else nodes
            inner = {
                name: {**node, "value": points[name]} if name in points else node
                for name, node in inner.items()
            }
            estimate = self._terms(chain, inner, points, lead)
            if len(chain) > 1:
                later = self._expectation(chain[1:], inner, points, lead)
                estimate = estimate + self._summed(later, group)
            return estimate

        # It estimates later groups, or draws the noise of continuous sites.
        f.is_noisy = len(chain) > 1 or bool(self.programs.unshared)  # type: ignore[attr-defined]
        q = self._distribution(group, nodes, with_points, layouts, joint, batch)
        return group.estimator(f, q)

    def _guide(self, group: Group, points: Mapping[str, Tensor], levels: int) -> dict[str, Node]:
        """Run the guide with points of a group, which only its children may depend on."""
        nodes = self.programs.run_guide(points)
        for name, node in nodes.items():
            dims = len(batch_shape(self.nodes[name])) if name in self.nodes else 0
            if name not in group.children and self._has_newest_rows(node, levels, dims):
                raise ChangedSiteError("guide", name)
        return nodes

    def _has_newest_rows(self, node: Node, levels: int, dims: int) -> bool:
        """Return whether a site, which has ``dims`` dimensions without rows, has the newest ones.

        An estimator may evaluate a single row, which only the number of dimensions shows.
        """
        shape, dim = batch_shape(node), self.programs.nesting + levels
        return len(shape) >= dim and (shape[-dim] > 1 or len(shape) > dims)

    def _check_parents(self) -> None:
        """Raise if a site depends on another one of its group that is not among its parents."""
        values = {name: self.nodes[name]["value"] for name in self.discrete}
        for group in (group for chain in self.structure.chains for group in chain):
            for sites, free in group.nonparents if group.is_ordered else []:
                nodes = self.programs.run_guide(values, sites)
                for name in free:
                    if _has_rows(nodes[name], self.programs.nesting):
                        raise ChangedSiteError("guide", name)

    def _plates(self, group: Group, sizes: Mapping[Plate, int]) -> torch.Size:
        """Return the sizes of the plate dimensions, 1 where the group does not keep a plate."""
        kept = {plate[1]: sizes[plate] for plate in group.kept}
        return torch.Size([kept.get(dim, 1) for dim in range(-self.programs.nesting, 0)])

    def _distribution(
        self,
        group: Group,
        nodes: Mapping[str, Node],
        with_points: Callable[[Tensor], dict[str, Tensor]],
        layouts: list[Layout],
        joint: dict[int, int],
        batch: torch.Size,
    ) -> Distribution:
        """Return the distribution of the group's sites given those of earlier groups."""

        def tables(sites: Mapping[str, Node], shape: torch.Size) -> list[Tensor]:
            return [table(sites[name]["fn"], joint, shape) for name in group.sites]

        if not group.is_ordered:
            return independent(tables(nodes, batch), layouts)

        def conditionals(x: Tensor) -> list[Tensor]:
            return tables(self.programs.run_guide(with_points(x)), x.shape[:-1])

        first = table(nodes[group.sites[0]]["fn"], joint, batch)
        sizes = [(site.k,) * site.variables for site in layouts]
        return GuideSites(conditionals, sizes, group.parents, batch, first.dtype, first.device)

    def _terms(
        self, chain: Chain, nodes: dict[str, Node], values: Mapping[str, Tensor], rows: torch.Size
    ) -> Tensor:
        """Return the log-probabilities that depend on the first group and on no later one.

        The guide's score has mean zero, so it is left out for discrete sites.
        """
        group = chain[0]
        terms = []
        for name in group.guide_sites:
            term = -log_prob(nodes[name])
            terms.append(term.detach() if name in self.discrete else term)
        if group.model_sites:
            sites = self._model(nodes, values)
            self._check_structure(chain, sites, len(rows))
            terms += [log_prob(sites[name]) for name in group.model_sites]
        shape = rows + self._plates(group, plates(nodes[group.sites[0]]))
        total = terms[0].new_zeros(shape)
        for term in terms:
            total = total + self._summed(term, group)
        return total

    def _check_structure(self, chain: Chain, sites: Mapping[str, Node], levels: int) -> None:
        """Raise if a model site has newest rows that it should not have, or lost a kept plate."""
        dependent = frozenset(name for group in chain for name in group.model_sites)
        for name, site in sites.items():
            if name in dependent:
                is_changed = not chain[0].kept <= plates(site).keys()
            else:
                dims = self.structure.model_dims[name]
                is_changed = self._has_newest_rows(site, levels, dims)
                is_constant = name in self.structure.model_sites
                is_changed |= is_constant and _has_rows(site, self.programs.nesting)
            if is_changed:
                raise ChangedSiteError("model", name)

    def _summed(self, term: Tensor, group: Group) -> Tensor:
        """Return the sum over all plates that the group does not keep, as dimensions of size 1."""
        term = with_dimensions(term, self.programs.nesting, 0)
        kept = {dim for _, dim in group.kept}
        dims = [dim for dim in range(-self.programs.nesting, 0) if dim not in kept]
        return term.sum(dims, keepdim=True) if dims else term
