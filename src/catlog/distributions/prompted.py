"""Completions of prompts of different lengths by a causal language model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.utils._pytree import tree_map

from ..core.checks import check_is_tensor, check_tensor, refusal
from ..core.tracing import can_inspect

State = tuple[Float[Tensor, "*lead k"], Any, Bool[Tensor, "*lead _"]]


class Prompted:
    r"""The network of :class:`catlog.distributions.Autoregressive` that completes prompts.

    .. math:: q(x) = \prod_i p(x_i \mid \text{prompt}, x_1, \dots, x_{i-1})

    Prompts of different lengths are padded on the left, so that all of them end in the same column.
    A prompt is read once for all draws; then ``step`` reads one token at a time and keeps a cache
    of keys and values, or any other state. Gradients come from one pass over prompts and
    completions. Padding has no influence if the model respects ``mask`` and ``positions``, and
    ``q.check()`` finds out whether cached steps and the pass over whole texts agree.

    Args:
        model: called as ``model(tokens, positions, mask, cache)``, it returns ``logits [n, t, k]``
            of the tokens that come next, and the new cache. (Those after the last token of a prompt
            and after later ones are enough.) ``tokens [n, t]`` are new tokens,
            ``positions [n, t]`` their numbers, counted from the first real token of each text, and
            ``mask [n, T]`` says which of the T tokens, old and new, are real. A token may look at
            real ones up to itself. ``cache`` is None at first, then what the model returned:
            (tuples of) tensors whose first dimension is n, of which rows are copied and dropped.
        prompts: tokens ``[*batch, p]`` with at least one column; ``*batch`` is the batch shape of
            q. Where nothing comes before the text, give a token that begins it.
        mask: ``[*batch, p]``, False (or 0) where a prompt is padded; None: nowhere.

    >>> def model(tokens, positions, mask, cache):  # likes a token that it has just seen
    ...     return 2.0 * torch.nn.functional.one_hot(tokens, 3), torch.zeros(len(tokens), 0)
    >>> from catlog.distributions import Autoregressive
    >>> prompts, mask = left_padded([[1], [1, 2]])
    >>> q = Autoregressive(Prompted(model, prompts, mask), [3] * 4, end=0)
    >>> q.batch_shape, q.sample((5,)).shape
    (torch.Size([2]), torch.Size([5, 2, 4]))
    """

    context_in_state = True

    def __init__(
        self,
        model: Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, Any]],
        prompts: Int64[Tensor, "*batch p"],
        mask: Tensor | None = None,
    ) -> None:
        self.mask = checked_prompts("Prompted", "prompts", prompts, "mask", mask)
        self.model = model
        self.prompts = prompts
        self.batch_shape = prompts.shape[:-1]

    def read(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Any:
        """Call the model."""
        return self.model(tokens, positions, mask, cache)

    def check(self, eps: float) -> None:
        """Raise if the padding of the shortest prompt matters; ``eps`` is the rounding error."""
        mask = self.mask.reshape(-1, self.mask.shape[-1])
        shortest = int(mask.sum(-1).argmin())
        row, tokens = mask[shortest : shortest + 1], self.prompts.reshape(mask.shape)[shortest]
        if bool(row.all()):
            return
        real = tokens[row[0]].unsqueeze(0)
        alone = self.read(real, _positions(row[:, row[0]]), row[:, row[0]], None)[0][:, -1]
        padding = (real[0, 0] + 1) % alone.shape[-1]  # not the first token
        tokens = torch.where(row, tokens, padding)
        padded = self.read(tokens, _positions(row), row, None)[0][:, -1]
        difference = (padded.log_softmax(-1) - alone.log_softmax(-1)).abs().max()
        if difference > eps ** (1 / 2) * max(1.0, float(alone.log_softmax(-1).abs().max())):
            raise ValueError(
                f"Prompted: what the model says after prompt {shortest} depends on its padding: "
                f"with {mask.shape[-1] - real.shape[-1]} columns of padding, log-probabilities "
                f"differ by {float(difference):.2g} from those without. Use `mask` in attention (a "
                "recurrent state must pass padding unchanged) and `positions` for positions."
            )

    def start(self, lead: torch.Size) -> State:
        mask = self.mask.reshape(-1, self.mask.shape[-1])
        tokens = self.prompts.reshape(mask.shape)
        logits, cache = self.read(tokens, _positions(mask), mask, None)

        def for_all_rows(tensor: Tensor) -> Tensor:
            rest = tensor.shape[1:]
            return tensor.reshape(self.batch_shape + rest).expand(lead + rest)

        state: State = tree_map(for_all_rows, (logits[:, -1], cache, mask))
        return state

    def step(
        self, state: State, i: int, previous: Int64[Tensor, "*lead"] | None
    ) -> tuple[Float[Tensor, "*lead k"], State]:
        if previous is None:  # the prompt has been read
            return state[0], state
        lead = previous.shape
        cache, mask = tree_map(lambda tensor: tensor.flatten(0, len(lead) - 1), state[1:])
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], -1)
        logits, cache = self.read(previous.reshape(-1, 1), _positions(mask)[:, -1:], mask, cache)
        state = tree_map(lambda tensor: tensor.unflatten(0, lead), (logits[:, -1], cache, mask))
        return state[0], state

    def all_logits(self, x: Int64[Tensor, "*lead t"]) -> Float[Tensor, "*lead t k"]:
        lead, p = x.shape[:-1], self.prompts.shape[-1]
        tokens = torch.cat([self.prompts.expand(*lead, p), x[..., :-1]], -1).flatten(0, -2)
        mask = self.mask.expand(*lead, p).flatten(0, -2)
        mask = torch.cat([mask, torch.ones_like(tokens[:, p:], dtype=torch.bool)], -1)
        logits, _ = self.read(tokens, _positions(mask), mask, None)
        return logits[:, -x.shape[-1] :].unflatten(0, lead)


def checked_prompts(
    owner: str, name: str, prompts: Tensor, mask_name: str, mask: Tensor | None
) -> Bool[Tensor, "*batch p"]:
    """Return the mask as bools, or raise unless the prompts are tokens, padded on the left."""
    check_is_tensor(owner, name, prompts, "[*batch, p] of tokens")
    if prompts.dim() == 0 or prompts.shape[-1] == 0 or prompts.dtype != torch.int64:
        raise ValueError(
            f"{owner}: `{name}` must be int64 tokens [*batch, p] with p >= 1, but {prompts.dtype} "
            f"of shape {tuple(prompts.shape)} was given. Begin an empty prompt with a token of its "
            "own, such as the model's first one (bos)."
        )
    if mask is None:
        return torch.ones_like(prompts, dtype=torch.bool)
    subject, shape = f"{owner}: `{mask_name}`", tuple(prompts.shape)
    mask = check_tensor(subject, mask, shape, f"that of `{name}`").bool()
    is_late = mask[..., :-1] & ~mask[..., 1:]
    if can_inspect(True, mask) and not bool(mask[..., -1].all() & ~is_late.any()):
        raise ValueError(
            f"{owner}: `{name}` must be padded on the left: `{mask_name}` may be False before the "
            "first token of a prompt only, and the last column must be True. Set the tokeniser's "
            "padding_side = 'left', or use catlog.distributions.left_padded."
        )
    return mask


def left_padded(
    prompts: Sequence[Sequence[int] | Tensor], pad: int = 0
) -> tuple[Int64[Tensor, "n p"], Bool[Tensor, "n p"]]:
    """Return prompts of different lengths as one tensor, padded on the left, and its mask.

    >>> left_padded([[5], [6, 7]])
    (tensor([[0, 5],
            [6, 7]]), tensor([[False,  True],
            [ True,  True]]))
    """
    rows = [torch.as_tensor(prompt, dtype=torch.int64) for prompt in prompts]
    if not rows or any(row.dim() != 1 or len(row) == 0 for row in rows):
        shapes = [tuple(row.shape) for row in rows]
        claim = "be a non-empty list of non-empty lists of tokens"
        raise refusal("left_padded: `prompts`", claim, f"their shapes are {shapes}")
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), pad, device=rows[0].device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(rows):
        tokens[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = True
    return tokens, mask


def _positions(mask: Bool[Tensor, "n t"]) -> Int64[Tensor, "n t"]:
    """Return the number of every token, counted from the first real one; 0 for padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
