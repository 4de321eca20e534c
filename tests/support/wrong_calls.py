"""Networks, distributions and tensors that contract/wrong_calls.txt names."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn, zeros
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Multinomial,
    NegativeBinomial,
    Poisson,
)

from catlog.distributions import Autoregressive, BayesianNetwork, MarkovChain, Node, Prompted
from support.laws import bits

INF, NAN = torch.inf, torch.tensor([0.0, torch.nan, 1.0])
CONTRADICTION = torch.tensor([[0.0, -INF], [-INF, 0.0]])
ONE_HALF, YES, ONE_YES = torch.tensor([0.5]), zeros(3) == 0, torch.tensor([True, False, False])
TWO, TOKENS = torch.tensor([1, 2]), torch.tensor([[0, 0, 1], [3, 1, 0]])
REWARDS, MASK = torch.tensor([1.0, 0.0, 2.0, 1.0]), torch.ones(4, 3)


def network(x: Tensor, i: int = 0) -> Tensor:
    return zeros(*x.shape[:-1], 3)


def crowd(x: Tensor, i: int) -> Tensor:
    """A network that holds 32 contexts."""
    return zeros(32, 3) + x[..., :1]


class Steps:
    """A network by steps, whose states are those of 32 contexts, and logits of two categories."""

    def __init__(self, contexts: bool) -> None:
        self.contexts = contexts

    def start(self, lead: torch.Size) -> Tensor:
        return zeros(32, 3).expand(*lead, 3) if self.contexts else zeros(*lead, 2)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        return state, state


class Whole(nn.Module):
    def all_logits(self, x: Tensor) -> Tensor:
        return zeros(*x.shape, 2)


def causal(**config: object) -> nn.Module:
    """Return what CausalLM takes for a language model of four tokens."""
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(vocab_size=4, **config)
    return model


def node(parents: object, logits: object, **options: object) -> BayesianNetwork:
    """Return a network of a root and one more node."""
    return BayesianNetwork({"root": Node([], zeros(3)), "a": Node(parents, logits, **options)})


uneven = partial(Autoregressive, network, [3, 2])
prompted = partial(Prompted, lambda *arguments: None)
chains = MarkovChain(zeros(2, 2), zeros(2, 2), length=2)
mixture = partial(MixtureSameFamily, Categorical(torch.ones(2)))
counts = Multinomial(2, logits=zeros(2))
poisson = Independent(Poisson(torch.ones(2)), 1)
learned = NegativeBinomial(torch.tensor(2.0, requires_grad=True), probs=ONE_HALF)
learned_bits = bits(zeros(2, 3, requires_grad=True))
