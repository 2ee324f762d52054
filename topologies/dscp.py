"""How a packet says which path it wants and how urgent it is.

TOS = path << 5 | class << 2, so the DSCP field (TOS >> 2) is path << 3 | class. Path 0 is the primary;
class 7 goes first. A path number means something only together with the packet's source and destination.
"""

from __future__ import annotations

from typing import Final

from topologies.errors import UsageError

MAX_PATHS: Final = 8
CLASSES: Final = 8


def encode(path: int, cls: int) -> int:
    """The TOS byte (for IP_TOS) of a path number and a class, both 0 to 7."""
    if not 0 <= path < MAX_PATHS:
        raise UsageError(f"there is no path number {path}", hint=f"paths are 0 to {MAX_PATHS - 1}")
    if not 0 <= cls < CLASSES:
        raise UsageError(f"there is no class {cls}", hint=f"classes are 0 to {CLASSES - 1}")
    return path << 5 | cls << 2


def decode(tos: int) -> tuple[int, int]:
    """(path, class) of a TOS byte; the two ECN bits are ignored."""
    if not 0 <= tos <= 255:
        raise UsageError(f"{tos} is not a TOS byte", hint="it is 0 to 255")
    return tos >> 5, tos >> 2 & 7
