"""Problems whose expectation has a closed form; the large random network has none."""

from math import log, pi

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import one_hot as one_hots

from ..distributions import Autoregressive, BayesianNetwork, Categoricals, MarkovChain, Node
from ..estimators import IndeCateR
from ..functions import Additive, FirstLayerLinear, OfSum, Potts
from ..functions import ising as spins
from .problem import Problem, Size, at_means, bits, black_box, normal, one_hot, own_mean, problem


@problem("additive", relaxable=True)
def additive(size: Size, seed: int) -> Problem:
    r"""Separate effects only: summing out one variable at a time is exact.

    .. math:: f(x) = \sum_i c_i(x_i), \qquad x \text{ bits}
    """
    d = {"small": 10, "large": 200}[size]
    logits, costs = normal(seed, (d,), (d, 2))
    costs /= d**0.5
    change, constant = costs[:, 1] - costs[:, 0], costs[:, 0].sum()

    def f(x: Tensor) -> Tensor:
        return x @ change + constant

    return Problem(f, (logits,), bits, Additive(costs), at_means(f, bits))


@problem("ising", relaxable=True)
def ising(size: Size, seed: int) -> Problem:
    r"""Weak interactions of all pairs of bits: noise grows with the number of pairs.

    .. math:: f(x) = \sum_i b_i s_i + \sum_{i<j} A_{ij} (s_i s_j + 1), \qquad s = 2x - 1
    """
    d = {"small": 10, "large": 100}[size]
    logits, fields, couplings = normal(seed, (d,), (d,), (d, d))
    couplings, fields = (couplings / d**0.5).triu(1), fields / 2
    constant = couplings.sum()

    def f(x: Tensor) -> Tensor:
        s = 2 * x - 1
        return s @ fields + ((s @ couplings) * s).sum(-1) + constant

    return Problem(f, (logits,), bits, spins(couplings, fields), at_means(f, bits))


@problem("potts", relaxable=True)
def potts(size: Size, seed: int) -> Problem:
    r"""Agreement of neighbours on a ring: many categories, few pairs, each with a large weight.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_i J_i\, [x_i = x_{i+1}]
    """
    d, k = {"small": (5, 4), "large": (60, 8)}[size]
    logits, fields, strengths = normal(seed, (d, k), (d, k), (d,))
    fields, strengths = fields / 2, 2 * strengths

    def f(x: Tensor) -> Tensor:
        return (x * fields).sum((-1, -2)) + (x * x.roll(-1, -2)).sum(-1) @ strengths

    known = Potts(_ring(strengths), fields, one_hot=True)
    return Problem(f, (logits,), one_hot, known, at_means(f, one_hot))


def _ring(strengths: Tensor) -> Tensor:
    """Return couplings ``[d, d]`` of every variable and the next one, and of the last and first."""
    couplings = strengths[:-1].diag(1)
    couplings[0, -1] = strengths[-1]
    return couplings


@problem("xor", relaxable=True)
def xor(size: Size, seed: int) -> Problem:
    r"""One logit for all bits: the errors of the variables add up, so they must cancel.

    .. math:: f(x) = \sum_i x_i \oplus x_{i+1} \text{ on a ring}, \qquad
        x_i \sim \operatorname{Bernoulli}(\sigma(\theta))
    """
    d = {"small": 8, "large": 100}[size]
    (theta,) = normal(seed, (1,))
    theta = theta.abs() + 0.5  # away from 0, where the gradient is zero
    ones = torch.ones(d, 2, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        following = x.roll(-1, -1)
        return (x + following - 2 * x * following).sum(-1)

    def law(theta: Tensor) -> Distribution:
        return bits(theta.expand(theta.shape[:-1] + (d,)))

    known = Potts(_ring(-ones[:, 0]), fields=ones)
    return Problem(f, (theta,), law, known, at_means(f, law))


@problem("parity", relaxable=True)
def parity(size: Size, seed: int) -> Problem:
    r"""Every bit flips the sign of f: an interaction of all variables at once and of no fewer.

    .. math:: f(x) = \prod_i (1 - 2 x_i), \qquad \mathbb{E}[f] = \prod_i (1 - 2 p_i)
    """
    d = {"small": 8, "large": 30}[size]
    (noise,) = normal(seed, (d,))
    # Every bit is nearly certain; otherwise the expectation would vanish.
    logits = (log(2 * d) + noise / 2) * noise.sign()

    def f(x: Tensor) -> Tensor:
        return (1 - 2 * x).prod(-1)

    known = OfSum(lambda s: torch.cos(pi * s), categories=2)
    return Problem(f, (logits,), bits, known, at_means(f, bits))


@problem("random-network", relaxable=True)
def random_network(size: Size, seed: int) -> Problem:
    r"""A smooth function of all bits with learnable interactions of every order.

    .. math:: f(x) = v^\top \tanh(W x + b)

    The large version has no closed form: its reference is pooled.
    """
    d, hidden = {"small": (10, 16), "large": (100, 64)}[size]
    logits, weight, bias, last = normal(seed, (d,), (hidden, d), (hidden,), (1, hidden))
    network = nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))
    values = (2 * weight / d**0.5, bias, last / hidden**0.5)
    state = dict(zip(network.state_dict(), values, strict=True))
    network.double().requires_grad_(False).load_state_dict(state)
    f = FirstLayerLinear(network)
    pooled = IndeCateR(samples=256, sampling="latin")
    return Problem(black_box(f), (logits,), bits, f, pooled=pooled, calls=100)


@problem("vq", relaxable=True)
def vq(size: Size, seed: int) -> Problem:
    r"""Codes read by a convolutional decoder: the chain rule runs through distances.

    .. math:: q(x_i = k) \propto \exp(-\|z_i - c_k\|^2 / 2), \qquad
        f(x) = \sum_j \bigl\|t_j - V \tanh(W (C x_j, C x_{j+1}, C x_{j+2}) + b)\bigr\|^2

    The parameters are the encoder's vectors z. Every output sees three codes, so the expectation is
    a sum over windows of three.
    """
    d, k = {"small": (5, 4), "large": (32, 16)}[size]
    width, hidden, pixels, window = 4, 16, 8, 3
    vectors = [(d, width), (k, width)]
    layers = [(window * width, hidden), (hidden,), (hidden, pixels), (d - window + 1, pixels)]
    z, codebook, first, bias, last, targets = normal(seed, *vectors, *layers)
    first, last = first / (window * width) ** 0.5, last / hidden**0.5

    def costs(windows: Tensor) -> Tensor:
        """Return every output's cost from its vectors, ``[..., outputs, width, window]``."""
        out = (windows.flatten(-2) @ first + bias).tanh() @ last
        return (out - targets).square().sum(-1)

    def f(x: Tensor) -> Tensor:
        return costs((x @ codebook).unfold(-2, window, 1)).sum(-1)

    def logits(z: Tensor) -> Tensor:
        return -(z.unsqueeze(-2) - codebook).square().sum(-1) / 2

    def law(z: Tensor) -> Distribution:
        return one_hot(logits(z))

    windows = codebook[torch.cartesian_prod(*[torch.arange(k)] * window)].mT.unsqueeze(1)
    table = costs(windows.expand(-1, d - window + 1, -1, -1)).mT.unflatten(-1, (k, k, k))

    def expectation(z: Tensor) -> Tensor:
        p = logits(z).softmax(-1)
        return torch.einsum(
            "...ja,...jb,...jc,jabc->...", p[..., :-2, :], p[..., 1:-1, :], p[..., 2:, :], table
        )

    return Problem(f, (z,), law, expectation=expectation)


@problem("chain", relaxable=False)
def chain(size: Size, seed: int) -> Problem:
    r"""A Markov chain with one transition for all steps: the effect of a choice fades.

    .. math:: f(z) = \sum_t r_t(z_t) + \sum_t J(z_t, z_{t+1})
    """
    length, k = {"small": (6, 3), "large": (40, 5)}[size]
    initial, transition, rewards, pairs = normal(seed, (k,), (k, k), (length, k), (k, k))

    def law(initial: Tensor, transition: Tensor) -> Distribution:
        return MarkovChain(initial, transition, length=length)

    def f(z: Tensor) -> Tensor:
        return rewards[torch.arange(length), z].sum(-1) + pairs[z[..., :-1], z[..., 1:]].sum(-1)

    def expectation(initial: Tensor, transition: Tensor) -> Tensor:
        marginal, step = initial.softmax(-1), transition.softmax(-1)
        total = marginal @ rewards[0]
        for t in range(1, length):
            joint = marginal.unsqueeze(-1) * step
            marginal = joint.sum(-2)
            total = total + (joint * pairs).sum((-1, -2)) + marginal @ rewards[t]
        return total

    return Problem(f, (initial, transition), law, expectation=expectation)


@problem("bayesian-network", relaxable=False)
def bayesian_network(size: Size, seed: int) -> Problem:
    r"""A ladder with two parents per node: independent within a rung, dependent along the rails.

    .. math:: q(a, b) = \prod_t q(a_t \mid a_{t-1}, b_{t-1})\, q(b_t \mid a_{t-1}, b_{t-1}), \qquad
        f(a, b) = \sum_t g_t(a_t, b_t)

    The event is :math:`a_1, b_1, a_2, b_2, \dots`
    """
    rungs, k = {"small": (4, 2), "large": (12, 4)}[size]
    roots, tables, costs = normal(seed, (2, k), (rungs - 1, 2, k, k, k), (rungs, k, k))

    def law(roots: Tensor, tables: Tensor) -> Distribution:
        nodes = {"a0": Node([], roots[..., 0, :]), "b0": Node([], roots[..., 1, :])}
        for t in range(1, rungs):
            parents = [f"a{t - 1}", f"b{t - 1}"]
            for side, name in enumerate("ab"):
                nodes[f"{name}{t}"] = Node(parents, tables[..., t - 1, side, :, :, :])
        return BayesianNetwork(nodes, roots.shape[:-2])

    def f(x: Tensor) -> Tensor:
        rung = x.unflatten(-1, (rungs, 2))
        return costs[torch.arange(rungs), rung[..., 0], rung[..., 1]].sum(-1)

    def expectation(roots: Tensor, tables: Tensor) -> Tensor:
        first, steps = roots.softmax(-1), tables.softmax(-1)
        joint = first[..., 0, :, None] * first[..., 1, None, :]
        total = (joint * costs[0]).sum((-1, -2))
        for t in range(1, rungs):
            a, b = steps[..., t - 1, 0, :, :, :], steps[..., t - 1, 1, :, :, :]
            joint = torch.einsum("...xy,...xya,...xyb->...ab", joint, a, b)
            total = total + (joint * costs[t]).sum((-1, -2))
        return total

    return Problem(f, (roots, tables), law, expectation=expectation)


class ByDepth:
    """A network that looks up the next token's logits by the number of open brackets.

    Args:
        table: ``[*batch, 2 * deepest + 1, 3]``.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.deepest = table.shape[-2] // 2

    def rows(self, depth: Tensor) -> Tensor:
        """Return the one-hot row of the table for a depth; larger depths share the last row."""
        row = depth.clamp(-self.deepest, self.deepest) + self.deepest
        return one_hots(row, self.table.shape[-2]).to(self.table.dtype)

    def all_logits(self, x: Tensor) -> Tensor:
        after = change(x).cumsum(-1)
        return self.rows(after - change(x)) @ self.table

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(lead, dtype=torch.int64)

    def step(self, depth: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        depth = depth if previous is None else depth + change(previous)
        return (self.rows(depth).unsqueeze(-2) @ self.table).squeeze(-2), depth


def change(token: Tensor) -> Tensor:
    """Return the change of depth: token 0 is a letter, 1 opens a bracket, 2 closes one."""
    return (token == 1).long() - (token == 2).long()


@problem("autoregressive", relaxable=False)
def autoregressive(size: Size, seed: int) -> Problem:
    r"""A sequence model with one reward at the end: every token depends on all earlier ones.

    .. math:: f(x) = \alpha^{\text{steps with more brackets closed than opened}}\;
        \beta^{|\text{brackets left open}|}

    Tokens are a letter, an opening and a closing bracket; the logits depend on the number of open
    brackets.
    """
    length, deepest = {"small": (6, 2), "large": (30, 5)}[size]
    below_zero, left_open = 0.7, 0.6
    (table,) = normal(seed, (2 * deepest + 1, 3))

    def law(table: Tensor) -> Distribution:
        return Autoregressive(ByDepth(table), [3] * length, table.shape[:-2], dtype=table.dtype)

    def f(x: Tensor) -> Tensor:
        depth = change(x).cumsum(-1)
        below, still_open = (depth < 0).sum(-1), depth[..., -1].abs()
        return below_zero ** below.double() * left_open ** still_open.double()

    depths = torch.arange(-length, length + 1)
    reward = below_zero ** (depths < 0).double()

    def expectation(table: Tensor) -> Tensor:
        steps = (ByDepth(table).rows(depths) @ table).softmax(-1)
        # The weight of a depth is its probability times the reward so far.
        weight = (depths == 0).to(table.dtype)
        for _ in range(length):
            letter, opens, closes = (weight.unsqueeze(-1) * steps).unbind(-1)
            weight = (letter + opens.roll(1, -1) + closes.roll(-1, -1)) * reward
        return weight @ left_open ** depths.abs().double()

    return Problem(f, (table,), law, expectation=expectation)


@problem("max-coverage", relaxable=True)
def max_coverage(size: Size, seed: int) -> Problem:
    r"""Diminishing returns: a bit adds nothing where another covers the same, so effects are local.

    .. math:: f(x) = \sum_u w_u \Bigl(1 - \prod_{i \text{ covers } u} (1 - x_i)\Bigr)
    """
    d, elements = {"small": (10, 20), "large": (100, 300)}[size]
    logits, weights = normal(seed, (d,), (elements,))
    weights = weights.abs()
    generator = torch.Generator().manual_seed(seed)
    # Every element is in four sets.
    covers = torch.rand(elements, d, generator=generator).argsort(-1)[:, :4]

    def f(x: Tensor) -> Tensor:
        return (1 - (1 - x[..., covers]).prod(-1)) @ weights

    return Problem(f, (logits - 1,), bits, expectation=at_means(f, bits))


@problem("subset-selection", relaxable=True)
def subset_selection(size: Size, seed: int) -> Problem:
    r"""Several draws from one distribution choose features, and a feature counts once.

    .. math:: f(x) = \frac1n \Bigl\| y - \sum_{j \text{ chosen}} \beta_j a_j \Bigr\|^2, \qquad
        y = \sum_j \beta_j a_j

    Slot s chooses feature :math:`x_s \sim \operatorname{softmax}(\theta)`. With
    :math:`u_j = \prod_s (1 - x_{sj})` this is a quadratic form in u, and
    :math:`\mathbb{E}[u_i u_j] = (1 - p_i - p_j)^{\text{slots}}`.
    """
    slots, k = {"small": (3, 8), "large": (10, 50)}[size]
    theta, features, beta = normal(seed, (k,), (2 * k, k), (k,))
    gram = beta[:, None] * (features.mT @ features) * beta / (2 * k)

    def law(theta: Tensor) -> Distribution:
        return one_hot(theta.unsqueeze(-2).expand(theta.shape[:-1] + (slots, k)))

    def f(x: Tensor) -> Tensor:
        unchosen = (1 - x).prod(-2)
        return ((unchosen @ gram) * unchosen).sum(-1)

    def expectation(theta: Tensor) -> Tensor:
        p = theta.softmax(-1)
        single, both = (1 - p) ** slots, (1 - p.unsqueeze(-1) - p.unsqueeze(-2)) ** slots
        diagonal = torch.eye(k, dtype=torch.bool)
        return (gram * torch.where(diagonal, single.unsqueeze(-1), both)).sum((-1, -2))

    return Problem(f, (theta,), law, expectation=expectation)


@problem("digit-sum", relaxable=False)
def digit_sum(size: Size, seed: int) -> Problem:
    r"""A rare event: f is 0 at almost every draw, and it has no derivative.

    .. math:: f(x) = \Bigl[\sum_i x_i = s\Bigr], \qquad x_i \in \{0, \dots, 9\}
    """
    d = {"small": 3, "large": 16}[size]
    (logits,) = normal(seed, (d, 10))
    logits *= 2
    mean = (logits.softmax(-1) @ torch.arange(10.0, dtype=torch.float64)).sum()
    target = int(mean.round()) + d // 2
    f = OfSum(lambda s: (s.round() == target).double(), categories=10, one_hot=True)
    return Problem(black_box(f), (logits,), one_hot, f, own_mean(f, one_hot))


@problem("knapsack", relaxable=True)
def knapsack(size: Size, seed: int) -> Problem:
    r"""Values add up until a constraint binds: a kink couples all variables on one side only.

    .. math:: f(x) = \sum_i v_i x_i - \lambda \max\Bigl(0, \sum_i w_i x_i - C\Bigr)
    """
    d = {"small": 10, "large": 100}[size]
    logits, values = normal(seed, (d,), (d,))
    weights = torch.randint(1, 11, (d,), generator=torch.Generator().manual_seed(seed))
    values = weights / 10 * (1 + values.abs())
    capacity, penalty = int(weights.sum()) // 2, 0.5
    excess = OfSum(lambda s: (s - capacity).relu(), 2, weights)

    def f(x: Tensor) -> Tensor:
        return x @ values - penalty * (x @ weights.double() - capacity).relu()

    def expectation(logits: Tensor) -> Tensor:
        return logits.sigmoid() @ values - penalty * excess.expectation(bits(logits))

    return Problem(f, (logits,), bits, expectation=expectation)


@problem("mixed", relaxable=False)
def mixed(size: Size, seed: int) -> Problem:
    r"""Variables of 2 to 7 categories in a batch of two distributions with different masks.

    .. math:: f(x) = \Bigl|\sum_i x_i - t\Bigr|
    """
    d = {"small": 5, "large": 60}[size]
    generator = torch.Generator().manual_seed(seed)
    sizes = [2 + i % 6 for i in range(d)]
    k = max(sizes)
    (logits,) = normal(seed, (2, d, k))
    # In every variable with three or more categories one is masked, drawn for each batch element.
    is_category = torch.arange(k) < torch.tensor(sizes)[:, None]
    masked = (torch.rand(2, d, k, generator=generator) * is_category).argmax(-1)
    mask = torch.arange(k) == torch.where(torch.tensor(sizes) > 2, masked, k)[..., None]

    def law(logits: Tensor) -> Categoricals:
        return Categoricals(logits.masked_fill(mask, -torch.inf), sizes)

    mean = (law(logits).probs @ torch.arange(k, dtype=torch.float64)).sum(-1)
    target = mean.round() + torch.tensor([0, d**0.5 // 1], dtype=torch.float64)
    f = OfSum(lambda s: (s - target).abs(), categories=k)

    return Problem(black_box(f), (logits,), law, f, own_mean(f, law))
