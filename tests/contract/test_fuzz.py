"""Random valid calls: the result is right, or an error names an argument.

Right means: the shape of the batch, a finite value within the range of f (where the estimator
promises one), finite gradients in q, and no impossible point shown to f. (Invalid calls are in
test_errors.py.) ``CATLOG_FUZZ=5000 pytest tests/contract/test_fuzz.py`` tries more.
"""

import os
import re
from contextlib import nullcontext
from inspect import signature
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Categoricals, MarkovChain
from catlog.estimators import ESTIMATORS
from catlog.testing.cases import seeded
from catlog.testing.settings import VARIANTS, tape

CALLS = int(os.environ.get("CATLOG_FUZZ", "1000"))
NAMES = "|".join(ESTIMATORS)
OURS = re.compile(rf"^(({NAMES})(\(.*?\))?(: | needs | is for )|(f|q|x)(: | must | holds ))")
SIZES = (1e-12, 1e-6, 1e-3, 0.3, 30.0, 1e6)  # of settings
EXTREME = {"temperature", "step", "ridge", "alpha", "beta", "eta", "epsilon", "baseline"}
# Estimators whose value may lie outside the range of f: at relaxed points, or with a critic.
OUTSIDE = {"GumbelSoftmax", "MemoryCateR"}
FUNCTIONS = {  # of a feature
    "smooth": torch.sin,
    "square": torch.square,
    "indicator": lambda a: (a > 1).float() + 0 * a,
    "constant": lambda a: 0 * a + 2.5,
    "wide": lambda a: a.double().cos(),
    "narrow": lambda a: a.cos().bfloat16(),
    "tiny": lambda a: 1e-30 * a.float().sin(),
    "huge": lambda a: 1e25 * a.float().sin(),
}


def feature(x: Tensor, event: int, real: torch.dtype) -> Tensor:
    """Return a number for every point, in the type of x if it holds floats, else in that of q."""
    wide = x.flatten(-event) if event else x.unsqueeze(-1)
    wide = wide if wide.dtype in (torch.float32, torch.float64) else wide.float()
    weight = torch.arange(1, wide.shape[-1] + 1, dtype=wide.dtype) / 2
    return (wide * weight).sum(-1).to(x.dtype if x.is_floating_point() else real)


class Call:
    """A random call; ``log`` says what it is."""

    def __init__(self, seed: int) -> None:
        self.random, self.source = Random(seed), seeded(seed)
        pick = self.random.choice
        self.name = pick(sorted(ESTIMATORS))
        self.kind = pick(sorted(ESTIMATORS[self.name].supports))
        self.dtype = pick([torch.float32, torch.float64, torch.float16, torch.bfloat16])
        self.options = dict(pick([{}, *VARIANTS[self.name]]))
        for setting in EXTREME & signature(ESTIMATORS[self.name]).parameters.keys():
            value = pick(SIZES)
            is_gradient = self.dtype == torch.float16 and value > 1e3  # one times it is infinite
            if self.random.random() < 0.3 and not is_gradient:
                self.options[setting] = value
        self.batch = pick([(), (1,), (3,), (2, 2), (0,), (2, 0)])
        self.scale = pick([0.0, 1.0, 10.0, 1e4])
        self.edge = pick(["none", "none", "masked", "certain"])
        self.by = pick(["logits", "probs"])
        self.dims = pick([0, 1, 1, 2])  # of the event
        names = sorted(FUNCTIONS.keys() - ({"huge"} if self.dtype == torch.float16 else set()))
        self.f = FUNCTIONS[pick(names)]
        self.mode = pick([nullcontext] * 3 + [torch.no_grad, torch.inference_mode])
        self.injects = pick([True, False])
        self.log = repr(vars(self))

    def logits(self, *shape: int) -> Tensor:
        """Return logits ``[*batch, *shape]``, of which some may be impossible."""
        shape = (*self.batch, *shape)
        raw = torch.randn(shape, generator=self.source, dtype=torch.float64) * self.scale
        raw = raw.to(self.dtype).requires_grad_()
        self.leaves.append(raw)
        impossible = torch.rand(shape, generator=self.source).argsort(-1) > 0
        if self.edge == "masked":
            impossible &= torch.rand(shape, generator=self.source) < 0.5
        return raw if self.edge == "none" else raw.masked_fill(impossible, -torch.inf)

    def distribution(self) -> Distribution:
        self.leaves: list[Tensor] = []
        d, k = self.random.randint(1, 3), self.random.randint(1, 4)
        if self.kind == "mixed":
            return Categoricals([self.logits(self.random.randint(1, 4)) for _ in range(d)])
        if self.kind == "structured":
            return MarkovChain(self.logits(k), self.logits(k, k), length=d)
        variables = {0: (), 1: (d,), 2: (1, d)}[self.dims]
        logits = self.logits(*variables, 2 if self.kind == "bits" else k)
        parameter = logits.double().softmax(-1) if self.by == "probs" else logits
        cls: Any = {"bits": Bernoulli, "index": Categorical}.get(self.kind, OneHotCategorical)
        if self.kind == "bits":
            difference = logits[..., 1] - logits[..., 0]
            parameter = parameter[..., 1] if self.by == "probs" else difference
        return Independent(cls(**{self.by: parameter.to(self.dtype)}), self.dims)

    def problem(self) -> str | None:
        """Return what is wrong with the result; None if it, or the error, is right."""
        seen = []
        q = self.distribution()
        event = len(q.event_shape)

        def f(x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            values = self.f(feature(x, event, self.dtype))
            x.zero_()
            return values

        try:
            E = ESTIMATORS[self.name](**self.options)
            value = E(f, q, generator=seeded())  # one that learns has a state at its second call
            rows = dict(tape(E, q)).get("points", (2,))[0]
            x = Randomness(view(q)).points(rows) if self.injects else None
            value = E(f, q, x=x, generator=seeded())
        except (TypeError, ValueError) as error:
            return None if OURS.match(str(error)) else f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if value.shape != q.batch_shape or not bool(value.isfinite().all()):
            return f"value {value}"
        if value.requires_grad:
            value.sum().backward()
        learned = list(E.parameters()) if isinstance(E, nn.Module) else []
        for leaf in [*self.leaves, *(learned if self.f is not FUNCTIONS["huge"] else [])]:
            if leaf.grad is not None and not bool(leaf.grad.isfinite().all()):
                return f"gradient {leaf.grad}"
        if 0 in self.batch or not seen or E.differentiates_f:
            return None
        law = view(q)
        if any(bool((law.log_prob(law.index(x)) == -torch.inf).any()) for x in seen):
            return "f saw a point of probability zero"
        return self.problem_of_range(q, event, value.detach().double())

    def problem_of_range(self, q: Distribution, event: int, value: Tensor) -> str | None:
        """Return what is wrong if the value is outside the range of f over the possible points."""
        values: list[Tensor] = []

        def f(x: Tensor) -> Tensor:
            values.append(self.f(feature(x, event, self.dtype)).detach())
            return values[-1].double()

        catlog.Exact(chunk_size=10**6)(f, q)
        low, high = values[0].double().amin(0), values[0].double().amax(0)
        dtypes = (values[0].dtype, view(q).real, torch.float32)
        rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
        slack = 8 * rounding * torch.maximum(low.abs(), high.abs()) + 1e-30
        is_inside = bool((value >= low - slack).all() and (value <= high + slack).all())
        return None if is_inside or self.name in OUTSIDE else f"{value} outside [{low}, {high}]"


@pytest.mark.usefixtures("unchecked")  # torch's checks fail for empty batches, and in 16 bits
def test_right_or_an_error_that_names_an_argument() -> None:
    for seed in range(CALLS):
        call = Call(seed)
        torch.manual_seed(seed)
        with call.mode():
            problem = call.problem()
        assert problem is None, f"{problem}\nof {call.log}"
