"""The tables of advantages.md, from results/quality/advantages.csv."""

from . import Row, read, short, table

SIZES = (2, 4, 8, 16)
PROMPTS = ("easy", "harder", "hardest", "all")


def load() -> dict[tuple[str, str, int, str], Row]:
    return {
        (row["reward"], row["estimator"], row["size"], row["prompt"]): row
        for row in read("quality/advantages")
    }


def bias(rows: dict[tuple[str, str, int, str], Row]) -> str:
    """Return scales and biases of the normalised advantages."""
    head = ["reward", "estimator", "size", "scale: easy", "harder", "hardest", "all", "cosine"]
    lines = []
    for reward in ("right or wrong", "graded"):
        for estimator in ("rloo", "dr_grpo", "grpo"):
            for size in SIZES[1:] if estimator == "grpo" else SIZES[-1:]:
                cells = [rows[reward, estimator, size, prompt] for prompt in PROMPTS]
                scales = [f"{row['scale']:.2f}" for row in cells]
                last = cells[-1]
                angle = [
                    f"{last['cosine']:.4f}",
                    f"{0.0 if last['bias'] < 1e-12 else last['bias']:.2f}",
                ]
                lines.append([reward, f"`{estimator}`", size, *scales, *angle])
    return table([*head, "bias"], lines)


def variance(rows: dict[tuple[str, str, int, str], Row]) -> str:
    """Return variances and tokens of the unbiased advantages."""
    lines = []
    for reward in ("right or wrong", "graded"):
        for estimator in ("reinforce", "rloo", "criticater", "vineppo"):
            cells = [rows[reward, estimator, size, "all"] for size in SIZES]
            texts = [f"{short(row['variance'])} ({row['tokens']})" for row in cells]
            lines.append([reward, f"`{estimator}`", *texts])
    return table(["reward", "estimator", *(f"size {size}" for size in SIZES)], lines)


def values() -> dict[str, object]:
    rows = load()
    scale = {prompt: rows["right or wrong", "grpo", 16, prompt]["scale"] for prompt in PROMPTS}
    critic, rloo = (rows["graded", name, 16, "all"]["variance"] for name in ("criticater", "rloo"))
    return {
        "bias": bias(rows),
        "variance": variance(rows),
        "easy": f"{scale['easy']:.1f}",
        "hardest": f"{scale['hardest']:.1f}",
        "gain": f"{critic / rloo:.2f}",
    }
