"""Advantages of sampled completions, by group: numbers in, numbers out."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.checks import check_choice, check_device, check_is_tensor, check_number, refusal
from ..core.tracing import can_inspect
from ..estimators.ridge import inverse_factor

OWNER = "advantages"
Name = Literal["reinforce", "rloo", "criticater", "vineppo", "dr_grpo", "grpo"]
NEEDS = {"criticater": "tokens", "vineppo": "values"}  # the argument that an estimator needs
RIDGE = 3.0  # CritiCateR's
CHUNK = 64  # tokens at once: 64 kernel matrices per group
Labels = Tensor | Sequence[Hashable] | Iterable[Hashable]
Scores = Float[Tensor, "groups size"]
Present = Bool[Tensor, "groups size"]


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
    check_choice(OWNER, "estimator", estimator, get_args(Name))
    check_number(OWNER, "epsilon", epsilon, least=0)

    def check(is_right: Tensor, *message: str) -> None:
        require(not can_inspect(validate, is_right) or bool(is_right.all()), *message)

    is_alive = checked_mask(estimator, rewards, mask, tokens, values)
    scores = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    if rewards.dim() == 2 and is_alive is not None:
        scores = torch.where(is_alive, scores, 0.0).sum(-1)
    remedy = "Give a failed completion a reward of its own, or leave its row out."
    finite, but = "be finite, also in sum over a row", "they hold NaN or inf"
    check(scores.isfinite(), "rewards", finite, but, remedy)
    if values is not None:
        check(~values.isinf(), "values", "be finite, or NaN where there is none", "they hold inf")
    members = grouped(groups, len(rewards), rewards.device)
    pairs = f"have at least two rows each for {estimator!r}"
    remedy = "Sample more completions per prompt, or use estimator='reinforce'."
    is_pair = members.present.sum(-1) > (estimator != "reinforce")
    check(is_pair, "groups", pairs, "one has a single row", remedy)

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
    differences = f"have differences that {rewards.dtype} can hold"
    remedy = "Divide the rewards by a constant, or give them in a wider dtype."
    check(result.isfinite(), "rewards", differences, "some are too large", remedy)
    return result


def require(
    is_right: bool, argument: str, claim: str, but: str, remedy: str = "", kind: Any = ValueError
) -> None:
    """Raise unless an argument is as claimed."""
    if not is_right:
        raise refusal(f"{OWNER}: `{argument}`", claim, but, remedy, kind)


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


def checked_mask(
    estimator: str,
    rewards: Tensor,
    mask: Tensor | None,
    tokens: Tensor | None,
    values: Tensor | None,
) -> Bool[Tensor, "rows length"] | None:
    """Return which tokens count, or raise unless the arguments fit together and the estimator.

    Without a mask all tokens count. Their number is unknown (None) if rewards are given per row.
    """
    check_is_tensor(OWNER, "rewards", rewards, "[rows] or [rows, length]")
    is_matrix = rewards.dim() == 2
    claim = "have shape [rows] or [rows, length] with at least one entry"
    remedy = "Flatten prompts and completions to rows, and pass `groups`."
    is_right = rewards.dim() in (1, 2) and rewards.numel() > 0
    require(is_right, "rewards", claim, f"it is {tuple(rewards.shape)}", remedy)
    if mask is None and is_matrix:
        mask = torch.ones_like(rewards, dtype=torch.bool)
    arguments = {"rewards": rewards, "mask": mask, "tokens": tokens, "values": values}
    for owner, name in NEEDS.items():
        state = "missing" if arguments[name] is None else "given"
        claim = f"be given with estimator={owner!r}, and with no other"
        is_right = (state == "given") == (estimator == owner)
        require(is_right, name, claim, f"it is {state} with {estimator!r}")
    claim, remedy = f"be given with {estimator!r}", "Or use estimator='rloo'."
    require(mask is not None or estimator not in NEEDS, "mask", claim, "it is None", remedy)
    length = getattr(rewards if is_matrix else mask, "shape", ())[1:]
    remedy = "It has an entry for each token of the completions, without the prompt."
    for name, value in arguments.items():
        if value is None:
            continue
        check_is_tensor(OWNER, name, value, "[rows, length]")
        check_device(f"{OWNER}: `{name}`", value, rewards.device, "`rewards`")
        kind = "integers" if name == "tokens" else "floats"
        is_right = name == "mask" or value.is_floating_point() == (kind == "floats")
        change = "Use its method `float()` or `long()`."
        require(is_right, name, f"hold {kind}", f"it holds {value.dtype}", change, TypeError)
        is_same = value.dim() == 2 and value.shape == (len(rewards), *length)
        claim = f"have shape ({len(rewards)}, length), as all others"
        require(value is rewards or is_same, name, claim, f"it is {tuple(value.shape)}", remedy)
    return None if mask is None else mask.bool()


@dataclass(frozen=True)
class Groups:
    """The rows of every group, padded to the largest group.

    Attributes:
        rows: the numbers of the rows; 0 where a group has fewer rows than the largest one.
        present: where ``rows`` holds a row.
        places: where each row stands in ``rows``, flattened.
    """

    rows: Int64[Tensor, "groups size"]
    present: Present
    places: Int64[Tensor, " count"]

    def gather(self, values: Tensor) -> Tensor:
        """Return values per row, ``[rows, *rest]``, by group, ``[groups, size, *rest]``."""
        present = self.present.view(*self.present.shape, *[1] * (values.dim() - 1))
        return torch.where(present, values[self.rows], torch.zeros_like(values[:1]))

    def scatter(self, values: Tensor) -> Tensor:
        """Return values by group, ``[groups, size, *rest]``, per row, ``[rows, *rest]``."""
        return values.flatten(0, 1)[self.places]


def grouped(groups: object, count: int, device: torch.device) -> Groups:
    """Return the groups of ``count`` rows.

    ``groups`` is None (one group), a number of consecutive rows per group, or a label per row. A
    tensor of labels is copied to the CPU.

    >>> grouped(["b", "a", "b"], 3, torch.device("cpu")).rows
    tensor([[0, 2],
            [1, 0]])
    """
    if groups is None:
        groups = count
    if isinstance(groups, int) and not isinstance(groups, bool):
        claim, remedy = f"divide the {count} rows of `rewards`", "Or pass a label per row."
        require(groups > 0 and count % groups == 0, "groups", claim, f"it is {groups}", remedy)
        order = torch.arange(count, device=device)
        rows = order.view(-1, groups)
        return Groups(rows, torch.ones_like(rows, dtype=torch.bool), order)
    members: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels(groups, count)):
        members.setdefault(label, []).append(row)
    rows = pad_sequence([torch.tensor(part) for part in members.values()], True, -1)
    present = rows >= 0
    places = present.flatten().nonzero().squeeze(1)[rows[present].argsort()]
    return Groups(rows.clamp(min=0).to(device), present.to(device), places.to(device))


def labels(groups: Any, count: int) -> list[Hashable]:
    """Return one hashable label per row, or raise an error."""
    is_meta = getattr(groups, "is_meta", False)
    # Entries of a NumPy array or of a tensor become Python values, which are hashable.
    entries = groups.tolist() if hasattr(groups, "tolist") and not is_meta else groups
    is_right = hasattr(entries, "__len__") and not isinstance(entries, str) and not is_meta
    claim = "be None, a number of rows per group (an int), or one label per row (not on meta)"
    require(is_right, "groups", claim, f"{type(groups).__name__} was given", kind=TypeError)
    entries = [entry.tolist() if isinstance(entry, Tensor) else entry for entry in entries]
    is_right = len(entries) == count and all(isinstance(entry, Hashable) for entry in entries)
    kinds = sorted({type(entry).__name__ for entry in entries})
    claim = f"hold one label for each of the {count} rows of `rewards`, in one dimension"
    require(is_right, "groups", claim, f"it holds {len(entries)} of {kinds}")
    return entries


def left_out_residuals(
    scores: Scores,
    present: Present,
    tokens: Int64[Tensor, "groups size length"],
    mask: Bool[Tensor, "groups size length"],
) -> Float[Tensor, "groups size length"]:
    r"""Return for every row and token the score minus a prediction from the tokens before it.

    The prediction is a ridge regression with an intercept. Its kernel :math:`K_t(n, m)` counts the
    tokens before t in which rows n and m agree. It is fitted to the *other* rows of the group.
    Leaving row n out needs no second fit:

    .. math::
        \frac{(M_t r)_n}{(M_t)_{nn}}, \qquad M_t = A_t - \frac{A_t 1 1^\top A_t}{1^\top A_t 1},
        \qquad A_t = (K_t + 3 I)^{-1}

    Before the first token :math:`K_t = 0`, and this is RLOO.

    Cost: one factorisation of a matrix of the group's size per token.
    """
    # A row that is not present agrees with none and is not summed over.
    ones = present.to(torch.float64).unsqueeze(1).unsqueeze(-1)  # [groups, 1, size, 1]
    target = scores.to(torch.float64).unsqueeze(1).unsqueeze(-1) * ones
    identity = torch.eye(scores.shape[-1], dtype=torch.float64, device=scores.device)
    agreement = torch.zeros_like(identity).expand(scores.shape[0], *identity.shape)
    residuals = []
    for chunk, is_chosen in zip(tokens.split(CHUNK, -1), mask.split(CHUNK, -1), strict=True):
        chunk, is_chosen = chunk.transpose(1, 2), is_chosen.transpose(1, 2)
        is_equal = chunk.unsqueeze(-1) == chunk.unsqueeze(-2)
        is_equal = is_equal & is_chosen.unsqueeze(-1) & is_chosen.unsqueeze(-2)
        counts = is_equal.to(torch.float64).cumsum(1)  # [groups, chunk, size, size]
        before = torch.cat([torch.zeros_like(counts[:, :1]), counts[:, :-1]], 1)
        factor = inverse_factor(before + agreement.unsqueeze(1) + RIDGE * identity)
        inverse = factor.mT @ factor
        weights = inverse @ ones
        total = (ones * weights).sum((-1, -2), keepdim=True)
        centred = inverse - weights @ weights.mT / total
        residual = (centred @ target).squeeze(-1)
        scale = centred.diagonal(dim1=-2, dim2=-1)
        residuals.append(residual / torch.where(present.unsqueeze(1), scale, 1.0))
        agreement = agreement + is_equal.sum(1)
    return torch.cat(residuals, 1).transpose(1, 2).to(scores.dtype)


def changes_of_value(
    scores: Float[Tensor, " rows"],
    baseline: Float[Tensor, " rows"],
    values: Float[Tensor, "rows length"],
    mask: Bool[Tensor, "rows length"],
) -> Float[Tensor, "rows length"]:
    """Return the next known value after each token minus the last known value before it.

    ``values`` holds estimates of the expected score given the tokens *before* each position, NaN
    where there is none. The value after the last known one is the score, and the value before the
    first one is the baseline.
    """
    length = values.shape[-1]
    is_known = mask & ~values.isnan()
    known = torch.where(is_known, values, 0.0)
    position = torch.arange(length, device=values.device).expand_as(values)
    last = torch.where(is_known, position, -1).cummax(-1).values
    before = known.gather(-1, last.clamp(min=0))
    before = torch.where(last >= 0, before, baseline.unsqueeze(-1))
    first = torch.where(is_known, position, length).flip(-1).cummin(-1).values.flip(-1)
    beyond = torch.full_like(first[:, :1], length)
    following = torch.cat([first[:, 1:], beyond], -1)
    after = known.gather(-1, following.clamp(max=length - 1))
    return torch.where(following < length, after, scores.unsqueeze(-1)) - before
