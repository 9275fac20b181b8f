"""What adds up: a total and the parts it is made of."""

from __future__ import annotations


class Parts:
    """Base of a dataclass whose fields are amounts of one unit."""

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, float]:
        """Part -> amount, in the order of the fields."""
        return dict(vars(self))
