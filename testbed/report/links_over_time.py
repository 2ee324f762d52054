"""When links of a run had which rate: the clock of its files, and what `changes.csv` says."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from testbed.experiments.manifest import CHANGES, Manifest
from testbed.report.measurements import LinkSample


def beginning(manifest: Manifest, links: Sequence[LinkSample]) -> int:
    """The moment of the run's clock, in ns, from which the times of `links.csv` and `changes.csv` count.

    Where a segment begins, a sample ends: so the first sample of a segment says when that was on both
    clocks.
    """
    first: dict[str, float] = {}
    for sample in links:
        first.setdefault(sample.segment, sample.t_s - sample.interval_s)
    for segment in manifest.segments:
        if segment.started_ns is not None and segment.label in first:
            return round(segment.started_ns - first[segment.label] * 1e9)
    started = [segment.started_ns for segment in manifest.segments if segment.started_ns is not None]
    return min(started, default=0)


def read_changes(directory: Path) -> list[dict[str, str]]:
    """The rows of the file in which both worlds write what became of links."""
    try:
        with (directory / CHANGES).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []
