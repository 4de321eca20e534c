"""A part of f with a known mean, as a control variate for the whole."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ..core.abilities import has_mean
from ..core.checks import check_function, check_number
from ..core.evaluator import Evaluator, Function
from ..core.learning import frozen, learns, write
from ..core.view import view


class Known(nn.Module):
    r"""A function f with a part whose mean is known; the estimator sees only the rest.

    .. math:: \mathbb{E}[f] = \mathbb{E}[f - c\,g] + c\,\mathbb{E}[g]

    g is the part, a function with a method ``expectation(q)`` (see :mod:`catlog.functions`). It
    need not be a summand of f: any g that is correlated with f will do. The estimator evaluates
    :math:`f(x) - c\,(g(x) - \mathbb{E}[g])`, where g adds no error to the mean or its gradient:

    ``E(known.under(q), q)``

    :func:`catlog.compare` and :func:`catlog.advise` take ``known`` itself.

    The estimate is unbiased if E is, whatever c is. c is the regression coefficient of f on g over
    the points of *earlier* calls (within each batch element, in training mode); ``under`` reads it
    before anything is drawn. It is saved in ``state_dict``. Estimators that sum g out anyway, such
    as IndeCateR with an :class:`Additive` part, gain nothing from it.

    If f or the part changes between steps (a new minibatch), assign ``known.f`` and ``known.part``;
    c is kept.

    Cost: one evaluation of g for each evaluation of f, and the mean of g once per call. Needs:
    whatever E needs of f. Their tables (``neighbours``) are not used.

    Args:
        f: the function.
        part: g, a function with a known mean.
        coefficient: c before the first call; 1 where the part is a summand of f.
        decay: of the moving averages behind c, per call of f.

    >>> from catlog import RLOO
    >>> from catlog.functions import Additive
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> part = Additive(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]))
    >>> known = Known(lambda x: part(x) + 5, part)
    >>> RLOO(2)(known.under(q), q).backward()
    >>> logits.grad
    tensor([0.2500, 0.5000, 0.7500])
    """

    def __init__(
        self, f: Function, part: Function, coefficient: float = 1.0, decay: float = 0.99
    ) -> None:
        super().__init__()
        check_function(f)
        check_number("Known", "coefficient", coefficient)
        check_number("Known", "decay", decay, 0, 1)
        if not has_mean(part):
            raise TypeError(
                "Known: `part` must know its mean, by a method `expectation(q)`, but "
                f"{type(part).__name__} has none. See catlog.functions for such functions."
            )
        self.f = f
        self.part = part
        self.start = coefficient
        self.decay = decay
        self.register_buffer("product", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(1, dtype=torch.float64))
        self.product: Tensor
        self.square: Tensor

    @property
    def coefficient(self) -> Float[Tensor, "1"]:
        """The coefficient c that the next call of ``under`` reads."""
        is_fitted = self.square > 0
        ratio = self.product / torch.where(is_fitted, self.square, 1.0)
        return torch.where(is_fitted, ratio, self.start)

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        """Return f(x), for code that does not use the part."""
        return self.f(x)

    def under(self, q: Distribution, outputs: int = 0) -> Function:
        """Return the function to pass to E: f less c times the part's deviation from its mean.

        Args:
            q: the distribution that E gets.
            outputs: the number of output dimensions of f and of the part, as for E.
        """
        law = view(q, outputs)
        mean = Evaluator(self.part, law).mean()
        if mean is None:
            raise TypeError(
                f"Known: `part` must know its mean under q, but {type(self.part).__name__} does "
                f"not know it for {type(q).__name__}."
            )
        (coefficient,) = frozen(self, self.coefficient.to(mean.dtype))

        def less_part(x: Tensor) -> Float[Tensor, "n *batch"]:
            fx, gx = _floats(self.f(x.clone()), mean), _floats(self.part(x), mean)
            if fx.shape != gx.shape:
                raise ValueError(
                    "Known: f and its part must return values of the same shape, but they returned "
                    f"{tuple(fx.shape)} and {tuple(gx.shape)}."
                )
            if fx.shape[1:] != mean.shape:
                expected = ", ".join(["n", *map(str, mean.shape)])
                raise ValueError(
                    "Known: `under` must get the distribution that E gets, but with its own f has "
                    f"values of shape [{expected}], and they have shape {list(fx.shape)}. Write "
                    "E(known.under(q), q)."
                )
            if len(fx) > 1 and learns(self, fx):
                self._learn(fx.detach(), gx.detach())
            return fx - coefficient[0] * (gx - mean)

        return less_part

    @torch.no_grad()
    def _learn(self, fx: Tensor, gx: Tensor) -> None:
        """Update the moving averages by the deviations of values from their means."""
        fx, gx = fx - fx.mean(0), gx - gx.mean(0)
        updates = []
        for average, product in ((self.product, fx * gx), (self.square, gx * gx)):
            new = product.sum().view(1).to(average)
            updates.append((average, average.lerp(new, 1 - self.decay)))
        write(updates, together=True)


def _floats(values: object, mean: Tensor) -> Tensor:
    """Return values of a function as floats; indicators are bools."""
    if not isinstance(values, Tensor):
        raise TypeError(
            f"Known: f and its part must return tensors, but one returned {type(values).__name__}."
        )
    return values if values.is_floating_point() else values.to(mean.dtype)
