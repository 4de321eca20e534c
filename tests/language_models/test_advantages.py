"""`advantages`: the expected policy gradient by enumeration, groups, and rewards of any size.

The model has 3 tokens of 4 symbols and one table of logits per prefix, so its 64 texts and all
their scores are known. A group's outcomes are all tuples of texts.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from catlog.language_models import advantages

LENGTH, SYMBOLS, END = 3, 4, 3
TEXTS = torch.tensor(list(product(range(SYMBOLS), repeat=LENGTH)))
CONTEXTS = 1 + SYMBOLS + SYMBOLS**2


class Model:
    """Texts with their probabilities, scores and rewards; with ``ends`` symbol 3 ends a text."""

    def __init__(self, ends: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(CONTEXTS, SYMBOLS, generator=generator, dtype=torch.float64)
        first, second, _ = TEXTS.T
        context = [0 * first, 1 + first, 1 + SYMBOLS + SYMBOLS * first + second]
        context = torch.stack(context, -1)
        has_ended = (TEXTS == END).cumsum(-1) - (TEXTS == END).long() > 0
        self.mask = ~has_ended if ends else torch.ones_like(has_ended)
        log_probs = logits.log_softmax(-1)[context].gather(-1, TEXTS.unsqueeze(-1)).squeeze(-1)
        if ends:  # after the end token all symbols are equally likely: they only fill up
            log_probs = torch.where(self.mask, log_probs, -torch.tensor(4.0).double().log())
        self.probs = log_probs.sum(-1).exp()
        rows = torch.arange(len(TEXTS)).unsqueeze(-1)
        steps = torch.arange(LENGTH)
        self.scores = torch.zeros(len(TEXTS), LENGTH, CONTEXTS, SYMBOLS, dtype=torch.float64)
        self.scores[rows, steps, context] -= logits.softmax(-1)[context]
        self.scores[rows, steps, context, TEXTS] += 1
        self.scores = (self.scores * self.mask[..., None, None]).flatten(2)
        # A text's reward depends on the symbols before its end alone.
        shown = torch.where(self.mask, TEXTS, SYMBOLS)
        table = torch.randn((SYMBOLS + 1,) * LENGTH, generator=generator, dtype=torch.float64)
        self.rewards = table[tuple(shown.T)]
        # Of E[reward], in all logits.
        self.gradient = torch.einsum("x,x,xtp->p", self.probs, self.rewards, self.scores)


MODELS = {"full": Model(ends=False), "ends": Model(ends=True)}


def expected_gradient(model: Model, size: int, **arguments: object) -> Tensor:
    """Return the expectation of the policy gradient over all groups of this size."""
    index = torch.cartesian_prod(*[torch.arange(len(TEXTS))] * size)  # [outcomes, size]
    flat = index.flatten()
    if arguments.get("estimator") == "criticater":
        arguments["tokens"] = TEXTS[flat]
    weights = advantages(model.rewards[flat], size, model.mask[flat], **arguments)  # type: ignore[arg-type]
    weights = weights.view(*index.shape, LENGTH)
    chance = model.probs[index].prod(-1)
    gradient = torch.zeros_like(model.gradient)
    for n in range(size):  # the outcomes by their n-th text
        by_text = torch.zeros(len(TEXTS), LENGTH, dtype=torch.float64)
        by_text.index_add_(0, index[:, n], chance.unsqueeze(-1) * weights[:, n])
        gradient += torch.einsum("xt,xtp->p", by_text, model.scores) / size
    return gradient


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "criticater", "dr_grpo"])
@pytest.mark.parametrize("name", MODELS)
def test_expected_gradient_is_exact(name: str, estimator: str, size: int) -> None:
    """That of Dr. GRPO is shorter."""
    wanted = MODELS[name].gradient * (1 - 1 / size if estimator == "dr_grpo" else 1)
    error = expected_gradient(MODELS[name], size, estimator=estimator) - wanted
    assert error.abs().max() < 1e-12


@pytest.mark.parametrize("positions", [[1], [1, 2], [0, 2]])
@pytest.mark.parametrize("name", MODELS)
def test_expected_gradient_is_exact_with_resampled_suffixes(
    name: str, positions: list[int]
) -> None:
    """The first row of two has values at these positions, each from one new completion."""
    model, number = MODELS[name], torch.arange(len(TEXTS))
    # All outcomes: the row, and for each position the whole text whose suffix is used. The row's
    # own prefix replaces the text's, so its suffix has the conditional probability.
    row, *others = torch.cartesian_prod(number, *[number] * len(positions)).unbind(-1)
    chance = model.probs[row]
    values = torch.full((len(row), LENGTH), torch.nan, dtype=torch.float64)
    for new, position in zip(others, positions, strict=True):
        size = SYMBOLS ** (LENGTH - position)
        prefix = model.probs.view(-1, size).sum(-1)[row // size]
        chance = chance * torch.where(new // size == row // size, model.probs[new] / prefix, 0.0)
        values[:, position] = model.rewards[new]
    is_possible = chance > 0
    row, chance, values = row[is_possible], chance[is_possible], values[is_possible]
    for other in (0, 17, 63):  # any other row, as it is independent of the first
        rows = torch.stack([row, torch.full_like(row, other)], -1).flatten()
        pair = torch.stack([values, torch.full_like(values, torch.nan)], 1).flatten(0, 1)
        options = {"estimator": "vineppo", "values": pair}
        weights = advantages(model.rewards[rows], 2, model.mask[rows], **options)[::2]
        gradient = torch.einsum("x,xt,xtp->p", chance, weights, model.scores[row])
        assert (gradient - model.gradient).abs().max() < 1e-12


def test_dividing_by_the_standard_deviation_turns_the_gradient() -> None:
    model = MODELS["ends"]
    for size in (2, 3):
        gradient = expected_gradient(model, size, estimator="grpo", epsilon=0)
        cosine = torch.cosine_similarity(gradient, model.gradient, dim=0)
        assert 0.5 < cosine < 0.999


@pytest.mark.parametrize("chunk", [64, 2])
def test_criticater_is_the_regression_without_the_row(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leave-one-out formula against fits that never see the row."""
    monkeypatch.setattr("catlog.language_models.group_advantages.CHUNK", chunk)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, (6, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 3, 5, 4, 1, 5]).unsqueeze(-1)
    rewards = torch.randn(6, generator=generator, dtype=torch.float64)
    weights = advantages(rewards, None, mask, estimator="criticater", tokens=tokens)
    is_equal = tokens.unsqueeze(0) == tokens.unsqueeze(1)
    is_equal = is_equal & mask.unsqueeze(0) & mask.unsqueeze(1)
    for n, t in mask.nonzero().tolist():
        kernel = is_equal[..., :t].sum(-1).double()
        others = [m for m in range(6) if m != n]
        system = torch.ones(6, 6, dtype=torch.float64)  # the last row and column: an intercept
        system[:5, :5] = kernel[others][:, others] + 3 * torch.eye(5)
        system[5, 5] = 0
        solution = torch.linalg.solve(system, pad(rewards[others], (0, 1)))
        predicted = kernel[n, others] @ solution[:5] + solution[5]
        assert abs(weights[n, t] - (rewards[n] - predicted)) < 1e-12
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "criticater", "dr_grpo", "grpo"])
def test_groups_by_label_are_groups_one_by_one(estimator: str) -> None:
    generator = torch.Generator().manual_seed(3)
    labels = [7, 5, 7, 9, 5, 7, 9]
    rewards = torch.randn(7, generator=generator)
    tokens = torch.randint(2, (7, 4), generator=generator)
    mask = torch.rand(7, 4, generator=generator) < 0.8

    def of(rows: list[int], groups: object) -> Tensor:
        extra = {"tokens": tokens[rows]} if estimator == "criticater" else {}
        return advantages(rewards[rows], groups, mask[rows], estimator=estimator, **extra)

    texts = np.array([f"uid-{label}" for label in labels], dtype=object)
    for groups in (torch.tensor(labels), labels, texts, list(texts), list(torch.tensor(labels))):
        weights = of(list(range(7)), groups)
        for label in (5, 7, 9):
            rows = [row for row, other in enumerate(labels) if other == label]
            assert torch.allclose(weights[rows], of(rows, None), atol=1e-6)


def test_rewards_of_tokens_are_added_up() -> None:
    rewards = torch.tensor([[1.0, 2.0, 50.0], [0.0, 1.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])  # what stands after the end does not count
    weights = advantages(rewards, mask=mask)
    assert weights.tolist() == [[2.0, 2.0, 0.0], [-2.0, -2.0, -2.0]]
    assert advantages(rewards[:, :2]).tolist() == [[2.0, 2.0], [-2.0, -2.0]]


EQUAL = [[reward] * size for reward in (3.0, 0.1, -7.7, 1000.1) for size in (2, 3, 7, 10)]
SHARES = [[0.9, -0.05, 0.9, 0.9], [1, -1, -1, -1], [1, -1, 0, 0], [0.6, -0.6, 0, 0], [-1, -0.7]]
HUGE = [[scale * 65504 * x for x in row] for scale in (1.0, 0.45, 1e-4) for row in SHARES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo", "grpo", "criticater"])
def test_rewards_of_any_size_are_right_or_refused(estimator: str, dtype: torch.dtype) -> None:
    """Right if the advantages can be written in the dtype, also where sums of rewards cannot.

    Equal rewards have none, exactly, and large ones keep their differences. CritiCateR is RLOO for
    texts without a common token.
    """
    largest = torch.finfo(dtype).max
    for row in (*EQUAL, [1024.0, 1032.0, 1040.0], *HUGE):
        rewards = torch.tensor(row, dtype=torch.float64).to(dtype)
        tokens = torch.arange(len(row)).unsqueeze(-1)
        texts = {"tokens": tokens, "mask": torch.ones_like(tokens)}
        options: dict[str, Any] = {"epsilon": 0} | (texts if estimator == "criticater" else {})
        wanted = rewards.double() - rewards.double().mean()
        if estimator == "grpo":
            wanted = torch.where(wanted.abs() > 1e-12, wanted / rewards.double().std(), 0.0)
        elif estimator != "dr_grpo":
            wanted = wanted * len(row) / (len(row) - 1)
        if wanted.abs().max() > largest:
            match = rf"`rewards` must have differences that {dtype} can hold.*wider dtype"
            with pytest.raises(ValueError, match=match):
                advantages(rewards, estimator=estimator, **options)
            continue
        found = advantages(rewards, estimator=estimator, **options).double().flatten()
        assert row not in EQUAL or estimator == "criticater" or not found.any()
        unit = 1.0 if estimator == "grpo" else float(rewards.double().abs().max())
        error = max(1e-6, torch.finfo(dtype).eps)
        assert_close(found / unit, wanted / unit, rtol=0, atol=error)
    if dtype != torch.float16:
        with pytest.raises(ValueError, match=r"`rewards` must be finite, also.*too large numbers"):
            advantages(torch.tensor([largest, 0.0], dtype=dtype), estimator="grpo")


def test_completions_without_tokens_and_rewards_with_a_gradient() -> None:
    nothing = torch.zeros(4, 0)
    for extra in ({}, {"estimator": "criticater", "tokens": nothing.long()}):
        assert advantages(torch.ones(4), 2, nothing, **extra).shape == (4, 0)
    assert not advantages(torch.ones(4, requires_grad=True), 2).requires_grad


def test_it_compiles() -> None:
    rewards = torch.arange(8.0).square()
    mask = torch.ones(8, 3)
    compiled = torch.compile(
        lambda rewards: advantages(rewards, 4, mask), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(rewards), advantages(rewards, 4, mask))


def test_epsilon_has_the_unit_of_the_rewards() -> None:
    rewards = torch.tensor([0.0, 300.0, 500.0], dtype=torch.float64)
    expected = (rewards - rewards.mean()) / (rewards.std() + 7)
    assert_close(advantages(rewards, estimator="grpo", epsilon=7.0), expected)
