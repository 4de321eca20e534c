"""What depends on what in a model and a guide: found by running both with rows.

A site depends on a discrete site if its log-probability has the rows of that site. Errors say why a
program cannot have rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any
from warnings import warn

import torch
from pyro.infer.enum import get_importance_trace
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from ..core.categories import Kind
from ..core.estimator import Estimator
from .runs import (
    NONE,
    OWNER,
    Given,
    Names,
    Node,
    Nodes,
    Plate,
    Programs,
    Values,
    batch_shape,
    drawn,
    has_rows,
    log_prob,
    plates,
    with_dimensions,
)
from .sites import JointSites, check_guide, discrete_sites, estimator_of, factors_of

# Rows of one run that cost less than a further run: a site of a run takes about 50 microseconds,
# and another row of a small site less than a tenth of a microsecond.
FEW_EVALUATIONS = 16

Term = tuple[str, str]  # of the bound: "guide" or "model", and the name of a site
Terms = dict[Term, Node]
Above = Mapping[Term, Names]  # the discrete sites that a term depends on
SiteKind = tuple[Estimator, frozenset[Plate]]  # what the sites of a group share


@dataclass(frozen=True, eq=False)
class Group:
    """Discrete guide sites that share an estimator and their plates; none for the whole bound.

    Attributes:
        estimator: of their expectation.
        sites: their names, in order.
        terms: what depends on these sites, and on no group inside.
        inner: groups of which something depends on these sites as well: they are estimated given
            these sites. No term depends on two of them.
        kept: the dimensions of plates whose elements have separate expectations.
        is_ordered: whether some of the sites depend on others.
        has_children: whether distributions, scales or masks of guide sites depend on these sites.
    """

    estimator: Estimator
    sites: tuple[str, ...]
    terms: tuple[Term, ...]
    inner: tuple["Group", ...]
    kept: frozenset[int] = frozenset()
    is_ordered: bool = False
    has_children: bool = False


@dataclass(frozen=True, eq=False)
class Structure:
    """The groups of a guide, and what must stay the same in all runs.

    Attributes:
        bound: the group of no sites.
        childless: the discrete sites that no guide site depends on.
        seen: what the sites of a program were in the first run with rows at these sites: their
            reparameterisation, dimensions (rows included), plates and marks.
    """

    bound: Group
    childless: Names
    seen: dict[tuple[str, Names], dict[Term, Any]] = field(default_factory=dict)

    def draw(self, programs: Programs) -> Nodes:
        """Run the guide; raise ChangedSiteError if a site depends on more than it did.

        Sites without children get two equal rows, so the first site that depends on them has rows,
        or fails where it is control flow.
        """
        try:
            nodes = programs.run("guide", {}, self.childless)
        except Exception as error:
            raise ChangedSiteError from error
        self.check("guide", self.childless, nodes)
        programs.drawn.update(drawn(nodes))
        return nodes

    def check(self, program: str, with_rows: Names, nodes: Nodes) -> None:
        """Raise ChangedSiteError if sites are not what they were in an earlier run."""
        found = {
            (program, name): (
                getattr(node["fn"], "has_rsample", False),
                len(batch_shape(node)),
                [frame[:2] for frame in node["cond_indep_stack"]],
                [node["infer"].get(mark) for mark in ("estimator", "enumerate")],
            )
            for name, node in nodes.items()
        }
        check_same(found, self.seen.setdefault((program, with_rows), found))


def discover(programs: Programs, default: Estimator) -> Structure:
    """Return the structure of the programs, which are run a few times."""
    nodes = programs.run("guide", {})
    programs.drawn.update(drawn(nodes))
    check_guide(nodes)
    names = discrete_sites(nodes)
    terms = run_with_rows(programs, {}, {})
    if is_validation_enabled():
        _check_by_pyro(programs, nodes)
    first = {name: nodes[name]["value"] for name in names}
    second = {name: _another_value(nodes[name]) for name in names}

    def in_rows(name: str, level: int) -> Tensor:
        """Return the two values of a site in rows of a level."""
        dims, event_dims = programs.nesting + level, len(nodes[name]["fn"].event_shape)
        pair = [with_dimensions(x[name], dims, event_dims) for x in (first, second)]
        return torch.stack([pair[row % 2] for row in range(rows_of(level))])

    # The discrete sites that the log-probability of each site depends on, itself included.
    above = dict.fromkeys(terms, NONE)
    for name in names:
        run = run_with_rows(programs, {name: in_rows(name, 0)}, terms)
        for term, node in run.items():
            if has_rows(node["log_prob"].shape, programs.nesting):
                above[term] |= {name}
    discrete = {name: nodes[name] for name in names}
    kinds = {
        name: (estimator_of(name, node, default), plates(node)) for name, node in discrete.items()
    }
    parents = {name: above["guide", name] - {name} for name in nodes}
    groups = _Groups(terms, discrete, kinds, parents, programs.nesting)
    bound = Group(default, (), tuple(term for term in terms if not above[term]), groups.of(above))
    if is_validation_enabled():
        values = {name: in_rows(name, level) for name, level in groups.levels.items()}
        rows = run_with_rows(programs, values, terms)
        for row, values in enumerate((first, second)):
            check_rows(rows, run_with_rows(programs, values, terms), row, programs.nesting)
    return Structure(bound, childless=frozenset(names).difference(*parents.values()))


@dataclass(frozen=True)
class _Groups:
    """How discrete sites become groups.

    Attributes:
        terms: the sites of guide and model.
        nodes: the discrete sites, in order.
        kinds: those of the discrete sites.
        parents: the discrete sites that each site of the guide depends on.
        nesting: the number of dimensions for plates.
        levels: the number of groups outside of a site's own, for sites that are in a group.
    """

    terms: Terms
    nodes: Nodes
    kinds: Mapping[str, SiteKind]
    parents: Mapping[str, Names]
    nesting: int
    levels: dict[str, int] = field(default_factory=dict)

    def of(self, above: Above, level: int = 0) -> tuple[Group, ...]:
        """Return groups for the sites that these terms depend on, given those of outer groups."""
        groups = []
        for sites in self._joined(_connected(above.values())):
            own = {term: found for term, found in above.items() if found & sites}
            chosen = self._first(sites)
            self.levels.update(dict.fromkeys(chosen, level))
            rest = {term: found.difference(chosen) for term, found in own.items()}
            kept = frozenset.intersection(*[plates(self.terms[term]) for term in own])
            estimator, is_ordered = self.kinds[chosen[0]][0], False
            for name in chosen:
                known = sorted(self.parents[name].intersection(chosen))
                is_ordered = is_ordered or bool(known)
                if known and Kind.STRUCTURED not in estimator.supports:
                    raise TypeError(
                        f"{OWNER}: the guide's site {name!r} depends on {known}, but {estimator!r} "
                        "is for independent variables. Use catlog.SCateR(2) or catlog.RLOO(8), or "
                        f'give {name!r} one of its own: infer={{"estimator": catlog.IndeCateR(2)}}.'
                    )
            group = Group(
                estimator=estimator,
                sites=chosen,
                terms=tuple(term for term, found in rest.items() if not found),
                inner=self.of(rest, level + 1),
                kept=frozenset(dim for _, dim, _ in kept),
                is_ordered=is_ordered,
                has_children=any(found.intersection(chosen) for found in self.parents.values()),
            )
            groups.append(group)
        return tuple(groups)

    def _first(self, sites: Names) -> tuple[str, ...]:
        """Return the outermost group: sites of one kind that depend on no other ones.

        A site that depends on another one, and whose own estimator is for independent variables, is
        in a group of its own. Of several groups that with the fewest plates is outside, so that
        more plates are kept inside.
        """
        groups: dict[SiteKind, list[str]] = {}
        for name in filter(sites.__contains__, self.nodes):
            kind = self.kinds[name]
            group, unknown = groups.get(kind, []), self.parents[name] & sites
            is_own = "estimator" in self.nodes[name]["infer"]
            may_join = Kind.STRUCTURED in kind[0].supports or not is_own
            if not unknown or (unknown <= {*group} and may_join):
                groups[kind] = [*group, name]
        return tuple(groups[min(groups, key=lambda kind: len(kind[1]))])

    def _joined(self, components: list[Names]) -> list[Names]:
        """Join components of one kind where that takes no more evaluations, or so few that they
        cost less than another run."""
        joined: list[Names] = []
        for sites in components:
            for twin in joined:
                both, apart = self._cost(sites | twin), self._cost(sites) + self._cost(twin)
                if both < inf and both <= max(apart, FEW_EVALUATIONS):
                    joined.remove(twin)
                    sites = sites | twin
                    break
            joined.append(sites)
        return joined

    def _cost(self, sites: Names) -> float:
        """Return the number of evaluations, infinite for several kinds of sites."""
        if len({self.kinds[name] for name in sites}) > 1:
            return inf
        nodes = {name: self.nodes[name] for name in sites}
        joint = JointSites(nodes, self.nesting, range(-self.nesting, 0))
        return self.kinds[min(sites)][0].evaluations(joint.independent(joint.kept))


def _connected(above: Iterable[Names]) -> list[Names]:
    """Return the connected components: the sites of one set are connected."""
    components: list[Names] = []
    for sites in filter(None, above):
        touched = [component for component in components if component & sites]
        components = [component for component in components if component not in touched]
        components.append(sites.union(*touched))
    return components


def _another_value(node: Node) -> Tensor:
    """Return a value of the site in which every variable is its likeliest other category."""
    factors = factors_of(node)
    index = factors.index(node["value"].unsqueeze(0))
    log_probs = factors.log_probs.expand(*index.shape, -1)
    others = log_probs.scatter(-1, index.unsqueeze(-1), -torch.inf).max(-1)
    return factors.point(torch.where(others.values > -torch.inf, others.indices, index))[0]


class ChangedSiteError(NotImplementedError):
    """A program has other sites, or other dependences, than in an earlier run."""


def check_same(found: Mapping[Term, object], expected: Mapping[Term, object]) -> None:
    """Raise if a site is not what it was in another run."""
    for program, name in found.keys() | expected.keys() if found != expected else ():
        if found.get((program, name), name) != expected.get((program, name), name):
            raise ChangedSiteError(
                f"{OWNER}: the {program}'s site {name!r} comes and goes, or changes what it "
                "depends on, between runs of one step. Replace control flow by torch.where."
            )


def run_with_rows(programs: Programs, values: Values, expected: Terms) -> Terms:
    """Run guide and model, and return their sites with their ``log_prob``.

    Errors of a program that cannot have rows get a note. Raise one if it has other sites than
    expected.
    """
    terms: Terms = {}
    for program in ("guide", "model"):
        try:
            nodes = programs.run(program, values)
            for name, node in nodes.items():
                if program == "model" and not node["is_observed"] and name not in values:
                    is_marked = node["infer"].get("enumerate")
                    raise (NotImplementedError if is_marked else ValueError)(
                        f"{OWNER}: the model's site {name!r} is neither observed nor in the guide. "
                        "Add it to the guide, also for enumeration; or sum it out in a "
                        "pyro.factor, or use pyro.infer.TraceEnum_ELBO."
                    )
                node["log_prob"] = log_prob(node).detach()
        except Exception as error:
            if OWNER not in str(error) and expected:
                error.add_note(
                    f"{OWNER}: the {program} cannot be vectorised: it fails when discrete values "
                    "have rows, one more dimension at the left. Index from the right (x[..., 0]), "
                    "replace `if x:` by torch.where, or use pyro.infer.TraceGraph_ELBO."
                )
            raise
        terms |= {(program, name): node for name, node in nodes.items()}
        values = drawn(nodes)
    check_same(dict.fromkeys(terms), dict.fromkeys(expected or terms))
    return terms


def rows_of(level: int) -> int:
    """Return the number of rows of a level in checks: rows that move to another are noticed."""
    return level + 2


def _check_by_pyro(programs: Programs, nodes: Nodes) -> None:
    """Compare model and guide by Pyro's own checks."""
    with Given(programs, {}):
        pair = (programs.model, programs.guide, programs.args, programs.kwargs)
        get_importance_trace("flat", programs.nesting, *pair)
    for name, node in nodes.items():
        if "baseline" in node["infer"]:
            warn(f"{OWNER}: infer['baseline'] of site {name!r} is ignored.", stacklevel=2)


def check_rows(together: Terms, alone: Terms, row: int, nesting: int) -> None:
    """Raise if a site has another log-probability in a row than in a separate run."""
    for (program, name), node in alone.items():
        rows = with_dimensions(together[program, name]["log_prob"], nesting, 0)
        expected = with_dimensions(node["log_prob"], nesting, 0)
        lead = rows.shape[: rows.dim() - nesting]
        moved = any(n not in (1, rows_of(level)) for level, n in enumerate(reversed(lead)))
        in_row = rows[tuple(min(row, size - 1) for size in lead)]
        if moved or in_row.shape != expected.shape or not _is_close(in_row, expected):
            raise NotImplementedError(
                f"{OWNER}: the {program} cannot be vectorised: the log-probability of its site "
                f"{name!r} differs when several rows are computed "
                f"at once: rows mix, or move to another dimension of {tuple(rows.shape)}. Reduce "
                "and index from the right (x.sum(-1), x[..., 0]), sum plates with keepdim=True, "
                "index with pyro.ops.indexing.Vindex, and call eval() of a network with dropout or "
                "batch normalisation. pyro.enable_validation(False) turns this check off.",
            )


def _is_close(together: Tensor, alone: Tensor) -> bool:
    """Return whether numbers differ by rounding only: far less than a row's influence."""
    eps = torch.finfo(together.dtype).eps
    if together.device.type == "cuda" and together.dtype != torch.float64:
        eps = torch.finfo(torch.bfloat16).eps  # matrix products may be in TensorFloat32
    size = torch.where(alone.isfinite(), alone, 0.0).abs().amax().clamp(min=1.0)
    atol = eps ** (2 / 3) * float(size)
    return torch.allclose(together, alone, rtol=0, atol=atol, equal_nan=True)
