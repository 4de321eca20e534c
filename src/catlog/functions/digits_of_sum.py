"""The digits of the sum of two numbers, compared with known ones."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ..core.checks import check_count
from ..core.tracing import full_precision
from .convolution import by_products
from .tables import OwnTable, Variables, check_batch, hold


class DigitsOfSum(OwnTable):
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

    target: Tensor

    def __init__(
        self, target: Integer[Tensor, "*batch m"], base: int = 10, one_hot: bool = False
    ) -> None:
        super().__init__()
        check_count("DigitsOfSum", "base", base, least=2)
        hold(self, target=(target, "[*batch, N + 1]"))
        if target.shape[-1] < 2 or target.is_floating_point():
            raise ValueError(
                "DigitsOfSum: `target` must hold the digits of sums as integers, [*batch, N + 1] "
                f"with N of at least 1, but {target.dtype} of shape {tuple(target.shape)} was "
                "given."
            )
        self.base = base
        self.one_hot = one_hot

    @property
    def touches(self) -> Bool[Tensor, "d m"]:
        """The variables at the place of each digit of the sum."""
        same = torch.eye(self._places, dtype=torch.bool, device=self.target.device)
        return torch.cat([same[:, :1], same], -1).repeat(2, 1)

    @property
    def _places(self) -> int:
        return self.target.shape[-1] - 1

    def _digits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the digits ``[..., 2 N]`` and their sums ``[..., N]``, least significant first."""
        index = x.argmax(-1) if self.one_hot else x.long()
        self._check_categories(index, self.base)
        if index.shape[-1] != 2 * self._places:
            raise ValueError(
                f"DigitsOfSum: sums of {self._places + 1} digits need points of 2 * {self._places} "
                f"digits, but {index.shape[-1]} were given."
            )
        check_batch(self, "target", self.target, 1, index.shape[:-1])
        return index, index.unflatten(-1, (2, self._places)).sum(-2).flip(-1)

    def _carries(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the carry into every place, and the last place at or below that stops a carry.

        A carry runs through the places whose sum is base - 1; -1: through all of them.
        """
        place = torch.arange(sums.shape[-1], device=sums.device)
        stop = torch.where(sums == self.base - 1, -1, place).cummax(-1).values
        is_carried = (sums >= self.base).gather(-1, stop.clamp(min=0)) & (stop >= 0)
        return pad(is_carried.long(), (1, 0)), stop

    def _right(self, sums: Tensor, carry: Tensor) -> Bool[Tensor, "*lead m"]:
        """Return whether the digits are right, least significant first, for these carries."""
        return (pad(sums, (0, 1)) + carry) % self.base == self.target.flip(-1)

    def forward(self, x: Tensor) -> Bool[Tensor, "n *batch_outputs"]:
        sums = self._digits(x)[1]
        return self._right(sums, self._carries(sums)[0]).flip(-1)

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        self._check_own("neighbours", DigitsOfSum)
        digits, sums = self._digits(x)
        carry, stop = self._carries(sums)
        if variables is None:
            variables = torch.arange(2 * self._places, device=x.device).expand(digits.shape)
        # A change of one place: another digit there, and perhaps another carry into the next one.
        changed = self._places - 1 - variables % self._places
        total = (sums + carry[..., :-1]).gather(-1, changed) - digits.gather(-1, variables)
        total = total.unsqueeze(-1) + torch.arange(self.base, device=x.device)  # [*lead, m, k]
        wanted = self.target.flip(-1).expand(carry.shape).gather(-1, changed)
        at_place = total % self.base == wanted.unsqueeze(-1)
        flips = (total >= self.base) != (carry.gather(-1, changed + 1).unsqueeze(-1) == 1)
        # A higher place sees the other carry if no place between them stops it.
        stop_below = pad(stop, (1, 0), value=-1).unsqueeze(-2)
        place, changed = torch.arange(self._places + 1, device=x.device), changed.unsqueeze(-1)
        reaches = (changed < place) & (stop_below <= changed)
        sees_other_carry = flips.unsqueeze(-1) & reaches.unsqueeze(-2)
        other_right = self._right(sums, 1 - carry)[..., None, None, :]
        right = self._right(sums, carry)[..., None, None, :]
        table = torch.where(sees_other_carry, other_right, right)
        table = torch.where((changed == place).unsqueeze(-2), at_place.unsqueeze(-1), table)
        return table.flip(-1)

    def expectation(self, q: Distribution) -> Float[Tensor, "*batch m"]:
        r"""Return the exact probability of every digit of the sum to be right, in O(N k^2).

        The carries are a Markov chain: place j carries if its two digits add up to at least k, or
        to k - 1 and a carry comes in.
        """
        self._check_own("expectation", DigitsOfSum)
        k = self.base
        probs = self._probs(q, 2 * self._places, k).unflatten(-2, (2, self._places))
        with full_precision(probs):
            total = by_products(*probs.flip(-2).unbind(-3))  # [*batch, N, 2 k - 1]
        carries_alone = total[..., k:].sum(-1)
        carries_on = total[..., k - 1]
        carry = [torch.zeros_like(carries_alone[..., 0])]
        for place in range(self._places):
            carry.append(carries_alone[..., place] + carries_on[..., place] * carry[-1])
        chance = torch.stack(carry, -1)  # that a carry comes into each place
        # The digit t without a carry comes from sums of t and t + k, and with one from one less.
        by_digit = pad(total, (0, 1)).unflatten(-1, (2, k)).sum(-2)
        # The last place has no digits, so that their sum is 0.
        no_digits = torch.eye(1, k, dtype=probs.dtype, device=probs.device)
        by_digit = torch.cat([by_digit, no_digits.expand(*chance.shape[:-1], 1, k)], -2)
        target = self.target.long().flip(-1)
        lead = torch.broadcast_shapes(chance.shape, target.shape)
        by_digit, wanted = by_digit.expand(*lead, k), target.expand(lead).unsqueeze(-1) % k
        without = by_digit.gather(-1, wanted).squeeze(-1)
        with_carry = by_digit.gather(-1, (wanted - 1) % k).squeeze(-1)
        right = without + (with_carry - without) * chance
        return torch.where((target >= 0) & (target < k), right, 0.0).flip(-1)
