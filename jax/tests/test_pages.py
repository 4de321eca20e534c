"""The pages and the examples of docstrings run."""

import doctest
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import catlog_jax.numpyro

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "docs/autoencoder.md", "docs/numpyro.md"])
def test_page_runs(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    with jax.enable_x64(False):
        exec("\n".join(block for block in blocks if "import torch" not in block), {})


@pytest.mark.parametrize("module", [name for name in sys.modules if name.startswith("catlog_jax")])
def test_examples_of_docstrings_run(module: str) -> None:
    names = vars(catlog_jax) | {"jax": jax, "jnp": jnp}
    with jax.enable_x64(False):
        assert doctest.testmod(sys.modules[module], extraglobs=names).failed == 0
