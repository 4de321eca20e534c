"""A small GPT-2, made from a configuration, learns to add by rewards: advantages at equal tokens.

    pip install -e '.[transformers]'
    python -m benchmarks.arithmetic           # 5 minutes; writes results/quality/arithmetic.csv
    python -m benchmarks.arithmetic --quick   # seconds; writes only to a given --output

A prompt such as "27+4=" (padded on the left) is completed by up to 3 tokens, the end token
included. The model is first trained on right answers for 150 steps. From there every method gets
the same weights, the same number of generated tokens and Adam with the same learning rate, to which
the scale of the advantages hardly matters. Each step draws 8 completions for each of 16 prompts;
"vineppo" draws one more after the first token of each. The reward is the share of right tokens.
Columns: tokens (generated so far), step, reward (mean over the completions of the last 10 steps),
right (share of 256 fixed problems whose most likely completion is right) and seconds of CPU time.
"""

import time
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import catlog
from catlog.distributions import left_padded

from .command_line import opened, table_parser
from .tables import Row, show

LETTERS = "0123456789+="
END, LENGTH = len(LETTERS), 3
PROMPTS, SIZE, LARGEST = 16, 8, 30
METHODS = ("rloo", "criticater", "vineppo", "grpo")


def encoded(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def problems(random: Random, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return prompts, their mask and the answers, filled up with the end token."""
    pairs = [(random.randrange(LARGEST), random.randrange(LARGEST)) for _ in range(number)]
    prompts, mask = left_padded([encoded(f"{a}+{b}=") for a, b in pairs])
    width = 6 - prompts.shape[-1]
    answers = [(encoded(str(a + b)) + [END] * LENGTH)[:LENGTH] for a, b in pairs]
    pad = torch.nn.functional.pad
    return pad(prompts, (width, 0)), pad(mask, (width, 0)), torch.tensor(answers)


def new_model(seed: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=END + 1, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=END,
        eos_token_id=END,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def pretrained(seed: int, steps: int) -> Any:
    """Return a model after some steps of maximum likelihood on right answers."""
    model, random = new_model(seed), Random(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        prompts, mask, answers = problems(random, 64)
        q = completions(model, prompts, mask)
        logits = q.network.all_logits(answers.unsqueeze(0))[0]
        # The tokens after the first end token are not scored.
        is_scored = (answers == END).cumsum(-1) <= 1
        loss = cross_entropy(logits[is_scored], answers[is_scored])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def completions(model: Any, prompts: Tensor, mask: Tensor, length: int = LENGTH) -> catlog.language_models.CausalLM:
    return catlog.language_models.CausalLM(model, prompts, mask, length, END, validate_args=False)


def reward(x: Tensor, answers: Tensor) -> Tensor:
    """Return the share of right tokens."""
    return (x == answers).float().mean(-1)


@torch.no_grad()
def share_right(model: Any) -> float:
    prompts, mask, answers = problems(Random(-1), 256)
    q = completions(model, prompts, mask)
    x = torch.full((1, 256, LENGTH), END)
    for i in range(LENGTH):
        x[..., i] = q.network.all_logits(x)[..., i, :].argmax(-1)
    has_ended = (x == END).cumsum(-1) > 0
    return float((x.masked_fill(has_ended, END)[0] == answers).all(-1).float().mean())


def values_of_prefixes(
    model: Any, x: Tensor, prompts: Tensor, mask: Tensor, answers: Tensor
) -> tuple[Tensor, int]:
    """Return values before the second token, each by one new completion, and the tokens used."""
    rows = x.flatten(0, 1)
    known = torch.cat([prompts.repeat(len(x), 1), rows[:, :1]], -1)
    real = torch.cat([mask.repeat(len(x), 1), torch.ones_like(rows[:, :1], dtype=torch.bool)], -1)
    q = completions(model, known, real, LENGTH - 1)
    suffix = q.sample()
    text = torch.cat([rows[:, :1], suffix], -1)
    is_over = rows[:, 0] == END
    text = torch.where(is_over.unsqueeze(-1), rows, text)
    values = torch.full(rows.shape, torch.nan)
    values[:, 1] = reward(text, answers.repeat(len(x), 1))
    return values, int(q.lengths(suffix)[~is_over].sum())


def train(method: str, seed: int, budget: int, warm_up: int, rate: float) -> list[Row]:
    """Return the curve of one run, up to a number of generated tokens."""
    model, random = pretrained(seed, warm_up), Random(1000 + seed)
    torch.manual_seed(1000 + seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    tokens, step, recent, rows = 0, 0, [], []
    began = time.process_time()
    seconds = 0.0
    while True:
        if step % 20 == 0 or tokens >= budget:
            seconds += time.process_time() - began
            key = {"seed": seed, "method": method, "tokens": tokens, "step": step}
            mean_reward = sum(recent[-10:]) / len(recent[-10:]) if recent else None
            right = share_right(model)
            rows.append({**key, "reward": mean_reward, "right": right, "seconds": seconds})
            began = time.process_time()
        if tokens >= budget:
            return rows
        prompts, mask, answers = problems(random, PROMPTS)
        q = completions(model, prompts, mask)
        with torch.no_grad():
            x = q.sample((SIZE,))  # [size, prompts, length]
            scores = reward(x, answers)
            is_chosen = torch.arange(LENGTH) < q.lengths(x).unsqueeze(-1)
            tokens += int(q.lengths(x).sum())
            extra: dict[str, Tensor] = {}
            if method == "criticater":
                extra["tokens"] = x.flatten(0, 1)
            if method == "vineppo":
                extra["values"], used = values_of_prefixes(model, x, prompts, mask, answers)
                tokens += used
        weights = catlog.language_models.advantages(
            scores.flatten(),
            torch.arange(PROMPTS).repeat(SIZE),
            is_chosen.flatten(0, 1),
            estimator=method,  # type: ignore[arg-type]
            **extra,
        ).view_as(x)
        log_probs = q.network.all_logits(x).log_softmax(-1).gather(-1, x.unsqueeze(-1)).squeeze(-1)
        loss = -(weights * log_probs).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        recent.append(float(scores.mean()))
        step += 1


def main() -> None:
    parser = table_parser(__doc__)
    args, table = opened(parser, "quality/arithmetic.csv", "seed", "method")
    seeds, budget, warm_up = ((0,), 1500, 10) if args.quick else ((0, 1, 2), 150_000, 150)
    for seed in seeds:
        for method in METHODS:
            rows = train(method, seed, budget, warm_up, rate=3e-4)
            table.add(rows)
            show(f"{method}, seed {seed}", [rows[0], rows[len(rows) // 2], rows[-1]])


if __name__ == "__main__":
    main()
