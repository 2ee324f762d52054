"""Which of the things that sites report when a job goes wrong is its cause. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A consequence is often reported before its cause; wait this long for a more telling report.
PATIENCE_SECONDS: Final = 0.5

MAX_CAUSES: Final = 3


@dataclass(frozen=True)
class Fault:
    """What one site reported: the cause as it sees it, how telling that is, which sites it waits for."""

    site: int
    cause: str
    telling: int
    waits_for: frozenset[int] = frozenset()


def root_faults(faults: Sequence[Fault]) -> list[Fault]:
    """The faults that no other one explains: a site that waits for one that waits for a third is a

    consequence.
    """
    waits: dict[int, set[int]] = {}
    for fault in faults:
        waits.setdefault(fault.site, set()).update(fault.waits_for)
    roots = [f for f in faults if not any(waits.get(other, set()) - {f.site} for other in f.waits_for)]
    return roots or list(faults)


def cause_of(faults: Sequence[Fault]) -> str:
    """Why the job stops: the most telling of the reported causes."""
    best = min(fault.telling for fault in faults)
    causes = list(dict.fromkeys(fault.cause for fault in root_faults(faults) if fault.telling == best))
    more = f"; and {len(causes) - MAX_CAUSES} more" if len(causes) > MAX_CAUSES else ""
    return "; ".join(causes[:MAX_CAUSES]) + more
