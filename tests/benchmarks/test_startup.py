"""The benchmark of start-up measures the CPU time of a process."""

from pathlib import Path

import pytest
from benchmarks.startup import copy_source, cpu_seconds

BUSY = "import time\nwhile time.process_time() < {}: pass"


def test_cpu_time_is_that_of_the_process(tmp_path: Path) -> None:
    assert cpu_seconds(["-c", BUSY.format(0.3)], tmp_path) >= 0.3
    assert cpu_seconds(["-c", "import time; time.sleep(0.5)"], tmp_path) < 0.4


def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        cpu_seconds(["-c", "raise SystemExit(3)"], tmp_path)


def test_source_is_that_of_the_working_tree(tmp_path: Path) -> None:
    source = copy_source(None, tmp_path)
    assert (source / "catlog" / "__init__.py").exists()
    assert not list(source.rglob("__pycache__"))
