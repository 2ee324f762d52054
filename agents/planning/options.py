"""Reading scheduler options: what is not of the declared kind is a UsageError that names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from topologies.errors import UsageError
from topologies.model import nearest


def whole_number(scheduler: str, option: str, value: Any, *, least: int) -> int:
    """An int of at least `least` (True is no number)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            f"scheduler {scheduler}: {option} cannot be {value!r}", hint=f"a whole number from {least} on"
        )
    return value


def number(scheduler: str, option: str, value: Any, *, least: float, most: float = math.inf) -> float:
    """A finite int or float between `least` and `most`."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (math.isfinite(value) and least <= value <= most):
        upto = f" to {most:g}" if math.isfinite(most) else " on"
        raise UsageError(
            f"scheduler {scheduler}: {option} cannot be {value!r}", hint=f"a number from {least:g}{upto}"
        )
    return float(value)


def word(scheduler: str, option: str, value: Any, words: Sequence[str]) -> str:
    """One of `words`."""
    if value not in words:
        raise UsageError(f"scheduler {scheduler} has no {option} {value!r}", hint=nearest(str(value), words))
    return str(value)


def flag(scheduler: str, option: str, value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"scheduler {scheduler}: {option} cannot be {value!r}", hint="true or false")
    return value
