"""`catlog.gumbel_softmax` inside transformers' Wav2Vec2, in the place of torch's function."""

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import catlog


@pytest.fixture
def quantizer() -> Any:
    """Return its quantizer with random weights, in training mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        module = pytest.importorskip("transformers.models.wav2vec2.modeling_wav2vec2")
        config = module.Wav2Vec2Config(
            conv_dim=(16,), conv_stride=(5,), conv_kernel=(10,), num_codevectors_per_group=6,
            num_codevector_groups=2, codevector_dim=8,
        )  # fmt: skip
    torch.manual_seed(0)
    return module.Wav2Vec2GumbelVectorQuantizer(config).train()


def results(quantizer: Any) -> list[Tensor]:
    """Return codes, perplexity and the gradients of all weights, after one seed."""
    torch.manual_seed(1)
    codes, perplexity = quantizer(torch.linspace(-2, 2, 160).view(2, 5, 16))
    gradients = torch.autograd.grad(codes.sin().sum(), list(quantizer.parameters()))
    return [codes.detach(), perplexity.detach(), *gradients]


def test_it_is_torchs_function(quantizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = results(quantizer)
    monkeypatch.setattr(F, "gumbel_softmax", catlog.gumbel_softmax)
    assert all(map(torch.equal, theirs, results(quantizer)))
    reinmax = partial(catlog.gumbel_softmax, estimator=catlog.ReinMax())
    monkeypatch.setattr(F, "gumbel_softmax", reinmax)
    ours = results(quantizer)
    assert all(bool(tensor.isfinite().all()) for tensor in ours)
    assert not any(map(torch.equal, theirs[2:], ours[2:]))
