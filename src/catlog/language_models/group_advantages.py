"""Advantages of sampled completions, by group: numbers in, numbers out."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

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
    rows, present, places = grouped(groups, len(rewards), rewards.device)

    def by_group(numbers: Tensor | None) -> Any:
        if numbers is None:
            return None
        is_row = present.view(*present.shape, *[1] * (numbers.dim() - 1))
        return torch.where(is_row, numbers[rows], torch.zeros_like(numbers[:1]))

    mine, token_mask, texts, known = map(by_group, (scores, is_alive, tokens, values))
    group = Group(mine, token_mask, texts, known, present, epsilon)
    remedy = "Give a failed completion a reward of its own, or leave its row out."
    finite = f"be finite, also the sums of their squares in {scores.dtype}"
    is_finite = group.scores.square().sum(-1).isfinite()
    check(is_finite, "rewards", finite, "they hold NaN, inf or too large numbers", remedy)
    if values is not None:
        check(~values.isinf(), "values", "be finite, or NaN where there is none", "they hold inf")
    pairs = f"have at least two rows each for {estimator!r}"
    remedy = "Sample more completions per prompt, or use estimator='reinforce'."
    is_pair = present.sum(-1) > (estimator != "reinforce")
    check(is_pair, "groups", pairs, "one has a single row", remedy)

    result: Tensor = getattr(group, estimator)().flatten(0, 1)[places]
    if is_alive is not None:
        per_position = result if result.dim() == 2 else result.unsqueeze(-1)
        result = torch.where(is_alive, per_position, 0.0)
    result = result.to(rewards.dtype)
    differences = f"have differences that {rewards.dtype} can hold"
    remedy = "Divide the rewards by a constant, or give them in a wider dtype."
    check(result.isfinite(), "rewards", differences, "some are too large", remedy)
    return result


class Group(NamedTuple):
    """The rows of all groups, padded to the largest group by rows of zeros; a method per estimator.

    Attributes:
        scores: the reward of every row.
        mask: where a token counts.
        tokens: of the completions.
        values: estimates of the expected score given the tokens *before* each position, NaN where
            there is none.
        present: where there is a row.
        epsilon: GRPO's.
    """

    scores: Float[Tensor, "groups size"]
    mask: Bool[Tensor, "groups size length"]
    tokens: Int64[Tensor, "groups size length"]
    values: Float[Tensor, "groups size length"]
    present: Bool[Tensor, "groups size"]
    epsilon: float

    def reinforce(self) -> Float[Tensor, "groups size"]:
        """Return the score itself."""
        return self.scores

    def from_first(self) -> Float[Tensor, "groups size"]:
        """Return the scores less that of the group's first row.

        So equal rewards have advantages of exactly 0, and large ones lose no digits.
        """
        return torch.where(self.present, self.scores - self.scores[:, :1], 0.0)

    def rloo(self) -> Float[Tensor, "groups size"]:
        """Return the score less the mean over the other rows of the group."""
        scores, count = self.from_first(), self.present.sum(-1, keepdim=True)
        return scores - (scores.sum(-1, keepdim=True) - scores) / (count - 1)

    def dr_grpo(self) -> Float[Tensor, "groups size"]:
        """Return the score less the mean over the group."""
        scores, count = self.from_first(), self.present.sum(-1, keepdim=True)
        return torch.where(self.present, scores - scores.sum(-1, keepdim=True) / count, 0.0)

    def grpo(self) -> Float[Tensor, "groups size"]:
        """Return the advantages of Dr. GRPO over the standard deviation plus ``epsilon``."""
        centred, count = self.dr_grpo(), self.present.sum(-1, keepdim=True)
        deviation = (centred.square().sum(-1, keepdim=True) / (count - 1)).sqrt()
        # Equal rewards have no deviation, and the advantage 0 even with epsilon=0.
        return torch.where(deviation > 0, centred / (deviation + self.epsilon), 0.0)

    def vineppo(self) -> Float[Tensor, "groups size length"]:
        """Return the next known value after each token minus the last known value before it.

        The value after the last known one is the score, and the value before the first one is the
        mean over the other rows.
        """
        length = self.values.shape[-1]
        is_known = self.mask & ~self.values.isnan()
        known = torch.where(is_known, self.values, 0.0).to(self.scores.dtype)
        position = torch.arange(length, device=known.device).expand_as(known)
        last = torch.where(is_known, position, -1).cummax(-1).values
        baseline = (self.scores - self.rloo()).unsqueeze(-1)
        before = torch.where(last >= 0, known.gather(-1, last.clamp(min=0)), baseline)
        first = torch.where(is_known, position, length).flip(-1).cummin(-1).values.flip(-1)
        beyond = torch.full_like(first[..., :1], length)
        following = torch.cat([first[..., 1:], beyond], -1)
        after = known.gather(-1, following.clamp(max=length - 1))
        return torch.where(following < length, after, self.scores.unsqueeze(-1)) - before

    def criticater(self) -> Float[Tensor, "groups size length"]:
        r"""Return for every row and token the score minus a prediction from the tokens before it.

        The prediction is a ridge regression with an intercept. Its kernel :math:`K_t(n, m)` counts
        the tokens before t in which rows n and m agree. It is fitted to the *other* rows of the
        group. Leaving row n out needs no second fit:

        .. math::
            \frac{(M_t r)_n}{(M_t)_{nn}}, \qquad M_t = A_t - \frac{A_t 1 1^\top A_t}{1^\top A_t 1},
            \qquad A_t = (K_t + 3 I)^{-1}

        Before the first token :math:`K_t = 0`, and this is RLOO.

        Cost: one factorisation of a matrix of the group's size per token.
        """
        # A row that is not present agrees with none and is not summed over.
        ones = self.present.to(torch.float64).unsqueeze(1).unsqueeze(-1)  # [groups, 1, size, 1]
        target = self.scores.to(torch.float64).unsqueeze(1).unsqueeze(-1) * ones
        identity = torch.eye(ones.shape[-2], dtype=torch.float64, device=ones.device)
        agreement = torch.zeros_like(identity).expand(len(ones), *identity.shape)
        residuals = []
        chunks = zip(self.tokens.split(CHUNK, -1), self.mask.split(CHUNK, -1), strict=True)
        for chunk, is_chosen in chunks:
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
            residuals.append(residual / torch.where(self.present.unsqueeze(1), scale, 1.0))
            agreement = agreement + is_equal.sum(1)
        return torch.cat(residuals, 1).transpose(1, 2).to(self.scores.dtype)


def require(
    is_right: bool, argument: str, claim: str, but: str, remedy: str = "", kind: Any = ValueError
) -> None:
    """Raise unless an argument is as claimed."""
    if not is_right:
        raise refusal(f"{OWNER}: `{argument}`", claim, but, remedy, kind)


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
    claim = "hold floats of shape [rows] or [rows, length], at least one"
    but = f"they are {rewards.dtype} of shape {tuple(rewards.shape)}"
    remedy = "Flatten prompts and completions to rows and pass `groups`, or use `float()`."
    is_matrix = rewards.dim() == 2
    is_right = rewards.dim() in (1, 2) and rewards.numel() > 0 and rewards.is_floating_point()
    require(is_right, "rewards", claim, but, remedy)
    if mask is None and is_matrix:
        mask = torch.ones_like(rewards, dtype=torch.bool)
    others = {"mask": mask, "tokens": tokens, "values": values}
    for owner, name in NEEDS.items():
        state = "missing" if others[name] is None else "given"
        claim = f"be given with estimator={owner!r}, and with no other"
        is_right = (state == "given") == (estimator == owner)
        require(is_right, name, claim, f"it is {state} with {estimator!r}")
    claim, remedy = f"be given with {estimator!r}", "Or use estimator='rloo'."
    require(mask is not None or estimator not in NEEDS, "mask", claim, "it is None", remedy)
    length = getattr(rewards if is_matrix else mask, "shape", ())[1:]
    remedy = "It has an entry for each token of the completions, without the prompt."
    for name, value in others.items():
        if value is not None:
            check_is_tensor(OWNER, name, value, "[rows, length]")
            check_device(f"{OWNER}: `{name}`", value, rewards.device, "`rewards`")
            is_right = value.dim() == 2 and value.shape == (len(rewards), *length)
            claim = f"have shape ({len(rewards)}, length), as all others"
            require(is_right, name, claim, f"it is {tuple(value.shape)}", remedy)
    return None if mask is None else mask.bool()


def grouped(
    groups: Any, count: int, device: torch.device
) -> tuple[Int64[Tensor, "groups size"], Bool[Tensor, "groups size"], Int64[Tensor, " count"]]:
    """Return the rows of every group, padded, where there are some, and the place of each row.

    ``groups`` is None (one group), a number of consecutive rows per group, or a label per row. A
    tensor of labels is copied to the CPU.

    >>> grouped(["b", "a", "b"], 3, torch.device("cpu"))[0]
    tensor([[0, 2],
            [1, 0]])
    """
    groups = count if groups is None else groups
    if isinstance(groups, int) and not isinstance(groups, bool):
        claim, remedy = f"divide the {count} rows of `rewards`", "Or pass a label per row."
        require(groups > 0 and count % groups == 0, "groups", claim, f"it is {groups}", remedy)
        order = torch.arange(count, device=device)
        rows = order.view(-1, groups)
        return rows, torch.ones_like(rows, dtype=torch.bool), order
    # Entries of a NumPy array or of a tensor become Python values, which are hashable.
    entries = groups.tolist() if hasattr(groups, "tolist") else groups
    is_right = hasattr(entries, "__len__") and not isinstance(entries, str)
    claim = "be None, a number of rows per group (an int), or one label per row"
    require(is_right, "groups", claim, f"{type(groups).__name__} was given", kind=TypeError)
    labels: list[Any] = [
        entry.tolist() if isinstance(entry, Tensor) else entry for entry in entries
    ]
    is_right = len(labels) == count and all(isinstance(label, Hashable) for label in labels)
    kinds = sorted({type(label).__name__ for label in labels})
    claim = f"hold one label for each of the {count} rows of `rewards`, in one dimension"
    require(is_right, "groups", claim, f"it holds {len(labels)} of {kinds}")
    members: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    rows = pad_sequence([torch.tensor(part) for part in members.values()], True, -1)
    present = rows >= 0
    places = present.flatten().nonzero().squeeze(1)[rows[present].argsort()]
    return rows.clamp(min=0).to(device), present.to(device), places.to(device)
