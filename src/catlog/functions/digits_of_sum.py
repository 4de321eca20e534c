"""The digits of the sum of two numbers, compared with known ones."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.distributions import Distribution

from ..core.checks import check_count, check_is_tensor
from ..core.tracing import full_precision
from .convolution import by_products
from .tables import (
    Variables,
    check_batch,
    check_categories,
    check_own,
    padded_probs,
    register_tensors,
)


class DigitsOfSum(nn.Module):
    r"""Whether each digit of a sum of two numbers is right: N + 1 outputs.

    .. math:: f_j(x) = \bigl[\text{digit } j \text{ of } (x_1 \dots x_N) + (x_{N+1} \dots x_{2N})
        \text{ is } t_j\bigr]

    Use it with ``outputs=1``. All numbers have their most significant digit first. A changed digit
    affects the digit of the sum at the same place and, if it changes the carry, the digits before
    it as far as the carry runs. So the table needs no further sums.

    ``touches`` names the two digits at the place of each digit of the sum. For the first digit of
    the sum, which is the last carry, these are the first digits of both numbers. See
    :class:`catlog.IndeCateR`.

    Table: O(N k) operations for the changes and the carries, O(N^2 k) to write them down, per draw.
    Mean under independent digits: O(N k^2) in all, by a sum over the carries.

    Args:
        target: the digits t of the sums, ``[*batch, N + 1]`` (or ``[N + 1]`` for all batch
            elements). Their batch must broadcast to that of q.
        base: the number of categories k of every digit, at least 2.
        one_hot: x is one-hot.

    >>> f = DigitsOfSum(torch.tensor([0, 9, 1]))  # 58 + 33 = 91
    >>> f(torch.tensor([[5, 8, 3, 3], [5, 8, 3, 0]]))
    tensor([[ True,  True,  True],
            [ True, False, False]])
    """

    def __init__(
        self, target: Int64[Tensor, "*batch m"], base: int = 10, one_hot: bool = False
    ) -> None:
        super().__init__()
        check_count("DigitsOfSum", "base", base, least=2)
        check_is_tensor("DigitsOfSum", "target", target, "[*batch, N + 1]")
        if target.dim() < 1 or target.shape[-1] < 2 or target.is_floating_point():
            raise ValueError(
                "DigitsOfSum: `target` must hold the digits of sums as integers, [*batch, N + 1] "
                f"with N of at least 1, but {target.dtype} of shape {tuple(target.shape)} was "
                "given."
            )
        self.base = base
        self.one_hot = one_hot
        self.target: Tensor
        register_tensors(self, target=target)

    @property
    def touches(self) -> Bool[Tensor, "d m"]:
        """The variables at the place of each digit of the sum."""
        places = self.target.shape[-1] - 1
        same = torch.eye(places, dtype=torch.bool, device=self.target.device)
        return torch.cat([same[:, :1], same], -1).repeat(2, 1)

    def _pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return digits ``[..., 2, N]`` and their sums ``[..., N]``, least significant first."""
        index = x.argmax(-1) if self.one_hot else x.long()
        check_categories(self, index, self.base)
        places = self.target.shape[-1] - 1
        if index.shape[-1] != 2 * places:
            raise ValueError(
                f"DigitsOfSum: sums of {places + 1} digits need points of 2 * {places} digits, but "
                f"{index.shape[-1]} were given."
            )
        check_batch(self, "target", self.target, 1, index.shape[:-1])
        digits = index.unflatten(-1, (2, places)).flip(-1)
        return digits, digits.sum(-2)

    def _carries(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the carry into every place, and the last place at or below that stops a carry.

        A carry runs through the places whose sum is base - 1; -1: through all of them.
        """
        place = torch.arange(sums.shape[-1], device=sums.device)
        stop = torch.where(sums == self.base - 1, -1, place).cummax(-1).values
        is_carried = (sums >= self.base).gather(-1, stop.clamp(min=0)) & (stop >= 0)
        return nn.functional.pad(is_carried.long(), (1, 0)), stop

    def _right(self, sums: Tensor, carry: Tensor) -> Bool[Tensor, "*lead m"]:
        """Return whether the digits are right, least significant first, for these carries."""
        return (nn.functional.pad(sums, (0, 1)) + carry) % self.base == self.target.flip(-1)

    def forward(self, x: Tensor) -> Bool[Tensor, "n *batch_outputs"]:
        _, sums = self._pairs(x)
        carry, _ = self._carries(sums)
        return self._right(sums, carry).flip(-1)

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        check_own("neighbours", self, DigitsOfSum)
        digits, sums = self._pairs(x)
        carry, stop = self._carries(sums)
        right = self._right(sums, carry)
        # A change of place j: another digit there, and perhaps another carry into place j + 1.
        category = torch.arange(self.base, device=x.device)
        total = (sums + carry[..., :-1]).unsqueeze(-2) - digits
        total = total.unsqueeze(-1) + category  # [*lead, 2, N, k]
        at_place = total % self.base == self.target.flip(-1)[..., None, :-1, None]
        flips = (total >= self.base) != (carry[..., None, 1:, None] == 1)
        # Place o > j sees the other carry if no place between them stops it.
        place = torch.arange(sums.shape[-1] + 1, device=x.device)
        changed = place[:-1, None]
        stop_below = nn.functional.pad(stop, (1, 0), value=-1).unsqueeze(-2)
        reaches = (changed < place) & (stop_below <= changed)
        is_here = (changed == place).expand(reaches.shape)

        # By variable: the places of both numbers, most significant first.
        tables = [
            at_place.flip(-2).flatten(-3, -2),
            flips.flip(-2).flatten(-3, -2),
            torch.cat([reaches.flip(-2)] * 2, -2),
            torch.cat([is_here.flip(-2)] * 2, -2),
        ]
        if variables is not None:
            rows = variables.unsqueeze(-1)
            tables = [t.gather(-2, rows.expand(*variables.shape, t.shape[-1])) for t in tables]
        at_place, flips, reaches, is_here = tables
        sees_other_carry = flips.unsqueeze(-1) & reaches.unsqueeze(-2)
        other_right = self._right(sums, 1 - carry)[..., None, None, :]
        table = torch.where(sees_other_carry, other_right, right[..., None, None, :])
        table = torch.where(is_here.unsqueeze(-2), at_place.unsqueeze(-1), table)
        return table.flip(-1)

    def expectation(self, q: Distribution) -> Float[Tensor, "*batch m"]:
        r"""Return the exact probability of every digit of the sum to be right, in O(N k^2).

        The carries are a Markov chain: place j carries if its two digits add up to at least k, or
        to k - 1 and a carry comes in.
        """
        check_own("expectation", self, DigitsOfSum)
        places, k = self.target.shape[-1] - 1, self.base
        probs = padded_probs(self, q, 2 * places, k).unflatten(-2, (2, places))
        first, second = probs.flip(-2).unbind(-3)
        with full_precision(probs):
            total = by_products(first, second)  # [*batch, N, 2 k - 1], least significant first
        carries_alone = total[..., k:].sum(-1)
        carries_on = total[..., k - 1]
        carry = [torch.zeros_like(carries_alone[..., 0])]
        for place in range(places):
            carry.append(carries_alone[..., place] + carries_on[..., place] * carry[-1])
        chance = torch.stack(carry, -1)  # that a carry comes into each place
        # The digit t without a carry comes from sums of t and t + k, and with one from one less.
        by_digit = total[..., :k] + nn.functional.pad(total[..., k:], (0, 1))
        # The last place has no digits, so that their sum is 0.
        no_digits = nn.functional.pad(torch.ones_like(by_digit[..., :1, :1]), (0, k - 1))
        by_digit = torch.cat([by_digit, no_digits], -2)
        target = self.target.long().flip(-1)
        lead = torch.broadcast_shapes(by_digit.shape[:-1], target.shape)
        by_digit = by_digit.expand(*lead, k)
        wanted = target.expand(lead).unsqueeze(-1) % k
        without = by_digit.gather(-1, wanted).squeeze(-1)
        with_carry = by_digit.gather(-1, (wanted - 1) % k).squeeze(-1)
        right = without + (with_carry - without) * chance
        return torch.where((target >= 0) & (target < k), right, 0.0).flip(-1)
