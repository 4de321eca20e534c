"""SCateR and its relatives: the CatLog-Derivative trick for dependent variables."""

from dataclasses import KW_ONLY
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ..core import Count, Estimate, Estimator, Evaluator, Randomness
from ..core.categories import as_index, gumbels, integers, inverse_cdf
from ..core.checks import check_count
from ..core.factors import Factors, IndependentFactors
from ..core.ordered import Ordered
from ..core.tracing import inside_functorch
from ..core.view import view
from .indecater import IndeCateR

__all__ = ["LEG", "RAM", "SCateR"]

Suffix = Literal["independent", "common", "gumbel"]
Draws = Int64[Tensor, "n *batch d"]
Categories = Int64[Tensor, "moves n *batch"]
Table = Float[Tensor, "n *batch d k"]


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

    For dependent variables a call takes uniforms as ``noise``, ``[groups, N, *batch, d]``: a group
    for the draws and one for each of their changes, or one group for all with "common" (and, for
    Gumbels, with "gumbel": ``[1, N, *batch, d, k]``).

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
        changes = self._interventions(q, moves, draw)
        fx = f(q.point(changes.x))
        with torch.no_grad():
            table = self._table(f, fx, q, changes)
        # Weighted by the conditionals at the base draws, in one differentiable pass.
        probs = q.log_conditionals(changes.x).exp()
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
        # A group of uniforms per move, or one for all; one more samples from the rest.
        groups = (1 + moves if self.suffix == "independent" else 1) + (self.categories is not None)
        tail = (q.k,) if self.suffix == "gumbel" else ()
        noise = draw.uniform(groups, n, *q.batch_shape, q.d, *tail, batch_from=2)
        with torch.no_grad():
            sweep = Sweep(q, noise, index, self.suffix)
            if self.variables is None:
                return sweep.of_all(self.categories)
            return sweep.of_chosen(draw.variables(n, self.variables))

    def _table(self, f: Evaluator, fx: Tensor, q: Factors, changes: "Interventions") -> Table:
        """Return f after each intervention less f at the base draw, by variable and category."""
        flat = changes.moved.flatten(0, 1)
        values = f.chunked(lambda part: q.point(flat[part]), len(flat))
        change = values.unflatten(0, (len(changes.moved), len(fx))) - fx.detach()
        is_drawn = changes.category == changes.x.movedim(-1, 0).gather(0, changes.variable)
        change = (change * changes.weight).masked_fill(is_drawn, 0.0)
        if self.variables is not None:
            change = change * (q.d / self.variables)
        return by_category(q, changes.variable, changes.category, change)


def by_category(
    q: Factors, variable: Tensor, category: Tensor, values: Tensor, empty: float = 0.0
) -> Table:
    """Return the values of moves by the variables that they set, and the categories."""
    table = values.new_full((*values.shape[1:], q.d * q.k), empty)
    slot = (variable * q.k + category).expand(values.shape)
    table = table.scatter(-1, slot.movedim(0, -1), values.movedim(0, -1))
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

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        if isinstance(q, IndependentFactors):  # there, weights may multiply differences of f
            return IndeCateR(self.samples).estimate(f, q, draw)
        x = draw.points(self.samples)
        index = q.index(x)
        fx = f(x)
        score = q.log_conditionals(index)  # [n, *batch, d, k], differentiable
        with torch.no_grad():
            variable, category = _other_categories(q, index)
            n, rows = len(index), len(category) * len(index)
            # Contiguous, so that its rows are a view: a copy in every chunk takes quadratic time.
            to_category = category.contiguous().flatten(0, 1).unsqueeze(-1)

            def changed(part: slice) -> tuple[Tensor, Tensor]:
                """Return the draws of some rows before and after their changes."""
                row = torch.arange(part.start, part.stop, device=index.device)
                before, after = index.index_select(0, row % n), to_category[part]
                return before, before.scatter(-1, variable[row // n].expand(after.shape), after)

            joint = [q.log_prob(changed(part)[1]) for part in f.parts(rows)]
            log_joint = torch.cat([score.new_zeros((0, *q.batch_shape)), *joint])

            def points(part: slice) -> Tensor:
                """Return the points after possible changes, and the draws in place of others."""
                before, after = changed(part)
                is_possible = (log_joint[part] > -torch.inf).unsqueeze(-1)
                return q.point(torch.where(is_possible, after, before))

            def table(at_draws: Tensor, at_changes: Tensor, empty: float) -> Tensor:
                """Return numbers at the draws and at their changes by variable and category."""
                at_changes = at_changes.unflatten(0, (-1, n)).to(at_draws.dtype)
                entries = by_category(q, variable, category, at_changes, empty)
                drawn = at_draws[..., None, None].expand(*at_draws.shape, q.d, 1)
                return entries.scatter(-1, index.unsqueeze(-1).expand(drawn.shape), drawn)

            values = f.chunked(points, rows)
            log_prob = score.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
            weight = table(log_prob, log_joint, -torch.inf).softmax(-1)  # q(k | all others)
            cost = weight * table(fx.detach(), values, 0.0)
        base = fx.mean(0)
        # A category of weight zero may have log-probability -inf.
        change = (cost * torch.where(cost != 0, score, 0.0)).sum((-1, -2)).mean(0)
        return Estimate(cost.sum((-1, -2)).mean(0) / q.d, base + change)


def _other_categories(q: Factors, index: Draws) -> tuple[Int64[Tensor, "moves *ones"], Categories]:
    """Return all variables, once per other category, and these categories in each draw."""
    sizes = q.cardinalities
    changes = [(i, offset) for i, size in enumerate(sizes) for offset in range(1, size)]
    variable = integers([i for i, _ in changes], q.device)
    offset = integers([offset for _, offset in changes], q.device)
    category = (index[..., variable] + offset) % integers(sizes, q.device)[variable]
    return variable.view(-1, *[1] * (index.dim() - 1)), category.movedim(-1, 0)


class Interventions(NamedTuple):
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

    x: Draws
    moved: Int64[Tensor, "moves n *batch d"]
    variable: Categories
    category: Categories
    weight: Float[Tensor, "moves n *batch"]


def alternatives_per_variable(q: Ordered, categories: int | None) -> list[int]:
    """Return how many other categories of each variable are evaluated: none of fixed ones."""
    most = max(q.cardinalities) if categories is None else categories + 1
    return [0 if i in q.fixed else min(size - 1, most) for i, size in enumerate(q.cardinalities)]


class Sweep:
    """One ancestral pass that makes draws and all their interventions, block by block.

    A group of rows is the n draws under one move; group 0 is the base.

    Attributes:
        noise: uniforms for the base and every move, or for all of them.
        x: the base draws; None: they are drawn as well.
        suffix: how the uniforms are used; see :class:`SCateR`.
        points: what has been made so far.
        state: of conditionals that are computed step by step.
    """

    def __init__(self, q: Factors, noise: Tensor, x: Draws | None, suffix: Suffix) -> None:
        self.q = q.ordered
        self.validate = q.validate
        self.noise = noise
        self.x = x
        self.suffix = suffix
        self.device = noise.device
        self.shape = (noise.shape[1], *q.batch_shape)
        self.state: Any = None
        self.points: Tensor

    def of_all(self, categories: int | None) -> Interventions:
        """Intervene on all variables.

        At each block, the base and the groups whose variable is an ancestor draw the block again,
        and the other groups copy the base. Then each variable of the block starts new groups, which
        have copied the base so far.
        """
        q, n = self.q, self.shape[0]
        counts = alternatives_per_variable(q, categories)
        self._begin(sum(counts))
        category = [torch.zeros((0, *self.shape), dtype=torch.int64, device=self.device)]
        weight = [self.noise.new_zeros((0, *self.shape))]
        variable: list[int] = []
        for block, variables in enumerate(q.blocks):
            index, started = as_index(variables), 1 + len(variable)
            active = [0, *(g for g, i in enumerate(variable, 1) if i in q.ancestors[block])]
            all_active = len(active) == started
            groups = slice(0, started) if all_active else integers(active, self.device)
            log_probs, drawn = self._draw(block, groups)
            points = self.points[..., index]
            points[:] = drawn[0]
            points[groups] = drawn
            self.points[..., index] = points
            for position, i in enumerate(variables):
                if counts[i] == 0:
                    continue
                u = self.noise[-1, ..., i, 0] if self.suffix == "gumbel" else self.noise[-1, ..., i]
                log_prob = log_probs[0, ..., position, : q.cardinalities[i]]
                alternatives = _alternative_categories(
                    log_prob, drawn[0, ..., position], categories, u
                )
                self.points[started : started + counts[i], ..., i] = alternatives[0]
                started += counts[i]
                variable += [i] * counts[i]
                category.append(alternatives[0])
                weight.append(alternatives[1])
            if q.incremental:
                rows = torch.arange(len(active) * n, device=self.device)
                copies = torch.arange(n, device=self.device).repeat(counts[variables[0]])
                self.state = q.select_rows(self.state, torch.cat([rows, copies]))
        moved = integers(variable, self.device).view(-1, *[1] * len(self.shape))
        return self._made(moved.expand(-1, *self.shape), torch.cat(category), torch.cat(weight))

    def of_chosen(self, chosen: Int64[Tensor, "n *batch m"]) -> Interventions:
        """Intervene on the ``chosen`` variables of each draw and batch element.

        Every row passes through all blocks: it copies the base up to its variable, and draws the
        descendants again.
        """
        q, k, m = self.q, max(self.q.cardinalities), chosen.shape[-1]
        variable = chosen.movedim(-1, 0).repeat_interleave(k - 1, 0)
        offset = torch.arange(1, k, device=self.device).repeat(m).view(-1, *[1] * len(self.shape))
        d = len(q.cardinalities)
        is_ancestor = torch.zeros(d, d, dtype=torch.bool, device=self.device)
        for block, variables in enumerate(q.blocks):
            for i in variables:
                is_ancestor[i, integers(sorted(q.ancestors[block]), self.device)] = True
        self._begin(len(variable))
        category = torch.zeros_like(variable)
        for block, variables in enumerate(q.blocks):
            log_probs, drawn = self._draw(block, slice(None))
            for position, i in enumerate(variables):
                base = drawn[0, ..., position]
                alternative = _or_current_if_impossible(
                    (base + offset) % q.cardinalities[i], base, log_probs[0, ..., position, :]
                )
                is_moved = variable == i
                descendant = torch.where(is_ancestor[i][variable], drawn[1:, ..., position], base)
                self.points[0, ..., i] = base
                self.points[1:, ..., i] = torch.where(is_moved, alternative, descendant)
                category = torch.where(is_moved, alternative, category)
        weight = torch.ones_like(category, dtype=torch.promote_types(q.real, torch.float32))
        return self._made(variable, category, weight)

    def _begin(self, moves: int) -> None:
        shape = (1 + moves, *self.shape, len(self.q.cardinalities))
        self.points = torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _made(self, variable: Tensor, category: Tensor, weight: Tensor) -> Interventions:
        return Interventions(self.points[0], self.points[1:], variable, category, weight)

    def _draw(self, block: int, groups: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of a block in some groups, and values drawn from them.

        The values of group 0 are those of x if that is given.
        """
        q, x = self.q, self.x
        index = as_index(q.blocks[block])
        rows = self.points[groups].flatten(0, 1)
        previous = rows[..., q.blocks[block - 1][0]] if block > 0 else None
        if block == 0 and q.incremental:
            self.state = q.start(rows.shape[:-1])
        raw, self.state = q.next_logits(block, rows, self.state, previous)
        log_probs = q.block_log_probs(raw, block, rows.shape[:-1], self.validate)
        log_probs = log_probs.unflatten(0, (-1, self.shape[0]))
        if self.suffix == "gumbel":
            noise = self.noise[:1, ..., index, : log_probs.shape[-1]]
            drawn = (log_probs + gumbels(noise)).argmax(-1)
        elif self.suffix == "independent":
            drawn = inverse_cdf(log_probs.exp(), self.noise[groups][..., index])
        else:
            u = self.noise[:1, ..., index]
            if x is not None:  # the uniform that would have drawn x: one in its interval of the CDF
                p, place = log_probs[0].exp(), x[..., index].unsqueeze(-1)
                low = pad(p.cumsum(-1), (1, 0))[..., :-1].gather(-1, place).squeeze(-1)
                u = (low + u[0] * p.gather(-1, place).squeeze(-1)).unsqueeze(0)
            drawn = inverse_cdf(log_probs.exp(), u)
        if x is not None:
            drawn = torch.cat([x[..., index].unsqueeze(0), drawn[1:]])
        # In torch.func.vmap a tensor that was made here is not mapped, and what is mapped cannot be
        # written into it. Adding zeros that are mapped makes it so.
        if inside_functorch():
            self.points = self.points + torch.zeros_like(drawn[:1, ..., :1])
        return log_probs, drawn


def _alternative_categories(
    log_probs: Float[Tensor, "n *batch k"],
    current: Int64[Tensor, "n *batch"],
    categories: int | None,
    u: Float[Tensor, "n *batch"],
) -> tuple[Categories, Float[Tensor, "moves n *batch"]]:
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
    category: Categories, current: Int64[Tensor, "n *batch"], log_probs: Float[Tensor, "n *batch k"]
) -> Categories:
    """Return the categories, those of probability zero replaced by the draw's own."""
    picked = log_probs.gather(-1, category.movedim(0, -1)).movedim(-1, 0)
    return torch.where(picked > -torch.inf, category, current)
