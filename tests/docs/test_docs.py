"""The site's pages: their code runs."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGES_WITH_CODE = (
    "index", "choose", "fast_functions", "structured", "black_box", "scaling", "advantages",
    "programs", "own_distribution", "shapes", "layers", "policies",
    "in_practice", "mixed", "from_gumbel_softmax", "compare", "from_pyro",
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_on_pages_runs(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if page == "from_pyro":
        pytest.importorskip("pyro")
    monkeypatch.chdir(tmp_path)  # pages may write files
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)


def test_the_notebook_holds_no_results() -> None:
    """They are computed when the site is built."""
    text = (DOCS / "quickstart.ipynb").read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text
