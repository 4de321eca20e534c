"""The table of policies.md."""

from statistics import mean, stdev

from . import Row, distinct, read, selected, table


def coin_rewards(rows: list[Row]) -> str:
    """Return mean reward, its standard error, and the fraction of exact payments."""
    lines = []
    for name in distinct(rows, "estimator"):
        runs = selected(rows, estimator=name)
        rewards = [row["reward"] for row in runs]
        reward = f"{mean(rewards):.3f} ± {stdev(rewards) / len(rewards) ** 0.5:.3f}"
        exact = mean(row["exact"] for row in runs)
        lines.append([name, reward, f"{min(rewards):.3f}", f"{exact:.0%}", len(runs)])
    tokens = f"after {rows[0]['tokens']:,.0f} tokens"
    return table([tokens, "mean reward", "least of a run", "paid exactly", "seeds"], lines)


def values() -> dict[str, object]:
    coins = read("quality/coin_sequences")
    return {"coin_rewards": coin_rewards(coins), "coin_best": f"{coins[0]['best']:.3f}"}
