"""Advantages of sampled completions, by group: numbers in, numbers out."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from ..core.checks import check_choice, check_flag, check_number, same_device
from ..core.tracing import can_inspect
from .groups import Groups, Labels, Present, Scores, grouped
from .prefix_critic import left_out_residuals
from .resampled_suffixes import changes_of_value

Name = Literal["reinforce", "rloo", "criticater", "vineppo", "dr_grpo", "grpo"]
NAMES = get_args(Name)


@torch.no_grad()
def advantages(
    rewards: Tensor,
    groups: int | Labels | None = None,
    mask: Tensor | None = None,
    *,
    estimator: Name = "rloo",
    tokens: Tensor | None = None,
    values: Tensor | None = None,
    epsilon: float = 1e-4,
    validate: bool = True,
) -> Tensor:
    r"""Return the advantages of sampled sequences, per row or per token, for a policy gradient.

    A training loop multiplies them by scores, adds over the tokens and averages over the rows:

    .. math::
        \frac1N \sum_n \sum_t A_{n,t}\, \partial \log q(x^{(n)}_t \mid x^{(n)}_{<t})

    The rows of a group are independent completions of one prompt, and r is a row's total reward.
    Unbiased:

    - ``"reinforce"``: :math:`r_n`. The only one for groups of one row.
    - ``"rloo"``: :math:`r_n` minus the mean of the group's other rows.
    - ``"criticater"``: :math:`r_n` minus a prediction from the ``tokens`` before t, by CritiCateR's
      critic: a ridge regression, fitted to the group's other rows, on the tokens in which two rows
      agree. It is RLOO at the first token, and in groups of two rows.
    - ``"vineppo"``: the change of value that a token made, where ``values`` holds mean rewards of
      completions sampled again from the row's prefixes (SCateR on chosen positions). Between two of
      these positions all tokens share one change. Before the first one the value is the mean of the
      group's other rows, after the last one it is the row's reward.

    Biased, as published:

    - ``"dr_grpo"``: :math:`r_n` minus the mean of the whole group. The expectation is the gradient
      times 1 - 1/size.
    - ``"grpo"``: the same, divided by the group's standard deviation plus ``epsilon``. This is
      another objective: prompts on which the rewards differ less count more, and rewards with more
      than two values are weighed differently even within a prompt (``docs/advantages.md``).

    Cost: no evaluation of the reward. ``"criticater"`` factorises a matrix of the group's size per
    token. Needs: numbers only; nothing is differentiated.
    Reference: Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!", 2019; Ahmadian et
    al., "Back to basics", 2024 (RLOO); Kazemnejad et al., "VinePPO", 2024; Shao et al.,
    "DeepSeekMath", 2024 (GRPO); Liu et al., "Understanding R1-Zero-like training", 2025 (Dr. GRPO).

    Args:
        rewards: floats ``[rows]``, or ``[rows, length]``: rewards of tokens are added up per row.
        groups: the number of consecutive rows per group (as TRL orders them), or a label per row:
            a tensor, a list or a NumPy array (verl's ``index``). None: one group.
        mask: ``[rows, length]``, true at the tokens that the policy chose, the end token included.
            With it the result is ``[rows, length]``, with 0 elsewhere.
        estimator: one of the names above.
        tokens: integers ``[rows, length]``, for ``"criticater"``.
        values: floats ``[rows, length]``, for ``"vineppo"``: at position t an estimate of the
            expected reward given the tokens before t, NaN where there is none. It must come from
            new completions, and whether position t has one must not depend on the row's tokens from
            t on.
        epsilon: the number that ``"grpo"`` adds to the standard deviation. TRL adds 1e-4, verl
            1e-6.
        validate: check rewards for NaN and inf, values for inf, and groups for single rows
            (eager mode only).

    >>> advantages(torch.tensor([1.0, 0.0, 0.0, 2.0, 4.0, 0.0]), groups=3)
    tensor([ 1.0000, -0.5000, -0.5000,  0.0000,  3.0000, -3.0000])
    >>> lengths = torch.tensor([[True, True, True], [True, False, False]])
    >>> advantages(torch.tensor([1.0, 0.0]), mask=lengths)
    tensor([[ 1.,  1.,  1.],
            [-1.,  0.,  0.]])
    """
    check_choice("advantages", "estimator", estimator, NAMES)
    check_number("advantages", "epsilon", epsilon, least=0)
    check_flag("advantages", "validate", validate)
    for name, value in {
        "rewards": rewards,
        "mask": mask,
        "tokens": tokens,
        "values": values,
    }.items():
        if isinstance(value, Tensor) and value.layout != torch.strided:
            raise TypeError(
                f"advantages: `{name}` must be dense, but {value.layout} was given. Use "
                f"{name}.to_dense()."
            )
    check_rewards(rewards)
    is_alive = checked_mask(mask, rewards)
    check_extras(estimator, tokens, values, is_alive)
    members = grouped(groups, len(rewards), rewards.device)
    scores = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    if rewards.dim() == 2 and is_alive is not None:
        scores = torch.where(is_alive, scores, 0.0).sum(-1)
    if can_inspect(validate, scores) and not bool(scores.isfinite().all()):
        raise ValueError(
            "advantages: `rewards` must be finite, also in sum over a row, but they hold NaN or "
            "inf. Give a failed completion a reward of its own, or leave its row out."
        )
    if values is not None and can_inspect(validate, values) and bool(values.isinf().any()):
        raise ValueError(
            "advantages: `values` must be finite, or NaN at positions that have none, but they "
            "hold inf."
        )
    if estimator != "reinforce":
        check_sizes(members, estimator, validate)

    by_group = members.gather(scores)
    unit = power_of_two(by_group.abs().amax(-1, keepdim=True))
    by_group = by_group / unit
    if tokens is not None and is_alive is not None:  # criticater
        texts = members.gather(tokens), members.gather(is_alive)
        residuals = left_out_residuals(by_group, members.present, *texts)
        result = members.scatter(residuals * unit.unsqueeze(-1))
    elif values is not None and is_alive is not None:  # vineppo
        baseline = members.scatter(mean_of_others(by_group, members.present) * unit)
        result = changes_of_value(scores, baseline, values.to(scores.dtype), is_alive)
    elif estimator == "grpo":
        result = members.scatter(standardised(by_group, members.present, epsilon / unit))
    else:
        result = members.scatter(per_row(by_group, members.present, estimator) * unit)
    if is_alive is not None:
        per_position = result if result.dim() == 2 else result.unsqueeze(-1)
        result = torch.where(is_alive, per_position, 0.0)
    result = result.to(rewards.dtype)
    if can_inspect(validate, result) and not bool(result.isfinite().all()):
        raise ValueError(
            f"advantages: `rewards` must have differences that {rewards.dtype} can hold, but some "
            "are too large. Divide the rewards by a constant, or give them in a wider dtype."
        )
    return result


def power_of_two(numbers: Tensor) -> Tensor:
    """Return a power of two near every number.

    Dividing by it is exact, and then sums and squares do not overflow.
    """
    return torch.ldexp(torch.ones_like(numbers), torch.frexp(numbers).exponent - 1)


def per_row(scores: Scores, present: Present, estimator: str) -> Scores:
    """Return one advantage per row."""
    if estimator == "reinforce":
        return scores
    # Differences from the first row: equal rewards are exactly 0, and large ones lose no digits.
    scores = torch.where(present, scores - scores[:, :1], 0.0)
    if estimator == "rloo":
        return scores - mean_of_others(scores, present)
    count = present.sum(-1, keepdim=True)
    return torch.where(present, scores - scores.sum(-1, keepdim=True) / count, 0.0)


def standardised(scores: Scores, present: Present, epsilon: Tensor) -> Scores:
    """Return GRPO's advantages: those of Dr. GRPO over the standard deviation plus ``epsilon``."""
    centred = per_row(scores, present, "dr_grpo")
    count = present.sum(-1, keepdim=True)
    deviation = (centred.square().sum(-1, keepdim=True) / (count - 1)).sqrt()
    # Equal rewards have no deviation, and the advantage 0 even with epsilon=0.
    return torch.where(deviation > 0, centred / (deviation + epsilon), 0.0)


def mean_of_others(scores: Scores, present: Present) -> Scores:
    """Return for every row the mean over the other rows of its group."""
    count = present.sum(-1, keepdim=True)
    return (scores.sum(-1, keepdim=True) - scores) / (count - 1)


def check_rewards(rewards: object) -> None:
    """Raise unless ``rewards`` holds floats per row or per token."""
    if not isinstance(rewards, Tensor):
        raise TypeError(
            "advantages: `rewards` must be a tensor of floats [rows] or [rows, length], but "
            f"{type(rewards).__name__} was given. Use torch.tensor(rewards)."
        )
    if not rewards.is_floating_point():
        raise TypeError(
            f"advantages: `rewards` must hold floats, but {rewards.dtype} was given. Use "
            "rewards.float()."
        )
    if rewards.dim() not in (1, 2) or rewards.numel() == 0:
        raise ValueError(
            "advantages: `rewards` must have shape [rows] or [rows, length] with at least one "
            f"entry, but {tuple(rewards.shape)} was given. Flatten prompts and completions to rows "
            "and pass `groups`, the number of completions per prompt."
        )


def checked_mask(mask: object, rewards: Tensor) -> Bool[Tensor, "rows length"] | None:
    """Return the mask as booleans, or raise unless its shape fits to the rewards.

    Without a mask all tokens count. Their number is unknown (None) if rewards are given per row.
    """
    shape = tuple(rewards.shape) if rewards.dim() == 2 else None
    if mask is None:
        return None if shape is None else torch.ones_like(rewards, dtype=torch.bool)
    if not isinstance(mask, Tensor):
        raise TypeError(
            "advantages: `mask` must be a tensor [rows, length] or None, but "
            f"{type(mask).__name__} was given."
        )
    is_wrong = mask.dim() != 2 or len(mask) != len(rewards)
    if is_wrong or (shape is not None and tuple(mask.shape) != shape):
        expected = f"({len(rewards)}, length)" if shape is None else f"{shape}"
        raise ValueError(
            f"advantages: `mask` must have shape {expected} to fit `rewards`, but "
            f"{tuple(mask.shape)} was given. It marks the tokens of the completions, without the "
            "prompt."
        )
    if not same_device(mask.device, rewards.device):
        raise ValueError(
            f"advantages: `mask` must be on {rewards.device}, where `rewards` is, but it is on "
            f"{mask.device}."
        )
    return mask.bool()


def check_extras(estimator: str, tokens: object, values: object, mask: Tensor | None) -> None:
    """Raise unless ``tokens`` and ``values`` are what the estimator needs."""
    for owner, name, extra, example in (
        ("criticater", "tokens", tokens, "tokens=completion_ids"),
        ("vineppo", "values", values, "values=prefix_values"),
    ):
        if estimator == owner:
            check_per_token(extra, name, estimator, mask, example)
        elif extra is not None:
            raise ValueError(
                f"advantages: `{name}` is for estimator={owner!r}, but {estimator!r} was chosen. "
                f"Leave `{name}` out, or pass estimator={owner!r}."
            )
    if isinstance(tokens, Tensor) and (tokens.is_floating_point() or tokens.is_complex()):
        raise TypeError(
            f"advantages: `tokens` must hold integers, but {tokens.dtype} was given. Pass the ids "
            "of the tokens."
        )
    if isinstance(values, Tensor) and not values.is_floating_point():
        raise TypeError(
            f"advantages: `values` must hold floats, but {values.dtype} was given. Use "
            "values.float(), with NaN at positions that have none."
        )


def check_per_token(
    value: object, name: str, estimator: str, mask: Tensor | None, example: str
) -> None:
    """Raise unless numbers per token are given in the shape of the mask."""
    if mask is None:
        raise ValueError(
            f"advantages: `mask` must be given for estimator={estimator!r}, which has an advantage "
            "per token. Pass mask=completion_mask, or use estimator='rloo'."
        )
    shape = tuple(mask.shape)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"advantages: `{name}` must be a tensor of shape {shape} for estimator={estimator!r}, "
            f"but {type(value).__name__} was given. Pass {example}, or use estimator='rloo'."
        )
    if tuple(value.shape) != shape:
        raise ValueError(
            f"advantages: `{name}` must have the shape of `mask`, {shape}, but "
            f"{tuple(value.shape)} was given."
        )
    if not same_device(value.device, mask.device):
        raise ValueError(
            f"advantages: `{name}` must be on {mask.device}, where `rewards` is, but it is on "
            f"{value.device}."
        )


def check_sizes(members: Groups, estimator: str, validate: bool) -> None:
    """Raise if a group has a single row."""
    is_single = members.present.shape[-1] < 2
    if not is_single and can_inspect(validate, members.present):
        is_single = bool((members.present.sum(-1) < 2).any())
    if is_single:
        raise ValueError(
            f"advantages: `groups` must have at least two rows each for estimator={estimator!r}, "
            "but one has a single row, which no others can be compared with. Sample more "
            "completions per prompt, or use estimator='reinforce'."
        )
