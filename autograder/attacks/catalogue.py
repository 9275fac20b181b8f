"""All attacks."""

from __future__ import annotations

from autograder.attacks import cheating, harming, prying, whispering
from autograder.attacks.attack import Attack

ATTACKS: list[Attack] = [*cheating.ATTACKS, *prying.ATTACKS, *harming.ATTACKS, *whispering.ATTACKS]
