"""Sentences of structured.md that draw conclusions from numbers."""

from itertools import combinations
from statistics import mean, stdev

from measured import ROOT, read


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


def test_what_the_page_says_of_all_of_mnist() -> None:
    """SIMPLE is ahead at the likeliest code; at a draw it is level with the unbiased estimators."""
    rows = [row for row in read("subset/autoencoder_mnist") if row["step"] == 2000]

    def losses(name: str, column: str) -> list[float]:
        return [row[column] for row in rows if row["estimator"] == name]

    for name in ("RLOO", "CritiCateR", "I-MLE"):
        assert max(losses("SIMPLE", "loss_likeliest")) < min(losses(name, "loss_likeliest"))
    means = [mean(losses(name, "loss")) for name in ("RLOO", "CritiCateR", "SIMPLE")]
    assert max(means) - min(means) < 1


def test_what_the_page_says_of_common_random_numbers() -> None:
    rows = [
        row
        for row in read("quality/structured_variance")
        if row["problem"] in ("chain", "dag", "mdp")
    ]

    def span(*methods: str) -> str:
        ratios = [row["relative_to_rloo"] for row in rows if row["method"] in methods]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    text = " ".join((ROOT / "docs" / "structured.md").read_text(encoding="utf-8").split())
    common = f"the variance is {span('SCateR, common', 'RAM')} times RLOO's on chain, dag and mdp"
    assert f"{common}, instead of {span('SCateR')} times" in text
