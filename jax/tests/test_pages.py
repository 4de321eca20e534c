"""The pages run."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "docs/autoencoder.md", "docs/numpyro.md"])
def test_page_runs(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    with jax.enable_x64(False):
        exec("\n".join(block for block in blocks if "import torch" not in block), {})
