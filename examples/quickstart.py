"""A discrete variational autoencoder with 32 bits, trained on scikit-learn's 8x8 digits with
unbiased gradients.

    python examples/quickstart.py    # some seconds on a CPU; prints the negated ELBO

The encoder gives a distribution q over 32 bits z; sampling z has no derivative. `E(f, q)` is the
expectation of f under q, and its gradient reaches the encoder (through q) and the decoder (through
f).
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent, kl_divergence

import catlog

BITS = 32


def negated_elbo(
    E: catlog.Estimator, encoder: nn.Module, decoder: nn.Module, images: Tensor
) -> Tensor:
    """One value per image: E_q[-log p(image | z)] + KL(q | prior)."""
    q = Independent(Bernoulli(logits=encoder(images)), 1)
    prior = Independent(Bernoulli(logits=torch.zeros(len(images), BITS)), 1)

    def reconstruction_loss(z: Tensor) -> Tensor:  # [n, batch, bits] -> [n, batch]
        # Grey values between 0 and 1 are fine.
        pixels = Bernoulli(logits=decoder(z), validate_args=False)
        return -pixels.log_prob(images).sum(-1)

    return E(reconstruction_loss, q) + kl_divergence(q, prior)


def main(steps: int) -> None:
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    train, test = images[:1500], images[1500:]
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, BITS))
    decoder = nn.Sequential(nn.Linear(BITS, 256), nn.ReLU(), nn.Linear(256, 64))
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=5e-3)
    E = catlog.IndeCateR(samples=2, sampling="latin")

    always = Bernoulli(probs=train.mean(0).clamp(0.001, 0.999), validate_args=False)
    baseline = -always.log_prob(test).sum(-1).mean()
    print(f"without z            negated ELBO of unseen digits: {baseline:.2f}")
    for step in range(steps + 1):
        if step % 100 == 0:
            with torch.no_grad():
                loss = negated_elbo(E, encoder, decoder, test).mean()
            print(f"with z, step {step:4}    negated ELBO of unseen digits: {loss:.2f}")
        batch = train[torch.randint(len(train), (100,))]
        optimiser.zero_grad()
        negated_elbo(E, encoder, decoder, batch).mean().backward()
        optimiser.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    main(parser.parse_args().steps)
