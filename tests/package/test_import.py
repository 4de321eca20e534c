"""What importing catlog loads."""

import subprocess
import sys


def loaded_by(program: str, *modules: str) -> list[bool]:
    """Return whether a new process has loaded the modules after running the program."""
    report = f"import sys; {program}; print(*(int(name in sys.modules) for name in {modules!r}))"
    command = [sys.executable, "-c", report]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [flag == "1" for flag in done.stdout.split()]


def test_importing_catlog_does_not_import_the_compiler() -> None:
    """torch._dynamo takes longer to import than all of catlog, and prints a warning where numpy is missing."""
    assert loaded_by("import catlog", "torch._dynamo") == loaded_by("import torch", "torch._dynamo")


def test_importing_the_battery_s_modules_does_not_import_pytest() -> None:
    assert loaded_by("import catlog.testing.settings", "pytest") == [False]


def test_the_pytest_plugin_does_not_import_torch() -> None:
    """pytest loads it in every session in whose environment catlog is installed."""
    assert loaded_by("import pytest_catlog", "torch", "catlog") == [False, False]
