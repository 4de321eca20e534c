"""What the experiments import: public names of catlog, and heavy packages only where needed."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import catlog_experiments

PUBLIC = tuple(
    f"catlog{name}"
    for name in ("", ".building_blocks", ".estimators", ".functions", ".problems.mlp")
)


def test_only_public_names_of_catlog_are_imported() -> None:
    sources = Path(catlog_experiments.__file__).parent.rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources]
    imports = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "catlog"
    ]
    assert len(imports) > 10
    for node in imports:
        module = str(node.module)
        assert module in PUBLIC
        public = getattr(import_module(module), "__all__", None) or dir(import_module(module))
        names = {alias.name for alias in node.names} - {"__version__"}
        assert names <= set(public), f"{module}: {names - set(public)}"


def test_help_does_not_import_packages_of_reports_and_data() -> None:
    program = """
import sys
from catlog_experiments.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"torch._dynamo", "matplotlib", "jinja2", "sklearn", "mlxtend"}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
