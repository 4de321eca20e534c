"""What importing catlog loads, in a few new processes, since each imports torch."""

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


def run(program: str, missing: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, where a package may be missing."""
    command = [sys.executable, "-c", f"MISSING = {[missing]!r}{WITHOUT}{program}"]
    return subprocess.run(command, capture_output=True, text=True)


PROGRAM = """
import torch
before = set(sys.modules)
import catlog
after = set(sys.modules)
# torch._dynamo takes longer to import than catlog, and warns where numpy is missing.
print({"torch._dynamo", "torch._inductor", "sympy"} & (after - before))
unneeded = {"catlog.diagnostics", "catlog.problems", "catlog.pyro", "pyro", "rich", "tyro"}
print((unneeded | {"statistics"}) & (after - before))
import catlog.testing.settings
print({"pytest"} & set(sys.modules))
from catlog import advise, compare, Advice, Comparison, diagnostics, problems
catlog.compare
print({"catlog.diagnostics", "catlog.problems"} - set(sys.modules))
catlog.Indecater
"""


def test_what_is_imported_and_when() -> None:
    """Neither the compiler nor what training does not need; other names on their first use."""
    done = run(PROGRAM)
    assert done.stdout.splitlines() == ["set()"] * 4
    assert {"advise", "compare", "Advice", "Comparison"} <= set(dir(catlog))
    assert "Did you mean: 'IndeCateR'?" in done.stderr  # of a misspelt name, by Python


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'catlog' has no attribute 'nonsense'"):
        catlog.nonsense  # noqa: B018


def test_import_without_numpy_adds_no_warning_to_those_of_torch() -> None:
    """PyTorch itself warns in many versions."""
    done = run("import torch\nprint('--', file=sys.stderr, flush=True)\nimport catlog", "numpy")
    assert done.returncode == 0
    assert done.stderr.partition("--\n")[2] == ""


def test_without_pyro_an_error_says_what_to_install() -> None:
    program = "import catlog\ntry: catlog.pyro.ELBO\nexcept ImportError as error: print(error)\n"
    done = run(f"{program}import catlog.pyro", "pyro")
    for line in (done.stdout, done.stderr.splitlines()[-1]):
        assert "catlog.pyro needs Pyro" in line
        assert "pip install 'pyro-ppl>=1.9'" in line


def test_the_pytest_plugin_does_not_import_torch() -> None:
    """pytest loads it in every session in whose environment catlog is installed."""
    done = run("import pytest_catlog\nprint({'torch', 'catlog'} & set(sys.modules))")
    assert done.stdout == "set()\n"
