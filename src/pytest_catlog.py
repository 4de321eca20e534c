"""Options of pytest for catlog's battery; catlog and torch are imported only if these are used."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("catlog", "catlog: judge an estimator (pytest --pyargs catlog.testing)")
    group.addoption(
        "--catlog-estimator",
        metavar="FILE.py:CLASS",
        help="run the battery on this estimator alone, in its default settings",
    )
    group.addoption(
        "--catlog-noisy-on-constants",
        action="store_true",
        help="its gradient of a constant f is noise, as that of REINFORCE",
    )


def pytest_configure(config: pytest.Config) -> None:
    location = config.getoption("--catlog-estimator")
    if location is None:
        return
    from catlog.testing.settings import judge_only, load_estimator

    try:
        judge_only(
            load_estimator(location),
            noisy_on_constants=config.getoption("--catlog-noisy-on-constants"),
        )
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
