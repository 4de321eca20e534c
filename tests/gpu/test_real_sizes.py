"""On a GPU: every estimator in a captured training step at the sizes of real models."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.core.categories import Kind
from catlog.estimators import ESTIMATORS
from real_sizes import BATCH, BITS, settings_of

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


def training_step(
    E: catlog.Estimator, bits: int, device: str, planted: Callable[[], None] = lambda: None
) -> tuple[catlog.compiled.CompiledStep, Tensor]:
    """Return the step of an autoencoder of 784 pixels, and a batch of images."""
    torch.manual_seed(0)
    images = torch.rand(BATCH, 784, device=device)
    encoder = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, bits)).to(device)
    decoder = nn.Sequential(nn.Linear(bits, 200), nn.ReLU(), nn.Linear(200, 784)).to(device)
    modules = [encoder, decoder, *([E.to(device)] if isinstance(E, nn.Module) else [])]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimiser = torch.optim.Adam(parameters, 1e-3, capturable=device == "cuda")

    def loss(images: Tensor) -> Tensor:
        planted()
        q = Independent(Bernoulli(logits=encoder(images), validate_args=False), 1)
        return E(lambda z: (decoder(z) - images).square().mean(-1), q)

    return catlog.compiled_step(loss, optimiser, compile=False), images


def fail_in_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise ZeroDivisionError("planted")


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize(
    "name", [name for name in ESTIMATORS if Kind.BITS in ESTIMATORS[name].supports]
)
def test_captured_at_real_sizes(name: str) -> None:
    """Twice in one process, each time after a capture that fails."""
    settings = settings_of(name)
    bits = 8 if name == "Exact" else BITS
    for _ in range(2):
        E = ESTIMATORS[name](**settings)
        failing, images = training_step(E, bits, "cuda", fail_in_capture)
        with pytest.raises(RuntimeError, match=r"could not be captured.*planted"):
            failing(images)
        E = ESTIMATORS[name](**settings)
        step, images = training_step(E, bits, "cuda")
        losses = torch.stack([step(images).clone() for _ in range(30)])
        assert step.mode == "captured"
        assert bool(losses.isfinite().all())
        assert losses[-1] < losses[0]
        if name != "Exact":
            assert len(set(losses.tolist())) == len(losses)  # every replay has new draws
