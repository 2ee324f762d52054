"""Writing a run directory; both worlds write it through here."""

from __future__ import annotations

import csv
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from testbed.experiments.machine import describe_machine, package_versions, source_state
from testbed.experiments.manifest import (
    CHANGE_COLUMNS,
    CHANGES,
    EVENTS,
    EXPERIMENT,
    LINK_COLUMNS,
    LINKS,
    LOGS,
    RESOLVED,
    TOPOLOGY,
    FailureRow,
    FidelityRow,
    LinkRow,
    Manifest,
    SegmentRow,
    SegmentStatus,
    WorkerRow,
    worker_directory,
)
from testbed.experiments.runner import this_runner
from testbed.experiments.spec import LoadedExperiment
from testbed.experiments.writing import RunEvents, no_room, writing
from testbed.report.measurements import LinkSample
from topologies.errors import RunFailedError, StormbedError, UsageError
from topologies.model import Topology

RESERVE = ".reserve"
RESERVE_BYTES = 128 * 1024


class RunDirectory:
    """One run's directory while the run goes on. The manifest on disk is current after every method.

    Args:
        path: the directory; it is made, and must not exist.
        experiment: what is run.
        world: where.
    """

    def __init__(
        self, path: Path, experiment: LoadedExperiment, world: Literal["emulated", "simulated"]
    ) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"cannot make the run directory {path}: {error.strerror}", hint="choose another with --out"
            ) from error
        with writing(self.path):
            self._begin(experiment, world)

    def _begin(self, experiment: LoadedExperiment, world: Literal["emulated", "simulated"]) -> None:
        spec = experiment.spec
        self.path.joinpath(EXPERIMENT).write_text(experiment.text, encoding="utf-8")
        self.path.joinpath(RESOLVED).write_text(experiment.resolved_yaml(), encoding="utf-8")
        topology = json.dumps(experiment.topology.to_dict(), indent=2) + "\n"
        self.path.joinpath(TOPOLOGY).write_text(topology, encoding="utf-8")
        self.manifest = Manifest(
            id=self.path.name,
            name=spec.name,
            world=world,
            runner=this_runner(),
            started_s=time.time(),
            command=tuple(sys.argv),
            versions=package_versions(),
            git=source_state(),
            machine=describe_machine(),
            topology=spec.topology,
            scale=spec.scale,
            seeds={"experiment": spec.seed}
            | {segment.label: segment.seed for segment in experiment.segments},
            experiment=experiment.resolved(),
            links=link_table(experiment.topology),
            workers=worker_table(experiment.topology),
            segments=tuple(
                SegmentRow(
                    label=segment.label,
                    scheduler=segment.shown,
                    elements=segment.elements,
                    repeat=segment.repeat,
                    iterations=segment.iterations,
                    warmup=segment.warmup,
                    overlap=segment.overlap,
                    ahead=bool(segment.library or segment.policy.announced),
                )
                for segment in experiment.segments
            ),
        )
        self.manifest.write(self.path)
        self._reserve = self.path / RESERVE
        with self._reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        self.events = RunEvents(self.path / EVENTS)
        self._links = (self.path / LINKS).open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._links, lineterminator="\n")
        self._rows.writerow(LINK_COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RunFailedError:
            # Rows that could not be written are tried once more at the end; that they cannot is told already.
            if error is None:
                raise
        full = no_room(self.path, error)
        if full is not None:
            raise full from error

    def close(self) -> None:
        self.events.close()
        self._reserve.unlink(missing_ok=True)
        with writing(self.path):
            self._links.close()

    @property
    def logs(self) -> Path:
        """Where the logs of the testbed's own processes belong; made on first use."""
        folder = self.path / LOGS
        with writing(self.path):
            folder.mkdir(exist_ok=True)
        return folder

    def worker(self, site: str, worker: int) -> Path:
        """The directory of one worker, made on first use."""
        folder = self.path / worker_directory(site, worker)
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.manifest = self.manifest.model_copy(update=changes)
        with writing(self.path):
            self.manifest.write(self.path)

    def note(self, text: str) -> None:
        """Keep something that qualifies the numbers; reports show it."""
        self.update(notes=(*self.manifest.notes, text))
        self.events.write("note", text=text)

    def begin_segment(self, label: str, at_ns: int) -> None:
        self._change_segment(label, status="running", started_ns=at_ns)
        self.events.write("segment-start", segment=label)

    def set_plan(self, label: str, plan: Mapping[str, Any] | None) -> None:
        """Keep the plan that the scheduler made for this segment."""
        self._change_segment(label, plan=None if plan is None else dict(plan))

    def end_segment(self, label: str, at_ns: int, status: SegmentStatus) -> None:
        self._change_segment(label, status=status, finished_ns=at_ns)
        self.events.write("segment-end", segment=label, status=status)

    def _change_segment(self, label: str, **changes: Any) -> None:
        self.update(
            segments=tuple(
                segment.model_copy(update=changes) if segment.label == label else segment
                for segment in self.manifest.segments
            )
        )

    def add_links(self, samples: Iterable[LinkSample]) -> None:
        """Append rows to `links.csv`."""
        with writing(self.path):
            self._rows.writerows(
                (
                    f"{sample.t_s:.3f}",
                    f"{sample.interval_s:.4f}",
                    sample.segment,
                    sample.src,
                    sample.dst,
                    sample.configured_bps,
                    round(sample.achieved_bps),
                    sample.carried_bytes,
                    sample.dropped_packets,
                )
                for sample in samples
            )
            self._links.flush()

    def add_changes(self, t_s: float, segment: str, links: Iterable[Mapping[str, Any]]) -> None:
        """Append what became of links at a moment (on the clock of `links.csv`) to `changes.csv`."""
        path = self.path / CHANGES
        fresh = not path.exists()
        with writing(self.path), path.open("a", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            if fresh:
                rows.writerow(CHANGE_COLUMNS)
            for link in links:
                rows.writerow((f"{t_s:.3f}", segment, *(link[column] for column in CHANGE_COLUMNS[2:])))

    def merge_changes(self, changes: Sequence[tuple[float, str, Sequence[Mapping[str, Any]]]]) -> None:
        """Put what others did to links (moment, segment, links) among the rows of `changes.csv`, by time."""
        for t_s, segment, links in changes:
            self.add_changes(t_s, segment, links)
        path = self.path / CHANGES
        if not changes or not path.exists():
            return
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        rows.sort(key=lambda row: float(row[0]))
        with writing(self.path), path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *rows])

    def finish(self, failure: BaseException | None, fidelity: FidelityRow | None = None) -> None:
        """Write how the run ended: completed, interrupted (KeyboardInterrupt), or failed and why."""
        failure = no_room(self.path, failure) or failure
        changes: dict[str, Any] = {"finished_s": time.time(), "status": "completed"}
        if fidelity is not None:
            changes["fidelity"] = fidelity
        if isinstance(failure, KeyboardInterrupt):
            changes["status"] = "interrupted"
        elif failure is not None:
            changes["status"] = "failed"
            changes["failure"] = failure_row(failure)
        # On a full disk this is the room for the end to be told.
        self._reserve.unlink(missing_ok=True)
        try:
            self.update(**changes)
            self.events.write("run-end", status=changes["status"])
        except RunFailedError:
            if failure is None:
                raise


def failure_row(error: BaseException) -> FailureRow:
    """An error as the manifest keeps it."""
    if isinstance(error, StormbedError):
        return FailureRow(message=error.message, hint=error.hint, exit_code=error.exit_code)
    return FailureRow(message=f"{type(error).__name__}: {error}", exit_code=1)


def new_run_path(root: Path, name: str) -> Path:
    """A path for a new run: `<utc>-<name>-<short id>` under `root`."""
    now = datetime.now(UTC).strftime("%Y%m%dt%H%M%Sz")
    return root / f"{now}-{name}-{secrets.token_hex(3)}"


def link_table(topology: Topology) -> tuple[LinkRow, ...]:
    """Every directed link as the topology declares it."""
    return tuple(
        LinkRow(
            index=link.index,
            src=link.src_name,
            dst=link.dst_name,
            rate_bps=link.rate.bps,
            delay_s=link.delay.seconds,
            jitter_s=link.jitter.seconds,
            loss_ratio=link.loss.ratio,
            loss_burst=link.loss.burst,
            queue_bytes=None if link.queue is None else link.queue.bytes,
        )
        for link in topology.directed
    )


def worker_table(topology: Topology) -> tuple[WorkerRow, ...]:
    """Every worker in rank order: by site, then by its index within the site."""
    rows: list[WorkerRow] = []
    for name, site in topology.sites.items():
        for worker in range(site.workers):
            rows.append(WorkerRow(site=name, worker=worker, rank=len(rows)))
    return tuple(rows)
