"""The study of searches: measured stage completion times beside simulated ones, for docs/coflows.md.

    testbed run searches-study
    testbed run searches-study --world simulated
    python benchmarks/searches.py EMULATED SIMULATED [--write docs/coflows.md]

With --turns every turn by itself, with the time that the workers' own computing took there: where others use the
machine it is longer than on an idle one, and so is everything else.

A run may be given in pieces: several directories, joined by commas, each with some of the repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tables import table, write_table

from testbed.experiments.manifest import TRACE, read_manifest
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


def computing_ms(paths: Sequence[Path]) -> dict[tuple[str, int], float]:
    """The mean time of a worker's own gradient, by policy and seed; from the workers' traces."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in paths:
        manifest = read_manifest(path)
        turns = {segment.label: (segment.scheduler, manifest.seeds[segment.label]) for segment in manifest.segments}
        for trace in path.glob(f"workers/*/*/{TRACE}"):
            for line in trace.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                turn = turns[record["segment"].split("/")[0]]
                found.setdefault(turn, []).append(record["computed_ns"] / 1e6)
    return {turn: statistics.fmean(times) for turn, times in found.items()}


def turn_by_turn(measured: Turns, simulated: Turns, computing: dict[tuple[str, int], float]) -> str:
    rows = [
        (computing[policy, seed], f"`{policy}`", str(seed), time, time / simulated[policy][seed])
        for policy, turns in measured.items()
        for seed, time in turns.items()
    ]
    columns = ["Own computing ms", "Policy", "seed", "mean SCT s", "measured / simulated"]
    cells = [[f"{own:.0f}", name, seed, f"{sct:.2f}", f"{ratio:.2f}"] for own, name, seed, sct, ratio in sorted(rows)]
    return table(columns, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measured", help="run directories of the emulated world, joined by commas")
    parser.add_argument("simulated", help="the same of the simulated world")
    parser.add_argument("--turns", action="store_true", help="every turn by itself")
    parser.add_argument("--write", type=Path, help="the document that has a place for the table")
    arguments = parser.parse_args()
    runs, predictions = (
        [Path(path) for path in given.split(",")] for given in (arguments.measured, arguments.simulated)
    )
    measured, simulated = read_turns(runs), read_turns(predictions)
    each = arguments.turns
    text = turn_by_turn(measured, simulated, computing_ms(runs)) if each else compare(measured, simulated)
    sys.stdout.write(text)
    if arguments.write is not None:
        write_table(arguments.write, "searches-turns" if each else "searches-testbed", text)


if __name__ == "__main__":
    main()
