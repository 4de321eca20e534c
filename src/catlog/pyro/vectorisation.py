"""Runs of a model and a guide with rows, and errors that say why a program cannot have them."""

import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pyro
import torch
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor
from torch.distributions import Categorical

from ..core.factors import base_distribution
from .runs import OWNER, Node, Plate, Programs, batch_shape, drawn, log_prob, plates, sample_sites
from .sites import is_discrete, law, unmasked

INSTEAD = "or use pyro.infer.TraceGraph_ELBO, which draws one value at a time."


class ChangedSiteError(NotImplementedError):
    """A program has other sites, or other dependences, than in an earlier run."""

    def __init__(self, program: str, name: str) -> None:
        super().__init__(
            f"{OWNER}: the {program}'s site {name!r} comes and goes, or changes what it depends "
            "on, between runs of one step. All runs of a step must have the same sites: replace "
            "control flow that is random, or that looks at values of discrete sites, by "
            "torch.where or pyro.poutine.mask."
        )


def not_vectorised(program: str, reason: str) -> NotImplementedError:
    """Return the error of a program that cannot have rows."""
    return NotImplementedError(f"{OWNER}: the {program} cannot be vectorised: {reason}")


def run_with_rows(
    programs: Programs,
    program: Literal["guide", "model"],
    values: Mapping[str, Tensor],
    guide: Mapping[str, Node] = MappingProxyType({}),
) -> dict[str, Node]:
    """Run a program with rows, or raise an error that says where it cannot have them.

    The model also gets the sites of the ``guide``, whose categories it must have.
    """
    run = programs.run_guide if program == "guide" else programs.run_model
    try:
        nodes = run(values)
        _check_categories(nodes, guide)
        for name, node in nodes.items():
            _check_shape(program, name, node, programs.nesting)
        return nodes
    except Exception as error:
        if OWNER in str(error):
            raise
        last = getattr(error, "last_site", None)
        place = "before its first site" if last is None else f"after its site {last!r}"
        place += _line(error)
        raise not_vectorised(
            program,
            f"it runs with one value per discrete site, but fails {place} when values have rows, "
            "one more dimension to the left of all plates "
            f"({type(error).__name__}: {error}). Index from the right (x[..., 0]), keep leading "
            f"dimensions in reshapes, and replace `if x:` by torch.where; {INSTEAD}",
        ) from error


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


def check_programs(programs: Programs, nodes: Mapping[str, Node], validate: bool) -> dict[str, int]:
    """Compare the model with the guide, on runs without rows, with Pyro's own checks.

    Return the number of dimensions of every model site.
    """
    values = drawn(nodes)
    traces = {
        "guide": programs.trace(programs.guide, values),
        "model": programs.trace(programs.model, values),
    }
    for program, trace in traces.items():
        for name, node in sample_sites(trace).items():
            depth = max((-dim for _, dim in plates(node)), default=0)
            if depth > programs.nesting:
                raise ValueError(
                    f"{OWNER}: `max_plate_nesting` is {programs.nesting}, but the {program}'s site "
                    f"{name!r} has a plate at dimension {-depth}. Pass max_plate_nesting={depth}."
                )
    model = sample_sites(traces["model"])
    check_names(model, nodes)
    dims = {name: len(batch_shape(node)) for name, node in model.items()}
    if not validate:
        return dims
    check_model_guide_match(traces["model"], traces["guide"], programs.nesting)
    for trace in traces.values():
        without_subsamples = prune_subsample_sites(trace)
        without_subsamples.compute_log_prob()
        for node in sample_sites(without_subsamples).values():
            check_site_shape(node, programs.nesting)
    for name, node in nodes.items():
        if is_discrete(node["fn"]) and not node["is_observed"]:
            _check_law(name, node)
        if "baseline" in node["infer"]:
            warnings.warn(
                f"{OWNER}: infer['baseline'] of site {name!r} is ignored, because estimators need "
                "none. Remove it; its parameters are not trained.",
                stacklevel=2,
            )
    return dims


def _check_law(name: str, node: Node) -> None:
    """Raise if a registered conversion of a site has other values, or other probabilities."""
    fn = unmasked(node["fn"])
    expected, value = fn.log_prob(node["value"]), node["value"]
    if not torch.allclose(law(fn).log_prob(value), expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"{OWNER}: the guide's site {name!r} is {type(base_distribution(fn)).__name__}, whose "
            "registered conversion must have the same values and probabilities, but it has others. "
            "Change the function given to catlog.distributions.register_distribution."
        )


def check_plates(*programs: Mapping[str, Node]) -> None:
    """Raise if sites disagree about the size of a plate that has none of its own."""
    first: dict[Plate, tuple[str, int]] = {}
    for name, node in (item for nodes in programs for item in nodes.items()):
        for plate, size in plates(node).items():
            other, expected = first.setdefault(plate, (name, size))
            if size != expected:
                raise ValueError(
                    f"{OWNER}: plate {plate[0]!r} has {expected} elements at site {other!r}, but "
                    f"{size} at site {name!r}. Give it a size: pyro.plate({plate[0]!r}, "
                    f"{max(size, expected)})."
                )


def _check_shape(program: str, name: str, node: Node, nesting: int) -> None:
    """Raise if the batch dimensions of a site are not those of its plates, rows apart."""
    shape = log_prob(node).shape
    expected = {dim: size for (_, dim), size in plates(node).items()}
    right = shape[max(0, len(shape) - nesting) :]
    for dim in range(-nesting, 0):
        size = right[dim] if len(right) >= -dim else 1
        if size != expected.get(dim, 1):
            raise not_vectorised(
                program,
                f"when discrete values have rows, to the left of {nesting} dimensions for plates, "
                f"the log-probability of its site {name!r} has shape {tuple(shape)}, which does "
                f"not fit its plates {expected} (size by dimension). Keep dimensions where a plate "
                "is summed (x.sum(-1, keepdim=True)), index from the right (x[..., 0]), and keep "
                f"leading dimensions in reshapes; {INSTEAD}",
            )


def _check_categories(model: Mapping[str, Node], guide: Mapping[str, Node]) -> None:
    """Raise if a site has more categories in the guide than in the model."""
    for name in model.keys() & guide.keys():
        laws = [base_distribution(law(node["fn"])) for node in (guide[name], model[name])]
        sizes = [law.logits.shape[-1] for law in laws if isinstance(law, Categorical)]
        if len(sizes) == 2 and sizes[0] > sizes[1]:
            in_guide, in_model = sizes
            raise ValueError(
                f"{OWNER}: site {name!r} has {in_guide} categories in the guide, but {in_model} in "
                "the model. Give it the same number in both."
            )


def check_names(model: Mapping[str, Node], guide: Mapping[str, Node]) -> None:
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


def check_rows(
    programs: Programs,
    nodes: Mapping[str, Node],
    first: dict[str, Tensor],
    second: dict[str, Tensor],
    rows: dict[str, Tensor],
) -> None:
    """Raise if a site has another log-probability in rows than in a separate run."""
    free = {*first, *programs.coupled}
    fixed = {name: value for name, value in drawn(nodes).items() if name not in free}
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
                raise not_vectorised(
                    site[0],
                    f"the log-probability of its site {site[1]!r} differs when several rows are "
                    "computed at once. Reduce and index from the right (x.sum(-1), x[..., 0]), so "
                    "that rows do not mix. A network with dropout, or with batch normalisation in "
                    "training mode, needs eval(). pyro.enable_validation(False) turns this check "
                    "off.",
                )


def _log_probs(programs: Programs, values: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Return the log-probabilities of all sites of the guide and of the model."""
    guide = programs.run_guide(values)
    model = programs.run_model(drawn(guide))
    log_probs = {("guide", name): log_prob(node) for name, node in guide.items()}
    return log_probs | {("model", name): log_prob(node) for name, node in model.items()}


def _is_close(together: Tensor, alone: Tensor) -> bool:
    """Return whether numbers differ by rounding only: far less than a row's influence."""
    together, alone = torch.broadcast_tensors(together, alone)
    eps = torch.finfo(together.dtype).eps
    if together.device.type == "cuda" and together.dtype != torch.float64:
        eps = torch.finfo(torch.bfloat16).eps  # matrix products may be in TensorFloat32
    size = torch.where(alone.isfinite(), alone, 0.0).abs().amax().clamp(min=1.0)
    close = (together - alone).abs() <= eps ** (2 / 3) * size
    return bool((close | (together == alone) | (together.isnan() & alone.isnan())).all())
