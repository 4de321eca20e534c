"""What ``import catlog`` costs."""

import subprocess
import sys


def test_importing_catlog_does_not_import_the_compiler() -> None:
    """torch._dynamo takes longer to import than all of catlog, and prints a warning where numpy is missing."""
    program = "import torch, sys; before = 'torch._dynamo' in sys.modules; import catlog; print(before, 'torch._dynamo' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, after = run.stdout.split()
    assert after == before
