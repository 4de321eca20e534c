"""Options of pytest for catlog's battery. catlog, and torch with it, are imported only if they are used."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("catlog", "catlog: judge an estimator (pytest --pyargs catlog.testing)")
    group.addoption(
        "--estimator",
        metavar="FILE.py:CLASS",
        help="run the battery on this estimator alone, in its default settings",
    )
    group.addoption(
        "--dependent-draws",
        action="store_true",
        help="its points x are not independent draws of q: judge it by a z-test, not by enumeration",
    )
    group.addoption(
        "--noisy-on-constants",
        action="store_true",
        help="its gradient of a constant f is noise, as that of REINFORCE",
    )


def pytest_configure(config: pytest.Config) -> None:
    location = config.getoption("--estimator")
    if location is None:
        return
    from catlog.testing.settings import judge_only, load_estimator

    try:
        cls = load_estimator(location)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    judge_only(
        cls,
        dependent_draws=config.getoption("--dependent-draws"),
        noisy_on_constants=config.getoption("--noisy-on-constants"),
    )
