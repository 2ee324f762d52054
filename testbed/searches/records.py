"""What a run of searches leaves behind beside the usual files of a run directory; both worlds write it.

    stages.csv    one row a stage: which tuner's, when it ran, what it needs at least
    trials.csv    one row a trial in a stage: its configuration, its sites, its score
    coflows.csv   one row a synchronisation: when the last site was ready, when the last had its results

Times are seconds on the run's monotonic clock (virtual in the simulated world).
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from agents.search.base import StagePlan, TrialRun

STAGES = "stages.csv"
TRIALS = "trials.csv"
COFLOWS = "coflows.csv"


@dataclass(frozen=True)
class StageRow:
    """A stage. `barrier`: 1 where the search waits for all of it. `alone_s`: no order of coflows can beat it."""

    segment: str
    tuner: str
    stage: int
    bracket: int
    rung: int
    barrier: int
    trials: int
    start_s: float
    end_s: float
    alone_s: float

    @classmethod
    def of(
        cls, segment: str, tuner: str, stage: StagePlan, start_s: float, end_s: float, alone_s: float
    ) -> StageRow:
        """The row of a stage that is over."""
        barrier, trials = int(stage.barrier), len(stage.runs)
        return cls(
            segment, tuner, stage.id, stage.bracket, stage.rung, barrier, trials, start_s, end_s, alone_s
        )

    @property
    def sct_s(self) -> float:
        """Stage completion time."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class TrialRow:
    """A trial in a stage. `parameters` is JSON; `score` is the loss on the test data, empty where it failed."""

    segment: str
    tuner: str
    stage: int
    trial: int
    sites: str
    parameters: str
    from_iteration: int
    to_iteration: int
    start_s: float
    end_s: float
    score: float | None

    @classmethod
    def of(
        cls,
        segment: str,
        tuner: str,
        stage: StagePlan,
        run: TrialRun,
        *,
        sites: Iterable[str],
        start_s: float,
        end_s: float,
        score: float | None,
    ) -> TrialRow:
        """The row of a trial that has reached its boundary."""
        parameters = json.dumps(dict(run.parameters), sort_keys=True)
        trained = " ".join(sites), parameters, run.start, run.end
        return cls(segment, tuner, stage.id, run.trial, *trained, start_s, end_s, score)

    @property
    def jct_s(self) -> float:
        """Job completion time within its stage."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class CoflowRow:
    """A synchronisation. `gate_wait_s` is the mean wait of its chunks at their senders; 0 where not measured."""

    segment: str
    job: str
    number: int
    arrival_s: float
    finish_s: float
    isolation_s: float
    gate_wait_s: float
    chunks: int

    @property
    def cct_s(self) -> float:
        """Coflow completion time."""
        return self.finish_s - self.arrival_s


Row = StageRow | TrialRow | CoflowRow
RowT = TypeVar("RowT", StageRow, TrialRow, CoflowRow)
FILES: dict[str, type[Row]] = {STAGES: StageRow, TRIALS: TrialRow, COFLOWS: CoflowRow}


class SearchRecords:
    """Appends rows as they come; thread-safe. A row is on disk when `add` returns.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        for name, kind in FILES.items():
            with (directory / name).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow([field.name for field in fields(kind)])

    def add(self, rows: Iterable[Row]) -> None:
        by_file: dict[str, list[Row]] = {}
        for row in rows:
            name = next(name for name, kind in FILES.items() if isinstance(row, kind))
            by_file.setdefault(name, []).append(row)
        with self._lock:
            for name, group in by_file.items():
                with (self._directory / name).open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerows([_plain(row) for row in group])


def _plain(row: Row) -> Sequence[Any]:
    return [f"{value:.6f}" if isinstance(value, float) else value for value in astuple(row)]


def read_rows(directory: Path, kind: type[RowT], problems: list[str]) -> tuple[RowT, ...]:
    """The rows of one of the files; a missing file is no row, a damaged row a named problem."""
    name = next(name for name, known in FILES.items() if known is kind)
    path = directory / name
    if not path.exists():
        return ()
    found: list[RowT] = []
    with path.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                found.append(kind(**{field.name: _value(str(field.type), row[field.name]) for field in fields(kind)}))
            except (KeyError, TypeError, ValueError):
                problems.append(f"{name}: line {number} cannot be read")
    return tuple(found)


def _value(kind: str, text: str) -> Any:
    if kind.startswith("float"):
        return None if text == "" and "None" in kind else float(text)
    return int(text) if kind == "int" else text
