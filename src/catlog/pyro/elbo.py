"""The evidence lower bound of a model and a guide of Pyro, with an estimator per discrete site."""

from contextlib import suppress
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
from .runs import OWNER, Nodes, Program, Programs, Values, drawn, log_prob, with_dimensions
from .sites import GuideSites, JointSites, check_unbiased, discrete_sites
from .structure import ChangedSiteError, Group, Structure, discover

Noise = Literal["shared", "stratified"]


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
    and to check that rows do not mix. What cannot have rows is refused there. A step at which a
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
    ) -> None:
        estimator = IndeCateR(1) if estimator is None else estimator
        check_unbiased("`estimator`", estimator)
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
                f"{OWNER}: `guide` must be a program, but {type(guide).__name__} is a handler of "
                "the model. Use pyro.infer.TraceGraph_ELBO."
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
        if self._known is not None and self._known[0] == key:
            with suppress(ChangedSiteError):
                return _Estimate(programs, self._known[1], self.noise).total()
        structure = discover(programs, self.estimator)
        total = _Estimate(programs, structure, self.noise).total()
        self._known = (key, structure)
        return total


def _check_support(x: Tensor, group: Group) -> None:
    """Raise if an estimator wants f between the categories, where sites have no values."""
    if is_validation_enabled() and not bool(((x == 0) | (x == 1)).all()):
        raise NotImplementedError(
            f"{OWNER}: {group.estimator!r} evaluates f between the categories of "
            f"{list(group.sites)}, but values of Pyro's discrete sites must be in their support. "
            "Use an estimator that does not, such as IndeCateR, RLOO or SlopeCateR."
        )


class _Estimate:
    """One estimate, from one draw of the guide: the recursion over groups."""

    def __init__(self, programs: Programs, structure: Structure, noise: Noise) -> None:
        self.nodes = structure.draw(programs)
        self.discrete = discrete_sites(self.nodes)
        self.structure = structure
        if noise == "stratified":  # but a site before a discrete one, and f, see the same value
            names = list(self.nodes)
            last = max(map(names.index, self.discrete), default=0)
            programs = replace(programs, unshared=frozenset(names[last:]))
        self.programs = programs

    def total(self) -> Tensor:
        """Return the ELBO."""
        kept = torch.Size([1] * self.programs.nesting)
        return self._sum(self.structure.bound, self.nodes, torch.Size(), kept).sum()

    def _sum(
        self, group: Group, nodes: Nodes, rows: torch.Size, kept: torch.Size
    ) -> Float[Tensor, "*rows_and_plates"]:
        """Return the part of the bound that depends on a group, whose sites have values."""
        terms = self._terms(group, nodes)
        terms += [self._expectation(inner, nodes, rows) for inner in group.inner]
        total = torch.zeros(())
        for term in terms:
            summed = [dim for dim in range(-len(kept), 0) if dim not in group.kept]
            term = with_dimensions(term, len(kept), 0)
            total = total + (term.sum(summed, keepdim=True) if summed else term)
        return total.expand(rows + kept)

    def _expectation(
        self, group: Group, nodes: Nodes, rows: torch.Size
    ) -> Float[Tensor, "*rows_and_plates"]:
        """Return the expectation over a group, given the guide's sites.

        ``rows`` are those of outer groups. Plates that the group does not keep have size 1.
        """
        estimator, nesting = group.estimator, self.programs.nesting
        fixed = {name: nodes[name]["value"] for name in self.discrete}

        def sites_of(run: Nodes) -> JointSites:
            own = {name: run[name] for name in group.sites}
            return JointSites(own, nesting, group.kept, group.is_ordered)

        def run_guide(values: Values) -> Nodes:
            return self.programs.run("guide", fixed | values)

        sites = sites_of(nodes)

        def f(x: Tensor) -> Tensor:
            if sites.form != Kind.INDEX and estimator.differentiates_f:
                _check_support(x.detach(), group)
            values = sites.values(x)
            if group.has_children:
                inner = run_guide(values)
                self.structure.check("guide", frozenset(group.sites), inner)
            else:
                points = {name: {**nodes[name], "value": x} for name, x in values.items()}
                inner = {**nodes, **points}
            return self._sum(group, inner, x.shape[:1] + rows, sites.kept)

        # It estimates inner groups, or draws the noise of continuous sites.
        f.is_noisy = bool(group.inner or self.programs.unshared)  # type: ignore[attr-defined]
        batch = rows + sites.kept
        if not group.is_ordered:
            return estimator(f, sites.independent(batch))

        def tables(x: Tensor) -> list[Tensor]:
            return sites_of(run_guide(sites.values(x))).tables(x.shape[:-1])

        return estimator(f, GuideSites(sites, tables, batch, self.structure.childless))

    def _terms(self, group: Group, nodes: Nodes) -> list[Tensor]:
        """Return the log-probabilities of a group's terms, those of the guide negated.

        The guide's score has mean zero, so it is left out for discrete sites.
        """
        model: Nodes = {}
        if any(program == "model" for program, _ in group.terms):
            model = self.programs.run("model", drawn(nodes))
            self.structure.check("model", frozenset(group.sites), model)
        values = []
        for program, name in group.terms:
            value = log_prob(model[name]) if program == "model" else -log_prob(nodes[name])
            is_score = program == "guide" and name in self.discrete
            values.append(value.detach() if is_score else value)
        return values
