"""Advantages of policy gradients: expectation and variance.

    python -m benchmarks.advantages    # results/quality/advantages.csv

"expected": `catlog.language_models.advantages` by enumeration. Texts have 3 tokens of 4 symbols,
each prompt has its own table of logits per prefix. `reward` is "right or wrong" (does the text add
up to the prompt's number?) or "graded" (how near is it?). The prompt "all" is the mean over the
three prompts. `size` is completions per prompt, `tokens` all that were generated for one prompt,
`scale` the expected gradient's component along the exact one, over the latter's norm, `cosine` that
of the angle between the two, `bias` their distance over the exact one's norm. Rewards take few
values, so the other rows of a group are enumerated by counts; token-level advantages are judged in
tests/language_models. `variance` is that of one group's gradient over the squared norm of the exact
one, by drawn groups, and `error` its relative standard error.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from math import factorial, prod

import torch
from torch import Tensor

from catlog.language_models import advantages

from .measuring import Args, Page, Row, Rows, Table, moments_of

page = Page(__doc__)
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


@page.section("quality/advantages.csv", "reward", "estimator", "size", "prompt")
def expected(args: Args, table: Table) -> Rows:
    for is_graded in (False, True):
        yield list(measure(is_graded, *((SIZES[:2], 200) if args.quick else (SIZES, 4000))))


if __name__ == "__main__":
    page.run()
