"""Functions with their own table: the same numbers as brute force, in fewer operations."""

import re
from itertools import pairwise, product

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.flop_counter import FlopCounterMode

from catlog import GumbelSoftmax, IndeCateR
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.functions import Additive, DigitsOfSum, OfSum, Pairwise, Potts, ising
from catlog.functions import BernoulliCrossEntropy as CrossEntropy
from catlog.functions import FirstLayerLinear as Network
from catlog.testing.cases import normals, seeded
from support.changes import changes
from support.gradients import assert_same as assert_same_estimates
from support.laws import bits
from support.operations import Operations
from support.own_tables import CASES, LAWS, build, functions, network, set_normals, wave

cases = pytest.mark.parametrize(("name", "kind"), CASES)
batches = pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)


def some_draws(law, n):
    return Randomness(law, generator=seeded()).points(n)


def by_calls(f):
    return lambda x: f(x)


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def assert_table_is_right(f, x, law, chosen):
    """The tables of all variables, and of chosen ones."""
    whole = changes(by_calls(f), x, law)
    assert_same(changes(f, x, law), whole)
    possible = law.possible.expand(whole.shape)
    assert_same(f.neighbours(x)[possible].double(), (whole + f(x)[..., None, None])[possible])
    expected = whole.gather(-2, chosen[..., None].expand(*chosen.shape, whole.shape[-1]))
    assert_same(changes(by_calls(f), x, law, chosen), expected)
    assert_same(changes(f, x, law, chosen), expected)


@cases
@pytest.mark.parametrize(("batch", "d"), [((), 4), ((4,), 4), ((2, 3), 4), ((4,), 1)], ids=str)
def test_table_equals_brute_force(name, kind, batch, d):
    f, _, law = build(name, kind, batch, d)
    chosen = normals(3, *batch, law.d).argsort(-1)[..., :2]
    assert_table_is_right(f, some_draws(law, 3), law, chosen)


@cases
@pytest.mark.parametrize(
    "options", [{}, {"per_variable": True}, {"variables": 2, "control": "none"}], ids=str
)
def test_indecater_is_the_same_with_and_without_the_table(name, kind, options):
    E = IndeCateR(samples=3, **options)
    f = build(name, kind, (4,))[0]
    logits = normals(4, 4, 3).requires_grad_()
    by_table, by_evaluation = (
        E(function, LAWS[kind](logits), generator=seeded()) for function in (f, by_calls(f))
    )
    assert_same_estimates(by_table, by_evaluation, logits, rtol=0, atol=1e-12)


@cases
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
    assert_same(mapped, torch.stack(rows))


@pytest.mark.parametrize("d", [4, 200])  # by all units, and by those that are on
def test_an_empty_batch_of_images(d):
    net = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, 7))
    for chunk_size in (None, 10):
        f = Network(net, CrossEntropy(torch.rand(0, 7)), chunk_size=chunk_size)
        assert IndeCateR(2)(f, bits(torch.zeros(0, d, requires_grad=True))).shape == (0,)


@pytest.mark.parametrize("d", [4, 200])
def test_a_network_of_one_layer(d):
    f = Network(nn.Sequential(nn.Linear(d, 7)), CrossEntropy(torch.rand(7)))
    law = view(bits(torch.zeros(3, d)))
    x = some_draws(law, 2)
    with torch.no_grad():
        torch.testing.assert_close(changes(f, x, law), changes(by_calls(f), x, law))


def test_the_error_without_kernels_says_what_to_install(monkeypatch):
    monkeypatch.setattr("catlog.functions.first_layer_linear.catlog_kernels", None)
    Network(network(3), precision="float32")
    with pytest.raises(ImportError, match=r"precision` must be None .* `pip install ./kernels`"):
        Network(network(3), precision="half")


@pytest.mark.parametrize("weights", [None, torch.tensor([2.0, -1.0, 0.5])])
@batches
def test_a_function_of_a_sum_with_outputs(weights, batch):
    f = OfSum(lambda s: torch.stack([wave(s), (s > 2).double(), s.double()], -1), 3, weights)
    logits = normals(*batch, 3, 3).requires_grad_()
    by_table, by_evaluation = (
        IndeCateR(2)(g, LAWS["index"](logits), outputs=1, generator=seeded())
        for g in (f, by_calls(f))
    )
    assert_same_estimates(by_table, by_evaluation, logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [c for c in CASES if c[1] in ("index", "one-hot")])
def test_one_category(name, kind):
    f = functions((), 3, 1, kind == "one-hot")[name]()
    x = torch.zeros(2, 3, dtype=torch.long)
    x = torch.ones(2, 3, 1, dtype=torch.float64) if kind == "one-hot" else x
    assert_same(f.neighbours(x), f(x)[:, None, None].expand(2, 3, 1))


def test_network_flattens_a_matrix_of_bits():
    f = Network(network(6), event_dims=2)
    law = view(torch.distributions.Independent(bits(normals(5, 2, 3)), 1))
    x = some_draws(law, 3)
    assert f.neighbours(x).shape == (3, 5, 6, 2)
    assert_same(changes(f, x, law), changes(by_calls(f), x, law))


def test_values_follow_their_definition():
    d, k = 3, 4
    x = torch.tensor(list(product(range(k), repeat=d)))
    bit = torch.tensor(list(product([0.0, 1.0], repeat=d)), dtype=torch.float64)
    costs, table, J, b = normals(d, k), normals(d, k, d, k), normals(d, d), normals(d)
    pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
    separate = sum(costs[i, x[:, i]] for i in range(d))
    spin = 2 * bit - 1
    assert_same(Additive(costs)(x), separate)
    together = sum(table[i, x[:, i], j, x[:, j]] for i, j in pairs)
    assert_same(Pairwise(table, costs)(x), separate + together)
    together = sum(J[i, j] * (x[:, i] == x[:, j]) for i, j in pairs)
    assert_same(Potts(J, costs)(x), separate + together)
    together = sum(J[i, j] * (spin[:, i] * spin[:, j] + 1) for i, j in pairs)
    assert_same(ising(J, b)(bit), spin @ b + together)
    assert_same(OfSum(wave, k, b)(x), wave(x.double() @ b))
    sums = OfSum(wave, k), OfSum(wave, k, b)
    for f in (Additive(costs), Pairwise(table, costs), Potts(J, costs), *sums):
        expected, f.one_hot = f(x), True
        assert_same(f(one_hot(x, k).double()), expected)


@pytest.mark.parametrize(("name", "kind"), [c for c in CASES if c[1] in ("bits", "one-hot")])
def test_relaxed_points_have_a_gradient(name, kind):
    f = build(name, kind, (4,))[0]
    logits = normals(4, 4, 3).requires_grad_()
    GumbelSoftmax(samples=2)(f, LAWS[kind](logits), generator=seeded()).sum().backward()
    assert bool(logits.grad.any(-1).all())


PARAMETERS = [c for c in CASES if not c[0].startswith("sum") and c[0] != "weighted sum, integers"]


@pytest.mark.parametrize(("name", "kind"), PARAMETERS)
def test_parameters_get_the_gradient_of_the_base_draws(name, kind):
    f, q, law = build(name, kind, (4,))
    for key, buffer in list(f.named_buffers(recurse=False)):
        delattr(f, key)
        f.register_parameter(key, nn.Parameter(buffer))
    parameters = list(f.parameters())
    x = some_draws(law, 3)
    expected = torch.autograd.grad(f(x).mean(0).sum(), parameters)
    for turn in (1, 2):
        IndeCateR()(f, q, x=x).sum().backward()
        assert_same([p.grad for p in parameters], [turn * once for once in expected])
    assert all(bool(once.any()) for once in expected)


def test_constructors_keep_parameters():
    parameter = nn.Parameter(normals(3, 3))
    weighted = OfSum(wave, 2, nn.Parameter(normals(3)))
    for f in (Additive(parameter), Potts(parameter, normals(3, 3)), weighted):
        assert len(list(f.parameters())) == 1
        assert not f.state_dict().keys() - dict(f.named_parameters()).keys()


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


@pytest.mark.parametrize("name", ["pairwise", "potts"])
@pytest.mark.parametrize(("kind", "k"), [("bits", 2), ("index", 3), ("one-hot", 3)])
def test_products_of_pairs(name, kind, k):
    n, d = 2, 4
    f, q, law = build(name, kind)
    x = some_draws(law, n)
    row = 2 * (d * k) ** 2 if name == "pairwise" else 2 * d * d * k
    assert flops(f, q, x) == 2 * n * row
    assert flops(by_calls(f), q, x) == n * (1 + d * (k - 1)) * row


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


@pytest.mark.parametrize(("kind", "k"), [("bits", 2), ("one-hot", 3)])
def test_first_layer_runs_once_per_draw(kind, k):
    n, moves = 2, 4 * (k - 1)
    f, q, law = build("network", kind)
    x = some_draws(law, n)
    first, rest = 2 * f.network[0].weight.numel(), 2 * f.network[2].weight.numel()
    assert flops(f, q, x) == n * (2 * first + (2 + moves) * rest)
    assert flops(by_calls(f), q, x) == n * (1 + moves) * (first + rest)


@pytest.mark.parametrize(
    "case",
    ["bits", "bits, no bias", "bits, one layer", "numbers", "bits, chunks", "numbers, chunks"],
)
@batches
def test_units_that_are_off_are_left_out(case, batch):
    """With many moves of a point on a CPU: the same table with fewer products."""
    d, k = (200, 2) if case.startswith("bits") else (100, 3)
    sizes = [d, 9, 7] if "one layer" in case else [d, 9, 8, 7]
    layers = [nn.Linear(a, b, bias="no bias" not in case) for a, b in pairwise(sizes)]
    modules = [module for layer in layers for module in (layer, nn.ReLU())]
    net = set_normals(nn.Sequential(*modules[:-1])).requires_grad_(False)
    chunk_size = 170 if "chunks" in case else None
    f = Network(
        net, CrossEntropy(normals(*batch, 7).sigmoid()), categories=k, chunk_size=chunk_size
    )
    law = view(LAWS["bits" if k == 2 else "index"](normals(*batch, d, 3)))
    x = some_draws(law, 3)
    assert_table_is_right(f, x, law, normals(3, *batch, d).argsort(-1)[..., : d - 5])
    counters = [FlopCounterMode(display=False) for _ in range(2)]
    for function, counter in zip((f, by_calls(f)), counters, strict=True):
        with counter:
            changes(function, x, law)
    assert counters[0].get_total_flops() < counters[1].get_total_flops() / 2


@pytest.mark.parametrize("base", [2, 3, 10])
@pytest.mark.parametrize("places", [1, 2, 5])
@pytest.mark.parametrize("as_one_hot", [False, True])
def test_digits_of_sum_and_its_table(base: int, places: int, as_one_hot: bool) -> None:
    """Against integers, at every neighbour; runs of base - 1 carry far."""
    generator = seeded(base * places)
    x = torch.randint(0, base, (30, 4, 2 * places), generator=generator)
    x[:10, :, places:] = base - 1 - x[:10, :, :places]  # every place adds up to base - 1
    weights = base ** torch.arange(places - 1, -1, -1)
    sums = (x.unflatten(-1, (2, places)) * weights).sum((-1, -2))
    digits = torch.stack([sums // base**j % base for j in range(places, -1, -1)], -1)
    target = torch.where(torch.rand(4, places + 1, generator=generator) < 0.7, digits[0], 0)
    f = DigitsOfSum(target, base, one_hot=as_one_hot)

    def form(points):
        return one_hot(points, base).float() if as_one_hot else points

    assert torch.equal(f(form(x)), digits == target)
    table = f.neighbours(form(x))
    assert table.shape == (30, 4, 2 * places, base, places + 1)
    for variable, category in product(range(2 * places), range(base)):
        changed = x.clone()
        changed[..., variable] = category
        assert torch.equal(table[..., variable, category, :], f(form(changed)))
    chosen = torch.rand(30, 4, 2 * places, generator=generator).argsort(-1)[..., :2]
    index = chosen[..., None, None].expand(*chosen.shape, base, places + 1)
    assert torch.equal(f.neighbours(form(x), chosen), table.gather(-3, index))


def points(d, k, dtype=torch.int64):
    """Return points, one of which has the last category."""
    return torch.eye(2, d, dtype=dtype)[:, :d] * (k - 1)


def one_hot_points(d, k):
    return one_hot(points(d, k), k).double()


BAD_POINTS = {
    r"end in \(3,\).* is \(2, 5\)": lambda f: f(points(5, 3)),
    r"end in \(3,\)": lambda f: f.neighbours(points(5, 3)),
    "categories below 3, .* it holds 4": lambda f: f(points(3, 5)),
    r"one_hot=False, but .* \(2, 3, 4\)": lambda f: f(one_hot_points(3, 4)),
    "integers, the categories of f with k = 3": lambda f: f(torch.zeros(2, 3)),
}


@pytest.mark.parametrize("name", ["additive", "pairwise", "potts"])
def test_points_that_do_not_fit_are_named(name):
    f, with_one_hots = (functions((), 3, 3, one_hot)[name]() for one_hot in (False, True))
    for message, call in BAD_POINTS.items():
        with pytest.raises(ValueError, match=rf"{type(f).__name__}: x must .*{message}"):
            call(f)
    for x in (points(3, 3), one_hot_points(3, 4)):
        with pytest.raises(ValueError, match=r"x must end in \(3, 3\).*one_hot=True"):
            with_one_hots(x)


def digits(length=3, base=10):
    return DigitsOfSum(torch.zeros(length, dtype=torch.int64), base)


BAD_ARGUMENTS = {
    "DigitsOfSum: `target` must hold the digits": lambda: DigitsOfSum(torch.zeros(3)),
    r"need points of 2 \* 2 digits, but 3 were given": lambda: digits()(torch.zeros(1, 3)),
    "Additive: `costs` must be a tensor .* list": lambda: Additive([[1.0]]),
    r"Additive: `costs` must have shape \[\*batch, d, k\], but \(3,\) was": lambda: Additive(
        torch.zeros(3)
    ),
    r"Pairwise: `couplings` must .* `fields` \[d, k\], but .* \(2, 3\) were": lambda: Pairwise(
        torch.zeros(2, 2, 2, 2), torch.zeros(2, 3)
    ),
    "OfSum: `g` must be a function of sums, but it is 3": lambda: OfSum(3, 2),
    "OfSum: `weights` must be finite, .* inf": lambda: OfSum(wave, 2, torch.tensor([1, torch.inf])),
    r"OfSum: x must have 2 variables, as many as `weights`, .* is \(2, 3\)": lambda: OfSum(
        wave, 5, torch.ones(2)
    )(points(3, 5)),
    r"OfSum: x must end in one-hot vectors of 5 categories.*\(2, 3, 4\)": lambda: OfSum(
        wave, 5, one_hot=True
    )(one_hot_points(3, 4)),
    "OfSum: x must hold .* below 2, .* it holds 4": lambda: OfSum(wave, 2).neighbours(points(3, 5)),
    "DigitsOfSum: x must hold .* below 2, .* it holds 4": lambda: digits(base=2)(points(4, 5)),
    "FirstLayerLinear: `event_dims` must be at least 1, but 0": lambda: Network(
        network(3), event_dims=0
    ),
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_arguments_that_do_not_fit_are_named(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD_ARGUMENTS[message]()


def cross_entropy(batch):
    return CrossEntropy(normals(*batch, 4).sigmoid())


def with_hook(module):
    module.register_forward_hook(lambda module, inputs, output: output)
    return module


def relu_network(d):
    return set_normals(nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Linear(8, 4)))


WITH_A_BATCH = {  # functions of two numbers of d / 2 digits, with numbers per batch element
    "costs": lambda batch, d: Additive(normals(*batch, d, 2)),
    "target": lambda batch, d: DigitsOfSum((normals(*batch, d // 2 + 1) > 0).long(), base=2),
    "targets": lambda batch, d: Network(network(d, out=4), cross_entropy(batch)),
    "targets, hidden units": lambda batch, d: Network(relu_network(d), cross_entropy(batch)),
    "targets, hook": lambda batch, d: Network(network(d, out=4), with_hook(cross_entropy(batch))),
}


@pytest.mark.parametrize("d", [4, 300])
@pytest.mark.parametrize("call", ["values", "table"])
@pytest.mark.parametrize("name", WITH_A_BATCH)
def test_a_batch_that_q_does_not_have_is_named(name, call, d):
    """A batch of the size of n would be paired with the draws, with values of the right shape."""
    for own, batch in [((3,), ()), ((2, 3), (3,)), ((3,), (1,)), ((3,), (2,))]:
        f = WITH_A_BATCH[name](own, d)
        x = (normals(own[0], *batch, d) > 0).double()
        argument = name.split(",")[0]
        message = rf"`{argument}` must have a batch .*{re.escape(str(batch))}, but .* Give q"
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            f(x) if call == "values" else f.neighbours(x)


@pytest.mark.parametrize("d", [4, 300])
@pytest.mark.parametrize("name", WITH_A_BATCH)
def test_a_smaller_batch_serves_all_batch_elements(name, d):
    x = (normals(2, 3, 5, d) > 0).double()
    for own in [(), (5,), (1, 5), (3, 1)]:
        f, full = (WITH_A_BATCH[name](own, d) for _ in range(2))
        held = full.head if name.startswith("targets") else full
        numbers = getattr(held, name.split(",")[0])
        dims = 2 if name == "costs" else 1
        event = numbers.shape[numbers.dim() - dims :]
        setattr(held, name.split(",")[0], numbers.expand(3, 5, *event).clone())
        with torch.no_grad():
            assert_same(f(x).double(), full(x).double())
            assert_same(f.neighbours(x).double(), full.neighbours(x).double())


def test_targets_of_another_number_of_pixels_are_named():
    f = Network(network(3, out=4), CrossEntropy(torch.rand(1).double()))
    for call in (f, f.neighbours):
        with pytest.raises(ValueError, match=r"`targets` must have one number per logit, 4, .*1"):
            call(torch.zeros(2, 3).double())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("d", [5, 300])  # by all units, and by those that are on
def test_targets_of_another_type_than_the_network(dtype, d):
    """Binary images are bools or bytes, and labels of numpy are float64."""
    targets = normals(2, 7) > 0
    net = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, 7))
    x = (normals(3, 2, d, seed=1) > 0).float()
    f, expected = (Network(net, CrossEntropy(t)) for t in (targets.to(dtype), targets.float()))
    with torch.no_grad():
        assert torch.equal(f.neighbours(x), expected.neighbours(x))
    IndeCateR(1)(f, bits(normals(2, d).float().requires_grad_())).sum().backward()
