"""What depends on what in a model and a guide: found by running both with rows.

A site depends on a discrete site if its log-probability has the rows of that site. Errors say why a
program cannot have rows.
"""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from warnings import warn

import pyro
import torch
from pyro.infer.enum import get_importance_trace
from torch import Tensor
from torch.distributions import Categorical

from ..core.categories import Kind
from ..core.estimator import Estimator
from ..core.factors import base_distribution
from .runs import (
    OWNER,
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

Sets = dict[str, set[str]]
Chain = tuple["Group", ...]
SiteKind = tuple[Estimator, frozenset[Plate]]  # what the sites of a group share
Term = tuple[str, str]  # of the bound: "guide" or "model", and the name of a site
Terms = dict[Term, Node]


@dataclass(frozen=True, eq=False)
class Group:
    """Discrete guide sites that share an estimator and their plates.

    Attributes:
        estimator: of their expectation.
        sites: their names, in order.
        parents: of each site, the positions of the sites of this group that it depends on.
        kept: the dimensions of plates whose elements have separate expectations.
        joint: the dimensions of other plates, whose elements are variables of one event.
        terms: sites whose log-probability depends on this group and on no later one.
        has_children: whether distributions, scales or masks of guide sites depend on this group.
    """

    estimator: Estimator
    sites: tuple[str, ...]
    parents: tuple[frozenset[int], ...]
    kept: frozenset[int]
    joint: tuple[int, ...]
    terms: tuple[Term, ...]
    has_children: bool


@dataclass(frozen=True, eq=False)
class Structure:
    """The groups of a guide, and the sites that depend on none.

    Attributes:
        chains: sequences of groups. A group depends on earlier ones of its chain only.
        coupled: continuous guide sites that depend on discrete ones.
        leaves: those after the last discrete site, so that none depends on them.
        terms: sites that depend on no discrete one.
        probes: sets of discrete sites, each with guide sites that depend on none of the set.
            Together they say of each guide site which earlier sites it does not depend on.
        signature: what must stay the same for the structure to stay valid.
        shapes: what the model's sites were in the first run for each group: their dimensions,
            rows included, and their plates.
    """

    chains: tuple[Chain, ...]
    coupled: Names
    leaves: Names
    terms: tuple[Term, ...]
    probes: tuple[tuple[Names, Names], ...]
    signature: dict[Term, Any]
    shapes: dict[tuple[str, ...], dict[Term, Any]] = field(default_factory=dict)

    def run_guide(self, programs: Programs, default: Estimator) -> Nodes:
        """Run the guide; raise ChangedSiteError if a site depends on more than it did.

        The sites of a probe have two equal rows, so a new dependence shows in the shape of a site,
        or fails where it is control flow. The first probe's sites have no children, so that its run
        is a draw of the guide.
        """
        nodes: Nodes = {}
        for sites, free in self.probes:
            try:
                run = programs.run("guide", drawn(nodes), sites)
            except Exception as error:
                raise ChangedSiteError from error
            shapes = {("guide", name): batch_shape(run[name]) for name in free & run.keys()}
            rows = {term: has_rows(shape, programs.nesting) for term, shape in shapes.items()}
            check_same(rows, dict.fromkeys(rows, False))
            nodes = nodes or run
        check_same(signature(nodes, default), self.signature)
        return nodes


def discover(programs: Programs, nodes: Nodes, default: Estimator, validate: bool) -> Structure:
    """Return the structure of the programs, given the sites of one run of the guide."""
    check_guide(nodes)
    names = discrete_sites(nodes)
    terms = check_programs(programs, nodes, validate)
    first = {name: nodes[name]["value"] for name in names}
    second = {name: _another_value(nodes[name]) for name in names}

    def in_rows(name: str, level: int) -> Tensor:
        """Return the two values of a site in rows of a level."""
        dims, event_dims = programs.nesting + level, len(nodes[name]["fn"].event_shape)
        pair = [with_dimensions(x[name], dims, event_dims) for x in (first, second)]
        return torch.stack([pair[row % 2] for row in range(rows_of(level))])

    # The discrete sites that the log-probability of each site depends on, itself included.
    above: dict[Term, set[str]] = {term: set() for term in terms}
    for name in names:
        run = run_with_rows(programs, first | {name: in_rows(name, 0)}, terms)
        for term, node in run.items():
            if has_rows(node["log_prob"].shape, programs.nesting):
                above[term].add(name)
    for name in nodes:  # also through other discrete sites
        for parent in above["guide", name] - {name}:
            above["guide", name] |= above["guide", parent]
    parents = {name: above["guide", name] - {name} for name in nodes}
    chains = _chains(nodes, names, parents, above.values(), programs.nesting, default)
    level = {name: g for chain in chains for g, sites in enumerate(chain) for name in sites}
    coupled = {name for name in nodes if parents[name]} - first.keys()
    with_noise = replace(programs, coupled=frozenset(coupled))
    fixed = {name: x for name, x in drawn(nodes).items() if name not in {*first, *coupled}}
    together = fixed | {name: in_rows(name, level[name]) for name in names}
    rows = run_with_rows(with_noise, together, terms)
    for row, values in enumerate((first, second) if validate else ()):
        check_rows(rows, run_with_rows(with_noise, fixed | values, terms), row, programs.nesting)

    def groups_of(chain: list[list[str]]) -> Chain:
        """Return a chain's groups. A plate is kept if all that depends on them stands in it."""
        groups: list[Group] = []
        later: set[str] = set()
        kept = plates(nodes[chain[-1][0]])
        for sites in reversed(chain):
            dependent = [
                term for term in terms if above[term] & {*sites} and not above[term] & later
            ]
            own_plates = plates(nodes[sites[0]])
            kept &= own_plates.intersection(*[plates(terms[term]) for term in dependent])
            positions = [{i for i, x in enumerate(sites) if x in parents[name]} for name in sites]
            group = Group(
                estimator=estimator_of(sites[0], nodes[sites[0]], default),
                sites=tuple(sites),
                parents=tuple(map(frozenset, positions)),
                kept=frozenset(dim for _, dim, _ in kept),
                joint=tuple(sorted(dim for _, dim, _ in own_plates - kept)),
                terms=tuple(dependent),
                has_children=any(sites_above & {*sites} for sites_above in parents.values()),
            )
            _check_group(group)
            groups.insert(0, group)
            later |= {*sites}
        return tuple(groups)

    last = max(map(list(nodes).index, names), default=0)
    return Structure(
        chains=tuple(map(groups_of, chains)),
        coupled=frozenset(coupled),
        leaves=frozenset(coupled.difference(list(nodes)[:last])),
        terms=tuple(term for term in terms if not above[term]),
        probes=_probes(list(nodes), frozenset(names), parents),
        signature=signature(nodes, default),
    )


def _probes(order: list[str], names: Names, parents: Sets) -> tuple[tuple[Names, Names], ...]:
    """Return the probes of a structure; the sites of the first one have no children."""
    probes: list[tuple[Names, Names]] = []
    seen: set[tuple[str, str]] = set()
    all_parents = frozenset().union(*parents.values())
    others = {frozenset(sites) for sites in parents.values()} - {all_parents}
    for known in [all_parents, *sorted(others, key=lambda sites: (-len(sites), sorted(sites)))]:
        sites, free = names - known, frozenset(name for name in order if parents[name] <= known)
        absent = {(i, j) for i in sites for j in free if order.index(i) < order.index(j)}
        if not probes or not absent <= seen:
            probes.append((sites, free))
            seen |= absent
    return tuple(probes)


def signature(nodes: Nodes, default: Estimator) -> dict[Term, Any]:
    """Return what must stay the same for a structure to stay valid."""
    return {
        ("guide", name): (
            type(base_distribution(node["fn"])),
            [frame[:2] for frame in node["cond_indep_stack"]],
            node["fn"].event_shape,
            estimator_of(name, node, default),
        )
        for name, node in nodes.items()
    }


def _another_value(node: Node) -> Tensor:
    """Return a value of the site in which every variable is its likeliest other category."""
    factors = factors_of(node)
    index = factors.index(node["value"].unsqueeze(0))
    log_probs = factors.log_probs.expand(*index.shape, -1)
    others = log_probs.scatter(-1, index.unsqueeze(-1), -torch.inf).max(-1)
    return factors.point(torch.where(others.values > -torch.inf, others.indices, index))[0]


def _chains(
    nodes: Nodes,
    names: list[str],
    parents: Sets,
    together: Iterable[set[str]],
    nesting: int,
    default: Estimator,
) -> list[list[list[str]]]:
    """Return chains of groups: one for all sites that depend on each other, or that one site reads.

    Chains of the same kinds of groups are joined where that takes no more evaluations, or so few
    that they cost less than another run.
    """
    kinds = {
        name: (estimator_of(name, nodes[name], default), plates(nodes[name])) for name in names
    }
    starts_group = {
        name
        for name in names
        if "estimator" in nodes[name]["infer"] and Kind.STRUCTURED not in kinds[name][0].supports
    }

    def cost(chain: list[list[str]]) -> int:
        """Return the number of evaluations."""
        total = 1
        for group in chain:
            sites = JointSites({name: nodes[name] for name in group}, nesting)
            total *= kinds[group[0]][0].evaluations(sites.independent(sites.plates))
        return total

    chains: dict[tuple[SiteKind, ...], list[list[list[str]]]] = {}
    for component in _connected(together):
        chain = _grouped(
            [name for name in names if name in component], parents, kinds, starts_group
        )
        twins = chains.setdefault(tuple(kinds[group[0]] for group in chain), [])
        if twins:
            pairs = zip(twins[-1], chain, strict=True)
            both = [sorted(sites + others, key=names.index) for sites, others in pairs]
            if cost(both) <= max(cost(twins[-1]) + cost(chain), FEW_EVALUATIONS):
                twins.pop()
                chain = both
        twins.append(chain)
    return [chain for twins in chains.values() for chain in twins]


def _connected(together: Iterable[set[str]]) -> list[set[str]]:
    """Return the connected components: elements of one set are connected."""
    components: list[set[str]] = []
    for elements in together:
        touched = [component for component in components if component & elements]
        components = [component for component in components if component not in touched]
        components.append(elements.union(*touched))
    return [component for component in components if component]


def _grouped(
    sites: list[str], parents: Sets, kinds: Mapping[str, SiteKind], starts_group: set[str]
) -> list[list[str]]:
    """Return groups of sites of one kind, parents before children.

    A site that depends on another one, and whose own estimator is for independent variables, starts
    a new group. Where the order is free, groups with fewer plates come first, so that more plates
    are kept.
    """
    chain: list[list[str]] = []
    done: set[str] = set()
    while len(done) < len(sites):
        groups: dict[SiteKind, list[str]] = {}
        for name in [name for name in sites if name not in done]:
            group, unknown = groups.get(kinds[name], []), parents[name] - done
            if not unknown or (unknown <= {*group} and name not in starts_group):
                groups[kinds[name]] = [*group, name]
        chain.append(min(groups.values(), key=lambda group: len(kinds[group[0]][1])))
        done.update(chain[-1])
    return chain


def _check_group(group: Group) -> None:
    """Raise if sites depend on each other, but their estimator is for independent variables."""
    for name, positions in zip(group.sites, group.parents, strict=True):
        if positions and Kind.STRUCTURED not in group.estimator.supports:
            raise TypeError(
                f"{OWNER}: the guide's site {name!r} depends on "
                f"{sorted(group.sites[i] for i in positions)}, but {group.estimator!r} is for "
                "independent variables. Use catlog.SCateR(2) or catlog.RLOO(8), or give "
                f'{name!r} one of its own: infer={{"estimator": catlog.IndeCateR(2)}}.'
            )


class ChangedSiteError(NotImplementedError):
    """A program has other sites, or other dependences, than in an earlier run."""


def not_vectorised(program: str, reason: str) -> NotImplementedError:
    """Return the error of a program that cannot have rows."""
    return NotImplementedError(f"{OWNER}: the {program} cannot be vectorised: {reason}")


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

    Raise an error that says where a program cannot have rows, or has other sites than expected.
    """
    terms: Terms = {}
    for program in ("guide", "model"):
        nodes: Nodes = {}
        try:
            nodes = programs.run(program, values)
            for name, node in nodes.items():
                if program == "model" and not node["is_observed"]:
                    _check_pair(name, node, terms.get(("guide", name)))
                node["log_prob"] = log_prob(node).detach()
        except Exception as error:
            if OWNER in str(error) or not expected:
                raise
            sites = getattr(error, "sites", list(nodes))
            place = f"after its site {sites[-1]!r}" if sites else "before its first site"
            raise not_vectorised(
                program,
                f"it fails {place}{_line(error)} when discrete values have rows, one more "
                f"dimension at the left ({type(error).__name__}: {error}). Index from the right "
                "(x[..., 0]), replace `if x:` by torch.where, or use pyro.infer.TraceGraph_ELBO.",
            ) from error
        terms |= {(program, name): node for name, node in nodes.items()}
        values = drawn(nodes)
    check_same(dict.fromkeys(terms), dict.fromkeys(expected or terms))
    return terms


def _line(error: Exception) -> str:
    """Return where the user's program failed: the innermost line outside of the libraries."""
    folders = [Path(str(module.__file__)).parent for module in (pyro, torch, traceback)]
    folders.append(Path(__file__).parents[1])
    lines = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in Path(frame.filename).parents for folder in folders)
    ]
    return lines[-1] if lines else ""


def rows_of(level: int) -> int:
    """Return the number of rows of a level in checks: rows that move to another are noticed."""
    return level + 2


def check_programs(programs: Programs, guide: Nodes, validate: bool) -> Terms:
    """Return the sites of guide and model in a run without rows, compared by Pyro's own checks."""
    values = drawn(guide)
    terms = run_with_rows(programs, values, {})
    if validate:
        pair = (programs.model, programs.guide, programs.args, programs.kwargs)
        with programs.given(values):
            get_importance_trace("flat", programs.nesting, *pair)
        for name, node in guide.items():
            if "baseline" in node["infer"]:
                warn(f"{OWNER}: infer['baseline'] of site {name!r} is ignored.", stacklevel=2)
    return terms


def _check_pair(name: str, model: Node, guide: Node | None) -> None:
    """Raise if the guide lacks a site that the model draws, or has more categories there."""
    if guide is None:
        is_marked = model["infer"].get("enumerate")
        raise (NotImplementedError if is_marked else ValueError)(
            f"{OWNER}: the model's site {name!r} is neither observed nor in the guide. Add it to "
            "the guide, also for enumeration; or sum it out in a pyro.factor, or use "
            "pyro.infer.TraceEnum_ELBO."
        )
    pair = [base_distribution(node["fn"]) for node in (guide, model)]
    sizes = [fn.logits.shape[-1] for fn in pair if isinstance(fn, Categorical)]
    if len(sizes) == 2 and sizes[0] > sizes[1]:
        raise ValueError(
            f"{OWNER}: site {name!r} has {sizes[0]} categories in the guide, but {sizes[1]} in "
            "the model. Give it the same number in both."
        )


def check_rows(together: Terms, alone: Terms, row: int, nesting: int) -> None:
    """Raise if a site has another log-probability in a row than in a separate run."""
    for (program, name), node in alone.items():
        rows = with_dimensions(together[program, name]["log_prob"], nesting, 0)
        expected = with_dimensions(node["log_prob"], nesting, 0)
        lead = rows.shape[: rows.dim() - nesting]
        moved = any(n not in (1, rows_of(level)) for level, n in enumerate(reversed(lead)))
        in_row = rows[tuple(min(row, size - 1) for size in lead)]
        if moved or in_row.shape != expected.shape or not _is_close(in_row, expected):
            raise not_vectorised(
                program,
                f"the log-probability of its site {name!r} differs when several rows are computed "
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
