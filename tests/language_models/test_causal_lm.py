"""`CausalLM`: against brute force on models with 4 tokens.

The models of transformers are made from small configurations, without a download.
"""

import pickle
import warnings
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import catlog
from catlog.language_models import CausalLM
from catlog.testing.cases import normals
from support.gradients import assert_same

TOKENS, LENGTH, END = 4, 3, 2
PROMPTS = torch.tensor([[0, 0, 1], [3, 1, 0]])
MASK = torch.tensor([[0, 0, 1], [1, 1, 1]])  # the first prompt has one token
TEXTS = torch.tensor(list(product(range(TOKENS), repeat=LENGTH)))
POINTS = TEXTS.unsqueeze(1).expand(-1, 2, -1)  # each for both prompts

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2},
    "LlamaForCausalLM": SIZES | HEADS | {"max_position_embeddings": 16},
    "MistralForCausalLM": SIZES | HEADS | {"sliding_window": 2},
    "MambaForCausalLM": SIZES | {"state_size": 4},
}


def made(name: str, **settings: float) -> Any:
    """Return a random model of transformers in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shared = {"vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": END} | settings
    kind = getattr(transformers, name)
    config = kind.config_class(**shared, **CONFIGURATIONS[name], initializer_range=1.0)
    return kind(config).double().eval()


@pytest.fixture(params=["GPT2LMHeadModel", "LlamaForCausalLM"])
def model(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


def brute_force(model: Any, prompt: Tensor, text: Tensor, end: int | None) -> Tensor:
    """Return the log-probability of a text, one token and one pass at a time, without padding."""
    total = torch.zeros((), dtype=torch.float64)
    for i, token in enumerate(text.tolist()):
        known = torch.cat([prompt, text[:i]]).unsqueeze(0)
        total = total + model(known, use_cache=False).logits[0, -1].log_softmax(-1)[token]
        if token == end:
            # All that follows is the end token, with probability 1.
            return total if (text[i:] == end).all() else total - torch.inf
    return total


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("end", [END, None])
def test_log_probabilities_are_those_of_brute_force(
    model: Any, end: int | None, use_cache: bool
) -> None:
    """With their gradients. Llama's normalisation is in float32, whatever the model's dtype."""
    q = CausalLM(model, PROMPTS, MASK, LENGTH, end, use_cache=use_cache)
    catlog.check(lambda x: (x == 1).double().sum(-1), q)
    prompts = [prompt[mask.bool()] for prompt, mask in zip(PROMPTS, MASK, strict=True)]
    known = [torch.stack([brute_force(model, prompt, x, end) for x in TEXTS]) for prompt in prompts]
    log_probs, wanted = q.log_prob(POINTS), torch.stack(known, -1)
    assert_close(log_probs, wanted, rtol=0, atol=1e-10)
    assert_close(log_probs.exp().sum(0), torch.ones(2).double(), rtol=0, atol=1e-10)
    error = 1e-10 if model.config.model_type == "gpt2" else 1e-6
    reward = (POINTS == 1).double().sum(-1)
    weight = next(model.parameters())
    assert_same(log_probs.exp() * reward, wanted.exp() * reward, weight, rtol=0, atol=error)


@pytest.mark.parametrize("use_cache", [True, False])
def test_logits_inside_prompts_are_not_computed(model: Any, use_cache: bool) -> None:
    q = CausalLM(model, PROMPTS, MASK, 8, None, use_cache=use_cache)
    q.check()
    counts: list[int] = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: counts.append(output.shape[1]))
    with torch.no_grad():
        x = q.sample((2,))
        assert counts == [1] * 8 if use_cache else max(counts) <= 8
        counts.clear()
        q.log_prob(x)
    assert counts[0] == 8


def test_draws_are_those_without_a_cache(model: Any) -> None:
    draws = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        q = CausalLM(model, PROMPTS, MASK, LENGTH, END, use_cache=use_cache)
        draws.append(q.sample((300,)))
    assert torch.equal(*draws)
    assert 0 < (q.lengths(draws[0]) < LENGTH).sum() < 600


def test_dropout_is_refused() -> None:
    q = CausalLM(made("GPT2LMHeadModel").train(), PROMPTS, MASK, LENGTH, END)
    with pytest.raises(ValueError, match=r"dropout|deterministic"):
        q.check()
    for use_cache in (True, False):
        q = CausalLM(q.network.model, PROMPTS, MASK, LENGTH, END, use_cache=use_cache)
        with pytest.raises(ValueError, match=r"CausalLM: `model` must be deterministic.*eval\(\)"):
            q.sample((3,))
    q.network.model.eval()
    q.sample((3,))
    no_dropout = made("GPT2LMHeadModel", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).train()
    CausalLM(no_dropout, PROMPTS, MASK, LENGTH, END).sample((3,))


class Bigrams(nn.Module):
    """A table in a parameter, in a buffer or as a formula. It needs no cache and no transformers.

    Attributes:
        table: logits of the next token, by token.
    """

    def __init__(self, kind: str = "parameter", dtype: Any = torch.float64, **config: Any) -> None:
        super().__init__()
        table = normals(TOKENS, TOKENS).to(dtype)
        if kind == "parameter":
            self.table = nn.Parameter(table)
        elif kind == "buffer":
            self.register_buffer("table", table)
        else:
            self.__dict__["table"] = table
        self.config = SimpleNamespace(**({"vocab_size": TOKENS} | config))

    def forward(self, input_ids: Tensor, **arguments: Any) -> Any:
        return SimpleNamespace(logits=self.table[input_ids])


@pytest.mark.parametrize(
    ("kind", "dtype", "real"),
    [
        ("parameter", torch.float64, torch.float64),
        ("buffer", torch.float64, torch.float64),
        ("buffer", torch.bfloat16, torch.float32),
        ("formula", torch.float32, torch.float32),
    ],
)
def test_a_model_without_a_cache(kind: str, dtype: torch.dtype, real: torch.dtype) -> None:
    model = Bigrams(kind, dtype)
    with pytest.raises(ValueError, match=r"`model` must return a cache.*use_cache=False"):
        CausalLM(model, PROMPTS, MASK, LENGTH, END).sample()
    q = CausalLM(model, PROMPTS, MASK, LENGTH, END, use_cache=False)
    q.check()
    assert (q.device, q.real) == (PROMPTS.device, real)
    log_probs = q.log_prob(POINTS)
    assert torch.equal(pickle.loads(pickle.dumps(q)).log_prob(POINTS), log_probs)
    wide = Bigrams(kind, torch.float64)
    wide.table.data = model.table.data.double()
    known = torch.stack([brute_force(wide, PROMPTS[0, 2:], text, END) for text in TEXTS])
    assert_close(log_probs[:, 0].double(), known, rtol=0, atol=8 * torch.finfo(real).eps)
    value = catlog.SCateR(2)(lambda x: x.sum(-1).to(real), q)
    assert value.shape == (2,)
    assert value.requires_grad == (kind == "parameter")


@pytest.mark.parametrize("name", ["MistralForCausalLM", "MambaForCausalLM"])
def test_caches_that_do_not_grow_by_a_token(name: str) -> None:
    """Sliding and recurrent ones are refused; without the cache the model is a distribution."""
    model = made(name)
    prompts = torch.tensor([[3, 1, 0], [0, 1, 1]])  # without padding
    with pytest.raises(ValueError, match=r"`model` must return a cache of keys.*use_cache=False"):
        CausalLM(model, prompts, None, LENGTH, END).sample()
    q = CausalLM(model, prompts, None, LENGTH, END, use_cache=False)
    with torch.no_grad():
        total = q.log_prob(POINTS).exp().sum(0)
    assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)
    assert q.sample((5,)).shape == (5, 2, LENGTH)
