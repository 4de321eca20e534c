"""On a GPU: the stacked models of the published protocols train in one captured step."""

import pytest
import torch

from catlog_experiments import DVAE, protocol
from catlog_experiments.data.images import Images
from catlog_experiments.protocol import ProtocolTask

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

# The compiler raises warnings, and switches the checks of torch's distributions off.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unchecked")]

# Protocols, estimators, numbers of draws, and options.
BITS = [
    ("SlopeCateR", 2, ("corrections=1",)),
    *((name, 3, ()) for name in ("RODEO", "DoubleCV", "ARMS", "RELAX", "ReinMax")),
    *((name, 1, ()) for name in ("DisARM", "REBAR", "IndeCateR")),
]
METHODS = [
    *((protocol, *method) for protocol in ("bernoulli", "gaussian") for method in BITS),
    ("categorical", "SlopeCateR", 1, ("corrections=1",)),
    ("categorical", "ReinMax", 1, ()),
    ("categorical", "RLOO", 4, ()),
]


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that need no files: blots of which every pixel is grey, as two prototypes say."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.rand(2, 784, generator=generator)
    labels = torch.arange(1000) % 2
    pictures = Images("mnist", prototypes[labels], labels, prototypes[labels[:100]], labels[:100])
    monkeypatch.setattr(protocol, "load", lambda name: pictures)


@pytest.mark.parametrize(("protocol", "estimator", "samples", "options"), METHODS)
def test_a_stack_is_captured_at_its_real_size_and_learns(
    images: None, protocol: str, estimator: str, samples: int, options: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    sizes = {"categories": 8, "variables": 4} if protocol == "categorical" else {}
    config = DVAE(
        protocol=protocol, data="mnist", models=5, estimator=estimator, samples=samples,
        options=options, device="cuda", epochs=20, **sizes,
    )  # type: ignore[arg-type]  # fmt: skip
    task = config.task()
    assert isinstance(task, ProtocolTask)
    before = task.bounds(task.test, 3)[0]
    for i in range(task.iterations):
        task.step(i)
    assert task.compiled.mode == "compiled, captured"
    after = task.bounds(task.test, 3)[0]
    assert all(b < a - 10 for a, b in zip(before, after, strict=True))
