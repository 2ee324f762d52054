"""The study of searches: measured stage completion times beside simulated ones, for docs/coflows.md.

    testbed run searches-study
    testbed run searches-study --world simulated
    python benchmarks/searches.py EMULATED SIMULATED [--write docs/coflows.md]

A run may be given in pieces: several directories, joined by commas, each with some of the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tables import table, write_table

from testbed.experiments.manifest import read_manifest
from testbed.report.searches import read_searches
from testbed.report.stats import Summary, summarise

Turns = dict[str, dict[int, float]]
"""Mean SCT in seconds by policy and seed."""


def read_turns(paths: Sequence[Path]) -> Turns:
    turns: Turns = {}
    for path in paths:
        manifest = read_manifest(path)
        stages = read_searches(path, []).stages
        for segment in manifest.segments:
            times = [row.sct_s for row in stages if row.segment == segment.label]
            if segment.status == "completed" and times:
                seed = manifest.seeds[segment.label]
                turns.setdefault(segment.scheduler, {})[seed] = statistics.fmean(times)
    return turns


def with_interval(values: Sequence[float], digits: int = 2) -> str:
    found: Summary | None = summarise(list(values))
    if found is None:
        return "-"
    half = "" if found.interval is None else f" ± {(found.interval[1] - found.interval[0]) / 2:.{digits}f}"
    return f"{found.mean:.{digits}f}{half}"


def paired(one: dict[int, float], other: dict[int, float]) -> list[float]:
    return [one[seed] / other[seed] for seed in sorted(one) if seed in other]


def compare(measured: Turns, simulated: Turns) -> str:
    rows = []
    for policy, turns in measured.items():
        predicted = simulated.get(policy, {})
        rows.append(
            [
                f"`{policy}`",
                str(len(turns)),
                with_interval(list(turns.values())),
                with_interval(paired(turns, measured["beamer"])),
                with_interval(list(predicted.values())),
                with_interval(paired(predicted, simulated["beamer"])),
                with_interval(paired(turns, predicted)),
            ]
        )
    columns = ["Policy", "seeds", "mean SCT s", "to Beamer's", "simulated", "to Beamer's", "measured / simulated"]
    return table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measured", help="run directories of the emulated world, joined by commas")
    parser.add_argument("simulated", help="the same of the simulated world")
    parser.add_argument("--write", type=Path, help="the document that has a place for the table")
    arguments = parser.parse_args()
    measured, simulated = (
        read_turns([Path(path) for path in given.split(",")])
        for given in (arguments.measured, arguments.simulated)
    )
    text = compare(measured, simulated)
    sys.stdout.write(text)
    if arguments.write is not None:
        write_table(arguments.write, "searches", text)


if __name__ == "__main__":
    main()
