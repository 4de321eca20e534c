"""Every function with a table or a mean of its own equals the black box of the same values."""

import re
from itertools import pairwise, product

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import catlog
from catlog import Exact, GumbelSoftmax, IndeCateR
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.functions import Additive, DigitsOfSum, OfSum, Pairwise, Potts, ising
from catlog.functions import BernoulliCrossEntropy as CrossEntropy
from catlog.functions import FirstLayerLinear as Network
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same
from support.laws import bits, integers
from support.operations import Operations
from support.own_tables import (
    CASES,
    LAWS,
    MEAN_CASES,
    MEAN_LAWS,
    assert_right_table,
    brute_mean,
    build,
    functions,
    network,
    set_normals,
    wave,
)

EXACT = {"rtol": 0, "atol": 1e-12}


def outputs(name):
    return int("outputs" in name)


def some_draws(law, n):
    return Randomness(law, generator=seeded()).points(n)


def by_calls(f):
    def black_box(x):
        return f(x)

    black_box.touches = getattr(f, "touches", None)
    return black_box


SIZES = [  # the batch of q, that of f, and the number of variables
    ((), (), 4),
    ((4,), (4,), 4),
    ((4,), (4,), 1),
    ((2, 3), (2, 3), 4),
    ((2, 3), (3,), 4),
    ((2, 3), (2, 1), 4),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize(("batch", "own", "d"), SIZES, ids=str)
def test_table(name, kind, batch, own, d):
    """For all variables and for some, at every neighbour; carries of digits run far."""
    if name.startswith("digits"):
        d = 10
    f, _, law = build(name, kind, own, d)
    law = view(LAWS[kind](normals(*batch, d, 3)))
    assert_right_table(f, some_draws(law, 3), law)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize(
    "options", [{}, {"per_variable": True}, {"variables": 2, "control": "none"}], ids=str
)
def test_estimates(name, kind, options):
    """Value and gradient, in the logits and in the parameters of f, also at the second use."""
    f = build(name, kind, (4,))[0]
    for key, buffer in list(f.named_buffers(recurse=False)):
        if buffer.is_floating_point() and "sum" not in name:
            delattr(f, key)
            f.register_parameter(key, nn.Parameter(buffer))
    logits = normals(4, 4, 3).requires_grad_()
    E, leaves = IndeCateR(3, **options), [logits, *f.parameters()]
    for seed in (0, 1):
        by_table, by_evaluation = (
            E(g, LAWS[kind](logits), outputs=outputs(name), generator=seeded(seed))
            for g in (f, by_calls(f))
        )
        assert_same(by_table, by_evaluation, leaves, **EXACT)


@pytest.mark.parametrize(("name", "kind"), [c for c in CASES if not outputs(c[0])])
def test_vmap_of_tables_equals_a_loop(name, kind):
    """The same draws for every row of logits."""
    f, logits = build(name, kind)[0], normals(3, 4, 3)

    def estimate(logits):
        return IndeCateR(2)(f, LAWS[kind](logits))

    rows = []
    for row in logits:
        torch.manual_seed(0)
        rows.append(torch.func.grad(estimate)(row))
    torch.manual_seed(0)
    mapped = torch.func.vmap(torch.func.grad(estimate), randomness="same")(logits)
    assert_close(mapped, torch.stack(rows), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), MEAN_CASES)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_mean(name, kind, batch):
    logits = normals(*batch, 4, 3, seed=3).requires_grad_()
    q = MEAN_LAWS[kind](logits)
    k, is_one_hot = 2 if "bits" in kind else 3, kind == "one-hot"
    if batch == (4,) and k == 3 and not is_one_hot:
        k += 1  # f may have more categories than q
    f = functions(batch, 4, k, is_one_hot)[name]()
    if batch == (2, 3) and not outputs(name):
        catlog.check(f, q)
    mean, expected = Exact()(f, q, outputs=outputs(name)), brute_mean(f, q)
    assert mean.shape == expected.shape
    assert_close(f.expectation(q), expected, **EXACT)
    weight = normals(*mean.shape, seed=7)
    assert_same(weight * mean, weight * expected, logits, **EXACT)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, kind in CASES
        if kind in ("bits", "one-hot") and not name.endswith(("zero", "indicator", "outputs"))
    ],
)
def test_relaxed_points_have_a_gradient(name, kind):
    f = build(name, kind, (4,))[0]
    logits = normals(4, 4, 3).requires_grad_()
    GumbelSoftmax(samples=2)(f, LAWS[kind](logits), generator=seeded()).sum().backward()
    assert bool(logits.grad.any(-1).all())


def test_a_table_may_hold_anything_at_impossible_categories():
    logits = torch.tensor([[0.3, -0.2, -torch.inf]], requires_grad=True)
    f, table = Additive(torch.tensor([[1.0, 2.0, 0.0]])), torch.tensor([[[1.0, 2.0, torch.nan]]])
    f.neighbours = lambda x: table.expand(len(x), 1, 3)
    estimates = (IndeCateR(2)(g, integers(logits)) for g in (f, by_calls(f)))
    assert_same(*estimates, logits)


def test_values_follow_their_definition():
    d, k = 4, 4
    x = torch.tensor(list(product(range(k), repeat=d)))
    bit = torch.tensor(list(product([0.0, 1.0], repeat=d)), dtype=torch.float64)
    costs, table, J, b = normals(d, k), normals(d, k, d, k), normals(d, d), normals(d)
    pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
    separate = sum(costs[i, x[:, i]] for i in range(d))
    spin = 2 * bit - 1
    coupled = sum(table[i, x[:, i], j, x[:, j]] for i, j in pairs)
    equal = sum(J[i, j] * (x[:, i] == x[:, j]) for i, j in pairs)
    parallel = sum(J[i, j] * (spin[:, i] * spin[:, j] + 1) for i, j in pairs)
    sums = (x.unflatten(-1, (2, 2)) * torch.tensor([k, 1])).sum((1, 2))
    digits = torch.stack([sums // k**2, sums // k % k, sums % k], -1)
    for f, expected in (
        (Additive(costs), separate),
        (Pairwise(table, costs), separate + coupled),
        (Potts(J, costs), separate + equal),
        (OfSum(wave, k), wave(x.sum(-1))),
        (OfSum(wave, k, b), wave(x.double() @ b)),
        (DigitsOfSum(torch.tensor([0, 3, 1]), k), digits == torch.tensor([0, 3, 1])),
    ):
        assert_close(f(x), expected)
        f.one_hot = True
        assert_close(f(one_hot(x, k).double()), expected)
    assert_close(ising(J, b)(bit), spin @ b + parallel)


def test_constructors_keep_parameters():
    parameter = nn.Parameter(normals(3, 3))
    weighted = OfSum(wave, 2, nn.Parameter(normals(3)))
    for f in (Additive(parameter), Potts(parameter, normals(3, 3)), weighted):
        assert len(list(f.parameters())) == 1
        assert not f.state_dict().keys() - dict(f.named_parameters()).keys()


@pytest.mark.parametrize("d", [4, 200])  # by all units, and by those that are on
def test_an_empty_batch_of_images(d):
    net = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, 7))
    for chunk_size in (None, 10):
        f = Network(net, CrossEntropy(torch.rand(0, 7)), chunk_size=chunk_size)
        assert IndeCateR(2)(f, bits(torch.zeros(0, d, requires_grad=True))).shape == (0,)


@pytest.mark.parametrize(
    "case", ["bits", "one layer", "two layers", "numbers", "chunks", "numbers, chunks"]
)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_units_that_are_off_are_left_out(case, batch):
    """With many moves of a point on a CPU: the same table with fewer products."""
    d, k = (100, 3) if "numbers" in case else (200, 2)
    sizes = {"one layer": [d, 7], "two layers": [d, 9, 7]}.get(case, [d, 9, 8, 7])
    layers = [nn.Linear(a, b, bias="numbers" not in case) for a, b in pairwise(sizes)]
    modules = [module for layer in layers for module in (layer, nn.ReLU())]
    net = set_normals(nn.Sequential(*modules[:-1])).requires_grad_(False)
    own = batch[1:] if case == "chunks" else batch
    head, chunk_size = CrossEntropy(normals(*own, 7) > 0), 170 if "chunks" in case else None
    f = Network(net, head, categories=k, chunk_size=chunk_size)
    law = view(LAWS["bits" if k == 2 else "index"](normals(*batch, d, 3)))
    x = some_draws(law, 3)
    with torch.no_grad():
        assert_right_table(f, x, law, chosen=d - 5)
        with FlopCounterMode(display=False) as counter:
            f.neighbours(x)
    evaluations = x.numel() * (k - 1)
    assert counter.get_total_flops() < evaluations * sum(2 * a * b for a, b in pairwise(sizes)) / 2


def test_network_flattens_a_matrix_of_bits():
    law = view(torch.distributions.Independent(bits(normals(5, 2, 3)), 1))
    assert_right_table(Network(network(6), event_dims=2), some_draws(law, 3), law)


def test_the_error_without_kernels_says_what_to_install(monkeypatch):
    monkeypatch.setattr("catlog.functions.first_layer_linear.catlog_kernels", None)
    Network(network(3), precision="float32")
    with pytest.raises(ImportError, match=r"precision` must be None .* `pip install ./kernels`"):
        Network(network(3), precision="half")


# What a table costs


def flops(f, q, x):
    with FlopCounterMode(display=False) as counter:
        IndeCateR()(f, q, x=x)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["bits", "index", "one-hot"])
def test_additive_work_is_linear_in_the_variables(kind):
    work = []
    for d in (50, 100):
        f, _, law = build("additive", kind, d=d)
        with Operations() as operations:
            f.neighbours(some_draws(law, 1))
        work.append(operations.numbers)
    assert work[1] < 2 * work[0]


@pytest.mark.parametrize("name", ["pairwise", "potts", "network"])
@pytest.mark.parametrize(("kind", "k"), [("bits", 2), ("one-hot", 3)])
def test_products_are_made_once_per_draw(name, kind, k):
    n, d = 2, 4
    moves = d * (k - 1)
    f, q, law = build(name, kind)
    x = some_draws(law, n)
    once, again = 2 * (d * k) ** 2 if name == "pairwise" else 2 * d * d * k, 0
    table = 2 * n * once
    if name == "network":
        once, again = (2 * layer.weight.numel() for layer in f.network[::2])
        table = n * (2 * once + (2 + moves) * again)
    assert flops(f, q, x) == table
    assert flops(by_calls(f), q, x) == n * (1 + moves) * (once + again)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "k"), [("bits", 2), ("index", 3), ("one-hot", 3)])
def test_rows_seen_by_the_function_of_a_sum(kind, k, weighted):
    n, d, seen = 2, 10, []

    def g(total):
        seen.append(len(total))
        return wave(total)

    q = LAWS[kind](normals(4, d, 3))
    x = some_draws(view(q), n)
    OfSum(g, k, normals(d) if weighted else None, kind == "one-hot").neighbours(x)
    assert sum(seen) == n * (d * k if weighted else 2 * k - 1)


# What is refused


HELD = {
    "additive, batched": "costs",
    "digits, outputs": "target",
    "network, cross-entropy": "targets",
    "network, one layer": "targets",
}


@pytest.mark.parametrize("call", ["__call__", "neighbours"])
@pytest.mark.parametrize("name", HELD)
def test_a_batch_that_q_does_not_have_is_named(name, call):
    """A batch of the size of n would be paired with the draws, with values of the right shape."""
    for own, batch in [((3,), ()), ((2, 3), (3,)), ((3,), (1,)), ((3,), (2,))]:
        f, x = functions(own, 4, 2, False)[name](), (normals(own[0], *batch, 4) > 0).double()
        message = rf"`{HELD[name]}` must have a batch .*{re.escape(str(batch))}, but .* Give q"
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            getattr(f, call)(x)
