"""SCateR: the CatLog-Derivative trick for dependent variables."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_choice, check_count, check_generator
from ...distributions.conditionals import Conditionals, structure, view
from ...distributions.factors import Factors
from ...estimator import ANY, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate, evaluate_chunked
from ...sampling.draw import base_draws
from ...sampling.interventions import (
    SUFFIXES,
    Interventions,
    Suffix,
    all_interventions,
    alternatives_per_variable,
    chosen_interventions,
    noise_shape,
)
from ...sampling.randomness import given_or_rand
from ...sampling.subsets import deal_variables
from .indecater import IndeCateR


@dataclass(frozen=True, repr=False)
class SCateR(FromDraws):
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
        validate: check the values of f and q for NaN and inf (eager mode only).

    >>> from catlog import MarkovChain
    >>> logits = torch.zeros(2, 2, requires_grad=True)
    >>> q = MarkovChain(torch.zeros(2), logits, length=3)
    >>> E = SCateR(samples=2)
    >>> E.evaluations(q), E(lambda x: (x[..., 0] != x[..., 2]), q).shape
    (8, torch.Size([]))
    """

    samples: int = 1
    suffix: Suffix = "independent"
    variables: int | None = None
    categories: int | None = None
    chunk_size: int | None = None
    validate: bool = True

    unbiased = True
    supports = ANY
    differentiates_f = False
    reference = "De Smet et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("SCateR", "suffix", self.suffix, SUFFIXES)
        for name in ("variables", "categories", "chunk_size"):
            if getattr(self, name) is not None:
                check_count("SCateR", name, getattr(self, name))
        if self.variables is not None and self.categories is not None:
            raise ValueError(
                "SCateR: `variables` and `categories` exclude each other; give one of them."
            )

    @property
    def randomness(self) -> tuple[str, ...]:
        return ("x",) if self.variables is None else ("x", "chosen")

    def evaluations(self, q: Distribution) -> int:
        return self.samples * (1 + self._moves(view(q, validate=False)))

    def _moves(self, law: Factors | Conditionals) -> int:
        """Return the number of interventions in one draw."""
        if self.variables is not None:
            check_count(
                "SCateR", "variables", self.variables, most=law.d, hint=f"q has {law.d} variables."
            )
            return self.variables * (law.k - 1)
        return sum(alternatives_per_variable(structure(law), self.categories))

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        chosen: Int64[Tensor, "n *batch m"] | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = view(q, outputs=outputs, validate=self.validate)
        moves = self._moves(law)
        needs_sweep = self.categories is not None or noise is not None
        if isinstance(law, Factors) and not needs_sweep and (self.variables or chosen is None):
            # Nothing is resampled, so no more than a chunk of the points has to exist at once.
            E = IndeCateR(
                self.samples,
                variables=self.variables,
                control="none",
                chunk_size=self.chunk_size,
                validate=self.validate,
            )
            return E(f, q, x=x, chosen=chosen, outputs=outputs, generator=generator)
        interventions = self._interventions(law, moves, x, chosen, noise, generator)
        fx = evaluate(f, law.point(interventions.x), law)
        table = self._table(f, fx, law, interventions)
        # Weighted by the conditionals at the base draws, in one differentiable pass.
        probs = structure(law).log_conditionals(interventions.x, self.validate).exp()
        change = (probs * table).sum((-1, -2)).mean(0)
        base = fx.mean(0)
        return attach(base + change / law.d, base + change)

    def _interventions(
        self,
        law: Factors | Conditionals,
        moves: int,
        x: Tensor | None,
        chosen: Tensor | None,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Interventions:
        """Draw base points and, for every other category, the variables that depend on it."""
        ordered = structure(law)
        check_generator(generator, law.device)
        index = None if x is None else law.index(base_draws(law, x, self.samples))
        if index is not None and self.suffix == "gumbel" and any(ordered.ancestors):
            raise ValueError(
                "x: with suffix='gumbel' the draws come from Gumbel noise; give `noise` or a "
                "`generator` instead."
            )
        n = self.samples if index is None else index.shape[0]
        shape = noise_shape(ordered, n, self.suffix, self.categories, moves)
        noise = given_or_rand(noise, shape, "[groups, n, *batch, d]", law, generator, lead=2)
        with torch.no_grad():
            if self.variables is None and chosen is None:
                return all_interventions(
                    ordered, noise, index, self.suffix, self.categories, self.validate
                )
            chosen = deal_variables("SCateR", law, n, self.variables, chosen, generator)
            return chosen_interventions(ordered, noise, chosen, index, self.suffix, self.validate)

    def _table(
        self, f: Function, fx: Tensor, law: Factors | Conditionals, interventions: Interventions
    ) -> Float[Tensor, "n *batch d k"]:
        """Return f after each intervention less f at the base draw, by variable and category."""
        with torch.no_grad():
            flat = interventions.moved.flatten(0, 1)
            values = evaluate_chunked(
                f, lambda part: law.point(flat[part]), len(flat), law, chunk_size=self.chunk_size
            )
            change = values.unflatten(0, (len(interventions.moved), len(fx))) - fx.detach()
            variable, category = interventions.variable, interventions.category
            slot = (variable * law.k + category).movedim(0, -1)
            is_drawn = category == interventions.x.movedim(-1, 0).gather(0, variable)
            change = (change * interventions.weight).masked_fill(is_drawn, 0.0).movedim(0, -1)
            if self.variables is not None:
                change = change * (law.d / self.variables)
            empty = change.new_zeros((*fx.shape, law.d * law.k))
            table = empty.scatter(-1, slot.expand(change.shape), change)
            return table.unflatten(-1, (law.d, law.k))
