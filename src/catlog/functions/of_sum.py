"""Functions of a weighted sum."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64, Real, Shaped
from torch import Tensor
from torch.distributions import Distribution

from ..core.categories import safe_log, widened
from ..core.checks import check_count, readable
from ..core.factors import IndependentFactors
from ..core.tracing import can_inspect, full_precision
from .convolution import best_tilt, by_fft, by_products, distribution_of_sum, spread
from .tables import OwnTable, Variables, hold, hold_function

FEW_SUMS = 512  # up to here the accurate convolution takes about as long as the FFT
MOST_SUMS = 2**22
FFT_ERROR = 1e-15  # of a probability by FFT in float64, at most about
RELATIVE_ERROR = 1e-9  # of a mean


class OfSum(OwnTable):
    r"""A function of a weighted sum, such as "do these digits add up to s?".

    .. math:: f(x) = g\Bigl(\sum_i w_i x_i\Bigr)

    Table: without weights, g at the 2k - 1 possible sums and O(d k) look-ups per draw; with
    weights, d k cheap calls of g.

    Mean under independent variables, for weights that are whole numbers: g at the S possible sums,
    and their probabilities by convolutions in O(S log S log d) (FFT) or, if the mean is so small
    that the FFT's rounding error matters, in O(S^2). It is computed in float64.

    Args:
        g: maps sums ``[rows, *batch]`` to values ``[rows, *batch]``, or ``[rows, *batch,
            *outputs]``, element by element (it may know the batch).
        categories: k, the number of categories of every variable (2 for bits).
        weights: ``[d]``; None: all one. Whether they are whole numbers is looked at here, once.
        one_hot: x is one-hot.

    >>> f = OfSum(lambda s: (s == 3).float(), categories=4)
    >>> f(torch.tensor([[1, 2], [2, 2]])), f.neighbours(torch.tensor([[1, 2]]))
    (tensor([1., 0.]), tensor([[[0., 1., 0., 0.],
             [0., 0., 1., 0.]]]))
    """

    g: Callable[[Tensor], Tensor]
    weights: Tensor | None

    def __init__(
        self,
        g: Callable[[Tensor], Tensor],
        categories: int,
        weights: Float[Tensor, "d"] | Int64[Tensor, "d"] | None = None,
        one_hot: bool = False,
    ) -> None:
        super().__init__()
        check_count("OfSum", "categories", categories)
        if not callable(g):
            raise TypeError(f"OfSum: `g` must be a function of sums, but it is {g!r}.")
        hold_function(self, "g", g)
        self.categories = categories
        self.one_hot = one_hot
        self.whole_weights: list[int] | None = None
        if weights is None:
            self.weights = None
            return
        hold(self, weights=(weights, "[d]"))
        if can_inspect(True, weights) and not bool(weights.isfinite().all()):
            raise ValueError(f"OfSum: `weights` must be finite, but they are {weights}.")
        if not weights.requires_grad and bool((weights == weights.round()).all()):
            self.whole_weights = [int(weight) for weight in weights.tolist()]

    def _sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return every variable's number, and their weighted sum."""
        variables = x.shape[:-1] if self.one_hot else x.shape
        if self.one_hot and x.shape[-1:] != (self.categories,):
            raise ValueError(
                f"OfSum: x must end in one-hot vectors of {self.categories} categories, with "
                f"one_hot=True, but its shape is {tuple(x.shape)}."
            )
        if self.weights is not None and variables[-1:] != self.weights.shape:
            raise ValueError(
                f"OfSum: x must have {len(self.weights)} variables, as many as `weights`, but its "
                f"shape is {tuple(x.shape)}."
            )
        x = number = widened(x)
        if self.one_hot:
            with full_precision(x):
                number = x @ torch.arange(self.categories, dtype=x.dtype, device=x.device)
        return number, (number if self.weights is None else number * widened(self.weights)).sum(-1)

    def forward(self, x: Tensor) -> Shaped[Tensor, "n *batch_outputs"]:
        return self.g(self._sum(x)[1])

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        self._check_own("neighbours", OfSum)
        number, total = self._sum(x)
        k = self.categories
        self._check_categories(number, k)
        if variables is not None:
            number = number.gather(-1, variables)
        category = torch.arange(k, dtype=number.dtype, device=x.device)
        if self.weights is None:
            shifts = torch.arange(1 - k, k, dtype=number.dtype, device=x.device)
            values = self._rows(total.unsqueeze(-1) + shifts)
            shift = (category - number.unsqueeze(-1)).long() + (k - 1)
            lead, outputs = total.dim(), values.shape[total.dim() + 1 :]
            values = values.unsqueeze(lead).expand(*number.shape, 2 * k - 1, *outputs)
            shift = shift[(...,) + (None,) * len(outputs)].expand(*shift.shape, *outputs)
            return values.gather(lead + 1, shift)
        weights = widened(self.weights if variables is None else self.weights[variables])
        sums = total[..., None, None] + weights.unsqueeze(-1) * (category - number.unsqueeze(-1))
        return self._rows(sums.flatten(-2)).unflatten(total.dim(), (-1, k))

    def _rows(self, sums: Real[Tensor, "n *batch many"]) -> Tensor:
        """Return g at ``many`` sums per draw ``[n, *batch, many, *outputs]``."""
        many, lead = sums.shape[-1], sums.dim() - 1
        rows = self.g(sums.movedim(-1, 0).flatten(0, 1))
        return rows.unflatten(0, (many, len(sums))).movedim(0, lead)

    def expectation(self, q: Distribution) -> Float[Tensor, "*batch"]:
        r"""Return the exact mean :math:`\sum_s \Pr(\sum_i w_i x_i = s)\, g(s)`."""
        self._check_own("expectation", OfSum)
        law, values = self._values_at_sums(q)
        terms = spread(law.probs.double(), self.whole_weights)
        outputs = values.dim() - (terms.dim() - 1)

        def mean(convolve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            probs = distribution_of_sum(terms, convolve)[..., : len(values)].movedim(-1, 0)
            probs = probs[(...,) + (None,) * outputs]
            # g may have any value at sums that q cannot draw.
            return (torch.where(probs.detach() > 0, values, 0.0) * probs).sum(0)

        norm = values.detach().square().sum(0).sqrt()
        if len(values) > FEW_SUMS and can_inspect(True, norm):
            by_transform = mean(by_fft)
            is_accurate = by_transform.abs() > FFT_ERROR / RELATIVE_ERROR * norm
            if bool(is_accurate.all()):
                return by_transform.to(law.real)
        return mean(by_products).to(law.real)

    def log_expectation(self, q: Distribution) -> Float[Tensor, "*batch"]:
        r"""Return the logarithm of the mean of :math:`g \ge 0`, however small the mean is.

        The terms are tilted, :math:`\tilde p_i(v) \propto p_i(v)\, e^{\theta v}`, so that the
        sums that matter most are likely ones. With :math:`K = \sum_i \log \sum_v p_i(v)\,
        e^{\theta v}`,

        .. math:: \log \mathbb{E}[g] = K + \log \sum_s \tilde{\Pr}(s)\, g(s)\, e^{-\theta s}

        One tilt serves all variables. Where a single variable must have a category that no tilt
        makes likely, a log-probability below about -800 counts as impossible.
        """
        self._check_own("expectation", OfSum)
        law, values = self._values_at_sums(q)
        if can_inspect(True, values) and bool((values < 0).any()):
            raise NotImplementedError(
                "OfSum: the logarithm of its mean is known for a g of at least 0, but g has "
                "negative values."
            )
        # Not from probabilities: those of saturated logits underflow, in float32 below exp(-103).
        log_terms = spread(law.log_probs.double(), self.whole_weights, zero=-torch.inf, one=0.0)
        log_values = safe_log(values).masked_fill(values.isnan(), torch.nan)
        # Sums that q cannot draw may have any value, so others than finite ones do not count here.
        tilt = best_tilt(log_terms, torch.where(log_values < torch.inf, log_values, -torch.inf))
        term = torch.arange(log_terms.shape[-1], dtype=tilt.dtype, device=tilt.device)
        log_terms = log_terms + tilt[..., None, None] * term
        log_sizes = log_terms.logsumexp(-1, keepdim=True)
        probs = distribution_of_sum((log_terms - log_sizes).exp(), by_products)
        probs = probs[..., : len(values)].movedim(-1, 0)
        total = torch.arange(len(values), dtype=tilt.dtype, device=tilt.device)
        tilted_by = tilt * total.view(-1, *[1] * tilt.dim())
        log_parts = safe_log(probs) + log_values - tilted_by
        log_parts = log_parts.masked_fill(probs.detach() == 0, -torch.inf)
        is_possible = (log_parts != -torch.inf).any(0)
        log_mean = torch.where(is_possible, log_parts, 0.0).logsumexp(0)
        log_mean = (log_mean + log_sizes.sum((-1, -2))).masked_fill(~is_possible, -torch.inf)
        return log_mean.to(law.real)

    def _values_at_sums(
        self, q: Distribution
    ) -> tuple[IndependentFactors, Float[Tensor, "n *batch_outputs"]]:
        """Return the view of q, and g at every possible sum in float64."""
        law = self._independent(q, None if self.weights is None else len(self.weights))
        if self.weights is not None and self.whole_weights is None:
            raise NotImplementedError(
                "OfSum: its mean is known for constant weights that are whole numbers, but others "
                "were given. Use an estimator that draws, such as IndeCateR."
            )
        weights = [1] * law.d if self.whole_weights is None else self.whole_weights
        size = (law.k - 1) * sum(map(abs, weights)) + 1
        if size > MOST_SUMS:
            raise NotImplementedError(
                f"OfSum: its mean is a sum over {readable(size)} possible sums, more than "
                f"{MOST_SUMS}. Use an estimator that draws, such as IndeCateR."
            )
        dtype = widened(torch.empty(0, dtype=law.dtype)).dtype  # that g gets from points of q
        if self.weights is not None:
            dtype = torch.promote_types(dtype, widened(self.weights).dtype)
        least = sum(min(0, weight) for weight in weights) * (law.k - 1)
        sums = torch.arange(least, least + size, device=law.device).to(dtype)
        sums = sums.view(-1, *[1] * len(law.batch_shape)).expand(-1, *law.batch_shape)
        return law, self.g(sums.clone()).double()
