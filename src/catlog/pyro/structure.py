"""What depends on what in a model and a guide: found by running both with rows.

A site depends on a group of discrete sites if its log-probability has the rows of that group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from ..distributions.factors import base_distribution, factors
from ..estimator import Estimator, Kind
from ..estimators import Exact
from .runs import Node, Plate, Programs, log_prob, plates, with_dimensions
from .sites import SUPPORTED, is_discrete

OWNER = "catlog.pyro.ELBO"


class ChangedSiteError(NotImplementedError):
    """A program has other sites, or other dependences, than in an earlier run."""

    def __init__(self, program: str, name: str) -> None:
        super().__init__(
            f"{OWNER}: the {program}'s site {name!r} comes and goes, or changes what it depends "
            "on, between runs of one step. All runs of a step must have the same sites: replace "
            "control flow that is random, or that looks at values of discrete sites, by "
            "torch.where or pyro.poutine.mask."
        )


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
        is_parent: whether the distribution of a guide site depends on this group.
    """

    estimator: Estimator
    sites: tuple[str, ...]
    parents: tuple[frozenset[int], ...]
    kept: frozenset[Plate]
    joint: tuple[Plate, ...]
    guide_sites: frozenset[str]
    model_sites: frozenset[str]
    is_parent: bool

    @property
    def is_ordered(self) -> bool:
        return any(self.parents)


@dataclass(frozen=True, eq=False)
class Structure:
    """The groups of a guide, and the sites that depend on none.

    Attributes:
        chains: sequences of groups. A group depends on earlier ones of its chain only.
        coupled: continuous guide sites that depend on discrete ones.
        guide_sites: guide sites that depend on no discrete one.
        model_sites: model sites that depend on no discrete one.
        all_model_sites: the names of all model sites.
    """

    chains: tuple[tuple[Group, ...], ...]
    coupled: frozenset[str]
    guide_sites: frozenset[str]
    model_sites: frozenset[str]
    all_model_sites: frozenset[str]


def discrete_sites(nodes: Mapping[str, Node]) -> list[str]:
    """Return the guide's discrete sites, or raise an error that names a site of another kind."""
    names = []
    for name, node in nodes.items():
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
                "or with `.to_event(...)`: write a bounded count as Categorical, or use "
                "pyro.infer.TraceGraph_ELBO."
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
            id(estimator_of(name, node, default))
            if not node["infer"].get("enumerate")
            else "exact",
        )
        for name, node in nodes.items()
    )


@torch.no_grad()
def discover(
    programs: Programs, nodes: Mapping[str, Node], default: Estimator, validate: bool
) -> Structure:
    """Return the structure of the programs, given the sites of one run of the guide."""
    names = discrete_sites(nodes)
    first = {name: nodes[name]["value"] for name in names}
    second = {name: _another_value(nodes[name]) for name in names}
    pairs = {
        name: _pair(programs, nodes[name], first[name], second[name], level=0) for name in names
    }
    parents = _parents(programs, names, first, pairs)
    members = _grouped(nodes, names, parents, default)
    position = {name: g for g, group in enumerate(members) for name in group}
    rows = {
        name: _pair(programs, nodes[name], first[name], second[name], level)
        for name, level in position.items()
    }
    guide = _with_rows("guide", programs.run_guide, programs.nesting, rows)
    batches = {name: node["fn"].batch_shape for name, node in guide.items()}
    in_guide = _levels("guide", batches, programs.nesting)
    free = {name: node["value"] for name, node in guide.items() if not node["is_observed"]}
    model = _with_rows("model", programs.run_model, programs.nesting, free, guide)
    _check_names(model, nodes)
    shapes = {name: log_prob(node).shape for name, node in model.items()}
    in_model = _levels("model", shapes, programs.nesting)
    coupled = frozenset(name for name in in_guide if in_guide[name] and name not in position)
    if validate:
        _check_rows(programs.coupling(coupled), nodes, first, second, rows, coupled)
    reach = {
        name: in_guide[name] | ({position[name]} if name in position else set())
        for name in in_guide
    }
    chains = _chains(len(members), [*reach.values(), *in_model.values()])
    return Structure(
        chains=tuple(
            _kept(chain, members, nodes, guide, model, reach, in_guide, in_model, parents, default)
            for chain in chains
        ),
        coupled=coupled,
        guide_sites=frozenset(name for name in guide if not reach[name]),
        model_sites=frozenset(name for name in model if not in_model[name]),
        all_model_sites=frozenset(model),
    )


def _another_value(node: Node) -> Tensor:
    """Return a value of the site in which every variable is its likeliest other category."""
    view = factors(node["fn"], validate=False)
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
    values = [
        with_dimensions(value, programs.nesting + level, event_dims) for value in (first, second)
    ]
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


def _parents(
    programs: Programs, names: list[str], first: dict[str, Tensor], pairs: dict[str, Tensor]
) -> dict[str, set[str]]:
    """Return the earlier discrete sites that each one depends on, directly or through others.

    The guide runs once per site, with two rows at that site.
    """
    parents: dict[str, set[str]] = {name: set() for name in names}
    for name in names[:-1]:
        nodes = _with_rows(
            "guide", programs.run_guide, programs.nesting, first | {name: pairs[name]}
        )
        batches = {child: nodes[child]["fn"].batch_shape for child in names}
        for child, levels in _levels("guide", batches, programs.nesting).items():
            if levels:
                parents[child].add(name)
    for name in names:
        for parent in list(parents[name]):
            parents[name] |= parents[parent]
    return parents


def _grouped(
    nodes: Mapping[str, Node], names: list[str], parents: dict[str, set[str]], default: Estimator
) -> list[list[str]]:
    """Return groups of sites with the same estimator and plates, parents before children.

    A site that depends on another one, and whose own estimator is for independent variables, starts
    a new group. Where the order is free, groups with fewer plates come first, so that more plates
    are kept.
    """
    groups: list[list[str]] = []
    keys: list[tuple[Estimator, frozenset[Plate]]] = []
    position: dict[str, int] = {}
    for name in names:
        estimator = estimator_of(name, nodes[name], default)
        key = (estimator, frozenset(plates(nodes[name])))
        least = max((position[parent] for parent in parents[name]), default=0)
        if Kind.STRUCTURED not in estimator.supports and "estimator" in nodes[name]["infer"]:
            least += any(keys[position[parent]] == key for parent in parents[name])
        fitting = [g for g in range(least, len(groups)) if keys[g] == key]
        if not fitting:
            groups.append([])
            keys.append(key)
        position[name] = fitting[0] if fitting else len(groups) - 1
        groups[position[name]].append(name)
    above = [
        {position[parent] for name in group for parent in parents[name]} - {g}
        for g, group in enumerate(groups)
    ]
    order: list[int] = []
    while len(order) < len(groups):
        ready = [g for g in range(len(groups)) if g not in order and above[g] <= set(order)]
        order.append(min(ready, key=lambda g: (len(keys[g][1]), g)))
    return [groups[g] for g in order]


def _with_rows(
    program: str,
    run: Any,
    nesting: int,
    values: Mapping[str, Tensor],
    guide: Mapping[str, Node] = MappingProxyType({}),
) -> dict[str, Node]:
    """Run a program with rows, or raise an error that says where it cannot have them.

    The model also gets the sites of the ``guide``, whose categories it must have.
    """
    try:
        nodes: dict[str, Node] = run(values)
        _check_categories(nodes, guide)
        for name, node in nodes.items():
            _check_shape(program, name, node, nesting)
        return nodes
    except Exception as error:
        if OWNER in str(error):
            raise
        last = getattr(error, "last_site", None)
        place = "before its first site" if last is None else f"after its site {last!r}"
        raise NotImplementedError(
            f"{OWNER}: the {program} cannot be vectorised: it runs with one value per discrete "
            f"site, but fails {place} when values have rows, one more dimension to the left of all "
            f"plates ({type(error).__name__}: {error}). Index from the right (x[..., 0]), keep "
            "leading dimensions in reshapes, and replace `if x:` by torch.where; or use "
            "pyro.infer.TraceGraph_ELBO, which draws one value at a time."
        ) from error


def _check_shape(program: str, name: str, node: Node, nesting: int) -> None:
    """Raise if the batch dimensions of a site are not those of its plates, rows apart."""
    shape = log_prob(node).shape
    expected = {dim: size for (_, dim), size in plates(node).items()}
    if min(expected, default=0) < -nesting:
        raise ValueError(
            f"{OWNER}: `max_plate_nesting` is {nesting}, but the {program}'s site {name!r} has a "
            f"plate at dimension {min(expected)}. Pass max_plate_nesting={-min(expected)}."
        )
    right = shape[max(0, len(shape) - nesting) :]
    for dim in range(-nesting, 0):
        size = right[dim] if len(right) >= -dim else 1
        if size != expected.get(dim, 1) and expected.get(dim, 1) != -1:
            raise NotImplementedError(
                f"{OWNER}: the {program} cannot be vectorised: when discrete values have rows, to "
                f"the left of {nesting} dimensions for plates, the log-probability of its site "
                f"{name!r} has shape {tuple(shape)}, which does not fit its plates {expected} "
                "(size by dimension). Keep dimensions where a plate is summed "
                "(x.sum(-1, keepdim=True)), index from the right (x[..., 0]), and keep leading "
                "dimensions in reshapes; or use pyro.infer.TraceGraph_ELBO, which draws one value "
                "at a time."
            )


def _check_categories(model: Mapping[str, Node], guide: Mapping[str, Node]) -> None:
    """Raise if a site has more categories in the guide than in the model."""
    for name in model.keys() & guide.keys():
        sizes = []
        for node in (guide[name], model[name]):
            base = base_distribution(node["fn"])
            sizes.append(base.logits.shape[-1] if isinstance(base, Categorical) else None)
        in_guide, in_model = sizes
        if in_guide is not None and in_model is not None and in_guide > in_model:
            raise ValueError(
                f"{OWNER}: site {name!r} has {in_guide} categories in the guide, but {in_model} in "
                "the model. Give it the same number in both."
            )


def _check_names(model: Mapping[str, Node], guide: Mapping[str, Node]) -> None:
    """Raise if the model draws a site that the guide does not have."""
    for name, node in model.items():
        if node["is_observed"] or name in guide:
            continue
        if node["infer"].get("enumerate"):
            raise NotImplementedError(
                f"{OWNER}: the model's site {name!r} is marked for enumeration, but the guide does "
                "not have it. Sites are enumerated in the guide: add it there, with "
                'infer={"enumerate": "parallel"}; or sum it out by hand in `pyro.factor`; or use '
                "pyro.infer.TraceEnum_ELBO."
            )
        raise ValueError(
            f"{OWNER}: the model's site {name!r} is neither observed nor in the guide. Add it to "
            "the guide."
        )


def _check_rows(
    programs: Programs,
    nodes: Mapping[str, Node],
    first: dict[str, Tensor],
    second: dict[str, Tensor],
    rows: dict[str, Tensor],
    coupled: frozenset[str],
) -> None:
    """Raise if a site has another log-probability in rows than in a separate run."""
    fixed = {
        name: node["value"]
        for name, node in nodes.items()
        if name not in first and name not in coupled and not node["is_observed"]
    }
    together = _log_probs(programs, fixed | rows)
    for row, values in enumerate((first, second)):
        by_itself = _log_probs(programs, fixed | values)
        for program, name in sorted(by_itself.keys() ^ together.keys()):
            raise ChangedSiteError(program, name)
        for site, alone in by_itself.items():
            levels = max(0, together[site].dim() - programs.nesting)
            index = tuple(min(row, size - 1) for size in together[site].shape[:levels])
            in_row = together[site][index]
            if not _is_close(in_row, alone):
                raise NotImplementedError(
                    f"{OWNER}: the {site[0]} cannot be vectorised: the log-probability of its site "
                    f"{site[1]!r} differs when several rows are computed at once. Reduce and index "
                    "from the right (x.sum(-1), x[..., 0]), so that rows do not mix. A network "
                    "with dropout, or with batch normalisation in training mode, needs eval(). "
                    "pyro.enable_validation(False) turns this check off."
                )


def _log_probs(programs: Programs, values: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Return the log-probabilities of all sites of the guide and of the model."""
    guide = programs.run_guide(values)
    drawn = {name: node["value"] for name, node in guide.items() if not node["is_observed"]}
    model = programs.run_model(drawn)
    return {
        (program, name): log_prob(node)
        for program, sites in (("guide", guide), ("model", model))
        for name, node in sites.items()
    }


def _is_close(together: Tensor, alone: Tensor) -> bool:
    """Return whether numbers differ by rounding only: far less than a row's influence."""
    together, alone = torch.broadcast_tensors(together, alone)
    eps = torch.finfo(together.dtype).eps
    if together.device.type == "cuda" and together.dtype != torch.float64:
        eps = torch.finfo(torch.bfloat16).eps  # matrix products may be in TensorFloat32
    size = torch.where(alone.isfinite(), alone, 0.0).abs().amax().clamp(min=1.0)
    close = (together - alone).abs() <= eps ** (2 / 3) * size
    return bool((close | (together == alone) | (together.isnan() & alone.isnan())).all())


def _chains(count: int, together: list[set[int]]) -> list[list[int]]:
    """Return the groups in connected components: groups in one set are connected."""
    chains = [{g} for g in range(count)]
    for groups in together:
        touched = [chain for chain in chains if chain & groups]
        if len(touched) > 1:
            chains = [chain for chain in chains if chain not in touched]
            chains.append(set().union(*touched))
    return [sorted(chain) for chain in chains]


def _kept(
    chain: list[int],
    members: list[list[str]],
    nodes: Mapping[str, Node],
    guide: Mapping[str, Node],
    model: Mapping[str, Node],
    reach: dict[str, set[int]],
    in_guide: dict[str, set[int]],
    in_model: dict[str, set[int]],
    parents: dict[str, set[str]],
    default: Estimator,
) -> tuple[Group, ...]:
    """Return the groups of a chain, with the plates that each can keep.

    A plate is kept if all sites that depend on the group, or on later ones, stand in it.
    """
    groups: list[Group] = []
    kept: frozenset[Plate] | None = None
    for g in reversed(chain):
        names = members[g]
        guide_sites = frozenset(name for name in guide if max(reach[name], default=-1) == g)
        model_sites = frozenset(name for name in model if max(in_model[name], default=-1) == g)
        own_plates = frozenset(plates(nodes[names[0]]))
        kept = own_plates if kept is None else kept & own_plates
        for node in [guide[name] for name in guide_sites] + [model[name] for name in model_sites]:
            kept &= frozenset(plates(node))
        estimator = estimator_of(names[0], nodes[names[0]], default)
        group = Group(
            estimator=estimator,
            sites=tuple(names),
            parents=tuple(
                frozenset(i for i, parent in enumerate(names) if parent in parents[name])
                for name in names
            ),
            kept=kept,
            joint=tuple(sorted(own_plates - kept)),
            guide_sites=guide_sites,
            model_sites=model_sites,
            is_parent=any(g in levels for levels in in_guide.values()),
        )
        if group.is_ordered and Kind.STRUCTURED not in estimator.supports:
            child = next(name for name in names if parents[name] & set(names))
            raise TypeError(
                f"{OWNER}: the guide's site {child!r} depends on "
                f"{sorted(parents[child] & set(names))}, but {estimator!r} is for independent "
                "variables. Use an estimator for dependent ones, such as catlog.SCateR(2) or "
                f"catlog.RLOO(8), or give {child!r} one of its own: "
                'infer={"estimator": catlog.IndeCateR(2)}.'
            )
        groups.append(group)
    return tuple(reversed(groups))
