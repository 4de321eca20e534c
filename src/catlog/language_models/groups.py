"""Rows of a batch in groups: the completions of one prompt are one group."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.checks import check_count

Labels = Tensor | Sequence[Hashable] | Iterable[Hashable]
Scores = Float[Tensor, "groups size"]
Present = Bool[Tensor, "groups size"]


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
        check_count("advantages", "groups", groups, most=max(1, count))
        if count % groups:
            raise ValueError(
                f"advantages: `groups` must divide the {count} rows of `rewards` where it is the "
                f"number of rows per group, but {groups} was given. Pass a label per row for "
                "groups of different sizes."
            )
        order = torch.arange(count, device=device)
        rows = order.view(-1, groups)
        return Groups(rows, torch.ones_like(rows, dtype=torch.bool), order)
    members: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels(groups, count)):
        members.setdefault(label, []).append(row)
    sizes = torch.tensor([len(rows) for rows in members.values()])
    present = torch.arange(int(sizes.max())) < sizes.unsqueeze(-1)
    rows = pad_sequence([torch.tensor(rows) for rows in members.values()], batch_first=True)
    places = present.flatten().nonzero().squeeze(1)[rows[present].argsort()]
    return Groups(rows.to(device), present.to(device), places.to(device))


def labels(groups: object, count: int) -> list[Hashable]:
    """Return one hashable label per row, or raise an error."""
    expected = "None, a number of rows per group, or one label per row (a tensor or a sequence)"
    is_scalar = getattr(groups, "shape", None) == ()
    if isinstance(groups, (bool, str)) or not hasattr(groups, "__len__") or is_scalar:
        hint = " Pass int(groups)." if is_scalar else ""
        raise TypeError(
            f"advantages: `groups` must be {expected}, but {type(groups).__name__} was given.{hint}"
        )
    if isinstance(groups, Tensor) and groups.is_meta:
        raise TypeError(
            "advantages: `groups` must hold labels, but a tensor on meta was given, which has no "
            "numbers. Pass the number of rows per group, or a list."
        )
    # Entries of a NumPy array or of a tensor become Python values, which are hashable.
    entries = groups.tolist() if hasattr(groups, "tolist") else list(groups)  # type: ignore[call-overload]
    entries = [entry.tolist() if isinstance(entry, Tensor) else entry for entry in entries]
    if len(entries) != count:
        raise ValueError(
            f"advantages: `groups` must hold one label for each of the {count} rows of `rewards`, "
            f"but it holds {len(entries)}. Repeat every prompt's label for each of its completions."
        )
    if not all(isinstance(entry, Hashable) for entry in entries):
        raise TypeError(
            "advantages: `groups` must hold one label per row, but it has more than one dimension."
            " Flatten it to the rows of `rewards`."
        )
    return entries
