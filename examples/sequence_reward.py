"""A policy over characters learns a hidden word from nothing but a score: structured estimators at
equal evaluations of f.

    python examples/sequence_reward.py    # about a minute; writes demo/sequence_reward.png

The distribution q is a GRU over 8 characters, each given all earlier ones. f scores a finished
string by its edit distance to a word that the policy never sees: plain Python on strings, no
derivative. All estimators get the same evaluations of f per step, the same initial weights and the
same optimiser. A small entropy bonus keeps q from settling on the first good string.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import catlog

WORD = "potatoes"
LETTERS = "".join(sorted(set(WORD)))  # d = 8 variables of k = 6 categories: 1.7 million strings
D, K = len(WORD), len(LETTERS)
TEMPERATURE = 0.02  # weight of the entropy


def score(text: str) -> float:
    """1 for the hidden word, less 1/8 for each insertion, deletion or substitution away from it."""
    row = list(range(D + 1))
    for i, a in enumerate(text, 1):
        above, row = row, [i]
        for j, b in enumerate(WORD, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return 1 - row[-1] / D


def f(x: Tensor) -> Tensor:
    """``[n, d]`` letters to ``[n]`` scores."""
    return torch.tensor([score("".join(LETTERS[i] for i in row)) for row in x.tolist()])


class Policy(nn.Module):
    """q(x_i | x_<i) by a GRU: letter by letter to draw, and all at once where x is known."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(K + 1, hidden)  # category K stands before the first letter
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, K)

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(*lead, self.gru.hidden_size)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        letter = torch.full(state.shape[:1], K) if previous is None else previous
        h = self.gru(self.embed(letter).unsqueeze(1), state.unsqueeze(0))[1].squeeze(0)
        return self.out(h), h

    def all_logits(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(pad(x[..., :-1], (1, 0), value=K)))[0])


def train(E: catlog.Estimator, seed: int, steps: int, every: int) -> tuple[list[float], float]:
    """E[f] at regular intervals, from 256 new strings, and the probability of the word at last."""
    torch.manual_seed(seed)  # the same initial weights for every estimator
    q = catlog.distributions.Autoregressive(policy := Policy(), [K] * D)
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    curve = []
    for step in range(steps + 1):
        if step % every == 0:
            curve.append(float(f(q.sample((256,))).mean()))
        optimiser.zero_grad()
        value = E(lambda x: f(x) - TEMPERATURE * q.log_prob(x).detach(), q)
        (-value).backward()  # value: E[f] + TEMPERATURE * entropy
        optimiser.step()
    word = torch.tensor([LETTERS.index(letter) for letter in WORD])
    return curve, q.log_prob(word).exp().item()


def picture(curves: dict[str, tuple[Tensor, Tensor]], every: int, n: int) -> plt.Figure:
    plt.rcParams.update(
        {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, (mean, error) in curves.items():
        axes.plot(steps := torch.arange(len(mean)) * every, mean, label=name)
        axes.fill_between(steps, mean - error, mean + error, alpha=0.2, linewidth=0)
    axes.axhline(1, color="grey", linestyle=":")
    axes.set(xlabel="step", ylabel="expected score E[f]")
    axes.set(title=f"learning a hidden word, {n} evaluations of f per step")
    axes.legend(loc="lower right", title="mean ± s.e. over seeds")
    return figure


def main(steps: int, seeds: int, output: Path) -> None:
    n = catlog.SCateR(1).evaluations(catlog.distributions.Autoregressive(Policy(), [K] * D))
    estimators: dict[str, catlog.Estimator] = {
        "Reinforce": catlog.Reinforce(n),
        "RLOO": catlog.RLOO(n),
        "SCateR": catlog.SCateR(1, suffix="common"),
        "CritiCateR": catlog.CritiCateR(n),
    }
    every, curves = max(1, steps // 30), {}
    print(f"{n} evaluations of f per step, {steps} steps, {seeds} seeds\n")
    head = ("E[f] before", "after", "+- s.e.", "q(word)", "steps to 0.9", "seconds")
    widths = (12, 10, 10, 10, 14, 10)
    print(" " * 12 + "".join(name.rjust(width) for name, width in zip(head, widths, strict=True)))
    for name, E in estimators.items():
        began = time.perf_counter()
        runs = [train(E, seed, steps, every) for seed in range(seeds)]
        rewards, probabilities = zip(*runs, strict=True)
        std, mean = torch.std_mean(torch.tensor(rewards), 0, correction=0)
        curves[name] = mean, (error := std / max(1, seeds - 1) ** 0.5)
        reached = next((f"{i * every}" for i, value in enumerate(mean) if value > 0.9), "-")
        row = f"{name:12}{mean[0]:>12.3f}{mean[-1]:>10.3f}{error[-1]:>10.3f}"
        row += f"{sum(probabilities) / seeds:>10.3f}{reached:>14}"
        print(f"{row}{time.perf_counter() - began:>10.1f}")
    output.mkdir(parents=True, exist_ok=True)
    picture(curves, every, n).savefig(output / "sequence_reward.png", dpi=150)
    print(f"\nwritten to {output / 'sequence_reward.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    main(**vars(parser.parse_args()))
