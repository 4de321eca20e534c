"""What the tests against other libraries share. They are optional: ``make test-peers`` installs the libraries and runs them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # enumeration.py


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The peers' own warnings are theirs: only here they are no errors."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
