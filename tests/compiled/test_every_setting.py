"""``make test-compile``: every setting of every estimator, with every kind of distribution."""

import pytest

import catlog
from catlog.testing.settings import estimators, supports
from support.compiling import LAWS, check, why_not_inductor

pytestmark = [
    pytest.mark.skipif(bool(why_not_inductor()), reason=why_not_inductor()),
    pytest.mark.usefixtures("own_inductor_cache"),
    pytest.mark.filterwarnings("ignore"),  # raised by Inductor
]


@pytest.mark.parametrize(
    ("dynamic", "graphs"), [(None, [1, 2, 2]), (True, [1, 1, 1])], ids=["None", "True"]
)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
def test_every_setting(
    E: catlog.Estimator, law: str, dynamic: bool | None, graphs: list[int]
) -> None:
    if not supports(E, law):
        pytest.skip("not for this distribution")
    check(E, law, graphs, dynamic=dynamic, options={"fallback_random": True})
