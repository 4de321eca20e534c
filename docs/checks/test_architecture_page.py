"""The page on the architecture counts the files that a call runs through."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog

ROOT = Path(__file__).parents[2]
SOURCE = Path(catlog.__file__).parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def f(x: Tensor) -> Tensor:
    return (x - 0.3).square().sum(-1)


def files(E: catlog.Estimator) -> set[str]:
    """Return the files of catlog whose code runs in a call and its backward pass."""
    logits = torch.zeros(3, requires_grad=True)
    entered: set[str] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            entered.add(path.relative_to(SOURCE).as_posix())

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        E(f, Independent(Bernoulli(logits=logits), 1)).backward()
    finally:
        sys.settrace(previous)
    return entered


ROWS = re.findall(r"^\| `(\w+\(\d\))` \| (\d+): (.*) \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("label", "count", "names"), ROWS)
def test_files_that_a_reader_enters(label: str, count: str, names: str) -> None:
    entered = files(eval(label, vars(catlog)))
    assert len(entered) == int(count)
    named = " ".join(row[2] for row in ROWS)
    assert {Path(name).stem for name in entered} <= set(re.findall(r"\w+", named))


def test_all_methods_are_counted() -> None:
    assert len(ROWS) == 4


def test_files_exist() -> None:
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", TEXT):
        roots = (SOURCE, SOURCE / "estimators", SOURCE / "distributions", ROOT)
        assert any((root / name).exists() for root in roots), name
