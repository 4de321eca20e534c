"""
Sequences that end: paying with as few coins as possible
========================================================

A recurrent policy reads an amount and writes coins until it stops.

The amount is a prompt of one or two digits, the coins are 1, 2 and 5, and a sequence is over at its
end token. A reward without derivative says how well the amount was paid. It is a small version of
what language models do when they are trained with rewards: prompts of different lengths, texts of
different lengths, one number per text. The estimators are compared at equal numbers of tokens that
the policy generates.
"""

# sphinx_gallery_thumbnail_number = 1

import os
import textwrap
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import catlog
from catlog.distributions import Prompted, left_padded

QUICK = "CATLOG_QUICK" in os.environ
TOKENS, SEEDS = (10_000, 1) if QUICK else (100_000, 2)  # tokens that each run may generate
END, COINS = 0, torch.tensor([0, 1, 2, 5])  # what the four tokens are worth
LENGTH, WIDTH = 6, 48
AMOUNTS = torch.arange(1, 13)
COST = 0.05  # of a coin
BONUS = 0.12  # of a nat of entropy, at first

# %%
# The model. It reads new tokens and returns the logits of the tokens that come next, and its
# state. :class:`~catlog.distributions.Prompted` calls it for whole texts and for one token at a
# time. Padding comes before a prompt, and the state passes it unchanged. The digits of prompts have
# embeddings of their own, after those of the coins.


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(COINS) + 10, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, len(COINS))
        self.generated = 0

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if state is not None:  # a step after the prompt
            self.generated += len(tokens)
        else:
            state = torch.zeros(len(tokens), WIDTH)
        states = []
        for i, letter in enumerate(self.token(tokens).unbind(1)):
            is_real = mask[:, i - tokens.shape[1], None]
            state = torch.where(is_real, self.cell(letter, state), state)
            states.append(state)
        return self.out(torch.stack(states, 1)), state


digits = [[len(COINS) + int(digit) for digit in str(n)] for n in AMOUNTS.tolist()]
prompts, mask = left_padded(digits)


def payments(policy: Policy, temperature: float = 1.0) -> catlog.distributions.Autoregressive:
    """Return the distribution of coin sequences, one batch element for each amount."""
    sizes, network = [len(COINS)] * LENGTH, Prompted(policy, prompts, mask)
    return catlog.distributions.Autoregressive(network, sizes, end=END, temperature=temperature)


# %%
# The reward is 1 for the exact amount, minus the cost of the coins. A wrong amount is punished by
# its distance. The best payments are known, so that we can see how much is left to learn.


def reward(x: Tensor) -> Tensor:
    missing = (COINS[x].sum(-1) - AMOUNTS).abs()
    paid = torch.where(missing == 0, 1.0, -(missing / AMOUNTS).clamp(max=1.0))
    return paid - COST * (x != END).sum(-1)


fewest = [0]
for amount in range(1, int(AMOUNTS.max()) + 1):
    fewest.append(1 + min(fewest[amount - coin] for coin in COINS[1:].tolist() if coin <= amount))
best = 1 - COST * torch.tensor(fewest)[AMOUNTS].float().mean()
print(f"best possible mean reward {best:.3f}, with {max(fewest)} coins at most")

# %%
# Before training, ``catlog.check`` looks for mistakes: logits that depend on later tokens,
# steps that disagree with the pass over whole texts, mixed rows, padding that is not ignored.

torch.manual_seed(0)
catlog.check(reward, payments(Policy()))


class RightPadded(Policy):
    """A mistake: padding is read as if it were part of the prompt."""

    def forward(self, tokens, positions, mask, state):
        return super().forward(tokens, positions, torch.ones_like(mask), state)


try:
    catlog.check(reward, payments(RightPadded()))
except ValueError as error:
    print(textwrap.fill(str(error), 100))

# %%
# **Variance at equal tokens.** Nothing after an end token is generated or scored, so a sequence
# costs its own tokens. SCateR changes one token at a time and generates the rest of the sequence
# again, from the recurrent state that it has kept. So one draw of SCateR is not one draw of RLOO,
# and the fair unit is the token. More draws divide the variance and multiply the tokens, so we
# compare their product.

settings = {
    "RLOO": catlog.RLOO(8),
    "CritiCateR": catlog.CritiCateR(8),
    "SCateR": catlog.SCateR(1),
    "SCateR, common": catlog.SCateR(1, suffix="common"),
}
torch.manual_seed(0)
policy = Policy()
parameters = list(policy.parameters())
for name, E in settings.items():
    policy.generated, gradients = 0, []
    for _ in range(5 if QUICK else 80):
        value = E(reward, payments(policy)).mean()
        gradient = torch.autograd.grad(value, parameters)
        gradients.append(torch.cat([part.flatten() for part in gradient]))
    tokens = policy.generated / len(gradients)
    variance = torch.stack(gradients).var(0).sum()
    print(f"{name:14} {tokens:5.0f} tokens, variance x tokens {variance * tokens:.3g}")

# %%
# **Training.** Every run may generate the same number of tokens. A bonus for the entropy, which
# decreases to zero, keeps the policy from settling on the first payments that are good enough. The
# bonus is part of f, as :math:`-\log q(x)`, detached.


def train(E: catlog.Estimator, seed: int) -> tuple[Tensor, Policy]:
    """Return tokens generated and mean reward after every step, and the trained policy."""
    torch.manual_seed(seed)
    policy = Policy()
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    curve = []
    while policy.generated < TOKENS:
        q, bonus = payments(policy), BONUS * max(0.0, 1 - policy.generated / (0.75 * TOKENS))
        rewards = []

        def f(x: Tensor, q=q, bonus=bonus, rewards=rewards) -> Tensor:
            rewards.append(reward(x))
            return rewards[-1] - bonus * q.log_prob(x).detach()

        optimiser.zero_grad()
        (-E(f, q).mean()).backward()
        optimiser.step()
        curve.append((policy.generated, rewards[0].mean().item()))  # of the base draws
    return torch.tensor(curve), policy


runs = {}
for name in ("RLOO", "CritiCateR", "SCateR"):
    began = time.process_time()
    runs[name] = [train(settings[name], seed) for seed in range(SEEDS)]
    exact, mean = [], []
    for _, policy in runs[name]:
        x = payments(policy).sample((200,))
        exact.append((COINS[x].sum(-1) == AMOUNTS).float().mean())
        mean.append(reward(x).mean())
    print(
        f"{name:14} reward {sum(mean) / SEEDS:.3f}, exact {sum(exact) / SEEDS:.0%}, "
        f"{len(runs[name][0][0])} steps, {time.process_time() - began:.0f} s of CPU time"
    )

# %%
# This is what the policy writes. A low temperature makes it take the most likely token at each
# step.

cold = payments(runs["RLOO"][0][1], temperature=0.01)
x = cold.sample()
for amount, row, length in zip(AMOUNTS.tolist(), x, cold.lengths(x).tolist(), strict=True):
    coins = [str(int(COINS[token])) for token in row[:length] if token != END]
    print(f"{amount:3} = {' + '.join(coins)}")

# %%
# At the initial policy, RLOO and CritiCateR have less variance per token than SCateR, which
# regenerates the rest of the sequence for each of its changes. The training runs do not rank the
# three: the two seeds of an estimator differ as much as the estimators, because a policy may settle
# on payments that are good but not optimal. Fifteen more seeds do not rank them either
# (``results/quality/coin_sequences.csv``).

figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
for i, (name, results) in enumerate(runs.items()):
    for j, (curve, _) in enumerate(results):
        width = max(1, len(curve) // 20)
        smooth = curve.unfold(0, width, 1).mean(-1)
        axis.plot(smooth[:, 0] / 1000, smooth[:, 1], color=f"C{i}", label=name if j == 0 else None)
axis.axhline(best, color="grey", linestyle=":", label="best possible")
axis.set(xlabel="tokens generated, thousands", ylabel="mean reward", ylim=(-0.6, 1))
axis.legend(fontsize=8)
Path("demo").mkdir(exist_ok=True)
figure.savefig("demo/coin_sequences.png", dpi=150)
