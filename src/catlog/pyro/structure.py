"""What depends on what in a model and a guide: found by running both with rows.

A site depends on a discrete site if its log-probability has the rows of that site.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.categories import Kind
from ..core.estimator import Estimator
from ..core.factors import base_distribution
from ..core.view import view as view_of
from .runs import (
    OWNER,
    Node,
    Plate,
    Programs,
    batch_shape,
    drawn,
    has_rows,
    log_prob,
    plates,
    with_dimensions,
)
from .sites import JointSites, discrete_sites, estimator_of, law
from .vectorisation import (
    check_plates,
    check_programs,
    check_rows,
    not_vectorised,
    run_with_rows,
)

# Rows of one run that cost less than a further run: a site of a run takes about 50 microseconds,
# and another row of a small site less than a tenth of a microsecond.
FEW_EVALUATIONS = 16

Names = frozenset[str]
Nodes = Mapping[str, Node]
Sets = dict[str, set[str]]
Chain = tuple["Group", ...]
SiteKind = tuple[Estimator, frozenset[Plate]]  # what the sites of a group share


@dataclass(frozen=True, eq=False)
class Group:
    """Discrete guide sites that share an estimator and their plates.

    Attributes:
        estimator: of their expectation.
        sites: their names, in order.
        parents: of each site, the positions of the sites of this group that it depends on.
        kept: plates whose elements have separate expectations.
        joint: the sites' other plates, whose elements are variables of one event.
        guide_sites: guide sites whose log-probability depends on this group and on no later one.
        model_sites: model sites whose log-probability does.
        has_children: whether distributions, scales or masks of guide sites depend on this group.
    """

    estimator: Estimator
    sites: tuple[str, ...]
    parents: tuple[frozenset[int], ...]
    kept: frozenset[Plate]
    joint: tuple[Plate, ...]
    guide_sites: Names
    model_sites: Names
    has_children: bool

    @property
    def is_ordered(self) -> bool:
        return any(self.parents)

    @property
    def kept_dims(self) -> frozenset[int]:
        return frozenset(dim for _, dim in self.kept)


@dataclass(frozen=True, eq=False)
class Structure:
    """The groups of a guide, and the sites that depend on none.

    Attributes:
        chains: sequences of groups. A group depends on earlier ones of its chain only.
        coupled: continuous guide sites that depend on discrete ones.
        leaves: those after the last discrete site, so that none depends on them.
        guide_sites: guide sites that depend on no discrete one.
        model_sites: model sites that depend on no discrete one.
        model_dims: the number of dimensions of every model site without rows.
        probes: sets of discrete sites, each with guide sites that depend on none of the set.
            Together they say of each guide site which earlier sites it does not depend on.
        signature: what must stay the same for the structure to stay valid.
    """

    chains: tuple[Chain, ...]
    coupled: Names
    leaves: Names
    guide_sites: Names
    model_sites: Names
    model_dims: dict[str, int]
    probes: tuple[tuple[Names, Names], ...]
    signature: tuple[Any, ...]

    def run_guide(self, programs: Programs) -> dict[str, Node] | None:
        """Run the guide; return None if a site depends on more than it did.

        The sites of a probe have two equal rows. So a new dependence shows in the shape of a site,
        or fails where it is control flow. The first probe's sites have no children, so that its run
        is a draw of the guide.
        """
        nodes: dict[str, Node] = {}
        try:
            for sites, free in self.probes:
                run = programs.run_guide(drawn(nodes), sites)
                if any(
                    name in free and has_rows(batch_shape(run[name]), programs.nesting)
                    for name in run
                ):
                    return None
                nodes = nodes or run
        except Exception:
            return None
        return nodes


def discover(programs: Programs, nodes: Nodes, default: Estimator, validate: bool) -> Structure:
    """Return the structure of the programs, given the sites of one run of the guide."""
    names = discrete_sites(nodes)
    model_dims = check_programs(programs, nodes, validate)
    first = {name: nodes[name]["value"] for name in names}
    second = {name: _another_value(nodes[name]) for name in names}

    def rows_of(name: str, level: int) -> Tensor:
        return _pair(programs, nodes[name], first[name], second[name], level)

    rows = {name: rows_of(name, 0) for name in names}
    parents, readers, coupled = _dependences(programs, nodes, first, rows)
    chains = _chains(nodes, names, parents, readers, default)
    level = {name: g for chain in chains for g, sites in enumerate(chain) for name in sites}
    rows = {name: rows_of(name, level[name]) for name in names}
    guide, model, _, _ = _run_both(programs, rows)
    check_plates(guide, model)
    if validate:
        check_rows(replace(programs, coupled=coupled), nodes, first, second, rows)

    # The discrete sites that the log-probability of each guide site depends on, itself included.
    reach = {name: parents[name] | ({name} & first.keys()) for name in nodes}

    def last_at(sites: list[str], dependences: Sets) -> Names:
        """Return the sites that depend on these, and on none of a later level."""
        later = {name for name in names if level[name] > level[sites[0]]}
        return frozenset(
            n for n, above in dependences.items() if above & {*sites} and not above & later
        )

    def groups_of(chain: list[list[str]]) -> Chain:
        """Return a chain's groups. A plate is kept if all that depends on them stands in it."""
        groups: list[Group] = []
        kept = frozenset(plate for node in nodes.values() for plate in plates(node))
        for sites in reversed(chain):
            guide_sites, model_sites = last_at(sites, reach), last_at(sites, readers)
            own_plates = frozenset(plates(nodes[sites[0]]))
            for program, dependent in ((guide, guide_sites), (model, model_sites)):
                kept &= own_plates.intersection(*[plates(program[name]) for name in dependent])
            above = [{i for i, site in enumerate(sites) if site in parents[name]} for name in sites]
            group = Group(
                estimator=estimator_of(sites[0], nodes[sites[0]], default),
                sites=tuple(sites),
                parents=tuple(map(frozenset, above)),
                kept=kept,
                joint=tuple(sorted(own_plates - kept)),
                guide_sites=guide_sites,
                model_sites=model_sites,
                has_children=any(above & {*sites} for above in parents.values()),
            )
            _check_group(group)
            groups.insert(0, group)
        return tuple(groups)

    return Structure(
        chains=tuple(map(groups_of, chains)),
        coupled=coupled,
        leaves=coupled.difference(list(nodes)[: max(map(list(nodes).index, names), default=0)]),
        guide_sites=frozenset(name for name in guide if not reach[name]),
        model_sites=frozenset(name for name in model if not readers[name]),
        model_dims=model_dims,
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


def signature(nodes: Nodes, default: Estimator) -> tuple[Any, ...]:
    """Return what must stay the same for a structure to stay valid."""
    return tuple(
        (
            name,
            type(base_distribution(node["fn"])),
            tuple(sorted(plates(node))),
            tuple(node["fn"].event_shape),
            estimator_of(name, node, default),
        )
        for name, node in nodes.items()
    )


def _another_value(node: Node) -> Tensor:
    """Return a value of the site in which every variable is its likeliest other category."""
    view: Any = view_of(law(node["fn"]))
    index = view.index(node["value"].unsqueeze(0))[0]
    shape = index.shape + (view.k,)
    other_log_probs = view.log_probs.expand(shape).scatter(-1, index.unsqueeze(-1), -torch.inf)
    likeliest = other_log_probs.argmax(-1)
    is_possible = other_log_probs.amax(-1) > -torch.inf
    return view.point(torch.where(is_possible, likeliest, index).unsqueeze(0))[0]


def _pair(programs: Programs, node: Node, first: Tensor, second: Tensor, level: int) -> Tensor:
    """Return two values of a site as rows of a level.

    A level has ``level + 2`` rows, so that rows which move to another level's place are noticed.
    """
    event_dims = len(node["fn"].event_shape)
    dims = programs.nesting + level
    values = [with_dimensions(value, dims, event_dims) for value in (first, second)]
    return torch.stack([values[row % 2] for row in range(level + 2)])


def _with_rows(program: str, shapes: dict[str, torch.Size], nesting: int) -> Names:
    """Return the sites whose shapes have rows; raise if they stand where others belong."""
    found: set[str] = set()
    for name, shape in shapes.items():
        row_sizes = shape[: max(0, len(shape) - nesting)]
        sizes = {level: size for level, size in enumerate(reversed(row_sizes)) if size > 1}
        if any(size != level + 2 for level, size in sizes.items()):
            raise not_vectorised(
                program,
                f"discrete values have rows at dimension {-1 - nesting}, to the left of the "
                f"plates, but in the log-probability of its site {name!r}, of shape "
                f"{tuple(shape)}, they stand at another dimension. Keep them in place: index with "
                "broadcast indices (pyro.ops.indexing.Vindex, weight[pixel, z]), not by a table's "
                "row whose dimensions are moved afterwards.",
            )
        found |= {name} if sizes else set()
    return frozenset(found)


def _run_both(programs: Programs, values: dict[str, Tensor]) -> tuple[Nodes, Nodes, Names, Names]:
    """Run guide and model with rows; return their sites, and which of them have rows."""
    guide = run_with_rows(programs, "guide", values)
    shapes = {name: batch_shape(node) for name, node in guide.items()}
    children = _with_rows("guide", shapes, programs.nesting)
    model = run_with_rows(programs, "model", drawn(guide), guide)
    shapes = {name: log_prob(node).shape for name, node in model.items()}
    return guide, model, children, _with_rows("model", shapes, programs.nesting)


def _dependences(
    programs: Programs, nodes: Nodes, first: dict[str, Tensor], pairs: dict[str, Tensor]
) -> tuple[Sets, Sets, Names]:
    """Return the discrete sites that each guide site depends on, and each model site.

    Both are also through other sites. The last output are the continuous guide sites whose
    distributions depend on discrete ones.
    """
    in_guide: Sets = defaultdict(set, {name: set() for name in nodes})
    in_model: Sets = defaultdict(set)
    coupled: set[str] = set()
    for name, rows in pairs.items():
        guide, _, children, readers = _run_both(programs, first | {name: rows})
        for child in children:
            in_guide[child].add(name)
        for child in readers:
            in_model[child].add(name)
        shapes = {child: guide[child]["fn"].batch_shape for child in children}
        coupled |= {child for child in children if has_rows(shapes[child], programs.nesting)}
    for sites in in_guide.values():
        for parent in list(sites):
            sites |= in_guide[parent]
    return in_guide, in_model, frozenset(coupled - first.keys())


def _chains(
    nodes: Nodes, names: list[str], in_guide: Sets, in_model: Sets, default: Estimator
) -> list[list[list[str]]]:
    """Return chains of groups: one for all sites that depend on each other, or that one site reads.

    Chains of the same kinds of groups are joined where that takes no more evaluations, or so few
    that they cost less than another run.
    """

    kinds = {
        name: (estimator_of(name, nodes[name], default), frozenset(plates(nodes[name])))
        for name in names
    }

    def kinds_of(chain: list[list[str]]) -> list[SiteKind]:
        return [kinds[group[0]] for group in chain]

    def cost(chain: list[list[str]]) -> int:
        """Return the number of evaluations."""
        total = 1
        for group in chain:
            sites = {name: nodes[name] for name in group}
            batch = torch.broadcast_shapes(*[node["fn"].batch_shape for node in sites.values()])
            total *= kinds[group[0]][0].evaluations(JointSites(sites, {}).independent(batch))
        return total

    chains: list[list[list[str]]] = []
    own = [in_guide[name] | {name} for name in names]
    for component in _connected([*own, *in_guide.values(), *in_model.values()]):
        chain = _grouped([name for name in names if name in component], in_guide, kinds, nodes)
        twins = [other for other in chains if kinds_of(other) == kinds_of(chain)]
        if twins:
            pairs = zip(twins[-1], chain, strict=True)
            both = [sorted(first + second, key=names.index) for first, second in pairs]
            if cost(both) <= max(cost(twins[-1]) + cost(chain), FEW_EVALUATIONS):
                chains.remove(twins[-1])
                chain = both
        chains.append(chain)
    return chains


def _connected(together: Iterable[set[str]]) -> list[set[str]]:
    """Return the connected components: elements of one set are connected."""
    components: list[set[str]] = []
    for elements in together:
        touched = [component for component in components if component & elements]
        components = [component for component in components if component not in touched]
        components.append(elements.union(*touched))
    return [component for component in components if component]


def _grouped(
    sites: list[str], in_guide: Sets, kinds: Mapping[str, SiteKind], nodes: Nodes
) -> list[list[str]]:
    """Return groups of sites with the same estimator and plates, parents before children.

    A site that depends on another one, and whose own estimator is for independent variables, starts
    a new group. Where the order is free, groups with fewer plates come first, so that more plates
    are kept.
    """
    groups: list[list[str]] = []
    position: dict[str, int] = {}
    for name in sites:
        least = max((position[parent] for parent in in_guide[name]), default=0)
        if Kind.STRUCTURED not in kinds[name][0].supports and "estimator" in nodes[name]["infer"]:
            least += any(kinds[parent] == kinds[name] for parent in in_guide[name])
        fitting = [g for g in range(least, len(groups)) if kinds[groups[g][0]] == kinds[name]]
        if not fitting:
            fitting = [len(groups)]
            groups.append([])
        position[name] = fitting[0]
        groups[position[name]].append(name)
    ordered: list[list[str]] = []
    while len(ordered) < len(groups):
        known = {name for group in ordered for name in group}
        ready = [
            group
            for group in groups
            if group not in ordered and all(in_guide[name] <= known.union(group) for name in group)
        ]
        ordered.append(min(ready, key=lambda group: len(kinds[group[0]][1])))
    return ordered


def _check_group(group: Group) -> None:
    """Raise if sites depend on each other, but their estimator is for independent variables."""
    for name, positions in zip(group.sites, group.parents, strict=True):
        if positions and Kind.STRUCTURED not in group.estimator.supports:
            raise TypeError(
                f"{OWNER}: the guide's site {name!r} depends on "
                f"{sorted(group.sites[i] for i in positions)}, but {group.estimator!r} is for "
                "independent variables. Use an estimator for dependent ones, such as "
                f"catlog.SCateR(2) or catlog.RLOO(8), or give {name!r} one of its own: "
                'infer={"estimator": catlog.IndeCateR(2)}.'
            )
