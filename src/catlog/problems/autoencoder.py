"""A briefly trained discrete autoencoder of MNIST digits. Its images need ``pip install 'catlog[experiments]'``."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ..estimators import GumbelSoftmax, IndeCateR
from ..files.cache import cache_folder, load_or_make
from ..functions import BernoulliCrossEntropy, FirstLayerLinear
from .mlp import glorot, mlp
from .problem import Problem, Size, bits, black_box, summary

VERSION = 2  # of what is kept in the cache
WIDTHS = {
    "small": (784, 64, 10),
    "large": (784, 384, 256, 200),
}  # of the encoder; the decoder is its mirror image
EPOCHS = {
    "small": 1,
    "large": 10,
}  # ten bits soon are all but certain, and then there is nothing left to estimate
IMAGES = 4
POOLED, CALLS = IndeCateR(samples=64, variables=20, draws="latin"), 300


def dvae(size: Size = "small", seed: int = 0) -> Problem:
    r"""A trained decoder: many bits, strong interactions, an f that costs something, a batch of four images.

    .. math:: f(x) = -\log p(\text{image} \mid \text{decoder}(x)), \qquad x \sim \operatorname{Bernoulli}(\sigma(\text{logits}))

    The parameters are the encoder's logits of four test images. The autoencoder is trained at the first call (some seconds) and
    kept in the cache folder, ``CATLOG_CACHE`` or ``~/.cache/catlog``. Small: 10 bits, in float64. Large: the paper's 200 bits, in
    float32; its reference is pooled (about a minute), and kept as well.
    """
    encoder, f, images, where = _trained(size, seed)
    logits = encoder(images).detach().requires_grad_()
    return Problem(
        "dvae",
        summary(dvae),
        black_box(f),
        (logits,),
        bits,
        interactions=True,
        relaxable=True,
        structured=f,
        pooled=POOLED,
        calls=CALLS,
        cache=where,
        size=size,
        seed=seed,
    )


def dvae_encoder(size: Size = "small", seed: int = 0) -> Problem:
    r"""The trained decoder once more, its gradient in the encoder's last layer: the chain rule through shared parameters.

    .. math:: x \sim \operatorname{Bernoulli}(\sigma(W h + b)), \qquad h \text{ the encoder's last hidden layer}

    The parameters are W and b. See :func:`dvae`.
    """
    encoder, f, images, where = _trained(size, seed)
    hidden = encoder[:-1](images)
    last = encoder[-1]
    assert isinstance(last, nn.Linear)
    weight, bias = (each.detach().clone().requires_grad_() for each in (last.weight, last.bias))

    def law(weight: Tensor, bias: Tensor) -> Distribution:
        return bits(hidden @ weight.mT + bias.unsqueeze(-2))

    return Problem(
        "dvae-encoder",
        summary(dvae_encoder),
        black_box(f),
        (weight, bias),
        law,
        interactions=True,
        relaxable=True,
        structured=f,
        pooled=POOLED,
        calls=CALLS,
        cache=where,
        size=size,
        seed=seed,
    )


def _trained(size: Size, seed: int) -> tuple[nn.Sequential, FirstLayerLinear, Tensor, Path]:
    """The encoder, minus the decoder's log-likelihood of the images as a function of the bits, the images, and a cache folder."""
    from ..data.images import for_autoencoder, load

    train, test = for_autoencoder(load("mnist-5000"))
    folder = cache_folder() / "problems"
    state = load_or_make(
        folder / f"dvae-{VERSION}-{size}-{seed}.pt", lambda: _train(train, size, seed)
    )
    model = _model(size)
    model.load_state_dict(state)
    model = (model.double() if size == "small" else model).requires_grad_(False)
    images = test[:IMAGES].to(next(model.parameters()).dtype)
    encoder, decoder = model
    assert isinstance(encoder, nn.Sequential)
    assert isinstance(decoder, nn.Sequential)
    trained = hashlib.sha256(
        b"".join(each.numpy().tobytes() for each in state.values())
    ).hexdigest()[:16]
    return (
        encoder,
        FirstLayerLinear(decoder, BernoulliCrossEntropy(images)),
        images,
        folder / trained,
    )


def _model(size: Size) -> nn.ModuleList:
    widths = WIDTHS[size]
    return nn.ModuleList([mlp(*widths), mlp(*widths[::-1])])


def _train(images: Tensor, size: Size, seed: int) -> dict[str, Tensor]:
    """A few passes over the images on the evidence lower bound, by straight-through Gumbel-Softmax."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(size)
        glorot(model)
    encoder, decoder = model
    assert isinstance(decoder, nn.Sequential)
    first, last = decoder[0], decoder[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():  # as if it read 2x - 1, and the mean image to begin with
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
            divergence = (logits.sigmoid() * logits - softplus(logits)).sum(
                -1
            )  # from the uniform prior, up to a constant
            optimiser.zero_grad()
            (E(f, bits(logits), generator=generator) + divergence).mean().backward()
            optimiser.step()
    return model.state_dict()
