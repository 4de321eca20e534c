"""The numbers of advantages.md, from results/quality/advantages.csv."""

from . import Row, keyed, read

PROMPTS = ("easy", "harder", "hardest", "all")


def load() -> dict[tuple[str, str, int, str], Row]:
    return keyed(read("quality/advantages"), "reward", "estimator", "size", "prompt")


def values() -> dict[str, object]:
    rows = load()
    return {
        prompt: f"{rows['right or wrong', 'grpo', 16, prompt]['scale']:.1f}"
        for prompt in ("easy", "hardest")
    }
