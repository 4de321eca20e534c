"""Sentences of structured.md that draw conclusions from numbers."""

from itertools import combinations
from statistics import mean, stdev

from measured import read


def test_the_estimators_do_not_differ_on_coins() -> None:
    """Differences of mean rewards, paired by seed, are below two standard errors."""
    rows = read("quality/coin_sequences")
    rewards: dict[str, dict[float, float]] = {}
    for row in rows:
        rewards.setdefault(row["estimator"], {})[row["seed"]] = row["reward"]
    assert {len(by_seed) for by_seed in rewards.values()} == {15}
    assert not {0, 1} & set(rewards["RLOO"])  # those of the page itself
    for first, second in combinations(rewards.values(), 2):
        differences = [first[seed] - second[seed] for seed in first]
        assert abs(mean(differences)) < 2 * stdev(differences) / len(differences) ** 0.5
    for by_seed in rewards.values():
        assert max(by_seed.values()) - min(by_seed.values()) > 0.15
