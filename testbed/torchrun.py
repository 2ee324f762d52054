"""Starts a training script of the user's own at every site of a standing testbed.

One process a worker, over SSH, with the environment that torch's own launcher sets: rank, size, and a meeting
point at the first site's WAN address. On `stormbed` a job is opened at the coordinator first, with the
scheduler that carries its gradients; on `gloo` the processes speak to each other over the same WAN directly.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agents.control import CoordinatorClient
from agents.planning.registry import accepted_names, get_scheduler, library_of
from testbed.api import Testbed
from testbed.experiments.manifest import WorkerRow
from testbed.experiments.workers import RunningWorker, Workers, describe_end
from testbed.meeting import choose_port, meeting
from testbed.torchrun_site import BACKEND, COMMAND, DIRECTORY, GLOO, STORMBED
from topologies.errors import RunFailedError, StormbedError, UsageError, nearest
from topologies.files import open_file

BACKENDS: Final = (STORMBED, GLOO)
LOGS: Final = "torchrun"
POLL_S: Final = 0.1
# A worker's end is seen before its exit code is written; and those who lost a peer end a moment later.
SETTLE_S: Final = 0.3
OUTPUTS: Final = ("stdout", "stderr")

OnLine = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Launch:
    """What to run at every site, and how.

    Attributes:
        script: the program; found at the sites by the same path, as they share the machine's files.
        arguments: its own.
        backend: "stormbed" or "gloo".
        scheduler: as in an experiment file; of no effect on gloo.
        workers: processes a site; None takes what the topology says.
        chunk_elements, deadline_s: of the job; None takes the agents' defaults.
        port: of the meeting point; None chooses one.
        timeout_s: seconds that the whole may take; None waits as long as it runs.
        directory: the scripts' working directory.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    backend: str = STORMBED
    scheduler: str | Mapping[str, Any] = "netstorm"
    workers: int | None = None
    chunk_elements: int | None = None
    deadline_s: float | None = None
    port: int | None = None
    timeout_s: float | None = None
    directory: Path = field(default_factory=Path.cwd)

    def check(self, site_names: Sequence[str] | None = None) -> None:
        """Raise UsageError (InvalidFileError for the script) for what cannot be, before anything is started.

        Args:
            site_names: of the testbed, where it is known; the scheduler's options are checked too then.
        """
        if self.backend not in BACKENDS:
            raise UsageError(f"there is no backend {self.backend!r}", hint=f"one of {', '.join(BACKENDS)}")
        open_file(self.script).close()
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers a site", hint="at least 1")
        for what, seconds in (("timeout", self.timeout_s), ("deadline", self.deadline_s)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise UsageError(f"a {what} of {seconds:g} s", hint="more than 0 s, and finite")
        library = library_of(self.scheduler) if self.backend == STORMBED else ""
        if library:
            raise UsageError(f"{library} is no scheduler of the agents", hint=f"--backend {library}")
        if self.backend != STORMBED:
            return
        name = self.scheduler if isinstance(self.scheduler, str) else self.scheduler.get("name")
        if name not in accepted_names():
            raise UsageError(f"unknown scheduler {name!r}", hint=nearest(str(name), accepted_names()))
        if site_names is not None:
            get_scheduler(self.scheduler, site_names)


def rows(sites: Mapping[str, int]) -> tuple[WorkerRow, ...]:
    """Every worker in rank order: by site, then by its number within the site. Pure."""
    found: list[WorkerRow] = []
    for site, workers in sites.items():
        found += [WorkerRow(site=site, worker=i, rank=len(found) + i) for i in range(workers)]
    return tuple(found)


def environment(
    row: WorkerRow, launch: Launch, sites: Mapping[str, int], job: str, port: int
) -> dict[str, str]:
    """What one worker finds in its environment beside the site's own. Pure.

    Args:
        sites: each site's workers, in the topology's order.
    """
    index = list(sites).index(row.site)
    return {
        "RANK": str(row.rank),
        "WORLD_SIZE": str(sum(sites.values())),
        "LOCAL_RANK": str(row.worker),
        "LOCAL_WORLD_SIZE": str(sites[row.site]),
        "GROUP_RANK": str(index),
        **meeting(index, port),
        # Workers of many sites share few cores: more threads only fight for them.
        "OMP_NUM_THREADS": "1",
        "STORMBED_JOB": job,
        "STORMBED_WORKER": str(row.worker),
        BACKEND: launch.backend,
        COMMAND: json.dumps([str(launch.script.absolute()), *launch.arguments]),
        DIRECTORY: str(launch.directory.absolute()),
    }


def new_folder(root: Path, script: Path) -> Path:
    """A path for the logs of one launch: `<utc>-<script>-<short id>` under `root`."""
    now = datetime.now(UTC).strftime("%Y%m%dt%H%M%Sz")
    return root / f"{now}-{script.stem}-{secrets.token_hex(3)}"


def torchrun(testbed: Testbed, launch: Launch, folder: Path, on_line: OnLine | None = None) -> None:
    """Run a script at every site to its end.

    Args:
        testbed: it stands, and stays.
        folder: receives `SITE-WORKER/stdout` and `stderr`.
        on_line: is told each line as it comes: the worker, "stdout" or "stderr", the text.

    Raises:
        RunFailedError: a worker ended with another status than 0, or the job stopped; the message names the
            first; or it took longer than `timeout_s`. All others have been ended.
        KeyboardInterrupt: passed on once all workers have ended.
    """
    launch.check(testbed.topology.site_names)
    sites = {name: launch.workers or site.workers for name, site in testbed.topology.sites.items()}
    job = f"torchrun-{launch.script.stem}-{secrets.token_hex(3)}"
    port = launch.port if launch.port is not None else choose_port()
    tails = _Tails(on_line)
    workers = Workers(testbed.ssh_config)

    def place(row: WorkerRow) -> Path:
        return folder.absolute() / f"{row.site}-{row.worker}"

    try:
        with ExitStack() as stack:
            if launch.backend == STORMBED:
                coordinator = stack.enter_context(CoordinatorClient.of_testbed(testbed.run_dir))
                coordinator.open_job(_job(job, sites, launch))
            workers.start(
                rows(sites),
                "testbed.torchrun_site",
                lambda row: environment(row, launch, sites, job, port),
                place,
            )
            for worker in workers.running:
                tails.follow(worker)
            _watch(testbed, workers, launch, tails)
            if launch.backend == STORMBED:
                coordinator.close_job(job)
    finally:
        problems = workers.end()
        tails.read()
    if problems:
        raise RunFailedError("; ".join(problems))


def _job(job: str, sites: Mapping[str, int], launch: Launch) -> dict[str, Any]:
    spec: dict[str, Any] = {"job": job, "sites": dict(sites), "scheduler": launch.scheduler}
    options = {"chunk_elements": launch.chunk_elements, "deadline_s": launch.deadline_s}
    return spec | {key: value for key, value in options.items() if value is not None}


def _watch(testbed: Testbed, workers: Workers, launch: Launch, tails: _Tails) -> None:
    """Until every worker has ended well, or the first has not."""
    pause = threading.Event()
    deadline = None if launch.timeout_s is None else time.monotonic() + launch.timeout_s
    well: set[str] = set()
    while len(well) < len(workers.running):
        tails.read()
        ended = [worker for worker in workers.ended() if worker.name not in well]
        if any(workers.exit_code(worker) != 0 for worker in ended):
            pause.wait(SETTLE_S)
            raise RunFailedError(
                _first_failure(testbed.run_dir, workers), hint=f"logs: {ended[0].folder.parent}"
            )
        well.update(worker.name for worker in ended)
        if deadline is not None and time.monotonic() > deadline:
            left = [worker.name for worker in workers.running if worker.name not in well]
            raise RunFailedError(
                f"not over after {launch.timeout_s:g} s, still running: {', '.join(left)}",
                hint=f"give it more with --timeout; logs: {workers.running[0].folder.parent}",
            )
        pause.wait(POLL_S)


def _first_failure(run_dir: Path, workers: Workers) -> str:
    """The worker that failed first, with its last words. Those that lost it fail after it, so the order in
    which the exit codes were written tells which."""
    failed: list[tuple[float, RunningWorker, int | None]] = []
    for worker in workers.ended():
        code = workers.exit_code(worker)
        if code != 0:
            record = run_dir / "sites" / worker.row.site / "processes" / f"{worker.process.key}.exit"
            try:
                moment = record.stat().st_mtime_ns * 1e-9
            except OSError:
                moment = time.time()  # ended by a signal that left no record: after all that have one
            failed.append((moment, worker, code))
    if not failed:
        raise StormbedError("a worker failed, and none is found that did")
    _, first, code = min(failed, key=lambda entry: entry[0])
    others = len(failed) - 1
    more = f" (and {others} after it)" if others else ""
    return f"site {first.row.site} failed first: {describe_end(first, code)}{more}"


class _Tails:
    """Passes on the workers' output line by line as it is written."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._files: list[_Tail] = []

    def follow(self, worker: RunningWorker) -> None:
        self._files += [_Tail(worker.name, stream, worker.folder / stream) for stream in OUTPUTS]

    def read(self) -> None:
        if self._on_line is None:
            return
        for tail in self._files:
            for line in tail.lines():
                self._on_line(tail.worker, tail.stream, line)


class _Tail:
    """A file that grows."""

    def __init__(self, worker: str, stream: str, path: Path) -> None:
        self.worker, self.stream, self._path = worker, stream, path
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except OSError:
            return []
        self._offset += len(fresh)
        *whole, self._rest = (self._rest + fresh).split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in whole]
