"""The time of a step with other numbers of draws."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """The time of a step as an affine function of the number of draws, through two points.

    Attributes:
        few: The number of draws of the first point.
        few_seconds: Its time.
        many: The number of draws of the second point.
        many_seconds: Its time.
        least_per_draw: What a further draw takes at least, however the two times are disturbed.
    """

    few: int
    few_seconds: float
    many: int
    many_seconds: float
    least_per_draw: float = 0.0

    def at(self, samples: int) -> float:
        """Return the seconds; fewer draws take at least half of their share."""
        difference = self.many_seconds - self.few_seconds
        per_draw = max(self.least_per_draw, difference / max(1, self.many - self.few))
        least = self.few_seconds * min(1.0, samples / self.few / 2)
        return max(least, self.few_seconds + (samples - self.few) * per_draw)
