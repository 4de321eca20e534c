"""Markov chains of categorical variables, with or without observations."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ..core.categories import as_logits, cdf_steps, inverse_cdf, softmax
from ..core.checks import broadcasts, check_count, check_is_tensor, check_together, refusal
from ..core.ordered import Ordered, entropy_of
from ..core.tracing import can_inspect


class MarkovChain(Ordered):
    r"""A Markov chain of states, with or without observations.

    .. math::
        q(z) = \pi(z_1) \prod_{t>1} A(z_t \mid z_{t-1}), \qquad
        q(z, o) = q(z) \prod_t B(o_t \mid z_t)

    The event is the states ``z_1 ... z_T`` and, with ``emission``, the observations ``o_1 ... o_T``
    after them.

    Args:
        initial: logits ``[*batch, k]``; the chain has this batch shape.
        transition: logits ``[*batch, k, k]`` (next given row), the same at every step, or
            ``[*batch, T - 1, k, k]``; one table ``[k, k]`` serves every batch element and step.
        length: T, at least 1; needed unless ``transition`` has one table per step.
        emission: logits ``[*batch, k, o]`` of an observation given a state, or ``[k, o]``.

    >>> q = MarkovChain(torch.zeros(2), torch.tensor([[9.0, 0.0], [0.0, 9.0]]), length=4)
    >>> q.log_prob(torch.tensor([1, 1, 1, 1])).exp()
    tensor(0.4998)
    """

    def __init__(
        self,
        initial: Float[Tensor, "*batch k"],
        transition: Tensor,
        length: int | None = None,
        emission: Float[Tensor, "*emission_batch k o"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_is_tensor("MarkovChain", "initial", initial, "[*batch, k]")
        check_is_tensor("MarkovChain", "transition", transition, "[*batch, k, k]")
        check_together("MarkovChain", "transition", transition, "`initial`", initial.device)
        if emission is not None:
            check_is_tensor("MarkovChain", "emission", emission, "[*batch, k, o]")
            check_together("MarkovChain", "emission", emission, "`initial`", initial.device)
        if initial.dim() == 0 or initial.shape[-1] == 0 or transition.dim() < 2:
            raise ValueError(
                "MarkovChain: `initial` must have shape [*batch, k] with k of at least 1, and "
                "`transition` [*batch, k, k] or [*batch, T - 1, k, k], but "
                f"{tuple(initial.shape)} and {tuple(transition.shape)} were given."
            )
        k, batch = initial.shape[-1], initial.shape[:-1]
        if length is None and serves_every_step(transition, batch):
            raise ValueError(
                "MarkovChain: `length` is needed if one `transition` serves every step."
            )
        if length is None:
            length = transition.shape[-3] + 1
        check_count("MarkovChain", "length", length)
        check_tables("MarkovChain", "transition", transition, (*batch, length, k))
        if emission is not None and (
            emission.dim() < 2
            or emission.shape[-1] == 0
            or emission.shape[-2] != k
            or not broadcasts(emission.shape[:-2], batch)
        ):
            claim = f"have shape [*batch, {k}, o] to go with `initial` {tuple(initial.shape)}"
            raise refusal("MarkovChain: `emission`", claim, f"{tuple(emission.shape)} was given")
        # Widened here, so that gradients add up in float32.
        self.initial = as_logits(initial)
        self.transition = as_logits(transition)
        self.emission = None if emission is None else as_logits(emission)
        self.shared = serves_every_step(transition, batch)
        self.length = length
        self.cardinalities = (k,) * length
        self.blocks = tuple((t,) for t in range(length))
        self.ancestors = tuple(range(t) for t in range(length))
        if emission is not None:
            self.cardinalities += (emission.shape[-1],) * length
            self.blocks += (tuple(range(length, 2 * length)),)
            self.ancestors += (range(length),)
        self.real = self.initial.dtype
        self.device = initial.device
        super().__init__(batch, torch.Size([len(self.cardinalities)]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        if block == 0:
            return self.initial.unsqueeze(-2).expand(*x.shape[:-1], 1, -1)
        if block == self.length:
            return self._observations(x)
        return lookup(self._table(block), x[..., block - 1]).unsqueeze(-2)

    def raw_logits(self, x: Tensor) -> Tensor:
        before = x[..., : self.length - 1]
        tables = self.transition.unsqueeze(-3) if self.shared else self.transition
        parts = [self.conditional(x, 0), lookup(tables, before)]
        return self.by_variable(parts if self.emission is None else [*parts, self._observations(x)])

    def from_uniforms(self, u: Tensor, validate: bool = True) -> Tensor:
        # As Ordered does it, but with the CDFs of all states made at once, and draws beside states.
        with torch.no_grad():
            first = cdf_steps(softmax(self.initial)).unsqueeze(-2)
            steps = [first.expand(*u.shape[1:-1], len(u), -1)]
            tables = cdf_steps(softmax(self.transition))
            uniforms = u[..., : self.length].movedim(0, -1).unsqueeze(-1).unbind(-3)
            states = [(uniforms[0] >= steps[0]).sum(-1)]
            for t in range(1, self.length):
                table = tables if self.shared else tables.select(-3, t - 1)
                steps.append(rows_of(table, states[-1]))
                states.append((uniforms[t] >= steps[t]).sum(-1))
            x = torch.stack(states, -1).movedim(-2, 0).clone(memory_format=torch.contiguous_format)
            seen = [torch.stack(steps)]
            if self.emission is not None:
                seen.append(softmax(self._observations(x)))
                x = torch.cat([x, inverse_cdf(seen[-1], u[..., self.length :])], -1)
            if can_inspect(validate, x) and any(bool(rows.isnan().any()) for rows in seen):
                self.log_conditionals(x)  # raises an error
            return x

    def _observations(self, x: Tensor) -> Float[Tensor, "n *batch T o"]:
        """Return the logits of all observations, given the states."""
        assert self.emission is not None
        return lookup(self.emission.unsqueeze(-3), x[..., : self.length])

    def _table(self, t: int) -> Float[Tensor, "*batch k k"]:
        """Return the logits of state t given the one before it."""
        return self.transition if self.shared else self.transition.select(-3, t - 1)

    def entropy(self) -> Tensor:
        """Return the exact entropy, by the marginals of the states."""
        states = self.marginals()[..., : self.length, : self.initial.shape[-1]]
        of_steps = entropy_of(self.transition.log_softmax(-1), -1)
        of_steps = of_steps.unsqueeze(-2) if self.shared else of_steps
        entropy = entropy_of(self.initial.log_softmax(-1), -1)
        entropy = entropy + (states[..., :-1, :] * of_steps).sum((-1, -2))
        if self.emission is None:
            return entropy
        of_observations = entropy_of(self.emission.log_softmax(-1), -1).unsqueeze(-2)
        return entropy + (states * of_observations).sum((-1, -2))

    def marginals(self) -> Float[Tensor, "*batch d k"]:
        """Return the exact probabilities of every state, and of every observation, at each time."""
        marginal = self.initial.softmax(-1)
        states = [marginal]
        for t in range(1, self.length):
            # Not a matrix product, which autocast would compute in fewer bits.
            marginal = (marginal.unsqueeze(-1) * self._table(t).softmax(-1)).sum(-2)
            states.append(marginal)
        parts = [torch.stack([state.expand_as(marginal) for state in states], -2)]
        if self.emission is not None:
            emission = self.emission.softmax(-1).unsqueeze(-3)
            parts.append((parts[0].unsqueeze(-1) * emission).sum(-2))
        most = max(self.cardinalities)
        table = torch.cat([pad(part, (0, most - part.shape[-1])) for part in parts], -2)
        return table.expand(self.batch_shape + table.shape[-2:])


def serves_every_step(tables: Tensor, batch: torch.Size) -> bool:
    """Return whether there is one table ``[k, k]`` or ``[*batch, k, k]`` for all steps."""
    return tables.dim() in (2, len(batch) + 2)


def check_tables(owner: str, name: str, tables: Tensor, states: tuple[int, ...]) -> None:
    """Raise unless the tables of pairs fit chains of ``states`` [*batch, T, k]."""
    *batch, length, k = states
    is_shared = serves_every_step(tables, torch.Size(batch))
    table = (k, k) if is_shared else (length - 1, k, k)
    lead, tail = tables.shape[: -len(table)], tables.shape[-len(table) :]
    if tail != table or not broadcasts(lead, tuple(batch)):
        shapes = [[k, k], [*batch, k, k], [*batch, length - 1, k, k]]
        *fitting, last = [str(shape) for shape in (shapes if batch else shapes[1:])]
        raise ValueError(
            f"{owner}: `{name}` must have shape {', '.join(fitting)} or {last} ([*batch, k, k] or "
            f"[*batch, T - 1, k, k]) to go with {length} states of {k} categories, but "
            f"{tuple(tables.shape)} was given. If it lacks the batch, expand it."
        )


def lookup(
    table: Float[Tensor, "*#batch states k"], index: Int64[Tensor, "n *batch"]
) -> Float[Tensor, "n *batch k"]:
    """Return the rows of a (batched) table at ``index``."""
    if table.numel() == table.shape[-2:].numel():
        return table.flatten(0, -2)[index]
    return rows_of(table, index.movedim(0, -1)).movedim(-2, 0)


def rows_of(
    table: Float[Tensor, "*#batch states k"], index: Int64[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n k"]:
    """Return n rows of every table of a batch."""
    if table.numel() == table.shape[-2:].numel():
        return table.flatten(0, -2)[index]
    # All rows of a table at once, as the derivative is a table for each gather.
    table = table.expand(index.shape[:-1] + table.shape[-2:])
    return table.gather(-2, index.unsqueeze(-1).expand(*index.shape, table.shape[-1]))
