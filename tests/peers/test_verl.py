"""verl 0.9.1: the advantage estimator of docs/advantages.md, by its registry.

verl is in no extra of ours: ``pip install verl``.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import catlog

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    pytest.importorskip("verl", reason="verl is not installed: `pip install verl`")
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

PAGE = Path(__file__).parents[2] / "docs" / "advantages.md"


def batch() -> dict[str, Any]:
    """Return what verl's trainer passes: three prompts in a mixed order, rewards at the ends."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 2, 3, 4, 1, 4, 3])
    rewards = torch.zeros(7, 4)
    rewards[torch.arange(7), lengths - 1] = torch.randn(7, generator=generator)
    return {
        "token_level_rewards": rewards,
        "response_mask": (torch.arange(4) < lengths.unsqueeze(-1)).long(),
        "index": np.array(["a", "b", "a", "c", "b", "a", "c"], dtype=object),
        "config": None,
    }


def test_the_estimator_of_the_page_is_verls_own_rloo() -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "register_adv_est" in block]
    exec(code, {"catlog": catlog})
    ours = get_adv_estimator_fn("catlog_rloo")(**batch())
    theirs = get_adv_estimator_fn("rloo")(**batch())
    for got, wanted in zip(ours, theirs, strict=True):  # advantages and returns
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
        assert got.abs().max() > 0.1
