"""What the experiments import: public names of catlog, and heavy packages only where needed."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import catlog_experiments

PUBLIC = ("catlog", "catlog.estimators", "catlog.functions", "catlog.problems.mlp")


def test_only_public_names_of_catlog_are_imported() -> None:
    sources = Path(catlog_experiments.__file__).parent.rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources]
    nodes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    imports = [node for node in nodes if str(node.module).partition(".")[0] == "catlog"]
    assert len(imports) > 10
    for node in imports:
        module = import_module(str(node.module))
        assert module.__name__ in PUBLIC
        names = {alias.name for alias in node.names} - {"__version__"}
        assert names <= {*(getattr(module, "__all__", None) or dir(module))}


def test_the_command_does_not_import_packages_of_reports_and_data() -> None:
    program = """
import sys, catlog_experiments.cli
print(sys.modules.keys() & {"torch._dynamo", "matplotlib", "jinja2", "sklearn", "mlxtend"})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n"
