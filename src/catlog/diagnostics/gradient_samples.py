"""Repeated estimates of one gradient: batched if the distribution allows it, else one by one."""

import time
from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ..core.checks import check_function
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.left_alone import versions_kept
from ..core.ordered import Ordered
from ..core.view import view
from ..core.conversion import converted
from ..estimators import Exact
from ..evaluation.evaluate import evaluate
from ..evaluation.known_mean import known_mean
from ..functions.known import Known
from ..sampling.draw import draw
from .gradients import check_trainable, flat, gradients_in, graph_leaves, listed, normal_like
from .kinds_of_calls import Result, of_each_kind, shares_of_kinds
from .rebuilding import detached_copy, kind_of, parameter_of, rebuilt
from .repeats_as_draws import RepeatsAsDraws, TableOfRepeats

Clock = Callable[[], float]
DistributionLike = Distribution | Callable[..., Distribution]
Loss = Callable[[Tensor], Tensor]
Penalty = Callable[[Distribution], Tensor]
Step = Callable[[Estimator], object]


class GradientSampler:
    r"""Repeated estimates of the gradient of :math:`\sum_b \mathbb{E}[f]_b` in parameters of q.

    For independent variables, repeats are stacked as an extra batch dimension of the logits and
    then back-propagated to the parameters; f sees them as extra draws. Structured distributions are
    batched over their parameters, if q is a callable that supports it. Otherwise, and if f itself
    depends on the parameters, repeats run in a loop.

    Args:
        f: The function, or a :class:`catlog.functions.Known`: then estimators get ``f.under(q)``.
        q: A distribution, or a callable that builds it from ``parameters``, with a new graph at
            every call.
        parameters: Leaves with ``requires_grad``; None: those that q was computed from or, if there
            are none, the logits (or probabilities) of q.
        loss: Applied to every estimate of E[f], element by element, before the sum over the batch.
        penalty: What is added to the loss of each batch element, as a function of q.
        clock: A function that returns seconds.

    Attributes:
        f: The function as an estimator gets it.
        q: The distribution.
        view: The distribution as estimators see it.
        kind: The kind of distribution, as estimators name it.
        parameters: The tensors to take the gradient in.
        leaves_of_f: Other tensors that f's values are computed from.
        own_parameter: The logits (or probabilities) of q; None for structured distributions.
        rebuilds_q: Whether a step includes building q.
        f_is_independent: Whether f does not depend on the parameters.
        known: f as it was given, if it has a part with a known mean.
        has_loss: Whether a loss is applied to the estimates.
        knows_mean: Whether f knows its mean under q, so that Exact needs no evaluation.
    """

    def __init__(
        self,
        f: Function,
        q: DistributionLike,
        parameters: Tensor | Sequence[Tensor] | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        check_function(f)
        self.clock = clock
        self.penalty = penalty
        self.has_loss = loss is not None
        self._loss = loss
        self.rebuilds_q = not isinstance(converted(q), Distribution)
        self.make_q, self.q, leaves = _sources(q, parameters)
        _check_parameters(leaves, self.q)
        self.parameters = tuple(leaves)
        self.known = f if isinstance(f, Known) else None
        self.f = f if self.known is None else self.known.under(self.q)
        self.view = view(self.q)
        if self.view.batch_size == 0:
            raise ValueError(
                f"q: its batch {tuple(self.q.batch_shape)} is empty, so there is no gradient to "
                "measure. Give a batch with at least one distribution."
            )
        self.kind = kind_of(self.q)
        self.own_parameter = None if isinstance(self.q, Ordered) else parameter_of(self.q)
        with torch.no_grad():
            self.knows_mean = known_mean(self.f, self.q, self.view) is not None
        leaves_of_f = self._leaves_of_f()
        self.leaves_of_f = [leaf for leaf in leaves_of_f if not _is_among(leaf, leaves)]
        self.f_is_independent = len(self.leaves_of_f) == len(leaves_of_f)
        self.vectorised = self.f_is_independent and (
            self.own_parameter is not None
            or (self.rebuilds_q and _takes_batches(self.make_q, self.parameters))
        )

    @property
    def points(self) -> int:
        """The number of points of the distribution."""
        return prod(self.view.cardinalities)

    def evaluations(self, E: Estimator) -> int:
        """Return the evaluations of f per estimate and batch element."""
        return 0 if self.knows_mean and isinstance(E, Exact) else E.evaluations(self.q)

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator with this seed on the device of q."""
        return torch.Generator(self.view.device).manual_seed(seed)

    def gradients(
        self, E: Estimator, repeats: int, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "repeats parameters"], Float[Tensor, "repeats logits"] | None]:
        """Return independent estimates: in the parameters and, if q has them, in its logits.

        If calls of E are of several kinds, all repeats of a batch are of one kind.
        """
        if not self.vectorised:
            return torch.stack([self._gradient(E, generator) for _ in range(repeats)]), None
        value, leaves = self._batched(E, repeats, generator)
        gradients = gradients_in(self.loss(value), leaves)
        if self.own_parameter is None:
            return flat(gradients, 1), None
        return self._back_propagated(gradients[0]), gradients[0].flatten(1)

    def gradients_in_estimator(
        self, E: Estimator, weights: Sequence[Tensor], repeats: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Return the gradients in parameters of E; there is a single repeat without batches.

        The gradient in q is computed, too: some estimators learn from it.
        """
        if self.vectorised:
            value, leaves = self._batched(E, repeats, generator)
        else:
            value, leaves = self._estimate(E, generator), [*self.parameters]
        return gradients_in(value, [*weights, *leaves], retain=True)[: len(weights)]

    def timed(self, call: Callable[[], Result]) -> tuple[float, Result]:
        """Return the seconds that a call takes, on the device too, and its result."""
        return timed(call, self.clock, self.view.device)

    def timer(
        self, E: Estimator, generator: torch.Generator | None = None
    ) -> Callable[[], tuple[float, Float[Tensor, "kinds parameters"]]]:
        """Return a function that makes a training step and returns its seconds and the gradient.

        A step without the optimiser: q (if a callable makes it), the estimate, and its gradient in
        the parameters, in those of f and in those of the estimator. If the calls of E are of
        several kinds, there is a step of each; the seconds are their mean.
        """
        own_parameters = E.parameters() if isinstance(E, nn.Module) else []
        weights = [weight for weight in own_parameters if weight.requires_grad]
        leaves = [*self.parameters, *self.leaves_of_f, *weights]

        def gradients() -> list[Tensor]:
            value = self.loss(self._estimate(E, generator))
            return gradients_in(value, leaves, retain=not self.rebuilds_q)

        def step() -> tuple[float, Tensor]:
            steps = of_each_kind(E, lambda: self.timed(gradients))
            pairs = zip(shares_of_kinds(E), steps, strict=True)
            seconds = sum(share * seconds for share, (seconds, _) in pairs)
            rows = [flat(row[: len(self.parameters)], 0) for _, row in steps]
            return seconds, torch.stack(rows)

        return step

    def step_seconds(self, E: Estimator, whole_step: Step, count: int = 1) -> float:
        """Return the time of the user's training step, and restore the parameters after it.

        It is the mean of `count` steps in a row: a GPU works on one while the next is launched.
        """
        leaves = (*self.parameters, *self.leaves_of_f)
        values = [leaf.detach().clone() for leaf in leaves]
        gradients = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        # The graph of q is used again, so the versions of its leaves must not change.
        with versions_kept(leaves):
            seconds, _ = self.timed(lambda: [whole_step(E) for _ in range(count)])
            with torch.no_grad():
                for leaf, value in zip(leaves, values, strict=True):
                    leaf.copy_(value)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        return seconds / count

    def replayed(
        self, E: Estimator, x: Tensor, fx: Tensor
    ) -> tuple[float, Float[Tensor, "parameters"]]:
        """Return the seconds and the gradient of an estimate from draws whose values are known."""

        def gradients() -> list[Tensor]:
            value = self.loss(E(lambda _: fx.clone(), self.make_q(*self.parameters), x=x))
            return gradients_in(value, self.parameters, retain=not self.rebuilds_q)

        seconds, row = self.timed(gradients)
        return seconds, flat(row, 0)

    def replayed_gradients(
        self,
        E: Estimator,
        x: Float[Tensor, "n repeats *point"],
        fx: Float[Tensor, "n repeats *batch"],
    ) -> Float[Tensor, "repeats parameters"]:
        """Return the gradients of estimates from draws whose values are known."""
        if not self.vectorised or self.own_parameter is None:
            rows = zip(x.unbind(1), fx.unbind(1), strict=True)
            return torch.stack([self.replayed(E, *row)[1] for row in rows])
        source = self.own_parameter
        leaf = source.detach().expand(x.shape[1], *source.shape).clone().requires_grad_()
        value = self.loss(E(lambda _: fx.clone(), rebuilt(self.q, leaf), x=x))
        return self._back_propagated(gradients_in(value, [leaf])[0])

    @property
    def shares_parameters(self) -> bool:
        """Whether the distributions of the batch depend on the same parameters.

        If the parameters are the logits, the batch is not a sample of a larger data set.
        """
        shapes = [parameter.shape for parameter in self.parameters]
        own_shape = None if self.own_parameter is None else self.own_parameter.shape
        return self.view.batch_size > 1 and own_shape not in shapes

    def minibatch_variance(
        self, E: Estimator, groups: int, generator: torch.Generator | None = None
    ) -> float:
        r"""Estimate the variance that the choice of the minibatch gives to the gradient.

        The batch is divided into groups. With B elements, :math:`n_m` of them in group m, and
        :math:`g_m` the mean gradient of its elements, it is
        :math:`\tfrac{B}{M - 1} \sum_m n_m \lVert g_m - \bar g \rVert^2`. The variance of E itself
        is included, and the gradient of the penalty.
        """
        q = self.make_q(*self.parameters)
        losses = self.loss(E(self._function(q), q, generator=generator))
        if self.penalty is not None:
            losses = losses + self._penalties(q)
        losses = losses.flatten()
        count = losses.numel()
        groups = min(groups, count)
        parts = [
            flat(gradients_in(losses[m::groups], self.parameters, retain=True), 0).double()
            for m in range(groups)
        ]
        mean = torch.stack(parts).sum(0) / count
        sizes = [len(losses[m::groups]) for m in range(groups)]
        spread = sum(
            float((part - size * mean).square().sum()) / size
            for part, size in zip(parts, sizes, strict=True)
        )
        return count * spread / (groups - 1)

    def penalty_gradient(self) -> Float[Tensor, "parameters"] | None:
        """Return the gradient of the penalty, summed over the batch; None without a penalty."""
        if self.penalty is None:
            return None
        penalties = self._penalties(self.make_q(*self.parameters))
        return flat(gradients_in(penalties, self.parameters, retain=not self.rebuilds_q), 0)

    def loss(self, value: Tensor) -> Tensor:
        """Return the loss of every estimate: the estimate itself, if no loss was given."""
        if self._loss is None:
            return value
        losses = self._loss(value)
        if not isinstance(losses, Tensor) or losses.shape != value.shape:
            returned = tuple(losses.shape) if isinstance(losses, Tensor) else repr(losses)
            raise ValueError(
                f"loss: it must map tensors element by element, but for values "
                f"{tuple(value.shape)} it returned {returned}. Leave out the sum over the batch."
            )
        return losses

    def _penalties(self, q: Distribution) -> Tensor:
        assert self.penalty is not None
        penalties = self.penalty(q)
        if not isinstance(penalties, Tensor) or penalties.shape != q.batch_shape:
            returned = tuple(penalties.shape) if isinstance(penalties, Tensor) else repr(penalties)
            raise ValueError(
                f"penalty: a number per batch element is needed, of shape {tuple(q.batch_shape)}, "
                f"but it returned {returned}. Sum over the variables only."
            )
        return penalties

    def gradients_at_mean_value(
        self, E: Estimator, repeats: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "repeats parameters"]:
        """Return estimates of the gradient of the loss at E[f], without the noise of its value.

        The derivative of the loss is taken at the mean of all repeats.
        """
        estimates = [self._estimate(E, generator) for _ in range(repeats)]
        mean = torch.stack([estimate.detach() for estimate in estimates]).mean(0).requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(mean).sum(), mean)
        rows = [gradients_in(estimate, self.parameters, slope, True) for estimate in estimates]
        return torch.stack([flat(row, 0) for row in rows])

    def exact(self) -> Tensor:
        """Return the exact gradient, by enumeration unless f knows its mean."""
        return self._gradient(Exact(limit=self.points))

    def _function(self, q: Distribution) -> Function:
        """Return f as an estimator gets it for this q."""
        return self.f if self.known is None else self.known.under(q)

    def _estimate(self, E: Estimator, generator: torch.Generator | None) -> Float[Tensor, "*batch"]:
        """Return one estimate of E[f], from q with a new graph if a callable makes it."""
        q = self.make_q(*self.parameters)
        return E(self._function(q), q, generator=generator)

    def _gradient(self, E: Estimator, generator: torch.Generator | None = None) -> Tensor:
        """Return one estimate in the parameters."""
        value = self.loss(self._estimate(E, generator))
        return flat(gradients_in(value, self.parameters, retain=not self.rebuilds_q), 0)

    def _batched(
        self, E: Estimator, repeats: int, generator: torch.Generator | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return estimates, and the stacked tensors to differentiate them in."""
        f = TableOfRepeats(self.f) if hasattr(self.f, "neighbours") else RepeatsAsDraws(self.f)
        sources = self.parameters if self.own_parameter is None else (self.own_parameter,)
        leaves = [
            source.detach().expand(repeats, *source.shape).clone().requires_grad_()
            for source in sources
        ]
        q = self._rebuilt(*leaves)
        if self.knows_mean:
            f.expectation = lambda _: torch.stack(
                [
                    self.f.expectation(self._rebuilt(*(leaf[row] for leaf in leaves)))  # type: ignore[attr-defined]
                    for row in range(repeats)
                ]
            )
        return E(f, q, generator=generator), leaves

    def _rebuilt(self, *leaves: Tensor) -> Distribution:
        """Return q from other parameters; from other logits, if q has them."""
        return self.make_q(*leaves) if self.own_parameter is None else rebuilt(self.q, leaves[0])

    def _back_propagated(
        self, by_logit: Float[Tensor, "repeats *shape"]
    ) -> Float[Tensor, "repeats parameters"]:
        """Apply the chain rule from the logits to the parameters, for all repeats at once."""
        own_parameter = self.own_parameter
        assert own_parameter is not None
        if len(self.parameters) == 1 and own_parameter is self.parameters[0]:
            return by_logit.flatten(1)
        try:
            gradients = torch.autograd.grad(
                own_parameter,
                self.parameters,
                by_logit,
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError:  # an operation that torch.vmap does not support
            rows = [gradients_in(own_parameter, self.parameters, row, True) for row in by_logit]
            return torch.stack([flat(row, 0) for row in rows])
        filled = [
            by_logit.new_zeros(by_logit.shape[:1] + parameter.shape)
            if gradient is None
            else gradient
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
        ]
        return flat(filled, 1)

    def _leaves_of_f(self) -> list[Tensor]:
        """Return the leaves that f's values are computed from, other than x."""
        x = draw(self.view, 1, generator=self.generator(0))
        with torch.enable_grad():
            # NaN is left to the estimators, which may allow it.
            return graph_leaves(evaluate(self.f, x, view(self.q, validate=False)))


def timed(call: Callable[[], Result], clock: Clock, device: torch.device) -> tuple[float, Result]:
    """Return the seconds that a call takes until the device has done its work, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start, result


def _sources(
    q: DistributionLike, parameters: Tensor | Sequence[Tensor] | None
) -> tuple[Callable[..., Distribution], Distribution, list[Tensor]]:
    """Return a callable that makes q, q itself and the tensors to take the gradient in."""
    leaves = None if parameters is None else listed(parameters)
    distribution = converted(q)
    if isinstance(distribution, Distribution):
        if leaves is None:
            leaves = graph_leaves(_from_all_parameters(distribution))
            if not leaves:
                leaves, distribution = detached_copy(distribution)
        return lambda *_: distribution, distribution, leaves
    if not callable(q):
        raise TypeError(
            "q: a distribution is needed, or a callable that makes it from `parameters`, but "
            f"{type(q).__name__} was given."
        )
    if leaves is None:
        raise ValueError(
            "parameters: q is a callable, so the tensors to call it with are needed, but "
            "None was given. Pass them as a list, parameters=[...]."
        )
    return q, converted(q(*leaves)), leaves


def _from_all_parameters(q: Distribution) -> Tensor:
    """Return a tensor that is computed from all parameters of q."""
    with torch.enable_grad():
        return q.log_prob(q.sample()) if isinstance(q, Ordered) else parameter_of(q)


def _is_among(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    return any(tensor is entry for entry in tensors)


def _check_parameters(parameters: Sequence[Tensor], q: Distribution) -> None:
    """Raise ValueError unless all are leaves to differentiate in and q depends on some of them."""
    check_trainable(parameters)
    if not any(_is_among(leaf, parameters) for leaf in graph_leaves(_from_all_parameters(q))):
        raise ValueError(
            "parameters: q does not depend on any of them. Build q from these tensors "
            "themselves, not from copies or detached ones."
        )


def _takes_batches(make_q: Callable[..., Distribution], parameters: Sequence[Tensor]) -> bool:
    """Return whether an extra leading dimension of the parameters becomes a batch dimension of q.

    This is tried with two different sets of parameters.
    """
    generator = torch.Generator(parameters[0].device).manual_seed(0)
    with torch.no_grad():
        q = make_q(*parameters)
        pairs = [
            parameter + normal_like(parameter, (2, *parameter.shape), generator) / 8
            for parameter in parameters
        ]
        x = draw(view(q), 1, generator=generator)[0]
        try:
            both = make_q(*pairs)
            if both.batch_shape != (2, *q.batch_shape) or both.event_shape != q.event_shape:
                return False
            together = both.log_prob(x.expand(2, *x.shape))
            apart = [make_q(*(pair[i] for pair in pairs)).log_prob(x) for i in range(2)]
        except Exception:  # the callable may raise anything if it was not written for batches
            return False
    return bool(torch.allclose(together, torch.stack(apart), rtol=1e-4))
