"""When links of a run had which rate, as its manifest and `changes.csv` say."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from testbed.experiments.manifest import CHANGES, Manifest


def read_changes(directory: Path, manifest: Manifest, problems: list[str]) -> list[dict[str, str]]:
    """The rows of the file in which both worlds write what became of links; a damaged one is a named problem."""
    known = {(link.src, link.dst) for link in manifest.links}
    rows = []
    try:
        with (directory / CHANGES).open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                try:
                    float(row["t_s"]), carries_bps(row["rate_bps"], row["state"])
                    readable = (row["src"], row["dst"]) in known or not known
                except (KeyError, TypeError, ValueError):  # of a runner that was killed, half a line may be there
                    readable = False
                if readable:
                    rows.append(row)
                else:
                    problems.append(f"{CHANGES}: line {number} cannot be read")
    except OSError:
        return []
    return rows


def carries_bps(rate_bps: float | str, state: str) -> float:
    """What a link carries at most: nothing while it is down or a black hole."""
    rate = float(rate_bps)
    return rate if state == "up" else 0.0


class LinkRates:
    """What every directed link of a run could carry when.

    Args:
        manifest: has the links as they were when the run began.
        changes: the rows of `changes.csv`, in order of time.
    """

    def __init__(self, manifest: Manifest, changes: Iterable[Mapping[str, str]]) -> None:
        self._rates = {
            (link.src, link.dst): [(float("-inf"), carries_bps(link.rate_bps, link.state))]
            for link in manifest.links
        }
        for row in changes:
            if steps := self._rates.get((row["src"], row["dst"])):
                steps.append((float(row["t_s"]), carries_bps(row["rate_bps"], row["state"])))

    def bits(self, src: str, dst: str, start_s: float, end_s: float) -> float | None:
        """The integral of a link's rate; None for a link that the manifest does not know."""
        steps = self._rates.get((src, dst))
        if steps is None:
            return None
        first = bisect_right(steps, (start_s, float("inf"))) - 1
        held = [(start_s, steps[first][1]), *(step for step in steps[first + 1 :] if step[0] < end_s)]
        return sum(rate * (until - at) for (at, rate), (until, _) in pairwise([*held, (end_s, 0.0)]))
