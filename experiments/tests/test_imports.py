"""What the experiments import: heavy packages only where they are needed."""

import subprocess
import sys


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
