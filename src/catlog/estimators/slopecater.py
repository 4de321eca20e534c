"""SlopeCateR: gradients predicted from derivatives of f, corrected by a few exact sums.

All numbers here are in coordinates of the logits: w = k numbers per one-hot vector and w = 1 per
bit, with J(p) = diag(p) - p p^T for both.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from math import ceil
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ..core import Count, Estimate, Evaluator, Learner, Randomness, Range, Sampling
from ..core.categories import centred, inverse_cdf, one_hots, times_jacobian
from ..core.checks import check_flag
from ..core.factors import RelaxableFactors
from ..core.learning import frozen, learns, write
from ..core.tracing import can_inspect, inside_functorch
from ..core.view import view
from .shrinkage import shrunk_coefficients

__all__ = ["SlopeCateR"]

Variables = Int64[Tensor, "m *batch"]
Chance = Float[Tensor, "m *batch"]
Corrected = Float[Tensor, "m *batch w"]
Table = Float[Tensor, "*batch d w"]
Rows = Float[Tensor, "rows *batch"]
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]

UNIFORM_SHARE = 0.1  # of the corrections: keeps every probability positive, as unbiasedness needs


class SlopeCateR(Learner[RelaxableFactors]):
    r"""A prediction of every variable's gradient from the derivatives of f, corrected by
    evaluations that change a few variables.

    Let :math:`G(x) = \partial f / \partial x_i`, one entry per category, and let c be the drawn
    category. The prediction for variable i is

    .. math::
        \sum_k \partial p_i(k)\, \alpha\, G_k(x) \;+\; \beta\, \tfrac12 \Bigl( \bigl[G_c(x) -
        \textstyle\sum_k p_i(k) G_k(x)\bigr]
        \,\partial \log p_i(c) - \sum_k \partial p_i(k)\, G_k(x) \Bigr)

    averaged over N draws. With :math:`\alpha = 1`, the first term is straight-through, which is
    right if f is linear in each variable. With :math:`\beta = 1`, the sum is :class:`ReinMax`: a
    difference of f is predicted by the mean of the slopes at *both* its ends, which is right if f
    is quadratic in each variable. Then M variables are summed out exactly, one at a time, as in
    :class:`IndeCateR`:

    .. math::
        \sum_{j=1}^M \frac1{M \pi_{i_j}} \sum_k \partial p_{i_j}(k)\, \bigl[ f(x_{\neq i}, k) - \hat
        f_i(x_{\neq i}, k) \bigr]

    where :math:`\hat f_i` is the mean of the prediction over :math:`x_i`, from the slopes at the
    same points. So the noise of the drawn value cancels, and the residual is third-order in each
    variable. The expected number of corrections :math:`M \pi_i` of a variable is proportional to
    how undecided it is, p (1 - p) for a bit, times how large its slopes were in earlier calls. A
    tenth of the corrections is spread equally over all variables. Systematic sampling chooses the
    variables, so all points are known in advance, and f is called once. Any :math:`\pi_i > 0` and
    any coefficients from *earlier* calls leave the estimate unbiased. :math:`\alpha, \beta` are a
    running least-squares fit of the corrections, over all variables and batch elements, so they
    vanish if slopes predict nothing. They learn in the backward pass, where the slopes become
    available, weighted by the gradient of the loss. They are frozen by ``eval()`` and inside
    ``torch.func`` transforms. The value is the mean of f over the N draws, in which the corrected
    variables are summed out.

    Exact sums over many categories are expensive. Then (``pairs``) a correction takes one other
    category b for the drawn category a, and compares f with ReinMax at this pair alone. In the
    logits of the variable, with one-hot vectors :math:`e`, it is

    .. math::
        \frac1{M \pi_{i_j}} \frac{(1 - p_a) (1 - p_b)}{(1 - p_a) + (1 - p_b)} \Bigl[ f(a) - f(b) -
        \tfrac{\alpha}2 \bigl(G(a) + G(b)\bigr) \cdot (e_a - e_b) \Bigr] (e_a - e_b), \qquad b \sim
        p_i(\cdot \mid b \neq a),

    and :math:`\beta = \alpha` in the prediction. For a bit, this is the exact sum.

    Good predictions need few corrections. With ``every`` = R, a call corrects with probability 1/R
    only, with R times the weight. The other calls cost what ReinMax costs. Compiled code, CUDA
    graphs and ``torch.func`` transforms cannot branch at random, so there every call corrects, with
    the usual weight. The attribute ``corrects`` (None, True or False) decides instead of the coin.
    :func:`catlog.compiled_step` takes the estimator as an argument and tosses the coin itself. To
    correct seldom in other compiled code, toss it outside, before every step: ``E.corrects =
    E.toss()``. The code is then compiled twice.

    Cost: N + ``corrections`` (k - 1) evaluations, with pairs N + ``corrections``, and one backward
    pass through them, which also gives the gradient in f's parameters; N evaluations in a call
    without corrections. Needs: f differentiable; a Bernoulli or one-hot q.
    Reference: this library; the prediction is that of Liu et al., "Bridging discrete and
    backpropagation: straight-through and beyond", 2023.

    Args:
        samples: number of draws N.
        corrections: number M of corrections, spread evenly over the draws; None: two fifths of the
            evaluations, M = 2 N / 3 with pairs and 2 N / (3 (k - 1)) without. More of them pay
            where f is far from quadratic in its variables.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        decay: of the running fit, and of the RMS slopes; 1 keeps alpha = beta = 1.
        slope_entries: length of the table of RMS slopes, one per variable (more variables share
            entries); 0: no table.
        pairs: whether a correction takes one other category instead of all k - 1; None: if k - 1 is
            more than 2 N / 3.
        every: R, the mean number of calls per call with corrections.
        fits: learn this many separate fits, one for each entry of the first batch dimension of q,
            as for models that are stacked there; None: one for all.

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> f = lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1).square()
    >>> SlopeCateR(samples=2)(f, q, x=torch.eye(3)[:2]).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """

    samples: int = 8
    _: KW_ONLY
    corrections: Count | None = None
    sampling: Sampling = "latin"
    decay: Annotated[float, Range(0, 1)] = 0.98
    slope_entries: Annotated[int, Range(0)] = 1024
    pairs: bool | None = None
    every: Count = 1
    fits: Count | None = None

    differentiates_f = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._corrects: bool | None = None
        fits = () if self.fits is None else (self.fits,)
        # (nn.Buffer cannot be made inside a transform of torch.func.)
        # Means of the normal equations of alpha and beta: the matrix, and the right-hand side less
        # the matrix times (1, 1).
        self.register_buffer("gram", torch.zeros(*fits, 2, 2))
        self.register_buffer("excess", torch.zeros(*fits, 2))
        # Means of the squared norm of straight predictions, and of what it would be for slopes of
        # size 1. Variable i has entry i mod ``slope_entries``.
        self.register_buffer("size2", torch.zeros(*fits, self.slope_entries))
        self.register_buffer("spread2", torch.zeros(*fits, self.slope_entries))
        self.gram: Tensor
        self.excess: Tensor
        self.size2: Tensor
        self.spread2: Tensor

    def evaluations(self, q: Distribution) -> int:
        k = view(q, 0, self.accepts, "SlopeCateR").k
        changes = self.turns(k) * (1 if self.uses_pairs(k) else k - 1)
        return self.samples + ceil(changes / self.every)  # on average

    def uses_pairs(self, k: int) -> bool:
        """Return whether a correction takes one of the k - 1 other categories, instead of all."""
        return k > 2 and (ceil(2 * self.samples / 3) < k - 1 if self.pairs is None else self.pairs)

    def turns(self, k: int) -> int:
        """Return M, the number of corrections of variables of k categories."""
        if self.corrections is not None:
            return self.corrections
        return ceil(2 * self.samples / (3 if self.uses_pairs(k) else 3 * max(k - 1, 1)))

    def coefficients(self) -> Float[Tensor, "*fits 2"]:
        """Return alpha and beta: a running least-squares fit of exact gradients on predictions."""
        return shrunk_coefficients(self.gram, self.excess)

    def sizes(self, d: int) -> Float[Tensor, "*fits d"]:
        """Return the running RMS slopes of d variables, 1 before any data."""
        *fits, entries = self.size2.shape
        if entries == 0:
            return torch.ones(*fits, d, device=self.size2.device)
        size = torch.where(self.spread2 > 0, self.size2 / self.spread2, 1.0).sqrt()
        return size.repeat(*[1] * len(fits), ceil(d / entries))[..., :d]

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples, self.sampling)
        calls = self._calls_to_correct(x, draw)
        if calls == 0:
            alpha, beta = self._read(q, self.coefficients()).unsqueeze(-1).unbind(-2)
            beta = alpha if self.uses_pairs(q.k) else beta
            mean = f.through(q.weighted(x, alpha - beta / 2, beta / 2)).mean(0)
            return Estimate(mean, mean)
        # In one tensor, for one kernel.
        learned = self._read(q, torch.cat([self.coefficients(), self.sizes(q.d)], -1))
        plan = self._plan(q, x, calls, learned, draw)
        rate = 1 - self.decay if learns(self, x) else 0.0
        table, marks = SlopePoints.apply(  # type: ignore[no-untyped-call]
            q.coordinates_of_q()[1], plan.corrected(), rate, f, *plan, *self.buffers()
        )
        values = f.through(q.from_coordinates(table), subtracted=True)
        exact = plan.exact(values.detach()) * plan.weight
        value = (plan.shares.to(values.dtype) * values).sum(0)
        value = value + (marks * exact).sum((0, -1)).to(values.dtype)
        return Estimate(value, value)

    @property
    def corrects(self) -> bool | None:
        """Whether all calls correct (True), or none (False), or by the toss of a coin (None)."""
        return self._corrects

    @corrects.setter
    def corrects(self, corrects: bool | None) -> None:
        if corrects is not None:
            check_flag("SlopeCateR", "corrects", corrects)
        self._corrects = corrects

    def toss(self, generator: torch.Generator | None = None) -> bool:
        """Return True with probability 1 / ``every``: whether a call should correct."""
        device = torch.device("cpu") if generator is None else generator.device
        return float(torch.rand((), device=device, generator=generator)) * self.every < 1

    @contextmanager
    def deciding(self, corrects: bool | None) -> Iterator[None]:
        """Let all calls inside correct, or none; afterwards ``corrects`` is as before."""
        before = self.corrects
        self.corrects = corrects
        try:
            yield
        finally:
            self.corrects = before

    def _calls_to_correct(self, x: Tensor, draw: Randomness) -> int:
        """Return how many calls the corrections of this call stand for; 0: it has none."""
        decided = self.corrects
        if self.every == 1 or (decided is None and not can_inspect(True, x)):
            return 1
        corrects = draw.coin() * self.every < 1 if decided is None else decided
        return self.every if corrects else 0

    def _read(self, q: RelaxableFactors, learned: Float[Tensor, "*fits c"]) -> Tensor:
        """Return a copy of what was learned, in the dtype of q, that broadcasts with its batch."""
        (learned,) = frozen(self, learned)
        if learned.dim() > 1:  # for each entry of the first batch dimension
            learned = learned.view(len(learned), *[1] * (len(q.batch_shape) - 1), -1)
        return learned.to(q.real)

    def _plan(
        self, q: RelaxableFactors, x: Tensor, calls: int, learned: Tensor, draw: Randomness
    ) -> "Plan":
        """Return the corrections of this call; they stand for the number of ``calls``."""
        m, starts = self.turns(q.k), 1 + self.uses_pairs(q.k)
        coefficients, sizes = learned.split([2, q.d], -1)
        x, p = q.coordinates(x.detach()), q.coordinates_of_q()[0]
        undecided = gradient_scale(p)
        probability, ends = selection_probabilities(undecided * sizes)
        start = draw.uniform(starts, *q.batch_shape, batch_from=1, closed=True)
        variable = systematic_sample(m * ends, m, start[:1])
        by_turn = probability.expand(m, *probability.shape).unsqueeze(-1)
        weight = calls / (m * at(by_turn, variable))
        drawn, p_corrected = (
            at(x[rows_in_turn(m, x)], variable),
            at(p.expand(m, *p.shape), variable),
        )
        compared, chance, pair_weight = compare(drawn, p_corrected, start[1:])
        corrections = variable, weight, p_corrected, compared, chance, pair_weight
        shares = shares_of_points(chance[0], chance[1:], len(x))
        return Plan(x, p, undecided, coefficients.movedim(-1, 0), *corrections, shares)


class Plan(NamedTuple):
    r"""The corrections of a call, as a flat tuple for autograd. They change the draws in turn.

    A correction compares the drawn category with all others or, as a pair of categories a and b,
    with one that is drawn from the rest. Given the pair, each of the two was drawn first with a
    probability that is proportional to the probability of all categories but the *other* one. The
    gradient of E[f] in the logits is the covariance of x and f, which is half of the mean of
    :math:`(f(a) - f(b)) (e_a - e_b)` over independent a and b. ReinMax puts :math:`\frac12 (G(a) +
    G(b)) \cdot (e_a - e_b)` in place of f(a) - f(b), so that it is compared with f pair by pair. It
    has one coefficient, alpha.

    Attributes:
        x: the draws.
        p: the probabilities.
        undecided: the gradient scale of all variables.
        coefficients: alpha and beta, the same for all batch elements or for each of them.
        variable: the variables that are corrected.
        weight: one over how often each of them is corrected in expectation.
        p_corrected: their probabilities.
        compared: the categories that are compared, that of the draw first.
        chance: of each of them to be the one drawn, given these.
        pair_weight: of a difference between the two of a pair; None where all are compared.
        shares: the weights of all points in the value, in which corrected variables are summed out.
    """

    x: Float[Tensor, "n *batch d w"]
    p: Table
    undecided: Float[Tensor, "*batch d"]
    coefficients: Float[Tensor, "2 *batch_or_1"]
    variable: Variables
    weight: Float[Tensor, "m *batch 1"]
    p_corrected: Corrected
    compared: Float[Tensor, "c m *batch w"]
    chance: Float[Tensor, "c m *batch"]
    pair_weight: Float[Tensor, "m *batch 1"] | None
    shares: Rows

    def corrected(self) -> Float[Tensor, "changes *batch d w"]:
        """Return the draws with every compared category in place of the drawn one, unless it is
        impossible."""
        value = torch.where(self.chance[1:].unsqueeze(-1) > 0, self.compared[1:], self.compared[0])
        number = torch.arange(self.p.shape[-2], device=self.x.device)
        is_corrected = (self.variable.unsqueeze(-1) == number).unsqueeze(-1)
        x = self.x[rows_in_turn(len(self.variable), self.x)]
        return torch.where(is_corrected, value.unsqueeze(-2), x).flatten(0, 1)

    def by_correction(self, rows: Float[Tensor, "rows *rest"]) -> Pair:
        """Return what belongs to the draw of every correction, and to its changed points."""
        n, m = len(self.x), len(self.variable)
        return rows[:n][rows_in_turn(m, self.x)], rows[n:].unflatten(0, (-1, m))

    def exact(self, values: Rows) -> Corrected:
        """Return the gradients in the logits of the corrected variables, from f at all points."""
        at_draw, at_change = self.by_correction(values)
        change = (at_change - at_draw).to(self.p.dtype).unsqueeze(-1)
        if self.pair_weight is not None:
            return self.pair_weight * change[0] * (self.compared[1] - self.compared[0])
        above = self.compared[1:] - self.p_corrected
        return (self.chance[1:].unsqueeze(-1) * change * above).sum(0)

    def predicted(self, slopes: Float[Tensor, "rows *batch d w"]) -> tuple[Pair, Triple]:
        """Return the predictions of :meth:`exact` that alpha and beta multiply, from the slopes at
        all points, and their variances and covariance over the compared categories."""
        at_draw, at_change = self.by_correction(slopes)
        changed = self.variable.expand(len(at_change), *self.variable.shape)
        slope = torch.cat([at(at_draw, self.variable).unsqueeze(0), at(at_change, changed)])
        straight, outer = straight_and_outer(self.compared, self.p_corrected, slope)
        curved = (outer - straight) / 2
        if self.pair_weight is not None:
            change = self.compared[0] - self.compared[1]
            mean = self.pair_weight * (slope.mean(0) * change).sum(-1, keepdim=True) * change
            at_a, at_b = straight + curved
            noise = (self.pair_weight * (at_a - at_b).square()).sum(-1)
            none = torch.zeros_like(noise)
            return (mean, torch.zeros_like(mean)), (noise, none, none)
        chance = self.chance.unsqueeze(-1)
        means = (chance * straight).sum(0), (chance * curved).sum(0)
        s, c = straight - means[0], curved - means[1]
        ss, sc, cc = ((chance * product).sum((0, -1)) for product in (s * s, s * c, c * c))
        return means, (ss, sc, cc)


def straight_and_outer(x: Tensor, p: Tensor, slope: Tensor) -> Pair:
    """Return J(p) and (x - p)(x - p)^T, both times f's slope at x; ReinMax takes half of each."""
    above = x - p
    return times_jacobian(p, slope), above * (above * slope).sum(-1, keepdim=True)


class SlopePoints(torch.autograd.Function):
    """The points at which f is evaluated, as a function of the logits that has SlopeCateR's
    gradient.

    ``apply(logits, corrected_points, rate, f, *plan, *buffers)`` returns the draws with the
    corrected points after them, and zeros ``marks`` ``[m, *batch, w]``. The estimate is the mean of
    f at the points by their shares, plus ``marks`` times the exact gradients of the corrected
    variables. So the backward pass brings the slopes of f, times the shares, and the exact
    gradients, both times the gradient of the loss in the estimate. One backward pass through f thus
    serves f's parameters and the logits. With ``rate`` > 0, the buffers learn from this call, too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Table, corrected: Tensor, rate: float, f: Evaluator, *tensors: Any) -> Pair:
        plan = Plan(*tensors[: len(Plan._fields)])
        marks = plan.weight.new_zeros((*plan.weight.shape[:-1], logits.shape[-1]))
        return torch.cat([plan.x, corrected]), marks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        _, _, ctx.rate, ctx.f, *tensors = inputs
        ctx.save_for_backward(*tensors[: len(Plan._fields)])
        ctx.buffers = tensors[len(Plan._fields) :]

    @staticmethod
    def backward(ctx: Any, by_point: Tensor, exact: Corrected) -> tuple[Tensor | None, ...]:
        plan = Plan(*ctx.saved_tensors)
        n, shares = len(plan.x), plan.shares[..., None, None]
        slopes = torch.where(shares > 0, by_point.to(shares.dtype) / shares, 0.0)
        ctx.f.check_finite(slopes, "f's derivative in x must have")
        (straight, curved), noise = plan.predicted(slopes)
        straight, curved = straight * plan.weight, curved * plan.weight
        alpha, beta = plan.coefficients.unsqueeze(-1).unbind()
        at_draws, outer = straight_and_outer(plan.x, plan.p, slopes[:n])
        first = at_draws.mean(0)
        second = (outer.mean(0) - first) / 2
        if plan.pair_weight is not None:
            first, second = first + second, torch.zeros_like(second)
        predicted = alpha.unsqueeze(-1) * first + beta.unsqueeze(-1) * second
        residual = exact - alpha * straight - beta * curved
        gradient = add_at(predicted, plan.variable, residual)
        if ctx.rate > 0:
            scale = plan.weight.squeeze(-1) / n
            noise = noise[0] * scale, noise[1] * scale, noise[2] * scale
            norms = at_draws.square().sum(-1).mean(0)
            norms = 2 * norms if plan.p.shape[-1] == 1 else norms  # a bit has two categories
            per_variable = norms, plan.undecided.square()
            write(updates(ctx.buffers, (exact, straight, curved), noise, per_variable, ctx.rate))
        if plan.p.shape[-1] > 1:
            gradient = centred(gradient, plan.p > 0)
        return gradient, *[None] * (3 + len(Plan._fields) + len(ctx.buffers))


def gradient_scale(p: Table) -> Float[Tensor, "*batch d"]:
    r"""Return how undecided each variable is: the RMS gradient in its logits for independent slopes
    of variance 1.

    It is the square root of :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`, and 2 p (1 - p) for a
    bit.
    """
    if p.shape[-1] == 1:
        one = p.squeeze(-1)
        return 2 * one * (1 - one)
    square = p.square()
    return (square * (1 - 2 * p + square.sum(-1, keepdim=True))).sum(-1).clamp(min=0).sqrt()


def selection_probabilities(size: Float[Tensor, "*batch d"]) -> Pair:
    """Return selection probabilities, 90 % proportional to ``size`` and 10 % uniform, and their
    cumulative sums."""
    d, running = size.shape[-1], size.cumsum(-1)
    total = running[..., -1:]
    equal = torch.arange(1, d + 1, dtype=size.dtype, device=size.device) / d
    share = torch.where(total > 0, size / total, 1 / d)
    cumulative = torch.where(total > 0, running / total, equal)
    kept = 1 - UNIFORM_SHARE
    return kept * share + UNIFORM_SHARE / d, kept * cumulative + UNIFORM_SHARE * equal


def systematic_sample(ends: Float[Tensor, "*batch d"], m: int, start: Rows) -> Variables:
    """Return m variables by systematic sampling.

    ``ends`` are cumulative sums of how often each variable is picked in expectation, over the
    uniform ``start``. Every count is within one of its expectation.

    >>> systematic_sample(torch.tensor([0.5, 1.5, 2.0]), 2, torch.tensor([0.75]))
    tensor([1, 2])
    """
    ticks = start.movedim(0, -1) + torch.arange(m, dtype=ends.dtype, device=ends.device)
    if torch.compiler.is_compiling() or inside_functorch():
        # A compiler fuses a search into every kernel that reads the variables, which repeats it. It
        # does not do so with a sum. vmap would copy the ticks for a search, with a warning.
        variable = (ends.unsqueeze(-2) <= ticks.unsqueeze(-1)).sum(-1)
    else:
        variable = torch.searchsorted(ends, ticks, right=True)
    return variable.clamp(max=ends.shape[-1] - 1).movedim(-1, 0)


def compare(drawn: Corrected, p: Corrected, start: Rows) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the compared categories, their chances and the weights of pairs; see :class:`Plan`.

    A pair takes another category by its probability among the rest, by systematic sampling from
    ``start``. If the drawn category is certain, it takes that twice. An empty start is one without
    pairs.
    """
    m, k = len(drawn), drawn.shape[-1]
    if k == 1:
        compared = torch.stack([drawn, 1 - drawn])
        return compared, torch.where(compared > 0, p, 1 - p).squeeze(-1), None
    ones = [1] * (drawn.dim() - 2)
    if len(start) == 0:
        number = torch.arange(k, device=drawn.device).view(-1, 1, *ones)
        category = (drawn.argmax(-1) + number) % k
        return one_hots(category, k, p.dtype), p.movedim(-1, 0).gather(0, category), None
    rest = p * (1 - drawn)
    total = rest.sum(-1)
    u = (start + torch.arange(m, dtype=p.dtype, device=p.device).view(-1, *ones) / m) % 1
    other = torch.where(total > 0, inverse_cdf(rest, u * total), drawn.argmax(-1))
    compared = torch.stack([drawn, one_hots(other, k, p.dtype)])
    rest = ((1 - compared) * p).sum(-1)  # never subtracted from 1
    total = rest.sum(0)
    is_certain = total <= 0
    chance = torch.where(is_certain, 0.5, rest.flip(0) / total)
    weight = torch.where(is_certain, 0.0, rest[0] * chance[0])
    return compared, chance, weight.unsqueeze(-1)


def at(table: Float[Tensor, "*lead d w"], variable: Int64[Tensor, "*lead"]) -> Tensor:
    """Return the entries of these variables, ``[*lead, w]``.

    ``take_along_dim`` would do the same, but it fixes all sizes in a compiled graph.
    """
    index = variable[..., None, None].expand(*variable.shape, 1, table.shape[-1])
    return table.gather(-2, index).squeeze(-2)


def rows_in_turn(m: int, x: Float[Tensor, "n *rest"]) -> Int64[Tensor, " m"]:
    """Return which of the draws each of m corrections changes: they take turns."""
    return torch.arange(m, device=x.device) % len(x)


def shares_of_points(drawn: Chance, alternatives: Tensor, n: int) -> Rows:
    """Return the weights of n draws and of their corrected points in the value.

    A draw and its corrected points share the weight 1/n by the probabilities of the corrected
    variable's categories; with several corrections, as the mean over them.

    >>> shares_of_points(torch.tensor([0.25]), torch.tensor([[0.75]]), n=2)
    tensor([0.1250, 0.5000, 0.3750])
    """
    m, rest = len(drawn), (0, 0) * (drawn.dim() - 1)
    if m > n:
        counts = m // n + (rows_in_turn(m, drawn[:n]) < m % n).to(drawn.dtype)
        weight = (1 / counts).view(-1, *[1] * (drawn.dim() - 1))
        drawn, alternatives = drawn * weight, alternatives * weight
    drawn = pad(drawn, (*rest, 0, -m % n), value=1.0 if m < n else 0.0).unflatten(0, (-1, n))
    return torch.cat([drawn.sum(0), alternatives.flatten(0, 1)]) / n


def add_at(total: Table, variable: Variables, terms: Corrected) -> Table:
    """Return ``total`` with the terms of all variables added to it.

    >>> add_at(torch.zeros(3, 1), torch.tensor([2, 2]), torch.tensor([[1.0], [5.0]])).tolist()
    [[0.0], [0.0], [6.0]]
    """
    if torch.compiler.is_compiling():  # a compiler fuses this, but not a scatter
        is_corrected = variable.unsqueeze(-1) == torch.arange(total.shape[-2], device=total.device)
        return total + torch.where(is_corrected.unsqueeze(-1), terms.unsqueeze(-2), 0.0).sum(0)
    terms = terms.movedim(0, -2)
    return total.scatter_add(-2, variable.movedim(0, -1).unsqueeze(-1).expand(terms.shape), terms)


def updates(
    buffers: Sequence[Tensor], terms: Triple, noise: Triple, per_variable: Pair, rate: float
) -> list[Pair]:
    """Return the buffers, and their values after this call.

    Args:
        buffers: the normal equations and the table of slope sizes.
        terms: exact gradients of the corrected variables and both predictions of them.
        noise: what the (co)variances of the predictions add to the normal equations.
        per_variable: what the two entries of the table count, by variable.
        rate: the weight of this call.
    """
    fits = buffers[0].shape[:-2]

    def mean(values: Chance) -> Float[Tensor, "*fits"]:
        return values.movedim(1, 0).flatten(1).mean(-1) if fits else values.mean()

    exact, s, c = terms
    predicted = zip(((s, s), (s, c), (c, c)), noise, strict=True)
    ss, sc, cc = (mean((one * other).sum(-1) + extra) for (one, other), extra in predicted)
    es, ec = (mean((exact * term).sum(-1)) for term in (s, c))
    excess = torch.stack([es - ss - sc, ec - sc - cc], -1)
    new = [torch.stack([ss, sc, sc, cc], -1).view(buffers[0].shape), excess]
    for table, values in zip(buffers[2:], per_variable, strict=True):
        values = values.reshape(*fits, -1, values.shape[-1]).mean(-2)
        new.append(fold_into(values, table.shape[-1]))
    used = [*buffers[:2], *(table[..., : new[2].shape[-1]] for table in buffers[2:])]
    return [(old, old.lerp(now.to(old), rate)) for old, now in zip(used, new, strict=True)]


def fold_into(values: Float[Tensor, "*fits d"], entries: int) -> Float[Tensor, "*fits p"]:
    """Return the sums of all values that share an entry: variable i has entry i mod ``entries``.

    >>> fold_into(torch.arange(5.0), 3)
    tensor([3., 5., 2.])
    """
    d = values.shape[-1]
    if entries == 0 or d <= entries:
        return values[..., :entries]
    return pad(values, (0, -d % entries)).unflatten(-1, (-1, entries)).sum(-2)
