"""SCateR and its relatives: the CatLog-Derivative trick for dependent variables."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ..core.categories import as_index, gumbels, integers, inverse_cdf
from ..core.checks import check_count
from ..core.estimator import Estimate, Estimator
from ..core.evaluator import Evaluator
from ..core.factors import Factors, IndependentFactors
from ..core.ordered import Ordered
from ..core.randomness import Randomness
from ..core.settings import Count
from ..core.tracing import inside_functorch
from ..core.view import view
from .indecater import IndeCateR

__all__ = ["LEG", "RAM", "SCateR"]

Suffix = Literal["independent", "common", "gumbel"]


class SCateR(Estimator[Factors]):
    r"""The CatLog-Derivative trick for dependent variables: it sums over one variable at a time,
    given the earlier ones, and resamples the variables that depend on it for each category.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \sum_{i=1}^d \sum_k \frac1N \sum_n \partial q(k \mid
        x^{(n)}_{<i})\,
        \bigl[f(x^{(n)}_{<i}, k, \tilde x^{(n,i,k)}_{>i}) - f(x^{(n)})\bigr],
        \qquad \tilde x_{>i} \sim q(\cdot \mid x_{<i}, k)

    It is unbiased. For independent variables nothing is resampled, and it is :class:`IndeCateR`.
    Its variance is at most REINFORCE's for parameters that occur in one factor. At equal
    *evaluations*, :class:`RLOO` and :class:`CritiCateR` are often better, because a draw of the
    suffix serves one variable only.

    Cost: N (1 + d (k - 1)) evaluations, and one call of each conditional for all rows at once. All
    points of dependent variables are drawn before f is called: N d^2 (k - 1) integers per batch
    element, 0.8 GB for 10,000 bits. ``variables=m`` makes them N m d (k - 1).
    Needs: any f. Only descendants of the changed variable are resampled; ``fixed`` nodes of
    a BayesianNetwork are not changed.
    Reference: De Smet et al., "Differentiable sampling of categorical distributions using the
    CatLog-Derivative trick", 2023, Definition 3.2.

    Args:
        samples: number of draws N.
        suffix: how the later variables are drawn for different categories: "independent"; "common",
            with the same uniforms; "gumbel", with the same Gumbel noise (then it is RAM).
        variables: number m of variables to sum out in each draw, weighted by d / m; None: all.
        categories: for large vocabularies, evaluate only this many of the most probable
            alternatives and one sampled from the rest.
        chunk_size: evaluations of f at once; None: chosen for the device.

    >>> from catlog.distributions import MarkovChain
    >>> logits = torch.zeros(2, 2, requires_grad=True)
    >>> q = MarkovChain(torch.zeros(2), logits, length=3)
    >>> E = SCateR(samples=2)
    >>> E.evaluations(q), E(lambda x: (x[..., 0] != x[..., 2]), q).shape
    (8, torch.Size([]))
    """

    samples: int = 1
    _: KW_ONLY
    suffix: Suffix = "independent"
    variables: Count | None = None
    categories: Count | None = None
    chunk_size: Count | None = None

    reference = "De Smet et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variables is not None and self.categories is not None:
            raise ValueError(
                "SCateR: `variables` and `categories` exclude each other; give one of them."
            )

    def evaluations(self, q: Distribution) -> int:
        return self.samples * (1 + self._moves(view(q, 0, self.accepts, "SCateR")))

    def _moves(self, q: Factors) -> int:
        """Return the number of interventions in one draw."""
        if self.variables is not None:
            check_count(
                "SCateR", "variables", self.variables, most=q.d, hint=f"q has {q.d} variables."
            )
            return self.variables * (q.k - 1)
        return sum(alternatives_per_variable(q.ordered, self.categories))

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        moves = self._moves(q)
        if isinstance(q, IndependentFactors) and self.categories is None:
            # Nothing is resampled, so no more than a chunk of the points has to exist at once.
            E = IndeCateR(self.samples, variables=self.variables, control="none")
            return E.estimate(f, q, draw)
        interventions = self._interventions(q, moves, draw)
        fx = f(q.point(interventions.x))
        table = self._table(f, fx, q, interventions)
        # Weighted by the conditionals at the base draws, in one differentiable pass.
        probs = q.log_conditionals(interventions.x).exp()
        change = (probs * table).sum((-1, -2)).mean(0)
        base = fx.mean(0)
        return Estimate(base + change / q.d, base + change)

    def _interventions(self, q: Factors, moves: int, draw: Randomness) -> "Interventions":
        """Draw base points and, for every other category, the variables that depend on it."""
        x = draw.given_points(self.samples)
        index = None if x is None else q.index(x)
        if index is not None and self.suffix == "gumbel" and any(q.ordered.ancestors):
            raise ValueError(
                "x: with suffix='gumbel' the draws come from Gumbel noise; give `noise` or a "
                "`generator` instead."
            )
        n = self.samples if index is None else len(index)
        shape = noise_shape(q.ordered, n, self.suffix, self.categories, moves)
        noise = draw.uniform(*shape, batch_from=2)
        with torch.no_grad():
            if self.variables is None:
                return all_interventions(
                    q.ordered, noise, index, self.suffix, self.categories, q.validate
                )
            chosen = draw.variables(n, self.variables)
            return chosen_interventions(q.ordered, noise, chosen, index, self.suffix, q.validate)

    def _table(
        self, f: Evaluator, fx: Tensor, q: Factors, interventions: "Interventions"
    ) -> Float[Tensor, "n *batch d k"]:
        """Return f after each intervention less f at the base draw, by variable and category."""
        with torch.no_grad():
            flat = interventions.moved.flatten(0, 1)
            values = f.chunked(lambda part: q.point(flat[part]), len(flat))
            change = values.unflatten(0, (len(interventions.moved), len(fx))) - fx.detach()
            variable, category = interventions.variable, interventions.category
            slot = (variable * q.k + category).movedim(0, -1)
            is_drawn = category == interventions.x.movedim(-1, 0).gather(0, variable)
            change = (change * interventions.weight).masked_fill(is_drawn, 0.0).movedim(0, -1)
            if self.variables is not None:
                change = change * (q.d / self.variables)
            empty = change.new_zeros((*fx.shape, q.d * q.k))
            table = empty.scatter(-1, slot.expand(change.shape), change)
            return table.unflatten(-1, (q.d, q.k))


class RAM(Estimator[Factors]):
    r"""The CatLog-Derivative trick with common Gumbel noise: it sums over one variable at a time
    and holds the noise of the others fixed.

    .. math::
        \sum_i \sum_k \frac1N \sum_n \partial q(k \mid x^{(n)}_{<i})\,
        f\bigl(x^{(n)}_{<i}, k, x_{>i}(\varepsilon^{(n)}_{>i})\bigr),
        \qquad x_j = \arg\max_k \log q(k \mid x_{<j}) + \varepsilon_{jk}

    It is :class:`SCateR` with ``suffix="gumbel"``: unbiased, with the suffixes of different
    categories coupled.

    Cost: N (1 + d (k - 1)) evaluations and, for dependent variables, N d^2 (k - 1) integers per
    batch element at once. Needs: any f.
    Reference: Tokui and Sato, "Evaluating the variance of likelihood-ratio gradient estimators",
    2017.

    Args:
        samples: number of draws N.
        chunk_size: evaluations of f at once; None: chosen for the device.

    >>> from catlog.distributions import MarkovChain
    >>> q = MarkovChain(torch.zeros(2), torch.zeros(2, 2), length=3)
    >>> RAM(samples=2)(lambda x: x.sum(-1).float(), q).shape
    torch.Size([])
    """

    samples: int = 1
    _: KW_ONLY
    chunk_size: Count | None = None

    reference = "Tokui & Sato 2017"

    def evaluations(self, q: Distribution) -> int:
        return SCateR(self.samples).evaluations(q)

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        return SCateR(self.samples, suffix="gumbel").estimate(f, q, draw)


class LEG(Estimator[Factors]):
    r"""Local expectation gradients: each variable is summed out given *all* others, weighted by its
    conditional probabilities given them.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \frac1N \sum_n \sum_i \sum_k
        q(k \mid x^{(n)}_{\neq i})\, f(x^{(n)}_{\neq i}, k)\; \partial \log q(k \mid x^{(n)}_{<i})

    Unbiased. Nothing is resampled: the later variables keep the values that they have in the draw,
    and the weight accounts for that. For independent variables the weight is :math:`p_i(k)` and LEG
    is :class:`IndeCateR`.

    Cost: N (1 + d (k - 1)) evaluations and, for dependent variables, as many passes through q.
    Needs: any f.
    Reference: Titsias and Lázaro-Gredilla, "Local expectation gradients for black box variational
    inference", 2015; for shared parameters, De Smet et al., 2023, appendix.

    Args:
        samples: number of pivot draws N.
        chunk_size: evaluations of f at once; None: chosen for the device.

    >>> from catlog.distributions import MarkovChain
    >>> q = MarkovChain(torch.zeros(2), torch.zeros(2, 2), length=3)
    >>> LEG(samples=2)(lambda x: x.sum(-1).float(), q).shape
    torch.Size([])
    """

    samples: int = 1
    _: KW_ONLY
    chunk_size: Count | None = None

    reference = "Titsias & Lázaro-Gredilla 2015"

    def evaluations(self, q: Distribution) -> int:
        factors = view(q, 0, self.accepts, "LEG")
        return self.samples * (1 + sum(factors.cardinalities) - factors.d)

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        if isinstance(q, IndependentFactors):  # there, weights may multiply differences of f
            return IndeCateR(self.samples).estimate(f, q, draw)
        x = draw.points(self.samples)
        index = q.index(x)
        fx = f(x)
        score = q.log_conditionals(index)  # [n, *batch, d, k], differentiable
        with torch.no_grad():
            changes = _SingleChanges.of(q, index)
            joint = [q.log_prob(changes.made(part)[1]) for part in f.parts(changes.rows)]
            log_joint = torch.cat([score.new_zeros((0, *q.batch_shape)), *joint])

            def points(part: slice) -> Tensor:
                """Return the points after possible changes, and the draws in place of others."""
                before, after = changes.made(part)
                is_possible = (log_joint[part] > -torch.inf).unsqueeze(-1)
                return q.point(torch.where(is_possible, after, before))

            values = f.chunked(points, changes.rows)
            log_prob = score.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
            log_weight = changes.table(q, log_prob, log_joint, -torch.inf)
            weight = log_weight.softmax(-1)  # q(k | all others)
            cost = weight * changes.table(q, fx.detach(), values, 0.0)
        base = fx.mean(0)
        # A category of weight zero may have log-probability -inf.
        change = (cost * torch.where(cost != 0, score, 0.0)).sum((-1, -2)).mean(0)
        return Estimate(cost.sum((-1, -2)).mean(0) / q.d, base + change)


@dataclass(frozen=True, eq=False)
class _SingleChanges:
    """Draws with one variable set to another category: a row for every change of every draw.

    Attributes:
        index: the draws.
        variable: the variable that a change sets.
        category: the category that it sets in each draw.
    """

    index: Int64[Tensor, "n *batch d"]
    variable: Int64[Tensor, " changes"]
    category: Int64[Tensor, "changes n *batch"]

    @classmethod
    def of(cls, q: Factors, index: Int64[Tensor, "n *batch d"]) -> "_SingleChanges":
        """Return the changes of the draws to all other categories of all variables."""
        sizes = q.cardinalities
        changes = [(i, offset) for i, size in enumerate(sizes) for offset in range(1, size)]
        variable = integers([i for i, _ in changes], q.device)
        offset = integers([offset for _, offset in changes], q.device)
        category = (index[..., variable] + offset) % integers(sizes, q.device)[variable]
        # Contiguous, so that its rows are a view: a copy in every chunk would take quadratic time.
        return cls(index, variable, category.movedim(-1, 0).contiguous())

    @property
    def rows(self) -> int:
        return len(self.variable) * len(self.index)

    def made(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return the draws of some rows, and the same after their changes.

        Only these rows exist, which bounds the memory.
        """
        row = torch.arange(part.start, part.stop, device=self.index.device)
        change, draw = row // len(self.index), row % len(self.index)
        before = self.index.index_select(0, draw)
        category = self.category.flatten(0, 1)[part].unsqueeze(-1)
        place = self.variable[change].view(-1, *[1] * (before.dim() - 1))
        return before, before.scatter(-1, place.expand(category.shape), category)

    def table(
        self,
        q: Factors,
        at_draws: Float[Tensor, "n *batch"],
        at_changes: Float[Tensor, "rows *batch"],
        empty: float,
    ) -> Float[Tensor, "n *batch d k"]:
        """Return numbers at the draws and at their changes by variable and category."""
        entries = at_draws.new_full((*at_draws.shape, q.d * q.k), empty)
        shape = (len(self.variable), len(at_draws))
        at_changes = at_changes.unflatten(0, shape).movedim(0, -1).to(at_draws.dtype)
        entry = self.variable * q.k + self.category.movedim(0, -1)
        entries = entries.scatter(-1, entry.expand(at_changes.shape), at_changes)
        entries = entries.unflatten(-1, (q.d, q.k))
        drawn = at_draws[..., None, None].expand(*at_draws.shape, q.d, 1)
        return entries.scatter(-1, self.index.unsqueeze(-1).expand(drawn.shape), drawn)


@dataclass(frozen=True, eq=False)
class Interventions:
    """Base draws and, per move, the same draws with one variable set to another category.

    Attributes:
        x: base draws.
        moved: for every move, the base draw with ``variable`` set to ``category`` and its
            descendants drawn again.
        variable: the variable that the move sets.
        category: the category that it gets.
        weight: 1 for a category that is always evaluated. For one sampled from the remaining
            categories: their total probability over its own.
    """

    x: Int64[Tensor, "n *batch d"]
    moved: Int64[Tensor, "moves n *batch d"]
    variable: Int64[Tensor, "moves n *batch"]
    category: Int64[Tensor, "moves n *batch"]
    weight: Float[Tensor, "moves n *batch"]


def alternatives_per_variable(q: Ordered, categories: int | None) -> list[int]:
    """Return how many other categories of each variable are evaluated: none of fixed ones."""
    most = max(q.cardinalities) if categories is None else categories + 1
    return [0 if i in q.fixed else min(size - 1, most) for i, size in enumerate(q.cardinalities)]


def noise_shape(
    q: Ordered, n: int, suffix: Suffix, categories: int | None, moves: int
) -> tuple[int, ...]:
    """Return the shape of the uniforms that one sweep needs.

    That is a group per move, or one for all, and one more to sample from the remaining categories.
    """
    groups = 1 + moves if suffix == "independent" else 1
    groups += 0 if categories is None else 1
    tail = (max(q.cardinalities),) if suffix == "gumbel" else ()
    return (groups, n, *q.batch_shape, len(q.cardinalities), *tail)


def all_interventions(
    q: Ordered,
    noise: Tensor,
    x: Int64[Tensor, "n *batch d"] | None = None,
    suffix: Suffix = "independent",
    categories: int | None = None,
    validate: bool = True,
) -> Interventions:
    """Make all interventions on all variables, block by block.

    A group of rows is the n draws under one move; group 0 is the base. At each block, the base and
    the groups whose variable is an ancestor draw the block again, and the other groups copy the
    base. Then each variable of the block starts new groups, which have copied the base so far.
    """
    n, batch = noise.shape[1], q.batch_shape
    counts = alternatives_per_variable(q, categories)
    shape = (1 + sum(counts), n, *batch, len(counts))
    points = torch.zeros(shape, dtype=torch.int64, device=noise.device)
    moved_variables: list[int] = []
    category: list[Tensor] = []
    weight: list[Tensor] = []
    state = q.start(points.shape[1:-1]) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        index = as_index(variables)
        active = [0] + [
            g for g, variable in enumerate(moved_variables, 1) if variable in q.ancestors[block]
        ]
        started = 1 + len(moved_variables)
        all_active = len(active) == started
        groups = points[:started] if all_active else points[integers(active, points.device)]
        rows = groups.flatten(0, 1)
        raw, state = q.next_logits(block, rows, state, previous)
        log_probs = q.block_log_probs(raw, block, rows.shape[:-1], validate)
        log_probs = log_probs.unflatten(0, (len(active), n))
        drawn = _drawn(
            log_probs, noise, active, index, suffix, None if x is None else x[..., index]
        )
        points = _writable(points, drawn)
        points[..., index] = drawn[0]
        if all_active:
            points[:started, ..., index] = drawn
        elif len(active) > 1:
            block_points = points[..., index]
            block_points[integers(active, points.device)] = drawn
            points[..., index] = block_points
        for position, variable in enumerate(variables):
            if counts[variable] == 0:
                continue
            conditional = log_probs[0, ..., position, : q.cardinalities[variable]]
            u = noise[-1, ..., variable, 0] if suffix == "gumbel" else noise[-1, ..., variable]
            alternative, alternative_weight = _alternative_categories(
                conditional, drawn[0, ..., position], categories, u
            )
            points[started : started + counts[variable], ..., variable] = alternative
            started += counts[variable]
            moved_variables += [variable] * counts[variable]
            category.append(alternative)
            weight.append(alternative_weight)
        if q.incremental:
            kept = torch.arange(len(rows), device=noise.device)
            copies = torch.arange(n, device=noise.device).repeat(counts[variables[0]])
            state = q.select_rows(state, torch.cat([kept, copies]))
            previous = points[:started, ..., variables[0]].flatten(0, 1)
    moves = integers(moved_variables, noise.device).view(-1, *[1] * (1 + len(batch)))
    no_moves = torch.zeros((0, n, *batch), dtype=noise.dtype, device=noise.device)
    return Interventions(
        points[0],
        points[1:],
        moves.expand(-1, n, *batch),
        torch.cat([no_moves.long(), *category]),
        torch.cat([no_moves, *weight]),
    )


def chosen_interventions(
    q: Ordered,
    noise: Tensor,
    chosen: Int64[Tensor, "n *batch m"],
    x: Int64[Tensor, "n *batch d"] | None = None,
    suffix: Suffix = "independent",
    validate: bool = True,
) -> Interventions:
    """Make all interventions on the ``chosen`` variables of each draw and batch element.

    Every row passes through all blocks: it copies the base up to its variable, and draws the
    descendants again.
    """
    n, m, k = chosen.shape[0], chosen.shape[-1], max(q.cardinalities)
    device = noise.device
    groups = m * (k - 1)
    variable = chosen.movedim(-1, 0).repeat_interleave(k - 1, 0)
    offset = torch.arange(1, k, device=device).repeat(m).view(-1, *[1] * (chosen.dim() - 1))
    sizes = integers(q.cardinalities, device)
    is_ancestor = torch.zeros(len(sizes), len(sizes), dtype=torch.bool, device=device)
    for block, variables in enumerate(q.blocks):
        for i in variables:
            is_ancestor[i, integers(sorted(q.ancestors[block]), device)] = True
    points = torch.zeros(
        (1 + groups, n, *q.batch_shape, len(sizes)), dtype=torch.int64, device=device
    )
    category = torch.zeros_like(variable)
    lead = points.flatten(0, 1).shape[:-1]
    state = q.start(lead) if q.incremental else None
    previous = None
    all_groups = list(range(1 + groups))
    for block, variables in enumerate(q.blocks):
        index = as_index(variables)
        raw, state = q.next_logits(block, points.flatten(0, 1), state, previous)
        log_probs = q.block_log_probs(raw, block, lead, validate).unflatten(0, (1 + groups, n))
        drawn = _drawn(
            log_probs, noise, all_groups, index, suffix, None if x is None else x[..., index]
        )
        points = _writable(points, drawn)
        for position, i in enumerate(variables):
            base = drawn[0, ..., position]
            alternative = _or_current_if_impossible(
                (base + offset) % sizes[i], base, log_probs[0, ..., position, :]
            )
            is_moved = variable == i
            descendant = torch.where(is_ancestor[i][variable], drawn[1:, ..., position], base)
            points[0, ..., i] = base
            points[1:, ..., i] = torch.where(is_moved, alternative, descendant)
            category = torch.where(is_moved, alternative, category)
        previous = points[..., variables[0]].flatten(0, 1)
    weight = torch.ones(
        category.shape, dtype=torch.promote_types(q.real, torch.float32), device=device
    )
    return Interventions(points[0], points[1:], variable, category, weight)


def _writable(
    points: Int64[Tensor, "groups n *batch d"], drawn: Int64[Tensor, "active n *batch m"]
) -> Int64[Tensor, "groups n *batch d"]:
    """Return the points such that ``drawn`` may be written into them.

    In ``torch.func.vmap`` a tensor that was made here is not mapped, and what is mapped cannot be
    written into it. Adding zeros that are mapped makes it so.
    """
    return points + torch.zeros_like(drawn[:1, ..., :1]) if inside_functorch() else points


def _drawn(
    log_probs: Float[Tensor, "active n *batch m k"],
    noise: Tensor,
    active: list[int],
    index: slice | list[int],
    suffix: Suffix,
    x: Int64[Tensor, "n *batch m"] | None,
) -> Int64[Tensor, "active n *batch m"]:
    """Draw the block's values in every active group; those of group 0 are ``x`` if it is given."""
    if suffix == "gumbel":
        drawn = (log_probs + gumbels(noise[:1, ..., index, : log_probs.shape[-1]])).argmax(-1)
    elif suffix == "independent":
        u = noise[..., index]
        u = u if len(active) == len(noise) else u[integers(active, noise.device)]
        drawn = inverse_cdf(log_probs.exp(), u)
    else:
        u = noise[:1, ..., index]
        if x is not None:  # the uniform that would have drawn x: one in its interval of the CDF
            p = log_probs[0].exp()
            low = pad(p.cumsum(-1), (1, 0))[..., :-1].gather(-1, x.unsqueeze(-1)).squeeze(-1)
            u = (low + u[0] * p.gather(-1, x.unsqueeze(-1)).squeeze(-1)).unsqueeze(0)
        drawn = inverse_cdf(log_probs.exp(), u)
    return drawn if x is None else torch.cat([x.unsqueeze(0), drawn[1:]])


def _alternative_categories(
    log_probs: Float[Tensor, "n *batch k"],
    current: Int64[Tensor, "n *batch"],
    categories: int | None,
    u: Float[Tensor, "n *batch"],
) -> tuple[Int64[Tensor, "count n *batch"], Float[Tensor, "count n *batch"]]:
    """Return other categories and their weights.

    These are all, or the likeliest ``categories`` and one sampled from the rest. An impossible
    category is replaced by the draw's own (a difference of zero), so that f never sees it.
    """
    k = log_probs.shape[-1]
    if categories is None or categories + 1 >= k - 1:
        offset = torch.arange(1, k, device=current.device).view(-1, *[1] * current.dim())
        alternative = _or_current_if_impossible((current + offset) % k, current, log_probs)
        return alternative, log_probs.new_ones(alternative.shape)
    alternatives = log_probs.scatter(-1, current.unsqueeze(-1), -torch.inf)
    top_log_prob, top = alternatives.topk(categories, -1)
    rest = alternatives.scatter(-1, top, -torch.inf).exp()
    total = rest.sum(-1)
    sampled = inverse_cdf(rest, u * total)
    p = rest.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    is_possible = p > 0
    sampled = torch.where(is_possible, sampled, current).unsqueeze(-1)
    sampled_weight = torch.where(is_possible, total / p, 0.0).unsqueeze(-1)
    top = torch.where(top_log_prob > -torch.inf, top, current.unsqueeze(-1))
    weight = torch.cat([torch.ones_like(top_log_prob), sampled_weight], -1)
    return torch.cat([top, sampled], -1).movedim(-1, 0), weight.movedim(-1, 0)


def _or_current_if_impossible(
    category: Int64[Tensor, "count n *batch"],
    current: Int64[Tensor, "n *batch"],
    log_probs: Float[Tensor, "n *batch k"],
) -> Int64[Tensor, "count n *batch"]:
    """Return the categories, those of probability zero replaced by the draw's own."""
    picked = log_probs.gather(-1, category.movedim(0, -1)).movedim(-1, 0)
    return torch.where(picked > -torch.inf, category, current)
