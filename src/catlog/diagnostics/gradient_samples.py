"""One gradient, estimated again and again: repeats as a leading batch dimension where the law allows it, else one by one."""

import time
from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from ..distributions.categoricals import Categoricals
from ..distributions.conditionals import view
from ..distributions.factors import given_form, was_clamped
from ..distributions.ordered import Ordered
from ..estimator import Estimator, Function, Kind
from ..estimators import Exact
from ..sampling.draw import draw

Law = Distribution | Callable[..., Distribution]
Clock = Callable[[], float]


class GradientSampler:
    r"""The gradient of :math:`\sum_b \mathbb{E}[f]_b` in the parameters of a law, to be estimated many times.

    q: a law, or a callable that makes it of ``parameters`` with a fresh graph at each call.
    parameters: leaves with ``requires_grad``; None: those that the law was computed from or, where it was computed from none,
        its own logits (or probabilities).

    Of independent variables, repeats are one more batch dimension of the law's own logits, and the chain rule to the parameters
    follows; f sees them as further draws. Of structured laws they are a batch dimension of the parameters, where
    the callable takes one. Where neither goes, and where f depends on the parameters itself, repeats are a loop.
    """

    def __init__(self, f: Function, q: Law, parameters: Sequence[Tensor] | None = None) -> None:
        self.f = f
        if isinstance(q, Distribution):
            self.q = q
            self.law: Callable[..., Distribution] = lambda *_: self.q
            self.fresh = False
            leaves = _graph_leaves(self._graph()) if parameters is None else list(parameters)
            if not leaves:
                leaves, self.q = _own_leaf(q)
        else:
            if parameters is None:
                raise ValueError(
                    "parameters: q is a callable, so the tensors to call it with are needed."
                )
            leaves, self.law, self.fresh = list(parameters), q, True
            self.q = q(*leaves)
        if not leaves or not all(
            isinstance(each, Tensor) and each.requires_grad for each in leaves
        ):
            raise ValueError(
                "parameters: tensors with requires_grad=True are needed, to take the gradient in."
            )
        self.parameters = tuple(leaves)
        self.view = view(self.q)
        self.kind = _kind(self.q)
        self.own = None if isinstance(self.q, Ordered) else _parameter(self.q)
        used = _graph_leaves(self._graph())
        if not any(each is leaf for each in self.parameters for leaf in used):
            raise ValueError(
                "parameters: q does not depend on any of them (or was made of detached ones)."
            )
        self.leaves_of_f = self._leaves_of_f()
        self.direct = not any(each is p for each in self.leaves_of_f for p in self.parameters)
        self.leaves_of_f = [
            each for each in self.leaves_of_f if all(each is not p for p in self.parameters)
        ]
        self.batched = (
            self.direct
            and self.own is None
            and self.fresh
            and _takes_batches(self.law, self.parameters)
        )

    @property
    def vectorised(self) -> bool:
        """Whether many repeats are one call."""
        return self.direct and (self.own is not None or self.batched)

    @property
    def points(self) -> int:
        return prod(self.view.cardinalities)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.view.device).manual_seed(seed)

    def gradients(
        self, E: Estimator, repeats: int, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "repeats parameters"], Float[Tensor, "repeats logits"] | None]:
        """Independent estimates: in the parameters, and in the law's own logits where it has them."""
        if not self.vectorised:
            return torch.stack([self._one(E, generator) for _ in range(repeats)]), None
        value, leaves = self._together(E, repeats, generator)
        slopes = _slope(value, leaves)
        return (
            (_flat(slopes, 1), None)
            if self.own is None
            else (self._chained(slopes[0]), slopes[0].flatten(1))
        )

    def value(
        self, E: Estimator, repeats: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """The estimates themselves, to differentiate in E's own parameters (where repeats are a loop: one)."""
        if self.vectorised:
            return self._together(E, repeats, generator)[0]
        return E(self.f, self.law(*self.parameters), generator=generator)

    def _together(
        self, E: Estimator, repeats: int, generator: torch.Generator | None
    ) -> tuple[Tensor, list[Tensor]]:
        folded = _FoldedTable(self.f) if hasattr(self.f, "neighbours") else _RepeatsAsDraws(self.f)
        sources = self.parameters if self.own is None else (self.own,)
        leaves = [
            each.detach().expand(repeats, *each.shape).clone().requires_grad_() for each in sources
        ]
        q = self.law(*leaves) if self.own is None else _rebuilt(self.q, leaves[0])
        return E(folded, q, generator=generator), leaves

    def timer(
        self,
        E: Estimator,
        clock: Clock = time.perf_counter,
        generator: torch.Generator | None = None,
    ) -> Callable[[], tuple[float, Float[Tensor, "parameters"]]]:
        """A function that does what a training step does but for the optimiser: the seconds that took, and the gradient.

        That is the law (where a callable makes it), the estimate, and its gradient in all that has one: the parameters, f's own
        and the estimator's own.
        """
        own = (
            [each for each in E.parameters() if each.requires_grad]
            if isinstance(E, nn.Module)
            else []
        )
        leaves = [*self.parameters, *self.leaves_of_f, *own]
        cuda = self.view.device.type == "cuda"

        def step() -> tuple[float, Tensor]:
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            value = E(self.f, self.law(*self.parameters), generator=generator)
            slopes = _slope(value, leaves, retain=not self.fresh)
            if cuda:
                torch.cuda.synchronize()
            return clock() - start, _flat(slopes[: len(self.parameters)], 0)

        return step

    def exact(self, limit: int) -> Tensor | None:
        """The gradient by enumeration, or None where the law has more than ``limit`` points."""
        if self.points > limit:
            return None
        value = Exact(limit=limit)(self.f, self.law(*self.parameters))
        return _flat(_slope(value, self.parameters, retain=not self.fresh), 0)

    def _one(self, E: Estimator, generator: torch.Generator | None) -> Tensor:
        value = E(self.f, self.law(*self.parameters), generator=generator)
        return _flat(_slope(value, self.parameters, retain=not self.fresh), 0)

    def _chained(
        self, by_logit: Float[Tensor, "repeats *shape"]
    ) -> Float[Tensor, "repeats parameters"]:
        """The chain rule from the law's own logits to the parameters, for all repeats at once."""
        assert self.own is not None
        if len(self.parameters) == 1 and self.own is self.parameters[0]:
            return by_logit.flatten(1)
        try:
            chained = torch.autograd.grad(
                self.own,
                self.parameters,
                by_logit,
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError:  # an operation that torch.vmap does not know
            rows = [_slope(self.own, self.parameters, each, retain=True) for each in by_logit]
            return torch.stack([_flat(row, 0) for row in rows])
        filled = [
            by_logit.new_zeros(by_logit.shape[:1] + p.shape) if each is None else each
            for p, each in zip(self.parameters, chained, strict=True)
        ]
        return _flat(filled, 1)

    def _graph(self) -> Tensor:
        """Something that is computed from all of the law's parameters."""
        with torch.enable_grad():
            return (
                self.q.log_prob(self.q.sample())
                if isinstance(self.q, Ordered)
                else _parameter(self.q)
            )

    def _leaves_of_f(self) -> list[Tensor]:
        """The leaves that f's values are computed from, beside x."""
        with torch.enable_grad():
            fx = self.f(draw(self.view, 1, generator=self.generator(0)))
        return (
            _graph_leaves(fx) if isinstance(fx, Tensor) else []
        )  # if it is no tensor, the estimator says so


class _RepeatsAsDraws:
    """f, with repeats (the second dimension) shown to it as further draws (the first)."""

    def __init__(self, f: Function) -> None:
        self.f = f

    def __call__(self, x: Tensor) -> Tensor:
        fx = self.f(x.flatten(0, 1))
        return (
            fx.unflatten(0, x.shape[:2])
            if isinstance(fx, Tensor) and fx.shape[:1] == (x.shape[0] * x.shape[1],)
            else fx
        )


class _FoldedTable(_RepeatsAsDraws):
    """The same for a function that knows its own table."""

    @property
    def table_checked(self) -> bool:
        """Whether f's table was compared with f: noted on f, which outlives this view of it."""
        return getattr(self.f, "table_checked", False)

    @table_checked.setter
    def table_checked(self, checked: bool) -> None:
        object.__setattr__(self.f, "table_checked", checked)

    def neighbours(self, x: Tensor, variables: Tensor | None = None) -> Tensor:
        given = () if variables is None else (variables.flatten(0, 1),)
        table: Tensor = self.f.neighbours(x.flatten(0, 1), *given)  # type: ignore[attr-defined]
        return table.unflatten(0, x.shape[:2])


def _slope(
    value: Tensor, leaves: Sequence[Tensor], weight: Tensor | None = None, retain: bool = False
) -> list[Tensor]:
    """The gradient of ``value.sum()`` (or of the weighted sum), zeros where there is none."""
    if not value.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    total = value.sum() if weight is None else (value * weight).sum()
    found = torch.autograd.grad(total, leaves, retain_graph=retain, allow_unused=True)
    return [
        torch.zeros_like(leaf) if each is None else each
        for leaf, each in zip(leaves, found, strict=True)
    ]


def _flat(tensors: Sequence[Tensor], lead: int) -> Tensor:
    return torch.cat(
        [each.flatten(lead) if each.dim() > lead else each.unsqueeze(-1) for each in tensors], -1
    )


def _graph_leaves(value: Tensor) -> list[Tensor]:
    """The leaves that a tensor was computed from."""
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    seen, stack, found = {value.grad_fn}, [value.grad_fn], []
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for nearer, _ in node.next_functions:
            if nearer is not None and nearer not in seen:
                seen.add(nearer)
                stack.append(nearer)
    return found


def _base(q: Distribution) -> Distribution:
    while isinstance(q, Independent):
        q = q.base_dist
    return q


def _kind(q: Distribution) -> Kind:
    """Return what an estimator's ``supports`` calls q."""
    if isinstance(q, Ordered):
        return Kind.STRUCTURED
    return Kind.MIXED if isinstance(_base(q), Categoricals) else view(q, validate=False).kind


def _parameter(q: Distribution) -> Tensor:
    """The tensor that a law of independent variables was given by: logits, or probabilities."""
    view(q, validate=False)  # says which laws there are, where this is none
    base = _base(q)
    inner = base._categorical if isinstance(base, OneHotCategorical) else base
    assert isinstance(inner, Bernoulli | Categorical | Categoricals)
    parameter: Tensor = getattr(inner, _form(inner))
    return parameter


def _form(q: Bernoulli | Categorical | Categoricals) -> str:
    """Whether q can be rebuilt by its "logits" or has to be by its "probs"."""
    form = given_form(q)
    if form == "unknown":
        return "probs" if bool(was_clamped(q).any()) else "logits"
    return form


def _rebuilt(q: Distribution, parameter: Tensor) -> Distribution:
    """The same law by another tensor of logits (or probabilities), which may have further leading dimensions.

    torch normalises the logits of a Categorical, and here for a second time, which changes neither them nor gradients.
    """
    if isinstance(q, Independent):
        return Independent(
            _rebuilt(q.base_dist, parameter), q.reinterpreted_batch_ndims, validate_args=False
        )
    if isinstance(q, Categoricals):
        return Categoricals(parameter, q.cardinalities, validate_args=False)
    assert isinstance(q, Bernoulli | Categorical | OneHotCategorical)
    inner = q._categorical if isinstance(q, OneHotCategorical) else q
    return type(q)(**{_form(inner): parameter}, validate_args=False)


def _own_leaf(q: Distribution) -> tuple[list[Tensor], Distribution]:
    if isinstance(q, Ordered):
        raise ValueError(
            "q: nothing that it was made of has requires_grad=True, so it has no gradient to estimate."
        )
    leaf = _parameter(q).detach().clone().requires_grad_()
    return [leaf], _rebuilt(q, leaf)


def _takes_batches(law: Callable[..., Distribution], parameters: Sequence[Tensor]) -> bool:
    """Whether parameters with one more dimension in front give one more batch dimension: tried on two different sets of them."""
    generator = torch.Generator(parameters[0].device).manual_seed(0)
    with torch.no_grad():
        q = law(*parameters)
        noise = [
            torch.randn((2, *each.shape), dtype=each.dtype, device=each.device, generator=generator)
            / 8
            for each in parameters
        ]
        several = [each + more for each, more in zip(parameters, noise, strict=True)]
        x = draw(view(q), 1, generator=generator)[0]
        try:
            both = law(*several)
            if both.batch_shape != (2, *q.batch_shape) or both.event_shape != q.event_shape:
                return False
            together = both.log_prob(x.expand(2, *x.shape))
            apart = torch.stack([law(*(each[i] for each in several)).log_prob(x) for i in range(2)])
        except Exception:  # it was not written for that; what it raises is its own affair
            return False
    return bool(torch.allclose(together, apart, rtol=1e-4))
