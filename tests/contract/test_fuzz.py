"""Random valid calls: the result is right, or an error names an argument.

Right means: the shape of the batch, a finite value within the range of f (where the estimator
promises one), finite gradients in q and in f, and no impossible point shown to f. (Invalid calls
are in test_errors.py.) ``CATLOG_FUZZ=5000 pytest tests/contract/test_fuzz.py`` tries more.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from catlog import Exact
from catlog.core.estimator import Estimator
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Autoregressive, BayesianNetwork, Categoricals, MarkovChain, Node
from catlog.estimators import ESTIMATORS
from catlog.testing.cases import seeded
from catlog.testing.settings import VARIANTS, tape

EXAMPLES = int(os.environ.get("CATLOG_FUZZ", "300"))

NAMES, ARGUMENTS = "|".join(ESTIMATORS), "f|q|x"
OURS = re.compile(rf"^(({NAMES})(\(.*?\))?(: | needs | is for )|({ARGUMENTS})(: | must | holds ))")

# Settings beside those of VARIANTS, which replace them; networks are made to fit q.
POSITIVE = st.sampled_from([1e-12, 1e-6, 1e-3, 0.3, 1.0, 30.0, 1e6])
REAL = st.one_of(POSITIVE, POSITIVE.map(lambda value: -value), st.just(0.0))
MORE: dict[str, dict[str, Any]] = {
    "Reinforce": {"samples": st.integers(1, 3), "baseline": REAL},
    "NVIL": {"network": st.just("linear")},
    "REBAR": {"eta": REAL, "temperature": POSITIVE},
    "RELAX": {"temperature": POSITIVE, "network": st.just("smooth")},
    "DoubleCV": {"alpha": REAL},
    "RODEO": {"alpha": REAL, "beta": REAL, "network": st.just("pairs")},
    "SCateR": {
        "suffix": st.sampled_from(["independent", "common", "gumbel"]),
        "categories": st.integers(1, 3),
    },
    "IndeCateR": {
        "samples": st.integers(1, 3),
        "sampling": st.sampled_from(["latin", "antithetic"]),
    },
    "CritiCateR": {"samples": st.integers(2, 12), "folds": st.integers(2, 4), "ridge": POSITIVE},
    "SlopeCateR": {
        "corrections": st.integers(1, 3),
        "decay": st.sampled_from([0.0, 0.5, 1.0]),
        "slope_entries": st.integers(0, 2),
    },
    "MemoryCateR": {"samples": st.integers(2, 4), "size": st.integers(1, 4)},
    "MAPO": {
        "size": st.integers(1, 3),
        "clip": st.sampled_from([0.0, 0.2, 0.9]),
        "maximise": st.booleans(),
    },
    "SumAndSample": {"top": st.integers(1, 9), "samples": st.integers(1, 3)},
    "UnorderedSet": {"samples": st.integers(2, 6)},
    "GumbelSoftmax": {"temperature": POSITIVE, "hard": st.booleans()},
    "GumbelRao": {"temperature": POSITIVE, "noise_samples": st.integers(1, 3)},
    "ReinMax": {"temperature": POSITIVE.map(torch.tensor)},
    "IMLE": {"step": POSITIVE},
    "DirectOptimisation": {"epsilon": REAL},
}
# Estimators whose value may lie outside the range of f: at relaxed points, or with a critic.
OUTSIDE = {"GumbelSoftmax", "MemoryCateR"}


@dataclass(frozen=True)
class Case:
    """Everything that determines one call; hypothesis prints it if the call fails."""

    estimator: str
    options: dict[str, Any]
    kind: str
    by: str
    batch: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    scale: float
    edge: str
    form: str
    mode: str
    f: str
    injects: bool
    seed: int


def kinds_of(name: str) -> list[str]:
    supported = ESTIMATORS[name].supports
    structured = ["chain", "emitting chain", "graph", "autoregressive"]
    return sorted(supported - {"structured"}) + structured * ("structured" in supported)


def settings_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    listed = st.sampled_from([{}, *VARIANTS[name]])
    more = st.fixed_dictionaries({}, optional=MORE.get(name, {}))
    return st.one_of(listed, more) if name in MORE else listed


class Smooth(nn.Module):
    """A critic of relaxed points, bits or one-hot."""

    def __init__(self, event: int) -> None:
        super().__init__()
        self.event, self.weight = event, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x.flatten(-self.event).sum(-1)).tanh()


def fits(setting: object, dtype: torch.dtype) -> bool:
    """Return whether gradients that are multiplied by a setting are numbers of this type."""
    return dtype != torch.float16 or not isinstance(setting, float) or abs(setting) < 1e3


@st.composite
def cases(pick: Callable[..., Any]) -> Case:
    name = pick(st.sampled_from(sorted(ESTIMATORS)))
    kind = pick(st.sampled_from(kinds_of(name)))
    d, size = pick(st.integers(1, 3)), pick(st.integers(1, 4))
    dtype = pick(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    options = pick(settings_of(name))
    too_large = {"huge"} if dtype == torch.float16 else set()
    sizes = (2 if kind == "bits" else size,) * d
    if kind == "mixed":
        sizes = tuple(pick(st.integers(1, 4)) for _ in range(d))
    forms = ["logits", "probs"] if kind in ("bits", "index", "one-hot") else ["logits"]
    modes = ["gradients"] * 3 + ["no leaf", "no_grad", "inference_mode"]
    return Case(
        estimator=name,
        options={key: value for key, value in options.items() if fits(value, dtype)},
        kind=kind,
        by=pick(st.sampled_from(forms)),
        batch=pick(st.sampled_from([(), (1,), (3,), (2, 2), (0,), (2, 0)])),
        sizes=sizes,
        dtype=dtype,
        scale=pick(st.sampled_from([0.0, 1.0, 10.0, 1e4])),
        edge=pick(st.sampled_from(["none", "none", "masked", "certain"])),
        form=pick(st.sampled_from(["vector", "vector", "single" if d == 1 else "grid"])),
        mode=pick(st.sampled_from(modes)),
        f=pick(st.sampled_from(sorted(FUNCTIONS.keys() - too_large))),
        injects=pick(st.booleans()),
        seed=pick(st.integers(0, 2**20)),
    )


def logits_of(case: Case) -> tuple[Tensor, Callable[..., Tensor]]:
    """Return a leaf, and a function that makes logits ``[*batch, *shape]`` from it."""
    source = seeded(case.seed)
    theta = torch.randn(400, generator=source, dtype=torch.float64).mul(case.scale).to(case.dtype)
    theta.requires_grad_(case.mode == "gradients")
    taken = 0

    def make(*shape: int) -> Tensor:
        nonlocal taken
        shape = (*case.batch, *shape)
        count = int(torch.tensor(shape).prod())
        at = torch.arange(taken, taken + count) % len(theta)
        taken += count
        raw = theta[at].view(shape)
        if case.edge == "none":
            return raw
        order = torch.rand(shape, generator=source).argsort(-1)
        impossible = order > 0
        if case.edge != "certain":
            impossible &= torch.rand(shape, generator=source) < 0.5
        return raw.masked_fill(impossible, -torch.inf)

    return theta, make


# Without torch's checks, which fail for empty batches and for probabilities of 16 bits.
@patch.object(Distribution, "_validate_args", False)
def law_of(case: Case) -> tuple[Tensor, Distribution]:
    theta, make = logits_of(case)
    d, k = len(case.sizes), max(case.sizes)
    if case.kind in ("bits", "index", "one-hot"):
        logits = make(d, k)
        probs = logits.double().softmax(-1)
        if case.kind == "bits":
            probs, logits = probs[..., 1], logits[..., 1] - logits[..., 0]
        parameter = (probs if case.by == "probs" else logits).to(case.dtype)
        cls: Any = {"bits": Bernoulli, "index": Categorical}.get(case.kind, OneHotCategorical)
        dim = -1 if case.kind == "bits" else -2  # of the variables
        if case.form == "single":
            return theta, cls(**{case.by: parameter.squeeze(dim)})
        if case.form == "grid":
            return theta, Independent(cls(**{case.by: parameter.unsqueeze(dim - 1)}), 2)
        return theta, Independent(cls(**{case.by: parameter}), 1)
    if case.kind == "mixed":
        return theta, Categoricals([make(size) for size in case.sizes])
    if case.kind == "chain":
        return theta, MarkovChain(make(k), make(k, k), length=d)
    if case.kind == "emitting chain":
        return theta, MarkovChain(make(k), make(k, k), length=d, emission=make(k, 2))
    if case.kind == "graph":
        nodes = {
            "b": Node(["a"], make(k, 3)),
            "a": Node([], make(k)),
            "c": Node(["a", "b"], make(k, 3, 2), fixed=True),
        }
        return theta, BayesianNetwork(nodes, case.batch)
    first, later = make(k), make(k)
    law = Autoregressive(
        lambda x, i: (first if i == 0 else later + x[..., i - 1 : i]).expand(*x.shape[:-1], k),
        case.sizes,
        case.batch,
        dtype=case.dtype,
    )
    return theta, law


def feature(x: Tensor, case: Case) -> Tensor:
    """Return a number for every point, in the type of x if it holds floats, else in that of q."""
    event = 1
    if case.kind in ("bits", "index", "one-hot"):
        event = {"vector": 1, "grid": 2, "single": 0}[case.form] + (case.kind == "one-hot")
    flat = x.flatten(-event) if event > 1 else x if event == 1 else x.unsqueeze(-1)
    wide = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    weight = torch.arange(1, flat.shape[-1] + 1, dtype=wide.dtype) / 2
    return (wide * weight).sum(-1).to(x.dtype if x.is_floating_point() else case.dtype)


WEIGHT_OF_F = torch.ones((), requires_grad=True)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # of the feature
    "smooth": torch.sin,
    "square": torch.square,
    "indicator": lambda a: (a > 1).float() + 0 * a,
    "constant": lambda a: 0 * a + 2.5,
    "with a parameter": lambda a: WEIGHT_OF_F * a.sin(),
    "wide": lambda a: a.double().cos(),
    "narrow": lambda a: a.cos().bfloat16(),
    "huge": lambda a: 1e25 * a.float().sin(),
    "tiny": lambda a: 1e-30 * a.float().sin(),
}


def settled(case: Case, q: Distribution) -> dict[str, Any]:
    """Return the settings of the estimator, with networks made for this q."""
    if "network" not in case.options:
        return case.options
    if case.options["network"] == "smooth":
        return case.options | {"network": Smooth(len(q.event_shape) or 1)}
    features = len(case.sizes) * (1 if case.kind == "bits" else max(case.sizes))
    return case.options | {
        "network": nn.Linear(2, 2) if case.options["network"] == "pairs" else nn.Linear(features, 1)
    }


def problem(case: Case) -> str | None:
    """Return what is wrong with this call; None if the result or the error is right."""
    torch.manual_seed(case.seed)
    if case.mode not in ("no_grad", "inference_mode"):
        return problem_of_call(case, *law_of(case))
    with getattr(torch, case.mode)():
        return problem_of_call(case, *law_of(case))


def drawn(E: Estimator[Any], q: Distribution) -> Tensor:
    """Return as many points as a call draws."""
    rows = dict(tape(E, q)).get("points", (2,))[0]
    return Randomness(view(q)).points(rows)


def problem_of_call(case: Case, theta: Tensor, q: Distribution) -> str | None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        answer = FUNCTIONS[case.f](feature(x, case))
        x.zero_()
        return answer

    try:
        E = ESTIMATORS[case.estimator](**settled(case, q))
        x = drawn(E, q) if case.injects else None
        for _ in range(2):  # one that learns has a state at its second call
            value = E(f, q, x=x, generator=seeded(case.seed))
    except (TypeError, ValueError) as error:
        return None if OURS.match(str(error)) else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if value.shape != q.batch_shape:
        return f"shape {tuple(value.shape)}"
    if not bool(value.isfinite().all()):
        return f"value {value}"
    if value.requires_grad:
        value.sum().backward()
    learned = list(E.parameters()) if isinstance(E, nn.Module) and case.f != "huge" else []
    for name, leaf in (("q", theta), ("f", WEIGHT_OF_F), *(("E", leaf) for leaf in learned)):
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None and not bool(gradient.isfinite().all()):
            return f"gradient in {name} {gradient.flatten()[:12]}"
    if 0 in case.batch or not seen:
        return None
    return wrong_points(E, q, seen) or wrong_value(case, E, q, value.detach())


def wrong_points(E: Estimator[Any], q: Distribution, seen: list[Tensor]) -> str | None:
    """Return an error if f saw an impossible point; relaxed points are not checked."""
    if E.differentiates_f:
        return None
    law = view(q)
    for x in seen:
        if not bool((law.log_prob(law.index(x)) > -torch.inf).all()):
            return "f saw a point of probability zero"
    return None


def wrong_value(case: Case, E: Estimator[Any], q: Distribution, value: Tensor) -> str | None:
    """Return an error if the value is outside the range of f over the possible points."""
    draws_categories = case.estimator == "SCateR" and "categories" in case.options
    if case.estimator in OUTSIDE or draws_categories:
        return None
    if type(E).differentiates_f is True:
        return None
    values: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        values.append(FUNCTIONS[case.f](feature(x, case)).detach())
        return values[-1].double()

    Exact(chunk_size=10**6)(f, q)
    low, high = values[0].double().amin(0), values[0].double().amax(0)
    dtype = values[0].dtype
    narrow = dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32
    rounding = max(torch.finfo(dtype).eps for dtype in (narrow, view(q).real))
    slack = 8 * rounding * torch.maximum(low.abs(), high.abs()) + 1e-30
    if bool((value.double() < low - slack).any() or (value.double() > high + slack).any()):
        return f"value {value} outside [{low}, {high}]"
    return None


@settings(
    derandomize=True,
    deadline=None,
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(case=cases())
def test_right_or_an_error_that_names_an_argument(case: Case) -> None:
    error = problem(case)
    assert error is None, error
