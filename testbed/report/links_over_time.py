"""When links of a run had which rate, as its manifest and `changes.csv` say."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from testbed.experiments.manifest import CHANGES, Manifest


def read_changes(directory: Path) -> list[dict[str, str]]:
    """The rows of the file in which both worlds write what became of links."""
    try:
        with (directory / CHANGES).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


class LinkRates:
    """What every directed link of a run could carry when.

    Args:
        manifest: has the links as they were when the run began.
        changes: the rows of `changes.csv`, in order of time.
    """

    def __init__(self, manifest: Manifest, changes: Iterable[Mapping[str, str]]) -> None:
        self._rates = {
            (link.src, link.dst): [(float("-inf"), float(link.rate_bps) if link.state == "up" else 0.0)]
            for link in manifest.links
        }
        for row in changes:
            rate = float(row["rate_bps"]) if row["state"] == "up" else 0.0
            self._rates[row["src"], row["dst"]].append((float(row["t_s"]), rate))

    def bits(self, src: str, dst: str, start_s: float, end_s: float) -> float | None:
        """The integral of a link's rate; None for a link that the manifest does not know."""
        steps = self._rates.get((src, dst))
        if steps is None:
            return None
        first = bisect_right(steps, (start_s, float("inf"))) - 1
        held = [(start_s, steps[first][1]), *(step for step in steps[first + 1 :] if step[0] < end_s)]
        return sum(rate * (until - at) for (at, rate), (until, _) in pairwise([*held, (end_s, 0.0)]))
