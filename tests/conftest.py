"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
from torch.distributions import Distribution

from catlog.estimators import memorycater


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
