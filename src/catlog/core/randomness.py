"""Where a call takes its randomness from: a generator, or what the caller provides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Int16, Int64
from torch import Tensor

from .categories import inverse_cdf
from .checks import check_count, check_dense, check_device, check_generator, refusal, shape_or_type
from .factors import Factors
from .tracing import can_inspect

Sampling = Literal["independent", "antithetic", "latin"]
MOST_COUNTED, MOST_INSERTED = 8, 128  # keys; more of them take longer than sorting


class Randomness:
    """The randomness of one call: a tape.

    Points come from :meth:`points`, all else from :meth:`uniform` and :meth:`variables`. A caller
    may provide both, so that the call is deterministic: for replay, common random numbers, tests by
    enumeration.

    Attributes:
        q: the factors that points are drawn from.
        x: the points that were given, or None.
        taken: what was drawn or read so far: names and shapes.
    """

    def __init__(
        self,
        q: Factors,
        x: Tensor | None = None,
        noise: tuple[Tensor, ...] | Tensor | None = None,
        generator: torch.Generator | None = None,
        owner: str = "E",
        least: int = 1,
        hint: str = "",
    ) -> None:
        check_generator(generator, q.device)
        self.q = q
        self.x = x
        self.noise: list[object] | None = None
        if noise is not None:
            self.noise = [noise] if isinstance(noise, Tensor) else list(noise)
        self.generator = generator
        self.owner = owner
        self.least = least
        self.hint = hint
        self.taken: list[tuple[str, tuple[int, ...]]] = []

    def points(
        self,
        n: int,
        sampling: Sampling = "independent",
        groups: int = 1,
        probs: Float[Tensor, "*batch d k"] | None = None,
    ) -> Tensor:
        """Return n points of q, ``[n * groups, *batch, *event]``; the groups are independent.

        Every point is distributed as q. How the n of a group depend on each other:

        - independent: not at all.
        - antithetic: in pairs, made from uniforms u and 1 - u (if n is odd, the last has none).
        - latin: stratified. Every variable has one uniform in each of the n strata
          [i/n, (i+1)/n), in a random order (McKay et al., 1979).

        ``probs``: of the categories, where they are not those of q.
        """
        q = self.q
        x = self.given_points(n, groups)
        if x is not None:
            return x
        if sampling == "independent":
            direct = q.direct_draws(n * groups, self.generator)
            if direct is not None:
                return q.point(direct)
            u = self._rand((n * groups, *q.batch_shape, q.d))
        else:
            # Not even a dimension of size 1, at which compilers would end a kernel.
            lead = () if groups == 1 else (groups,)
            u = self._dependent(n, (*lead, *q.batch_shape, q.d), sampling)
            u = u.flatten(0, 1) if lead else u
        if probs is not None:
            return q.point(inverse_cdf(probs, u))
        return q.draw(u)

    def uniform(
        self, *shape: int, batch_from: int | None = None, closed: bool = False
    ) -> Float[Tensor, "..."]:
        """Return uniforms in [0, 1), ``[*shape]``.

        Args:
            shape: with the batch (and its output dimensions of size 1) somewhere inside.
            batch_from: where the batch begins; None: there is none. Given uniforms may lack the
                output dimensions.
            closed: whether given uniforms may be 1.
        """
        self.taken.append(("uniform", shape))
        if self.noise is None:
            return self._rand(shape)
        u, real = self._next(shape, batch_from), self.q.real
        if not u.is_floating_point():
            raise TypeError(f"noise: uniforms of shape {shape} come next, but {u.dtype} was given.")
        if can_inspect(self.q.validate, u):
            inside = (u >= 0) & (u <= 1 if closed else u < 1)
            if not bool(inside.all()):
                claim = f"hold numbers in [0, 1{']' if closed else ')'}"
                raise refusal("noise", claim, "others were given")
        if u.dtype == real or closed:
            return u.to(real)
        return u.to(real).clamp(max=1 - torch.finfo(real).eps / 2)  # where rounding gave 1

    def given_points(self, n: int, groups: int = 1) -> Tensor | None:
        """Return the points given; None where a method should make n points itself."""
        self.taken.append(("points", (n * groups,)))
        if self.x is None:
            return None
        return checked_points(self.q, self.x, self.owner, groups, self.least, self.hint)

    def uniforms(
        self, n: int, *shape: int, sampling: Sampling = "independent"
    ) -> Float[Tensor, "n *shape"]:
        """Return n uniforms for every element of ``shape``, which begins with the batch and whose n
        depend on each other as those of :meth:`points`."""
        if self.noise is not None or sampling == "independent":
            return self.uniform(n, *shape, batch_from=1)
        self.taken.append(("uniform", (n, *shape)))
        return self._dependent(n, shape, sampling)

    def variables(self, n: int, m: int) -> Int64[Tensor, "n *batch m"]:
        """Return m different variables for each of n draws.

        Every batch element has one shuffled deck of its d variables, dealt in turn. Each variable
        is as likely as any other, and over n draws no two variables' counts differ by more than 1.
        """
        q = self.q
        check_count(self.owner, "variables", m, most=q.d, hint=f"q has {q.d} variables.")
        self.taken.append(("variables", (n, *q.batch_shape, m)))
        if self.noise is not None:
            return self._given_variables(n, m)
        deck = rand((*q.batch_shape, q.d), None, q.device, self.generator).argsort(-1)
        turn = torch.arange(n * m, device=deck.device) % q.d
        return deck[..., turn].unflatten(-1, (n, m)).movedim(-2, 0)

    def coin(self) -> float:
        """Return one uniform as a number, without waiting for a GPU."""
        if self.noise is not None:
            return float(self.uniform())
        self.taken.append(("uniform", ()))
        device = torch.device("cpu") if self.generator is None else self.generator.device
        return float(rand((), None, device, self.generator))

    def check_used(self) -> None:
        """Raise if something was given that the call did not use."""
        names = {name for name, _ in self.taken}
        if self.x is not None and "points" not in names:
            advice = "; give `noise` or a `generator` instead" if names else ", as it draws nothing"
            raise ValueError(f"x: {self.owner} cannot use it{advice}.")
        if self.noise:
            shapes = [f"{name} {shape}" for name, shape in self.taken if name != "points"]
            raise ValueError(
                f"noise: {self.owner} used all but {len(self.noise)} of the given tensors. Give "
                f"what it draws besides points, in order: {', '.join(shapes) or 'nothing'}; else "
                f"give {'`x` or ' if 'points' in names else ''}a `generator`."
            )

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        return rand(shape, self.q.real, self.q.device, self.generator)

    def _dependent(self, n: int, shape: tuple[int, ...], sampling: Sampling) -> Tensor:
        if sampling == "antithetic":
            half = self._rand(((n + 1) // 2, *shape))
            u = torch.cat([half, 1 - half])[:n]
        else:
            u = (_permutations(self._rand((n, *shape))) + self._rand((n, *shape))) / n
        # Both may be 1 by rounding, which draws impossible bits, and where a Gumbel is infinite.
        return u.clamp(max=1 - torch.finfo(u.dtype).eps / 2)

    def _given_variables(self, n: int, m: int) -> Tensor:
        q = self.q
        shape = (n, *q.batch_shape, m)
        chosen = self._next(shape, 1)
        if chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
            raise TypeError(
                f"noise: numbers of variables, integers of shape {shape}, come next, but "
                f"{chosen.dtype} was given."
            )
        if can_inspect(q.validate, chosen):
            is_number = (chosen >= 0) & (chosen < q.d)
            repeated = chosen.sort(-1).values.diff(dim=-1) == 0
            if not bool(is_number.all()) or bool(repeated.any()):
                numbers = f"{m} different numbers of variables from 0 to {q.d - 1}"
                raise ValueError(f"noise: each draw must have {numbers}, but others were given.")
        return chosen.long()

    def _next(self, shape: tuple[int, ...], batch_from: int | None) -> Tensor:
        """Return the next tensor given, with output dimensions; raise unless it has this shape."""
        value = self.noise.pop(0) if self.noise else None
        q, without = self.q, shape
        if batch_from is not None and q.outputs:
            end = batch_from + len(q.batch_shape)
            without = shape[: end - q.outputs] + shape[end:]
        if not isinstance(value, Tensor) or tuple(value.shape) not in (shape, without):
            raise ValueError(
                f"noise: a tensor of shape {without} comes next, number "
                f"{sum(name != 'points' for name, _ in self.taken)}, but {shape_or_type(value)} "
                "was given."
            )
        check_device("noise", value, q.device)
        return value.detach().reshape(shape)


def rand(
    shape: Sequence[int],
    dtype: torch.dtype | None,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    """Return uniforms; torch.compile rejects ``generator=None`` beside a symbolic size."""
    if generator is None:
        return torch.rand(tuple(shape), dtype=dtype, device=device)
    return torch.rand(tuple(shape), dtype=dtype, device=device, generator=generator)


def checked_points(q: Factors, x: Any, owner: str, groups: int, least: int, hint: str) -> Tensor:
    """Return points given by the caller, with output dimensions; raise unless q can draw them."""
    tail = q.seen_batch + q.event_shape
    rows = "n" if groups == 1 else f"n * {groups}"
    expected = f"shape [{rows}, *batch, *event] = [{', '.join([rows, *map(str, tail)])}]"
    if not isinstance(x, Tensor):
        but = f"{type(x).__name__} was given"
        raise refusal("x", f"be a tensor of {expected}", but, kind=TypeError)
    if x.shape[1:] != tail or x.dim() != len(tail) + 1 or len(x) == 0 or len(x) % groups:
        raise refusal("x", f"have {expected}", f"{tuple(x.shape)} was given")
    if len(x) < least:
        check_count(owner, "x.shape[0]", len(x), least, hint=hint)
    check_dense("x", x)
    check_device("x", x, q.device)
    of_integers = not q.dtype.is_floating_point
    if x.is_complex() or (of_integers and (x.is_floating_point() or x.dtype == torch.bool)):
        claim = f"hold points of {q.dtype}, as q.sample() gives them"
        raise refusal("x", claim, f"{x.dtype} was given", kind=TypeError)
    x = x.detach().reshape(x.shape[:1] + q.batch_shape + q.event_shape)
    points = x.to(q.dtype)
    if can_inspect(q.validate, x):
        q.check_points(x, points)
    return points


def _permutations(keys: Float[Tensor, "n *shape"]) -> Int[Tensor, "n *shape"]:
    """Return a random order of 0, ..., n - 1 for every element, made from uniforms.

    Few keys are ranked by counting, which is faster than sorting and, compiled, fuses with later
    operations. Two equal keys would share a rank, but two uniforms are equal with a probability of
    about their rounding error. On a CPU, some more of them are inserted one by one.
    """
    if len(keys) <= MOST_COUNTED:
        return (keys < keys.unsqueeze(1)).sum(1, dtype=torch.int16)  # int64 takes twice as long
    is_eager = keys.device.type == "cpu" and not torch.compiler.is_compiling()
    return _insertions(keys) if is_eager and len(keys) <= MOST_INSERTED else keys.argsort(0)


def _insertions(keys: Float[Tensor, "n *shape"]) -> Int16[Tensor, "n *shape"]:
    """Return a random order: the i-th of n takes a uniform rank among the first i, and the ranks
    from there on move up by one.

    >>> _insertions(torch.tensor([0.9, 0.1, 0.5])).tolist()  # ranks 0; then 1, 0; then 2, 0, 1
    [2, 0, 1]
    """
    sizes = torch.arange(1, len(keys) + 1, device=keys.device)
    inserted = (keys * sizes.view(-1, *[1] * (keys.dim() - 1))).to(torch.int16)
    ranks = inserted.clone()
    for i in range(1, len(keys)):
        ranks[:i] += ranks[:i] >= inserted[i]
    return ranks


@contextmanager
def seeded_from(generator: torch.Generator | None) -> Iterator[None]:
    """Seed torch's global generators from ``generator`` (None: do not), and restore them after.

    This is for the samplers of torch.distributions, which take no generator.
    """
    if generator is None:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def exponentials(like: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Return standard exponential noise, of the shape, dtype and device of ``like``.

    It is drawn as ``torch.nn.functional.gumbel_softmax`` draws it, so both use a seed alike.
    """
    noise = torch.empty_like(like, memory_format=torch.legacy_contiguous_format)
    return noise.exponential_() if generator is None else noise.exponential_(generator=generator)
