"""The tree of prefixes: both ways to find leaders and to draw agree, and agree with plain loops."""

import pytest
import torch
from torch import Tensor

from catlog.estimators.sets import prefix_tree as module
from catlog.estimators.sets.prefix_tree import prefix_tree, suffix_sums

M, BATCH, D, K = 6, 5, 4, 3


def some_members() -> tuple[Tensor, Tensor]:
    """Return members, many of which share prefixes, some of them twice; and which are valid."""
    generator = torch.Generator().manual_seed(0)
    members = torch.randint(K, (M, BATCH, D), generator=generator)
    members[3] = members[1]
    members[4, :, :2] = members[0, :, :2]
    valid = torch.rand(M, BATCH, generator=generator) < 0.7
    valid[:, 0] = False
    return members, valid


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9])
def test_suffix_sums(d: int) -> None:
    generator = torch.Generator().manual_seed(d)
    term, step = torch.rand(2, 3, d, dtype=torch.float64, generator=generator)
    expected = torch.zeros(3, dtype=torch.float64)
    for i in reversed(range(d)):
        expected = term[:, i] + step[:, i] * expected
        torch.testing.assert_close(suffix_sums(term, step)[:, i], expected, rtol=0, atol=1e-14)


def draws(
    members: Tensor, valid: Tensor, probs: Tensor, u: Tensor, blocks: list[int]
) -> tuple[Tensor, Tensor]:
    """Return draws of independent variables, a few variables at a time, and which are members."""
    tree = prefix_tree(members, valid, (K,) * D)
    walk = tree.walk(tree.remaining(probs.expand(M, *probs.shape)), len(u))
    p = probs.expand(len(u), *probs.shape)
    parts = [
        walk.choose(part, uniform)
        for part, uniform in zip(p.split(blocks, -2), u.split(blocks, -1), strict=True)
    ]
    return torch.cat(parts, -1), walk.is_inside


@pytest.mark.parametrize("blocks", [[4], [1, 1, 1, 1], [2, 1, 1]])
def test_few_and_many_members_give_the_same_draws(
    blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    members, valid = some_members()
    generator = torch.Generator().manual_seed(1)
    probs = torch.rand(BATCH, D, K, dtype=torch.float64, generator=generator)
    probs[1] = torch.nn.functional.one_hot(members[0, 1], K)  # nothing is outside the set
    valid[0, 1] = True
    probs = probs / probs.sum(-1, keepdim=True)
    u = torch.rand(40, BATCH, D, dtype=torch.float64, generator=generator)
    few = draws(members, valid, probs, u, blocks)
    monkeypatch.setattr(module, "FEW", 0)
    for got, expected in zip(draws(members, valid, probs, u, blocks), few, strict=True):
        assert torch.equal(got, expected)
    drawn, is_inside = few
    is_member = ((drawn.unsqueeze(1) == members).all(-1) & valid).any(1)
    assert torch.equal(is_inside, is_member)
    assert bool(is_member[:, 1].all())
    assert not bool(is_member[:, [0, 2, 3, 4]].any())
