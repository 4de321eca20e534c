"""Language models of Hugging Face transformers as distributions of completions."""

from inspect import signature
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from ..core.categories import widened
from ..core.checks import check_count, check_flag, check_kind, refusal
from ..core.tracing import can_inspect
from ..distributions import Autoregressive
from ..distributions.network_checks import NOT_DETERMINISTIC, rounding
from ..distributions.prompted import Prompted, checked_prompts

Cache = tuple[tuple[Tensor, Tensor], ...]


class CausalLM(Autoregressive):
    r"""The completions of prompts by a causal language model of Hugging Face transformers.

    .. math:: q(x) = \prod_i p(x_i \mid \text{prompt}, x_1, \dots, x_{i-1})

    It is an :class:`~catlog.distributions.Autoregressive` distribution with one batch element per
    prompt, so it works with every estimator for structured distributions, and with ``compare``. A
    prompt is read once for all draws. Drawing uses the model's cache of keys and values, and
    gradients come from one pass over prompts and completions. A completion is over at its first
    ``eos_token_id``. The rest is filled with that token, is not scored and does not reach the
    model.

    Put the model in ``eval()`` mode, also for training. With dropout, draws and probabilities would
    belong to different models, and an error is raised.

    Cost: drawing n completions of T tokens takes T passes over single tokens. ``log_prob`` takes
    one pass over whole texts.
    Needs: transformers 4.56 or later (``pip install transformers``) for the cache alone.

    Args:
        model: a causal model, such as ``AutoModelForCausalLM.from_pretrained(...)``. It is called
            as ``model(input_ids, attention_mask=, position_ids=, past_key_values=, use_cache=)``,
            with ``logits_to_keep=`` if it has this argument.
        prompt_ids: int64 ``[*batch, length]``, padded on the left.
        attention_mask: ``[*batch, length]``, 0 or False where a prompt is padded; None: nowhere.
        max_new_tokens: the largest number of new tokens.
        eos_token_id: the token that ends a completion; None: all have ``max_new_tokens`` tokens.
        temperature: a positive number by which the logits are divided.
        use_cache: draw with the model's cache. Without it, a new token takes a pass over the whole
            text.

    >>> class Bigrams(torch.nn.Module):  # a model without a cache
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = torch.nn.Embedding(5, 5)
    ...         self.config = type("Config", (), {"vocab_size": 5})
    ...     def forward(self, input_ids, **arguments):
    ...         return type("Output", (), {"logits": self.table(input_ids)})
    >>> prompts = torch.tensor([[1, 2], [3, 4]])
    >>> q = CausalLM(Bigrams(), prompts, None, max_new_tokens=3, eos_token_id=0, use_cache=False)
    >>> q.batch_shape, q.sample((8,)).shape
    (torch.Size([2]), torch.Size([8, 2, 3]))
    """

    def __init__(
        self,
        model: nn.Module,
        prompt_ids: Int64[Tensor, "*batch length"],
        attention_mask: Tensor | None = None,
        max_new_tokens: int = 16,
        eos_token_id: int | None = None,
        *,
        temperature: float = 1.0,
        use_cache: bool = True,
        validate_args: bool | None = None,
    ) -> None:
        vocabulary = check_model(model)
        check_count("CausalLM", "max_new_tokens", max_new_tokens)
        check_flag("CausalLM", "use_cache", use_cache)
        if eos_token_id is not None:
            hint, most = "Pass one of the model's end tokens, or None.", vocabulary - 1
            check_count("CausalLM", "eos_token_id", eos_token_id, least=0, most=most, hint=hint)
        mask = checked_prompts(
            "CausalLM", "prompt_ids", prompt_ids, "attention_mask", attention_mask
        )
        if can_inspect(validate_args is not False, prompt_ids):  # a GPU says only that it fails
            lowest, highest = map(int, prompt_ids.aminmax())
            if lowest < 0 or highest >= vocabulary:
                claim = f"hold tokens of the model, from 0 to {vocabulary - 1}"
                but = f"they are from {lowest} to {highest}"
                raise refusal("CausalLM: `prompt_ids`", claim, but, "Padding has a token, too.")
        # A frozen table has buffers alone, and a model written as a formula has neither.
        weights = (*model.parameters(), *model.buffers())
        weight = next(iter(weights), torch.empty(0, device=prompt_ids.device))
        super().__init__(
            Completions(model, prompt_ids, mask, use_cache),
            [vocabulary] * max_new_tokens,
            end=eos_token_id,
            temperature=temperature,
            device=weight.device,
            dtype=torch.promote_types(weight.dtype, torch.float32),
            validate_args=validate_args,
        )
        self.incremental = use_cache

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        self.network.check_deterministic()
        return super().sample(sample_shape)


class Completions(Prompted):
    """The network of :class:`CausalLM`, whose model is called as those of transformers are.

    With ``use_cache`` it draws token by token, with the model's cache.
    """

    model: nn.Module

    def __init__(self, model: nn.Module, prompts: Tensor, mask: Tensor, use_cache: bool) -> None:
        super().__init__(model, prompts, mask)
        self.use_cache = use_cache

    def read(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None
    ) -> tuple[Tensor, Cache]:
        """Call the model with the prompts alone, with whole texts, or with new tokens and the cache
        before. Logits inside the prompt are not computed if the model can omit them."""
        length = self.prompts.shape[-1]
        use_cache = self.use_cache and (cache is not None or tokens.shape[1] == length)
        options: dict[str, Any] = {"attention_mask": mask.long(), "position_ids": positions}
        if "logits_to_keep" in signature(self.model.forward).parameters:
            options["logits_to_keep"] = max(1, tokens.shape[1] - length + 1)
        if use_cache and cache is not None:
            from transformers import DynamicCache  # type: ignore[import-not-found, unused-ignore]

            options["past_key_values"] = DynamicCache(cache)
        output = self.model(tokens, **options, use_cache=use_cache)
        return widened(output.logits), keys_and_values(output) if use_cache else ()

    @torch.no_grad()
    def check_deterministic(self) -> None:
        """Raise if a model in training mode says something else about the prompts each time."""
        if not self.model.training:
            return
        shape = (1, *self.batch_shape, 1)  # of a first token, which its logits do not depend on
        token = torch.zeros(shape, dtype=torch.int64, device=self.prompts.device)
        first, again = self.all_logits(token), self.all_logits(token)
        atol = rounding({first.dtype}, first.device) ** 0.5
        if not torch.allclose(first, again, rtol=0, atol=atol):
            but = "two calls with the same prompts differ"
            raise refusal("CausalLM: `model`", "be deterministic", but, NOT_DETERMINISTIC)


def keys_and_values(output: Any) -> Cache:
    """Return the keys and values ``[n, heads, T, width]`` of every layer, or raise an error."""
    layers: Any = getattr(getattr(output, "past_key_values", None), "layers", None) or ()
    pairs = tuple((getattr(x, "keys", None), getattr(x, "values", None)) for x in layers)
    is_plain = all(isinstance(x, Tensor) and x.dim() == 4 for pair in pairs for x in pair)
    if not (pairs and is_plain) or any(getattr(x, "is_sliding", False) for x in layers):
        claim = "return a cache of keys and values that grows by one token at a time"
        remedy = (
            "Recurrent, sliding and missing caches, and training with gradient checkpointing, are "
            "such cases: pass use_cache=False."
        )
        raise refusal("CausalLM: `model`", f"{claim} (a DynamicCache)", "it does not", remedy)
    return pairs  # type: ignore[return-value]


def check_model(model: object) -> int:
    """Return the size of the model's vocabulary, or raise unless it is a causal model."""
    subject, own = "CausalLM: `model`", "catlog.distributions.Autoregressive"
    remedy = "Load it by AutoModelForCausalLM."
    check_kind(subject, model, nn.Module, "be a causal model of transformers", remedy)
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        remedy = f"Use {own} with a network of your own."
        raise refusal(subject, "be a decoder alone", "it has an encoder", remedy)
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        remedy = f"For a network of your own use {own} with catlog.distributions.Prompted."
        raise refusal(subject, "have `config.vocab_size`", "it has none", remedy)
    return size
