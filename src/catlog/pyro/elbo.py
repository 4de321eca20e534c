"""The evidence lower bound of a model and a guide of Pyro, with an estimator per discrete site."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, Literal, get_args

import pyro.infer
import torch
from jaxtyping import Float
from pyro.infer.enum import get_importance_trace
from pyro.infer.util import is_validation_enabled, torch_backward, torch_item
from torch import Tensor

from ..core.categories import Kind
from ..core.checks import check_choice, check_count
from ..core.estimator import Estimator
from ..estimators import IndeCateR
from .runs import (
    OWNER,
    Node,
    Program,
    Programs,
    batch_shape,
    drawn,
    has_rows,
    log_prob,
    plates,
    with_dimensions,
)
from .sites import GuideSites, JointSites, check_estimator, discrete_sites
from .structure import Chain, Group, Structure, discover, signature
from .vectorisation import ChangedSiteError

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
        self._known: tuple[tuple[Program, Program], Structure] | None = None

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
        """Return one estimate of the ELBO, a scalar.

        What depends on what is found at the first step, and whenever a site depends on more.
        ``key`` is the model and the guide, without a plate for particles.
        """

        known, structure = self._known or (None, None)
        structure = structure if known == key else None
        nodes = structure.run_guide(programs) if structure is not None else None
        if structure is None or nodes is None:
            structure, nodes = None, programs.run_guide({})
        if structure is None or structure.signature != signature(nodes, self.estimator):
            structure = discover(programs, nodes, self.estimator, is_validation_enabled())
        try:
            total = _Estimate(programs, structure, nodes, self.noise).total()
        except ChangedSiteError:
            structure = discover(programs, nodes, self.estimator, is_validation_enabled())
            total = _Estimate(programs, structure, nodes, self.noise).total()
        self._known = (key, structure)
        return total


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
        self.dims = range(-programs.nesting, 0)  # of plates

    def total(self) -> Tensor:
        """Return the ELBO."""
        structure = self.structure
        terms = self._terms(structure, self.nodes)
        for chain in structure.chains:
            terms.append(self._expectation(chain, self.nodes, torch.Size()))
        return sum((term.sum() for term in terms), torch.zeros(()))

    def _expectation(
        self, chain: Chain, nodes: Mapping[str, Node], rows: torch.Size
    ) -> Float[Tensor, "*rows_and_plates"]:
        """Return the expectation over a chain of groups, given the guide's sites.

        ``rows`` are those of earlier groups. Plates that the first group does not keep have size 1.
        """
        group, later = chain[0], chain[1:]
        sizes = {plate[1]: size for plate, size in plates(nodes[group.sites[0]]).items()}
        joint = {dim: sizes[dim] for _, dim in group.joint}
        kept = torch.Size(sizes[dim] if dim in group.kept_dims else 1 for dim in self.dims)
        fixed = {
            name: value
            for name, value in drawn(nodes).items()
            if name not in self.structure.coupled
        }

        def sites_of(run: Mapping[str, Node]) -> JointSites:
            return JointSites({name: run[name] for name in group.sites}, joint, group.is_ordered)

        sites = sites_of(nodes)

        def f(x: Tensor) -> Tensor:
            _check_support(x, sites.form, group)
            values, lead = sites.values(x), x.shape[:1] + rows
            if group.has_children:
                inner = self.programs.run_guide(fixed | values)
            else:
                points = {name: {**nodes[name], "value": x} for name, x in values.items()}
                inner = {**nodes, **points}
            terms = self._terms(group, inner, chain, len(lead))
            if later:
                terms.append(self._expectation(later, inner, lead))
            total = terms[0].new_zeros(lead + kept)
            return sum((self._summed(term, group) for term in terms), total)

        # It estimates later groups, or draws the noise of continuous sites.
        f.is_noisy = bool(later or self.programs.unshared)  # type: ignore[attr-defined]
        if not group.is_ordered:
            return group.estimator(f, sites.independent(rows + kept))

        def tables(x: Tensor) -> list[Tensor]:
            run = self.programs.run_guide(fixed | sites.values(x))
            return sites_of(run).tables(x.shape[:-1])

        return group.estimator(f, GuideSites(sites, tables, group.parents, rows + kept))

    def _terms(
        self,
        dependent: Group | Structure,
        nodes: Mapping[str, Node],
        chain: Chain = (),
        levels: int = 0,
    ) -> list[Tensor]:
        """Return the log-probabilities of the sites of a group, or of those that depend on none.

        The guide's score has mean zero, so it is left out for discrete sites.
        """
        terms = []
        for name in dependent.guide_sites:
            term = -log_prob(nodes[name])
            terms.append(term.detach() if name in self.discrete else term)
        if dependent.model_sites:
            sites = self.programs.run_model(drawn(nodes))
            self._check_model(sites, chain, levels)
            terms += [log_prob(sites[name]) for name in dependent.model_sites]
        return terms

    def _check_model(self, sites: Mapping[str, Node], chain: Chain, levels: int) -> None:
        """Raise if a site has newest rows that it should not have, or lost a kept plate.

        An estimator may evaluate a single row, which only the number of dimensions shows.
        """
        for name in sites.keys() ^ self.structure.model_dims.keys():
            raise ChangedSiteError("model", name)
        dependent = frozenset(name for group in chain for name in group.model_sites)
        newest = self.programs.nesting + levels
        for name, site in sites.items() if chain else ():
            shape = batch_shape(site)
            if name in dependent:
                is_changed = not chain[0].kept <= plates(site).keys()
            else:
                dims = self.structure.model_dims[name]
                is_changed = len(shape) >= newest and (shape[-newest] > 1 or len(shape) > dims)
                if name in self.structure.model_sites:
                    is_changed |= has_rows(shape, self.programs.nesting)
            if is_changed:
                raise ChangedSiteError("model", name)

    def _summed(self, term: Tensor, group: Group) -> Tensor:
        """Return the sum over all plates that the group does not keep, as dimensions of size 1."""
        term = with_dimensions(term, self.programs.nesting, 0)
        dims = [dim for dim in self.dims if dim not in group.kept_dims]
        return term.sum(dims, keepdim=True) if dims else term
