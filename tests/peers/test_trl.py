"""TRL 1.16.0: the trainer of docs/advantages.md, on a model made from a configuration.

TRL is in no extra of ours: ``pip install trl``.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import catlog
from catlog.language_models import advantages

trl = pytest.importorskip("trl", reason="trl is not installed: `pip install trl`")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

PAGE = Path(__file__).parents[2] / "docs" / "advantages.md"
PROMPTS = ["1 + 2 =", "3 + 3 ="]
GENERATIONS = 4


def snippet(word: str) -> str:
    """Return the block of code of the page that holds the word."""
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if word in block]
    return block


def tokenizer() -> Any:
    """Return a tokenizer of ten digits, two signs and the special tokens."""
    words = ["[PAD]", "[EOS]", "[UNK]", "+", "=", *map(str, range(10))]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]",
        padding_side="left",
    )  # fmt: skip


def reward(completions: list[str], **columns: Any) -> list[float]:
    """Return the number of threes."""
    return [float(text.count("3")) for text in completions]


@pytest.mark.parametrize("estimator", ["rloo", "criticater"])
def test_the_trainer_of_the_page_trains(estimator: str, tmp_path: Path) -> None:
    """Three steps, twice; each loss had catlog's advantages of the rewards, and the model moves."""
    code = snippet("GRPOTrainer")
    assert "criticater" in code
    if estimator == "rloo":
        code = code.replace("criticater", "rloo").replace('tokens=batch["completion_ids"],', "")
    torch.manual_seed(0)
    words = tokenizer()
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=32, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    before = [weight.detach().clone() for weight in model.parameters()]
    names: dict[str, Any] = {
        "catlog": catlog,
        "model": model,
        "reward": reward,
        "dataset": datasets.Dataset.from_dict({"prompt": PROMPTS * 4}),
        "tokenizer": words,
        "settings": {
            "output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [],
            "num_generations": GENERATIONS, "per_device_train_batch_size": 2 * GENERATIONS,
            "max_completion_length": 5, "max_steps": 3, "save_strategy": "no",
        },
    }  # fmt: skip
    exec(code, names)  # trains once
    trainer = names["trainer"]
    seen: list[dict[str, Tensor]] = []
    loss = trainer._compute_loss

    def compute_loss(model: Any, inputs: dict[str, Tensor]) -> Tensor:
        seen.append(inputs)
        return loss(model, inputs)

    trainer._compute_loss = compute_loss
    trainer.train()
    assert len(seen) == 3
    for inputs in seen:
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        texts = words.batch_decode(ids, skip_special_tokens=True)
        rewards = torch.tensor(reward(texts))
        groups = [tuple(prompt) for prompt in inputs["prompt_ids"].tolist()]  # in a new order
        extra = {"tokens": ids} if estimator == "criticater" else {}
        wanted = advantages(rewards, groups, mask, estimator=estimator, **extra)
        torch.testing.assert_close(inputs["advantages"], wanted, rtol=0, atol=1e-5)
    assert any(inputs["advantages"].abs().max() > 0.1 for inputs in seen)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
