"""Base draws: points of q by inverse CDF, from uniforms that a generator makes.

Under every scheme each draw is distributed as q, so that an average over draws keeps its
expectation. Schemes differ in how the n draws depend on each other.
"""

from math import prod
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Int16, Int64
from torch import Tensor

from ..checks import check_dense, check_device, check_generator
from ..distributions.conditionals import Conditionals, without_outputs
from ..distributions.factors import Factors
from ..distributions.integers import integers
from ..distributions.inverse_cdf import inverse_cdf
from ..estimator import FromDraws, Kind
from ..tracing import can_inspect
from .randomness import rand

Draws = Literal["independent", "antithetic", "latin"]
DRAWS: tuple[str, ...] = get_args(Draws)
MOST_COUNTED, MOST_INSERTED = 8, 128  # keys; more of them take longer than sorting


def uniforms(
    n: int,
    shape: tuple[int, ...],
    draws: Draws = "independent",
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n *shape"]:
    """Return ``n`` uniforms for every element of ``shape``.

    - independent: no relation between them.
    - antithetic: in pairs u and 1 - u (if n is odd, the last has no partner).
    - latin: one in each of the n strata [i/n, (i+1)/n), permuted independently for every element
      (McKay et al., 1979).
    """
    check_generator(generator, device)

    def fresh(rows: int) -> Tensor:
        return rand((rows, *shape), dtype=dtype, device=device, generator=generator)

    if draws == "antithetic":
        half = fresh((n + 1) // 2)
        return torch.cat([half, 1 - half])[:n]
    if draws == "latin":
        return (_permutations(fresh(n)) + fresh(n)) / n
    return fresh(n)


def uniforms_for(
    law: Factors | Conditionals, n: int, generator: torch.Generator | None
) -> Float[Tensor, "n *batch d"]:
    """Return independent uniforms for n draws of q."""
    shape = (*law.batch_shape, law.d)
    return uniforms(n, shape, dtype=law.real, device=law.device, generator=generator)


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


def categories(
    law: Factors | Conditionals, u: Float[Tensor, "n *lead d"]
) -> Int64[Tensor, "n *lead d"]:
    """Return the categories whose intervals of the CDF contain ``u``, never impossible ones."""
    if isinstance(law, Conditionals):
        with torch.no_grad():
            return law.q.from_uniforms(u, law.validate)
    return inverse_cdf(law.probs.detach(), u)


def base_draws(
    law: Factors | Conditionals,
    x: Tensor | None,
    n: int,
    draws: Draws = "independent",
    *,
    groups: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the points given as ``x``, checked, or draw ``n`` points (see :func:`draw`)."""
    check_generator(generator, law.device)
    if x is None:
        return draw(law, n, draws, groups=groups, generator=generator)
    x = _check_form(law, x, prod(groups))
    x = x.detach()
    points = x.to(law.dtype)
    if can_inspect(law.validate, x):
        is_bit = (x == 0) | (x == 1)
        if law.kind == Kind.BITS and not bool(is_bit.all()):
            raise ValueError(
                "x must hold zeros and ones, as a Bernoulli distribution draws them, but other "
                "numbers were given."
            )
        if law.kind == Kind.ONE_HOT and not bool((is_bit.all(-1) & ((x == 1).sum(-1) == 1)).all()):
            raise ValueError(
                "x must hold one-hot vectors, a single 1 among zeros, but others were given."
            )
        if law.kind == Kind.INDEX and x.is_floating_point() and bool((x != x.round()).any()):
            raise ValueError("x must hold whole numbers, as q.sample() gives them.")
        _check_possible(law, law.index(points))
    return points


def draws_for(
    E: FromDraws, law: Factors | Conditionals, x: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """Return the points given as ``x``, checked, or the independent draws of an estimator."""
    points = base_draws(law, x, E.samples, generator=generator)
    if x is not None and E.least_samples > 1:
        E.check_draws("x.shape[0]", points.shape[0])
    return points


def _check_form(law: Factors | Conditionals, x: object, step: int) -> Tensor:
    """Return x with output dimensions; raise unless it is like ``q.sample((n,))``, n a multiple of
    ``step``."""
    tail = without_outputs(law) + law.event_shape
    rows = "n" if step == 1 else f"n * {step}"
    expected = f"shape [{rows}, *batch, *event] = [{', '.join([rows, *map(str, tail)])}]"
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor of {expected}, but {type(x).__name__} was given.")
    check_dense("x", x)
    if x.shape[1:] != tail or x.dim() != len(tail) + 1 or x.shape[0] == 0 or x.shape[0] % step:
        raise ValueError(f"x must have {expected}, but {tuple(x.shape)} was given.")
    check_device("x", x, law.device)
    if x.is_complex() or (
        law.kind == Kind.INDEX
        and not law.dtype.is_floating_point
        and (x.is_floating_point() or x.dtype == torch.bool)
    ):
        raise TypeError(
            f"x must hold points of {law.dtype}, as q.sample() gives them, but {x.dtype} was given."
        )
    return x.reshape(x.shape[:1] + law.batch_shape + law.event_shape)


def _check_possible(law: Factors | Conditionals, index: Int64[Tensor, "n *batch d"]) -> None:
    """Raise if a given point cannot be drawn: its score and its weight would be meaningless."""
    size = integers(law.cardinalities, index.device)
    possible = ((index >= 0) & (index < size)).all(-1)
    if bool(possible.all()):
        with torch.no_grad():
            possible = law.log_prob(index) > -torch.inf
    if can_inspect(True, possible) and not bool(possible.all()):
        bad = tuple((~possible).nonzero()[0].tolist())
        raise ValueError(
            f"x holds a point that q cannot draw: {index[bad].tolist()} at index {bad} has "
            "probability zero."
        )


def draw(
    law: Factors | Conditionals,
    n: int,
    draws: Draws = "independent",
    *,
    groups: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw ``[n * groups, *batch, *event]`` points of q.

    The n draws of one group follow the scheme; groups are independent.
    """
    if draws == "independent" and isinstance(law, Conditionals):
        check_generator(generator, law.device)
        points = law.q.direct_draws(n * prod(groups), generator)
        if points is not None:
            return law.point(points)
    shape = groups + tuple(law.batch_shape) + (law.d,)
    u = uniforms(n, shape, draws, dtype=law.real, device=law.device, generator=generator)
    return law.point(categories(law, u).reshape((n * prod(groups), *law.batch_shape, law.d)))
