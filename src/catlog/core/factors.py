"""How estimators see q: a product of d categorical factors, whatever torch class it is."""

from collections.abc import Callable
from math import isfinite, isnan, log, prod
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Size, Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import logsigmoid, softplus

from .categories import (
    Kind,
    centred,
    integers,
    inverse_cdf,
    one_hots,
    safe_log,
    times_jacobian,
    widened,
)
from .checks import check_dense, refusal
from .ordered import IndependentBlocks, Ordered, PointForm, Rearranged, Scored
from .tracing import can_inspect, inside_functorch, is_transformed

WHOLE = "whole numbers, as q.sample() gives them"
FORMS = {
    Kind.BITS: "zeros and ones, as a Bernoulli distribution draws them",
    Kind.ONE_HOT: "one-hot vectors, a single 1 among zeros",
}
T = TypeVar("T")
Weight = float | Tensor
Index = Int64[Tensor, "n *batch d"]
Uniforms = Float[Tensor, "*lead d"]
Table = Float[Tensor, "*lead d k"]
PerDraw = Float[Tensor, "n *batch"]


class lazy(Generic[T]):  # noqa: N801  # used as a decorator
    """An attribute that is computed at its first use, with the grad mode of its object.

    Without the mode, a first use inside ``no_grad`` would leave a constant for all later ones.
    ``functools.cached_property`` has a lock that torch.compile cannot trace.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        if owner is None:  # a page of documentation reads the class
            return self  # type: ignore[return-value]
        if torch.is_grad_enabled() == owner.grad_mode:
            value = self.function(owner)
        else:
            with torch.set_grad_enabled(owner.grad_mode):
                value = self.function(owner)
        setattr(owner, self.name, value)
        return value


def beside(values: Tensor, n: int) -> Tensor:
    """Return numbers of the batch in a shape that broadcasts with n draws.

    The backward pass of a broadcast adds over the draws, even over a single one.
    """
    return values.unsqueeze(0) if n == 1 else values


class Factors:
    """A distribution over ``x = (x_1, ..., x_d)``, as the product of its conditionals.

    A point is a tensor ``[n, *batch, *event]`` as f sees it. Its ``index``, ``[n, *batch, d]``, has
    the category numbers of the variables.

    Attributes:
        distribution: what the user gave.
        kinds: of distributions that the class may stand for.
        kind: of this distribution.
        batch_shape: of q, and one dimension of size 1 for every output dimension of f.
        event_shape: of a point.
        outputs: how many of the last batch dimensions stand for the outputs of f.
        d: the number of variables.
        cardinalities: the number of categories of each variable.
        k: the largest of these.
        dtype: of a point.
        one_hot: whether a point holds one-hot vectors.
        real: of probabilities and uniforms, float32 or wider.
        validate: whether values of f and points are checked, where Python may look at them.
        is_transformed: whether the call is compiled, or inside a transform of ``torch.func``.
    """

    distribution: Distribution
    kinds: frozenset[Kind] = frozenset(Kind) - {Kind.COUNTS}
    kind: Kind
    batch_shape: Size
    event_shape: Size
    outputs: int
    d: int
    k: int
    cardinalities: tuple[int, ...]
    dtype: torch.dtype
    one_hot: bool = False
    real: torch.dtype
    device: torch.device
    validate: bool
    is_transformed: bool
    ordered: Ordered

    def __init__(
        self, batch_shape: Size, event_shape: Size, outputs: int = 0, validate: bool = True
    ) -> None:
        self.batch_shape = batch_shape + (1,) * outputs
        self.event_shape = event_shape
        self.outputs = outputs
        self.validate = validate
        self.is_transformed = is_transformed()

    @property
    def seen_batch(self) -> Size:
        """The batch shape as f sees it, without the output dimensions."""
        return self.batch_shape[: len(self.batch_shape) - self.outputs]

    def flat(self, x: Tensor) -> Tensor:
        """Reshape ``[n, *batch, *event]`` to ``[n, *batch, d]``; one-hot: ``[n, *batch, d, k]``."""
        if len(self.event_shape) == 1 + self.one_hot:
            return x
        tail = (self.d, self.k) if self.one_hot else (self.d,)
        return x.reshape(x.shape[: x.dim() - len(self.event_shape)] + tail)

    def shaped(self, flat: Tensor) -> Tensor:
        """Reshape to events, the inverse of :meth:`flat`."""
        if len(self.event_shape) == 1 + self.one_hot:
            return flat
        return flat.reshape(flat.shape[: flat.dim() - 1 - self.one_hot] + self.event_shape)

    def index(self, x: Tensor) -> Index:
        """Return the category numbers of points."""
        flat = self.flat(x.detach())
        return flat.argmax(-1) if self.one_hot else flat.long()

    def point(self, index: Index) -> Tensor:
        """Return the points with these category numbers, in a new tensor."""
        if self.one_hot:
            return self.shaped(one_hots(index, self.k, self.dtype))
        return self.shaped(index.to(self.dtype, copy=True))

    def check_points(self, x: Tensor, points: Tensor) -> None:
        """Raise unless q can draw the points x, of whatever dtype; ``points`` have that of q."""
        index = self.index(points)
        if self.dtype.is_floating_point and bool((self.point(index.clamp(min=0)) != x).any()):
            kind = getattr(self, "form", self).kind
            raise refusal("x", f"hold {FORMS.get(kind, WHOLE)}", "others were given")
        sizes = integers(self.cardinalities, index.device)
        possible = ((index >= 0) & (index < sizes)).all(-1)
        if bool(possible.all()):
            with torch.no_grad():
                possible = self.log_prob(index) > -torch.inf
        if can_inspect(True, possible) and not bool(possible.all()):
            bad = tuple((~possible).nonzero()[0].tolist())
            raise ValueError(
                f"x holds a point that q cannot draw: {index[bad].tolist()} at index {bad} has "
                "probability zero."
            )

    def from_uniforms(self, u: Float[Tensor, "n *batch d"]) -> Index:
        """Return the category numbers that the inverse CDF makes from uniforms."""
        raise NotImplementedError

    def draw(self, u: Float[Tensor, "n *batch d"]) -> Tensor:
        """Return the points that the inverse CDF makes from uniforms, which it may overwrite."""
        with torch.no_grad():
            return self.point(self.from_uniforms(u))

    def direct_draws(self, n: int, generator: torch.Generator | None) -> Index | None:
        """Return independent draws, if there is a faster way than :meth:`from_uniforms`."""
        return None

    def shown(self, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the values of f at a copy of points as f sees them, which it may write into."""
        return values(self.seen(x.clone()))

    def log_prob(self, index: Index) -> PerDraw:
        """Return log q(x), which can be differentiated any number of times."""
        raise NotImplementedError

    def log_prob_at(self, x: Tensor) -> PerDraw:
        """Return log q(x) for the sake of its derivatives, of any order."""
        return self.log_prob(self.index(x))

    def log_conditionals(self, index: Index) -> Float[Tensor, "m *batch d k"]:
        """Return log q(x_i = k | x_<i) for all i and k; one row where the draws share it."""
        raise NotImplementedError

    def is_drawn(self, index: Index) -> Bool[Tensor, "n *batch d k"]:
        """Return for every category whether it is the one drawn; unlike one_hot, vmap maps it."""
        return index.unsqueeze(-1) == torch.arange(self.k, device=index.device)

    def score(
        self, index: Index
    ) -> tuple[Float[Tensor, "m *batch d k"], Float[Tensor, "n *batch d k"]]:
        """Return the log-probabilities of all categories given the earlier variables, 0 where one
        is impossible, and the score in their logits, a constant: 1[x_i = k] - q(k | x_<i)."""
        table = self.log_conditionals(index)
        constant = table.detach()
        score = self.is_drawn(index).to(constant.dtype) - constant.exp()
        return table.masked_fill(constant == -torch.inf, 0.0), score

    def squared_norm(self, gradient: Table) -> Float[Tensor, "*lead"]:
        """Return the squared norm of a gradient in the logits."""
        return gradient.square().sum((-1, -2))

    def seen(self, x: Tensor) -> Tensor:
        """Return points as f sees them, without output dimensions: ``[n, *batch, *event]``."""
        if self.outputs == 0:
            return x
        return x.reshape(x.shape[:1] + self.seen_batch + self.event_shape)


class IndependentFactors(Factors):
    """Independent variables, by a table of log-probabilities or of probabilities.

    A category is possible if its probability is positive. f never sees the others, and they get no
    gradient.

    Attributes:
        is_logits: whether q was given by its logits.
        table: what q was given by: normalised logits, or probabilities.
        is_finite: whether the table is known to hold no infinity.
    """

    kinds = frozenset(Kind) - {Kind.COUNTS, Kind.STRUCTURED}

    def __init__(
        self,
        base: Any,
        batch_shape: Size,
        event_shape: Size,
        outputs: int = 0,
        validate: bool = True,
    ) -> None:
        super().__init__(batch_shape, event_shape, outputs, validate)
        self.grad_mode = torch.is_grad_enabled()
        form = given_form(base)
        check_dense(f"q: the parameter of {type(base).__name__}", given_parameter(base))
        self.is_logits = form != "probs"
        if form == "unknown":
            given = unclamped_logits(base, validate)
        else:
            given = widened(base.logits if self.is_logits else base.probs)
        if self.is_logits and given is not base.logits and not isinstance(base, Bernoulli):
            given = given.log_softmax(-1)  # torch's were rounded to 16 bits, or clamped
        self.table = table = self._by_variable(given)
        self.real = table.dtype
        self.device = table.device
        self._set_form(base, table)
        if self.d == 0 or self.k == 0:
            raise ValueError(
                "q: a distribution needs at least one variable and one category, but "
                f"{type(base).__name__} has event shape {tuple(event_shape)}."
            )
        self.is_finite = False  # known to be
        if can_inspect(validate, table):
            total = table.detach().sum().item()
            self.is_finite = isfinite(total)
            if isnan(total):
                self._refuse_invalid(base)

    def _set_form(self, base: Any, table: Tensor) -> None:
        sizes = getattr(base, "cardinalities", None)
        self.k = table.shape[-1]
        self.d = table.shape[-2]
        self.kind = Kind.INDEX if sizes is None else Kind.MIXED
        self.cardinalities = (self.k,) * self.d if sizes is None else sizes * (self.d // len(sizes))
        self.dtype = torch.int64

    def _by_variable(self, parameter: Tensor) -> Float[Tensor, "*batch d k"]:
        k = parameter.shape[-1]
        d = prod(self.event_shape) // (k if self.one_hot else 1)
        return parameter.reshape((*self.batch_shape, d, k))

    def _refuse_invalid(self, base: Distribution) -> None:
        given = given_parameter(base).shape
        is_bad = self.probs.detach().isnan().any(-1)
        bad = is_bad.reshape(given if self.kind == Kind.BITS else given[:-1]).nonzero()
        if len(bad):  # else the sum of the logits was that of inf and -inf
            raise ValueError(
                f"q: {type(base).__name__} has no valid probabilities at index "
                f"{tuple(bad[0].tolist())}: its parameters are NaN there, or every category is "
                "masked (logit -inf). Check what computes them, and leave each variable at least "
                "one category."
            )

    @lazy
    def probs(self) -> Float[Tensor, "*batch d k"]:
        """p_i(k), differentiable in the parameters of q."""
        if self.is_logits:
            return self.table.softmax(-1)
        # As its probability grows, an impossible category takes it from the possible ones. Masking
        # its own entry alone would keep that part of its derivative.
        probs = self.table.masked_fill(self.table.detach() == 0, 0.0)
        return probs / probs.sum(-1, keepdim=True)

    @lazy
    def p(self) -> Float[Tensor, "*batch d k"]:
        """p_i(k), a constant."""
        return self.probs.detach()

    @lazy
    def possible(self) -> Bool[Tensor, "*batch d k"]:
        """Whether a category can be drawn."""
        return self.p > 0

    @lazy
    def log_probs(self) -> Float[Tensor, "*batch d k"]:
        """log p_i(k), differentiable; -inf without a gradient for impossible categories."""
        return self.table if self.is_logits else safe_log(self.probs)

    @lazy
    def logits(self) -> Float[Tensor, "*batch d k"]:
        """log p_i(k), differentiable; 0 without a gradient for impossible categories."""
        return torch.where(self.possible, self.log_probs, 0.0)

    @lazy
    def ordered(self) -> Ordered:
        """The distribution as one of dependent variables, all in one block."""
        return IndependentBlocks(self.log_probs, self.cardinalities)

    # Points and categories

    def assign(self, flat: Tensor, variable: Tensor, category: Tensor) -> Tensor:
        """Set one variable of every element of ``flat`` to a category, in place if possible; they
        are ``[rows, *#batch]`` and ``[rows, *batch]``."""
        put = flat.scatter if inside_functorch() else flat.scatter_
        place = variable.expand(category.shape).unsqueeze(-1)
        return put(-1, place, category.to(flat.dtype).unsqueeze(-1))

    def from_uniforms(self, u: Float[Tensor, "*lead d"]) -> Int64[Tensor, "*lead d"]:
        return inverse_cdf(self.p, u)

    def log_prob(self, index: Index) -> PerDraw:
        table = self.log_probs.expand(index.shape[:1] + self.log_probs.shape)
        return table.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)

    def log_conditionals(self, index: Index) -> Float[Tensor, "1 *batch d k"]:
        return self.log_probs.unsqueeze(0)

    # Means and derivatives

    def mean(self, table: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d"]:
        """Return the mean of a table over the categories of each variable, differentiable."""
        return (self.probs * table).sum(-1)

    def with_gradient(self, gradient: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch"]:
        """Return zero with this gradient in the logits of q, whatever q was given by.

        It is that of sum_k g_k log p_k. Impossible categories get none, and that of the others is
        centred, so that the normaliser drops out.
        """
        surrogate = (centred(gradient.detach(), self.possible) * self.logits).sum((-1, -2))
        return surrogate - surrogate.detach()

    def in_logits(self, gradient: Float[Tensor, "n *batch d k"]) -> Float[Tensor, "n *batch d k"]:
        """Return the gradient in the logits for a gradient in the log-probabilities."""
        return gradient - self.p * gradient.sum(-1, keepdim=True)

    def of_mean(self, slope: Float[Tensor, "n *batch d k"]) -> Float[Tensor, "n *batch d k"]:
        """Return the gradient of slope . p in the logits, with the slope held fixed."""
        return self.in_logits(slope * self.p)


class RelaxableFactors(IndependentFactors):
    """Bits or one-hot vectors: points are reals, in which f may have a derivative."""

    kinds = frozenset({Kind.BITS, Kind.ONE_HOT})

    @lazy
    def mean_point(self) -> Tensor:
        """The mean of a point, differentiable: its probabilities, ``[*batch, *event]``."""
        return self.to_point(self.probs)

    def to_point(self, table: Table) -> Tensor:
        """Return a number per category as a point ``[*lead, *event]``."""
        return self.shaped(table)

    def by_category(self, slope: Tensor) -> Float[Tensor, "n *batch d k"]:
        """Return the derivative of f in points, per category."""
        return self.flat(slope).to(self.real)

    def drawn(self, x: Tensor) -> Float[Tensor, "n *batch d k"]:
        """Return points as a table of ones and zeros."""
        return self.flat(x).to(self.real)

    def coordinates(self, x: Tensor) -> Float[Tensor, "n *batch d w"]:
        """Return points by coordinates of the logits: k numbers per one-hot vector, 1 per bit.

        With them and :meth:`coordinates_of_q`, the formulas for both are the same: J(p) is
        diag(p) - p p^T, for a bit p (1 - p).
        """
        lead, width = x.shape[: x.dim() - len(self.event_shape)], prod(self.event_shape) // self.d
        return x.reshape(*lead, self.d, width).to(self.real)

    def from_coordinates(self, table: Float[Tensor, "n *batch d w"]) -> Tensor:
        """Return points by their coordinates, in a new tensor."""
        return table.reshape(*table.shape[:-2], *self.event_shape).to(self.dtype, copy=True)

    def coordinates_of_q(self) -> tuple[Tensor, Tensor]:
        """Return the probabilities, a constant, and the logits, differentiable and 0 for impossible
        categories."""
        return self.p, self.logits

    def through(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return the points x exactly, with the derivative of the points ``mean``."""
        change = (mean - mean.detach()).to(self.dtype)
        return x + (change if mean.dim() == x.dim() else beside(change, x.shape[0]))

    def weighted(self, x: Tensor, straight: Weight, outer: Weight) -> Tensor:
        r"""Return the points x, through which the slope G of f is differentiated as
        :math:`(a\, J(p) + b\, (x - p)(x - p)^\top)\, G` in the logits of each variable.

        J(p) is the derivative of the probabilities; a is ``straight`` and b is ``outer``, numbers
        or tensors that broadcast to ``[*batch, d]``.
        """
        if isinstance(straight, Tensor) and isinstance(outer, Tensor):
            straight, outer = straight.unsqueeze(-1), outer.unsqueeze(-1)
        above = self.drawn(x) - self.p
        mean = straight * times_jacobian(self.p, self.logits)
        mean = mean + outer * above * (above * self.logits).sum(-1, keepdim=True)
        return self.through(x, self.to_point(mean))


class OneHots(RelaxableFactors):
    """One-hot vectors."""

    kinds = frozenset({Kind.ONE_HOT})
    one_hot = True

    def _set_form(self, base: Any, table: Tensor) -> None:
        super()._set_form(base, table)
        self.kind = Kind.ONE_HOT
        self.dtype = given_parameter(base).dtype

    def assign(self, flat: Tensor, variable: Tensor, category: Tensor) -> Tensor:
        put = flat.scatter if inside_functorch() else flat.scatter_
        row = one_hots(category.unsqueeze(-1), self.k, flat.dtype)
        place = variable.expand(category.shape)[..., None, None]
        return put(-2, place.expand(row.shape), row)


class Bits(RelaxableFactors):
    """Bits. They have one number each, so that most of the arithmetic takes half the time.

    Attributes:
        table: ``[*batch, d]``, the log-odds or the probability of 1.
    """

    kinds = frozenset({Kind.BITS})

    def _set_form(self, base: Any, table: Tensor) -> None:
        self.kind = Kind.BITS
        self.k = 2
        self.d = table.shape[-1]
        self.cardinalities = (2,) * self.d
        self.dtype = given_parameter(base).dtype

    def _by_variable(self, parameter: Tensor) -> Float[Tensor, "*batch d"]:
        if len(self.event_shape) == 1 and not self.outputs:
            return parameter
        return parameter.reshape((*self.batch_shape, prod(self.event_shape)))

    @lazy
    def one(self) -> Float[Tensor, "*batch d"]:
        """The probability of 1, differentiable; without a gradient where it is certain."""
        if self.is_logits:
            return self.table.sigmoid()
        constant = self.table.detach()
        return torch.where((constant > 0) & (constant < 1), self.table, constant)

    @lazy
    def p1(self) -> Float[Tensor, "*batch d"]:
        """The probability of 1, a constant."""
        return self.one.detach()

    @lazy
    def p0(self) -> Float[Tensor, "*batch d"]:
        """The probability of 0, a constant."""
        return (-self.table.detach()).sigmoid() if self.is_logits else 1 - self.p1

    @lazy
    def mean_point(self) -> Tensor:
        return self.shaped(self.one)

    @lazy
    def certain(self) -> Bool[Tensor, "*batch d"] | None:
        """Whether only one value is possible; None if that is so of no bit."""
        if self.is_logits:
            return None if self.is_finite else self.table.detach().isinf()
        return (self.p0 == 0) | (self.p1 == 0)

    @lazy
    def odds(self) -> Float[Tensor, "*batch d"]:
        """The log-odds, differentiable; 0 without a gradient for a bit that is certain."""
        certain = self.certain
        return self.table if certain is None else self.log_odds.masked_fill(certain, 0.0)

    @lazy
    def log_odds(self) -> Float[Tensor, "*batch d"]:
        """The log-odds, differentiable; infinite without a gradient for a bit that is certain."""
        return self.table if self.is_logits else safe_log(self.one) - safe_log(1 - self.one)

    @lazy
    def probs(self) -> Float[Tensor, "*batch d 2"]:
        if self.is_logits:
            return torch.stack([-self.table, self.table], -1).sigmoid()
        return torch.stack([1 - self.one, self.one], -1)

    @lazy
    def log_probs(self) -> Float[Tensor, "*batch d 2"]:
        if not self.is_logits:
            return safe_log(self.probs)
        return logsigmoid(torch.stack([-self.table, self.table], -1))

    def from_uniforms(self, u: Float[Tensor, "*lead d"]) -> Int64[Tensor, "*lead d"]:
        # Not even u = 1 draws an impossible value.
        return (u >= torch.where(self.p1 > 0, self.p0, torch.inf)).long()

    def draw(self, u: Float[Tensor, "*lead d"]) -> Tensor:
        """Return the points that the inverse CDF makes from uniforms below 1, in their place."""
        if u.dtype != self.dtype or self.is_transformed:
            return self.shaped((u >= self.p0).to(self.dtype))
        return self.shaped(u.ge_(self.p0))  # many times faster than by way of bools

    def log_prob(self, index: Index) -> PerDraw:
        zero, one = self.log_probs.unbind(-1)
        return torch.where(index.bool(), one, zero).sum(-1)

    def log_prob_at(self, x: Tensor) -> PerDraw:
        # A product is many times faster than the choice between two numbers, but more is rounded.
        bits = self.flat(x).to(self.real)
        return (bits * self.odds).sum(-1) - softplus(self.odds).sum(-1)

    def mean(self, table: Float[Tensor, "*batch d 2"]) -> Float[Tensor, "*batch d"]:
        dtype = torch.promote_types(table.dtype, self.real)  # f may be wider than q, or narrower
        zero, one = table.to(dtype).unbind(-1)
        return torch.lerp(zero, one, self.one.to(dtype))

    def with_gradient(self, gradient: Float[Tensor, "*batch d 2"]) -> Float[Tensor, "*batch"]:
        zero, one = gradient.detach().unbind(-1)
        return self.with_odds_gradient((one - zero) / 2)

    def with_odds_gradient(self, gradient: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """Return zero with this gradient in the log-odds."""
        surrogate = (gradient.detach() * self.odds).sum(-1)
        return surrogate - surrogate.detach()

    def squared_norm(self, gradient: Float[Tensor, "*lead d 2"]) -> Float[Tensor, "*lead"]:
        return gradient[..., 1].square().sum(-1)

    def to_point(self, table: Float[Tensor, "*lead d 2"]) -> Tensor:
        return self.shaped(table[..., 1])

    def by_category(self, slope: Tensor) -> Float[Tensor, "n *batch d 2"]:
        flat = self.flat(slope).to(self.real)
        return torch.stack([torch.zeros_like(flat), flat], -1)

    def drawn(self, x: Tensor) -> Float[Tensor, "n *batch d 2"]:
        flat = self.flat(x).to(self.real)
        return torch.stack([1 - flat, flat], -1)

    def coordinates_of_q(self) -> tuple[Tensor, Tensor]:
        return self.p1.unsqueeze(-1), self.odds.unsqueeze(-1)

    def weighted(self, x: Tensor, straight: Weight, outer: Weight) -> Tensor:
        # With e = |x - p|: p (1 - p) = e (1 - e), and (x - p)^2 = e^2.
        e = (self.flat(x).to(self.real) - self.p1).abs()
        weight = straight * e if straight is outer else e * (straight + (outer - straight) * e)
        return self.with_weights(x, weight)

    def with_weights(self, x: Tensor, weight: Float[Tensor, "n *batch d"]) -> Tensor:
        """Return the points x, in which the derivative of a bit is a weight times its log-odds'."""
        mean = weight * beside(self.odds - self.odds.detach(), x.shape[0])
        return x + self.shaped(mean).to(self.dtype)


class DependentFactors(Factors):
    """Variables that depend on each other, by their conditionals.

    Attributes:
        ordered: the distribution, with the output dimensions in its batch.
        drawn: the points that were drawn, if the pass that drew them scored them as well.
        scored: their category numbers and scores.
    """

    kinds = frozenset({Kind.STRUCTURED})
    kind = Kind.STRUCTURED
    drawn: Tensor | None = None
    scored: Scored

    def __init__(self, q: Ordered, outputs: int = 0, validate: bool = True) -> None:
        self.ordered = Rearranged(q, 0, outputs) if outputs else q
        self.form = q.form or PointForm(Kind.INDEX, q.event_shape, torch.int64)
        super().__init__(q.batch_shape, self.form.event_shape, outputs, validate)
        self.one_hot = self.form.kind == Kind.ONE_HOT
        self.cardinalities = q.cardinalities
        self.d = len(q.cardinalities)
        self.k = max(q.cardinalities)
        self.dtype = self.form.dtype
        self.real = torch.promote_types(q.real, torch.float32)
        self.device = q.device
        self.q = q

    def draw(self, u: Float[Tensor, "n *batch d"]) -> Tensor:
        if self.is_transformed or not (self.ordered.one_pass and torch.is_grad_enabled()):
            return super().draw(u)
        self.scored = self.ordered.scored(u, self.validate)
        self.drawn = self.point(self.scored.x)
        return self.drawn

    def shown(self, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
        if x is not self.drawn:
            return super().shown(x, values)
        # While f runs, q.log_prob knows the draws. Later q may have other parameters.
        points: Any = self.seen(x.clone())
        points.drawn = self.q, self.scored.log_prob
        try:
            return values(points)
        finally:
            points.drawn = None

    def index(self, x: Tensor) -> Index:
        if x is self.drawn:
            return self.scored.x
        return super().index(x)

    def from_uniforms(self, u: Float[Tensor, "n *batch d"]) -> Index:
        return self.ordered.from_uniforms(u, self.validate)

    def direct_draws(self, n: int, generator: torch.Generator | None) -> Index | None:
        return self.ordered.direct_draws(n, generator)

    def log_prob(self, index: Index) -> PerDraw:
        if self.drawn is not None and index is self.scored.x:
            return self.scored.log_prob
        return self.ordered.log_prob_of_rows(index, self.validate)

    def log_conditionals(self, index: Index) -> Float[Tensor, "n *batch d k"]:
        if self.drawn is not None and index is self.scored.x:
            return self.scored.conditionals.log_probs
        return self.ordered.log_conditionals(index, self.validate)

    def squared_norm(self, gradient: Table) -> Float[Tensor, "*lead"]:
        is_bits = self.form.kind == Kind.BITS  # a bit has one logit
        return super().squared_norm(gradient[..., 1:] if is_bits else gradient)


def base_distribution(q: Distribution) -> Distribution:
    """Return the distribution inside all ``Independent``."""
    while isinstance(q, Independent):
        q = q.base_dist
    return q


# The factors of a type, made from (base, batch_shape, event_shape, outputs, validate). Others of
# catlog add themselves.
READERS: dict[type, Callable[..., Factors]] = {
    Bernoulli: Bits,
    Categorical: IndependentFactors,
    OneHotCategorical: OneHots,
}


def independent(q: Distribution, outputs: int = 0, validate: bool = True) -> Factors | None:
    """View ``q`` as independent factors; None if it is no such distribution.

    >>> from torch.distributions import Independent
    >>> q = independent(Independent(Bernoulli(logits=torch.zeros(5, 3)), 1))
    >>> str(q.kind), q.d, q.k, tuple(q.batch_shape)
    ('bits', 3, 2, (5,))
    """
    base = base_distribution(q)
    for kind, reader in READERS.items():
        if isinstance(base, kind):
            return reader(base, q.batch_shape, q.event_shape, outputs, validate)
    return None


def given_form(q: Any) -> Literal["logits", "probs", "unknown"]:
    """Return whether q was given by its logits or by its probabilities.

    torch caches the other form once it is read. Its ``expand`` copies both, probabilities first,
    and calls the logits the parameter, whichever was given.
    """
    q = getattr(q, "_categorical", q)
    if "probs" not in q.__dict__:
        return "logits"
    if "logits" not in q.__dict__ or getattr(q, "_param", None) is q.__dict__["probs"]:
        return "probs"
    if torch.compiler.is_compiling():  # where the order of attributes is unknown
        return "unknown"
    first = next(name for name in q.__dict__ if name in ("probs", "logits"))
    return "logits" if first == "logits" else "unknown"


def given_parameter(q: Any) -> Tensor:
    """Return what q was given by; points have its dtype."""
    parameter: Tensor = getattr(q, "_categorical", q)._param
    return parameter


def unclamped_logits(q: Any, validate: bool) -> Tensor:
    """Return the logits of a q that has both forms.

    torch computes logits from probabilities that it clamps. Where it did, logits make impossible
    categories possible, and give categories below the clamp no gradient. There, they are computed
    from the probabilities.
    """
    probs, logits = widened(q.probs), widened(q.logits)
    eps = torch.finfo(given_parameter(q).dtype).eps  # what torch clamps to
    lowest = log(eps) * (1 + 4 * eps)
    is_bits = isinstance(q, Bernoulli)
    if is_bits:
        rare = torch.minimum(probs, 1 - probs)
        clamped = (rare < eps) & (logits.abs() <= -lowest)
    else:
        clamped = ((probs < eps) & (logits >= lowest)).any(-1, keepdim=True)
    costs_nothing = logits.device.type == "cpu"
    if can_inspect(validate or costs_nothing, clamped) and not bool(clamped.any()):
        return logits  # without the graph of cached probabilities, which may be gone
    by_probs = safe_log(probs) - safe_log(1 - probs) if is_bits else safe_log(probs)
    return torch.where(clamped, by_probs, logits)
