"""
A transformer with a KV cache, rewarded for its texts
=====================================================

A small GPT completes prompts, and a reward without derivative says how good the completions are.

The steps are those of larger language models: train on text, then maximise the reward minus a KL
penalty that keeps the model close to the initial one. Sampling uses a cache of keys and values,
while the gradients use one pass over the finished texts. Both must compute the same function. The
corpus is the Zen of Python, and the reward is the share of vowels.
"""

# sphinx_gallery_thumbnail_number = 1

import codecs
import contextlib
import io
import os
import re
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import catlog
from catlog.distributions import Prompted

with contextlib.redirect_stdout(io.StringIO()):  # the import prints the text
    import this

QUICK = "CATLOG_QUICK" in os.environ
PRETRAINING, STEPS = 60 if QUICK else 150, 15 if QUICK else 80
PROMPTS, PROMPT, LENGTH = 16, 4, 12  # 16 prompts of 4 characters, 12 new characters
WIDTH, HEADS, LAYERS = 48, 4, 2
LETTERS = " abcdefghijklmnopqrstuvwxyz"
K = len(LETTERS)

text = re.sub("[^a-z]+", " ", codecs.decode(this.s, "rot13").lower())
corpus = torch.tensor([LETTERS.index(letter) for letter in text])

# %%
# The model. It reads whole texts under a causal mask, or one more character with the keys and
# values of all earlier ones. The cache is a tensor ``[n, layers, 2, characters, width]`` which
# grows by one character at each step.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, h: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """``h [n, t, width]`` to the same, and all keys and values ``[n, 2, T, width]``."""
        query, *new = self.project(self.norm(h)).chunk(3, -1)
        known = torch.stack(new, 1)
        if past is not None:
            known = torch.cat([past, known], -2)
        heads = [
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (query, *known.unbind(1))
        ]
        # A single new character may see everything that is known.
        mixed = scaled_dot_product_attention(*heads, is_causal=past is None)
        h = h + self.mix(mixed.transpose(1, 2).flatten(-2))
        return h + self.feedforward(h), known


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(K, WIDTH)
        self.place = nn.Embedding(PROMPT + LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, K))

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """New tokens ``[n, t]`` to the next ones' logits ``[n, t, K]``, and the cache."""
        h, grown = self.token(tokens) + self.place(positions), []
        for i, block in enumerate(self.blocks):
            h, known = block(h, None if cache is None else cache[:, i])
            grown.append(known)
        return self.out(h), torch.stack(grown, 1)


# %%
# :class:`~catlog.distributions.Prompted` makes it complete prompts. These have equal lengths, so
# nothing is padded, and the model ignores ``mask``.


def completions(
    model: GPT, prompts: Tensor, length: int = LENGTH
) -> catlog.distributions.Autoregressive:
    """Return the distribution of ``length`` new characters after each of the prompts."""
    return catlog.distributions.Autoregressive(Prompted(model, prompts), [K] * length)


def excerpts(number: int, length: int) -> Tensor:
    """Return random excerpts of the corpus."""
    return corpus.unfold(0, length, 1)[torch.randint(len(corpus) - length + 1, (number,))]


# %%
# First the model learns to write. This is ordinary maximum likelihood.

torch.manual_seed(0)
reference = GPT()
optimiser = torch.optim.Adam(reference.parameters(), lr=2e-3)
for _ in range(PRETRAINING):
    tokens = excerpts(64, PROMPT + LENGTH)
    logits, _ = reference(tokens[:, :-1], torch.arange(PROMPT + LENGTH - 1), None, None)
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
reference.requires_grad_(False)
print(f"trained on the corpus: {loss.item():.2f} nats per character")

# %%
# Are the cached steps the same function as the pass over whole texts? catlog compares them at the
# first uses of a network and occasionally later. Here is the comparison by hand, in float64.

with torch.no_grad():
    exact = GPT().double()
    exact.load_state_dict(reference.state_dict())
    q = completions(exact, excerpts(PROMPTS, PROMPT))
    x = torch.randint(K, (5, PROMPTS, LENGTH))
    steps, whole = q.by_steps(x), q.by_all_logits(x)
    difference = float((steps - whole).abs().max())
print(f"cached steps and teacher forcing differ by at most {difference:.1e}")

# %%
# **The entropy and the KL divergence as rewards.** Both are expectations under q of a function that
# depends on q itself:
#
# .. math:: H(q) = E[-\log q(x)], \qquad KL(q \| p) = E[\log q(x) - \log p(x)]
#
# The gradient of the inner :math:`\log q` is zero in expectation, so it is detached, and the
# estimator finds the rest. Without the estimator, ``-q.log_prob(x).mean()`` at draws x has the
# right value, but its gradient is noise with mean zero, so as a bonus it does nothing. Enumerating
# all completions of two characters shows this.

leaf = GPT()
leaf.load_state_dict(reference.state_dict())
weight = leaf.out[-1].bias
q = completions(leaf, excerpts(1, PROMPT), length=2)
points = q.enumerate_support()
log_probs = q.log_prob(points)
(truth,) = torch.autograd.grad(-(log_probs.exp() * log_probs).sum(), weight, retain_graph=True)
value = catlog.Exact()(lambda x: -q.log_prob(x).detach(), q).sum()
(right,) = torch.autograd.grad(value, weight)
(wrong,) = torch.autograd.grad(-(log_probs.detach().exp() * log_probs).sum(), weight)
print(f"gradient of the entropy: norm {truth.norm():.4f}")
print(f"detached, through E: off by {(right - truth).norm() / truth.norm():.1e}")
print(f"mean of -log q at draws: expected norm {wrong.norm() / truth.norm():.1e} of that")

# %%
# The reward is plain Python on strings. f subtracts the KL penalty, with one pass of each model
# over the finished texts. The penalty already contains an entropy bonus. A larger one would be a
# further term, ``- bonus * q.log_prob(x).detach()``.


def written(x: Tensor) -> str:
    return "".join(LETTERS[i] for i in x.tolist())


def reward(x: Tensor) -> Tensor:
    """Texts ``[rows, prompts, characters]`` to their shares of vowels ``[rows, prompts]``."""
    shares = [sum(c in "aeiou" for c in written(row)) / LENGTH for row in x.flatten(0, 1)]
    return torch.tensor(shares).view(x.shape[:2])


def train(E: catlog.Estimator, penalty: float) -> tuple[GPT, list[tuple[float, float]]]:
    """Return the trained model and, for every step, the mean reward and KL of 8 draws."""
    torch.manual_seed(1)
    model = GPT()
    model.load_state_dict(reference.state_dict())
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    curve = []
    for _ in range(STEPS):
        prompts = excerpts(PROMPTS, PROMPT)
        q, p = completions(model, prompts), completions(reference, prompts)
        measured = []

        def f(x: Tensor, q=q, p=p, measured=measured) -> Tensor:
            rewards = reward(x)
            divergence = (q.log_prob(x) - p.log_prob(x)).detach()
            measured.append((float(rewards.mean()), float(divergence.mean())))
            return rewards - penalty * divergence

        optimiser.zero_grad()
        (-E(f, q).mean()).backward()
        optimiser.step()
        curve.append(measured[0])
    return model, curve


settings = {
    "RLOO, penalty 0.02": (catlog.RLOO(8), 0.02),
    "CritiCateR, penalty 0.02": (catlog.CritiCateR(8), 0.02),
    "RLOO, no penalty": (catlog.RLOO(8), 0.0),
}
models, curves = {"the first model": reference}, {}
for name, (E, penalty) in settings.items():
    began = time.process_time()
    models[name], curve = train(E, penalty)
    curves[name] = torch.tensor(curve)
    vowels, divergence = curves[name][-10:].mean(0).tolist()
    print(
        f"{name:25} vowels {curves[name][:3, 0].mean():.2f} -> {vowels:.2f}, "
        f"KL {divergence:.1f} nats, {time.process_time() - began:.1f} s of CPU time"
    )

# %%
# What do they write? Without the penalty the model forgets its language. With it, the texts have
# many vowels, but still some of its words and syllables. RLOO and CritiCateR do not differ here: 8
# draws for each of 16 prompts are enough.

prompts = torch.tensor([[LETTERS.index(letter) for letter in word] for word in ("beau", "is b")])
for name, model in models.items():
    torch.manual_seed(2)
    samples = completions(model, prompts).sample((2,))
    lines = [f"{written(prompts[i])}|{written(samples[n, i])}" for n in range(2) for i in range(2)]
    print(f"{name:25}", "   ".join(lines))

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for name, curve in curves.items():
    smooth = curve.unfold(0, 5, 1).mean(-1)
    axes[0].plot(smooth[:, 0], label=name)
    axes[1].plot(smooth[:, 1].clamp(min=0))
axes[0].set(xlabel="step", ylabel="share of vowels")
axes[1].set(xlabel="step", ylabel="KL to the first model, nats")
axes[0].legend(fontsize=8)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/transformer_policy.png", dpi=150)
