"""The code of docs/from_pyro.md runs as it stands there."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "from_pyro.md"


def test_the_code_of_the_page_runs() -> None:
    torch.set_default_dtype(torch.float32)
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code) == 3
    names: dict[str, object] = {}
    exec("\n".join(code), names)
    logits = names["logits"]
    assert isinstance(logits, torch.Tensor)
    assert logits.grad is not None
    assert logits.grad.abs().max() > 0
