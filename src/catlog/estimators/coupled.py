"""f at coupled draws, with a gradient in the logits from the values there: ARM and relatives."""

from dataclasses import KW_ONLY
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ..core import Estimate, Estimator, Evaluator, Randomness
from ..core.categories import inverse_cdf, positive
from ..core.factors import Bits, IndependentFactors
from ..core.tracing import full_precision
from .score_function import leave_one_out

__all__ = ["ARM", "ARMS", "ARSM", "CARMS", "DisARM", "DisARMTree"]

Rank = Int64[Tensor, "n *#batch d"]
Table = Float[Tensor, "*#batch d k"]
Nodes = Int64[Tensor, "*lead nodes"]
Row = Int64[Tensor, "rows"]


def dirichlet(uniforms: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return Dirichlet(1, ..., 1) vectors along a dimension, made from uniforms."""
    exponential = -positive(uniforms).log()
    return exponential / exponential.sum(dim, keepdim=True)


class Antithetic(Estimator[Bits]):
    """The difference of f at an antithetic pair of draws, times what :meth:`credit` says."""

    samples: int = 1

    def credit(self, q: Bits, u: Tensor, b: Tensor, anti: Tensor) -> Float[Tensor, "n *batch d"]:
        """Return the gradient in the log-odds of each bit if the difference is 1."""
        raise NotImplementedError

    def estimate(self, f: Evaluator, q: Bits, draw: Randomness) -> Estimate:
        u = draw.uniform(self.samples, *q.batch_shape, q.d, batch_from=1, closed=True)
        b, anti = q.from_uniforms(u), q.from_uniforms(1 - u)
        fx = f(q.point(torch.cat([b, anti])))
        values, anti_values = fx.detach().chunk(2)
        credit = self.credit(q, u, b, anti)
        gradient = ((values - anti_values).unsqueeze(-1) * credit).mean(0)
        return Estimate(fx.mean(0), fx.mean(0) + q.with_odds_gradient(gradient))


class ARM(Antithetic):
    r"""The difference of f at an antithetic pair of draws, weighted by the uniform noise behind the
    pair.

    .. math::
        \partial_{\eta_i} \approx \frac1N \sum_n \bigl(f(b^{(n)}) - f(\tilde
        b^{(n)})\bigr)\bigl(u_i^{(n)} - \tfrac12\bigr),
        \qquad b = 1[u > 1 - p],\; \tilde b = 1[u < p],\; u \sim \text{Uniform}

    with :math:`\eta` the log-odds; the value is the mean over all 2N points, and the gradient in
    the parameters of f is that of the value. It is unbiased and needs no tuning. :class:`DisARM`
    has the same cost and never more variance, so use it instead.

    Cost: 2 ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Yin and Zhou, "ARM: augment-REINFORCE-merge gradient for stochastic binary networks",
    2019.

    Args:
        samples: number of pairs N.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ARM()(lambda x: x[..., 0], q, noise=torch.tensor([[0.75, 0.5]])).backward()
    >>> logits.grad
    tensor([0.2500, 0.0000])
    """

    instead = "ARSM"

    def credit(self, q: Bits, u: Tensor, b: Tensor, anti: Tensor) -> Float[Tensor, "n *batch d"]:
        return u - 0.5


class DisARM(Antithetic):
    r"""The difference of f at an antithetic pair of draws, credited to the bits in which the pair
    differs.

    .. math::
        \partial_{\eta_i} \approx \frac1N \sum_n \tfrac12 \bigl(f(b^{(n)}) - f(\tilde b^{(n)})\bigr)
        (b_i^{(n)} - \tilde b_i^{(n)})\, \sigma(|\eta_i|), \qquad b = 1[u > 1 - p],\; \tilde b = 1[u
        < p]

    It is the conditional expectation of :class:`ARM` given the pair, so it never has more variance.
    With one pair it is also :class:`ARMS` with two draws. The value is the mean over all 2N points.
    A q given by probabilities gets the same gradient, through
    :math:`\partial p_i = p_i (1 - p_i)\, \partial \eta_i`.

    Cost: 2 ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Dong et al., "DisARM: an antithetic gradient estimator for binary latent variables",
    2020; Yin et al., "Probabilistic best subset selection via gradient-based optimization" (U2G),
    2020.

    Args:
        samples: number of pairs N.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DisARM()(lambda x: x[..., 0], q, noise=torch.tensor([[0.9, 0.2]])).backward()
    >>> logits.grad
    tensor([ 0.2500, -0.2500])
    """

    instead = "DisARMTree"

    def credit(self, q: Bits, u: Tensor, b: Tensor, anti: Tensor) -> Float[Tensor, "n *batch d"]:
        return (b - anti) * torch.maximum(q.p0, q.p1) / 2


class ARMS(Estimator[Bits]):
    r"""Leave-one-out REINFORCE on negatively dependent draws of bits, corrected for their
    dependence.

    .. math::
        \partial_{\eta_i} \approx \frac{1}{N-1} \sum_n \bigl(f(b^{(n)}) - \overline f\bigr)
        b_i^{(n)}\;
        \frac{\rho_i (1 - \rho_i)}{\rho_i - P_i}, \qquad \rho_i = \min(p_i, 1 - p_i)

    The draws are coupled by a Dirichlet copula: :math:`b_i^{(n)}` is the rarer value where
    :math:`(1 - d_i^{(n)})^{N-1} < \rho_i`, and
    :math:`(d_i^{(1)}, \dots, d_i^{(N)}) \sim \text{Dirichlet}(1, \dots, 1)`. Two draws are both
    rare with probability :math:`P_i = \max(0, 2 \rho_i^{1/(N-1)} - 1)^{N-1} \le \rho_i^2`. The
    value is the mean over the draws. Unbiased; with N = 2 it is :class:`DisARM`.

    Cost: ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Dimitriev and Zhou, "ARMS: antithetic-REINFORCE-multi-sample gradient for binary
    variables", 2021.

    Args:
        samples: number of coupled draws N, at least 2.

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, *batch, d]``: u such that d
    is -log u, divided by its sum over the draws.

    >>> logits = torch.zeros(1, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ARMS(samples=2)(lambda x: x[..., 0], q, noise=torch.tensor([[0.2], [0.8]])).backward()
    >>> logits.grad
    tensor([0.2500])
    """

    samples: int = 2

    instead = "CARMS"
    least_samples = 2
    too_few = "One draw has no others to compare with: use Reinforce."

    def estimate(self, f: Evaluator, q: Bits, draw: Randomness) -> Estimate:
        u = draw.uniform(self.samples, *q.batch_shape, q.d, batch_from=1, closed=True)
        rare, category = q.p.min(-1)
        b = torch.where(antithetic_events(dirichlet(u, 0), rare), category, 1 - category)
        fx = f(q.point(b))
        advantage = (fx - leave_one_out(fx)).detach().unsqueeze(-1)
        gradient = (advantage * b).mean(0) * pair_correction(self.samples, rare)
        return Estimate(fx.mean(0), fx.mean(0) + q.with_odds_gradient(gradient))


def antithetic_events(
    noise: Float[Tensor, "n *shape"], chance: Float[Tensor, "*shape"]
) -> Bool[Tensor, "n *shape"]:
    """Return N negatively dependent events of the same probability: u_n < chance, u_n = (1 -
    noise_n)^(N - 1).

    The noise is Dirichlet(1, ..., 1) along its first dimension, so that u_n is uniform.
    """
    return (1 - noise).pow(len(noise) - 1) < chance


def pair_probability(n: int, chance: Tensor) -> Tensor:
    """Return the probability that two of the ``n`` events of :func:`antithetic_events` both happen.

    They do where both noises exceed t = 1 - chance^(1 / (n - 1)), and P(noise_1 > t, noise_2 > t) =
    max(0, 1 - 2t)^(n - 1).
    """
    # not chance.pow(1 / (n - 1)): Triton rounds such an exponent to float32
    root = (chance.log() / (n - 1)).exp()
    return (2 * root - 1).clamp(min=0).pow(n - 1)


def pair_correction(n: int, chance: Tensor) -> Tensor:
    """Return the ratio of P(one of two events happens) for independent and for antithetic events.

    It is c (1 - c) / (c - P(both)), which is at most 1.
    """
    both = pair_probability(n, chance)
    return (1 - chance) / (1 - both / chance.clamp(min=torch.finfo(chance.dtype).tiny))


class CARMS(Estimator[IndependentFactors]):
    r"""ARMS for categorical variables: leave-one-out REINFORCE on negatively dependent draws, each
    pair with a weight that corrects for the dependence.

    .. math::
        \frac{1}{N (N-1)} \sum_{n \ne m} \bigl(f(x^{(n)}) - f(x^{(m)})\bigr) \sum_{i:\, x_i^{(n)}
        \ne x_i^{(m)}}
        \frac{p_i(x_i^{(n)})\, p_i(x_i^{(m)})}{P_i(x_i^{(n)}, x_i^{(m)})}\; \partial \log
        p_i(x_i^{(n)})

    The draws of a variable break a stick, rarest category first. The draws that have no category
    yet take category j with probability :math:`s_j = p_j / (p_j + p_{j+1} + \dots) \le 1/2`,
    coupled as in :class:`ARMS`. Then for j before l

    .. math::
        \frac{p_j\, p_l}{P(j, l)} = \frac{s_j (1 - s_j)}{s_j - S_j} \prod_{h < j} \frac{(1 -
        s_h)^2}{1 - 2 s_h + S_h} < 2,
        \qquad S_j = \max(0, 2 s_j^{1/(N-1)} - 1)^{N-1}

    so every pair can occur and no weight is large. In other orders a pair can become impossible,
    which would cause a bias. With k = 2 it is ARMS. With N = 2 and uniform probabilities two draws
    never agree. The value is the mean over the draws.

    Cost: ``samples`` evaluations, and N d k numbers: the sum over pairs is taken by categories.
    Needs: any f.
    Reference: Dimitriev and Zhou, "CARMS: categorical-antithetic-REINFORCE multi-sample gradient
    estimator", 2021. The coupling by sticks, rarest first, is the choice of this library.

    Args:
        samples: number of coupled draws N, at least 2.

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, *batch, d, k - 1]``: u such
    that -log u, divided by its sum over the draws, is the Dirichlet vector of each stick.

    >>> q = torch.distributions.Categorical(logits=torch.zeros(5, 4))
    >>> CARMS(samples=3)(lambda x: (x == 0).float(), q).shape
    torch.Size([5])
    """

    samples: int = 2

    least_samples = 2
    too_few = "One draw has no others to compare with: use Reinforce."

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        n = self.samples
        u = draw.uniform(n, *q.batch_shape, q.d, q.k - 1, batch_from=1, closed=True)
        order, stick = _sticks(q.p)
        passes = ~antithetic_events(dirichlet(u, 0), stick)
        rank = (passes if q.k == 2 else passes.long().cumprod(-1)).sum(-1)
        index = order.expand(*rank.shape, q.k).gather(-1, rank.unsqueeze(-1)).squeeze(-1)
        fx = f(q.point(index))
        by_rank = _summed_pairs(fx.detach().to(q.real), rank, _weights(n, stick)) / (n * (n - 1))
        gradient = torch.zeros_like(by_rank).scatter(-1, order.expand(by_rank.shape), by_rank)
        return Estimate(fx.mean(0), fx.mean(0) + q.with_gradient(gradient))


def _summed_pairs(fx: Float[Tensor, "n *batch"], rank: Rank, weight: Table) -> Table:
    """Return, for each rank r, the sum over all pairs of a draw n of rank r and a draw m of another
    rank of (f_n - f_m) times the weight of the lower rank.

    The weight depends on the ranks only, so the counts and the sums of f of each rank suffice. An
    infinite weight is one of pairs that cannot occur.
    """
    weight = torch.where(weight.isfinite(), weight, 0.0)
    fx = (fx - fx.mean(0)).unsqueeze(-1)
    ranks = range(weight.shape[-1])
    count = torch.stack([(rank == r).sum(0) for r in ranks], -1).to(fx.dtype)
    total = torch.stack([(fx * (rank == r)).sum(0) for r in ranks], -1)
    count_below, total_below = (_sum_before(weight * part) for part in (count, total))
    count_above, total_above = (_sum_before(part.flip(-1)).flip(-1) for part in (count, total))
    return (
        total * count_below
        - count * total_below
        + weight * (total * count_above - count * total_above)
    )


def _sum_before(terms: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
    """Return for each entry the sum of the earlier ones."""
    return pad(terms[..., :-1].cumsum(-1), (1, 0))


def _sticks(probs: Table) -> tuple[Int64[Tensor, "*batch d k"], Float[Tensor, "*batch d sticks"]]:
    """Return the categories, rarest first, and their probabilities given none before was taken."""
    ordered, order = probs.sort(dim=-1, stable=True)
    rest = ordered.flip(-1).cumsum(-1).flip(-1)
    return order, (ordered / rest)[..., :-1]


def _weights(n: int, stick: Float[Tensor, "*batch d sticks"]) -> Float[Tensor, "*batch d k"]:
    """Return p_j p_l / P(j, l) by the stick j that comes first; no pair uses the last entry."""
    step = (1 - stick).square() / (1 - 2 * stick + pair_probability(n, stick))
    ones = stick.new_ones(stick.shape[:-1] + (1,))
    before = torch.cat([ones, step[..., :-1].cumprod(-1)], -1)
    return torch.cat([before[..., : stick.shape[-1]] * pair_correction(n, stick), ones], -1)


class ARSM(Estimator[IndependentFactors]):
    r"""ARM for categorical variables: f at the arg-min categories after swapping pairs of noise
    components, weighted by the noise.

    .. math::
        \partial_{\phi_{im}} \approx \sum_j \Bigl(f(x^{mj}) - \frac1k \sum_c f(x^{cj})\Bigr)
        \bigl(\tfrac1k - \pi_{ij}\bigr), \qquad x_i = \arg\min_c \pi_{ic} / p_i(c),\; \pi_i \sim
        \text{Dirichlet}(1, \dots, 1)

    with :math:`\phi` the logits; :math:`x^{mj}` are the arg-min categories after swapping the
    entries m and j of :math:`\pi_i`, in *all* variables i. Every such point is a draw of q, so the
    value is the mean over all of them. Value and gradient are averaged over N noise vectors.
    Unbiased; with k = 2 it is :class:`ARM`. Categories of probability zero are never drawn; with
    mixed cardinalities k is the largest.

    Cost: ``samples`` (1 + k (k - 1) / 2) evaluations and N (d + k) k numbers. From some hundred
    categories on, use :class:`CARMS` or :class:`DisARMTree`, with N and 2N evaluations. Needs: any
    f.
    Reference: Yin et al., "ARSM: augment-REINFORCE-swap-merge estimator for gradient
    backpropagation through categorical variables", 2019.

    Args:
        samples: number N of noise vectors.

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, *batch, d, k]``: u such that
    :math:`\pi` is -log u, divided by its sum over the categories.

    >>> logits = torch.zeros(1, 3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Categorical(logits=logits), 1)
    >>> pi = torch.tensor([[[0.2, 0.3, 0.5]]])
    >>> ARSM()(lambda x: (x[..., 0] == 0).float(), q, noise=(-pi).exp()).backward()
    >>> logits.grad
    tensor([[ 0.1778, -0.0889, -0.0889]])
    """

    samples: int = 1

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        n, k = self.samples, q.k
        noise = dirichlet(draw.uniform(n, *q.batch_shape, q.d, k, batch_from=1, closed=True), -1)
        m, j = pad(torch.triu_indices(k, k, 1, device=q.device), (1, 0))  # 0 and 0: no swap
        swapped = _Swaps(noise, q.p)

        def points(part: slice) -> Tensor:
            row = torch.arange(part.start, part.stop, device=q.device)
            return q.point(swapped.winner(row % n, m[row // n], j[row // n]))

        fx = f.chunked(points, len(m) * n)
        which = torch.zeros(k, k, dtype=torch.int64, device=q.device)
        which[m, j] = torch.arange(len(m), device=q.device)
        table = fx.detach().unflatten(0, (-1, n))[which + which.mT]  # [k (m), k (j), n, *batch]
        change = (table - table.mean(0)).movedim((0, 1), (-1, -2)).to(noise.dtype)
        with full_precision(noise):
            gradient = ((1 / k - noise) @ change).mean(0)
        return Estimate(fx.mean(0), fx.mean(0) + q.with_gradient(gradient))


class _Swaps:
    """The categories of the smallest ``noise / probs`` after swaps of two entries of the noise.

    A swap changes two ratios alone. The smallest of the others is among the three smallest of all,
    so a swap compares five numbers instead of k.
    """

    def __init__(self, noise: Float[Tensor, "n *batch d k"], probs: Table) -> None:
        value, category = (noise / probs).sort(dim=-1, stable=True)
        self.value = pad(value, (0, 2), value=torch.inf)[..., :3].movedim(-1, 0)
        self.category = pad(category, (0, 2))[..., :3].movedim(-1, 0)
        self.noise = noise.movedim(-1, 1)
        self.probs = probs.movedim(-1, 0)

    def winner(self, draw: Row, m: Row, j: Row) -> Int64[Tensor, "rows *batch d"]:
        """Return the category of the smallest ratio of a draw after swapping m and j."""
        ones = [1] * (self.value.dim() - 2)
        entries = m.view(-1, *ones), j.view(-1, *ones)
        smallest, winner = self.value[2][draw], self.category[2][draw]
        for rank in (1, 0):
            category = self.category[rank][draw]
            is_unchanged = (category != entries[0]) & (category != entries[1])
            smallest = torch.where(is_unchanged, self.value[rank][draw], smallest)
            winner = torch.where(is_unchanged, category, winner)
        for entry, number, partner in zip(entries, (m, j), (j, m), strict=True):
            ratio = self.noise[draw, partner] / self.probs[number]
            winner = torch.where(ratio < smallest, entry, winner)
            smallest = torch.minimum(ratio, smallest)
        return winner


class DisARMTree(Estimator[IndependentFactors]):
    r"""DisARM for categorical variables: every category is a leaf of a binary tree, every inner
    node a bit.

    .. math::
        \partial_{\alpha_{iv}} \approx \frac1N \sum_n \tfrac12 \bigl(f(x^{(n)}) - f(\tilde
        x^{(n)})\bigr)
        (b_{iv}^{(n)} - \tilde b_{iv}^{(n)})\, \sigma(|\alpha_{iv}|)\, V_{iv}^{(n)}, \qquad
        \alpha_{iv} = \log \frac{p_i(\text{right of } v)}{p_i(\text{left of } v)}

    :math:`b, \tilde b` are antithetic bits at the nodes v, and :math:`x, \tilde x` the leaves that
    they lead to. V is 1 where the path to :math:`x_i` or to :math:`\tilde x_i` passes v, and 0
    elsewhere, because f does not depend on the other bits. The chain rule takes the gradient from
    :math:`\alpha` to the parameters of q. Unbiased; with k = 2 it is :class:`DisARM`. The value is
    the mean over all 2N points.

    Cost: 2 ``samples`` evaluations, and N d k numbers. Needs: any f.
    Reference: Dong et al., "Coupled gradient estimators for discrete latent variables", 2021.

    Args:
        samples: number of pairs N.
        tree: "balanced", or "stick": one category split off at a time, the rarest first.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d, k - 1]``.

    >>> q = torch.distributions.Categorical(logits=torch.zeros(5, 4))
    >>> DisARMTree(samples=3)(lambda x: (x == 0).float(), q).shape
    torch.Size([5])
    """

    samples: int = 1
    _: KW_ONLY
    tree: Literal["balanced", "stick"] = "balanced"

    def estimate(self, f: Evaluator, q: IndependentFactors, draw: Randomness) -> Estimate:
        u = draw.uniform(self.samples, *q.batch_shape, q.d, q.k - 1, batch_from=1, closed=True)
        probs = q.p
        order = torch.arange(q.k, device=q.device).expand(probs.shape)
        if self.tree == "stick":
            probs, order = probs.sort(dim=-1, stable=True)
        tree = _Stick(q.k) if self.tree == "stick" else _Heap(q.k)
        mass = tree.mass(probs)  # of the leaves on either side
        tiny = torch.finfo(q.real).tiny
        node = mass / mass.sum(-1, keepdim=True).clamp(min=tiny)
        bits = torch.cat([inverse_cdf(node, u), inverse_cdf(node, 1 - u)])
        leaf, is_passed = tree.descend(bits)
        index = order.expand(*leaf.shape, q.k).gather(-1, leaf.unsqueeze(-1)).squeeze(-1)
        fx = f(q.point(index))
        values, anti_values = fx.detach().chunk(2)
        b, anti = bits.chunk(2)
        on_path = torch.logical_or(*is_passed.chunk(2))
        change = (values - anti_values)[..., None, None] * (b - anti) * on_path
        by_node = change.mean(0) * node.amax(-1) / 2
        # d alpha / d log p_k is p_k over the mass of its side: right positive, left negative.
        share = torch.stack([-by_node, by_node], -1) / mass.clamp(min=tiny)
        by_leaf = tree.sum_to_leaves(share) * probs
        gradient = torch.zeros_like(by_leaf).scatter(-1, order.expand(by_leaf.shape), by_leaf)
        return Estimate(fx.mean(0), fx.mean(0) + q.with_gradient(gradient))


class _Stick:
    """Node v splits off leaf v (right, where its bit is 1) from all later ones (left)."""

    def __init__(self, k: int) -> None:
        self.k = k

    def mass(self, probs: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead nodes 2"]:
        """Return the probabilities of the leaves left and right of every node."""
        later = probs.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return torch.stack([later, probs[..., :-1]], -1)

    def descend(self, bits: Nodes) -> tuple[Int64[Tensor, "*lead"], Bool[Tensor, "*lead nodes"]]:
        """Return the leaf that the bits lead to, and whether its path passes each node."""
        leaf = pad(bits, (0, 1), value=1).argmax(-1)
        node = torch.arange(self.k - 1, device=bits.device)
        return leaf, node <= leaf.unsqueeze(-1)

    def sum_to_leaves(self, share: Float[Tensor, "*lead nodes 2"]) -> Float[Tensor, "*lead k"]:
        """Return the sum of the shares along the path to every leaf."""
        left, right = share.unbind(-1)
        return pad(left.cumsum(-1), (1, 0)) + pad(right, (0, 1))


class _Heap:
    """Node v has the children 2v and 2v + 1, the root is 1 and the leaves are k ... 2k - 1."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.depth = (k - 1).bit_length()

    def mass(self, probs: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead nodes 2"]:
        """Return the probabilities of the leaves left and right of every node."""
        nodes, first = probs, self.k  # of the nodes from ``first`` on
        while first > 1:
            parent = (first + 1) // 2  # the first one both of whose children are known
            children = nodes[..., 2 * parent - first : first]
            nodes = torch.cat([children.unflatten(-1, (first - parent, 2)).sum(-1), nodes], -1)
            first = parent
        return nodes[..., 1:].unflatten(-1, (self.k - 1, 2))

    def descend(self, bits: Nodes) -> tuple[Int64[Tensor, "*lead"], Bool[Tensor, "*lead nodes"]]:
        """Return the leaf that the bits lead to, and whether its path passes each node."""
        node = bits.new_ones(*bits.shape[:-1], 1)
        passed = [node[..., :0]]
        for _ in range(self.depth):
            is_inner = node < self.k
            passed.append(torch.where(is_inner, node, 1) - 1)
            bit = bits.gather(-1, passed[-1])
            node = torch.where(is_inner, 2 * node + bit, node)
        is_passed = torch.zeros_like(bits, dtype=torch.bool)
        return node.squeeze(-1) - self.k, is_passed.scatter(-1, torch.cat(passed, -1), True)

    def sum_to_leaves(self, share: Float[Tensor, "*lead nodes 2"]) -> Float[Tensor, "*lead k"]:
        """Return the sum of the shares along the path to every leaf."""
        total = share.new_zeros(*share.shape[:-2], 1)  # of the nodes from the root on
        for level in range(self.depth):
            parents = slice(2**level - 1, min(2 ** (level + 1), self.k) - 1)
            children = total[..., parents].unsqueeze(-1) + share[..., parents, :]
            total = torch.cat([total, children.flatten(-2)], -1)
        return total[..., self.k - 1 :]
