"""The view of ``q`` as ``d`` independent factors of ``k`` categories each.

Estimators read every such distribution of torch.distributions through :class:`Factors`, and hand f
the points in the form that ``q.sample()`` gives.
"""

from dataclasses import dataclass
from math import log, prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import logsigmoid

from ..checks import check_dense, check_outputs, check_validate
from ..estimator import Kind
from ..tracing import can_inspect, inside_functorch
from .categoricals import Categoricals
from .foreign import converted
from .ordered import Ordered
from .point_form import one_hots

Base = Bernoulli | Categorical | Categoricals
Table = Float[Tensor, "*shape k"]


@dataclass(frozen=True, eq=False)
class Factors:
    """A distribution over ``x = (x_1, ..., x_d)`` with independent categorical ``x_i``.

    Attributes:
        kind: how a point is written: ``bits`` (floats 0/1, Bernoulli), ``index`` (int64,
            Categorical) or ``one-hot`` (floats).
        probs: p_i(k), differentiable in the parameters of q, float32 or wider.
        given_logits: normalised log-probabilities if q was given by logits, else None.
        batch_shape: of q.
        event_shape: of q.
        cardinalities: the number of categories of each variable, known without reading the
            probabilities.
        dtype: of a point as f sees it.
        outputs: how many of the last batch dimensions stand for the outputs of f. They have size 1
            here, and the size of the outputs in f's values.
        validate: check what comes with q, values of f and points, where Python may look at them.
    """

    kind: Kind
    probs: Float[Tensor, "*batch d k"]
    given_logits: Float[Tensor, "*batch d k"] | None
    batch_shape: torch.Size
    event_shape: torch.Size
    cardinalities: tuple[int, ...]
    dtype: torch.dtype
    outputs: int = 0
    validate: bool = True

    @property
    def d(self) -> int:
        return self.probs.shape[-2]

    @property
    def k(self) -> int:
        return self.probs.shape[-1]

    @property
    def real(self) -> torch.dtype:
        return self.probs.dtype

    @property
    def device(self) -> torch.device:
        return self.probs.device

    @property
    def batch_size(self) -> int:
        return prod(self.batch_shape)

    @property
    def possible(self) -> Bool[Tensor, "*batch d k"]:
        """Categories that can be drawn; f never sees the others, and they get no gradient."""
        return self.probs.detach() > 0

    @property
    def log_probs(self) -> Float[Tensor, "*batch d k"]:
        """log p_i(k); impossible categories have -inf and a zero gradient."""
        return safe_log(self.probs) if self.given_logits is None else self.given_logits

    def with_probs(self, probs: Tensor, log_probs: Tensor) -> "Factors":
        """Return other probabilities of the variables; torch 2.6 cannot compile ``replace``."""
        return Factors(
            self.kind,
            probs,
            log_probs,
            self.batch_shape,
            self.event_shape,
            self.cardinalities,
            self.dtype,
            self.outputs,
            self.validate,
        )

    def flat(self, x: Tensor) -> Tensor:
        """Reshape ``[n, *batch, *event]`` to ``[n, *batch, d]``, or ``[n, *batch, d, k]``."""
        lead = x.shape[: x.dim() - len(self.event_shape)]
        tail = (self.d, self.k) if self.kind == Kind.ONE_HOT else (self.d,)
        return x.reshape(lead + tail)

    def shaped(self, flat: Tensor) -> Tensor:
        """Reshape to events, the inverse of :meth:`flat`."""
        lead = flat.shape[: flat.dim() - (2 if self.kind == Kind.ONE_HOT else 1)]
        return flat.reshape(lead + self.event_shape)

    def index(self, x: Tensor) -> Int64[Tensor, "n *batch d"]:
        """Return the category number of every variable of ``x``."""
        flat = self.flat(x.detach())
        return flat.argmax(-1) if self.kind == Kind.ONE_HOT else flat.long()

    def point(self, index: Tensor) -> Tensor:
        """Return the point with these category numbers, in a new tensor."""
        if self.kind == Kind.ONE_HOT:
            return self.shaped(one_hots(index, self.k, self.dtype))
        flat = index.to(self.dtype)
        return self.shaped(flat.clone() if flat is index else flat)

    def assign(
        self,
        flat: Tensor,
        variable: Int64[Tensor, "rows *#batch"],
        category: Int64[Tensor, "rows *batch"],
    ) -> Tensor:
        """Set one variable of every element of ``flat`` to ``category``, in place if possible."""
        put = flat.scatter if inside_functorch() else flat.scatter_
        index = variable.expand(category.shape).unsqueeze(-1)
        if self.kind != Kind.ONE_HOT:
            return put(-1, index, category.to(self.dtype).unsqueeze(-1))
        row = one_hots(category.unsqueeze(-1), self.k, self.dtype)
        return put(-2, index.unsqueeze(-1).expand(row.shape), row)

    def log_prob(self, index: Int64[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch"]:
        """Return log p(x) of points given by category numbers."""
        log_probs = self.log_probs
        if self.kind == Kind.BITS:
            picked = torch.where(index.bool(), log_probs[..., 1], log_probs[..., 0])
        else:
            table = log_probs.expand(index.shape[:1] + log_probs.shape)
            picked = table.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return picked.sum(-1)


def factors(q: Distribution, *, outputs: int = 0, validate: bool = True) -> Factors:
    """View ``q`` as independent factors, or raise an error that says which distributions can be.

    ``outputs`` batch dimensions of size 1 are appended, for functions with many outputs.

    >>> from torch.distributions import Bernoulli, Independent
    >>> view = factors(Independent(Bernoulli(logits=torch.zeros(5, 3)), 1))
    >>> str(view.kind), view.d, view.k, tuple(view.batch_shape)
    ('bits', 3, 2, (5,))
    """
    check_validate(validate)
    check_outputs(outputs)
    q = converted(q)
    base = base_distribution(q)
    inner = base._categorical if isinstance(base, OneHotCategorical) else base
    if not isinstance(inner, (Bernoulli, Categorical, Categoricals)):
        raise TypeError(_why_not_independent(q, base))
    check_dense(f"q: the parameter of {_name(base)}", inner._param)
    kind = Kind.ONE_HOT if isinstance(base, OneHotCategorical) else Kind.INDEX
    kind = Kind.BITS if isinstance(base, Bernoulli) else kind
    dtype = torch.int64 if kind == Kind.INDEX else inner._param.dtype
    probs, logits = _probs_and_logits(inner, validate)
    batch, event = q.batch_shape + (1,) * outputs, q.event_shape
    d = prod(event[:-1] if kind == Kind.ONE_HOT else event)
    k = probs.shape[-1]
    if d == 0 or k == 0:
        raise ValueError(
            f"q: a distribution needs at least one variable and one category, but {_name(q)} has "
            f"event shape {tuple(event)}."
        )
    if can_inspect(validate, probs) and not bool((probs >= 0).all()):
        bad = (~(probs.detach() >= 0)).nonzero()[0].tolist()
        raise ValueError(
            f"q: {_name(q)} has no valid probabilities at index {tuple(bad[:-1])}: its parameters "
            "are NaN there, or every category is masked (logit -inf). Check what computes them, "
            "and leave each variable at least one category."
        )
    if logits is None:
        probs = _without_impossible(probs)
    sizes = base.cardinalities if isinstance(base, Categoricals) else (k,)
    return Factors(
        kind=kind,
        probs=probs.reshape(batch + (d, k)),
        given_logits=None if logits is None else logits.reshape(batch + (d, k)),
        batch_shape=batch,
        event_shape=event,
        cardinalities=sizes * (d // len(sizes)),
        dtype=dtype,
        outputs=outputs,
        validate=validate,
    )


def _why_not_independent(q: Distribution, base: Distribution) -> str:
    if not isinstance(q, Distribution | type) and callable(q):
        return (
            f"q: a distribution is needed, but {_name(q)} was given, which can be called. Write "
            "E(f, q): the function comes first, then the distribution."
        )
    if isinstance(base, Ordered):
        return (
            f"q: the variables of {_name(q)} depend on each other, but independent ones are needed "
            'here. Use an estimator whose `supports` names "structured", such as RLOO or SCateR.'
        )
    return (
        f"q: a distribution of independent categorical variables is needed, but {_name(q)} was "
        "given. Supported are Bernoulli, Categorical and OneHotCategorical of "
        "torch.distributions, each alone or inside Independent(..., dims), and "
        "catlog.Categoricals; and, for estimators of structured distributions, those of "
        "catlog.distributions (MarkovChain, Autoregressive, Subset, ...). For counts "
        "(Poisson, ...) use catlog.CountDifferences, or catlog.distributions.truncated(q). "
        "For other types there is catlog.register_distribution."
    )


def base_distribution(q: Distribution) -> Distribution:
    """Return the distribution inside all ``Independent``."""
    while isinstance(q, Independent):
        q = q.base_dist
    return q


def relaxable(q: Distribution, law: Factors, owner: str, instead: str = "") -> None:
    """Raise if points of q cannot be relaxed to reals; the message ends with ``instead``."""
    if law.kind == Kind.INDEX:
        raise TypeError(
            f"{owner} needs points that can be relaxed to real vectors, but {_name(q)} draws "
            "integers. Use OneHotCategorical (with the same logits) and let f read one-hot "
            f"vectors{instead}."
        )


def bits_only(q: Distribution, law: Factors, owner: str, instead: str) -> None:
    """Raise if q is not of bits, and name an estimator for it."""
    if law.kind != Kind.BITS:
        raise TypeError(
            f"{owner} is for binary variables (Bernoulli), but {_name(q)} was given. Use {instead}."
        )


def _probs_and_logits(q: Base, validate: bool) -> tuple[Table, Table | None]:
    """Return probabilities, and log-probabilities if q was given by logits.

    If torch's ``expand`` has lost the form, logits are used, except where torch clamped them.
    """
    form = given_form(q)
    if form == "logits":
        return _by_logits(q)
    if form == "probs":
        return _by_probs(q), None
    logits, clamped = _by_logits(q)[1], was_clamped(q)
    # The exponential's derivative is as exact near 1 as near 0, and can still be divided by p.
    by_logits = logits.exp()
    if can_inspect(validate, clamped) and not bool(clamped.any()):
        return by_logits, logits
    by_probs = _without_impossible(_by_probs(q))
    logits = torch.where(clamped, safe_log(by_probs), logits)
    return torch.where(clamped, by_probs, by_logits), logits


def given_form(q: Any) -> Literal["logits", "probs", "unknown"]:
    """Return whether q was given by its logits or by its probabilities.

    torch caches the other form once it is read. Its ``expand`` copies both, probabilities first,
    and calls the logits the parameter, whichever was given.
    """
    if "probs" not in q.__dict__:
        return "logits"
    if "logits" not in q.__dict__ or getattr(q, "_param", None) is q.__dict__["probs"]:
        return "probs"
    if torch.compiler.is_compiling():  # where the order of attributes is unknown
        return "unknown"
    first = next(name for name in q.__dict__ if name in ("probs", "logits"))
    return "logits" if first == "logits" else "unknown"


def was_clamped(q: Base) -> Bool[Tensor, "*shape 1"]:
    """Return where torch computed logits from probabilities so near to 0 or 1 that it clamped them.

    There, logits make impossible categories possible, and give categories below the clamp no
    gradient.
    """
    eps = torch.finfo(q._param.dtype).eps  # what torch clamps to
    above = _by_logits(q)[1] >= log(eps) * (1 + 4 * eps)
    return ((_by_probs(q) < eps) & above).any(-1, keepdim=True)


def _by_probs(q: Base) -> Table:
    probs = q.probs if _is_wide(q.probs) else q.probs.float()
    if isinstance(q, Bernoulli):
        return torch.stack([1 - probs, probs], -1)
    # In a narrow dtype the probabilities that torch normalised do not quite add up to one.
    return probs if probs is q.probs else probs / probs.sum(-1, keepdim=True)


def _by_logits(q: Base) -> tuple[Table, Table]:
    logits = q.logits if _is_wide(q.logits) else q.logits.float()
    if isinstance(q, Bernoulli):
        both = torch.stack([-logits, logits], -1)
        return torch.sigmoid(both), logsigmoid(both)
    logits = logits if logits is q.logits else logits.log_softmax(-1)
    return logits.softmax(-1), logits


def safe_log(probs: Tensor) -> Tensor:
    """Return the logarithm, with no gradient where it is -inf."""
    possible = probs.detach() > 0
    return torch.where(possible, probs, 1.0).log().masked_fill(~possible, -torch.inf)


def _without_impossible(probs: Table) -> Table:
    """Normalise once more over the possible categories: impossible ones get no gradient.

    As its probability grows, an impossible category takes it from the possible ones. Masking its
    own entry alone would keep that part of its derivative.
    """
    probs = probs.masked_fill(probs.detach() == 0, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _is_wide(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float32, torch.float64)


def _name(q: Distribution) -> str:
    if isinstance(q, Independent):
        return f"Independent({_name(q.base_dist)}, {q.reinterpreted_batch_ndims})"
    return type(q).__name__
