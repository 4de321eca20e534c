"""What advantages.md concludes from results/quality/advantages.csv."""

from itertools import product
from statistics import mean

from measured import advantages

REWARDS = ("right or wrong", "graded")


def test_biases_are_as_the_page_says() -> None:
    rows = advantages.load()
    for reward, size, prompt in product(REWARDS, advantages.SIZES, advantages.PROMPTS):
        for estimator in ("reinforce", "rloo"):
            assert rows[reward, estimator, size, prompt]["bias"] < 1e-12
        shorter = rows[reward, "dr_grpo", size, prompt]
        assert abs(shorter["scale"] - (1 - 1 / size)) < 1e-3
        assert shorter["cosine"] == 1
        grpo = rows[reward, "grpo", size, prompt]
        if reward == "right or wrong" and prompt != "all":
            assert grpo["cosine"] == 1  # a single prompt keeps its direction
        elif reward == "graded" or size > 4:
            assert grpo["cosine"] < 0.9999
    scales = [rows["right or wrong", "grpo", 16, prompt]["scale"] for prompt in advantages.PROMPTS]
    assert scales[0] < scales[1] < scales[2]  # rare successes count more


def test_advantages_per_token_gain_little_on_short_texts() -> None:
    rows = advantages.load()

    def variance(reward: str, estimator: str, size: int) -> float:
        return rows[reward, estimator, size, "all"]["variance"]

    assert 0.8 < variance("graded", "criticater", 16) / variance("graded", "rloo", 16) < 1
    for size in advantages.SIZES:
        ratio = variance("right or wrong", "criticater", size) / variance(
            "right or wrong", "rloo", size
        )
        assert 0.97 < ratio < 1.06
    for reward, size in product(REWARDS, advantages.SIZES[:-1]):  # at equal tokens
        assert rows[reward, "vineppo", size, "all"]["tokens"] == 6 * size
        assert variance(reward, "rloo", 2 * size) < variance(reward, "vineppo", size)


def test_seeds_differ_more_than_methods_when_a_model_learns_to_add() -> None:
    ends = {method: [curve[-1] for curve in curves] for method, curves in advantages.runs().items()}
    for name in ("reward", "right"):
        means = {method: mean(end[name] for end in rows) for method, rows in ends.items()}
        by_seed = [mean(rows[seed][name] for rows in ends.values()) for seed in range(3)]
        assert max(means.values()) - min(means.values()) < max(by_seed) - min(by_seed)
        if name == "reward":
            assert min(means, key=means.__getitem__) == "vineppo"
    assert all(150_000 <= end["tokens"] < 151_000 for rows in ends.values() for end in rows)
    steps = {method: mean(end["step"] for end in rows) for method, rows in ends.items()}
    assert 0.58 < steps["vineppo"] / steps["rloo"] < 0.63
