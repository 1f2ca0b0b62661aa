"""Links of a network that carry less than they should, in words."""

from __future__ import annotations

import math

from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted


def degraded_links(text: str) -> dict[str, float]:
    """What is left of which links, from "nic-out:3.*=0.5; leaf-up:0.1.7=0".

    Raises:
        UserInputError: a part that is not NAME=FACTOR with a factor from 0 to 1.
    """
    factors = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, factor = (word.strip() for word in part.partition("="))
        try:
            factors[name] = float(factor)
        except ValueError:
            factors[name] = math.nan
        if not name or not 0.0 <= factors[name] <= 1.0:
            raise UserInputError(
                f"expected NAME=FACTOR; ... with factors from 0 (cut) to 1, got {quoted(part)}"
            )
    return factors
