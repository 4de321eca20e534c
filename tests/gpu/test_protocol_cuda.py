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

METHODS = [
    ("SlopeCateR", 2, ("corrections=1",)),
    ("RODEO", 3, ()),
    ("DoubleCV", 3, ()),
    ("ARMS", 3, ()),
    ("DisARM", 1, ()),
    ("RELAX", 3, ()),
    ("REBAR", 1, ()),
    ("ReinMax", 3, ()),
    ("IndeCateR", 1, ()),
]


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that need no files: blots of which every pixel is grey, as two prototypes say."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.rand(2, 784, generator=generator)
    labels = torch.arange(1000) % 2
    pictures = Images("mnist", prototypes[labels], labels, prototypes[labels[:100]], labels[:100])
    monkeypatch.setattr(protocol, "load", lambda name: pictures)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize(("estimator", "samples", "options"), METHODS)
def test_a_stack_is_captured_at_its_real_size_and_learns(
    images: None, estimator: str, samples: int, options: tuple[str, ...], likelihood: str
) -> None:
    torch.manual_seed(0)
    config = DVAE(
        protocol=likelihood, data="mnist", models=5, estimator=estimator, samples=samples,
        options=options, device="cuda", epochs=20,
    )  # type: ignore[arg-type]  # fmt: skip
    task = config.task()
    assert isinstance(task, ProtocolTask)
    before = task.bounds(task.test, 3)[0]
    for i in range(task.iterations):
        task.step(i)
    after = task.bounds(task.test, 3)[0]
    assert task.compiled.mode == "compiled, captured"
    assert all(b < a - 10 for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("estimator", "samples", "options"),
    [("SlopeCateR", 1, ("corrections=1",)), ("ReinMax", 1, ()), ("RLOO", 4, ())],
)
def test_categorical_stacks_are_captured(
    images: None, estimator: str, samples: int, options: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    config = DVAE(
        protocol="categorical", data="mnist", models=5, estimator=estimator, samples=samples,
        options=options, device="cuda", epochs=10, categories=8, variables=4,
    )  # fmt: skip
    task = config.task()
    assert isinstance(task, ProtocolTask)
    for i in range(task.iterations):
        task.step(i)
    assert task.compiled.mode == "compiled, captured"
    assert task.measure(task.iterations)["train"] < 784 * 0.69
