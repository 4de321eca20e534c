"""The table of advantages.md, from results/quality/advantages.csv."""

from . import Row, keyed, read, table

PROMPTS = ("easy", "harder", "hardest", "all")


def load() -> dict[tuple[str, str, int, str], Row]:
    return keyed(read("quality/advantages"), "reward", "estimator", "size", "prompt")


def values() -> dict[str, object]:
    rows = load()
    lines = []
    for reward in ("right or wrong", "graded"):
        for estimator in ("rloo", "dr_grpo", "grpo"):
            cells = [rows[reward, estimator, 16, prompt] for prompt in PROMPTS]
            scales = [f"{row['scale']:.2f}" for row in cells]
            bias = f"{0.0 if cells[-1]['bias'] < 1e-12 else cells[-1]['bias']:.2f}"
            lines.append([reward, f"`{estimator}`", *scales, bias])
    head = ["reward", "estimator", *(f"scale: {prompt}" for prompt in PROMPTS), "bias"]
    return {"bias": table(head, lines)}
