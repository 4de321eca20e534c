"""Wrong arguments of distributions raise errors that name them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch import zeros as z
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Independent,
    MixtureSameFamily,
    Multinomial,
    NegativeBinomial,
    Normal,
    Poisson,
)

import catlog
from catlog import RLOO, IndeCateR
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    Categoricals,
    LinearChainCRF,
    MarkovChain,
    Node,
    PlackettLuce,
    Prompted,
    Subset,
    component_first,
    gumbel_top_k,
    left_padded,
    truncated,
)
from catlog.estimators import SIMPLE, CountDifferences

INF, NAN = torch.inf, torch.tensor([0.0, torch.nan, 1.0])
CONTRADICTION = torch.tensor([[0.0, -INF], [-INF, 0.0]])
ONE_HALF, YES, ONE_YES = torch.tensor([0.5]), z(3) == 0, torch.tensor([True, False, False])
TWO = torch.tensor([1, 2])


def total(x: Tensor) -> Tensor:
    return x.sum(-1).float()


def network(x: Tensor, i: int = 0) -> Tensor:
    return z(*x.shape[:-1], 3)


def crowd(x: Tensor, i: int) -> Tensor:
    """A network that holds 32 contexts."""
    return z(32, 3) + x[..., :1]


class Steps:
    """A network by steps, whose states are those of 32 contexts, and logits of two categories."""

    def __init__(self, contexts: bool) -> None:
        self.contexts = contexts

    def start(self, lead: torch.Size) -> Tensor:
        return z(32, 3).expand(*lead, 3) if self.contexts else z(*lead, 2)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        return state, state


class Whole(nn.Module):
    def all_logits(self, x: Tensor) -> Tensor:
        return z(*x.shape, 2)


def nodes(parents: object, logits: object, **options: object) -> Callable[[], object]:
    """Return a call that makes a network of a root and one more node."""
    node = Node(parents, logits, **options)  # type: ignore[arg-type]
    return lambda: BayesianNetwork({"root": Node([], z(3)), "a": node})


crf = LinearChainCRF
uneven = partial(Autoregressive, network, [3, 2])
prompted = partial(Prompted, lambda *arguments: None)
chains = MarkovChain(z(2, 2), z(2, 2), length=2)
mixture = partial(MixtureSameFamily, Categorical(torch.ones(2)))
counts = Multinomial(2, logits=z(2))
poisson = Independent(Poisson(torch.ones(2)), 1)
learned = NegativeBinomial(torch.tensor(2.0, requires_grad=True), probs=ONE_HALF)
# fmt: off
BAD: dict[str, Callable[[], object]] = {
    # Chains
    r"MarkovChain: `initial` must have shape \[\*batch, k\].*\(\) and":
        lambda: MarkovChain(z(()), z(2, 2), 2),
    r"`initial` .* k of at least 1, .*\(0,\)": lambda: MarkovChain(z(0), z(0, 0), length=2),
    r"`transition` must have shape \[3, 3\], \[4, 3, 3\] or \[4, 2, 3, 3\].*\(2, 3, 3\) was":
        lambda: MarkovChain(z(4, 3), z(2, 3, 3), length=3),
    r"`emission` must have shape \[\*batch, 3, o\].*\(2, 3, 5\) was":
        lambda: MarkovChain(z(4, 3), z(3, 3), length=3, emission=z(2, 3, 5)),
    "`length` is needed": lambda: MarkovChain(z(2), z(2, 2)),
    r"MarkovChain: `batch_shape` must be one that \(3,\) expands to, but it is \(4,\)":
        lambda: MarkovChain(z(3, 2), z(2, 2), length=2).expand((4,)),
    r"noise: a tensor of shape \(4, 1, 3\) comes next":
        lambda: catlog.SCateR(1)(total, MarkovChain(z(2), z(2, 2), 3), noise=z(2, 3)),
    r"Use an estimator whose `supports` names \"structured\"": lambda: IndeCateR(1)(total, chains),
    "LinearChainCRF: `unary` must have shape": lambda: crf(z(3), z(3, 3)),
    "LinearChainCRF: `unary` must be finite or -inf": lambda: crf(z(2, 2) + INF, z(2, 2)),
    "`pairwise` must be finite or -inf": lambda: crf(z(2, 3), NAN.expand(3, 3)),
    r"`pairwise` must have shape \[3, 3\].*\(2, 3, 3\) was": lambda: crf(z(4, 3), z(2, 3, 3)),
    r"weight zero at batch index \(1,\)":
        lambda: crf(torch.stack([z(2, 2), z(2, 2) - INF]), z(2, 2)),
    r"lower by 1e\+09 than the best of its step.* Do masks contradict":
        lambda: crf(CONTRADICTION.clamp(min=-1e9), torch.tensor([[0.0, -1e9], [0.0, 0.0]])),
    "LinearChainCRF": lambda: SIMPLE()(total, crf(z(3, 2), z(2, 2))),
    # Bayesian networks
    "cycle, a -> b -> a":
        lambda: BayesianNetwork({"a": Node(["b"], z(2, 2)), "b": Node(["a"], z(2, 2))}),
    "parent 'z' of node 'a'": nodes(["z"], z(2, 2)),
    r"node 'a' must have shape \(3, 2\).*\(2, 2\) was given": nodes(["root"], z(2, 2)),
    "'a' is a network; give its `cardinality": nodes([], network),
    r"node 'a': `parents` must be a list of names.* Pass \['root'\]": nodes("root", z(3, 2)),
    "node 'a': `size` must be at least 1, but 0": nodes([], z(2), size=0),
    "node 'a': `cardinality` must be at least 1, but 0": nodes([], network, cardinality=0),
    "`cardinality` must be that of its table, 2, but it is 3": nodes([], z(2), cardinality=3),
    r"node 'a': `logits` must have the categories in .*\(\) was": nodes([], z(())),
    "node 'a': `logits` must be a tensor or a network, but NoneType": nodes([], None),
    "node 'a': `bits` must be True or False, but 1": nodes([], z(2), bits=1),
    "`cardinality` must be that of bits, 2, but .* 3": nodes([], z(()), cardinality=3, bits=True),
    r"variable 1 must return logits of shape \(1,\), but it returned \(1, 3\)":
        lambda: nodes([], network, bits=True)().sample(),
    "`nodes` must be a dict .* but list was": lambda: BayesianNetwork([Node([], z(2))]),
    "`nodes` must be a dict .* but Tensor was": lambda: BayesianNetwork({"a": z(2)}),
    "`nodes` is empty": lambda: BayesianNetwork({}),
    r"BayesianNetwork: `batch_shape` must be a tuple of sizes, but 3 was given\. Pass \(3,\)":
        lambda: BayesianNetwork({"a": Node([], z(3, 2))}, 3),
    # Networks of sequences
    "Autoregressive: `batch_shape` must be a tuple": lambda: Autoregressive(network, [3], 3),
    r"`cardinalities` must be .* 3 was given.*\[k\] \* d": lambda: Autoregressive(network, 3),
    "`cardinalities` is empty": lambda: Autoregressive(network, []),
    "`network` must be a function .* but NoneType": lambda: Autoregressive(None, [3, 3]),
    "`temperature` must be positive, but 0.0 was": lambda: uneven(temperature=0.0),
    "`temperature` must be positive, but it is": lambda: uneven(temperature=torch.tensor(INF)),
    r"broadcasts to the batch shape \(2,\), but its shape is \(3,\)":
        lambda: uneven((2,), temperature=torch.ones(3)),
    "`end` must be between 0 and 1, but 2 was given. Every variable": lambda: uneven(end=2),
    r"variable 1 must return logits of shape \(1, 1, 2\), but it returned \(1, 1, 3\)":
        lambda: uneven().sample(),
    r"variable 0 must return logits of shape \(1, 3\), but it returned \(1, 2\)":
        lambda: Autoregressive(Steps(False), [3], end=0).sample(),
    r"all_logits must return shape \(1, 2, 3\)":
        lambda: Autoregressive(Whole(), [3, 3]).log_prob(TWO - 1),
    "variable 0 has no valid probabilities at":
        lambda: Autoregressive(lambda x, i: network(x) + torch.nan, [3, 3]).sample(),
    r"start of the network failed .* dimensions .*= \(2,\).* `batch_shape=`.* RuntimeError: .*32":
        lambda: Autoregressive(Steps(True), [3, 3]).sample((2,)),
    r"of shape \(1, 1, 3\), but it returned \(32, 1, 3\)\. .*`batch_shape=":
        lambda: Autoregressive(crowd, [3, 3]).sample(),
    r"network\(x, i\) of the network failed .* `batch_shape=`":
        lambda: Autoregressive(crowd, [3, 3]).sample((2,)),
    "`prompts` must be padded on the left": lambda: prompted(z(1, 3).long(), NAN[None] < 2),
    "must be padded on the left: .*last column": lambda: prompted(z(1, 3).long(), ONE_YES[None]),
    r"`prompts` must be int64 tokens \[\*batch, p\] with p >= 1": lambda: prompted(z(2, 0).long()),
    r"`mask` must have the shape of `prompts`, \(2, 1\)":
        lambda: prompted(z(2, 1).long(), z(2, 2).bool()),
    "non-empty list of non-empty lists": lambda: left_padded([[1], []]),
    # Items
    "`k` must be between 0 and .* d = 3": lambda: Subset(z(3), 4),
    "`k` must hold integers": lambda: Subset(z(3), torch.tensor(1.0)),
    r"can be chosen, 3 at batch index \(1,\), but 4 was": lambda: Subset(z(2, 3), TWO * TWO),
    "items that can be chosen, 1, but 2 was given": lambda: Subset(z(3), 2, ONE_YES),
    r"broadcast, but they are `logits` \(3,\), `k` \(2,\)": lambda: Subset(z(3, 5), TWO),
    r"Subset: `logits` must be finite .* nan at index \(1,\)": lambda: Subset(NAN, 1),
    "inf at index": lambda: Subset(torch.tensor([INF]), 1),
    "tensor of floats": lambda: Subset(z(3).long(), 1),
    "d of at least 1": lambda: Subset(z(0), 0),
    "tensor of bools": lambda: Subset(z(3), 1, z(3)),
    r"`mask` must have shape \[\*batch, 3\].*\(1,\) was": lambda: Subset(z(3), 1, YES[:1]),
    r"q cannot draw: \[1, 1, 0\]":
        lambda: RLOO(2)(total, Subset(z(3), 1), x=torch.tensor([[1, 0, 0], [1, 1, 0]])),
    "points, more than `limit`": lambda: catlog.Exact()(len, Subset(z(60), 30)),
    "points, too many to enumerate": lambda: Subset(z(60), 30).enumerate_support(),
    "differentiable|derivative": lambda: SIMPLE()(
        lambda x: torch.arange(3.0)[x.long().argmax(-1)], Subset(z(3, requires_grad=True), 1)
    ),
    "PlackettLuce: `k` must be between 1 and 3, but 4": lambda: PlackettLuce(z(3), 4),
    "can be chosen, 1, but 3 was given": lambda: PlackettLuce(z(3), mask=ONE_YES),
    "gumbel_top_k: `k` must be between 1 and 3, but 5": lambda: gumbel_top_k(z(3), 5),
    r"gumbel_top_k: `scores` must have shape .*\(\) was": lambda: gumbel_top_k(z(()), 1),
    "gumbel_top_k: .* can be chosen, 1, but 2": lambda: gumbel_top_k(torch.tensor([0.0, -INF]), 2),
    "generator must be a torch.Generator or None": lambda: gumbel_top_k(z(3), 1, 3),
    "Subset: `validate_args` must be True, False .* Tensor was given. .* `mask`":
        lambda: Subset(z(3), 1, validate_args=z(2)),
    "LinearChainCRF: `validate_args` must be True":
        lambda: crf(z(2, 2), z(2, 2), validate_args=z(2)),
    "Categoricals: `validate_args` must be": lambda: Categoricals([z(2)], validate_args=z(2)),
    # Categoricals
    r"`cardinalities` must be .* but \[2.5, 2\]": lambda: Categoricals(z(2, 3), [2.5, 2]),
    "Categoricals: `cardinalities` must be .* but 2 was": lambda: Categoricals(z(2, 3), 2),
    r"`cardinalities` is needed.*logits\.split\(sizes, -1\)": lambda: Categoricals(z(2, 3)),
    r"logits of shape \(7, 16\).*logits\.split\(\(3, 5, 3, 5\), -1\)":
        lambda: Categoricals(z(7, 16), [3, 5, 3, 5]),
    r"`cardinalities` \(3, 4\) does not fit .*\(2, 3\)": lambda: Categoricals(z(2, 3), [3, 4]),
    "give a non-empty list of logits": lambda: Categoricals([]),
    "`logits` must be a list of tensors.* but str": lambda: Categoricals("abc"),
    r"k_i of at least 1, but \[\(0,\), \(3,\)\] were": lambda: Categoricals([z(0), z(3)]),
    "`logits` must be floats, but torch.complex64":
        lambda: Categoricals([z(2, dtype=torch.complex64)]),
    # Mixtures, multinomials, copies
    "Normal was given": lambda: RLOO(2)(total, mixture(Normal(z(2), 1.0))),
    "must have independent .* those of MarkovChain": lambda: RLOO(2)(total, mixture(chains)),
    r"a torch\.distributions\.MixtureSameFamily is": lambda: component_first(Bernoulli(ONE_HALF)),
    r"Independent\(MarkovChain, 2\) has \(0, 2\) copies":
        lambda: RLOO(2)(total, Independent(chains.expand([0, 2]), 2)),
    r"q cannot draw: \[1, 2\]": lambda: RLOO(2)(total, counts, x=torch.tensor([[1.0, 2.0]] * 2)),
    "x must hold whole numbers": lambda: RLOO(2)(total, counts, x=z(2, 2) + 0.5),
    # Counts
    "`total_count` that requires a gradient": lambda: CountDifferences()(total, learned),
    "x must have shape": lambda: CountDifferences()(total, poisson, x=z(3, 3)),
    "x must hold counts that": lambda: CountDifferences()(total, poisson, x=z(1, 2) + 0.5),
    "must hold counts that":
        lambda: CountDifferences()(lambda x: x, Binomial(2, ONE_HALF), x=z(1, 1) + 3),
    "f must return one value per point": lambda: CountDifferences()(lambda x: x, poisson),
    "NaN or infinite": lambda: CountDifferences()(total, Poisson(torch.tensor([INF]))),
    "q: a distribution of independent counts is": lambda: CountDifferences()(total, chains),
    "distribution of independent counts is": lambda: truncated(Categorical(logits=z(3))),
    r"catlog\.estimators\.CountDifferences": lambda: IndeCateR(1)(total, poisson),
    "have finite counts, but a probability":
        lambda: CountDifferences()(lambda z: z, Geometric(logits=torch.tensor([-200.0]))),
    "must have finite counts, but":
        lambda: CountDifferences()(lambda z: z, NegativeBinomial(2, logits=torch.tensor(80.0))),
    "needs more than 65536 categories": lambda: truncated(Poisson(torch.tensor(1e6))),
    "`error` must be in": lambda: truncated(poisson, error=-1.0),
    "`categories` must be between 1": lambda: truncated(poisson, categories=0),
    "truncated: `categories` must be given .* meta":
        lambda: truncated(Poisson(torch.ones(2, device="meta"), validate_args=False)),
}
# fmt: on


@pytest.mark.parametrize("message", BAD)
def test_a_mistake_is_named(message: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        BAD[message]()


# Arguments that are tensors, and those that must be where another one is.
TENSORS: dict[str, Callable[[Tensor], object]] = {
    "MarkovChain: `initial`": lambda s: MarkovChain(s, z(2, 2), 2),
    "MarkovChain: `transition`": lambda s: MarkovChain(z(2), s, 2),
    "MarkovChain: `emission`": lambda s: MarkovChain(z(2), z(2, 2), 2, s),
    "LinearChainCRF: `unary`": lambda s: LinearChainCRF(s, z(2, 2)),
    "LinearChainCRF: `pairwise`": lambda s: LinearChainCRF(z(2, 2), s),
    "Subset: `logits`": lambda s: Subset(s, 1),
    "Subset: `mask`": lambda s: Subset(z(2, 2), 1, s.bool() if isinstance(s, Tensor) else s),
    "Subset: `value`": lambda s: Subset(z(2), 1).log_prob(s),
    "PlackettLuce: `scores`": lambda s: PlackettLuce(s),
    "gumbel_top_k: `scores`": lambda s: gumbel_top_k(s, 1),
    "Categoricals: `logits`": lambda s: Categoricals([z(2, 2), s]),
    "Prompted: `prompts`": lambda s: prompted(s),
}
SPARSE: dict[str, Callable[[Tensor], object]] = TENSORS | {
    "Subset: `k`": lambda s: Subset(z(2, 2, 2), s.long()),
    "q: the logits of variable 0": lambda s: Autoregressive(
        lambda x, i: s, [2], validate_args=False
    ).sample((2,)),
    "q: the parameter of Bernoulli": lambda s: RLOO(2)(
        total, Bernoulli(logits=s, validate_args=False)
    ),
    "q: the parameter of Poisson": lambda s: CountDifferences(1)(
        total, Poisson(s, validate_args=False)
    ),
    "x": lambda s: RLOO(2)(total, Bernoulli(z(2)), x=s),
}
ELSEWHERE = ("transition", "emission", "pairwise", "mask", "value", "Categoricals", "`k`")
SPARSE_ONES = torch.sparse_coo_tensor(
    TWO.expand(2, 2) - 1, torch.ones(2), (2, 2), check_invariants=True
)
WRONG: dict[str, tuple[object, str, list[str]]] = {
    "a list": ([[0.0, 1.0]], "must be a tensor.* list was given", [*TENSORS]),
    "sparse": (SPARSE_ONES, r"must be a dense tensor.*`to_dense\(\)`", [*SPARSE]),
    "elsewhere": (
        z(2, 2, device="meta"),
        "must be on cpu, where .* is, but it is on meta",
        [name for name in SPARSE if any(word in name for word in ELSEWHERE)],
    ),
}


@pytest.mark.parametrize(("wrong", "name"), [(key, n) for key in WRONG for n in WRONG[key][2]])
def test_a_wrong_tensor_is_named(wrong: str, name: str) -> None:
    given, message, _ = WRONG[wrong]
    with pytest.raises((TypeError, ValueError), match=f"^{name} {message}"):
        SPARSE[name](given)  # type: ignore[arg-type]
