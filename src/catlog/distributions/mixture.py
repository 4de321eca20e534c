"""Mixtures of products: a component, and independent variables given the component."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import MixtureSameFamily

from ..core.checks import check_kind, is_checked, refusal
from ..core.factors import IndependentFactors, independent
from ..core.ordered import Ordered, PointForm
from ..core.view import converted, register_distribution
from .bayesian_network import BayesianNetwork, Node
from .bit_counts import IMPOSSIBLE, LARGEST


class MixtureOfProducts(Ordered):
    r"""A mixture of independent categorical variables, with the component summed out.

    .. math::
        q(x) = \sum_c \pi_c \prod_i p_{ci}(x_i), \qquad
        q(x_i \mid x_{<i}) = \sum_c q(c \mid x_{<i})\, p_{ci}(x_i), \qquad
        q(c \mid x_{<i}) \propto \pi_c \prod_{j<i} p_{cj}(x_j)

    This is how estimators see torch's ``MixtureSameFamily``. f gets values, as the mixture draws
    them, and never a component. Scores are those of the marginal distribution, so they have less
    variance than those of component and values together. In :func:`component_first`, in contrast,
    the component is a separate variable.

    Cost: all conditionals together take O(components d k); a draw as much.

    Args:
        mixture: of Bernoulli, Categorical or OneHotCategorical components, each alone or inside
            Independent, or of catlog.distributions.Categoricals.

    >>> from torch.distributions import Bernoulli, Categorical, Independent
    >>> components = Independent(Bernoulli(torch.tensor([[0.9, 0.9], [0.1, 0.1]])), 1)
    >>> q = MixtureOfProducts(MixtureSameFamily(Categorical(torch.ones(2)), components))
    >>> q.log_prob(torch.tensor([1, 1])).exp()
    tensor(0.4100)
    """

    incremental = True

    def __init__(self, mixture: MixtureSameFamily) -> None:
        law = _components(mixture)
        # By log-probabilities: a probability that underflows to zero is small, not impossible.
        # torch's own are not quite normalised if logits are large.
        self.log_probs = _finite(law.log_probs.log_softmax(-1))
        self.log_weights = _finite(_log_weights(mixture).to(law.real))
        self.cardinalities = law.cardinalities
        self.real = law.real
        self.device = law.device
        self.form = PointForm(law.kind, law.event_shape, law.dtype)
        super().__init__(mixture.batch_shape, torch.Size([law.d]), validate_args=False)

    def start(self, lead: torch.Size) -> Float[Tensor, "*lead components"]:
        return self.log_weights.expand(lead + self.log_weights.shape[-1:])

    def step(
        self, state: Tensor, block: int, previous: Int64[Tensor, "*lead"] | None
    ) -> tuple[Float[Tensor, "*lead k"], Tensor]:
        if previous is not None:
            table = self.log_probs[..., block - 1, :]
            table = table.expand(state.shape + table.shape[-1:])
            index = previous[..., None, None].expand(state.shape + (1,))
            state = state + table.gather(-1, index).squeeze(-1)
        mixed = _mixed(state, self.log_probs[..., block, :])
        return mixed[..., : self.cardinalities[block]], state

    def conditional(self, x: Tensor, block: int) -> Tensor:
        logits = self.raw_logits(x)[..., block : block + 1, :]
        return logits[..., : self.cardinalities[block]]

    def raw_logits(self, x: Tensor) -> Tensor:
        table = self.log_probs.expand(x.shape[:-1] + self.log_probs.shape[-3:])
        index = x[..., None, :, None].expand(table.shape[:-1] + (1,))
        known = table.gather(-1, index).squeeze(-1)  # [*lead, components, d]
        before = torch.cat([torch.zeros_like(known[..., :1]), known[..., :-1]], -1).cumsum(-1)
        earlier = self.log_weights.unsqueeze(-1) + before
        return _mixed(earlier.transpose(-1, -2), table.transpose(-2, -3))


def _mixed(
    log_weights: Float[Tensor, "*lead components"], log_probs: Float[Tensor, "*#lead components k"]
) -> Float[Tensor, "*lead k"]:
    """Return the log-probabilities of categories; impossible ones are -inf and get no gradient."""
    mixed = (log_weights.log_softmax(-1).unsqueeze(-1) + log_probs).logsumexp(-2)
    return mixed.masked_fill(mixed.detach() < IMPOSSIBLE / 2, -torch.inf)


def _finite(log_probs: Tensor) -> Tensor:
    """Return log-probabilities of which sums are finite; the impossible stays below all others."""
    finite = log_probs.clamp(min=-LARGEST)
    return finite.masked_fill(log_probs == -torch.inf, IMPOSSIBLE)


def component_first(mixture: MixtureSameFamily) -> BayesianNetwork:
    r"""Return the mixture as a distribution of the component and the values, ``[1 + d]`` integers.

    .. math:: q(c, x) = \pi_c \prod_i p_{ci}(x_i)

    f sees the component as the first variable. The values are independent given it, so an estimator
    that changes one of them resamples no other.

    >>> from torch.distributions import Bernoulli, Categorical, Independent
    >>> components = Independent(Bernoulli(torch.tensor([[0.9, 0.9], [0.1, 0.1]])), 1)
    >>> q = component_first(MixtureSameFamily(Categorical(torch.ones(2)), components))
    >>> q.log_prob(torch.tensor([0, 1, 1])).exp()
    tensor(0.4050)
    """
    law = _components(mixture)
    table = law.log_probs if law.d > 1 else law.log_probs.squeeze(-2)
    nodes = {
        "component": Node([], _log_weights(mixture).to(law.real)),
        "values": Node(["component"], table, size=law.d),
    }
    return BayesianNetwork(nodes, mixture.batch_shape)


def _log_weights(mixture: MixtureSameFamily) -> Float[Tensor, "*batch components"]:
    return _factors(mixture.mixture_distribution, is_checked(mixture)).log_probs.squeeze(-2)


def _components(mixture: Any) -> IndependentFactors:
    claim = "be a torch.distributions.MixtureSameFamily"
    check_kind("mixture", mixture, MixtureSameFamily, claim)
    components = converted(mixture.component_distribution)
    if isinstance(components, Ordered):
        but = f"those of {type(components).__name__} depend on each other"
        remedy = "Use a BayesianNetwork whose first node is the component."
        raise refusal(
            "mixture: its components", "have independent variables", but, remedy, TypeError
        )
    return _factors(components, is_checked(mixture))


def _factors(q: Any, validate: bool) -> IndependentFactors:
    factors = independent(q, validate=validate)
    if not isinstance(factors, IndependentFactors):
        claim = (
            "be Bernoulli, Categorical, OneHotCategorical (or Independent of one), or Categoricals"
        )
        but = f"{type(q).__name__} was given"
        raise refusal("mixture: its components", claim, but, kind=TypeError)
    return factors


register_distribution(MixtureSameFamily, MixtureOfProducts)
