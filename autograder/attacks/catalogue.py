"""All attacks."""

from __future__ import annotations

from autograder.attacks import (
    borrowing,
    cheating,
    detouring,
    disguising,
    ending,
    evading,
    forging,
    harming,
    hoarding,
    leaking,
    lingering,
    prying,
    whispering,
)
from autograder.attacks.attack import Attack

FAMILIES = (
    borrowing,
    cheating,
    detouring,
    disguising,
    ending,
    evading,
    forging,
    prying,
    leaking,
    harming,
    hoarding,
    lingering,
    whispering,
)
ATTACKS: list[Attack] = [attack for family in FAMILIES for attack in family.ATTACKS]
