"""Advantages of policy gradients: expectation and variance, and training at equal tokens.

    python -m benchmarks.advantages    # quality/advantages.csv, arithmetic.csv

"expected": `catlog.language_models.advantages` by enumeration. Texts have 3 tokens of 4 symbols,
each prompt has its own table of logits per prefix. `reward` is "right or wrong" (does the text add
up to the prompt's number?) or "graded" (how near is it?). The prompt "all" is the mean over the
three prompts. `size` is completions per prompt, `tokens` all that were generated for one prompt,
`scale` the expected gradient's component along the exact one, over the latter's norm, `cosine` that
of the angle between the two, `bias` their distance over the exact one's norm. Rewards take few
values, so the other rows of a group are enumerated by counts; token-level advantages are judged in
tests/language_models. `variance` is that of one group's gradient over the squared norm of the exact
one, by drawn groups, and `error` its relative standard error.

"arithmetic" (needs the extra `transformers`): a small GPT-2 learns to add by rewards. A prompt such
as "27+4=" is completed by up to 3 tokens. The model is first trained on right answers for 150
steps; from there every method gets the same weights and number of generated tokens. Each step draws
8 completions for each of 16 prompts. The reward is the share of right tokens. `reward` is a mean
over the last 10 steps, `right` the share of 256 problems whose most likely completion is right.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from math import factorial, prod
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from catlog.distributions import left_padded
from catlog.language_models import CausalLM, advantages

from .measuring import Row, Rows, Section, Table, moments_of, run

LENGTH, SYMBOLS = 3, 4
TEXTS = torch.tensor(list(product(range(SYMBOLS), repeat=LENGTH)))
CONTEXTS = 1 + SYMBOLS + SYMBOLS**2
SIZES = (2, 4, 8, 16)
PROMPTS = {"easy": 4, "harder": 7, "hardest": 9}  # the sum to write
PER_ROW = ("reinforce", "rloo", "dr_grpo", "grpo")
PER_TOKEN = ("criticater", "vineppo")
POSITIONS = (1, 2)  # where vineppo samples one new suffix


class Prompt:
    """The distribution of texts after one prompt, with scores in its logits."""

    def __init__(self, number: int, target: int, is_graded: bool) -> None:
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(CONTEXTS, SYMBOLS, generator=generator, dtype=torch.float64)
        first, second, _ = TEXTS.T
        context = torch.stack(
            [torch.zeros_like(first), 1 + first, 1 + SYMBOLS * (1 + first) + second], -1
        )
        log_probs = logits.log_softmax(-1)[context].gather(-1, TEXTS.unsqueeze(-1)).squeeze(-1)
        self.probs = log_probs.sum(-1).exp()
        rows, steps = torch.arange(len(TEXTS)).unsqueeze(-1), torch.arange(LENGTH)
        self.scores = torch.zeros(len(TEXTS), LENGTH, CONTEXTS, SYMBOLS, dtype=torch.float64)
        self.scores[rows, steps, context] -= logits.softmax(-1)[context]
        self.scores[rows, steps, context, TEXTS] += 1
        self.scores = self.scores.flatten(2)
        distance = (TEXTS.sum(-1) - target).abs().double()
        self.rewards = (1 - distance / 3).clamp(min=0) if is_graded else (distance == 0).double()
        self.gradient = self.weighted(self.rewards)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return E[weight * score] for a weight per text."""
        return torch.einsum("x,x,xtp->p", self.probs, weights, self.scores)

    def expected(self, estimator: str, size: int) -> Tensor:
        """Return the expected policy gradient of one group.

        All rows have the same expectation, so the first one is enough: given its reward, the
        others' rewards are enumerated by how often each value occurs.
        """
        levels, place = self.rewards.unique(return_inverse=True)
        chances = torch.zeros_like(levels).index_add_(0, place, self.probs)
        weights = torch.zeros_like(levels)
        for others in combinations_with_replacement(range(len(levels)), size - 1):
            counts = [others.count(level) for level in range(len(levels))]
            ways = factorial(size - 1) / prod(map(factorial, counts))
            chance = ways * float(chances[list(others)].prod())
            known = levels[list(others)].expand(len(levels), -1)
            group = torch.cat([levels.unsqueeze(-1), known], -1)
            weights += (
                chance * advantages(group.flatten(), size, estimator=estimator).view(-1, size)[:, 0]
            )
        return self.weighted(weights[place])

    def drawn(self, estimator: str, size: int, groups: int) -> Tensor:
        """Return the gradients of this many drawn groups."""
        rows = torch.multinomial(self.probs, groups * size, replacement=True)
        mask = torch.ones(len(rows), LENGTH)
        extra = {}
        if estimator == "criticater":
            extra["tokens"] = TEXTS[rows]
        if estimator == "vineppo":
            extra["values"] = torch.full((len(rows), LENGTH), torch.nan, dtype=torch.float64)
            for position in POSITIONS:
                block = SYMBOLS ** (LENGTH - position)
                conditional = self.probs.view(-1, block)[rows // block]
                suffix = torch.multinomial(conditional, 1).squeeze(-1)
                extra["values"][:, position] = self.rewards[rows // block * block + suffix]
        weights = advantages(self.rewards[rows], size, mask, estimator=estimator, **extra)
        terms = torch.einsum("rt,rtp->rp", weights, self.scores[rows])
        return terms.view(groups, size, -1).mean(1)


def generated(estimator: str, size: int) -> int:
    """Return the tokens that one group costs."""
    suffixes = sum(LENGTH - position for position in POSITIONS) if estimator == "vineppo" else 0
    return size * (LENGTH + suffixes)


def compared(expected: Tensor, exact: Tensor) -> Row:
    """Return how an expected gradient differs from the exact one."""
    return {
        "scale": float(expected @ exact / exact.square().sum()),
        "cosine": float(torch.cosine_similarity(expected, exact, dim=0)),
        "bias": float((expected - exact).norm() / exact.norm()),
    }


def measure(is_graded: bool, sizes: tuple[int, ...], groups: int) -> Iterator[Row]:
    """Yield one row per estimator, size and prompt."""
    prompts = [Prompt(n, target, is_graded) for n, target in enumerate(PROMPTS.values())]
    exact = torch.cat([prompt.gradient for prompt in prompts])
    for size, estimator in product(sizes, (*PER_ROW, *PER_TOKEN)):
        rows: dict[str, Row] = {name: {} for name in (*PROMPTS, "all")}
        if estimator in PER_ROW:
            means = [prompt.expected(estimator, size) for prompt in prompts]
            for name, prompt, mean in zip(PROMPTS, prompts, means, strict=True):
                rows[name] = compared(mean, prompt.gradient)
            rows["all"] = compared(torch.cat(means), exact)
        torch.manual_seed(size)  # the same texts for every estimator
        drawn = [prompt.drawn(estimator, size, groups) for prompt in prompts]
        for name, prompt, gradients in zip(PROMPTS, prompts, drawn, strict=True):
            rows[name] |= noise(gradients, prompt.gradient)
        rows["all"] |= noise(torch.cat(drawn, -1), exact)
        for name, row in rows.items():
            reward = "graded" if is_graded else "right or wrong"
            key = {"reward": reward, "estimator": estimator, "size": size, "prompt": name}
            yield {**key, "tokens": generated(estimator, size), **row}


def noise(gradients: Tensor, exact: Tensor) -> Row:
    """Return the variance over the squared norm, and its relative standard error."""
    moments = moments_of(gradients)
    return {"variance": moments.variance / float(exact.square().sum()), "error": moments.error}


def expected(args: argparse.Namespace, table: Table) -> Rows:
    for is_graded in (False, True):
        yield list(measure(is_graded, *((SIZES[:2], 200) if args.quick else (SIZES, 4000))))


LETTERS = "0123456789+="
END, WIDTH = len(LETTERS), 3
BATCH, SIZE, LARGEST = 16, 8, 30
METHODS = ("rloo", "criticater", "vineppo", "grpo")


def encoded(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def problems(random: Random, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return prompts, their mask and the answers, filled up with the end token."""
    pairs = [(random.randrange(LARGEST), random.randrange(LARGEST)) for _ in range(number)]
    prompts, mask = left_padded([encoded(f"{a}+{b}=") for a, b in pairs])
    width = 6 - prompts.shape[-1]
    answers = [(encoded(str(a + b)) + [END] * WIDTH)[:WIDTH] for a, b in pairs]
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


def completions(model: Any, prompts: Tensor, mask: Tensor, length: int = WIDTH) -> CausalLM:
    return CausalLM(model, prompts, mask, length, END, validate_args=False)


def reward(x: Tensor, answers: Tensor) -> Tensor:
    """Return the share of right tokens."""
    return (x == answers).float().mean(-1)


@torch.no_grad()
def share_right(model: Any) -> float:
    prompts, mask, answers = problems(Random(-1), 256)
    q = completions(model, prompts, mask)
    x = torch.full((1, 256, WIDTH), END)
    for i in range(WIDTH):
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
    q = completions(model, known, real, WIDTH - 1)
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
        prompts, mask, answers = problems(random, BATCH)
        q = completions(model, prompts, mask)
        with torch.no_grad():
            x = q.sample((SIZE,))  # [size, prompts, length]
            scores = reward(x, answers)
            is_chosen = torch.arange(WIDTH) < q.lengths(x).unsqueeze(-1)
            tokens += int(q.lengths(x).sum())
            extra: dict[str, Tensor] = {}
            if method == "criticater":
                extra["tokens"] = x.flatten(0, 1)
            if method == "vineppo":
                extra["values"], used = values_of_prefixes(model, x, prompts, mask, answers)
                tokens += used
        weights = advantages(
            scores.flatten(),
            torch.arange(BATCH).repeat(SIZE),
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


def arithmetic(args: argparse.Namespace, table: Table) -> Rows:
    seeds, budget, warm_up = ((0,), 1500, 10) if args.quick else ((0, 1, 2), 150_000, 150)
    for seed, method in product(seeds, METHODS):
        yield train(method, seed, budget, warm_up, rate=3e-4)


SECTIONS = {
    "expected": Section(
        "quality/advantages.csv", ("reward", "estimator", "size", "prompt"), expected
    ),
    "arithmetic": Section("quality/arithmetic.csv", ("seed", "method"), arithmetic),
}


def main(arguments: Sequence[str] | None = None) -> None:
    run(__doc__, SECTIONS, arguments)


if __name__ == "__main__":
    main()
