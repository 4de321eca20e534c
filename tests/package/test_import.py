"""What importing catlog loads."""

import os
import subprocess
import sys

import pytest

import catlog

# A prefix of programs: packages named in MISSING cannot be imported, as if not installed.
WITHOUT = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        is_missing = name.partition(".")[0] in MISSING
        return None if is_missing else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Finder, sys.meta_path)
"""


@pytest.fixture(autouse=True)
def only_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start child processes without tests/no_bfloat16, which imports torch at their start."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [folder for folder in folders if not folder.endswith("no_bfloat16")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(kept))


def loaded_by(program: str, *modules: str) -> list[bool]:
    """Return whether a new process has loaded the modules after running the program."""
    report = f"import sys\n{program}\nprint(*(int(name in sys.modules) for name in {modules!r}))"
    command = [sys.executable, "-c", report]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [flag == "1" for flag in done.stdout.splitlines()[-1].split()]


def run_without(package: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process in which a package is missing."""
    code = f"MISSING = {[package]!r}{WITHOUT}{program}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_catlog_does_not_import_the_compiler() -> None:
    """torch._dynamo takes longer to import than catlog, and warns where numpy is missing."""
    compiler = ("torch._dynamo", "torch._inductor", "sympy")
    assert loaded_by("import catlog", *compiler) == loaded_by("import torch", *compiler)


def test_importing_catlog_does_not_import_what_training_does_not_need() -> None:
    packages = ("catlog.diagnostics", "catlog.problems", "catlog.pyro")
    modules = (*packages, "pyro", "rich", "tyro", "statistics")
    assert loaded_by("import catlog", *modules) == [False] * len(modules)


def test_names_that_are_imported_on_first_use() -> None:
    names = ["advise", "compare", "Advice", "Comparison", "diagnostics", "problems"]
    program = f"from catlog import {', '.join(names)}; import catlog; catlog.compare"
    assert loaded_by(program, "catlog.diagnostics", "catlog.problems") == [True] * 2
    assert set(names) <= set(dir(catlog))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'catlog' has no attribute 'nonsense'"):
        catlog.nonsense  # noqa: B018


def test_a_misspelt_name_is_corrected() -> None:
    """Python suggests a similar name where it prints the error."""
    program = "import catlog; catlog.Indecater"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Did you mean: 'IndeCateR'?" in result.stderr


def test_import_without_numpy_adds_no_warning_to_those_of_torch() -> None:
    """PyTorch itself warns in many versions."""
    alone = run_without("numpy", "import torch")
    done = run_without("numpy", "import catlog")
    assert done.returncode == 0
    assert done.stderr == alone.stderr


@pytest.mark.parametrize("program", ["import catlog.pyro", "import catlog; catlog.pyro.ELBO"])
def test_without_pyro_an_error_says_what_to_install(program: str) -> None:
    done = run_without("pyro", program)
    assert "catlog.pyro needs Pyro" in done.stderr.splitlines()[-1]
    assert "pip install 'pyro-ppl>=1.9'" in done.stderr.splitlines()[-1]


def test_importing_the_battery_s_modules_does_not_import_pytest() -> None:
    assert loaded_by("import catlog.testing.settings", "pytest") == [False]


def test_the_pytest_plugin_does_not_import_torch() -> None:
    """pytest loads it in every session in whose environment catlog is installed."""
    assert loaded_by("import pytest_catlog", "torch", "catlog") == [False, False]
