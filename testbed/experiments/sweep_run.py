"""Running a sweep: point after point, each an ordinary run; what is done stays done.

    DIRECTORY/sweep.json    the sweep, and of each point its state, its run and its figures
    DIRECTORY/results.csv   one row a point and scheduler
    DIRECTORY/sweep.html    the figure, and the same as a table
    DIRECTORY/runs/         the runs themselves
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from testbed.experiments.run import run_experiment, same_network, testbed_for
from testbed.experiments.spec import LoadedExperiment
from testbed.experiments.sweep import LoadedSweep, Point, estimate
from testbed.report.bounds import bounds_of
from testbed.report.json_form import result_to_json
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from topologies.errors import InvalidFileError, StormbedError, UsageError

STATE: Final = "sweep.json"
RUNS: Final = "runs"
SCHEMA: Final = 1

Say = Callable[[str], None]
Row = dict[str, Any]


class SweepDirectory:
    """A sweep's directory. What is on disk is current after every method.

    Args:
        path: made when absent; one that holds this sweep is gone on with.
        sweep: what is run; an axis may have more or fewer values than when the directory was begun.

    Raises:
        UsageError: it holds another sweep, or cannot be written.
    """

    def __init__(self, path: Path, sweep: LoadedSweep) -> None:
        self.path = path
        wanted = sweep.document()
        known = _read(path, wanted)
        self._document = {"schema": SCHEMA, "sweep": wanted, "points": []}
        self.rows: list[Row] = []
        for point in sweep.points:
            fresh = {"values": dict(point.values), "status": "pending", "run": None}
            self.rows.append(known.get(point.key, fresh))
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.write()
        except OSError as error:
            raise UsageError(
                f"cannot write the sweep's directory {path}: {error.strerror}", hint="choose another with --out"
            ) from error

    def write(self) -> None:
        """State first to a file beside it, so that a crash leaves the old or the new one whole."""
        self._document["points"] = self.rows
        fresh = self.path / f"{STATE}.new"
        fresh.write_text(json.dumps(self._document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path / STATE)

    def finish(self, place: int, started: float, run: Path) -> None:
        """A point is done: keep what its run came to."""
        result = result_to_json(summarise_run(read_run(run), bounds_of))
        self.rows[place] |= {
            "status": "completed",
            "run": str(run.relative_to(self.path)),
            "took_s": time.monotonic() - started,
            "fidelity": result["fidelity"]["verdict"],
            "schedulers": result["schedulers"],
        }
        self.rows[place].pop("failure", None)
        self.write()

    def fail(self, place: int, started: float, failure: str) -> None:
        self.rows[place] |= {"status": "failed", "failure": failure, "took_s": time.monotonic() - started}
        self.write()


def run_sweep(
    sweep: LoadedSweep, directory: SweepDirectory, *, allow_degraded: bool = False, say: Say = lambda text: None
) -> list[Row]:
    """Run every point that is not done, and return all rows. A point that fails is kept as failed, and the
    others go on; run again, a sweep takes up what failed.

    Raises:
        KeyboardInterrupt: passed on; what is done stays done.
    """
    todo = [place for place, row in enumerate(directory.rows) if row["status"] != "completed"]
    done = len(directory.rows) - len(todo)
    if done:
        say(f"{done} of {len(directory.rows)} points are done already")
    durations = [row["took_s"] for row in directory.rows if row["status"] == "completed"]
    left = len(todo)
    for group in groups([sweep.experiments[place] for place in todo]):
        places = [todo[k] for k in group]
        with _network(sweep.experiments[places[0]], allow_degraded, say) as testbed:
            for place in places:
                point = sweep.points[place]
                number = len(directory.rows) - left + 1
                say(f"point {number} of {len(directory.rows)}: {point} ({estimate(durations, left)})")
                started = time.monotonic()
                if _run_point(sweep.experiments[place], directory, place, testbed, allow_degraded, point, say):
                    durations.append(time.monotonic() - started)
                left -= 1
    return directory.rows


def groups(experiments: Sequence[LoadedExperiment]) -> list[list[int]]:
    """Which experiments share a network, and so one testbed, in the order in which they first need it. Pure.

    In the simulated world there is nothing to share: all are one group.
    """
    found: list[list[int]] = []
    for k, experiment in enumerate(experiments):
        for group in found:
            first = experiments[group[0]]
            simulated = {first.spec.world, experiment.spec.world} == {"simulated"}
            emulated = {first.spec.world, experiment.spec.world} == {"emulated"}
            if simulated or (emulated and same_network(first.topology, experiment.topology)):
                group.append(k)
                break
        else:
            found.append([k])
    return found


@contextmanager
def _network(experiment: LoadedExperiment, allow_degraded: bool, say: Say) -> Iterator[str | None]:
    """The testbed that a group's runs share; None in the simulated world."""
    if experiment.spec.world == "simulated":
        yield None
        return
    from testbed.standing import require_root

    require_root("an emulated sweep")
    with testbed_for(experiment, None, False, allow_degraded, say) as info:
        yield info.name


def _run_point(
    experiment: LoadedExperiment,
    directory: SweepDirectory,
    place: int,
    testbed: str | None,
    allow_degraded: bool,
    point: Point,
    say: Say,
) -> bool:
    started = time.monotonic()
    try:
        run = run_experiment(
            experiment, out=directory.path / RUNS, testbed=testbed, allow_degraded=allow_degraded, say=say
        )
        directory.finish(place, started, run)
    except StormbedError as error:
        directory.fail(place, started, error.message)
        say(f"{point} failed: {error.message}")
        return False
    return True


def read_state(path: Path) -> dict[str, Any]:
    """A sweep's state.

    Raises:
        InvalidFileError: it is missing or damaged.
    """
    file = path / STATE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA or not isinstance(found["points"], list):
            raise ValueError("it is of another version")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{file}: cannot be read: {error}", hint="choose another --out") from error
    return dict(found)


def _read(path: Path, wanted: dict[str, Any]) -> dict[str, Row]:
    """The rows of a sweep that was begun here, by point."""
    if not (path / STATE).exists():
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty and holds no sweep", hint="choose another with --out")
        return {}
    found = read_state(path)
    before = found["sweep"]
    changed = [key for key in ("experiment", "text", "set") if before.get(key) != wanted[key]]
    if list(before["axes"]) != list(wanted["axes"]):
        changed.append("axes")
    if changed:
        what = "the experiment's file" if changed[0] == "text" else changed[0]
        raise UsageError(f"{path} holds another sweep: {what} differs", hint="choose another with --out")
    return {Point(row["values"]).key: row for row in found["points"]}
