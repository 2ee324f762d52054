"""What schedulers decided per transfer during a run, counted. `agents.sync.decisions` says what the log holds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiments.manifest import DECISIONS, Manifest


@dataclass(frozen=True)
class DecisionCounts:
    """Of one scheduler over all its segments: transfers by (phase, mode), most frequent first, and deliveries
    that were decided again because they did not come about in time.
    """

    scheduler: str
    transfers: tuple[tuple[str, str, int], ...]
    returned: int

    @property
    def total(self) -> int:
        return sum(count for _, _, count in self.transfers)

    def __str__(self) -> str:
        modes = ", ".join(f"{phase} {mode} {count / self.total:.0%}" for phase, mode, count in self.transfers)
        again = f"; {self.returned} decided again" if self.returned else ""
        return f"{self.scheduler} decided {self.total} transfers: {modes}{again} ({DECISIONS} says why each)"

    def to_json(self) -> dict[str, Any]:
        return {
            "scheduler": self.scheduler,
            "transfers": [
                {"phase": phase, "mode": mode, "count": count} for phase, mode, count in self.transfers
            ],
            "returned": self.returned,
        }


def count_decisions(directory: Path, manifest: Manifest) -> tuple[DecisionCounts, ...]:
    """The counts of a run directory, in the order of its schedulers; nothing where nothing was decided so.

    A last line that is cut (a run that was killed) is left out.
    """
    path = directory / DECISIONS
    if not path.exists():
        return ()
    with path.open(encoding="utf-8") as lines:
        return count_records(_records(lines), manifest)


def count_records(records: Iterable[Mapping[str, Any]], manifest: Manifest) -> tuple[DecisionCounts, ...]:
    """The same from records."""
    scheduler_of = {segment.label: segment.scheduler for segment in manifest.segments}
    transfers: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    returned: Counter[str] = Counter()
    for record in records:
        scheduler = scheduler_of.get(record["segment"], record["segment"])
        returned[scheduler] += record["event"] == "returned"
        decision = record["decision"]
        if decision is not None:
            transfers[scheduler][decision["phase"], decision["mode"]] += 1
    return tuple(
        DecisionCounts(
            scheduler,
            tuple((phase, mode, count) for (phase, mode), count in transfers[scheduler].most_common()),
            returned[scheduler],
        )
        for scheduler in dict.fromkeys(scheduler_of.values())
        if scheduler in transfers
    )


def _records(lines: Iterable[str]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return
