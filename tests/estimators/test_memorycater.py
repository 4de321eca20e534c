"""MemoryCateR: unbiased whatever it remembers, its mean in closed form, and a memory of the points seen last."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent

import catlog
from catlog import MemoryCateR
from catlog.estimators.catlog_trick.kernel_critic import (
    critic_means,
    critic_values,
    encoded,
    slots_for,
    write_slots,
)
from catlog.experiments import records
from catlog.testing.enumeration import cases, expectation, expected, functions

ROOT = Path(__file__).parents[2]
CASES = {case.name: case for case in cases()}
FUNCTIONS = functions()
PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)


def bits(logits: Tensor) -> Independent:
    return Independent(Bernoulli(logits=logits), 1)


def anything(size: int, generator: torch.Generator) -> MemoryCateR:
    """A frozen estimator with random numbers in all its buffers, among them points that the law cannot draw."""
    E = MemoryCateR(2, size=size, length=3).eval()
    E.points.copy_(torch.randint(-1, 4, E.points.shape, generator=generator))
    E.weight.copy_(torch.randn(E.weight.shape, generator=generator))
    E.rho.copy_(torch.rand(E.rho.shape, generator=generator))
    root = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    E.gram.copy_(root @ root.T)
    E.excess.copy_(-E.gram @ torch.rand(2, generator=generator, dtype=torch.float64))
    return E


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("seed", range(3))
def test_unbiased_in_any_state(case, seed: int) -> None:  # type: ignore[no-untyped-def]
    E = anything(3 + seed, torch.Generator().manual_seed(seed))
    assert ((E.coefficients() > 0.01) & (E.coefficients() < 1)).all()
    for f in FUNCTIONS.values():
        for got, exact in zip(
            expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER), strict=True
        ):
            torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


def test_the_critic_s_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    points = encoded(torch.randint(0, 3, (2, 5, 2), generator=generator), 3)
    weight, rho = (
        torch.randn(2, 2, 5, generator=generator).double(),
        torch.tensor([[0.7, 0.1], [0.2, 0.9]]).double(),
    )
    probs = torch.rand(2, 4, 2, 3, generator=generator).double()
    probs /= probs.sum(-1, keepdim=True)
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    critic = critic_values(encoded(every, 3).expand(2, 9, 6), points, weight, rho, 2)
    chance = probs[:, :, 0, every[:, 0]] * probs[:, :, 1, every[:, 1]]
    exact = torch.einsum("cjx,cnx->cjn", critic, chance)
    torch.testing.assert_close(
        critic_means(probs.flatten(-2), points, weight, rho, 2), exact, rtol=1e-12, atol=1e-12
    )


def test_knows_what_it_has_seen() -> None:
    """With all points of a small space remembered, no variance is left, of gradient and value, also of parity."""
    logits = torch.tensor([0.4, -0.3, 0.9, 0.1], dtype=torch.float64)
    E = MemoryCateR(40, size=16)
    torch.manual_seed(0)

    def f(x: Tensor) -> Tensor:
        return 3 + (1 - 2 * x).prod(-1) + x[..., 0]

    for _ in range(300):
        E(f, bits(logits))
    assert (E.age > 0).all()
    leaf = logits.expand(50, 4).clone().requires_grad_()
    value = E.eval()(f, bits(leaf))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    own = logits.clone().requires_grad_()
    exact = catlog.Exact()(f, bits(own))
    torch.testing.assert_close(value, exact.expand(50), rtol=0, atol=1e-3)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(exact, own)[0].expand(50, 4), rtol=0, atol=1e-3
    )


def test_predicts_pairs_of_points_it_has_not_seen() -> None:
    """20 bits, 256 of a million points: main effects and pairs are known all the same."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(20, 20, dtype=torch.float64, generator=generator) * (
        torch.rand(20, 20, generator=generator) < 0.1
    )
    b = torch.randn(20, dtype=torch.float64, generator=generator)
    logits = torch.zeros(20, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return ((x @ a) * x).sum(-1) + x @ b

    E = MemoryCateR(40)
    for _ in range(30):
        E(f, bits(logits), generator=generator)
    spread = []
    for each in (E.eval(), catlog.RLOO(40)):
        leaf = logits.expand(200, 20).clone().requires_grad_()
        each(f, bits(leaf), generator=generator).sum().backward()
        spread.append(leaf.grad.var(0).sum())
    assert spread[0] < 0.1 * spread[1]


def test_leaves_out_a_critic_that_predicts_nothing() -> None:
    """f is noise: what is remembered of a point is worth nothing, and RLOO remains."""
    generator = torch.Generator().manual_seed(0)
    E = MemoryCateR(16, size=32)
    logits = torch.zeros(4, dtype=torch.float64)
    for _ in range(100):
        E(
            lambda x: torch.randn(x.shape[:-1], dtype=torch.float64, generator=generator),
            bits(logits),
            generator=generator,
        )
    assert (E.coefficients() < 0.35).all()


def test_one_critic_each() -> None:
    logits, scale = (
        torch.zeros(2, 3, dtype=torch.float64),
        torch.tensor([1.0, -5.0], dtype=torch.float64),
    )

    def trained(critics: int) -> Tensor:
        E, generator = MemoryCateR(30, size=8, critics=critics), torch.Generator().manual_seed(0)
        for _ in range(40):
            E(lambda x: x.sum(-1).exp() * scale, bits(logits), generator=generator)
        leaf = logits.expand(50, 2, 3).clone().requires_grad_()
        E.eval()(
            lambda x: x.sum(-1).exp() * scale, bits(leaf), generator=generator
        ).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.var(0).sum()

    assert trained(2) < 1e-4 * trained(1)
    with pytest.raises(
        ValueError,
        match="MemoryCateR: `critics` must be 1 or the number of elements of the last batch",
    ):
        MemoryCateR(2, critics=3)(lambda x: x.sum(-1), bits(logits))


def test_the_least_recently_seen_is_forgotten() -> None:
    points = torch.tensor([[[0, 1], [1, 1], [2, 0], [-1, -1]]])
    age = torch.tensor([[3, 1, 2, 0]])
    new = torch.tensor([[[1, 1], [5, 5], [5, 5], [6, 6]]])
    where = slots_for(new, points, age)
    assert where.tolist() == [[1, 3, 4, 2]]
    assert write_slots(points, where, new).tolist() == [[[0, 1], [1, 1], [6, 6], [5, 5]]]
    assert write_slots(age, where, torch.tensor([[7, 7, 7, 7]])).tolist() == [[3, 7, 7, 7]]


def test_memory_is_saved_and_frozen() -> None:
    E, other = MemoryCateR(8, size=10), MemoryCateR(8, size=10)
    q = catlog.Categoricals(torch.zeros(2, 3), (3, 2))
    f = lambda x: x.double().sum(-1).sin()  # noqa: E731
    for _ in range(20):
        E(f, q)
    other.load_state_dict(E.state_dict())
    before = deepcopy(E.state_dict())
    values = [each.eval()(f, q, generator=torch.Generator().manual_seed(0)) for each in (E, other)]
    assert torch.equal(*values)
    assert all(torch.equal(value, before[key]) for key, value in E.state_dict().items())
    assert int((E.age > 0).sum()) == 6  # different points, of six


def test_a_call_learns_for_later_calls_only() -> None:
    """The same draws with and without learning: the same estimate, value and gradient; another one after it."""
    E, case = anything(6, torch.Generator().manual_seed(0)), CASES["one-hot"]
    x = case.points[torch.tensor([[0, 4], [7, 2]])]

    def estimate(E: MemoryCateR) -> Tensor:
        theta = case.theta.expand(2, *case.theta.shape).clone().requires_grad_()
        value = E(lambda x: FUNCTIONS["sine"](case.features(x), PARAMETER), case.law(theta), x=x)
        return torch.cat([value.detach(), torch.autograd.grad(value.sum(), theta)[0].flatten()])

    frozen, learning = estimate(E.eval()), estimate(E.train())
    assert torch.equal(frozen, learning)
    assert not torch.allclose(frozen, estimate(E))


def test_more_draws_than_places() -> None:
    E = MemoryCateR(50, size=4)
    E(lambda x: x.double().sum(-1), Independent(Categorical(logits=torch.zeros(3, 2, 5)), 1))
    kept = E.points[E.age > 0].tolist()
    assert 1 <= len(kept) == len({tuple(point) for point in kept})
    assert all(point[2:] == [-1] * 62 for point in kept)


def test_errors() -> None:
    with pytest.raises(ValueError, match="MemoryCateR: `samples` must be at least 2"):
        MemoryCateR(1)
    with pytest.raises(
        ValueError,
        match=r"MemoryCateR: `length` must be at least 3, but 2 was given\. q has 3 variables",
    ):
        MemoryCateR(2, length=2)(lambda x: x.sum(-1), bits(torch.zeros(3)))


def test_the_contest_runs_and_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks/contest.py"),
        "--quick",
        "--output",
        str(tmp_path / "out.csv"),
    ]
    for _ in range(2):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        rows = records.read(tmp_path / "out.csv")
        assert f"{len(rows)} rows" in done.stdout
    assert {"MemoryCateR", "SlopeCateR", "RLOO", "IndeCateR"} <= {
        row["method"].split("(")[0] for row in rows
    }
    assert sum(row["part"] == "ways" for row in rows) == 2
    assert all(
        36 <= row["evaluations"] <= 44
        for row in rows
        if not row["method"].startswith("UnorderedSet")
    )
