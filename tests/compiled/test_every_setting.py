"""``make test-compile``: every setting of every estimator, with every kind of distribution;
on a GPU with the widest."""

import pytest
import torch

import catlog
from catlog.testing.settings import estimators, supports
from support.compiling import LAWS, check, why_not_inductor, widest

pytestmark = [
    pytest.mark.usefixtures("own_inductor_cache"),
    pytest.mark.filterwarnings("ignore"),  # raised by Inductor
]
DEVICES = {"cpu": why_not_inductor(), "cuda": "" if torch.cuda.is_available() else "needs a GPU"}


@pytest.mark.parametrize(
    ("dynamic", "graphs"), [(None, [1, 2, 2]), (True, [1, 1, 1])], ids=["None", "True"]
)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("E", estimators())
@pytest.mark.parametrize("device", DEVICES)
def test_every_setting(
    device: str, E: catlog.Estimator, law: str, dynamic: bool | None, graphs: list[int]
) -> None:
    if DEVICES[device] or not supports(E, law) or (device == "cuda" and law != widest(E)):
        pytest.skip(DEVICES[device] or "not for this distribution")
    options = {"fallback_random": True} | ({"compile_threads": 1} if device == "cuda" else {})
    check(E, law, graphs, dynamic=dynamic, options=options, device=device)
