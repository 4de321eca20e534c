"""SlopeCateR: gradients predicted from derivatives of f, with exact corrections."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_choice, check_count, check_flag, check_module_device, check_number
from ...distributions.factors import Factors, factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function, once
from ...evaluation.evaluate import evaluate, evaluate_through
from ...evaluation.learning import frozen, learns
from ...evaluation.noise import Trace
from ...sampling.draw import DRAWS, Draws, base_draws
from ...sampling.randomness import given_or_rand, rand
from ...tracing import can_inspect
from ..logit_gradients import finite_log_probs
from ..relaxations.relaxation import mean_through
from .corrections import gradient_scale, selection_probabilities, systematic_sample
from .slope_gradient import Choice, Plan, SlopePoints, predicted_points
from .slope_pairs import other_categories
from .slope_predictions import make_predictions
from .slope_statistics import Coefficients, SlopeScales


class SlopeCateR(FromDraws, nn.Module):
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
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified).
        decay: of the running fit, and of the RMS slopes; 1 keeps alpha = beta = 1.
        slope_entries: length of the table of RMS slopes, one per variable (more variables share
            entries); 0: no table.
        pairs: whether a correction takes one other category instead of all k - 1; None: if k - 1 is
            more than 2 N / 3.
        every: R, the mean number of calls per call with corrections.
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> f = lambda x: (x * torch.tensor([1.0, 2.0, 4.0])).sum(-1).square()
    >>> SlopeCateR(samples=2)(f, q, x=torch.eye(3)[:2]).backward()
    >>> logits.grad.shape
    torch.Size([3])
    """

    unbiased = True
    supports = RELAXABLE
    differentiates_f = True
    randomness = ("x", "start")
    reference = "this library; Liu et al. 2023"

    def __init__(
        self,
        samples: int = 8,
        corrections: int | None = None,
        draws: Draws = "latin",
        decay: float = 0.98,
        slope_entries: int = 1024,
        pairs: bool | None = None,
        every: int = 1,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        if corrections is not None:
            check_count("SlopeCateR", "corrections", corrections)
        check_choice("SlopeCateR", "draws", draws, DRAWS)
        check_number("SlopeCateR", "decay", decay, 0, 1, closed=True)
        check_count("SlopeCateR", "slope_entries", slope_entries, least=0)
        if pairs is not None:
            check_flag("SlopeCateR", "pairs", pairs)
        check_count("SlopeCateR", "every", every)
        self.samples = samples
        self.corrections = corrections
        self.draws = draws
        self.decay = decay
        self.slope_entries = slope_entries
        self.pairs = pairs
        self.every = every
        self.corrects = None
        self.validate = validate
        self.coefficients = Coefficients()
        self.sizes = SlopeScales(slope_entries)

    @property
    def corrects(self) -> bool | None:
        """Return whether calls correct; None: the coin decides."""
        return self._corrects

    @corrects.setter
    def corrects(self, corrects: bool | None) -> None:
        if corrects is not None:
            check_flag("SlopeCateR", "corrects", corrects)
        self._corrects = corrects

    def evaluations(self, q: Distribution) -> int:
        k = factors(q, validate=False).k
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

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        start: Float[Tensor, "starts *batch"] | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        check_module_device(self, law.device)
        relaxable(q, law, "SlopeCateR")
        x = base_draws(law, x, self.samples, self.draws, generator=generator)
        calls = self._calls_to_correct(x, generator)
        if calls == 0:
            alpha, beta = self._read(law, self.coefficients()).unbind(-1)
            beta = alpha if self.uses_pairs(law.k) else beta
            return mean_through(f, law, predicted_points(law, x, alpha, beta))
        # In one tensor, for one kernel.
        learned = self._read(law, torch.cat([self.coefficients(), self.sizes(law.d)], -1))
        coefficients, sizes = learned.split([2, law.d], -1)
        draws, probs = law.flat(x.detach()).to(law.real), law.probs.detach()
        choice = self._choose(law, draws, calls, sizes, start, generator)
        predictions = make_predictions(draws, probs, choice.variable, choice.other)
        plan = Plan(draws, probs, *choice, predictions.shares(), coefficients.movedim(-1, 0))
        rate = 1 - self.decay if learns(self, x) else 0.0
        corrected = predictions.corrected_points()
        points, marks = SlopePoints.apply(  # type: ignore[no-untyped-call]
            finite_log_probs(law), corrected, rate, self.validate, *plan, *self.buffers()
        )
        points = law.shaped(points).to(law.dtype, copy=True)  # f may write into them
        trace = Trace.before(f, law)
        values = evaluate_through(f, points, law)
        if trace is not None:
            trace.warn_if_changed(lambda: evaluate(f, x[[0, 0]], law), calls=1)
        shares = plan.shares.to(values.dtype)
        exact = predictions.exact(values.detach()) * choice.weight
        return once((shares * values).sum(0) + (marks * exact).sum((0, -1)).to(values.dtype))

    def toss(self, generator: torch.Generator | None = None) -> bool:
        """Return True with probability 1 / ``every``: whether a call should correct."""
        device = torch.device("cpu") if generator is None else generator.device
        return float(rand((), device=device, generator=generator)) * self.every < 1

    @contextmanager
    def deciding(self, corrects: bool | None) -> Iterator[None]:
        """Let all calls inside correct, or none; afterwards ``corrects`` is as before."""
        before = self.corrects
        self.corrects = corrects
        try:
            yield
        finally:
            self.corrects = before

    def _calls_to_correct(self, x: Tensor, generator: torch.Generator | None) -> int:
        """Return how many calls the corrections of this call stand for; 0: it has none."""
        if self.every == 1:
            return 1
        if self.corrects is not None:
            return self.every if self.corrects else 0
        return self.every * self.toss(generator) if can_inspect(True, x) else 1

    def _read(
        self, law: Factors, learned: Float[Tensor, "*fits c"]
    ) -> Float[Tensor, "*batch_or_1 c"]:
        """Return a copy of what was learned, in the dtype of q, that broadcasts with its batch."""
        (learned,) = frozen(self, learned)
        if learned.dim() > 1:  # for each entry of the first batch dimension
            learned = learned.view(len(learned), *[1] * (len(law.batch_shape) - 1), -1)
        return learned.to(law.real)

    def _choose(
        self,
        law: Factors,
        draws: Float[Tensor, "n *event"],
        calls: int,
        sizes: Float[Tensor, "*batch_or_1 d"],
        start: Tensor | None,
        generator: torch.Generator | None,
    ) -> Choice:
        """Return the corrections of this call; they stand for the number of ``calls``."""
        m, probs = self.turns(law.k), law.probs.detach()
        undecided = gradient_scale(probs)
        probability, ends = selection_probabilities(undecided * sizes)
        starts = 1 + self.uses_pairs(law.k)
        shape, form = (starts, *law.batch_shape), f"[{starts}, *batch]"
        start = given_or_rand(start, shape, form, law, generator, closed=True, name="start")
        variable = systematic_sample(m * ends, m, start[:1])
        other = other_categories(draws, probs, variable, start[1:]) if starts > 1 else None
        chosen = probability.expand(m, *probability.shape).gather(-1, variable.unsqueeze(-1))
        return Choice(variable, other, calls / (m * chosen), undecided)
