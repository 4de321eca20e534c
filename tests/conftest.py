"""Fixtures of all tests.

``CATLOG_FORBID_BF16=1 pytest``: products of 16-bit matrices on a CPU raise, here and in child
processes (tests/no_bfloat16).
"""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributions import Distribution

from catlog.estimators import memorycater

collect_ignore = ["no_bfloat16"]  # importing it forbids those products


def forbid_bfloat16() -> None:
    folder = Path(__file__).with_name("no_bfloat16")
    inherited = os.environ.get("PYTHONPATH", "")
    if str(folder) not in inherited.split(os.pathsep):  # else it ran when Python started
        runpy.run_path(str(folder / "sitecustomize.py"))
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CATLOG_FORBID_BF16"):
        forbid_bfloat16()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch's distributions look at no value, also those that they make themselves."""
    monkeypatch.setattr(Distribution, "_validate_args", False)


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MemoryCateR choose from two kernels instead of nine, to compile in less time."""
    monkeypatch.setattr(memorycater, "WIDTHS", (2.0,))
    monkeypatch.setattr(memorycater, "SHARES", (1e-6, 1e-3))


@pytest.fixture(scope="module")
def own_inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Read nothing that an earlier session compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
