"""What depends on what in a model and a guide: found by running both with rows.

A site depends on a group of discrete sites if its log-probability has the rows of that group.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyro.distributions import Unit
from torch import Tensor

from ..core.categories import Kind
from ..core.estimator import Estimator
from ..core.factors import base_distribution
from ..core.view import view as view_of
from ..estimators import Exact
from .runs import Node, Plate, Programs, batch_shape, drawn, log_prob, plates, with_dimensions
from .sites import SUPPORTED, independent, is_discrete, law, layout, table
from .vectorisation import OWNER, check_plates, check_programs, check_rows, run_with_rows

# Rows of one run that cost less than a further run: a site of a run takes about 50 microseconds,
# and another row of a small site less than a tenth of a microsecond.
FEW_EVALUATIONS = 16


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
        children: guide sites whose distribution, scale or mask depends on this group.
    """

    estimator: Estimator
    sites: tuple[str, ...]
    parents: tuple[frozenset[int], ...]
    kept: frozenset[Plate]
    joint: tuple[Plate, ...]
    guide_sites: frozenset[str]
    model_sites: frozenset[str]
    children: frozenset[str]

    @property
    def is_ordered(self) -> bool:
        return any(self.parents)

    @property
    def nonparents(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """Sets of sites, each with the sites of the group that depend on none of the set.

        Together they say of each site which earlier ones it does not depend on.
        """
        pairs, seen = [], set[tuple[int, int]]()
        for known in sorted(set(self.parents), key=len, reverse=True):
            sites = frozenset(range(len(self.sites))) - known
            free = [j for j, parents in enumerate(self.parents) if parents <= known]
            absent = {(i, j) for j in free for i in sites if i < j}
            if not absent <= seen:
                pairs.append((self._names(sites), self._names(free)))
                seen |= absent
        return pairs

    def _names(self, positions: Iterable[int]) -> frozenset[str]:
        return frozenset(self.sites[i] for i in positions)


Chain = tuple[Group, ...]


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
    """

    chains: tuple[Chain, ...]
    coupled: frozenset[str]
    leaves: frozenset[str]
    guide_sites: frozenset[str]
    model_sites: frozenset[str]
    model_dims: dict[str, int]

    @property
    def childless(self) -> frozenset[str]:
        """The discrete sites that no guide site depends on."""
        groups = [group for chain in self.chains for group in chain if not group.children]
        return frozenset(name for group in groups for name in group.sites)


def discrete_sites(nodes: Mapping[str, Node]) -> list[str]:
    """Return the guide's discrete sites, or raise an error that names a site of another kind."""
    names = []
    for name, node in nodes.items():
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
            kind = type(base_distribution(node["fn"])).__name__
            raise TypeError(
                f"{OWNER}: the guide's site {name!r} is {kind}, but `infer['estimator']` is for "
                "Bernoulli, Categorical and OneHotCategorical. Remove it; continuous sites are "
                "reparameterised."
            )
        elif not getattr(node["fn"], "has_rsample", False):
            kind = type(base_distribution(node["fn"])).__name__
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
    if infer.get("enumerate"):
        if infer.get("num_samples") is not None:
            raise NotImplementedError(
                f"{OWNER}: site {name!r} asks for enumeration by `num_samples`. Mark it with "
                'infer={"estimator": catlog.RLOO(8)} instead.'
            )
        return Exact()
    return default


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


def signature(nodes: Mapping[str, Node], default: Estimator) -> tuple[Any, ...]:
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


def discover(
    programs: Programs, nodes: Mapping[str, Node], default: Estimator, validate: bool
) -> Structure:
    """Return the structure of the programs, given the sites of one run of the guide."""
    names = discrete_sites(nodes)
    model_dims = check_programs(programs, nodes, validate)
    first = {name: nodes[name]["value"] for name in names}
    second = {name: _another_value(nodes[name]) for name in names}

    def rows_of(name: str, level: int) -> Tensor:
        return _pair(programs, nodes[name], first[name], second[name], level)

    pairs = {name: rows_of(name, 0) for name in names}
    parents, readers, coupled = _dependences(programs, first, pairs)
    members = _grouped(nodes, names, parents, readers, default)
    position = {name: g for g, group in enumerate(members) for name in group}
    in_guide = {name: {position[site] for site in parents[name]} for name in nodes}
    in_model = {name: {position[site] for site in sites} for name, sites in readers.items()}
    # The groups that the log-probability of each guide site depends on, its own included.
    own = {name: {g} for name, g in position.items()}
    reach = {name: above | own.get(name, set()) for name, above in in_guide.items()}
    chains = _connected([*own.values(), *reach.values(), *in_model.values()])
    level = {g: chain.index(g) for chain in chains for g in chain}
    rows = {name: rows_of(name, level[g]) for name, g in position.items()}
    guide = run_with_rows(programs, "guide", rows)
    _levels("guide", {name: batch_shape(node) for name, node in guide.items()}, programs.nesting)
    model = run_with_rows(programs, "model", drawn(guide), guide)
    _levels("model", {name: log_prob(node).shape for name, node in model.items()}, programs.nesting)
    check_plates(guide, model)
    if validate:
        check_rows(replace(programs, coupled=coupled), nodes, first, second, rows)
    groups = []
    for g, sites in enumerate(members):
        guide_sites, model_sites = _last_at(g, reach), _last_at(g, in_model)
        dependent = [guide[name] for name in guide_sites] + [model[name] for name in model_sites]
        own_plates = frozenset(plates(nodes[sites[0]]))
        above = [{i for i, site in enumerate(sites) if site in parents[name]} for name in sites]
        group = Group(
            estimator=estimator_of(sites[0], nodes[sites[0]], default),
            sites=tuple(sites),
            parents=tuple(map(frozenset, above)),
            kept=own_plates.intersection(*map(plates, dependent)),
            joint=tuple(sorted(own_plates)),
            guide_sites=guide_sites,
            model_sites=model_sites,
            children=frozenset(name for name, above in in_guide.items() if g in above),
        )
        _check_group(group)
        groups.append(group)
    return Structure(
        chains=tuple(_kept([groups[g] for g in chain]) for chain in chains),
        coupled=coupled,
        leaves=coupled.difference(list(nodes)[: max(map(list(nodes).index, names), default=0)]),
        guide_sites=frozenset(name for name in guide if not reach[name]),
        model_sites=frozenset(name for name in model if not in_model.get(name)),
        model_dims=model_dims,
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


def _levels(program: str, shapes: Mapping[str, torch.Size], nesting: int) -> dict[str, set[int]]:
    """Return the levels whose rows the shapes of sites have."""
    levels: dict[str, set[int]] = {}
    for name, shape in shapes.items():
        row_sizes = shape[: max(0, len(shape) - nesting)]
        sizes = {len(row_sizes) - 1 - i: size for i, size in enumerate(row_sizes) if size > 1}
        if any(size != level + 2 for level, size in sizes.items()):
            raise NotImplementedError(
                f"{OWNER}: the {program} cannot be vectorised: discrete values have rows at "
                f"dimension {-1 - nesting}, to the left of the plates, but in the log-probability "
                f"of its site {name!r}, of shape {tuple(shape)}, they stand at another dimension. "
                "Keep them in place: index with broadcast indices (pyro.ops.indexing.Vindex, "
                "weight[pixel, z]), not by a table's row whose dimensions are moved afterwards."
            )
        levels[name] = set(sizes)
    return levels


Sets = dict[str, set[str]]


def _dependences(
    programs: Programs, first: dict[str, Tensor], pairs: dict[str, Tensor]
) -> tuple[Sets, Sets, frozenset[str]]:
    """Return the discrete sites that each guide site depends on, and each model site.

    Both are also through other sites. The last output are the continuous guide sites whose
    distributions depend on discrete ones.
    """
    in_guide: Sets = defaultdict(set)
    in_model: Sets = defaultdict(set)
    coupled: set[str] = set()
    for name, rows in pairs.items():
        guide = run_with_rows(programs, "guide", first | {name: rows})
        model = run_with_rows(programs, "model", drawn(guide), guide)
        shapes = {child: batch_shape(node) for child, node in guide.items()}
        for child, levels in _levels("guide", shapes, programs.nesting).items():
            in_guide[child] |= {name} if levels else set()
        shapes = {child: log_prob(node).shape for child, node in model.items()}
        for child, levels in _levels("model", shapes, programs.nesting).items():
            in_model[child] |= {name} if levels else set()
        shapes = {child: node["fn"].batch_shape for child, node in guide.items()}
        laws = _levels("guide", shapes, programs.nesting)
        coupled |= {child for child, levels in laws.items() if levels and child not in first}
    for sites in in_guide.values():
        for parent in list(sites):
            sites |= in_guide[parent]
    return in_guide, in_model, frozenset(coupled)


def _grouped(
    nodes: Mapping[str, Node],
    names: list[str],
    in_guide: Sets,
    in_model: Sets,
    default: Estimator,
) -> list[list[str]]:
    """Return groups of sites with the same estimator and plates, parents before children.

    A site that depends on another one, and whose own estimator is for independent variables, starts
    a new group. Where the order is free, groups with fewer plates come first, so that more plates
    are kept. A group of sites that nothing connects is divided if that saves evaluations.
    """
    groups: list[list[str]] = []
    keys: list[tuple[Estimator, frozenset[Plate]]] = []
    position: dict[str, int] = {}
    for name in names:
        estimator = estimator_of(name, nodes[name], default)
        key = (estimator, frozenset(plates(nodes[name])))
        least = max((position[parent] for parent in in_guide[name]), default=0)
        if Kind.STRUCTURED not in estimator.supports and "estimator" in nodes[name]["infer"]:
            least += any(keys[position[parent]] == key for parent in in_guide[name])
        fitting = [g for g in range(least, len(groups)) if keys[g] == key]
        if not fitting:
            groups.append([])
            keys.append(key)
        position[name] = fitting[0] if fitting else len(groups) - 1
        groups[position[name]].append(name)
    above = [
        {position[parent] for name in group for parent in in_guide[name]} - {g}
        for g, group in enumerate(groups)
    ]
    order: list[int] = []
    while len(order) < len(groups):
        ready = [g for g in range(len(groups)) if g not in order and above[g] <= set(order)]
        order.append(min(ready, key=lambda g: (len(keys[g][1]), g)))
    own = [in_guide[name] | {name} for name in names]
    components = _connected([*own, *in_guide.values(), *in_model.values()])
    return [part for g in order for part in _divided(keys[g][0], groups[g], components, nodes)]


def _divided(
    estimator: Estimator, group: list[str], components: list[list[str]], nodes: Mapping[str, Node]
) -> list[list[str]]:
    """Return the components of a group, as few and as large as they have few evaluations.

    That is no more than separate ones, or so few that they cost less than another run.
    """

    def evaluations(sites: list[str]) -> int:
        laws = [nodes[name]["fn"] for name in sites]
        shapes = torch.broadcast_shapes(*[law.batch_shape for law in laws])
        tables = [table(law, {}, shapes) for law in laws]
        return estimator.evaluations(independent(tables, [layout(law, {}) for law in laws]))

    parts: list[list[str]] = []
    for component in components:
        sites = [name for name in group if name in component]
        if not sites:
            continue
        separate = evaluations(parts[-1]) + evaluations(sites) if parts else 0
        if parts and evaluations(parts[-1] + sites) <= max(separate, FEW_EVALUATIONS):
            parts[-1] += sites
        else:
            parts.append(sites)
    return [sorted(part, key=group.index) for part in parts]


def _connected(together: Iterable[Iterable[Any]]) -> list[list[Any]]:
    """Return the connected components, sorted: elements of one set are connected."""
    components: list[set[Any]] = []
    for elements in map(set, together):
        touched = [component for component in components if component & elements]
        components = [component for component in components if component not in touched]
        components.append(elements.union(*touched))
    return [sorted(component) for component in components if component]


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


def _kept(chain: list[Group]) -> Chain:
    """Return the groups of a chain, with the plates that each can keep.

    A plate is kept if all sites that depend on the group, or on later ones, stand in it.
    """
    groups: list[Group] = []
    kept = chain[-1].kept
    for group in reversed(chain):
        kept &= group.kept
        joint = tuple(plate for plate in group.joint if plate not in kept)
        groups.append(replace(group, kept=kept, joint=joint))
    return tuple(reversed(groups))


def _last_at(g: int, levels: Mapping[str, set[int]]) -> frozenset[str]:
    """Return the sites that depend on group g and on no later one."""
    return frozenset(name for name, groups in levels.items() if max(groups, default=-1) == g)
