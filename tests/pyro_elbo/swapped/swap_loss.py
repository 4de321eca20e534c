"""A plugin of pytest that puts catlog.pyro.ELBO in the place of a loss, in Pyro's own tests.

``SWAPPED_LOSS=TraceEnum_ELBO SWAPPED_ESTIMATOR="Exact()" pytest -p swap_loss tests/infer/...``, in
a checkout of Pyro. Of the tests that make this loss, it writes the names of those that pass, that
are refused with a message of catlog, and that fail, to the file SWAPPED_REPORT.
"""

import inspect
import json
import os
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro.infer
import pytest

import catlog
import catlog.pyro

LOSS = os.environ["SWAPPED_LOSS"]
ESTIMATOR = eval(os.environ["SWAPPED_ESTIMATOR"], vars(catlog).copy())
TAKEN = inspect.signature(catlog.pyro.ELBO).parameters
made: list[object] = []
outcomes: dict[str, dict[str, str]] = defaultdict(dict)


class Swapped(catlog.pyro.ELBO):
    """The ELBO of catlog, called with the arguments of Pyro's losses."""

    def __init__(self, num_particles: int = 1, **kwargs: Any) -> None:
        made.append(self)
        taken = {name: value for name, value in kwargs.items() if name in TAKEN}
        super().__init__(ESTIMATOR, num_particles=num_particles, **taken)


Swapped.__name__ = Swapped.__qualname__ = LOSS
setattr(pyro.infer, LOSS, Swapped)
setattr(getattr(pyro.infer, LOSS.lower()), LOSS, Swapped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    made.clear()
    try:
        yield
    except Exception as error:
        if made:
            is_refused = any(
                "catlog.pyro.ELBO: " in str(e) or "Exact: " in str(e) for e in _all(error)
            )
            message = traceback.format_exception_only(error)[-1].strip()
            outcomes["refused" if is_refused else "failed"][item.nodeid] = message
        raise
    if made:
        outcomes["passed"][item.nodeid] = ""


def _all(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def pytest_sessionfinish() -> None:
    Path(os.environ["SWAPPED_REPORT"]).write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
