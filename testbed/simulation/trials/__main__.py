"""Run trials from the command line; the exit code is 5 when one failed."""

from __future__ import annotations

import argparse
import sys

from testbed.simulation.trials import MODES, TrialReport, run_trial
from topologies.errors import RunFailedError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.simulation.trials", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--mode", choices=sorted(MODES), default="barrier", help="how policies come into force")
    parser.add_argument("--trace", action="store_true", help="print every event")
    given = parser.parse_args()
    say = sys.stdout.write
    reports: list[TrialReport] = []
    for seed in range(given.first, given.first + given.count):
        report = run_trial(seed, (lambda text: say(text + "\n")) if given.trace else None, mode=given.mode)
        reports.append(report)
        if report.violation is not None:
            say(f"seed {seed} ({report.fault}, {report.planner}, {report.sites} sites) fails: {report.violation}\n")
            say(
                f"  replay: python -m testbed.simulation.trials --first {seed} --count 1 --mode {given.mode} "
                "--trace\n"
            )
    failed = sum(report.violation is not None for report in reports)
    say(
        f"{len(reports)} trials, {sum(r.collectives for r in reports)} collectives, "
        f"{sum(r.messages for r in reports)} messages, {sum(r.policies for r in reports)} policies; "
        f"{sum(r.lost for r in reports)} messages lost, "
        f"{sum(r.duplicates for r in reports)} duplicates dropped; "
        f"{sum(r.stopped for r in reports)} stopped by a fault, {failed} failed\n"
    )
    return RunFailedError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
