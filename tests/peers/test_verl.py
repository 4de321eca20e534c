"""verl 0.9.1: the advantage estimator of docs/advantages.md, called as its trainer calls it.

verl is in no extra of ours: ``pip install verl``.
"""

import re
from pathlib import Path

import pytest
import torch

import catlog

pytest.importorskip("verl", reason="verl is not installed: `pip install verl`")
np = pytest.importorskip("numpy")

from verl import DataProto  # noqa: E402
from verl.trainer.ppo.ray_trainer import compute_advantage  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "advantages.md"


def batch() -> DataProto:
    """Return completions of three prompts in a mixed order, with a reward at their last tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 2, 3, 4, 1, 4, 3])
    mask = torch.arange(4) < lengths.unsqueeze(-1)
    rewards = torch.zeros(7, 4)
    rewards[torch.arange(7), lengths - 1] = torch.randn(7, generator=generator)
    uids = np.array(["a", "b", "a", "c", "b", "a", "c"], dtype=object)
    return DataProto.from_dict(
        {"token_level_rewards": rewards, "response_mask": mask.long()}, {"uid": uids}
    )


def test_the_estimator_of_the_page_is_verls_own_rloo() -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "register_adv_est" in block]
    exec(code, {"catlog": catlog})
    ours = compute_advantage(batch(), "catlog_rloo", config=None).batch
    theirs = compute_advantage(batch(), "rloo", config=None).batch
    for name in ("advantages", "returns"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
    assert ours["advantages"].abs().max() > 0.1
