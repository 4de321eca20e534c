"""``pytest src/catlog/testing/test_battery.py --estimator FILE.py:CLASS``: the battery on an estimator of your own, and on it alone.

``CATLOG_FORBID_BF16=1 pytest``: products of 16-bit matrices on a CPU raise, here and in child processes (tests/no_bfloat16).
"""

import os
import runpy
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import catlog
from catlog.testing import settings as variants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--estimator",
        metavar="FILE.py:CLASS",
        help="run the battery on this estimator alone, in its default settings",
    )
    parser.addoption(
        "--continuous",
        action="store_true",
        help="its noise is continuous: judge it by a z-test, not by enumeration",
    )
    parser.addoption(
        "--noisy-on-constants",
        action="store_true",
        help="it makes noise of a constant f, as REINFORCE does",
    )


def named(given: str) -> type:
    """The class that FILE.py:CLASS names."""
    file, _, name = given.rpartition(":")
    if not Path(file).is_file():
        raise pytest.UsageError(
            f"--estimator: FILE.py:CLASS is wanted, but {given!r} names no file."
        )
    spec = spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise pytest.UsageError(f"--estimator: {file} has no {name!r}.")
    return getattr(module, name)


collect_ignore = ["no_bfloat16"]  # to import it is to forbid


def forbid_bfloat16() -> None:
    folder = Path(__file__).with_name("no_bfloat16")
    inherited = os.environ.get("PYTHONPATH", "")
    if str(folder) not in inherited.split(os.pathsep):  # else Python has done it at its start
        runpy.run_path(str(folder / "sitecustomize.py"))
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CATLOG_FORBID_BF16"):
        forbid_bfloat16()
    given = config.getoption("--estimator")
    if given is None:
        return
    cls = named(given)
    catlog.ESTIMATORS.clear()
    catlog.ESTIMATORS[cls.__name__] = cls
    setattr(catlog, cls.__name__, cls)
    if config.getoption("--continuous"):
        variants.CONTINUOUS.add(cls.__name__)
    if config.getoption("--noisy-on-constants"):
        variants.NOISY_ON_CONSTANTS.add(cls.__name__)


@pytest.fixture(scope="module")
def own_inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read that an earlier session compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
